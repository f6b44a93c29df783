//! What a call is about: the part of its arguments that all ranks must say alike, in one word, and in what two calls differ.

use std::fmt;

use banyan_datatype::op;

use super::MULTIPLIER;
use crate::looks::Looked;
use crate::{Kind, Op, Shape};

/// What all ranks must say alike of a collective, in one word: kind, operation, size of an element (its logarithm), root (or
/// a hash of the list of counts), and bytes. A value that does not fit its bits becomes the largest that does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct About(pub(super) u64);

const KINDS: u32 = 5;
const OPS: u32 = 6;
const UNITS: u32 = 4;
const ROOTS: u32 = 12;
const BYTES: u32 = 64 - KINDS - OPS - UNITS - ROOTS;
const AT_OP: u32 = KINDS;
const AT_UNIT: u32 = AT_OP + OPS;
const AT_ROOT: u32 = AT_UNIT + UNITS;
const AT_BYTES: u32 = AT_ROOT + ROOTS;
/// Stands for every operation of the user's, where one of MPI's own has its code.
const USERS: u64 = 1;

/// The value, or the largest that fits into so many bits.
fn fit(value: u64, bits: u32) -> u64 {
    value.min((1 << bits) - 1)
}

impl About {
    /// What a call of this shape is about, without its operation.
    pub(crate) fn of(shape: &Shape) -> About {
        use Kind::*;
        let Shape { kind, ranks, .. } = *shape;
        let (units, root) = match kind {
            // Each group of an intercommunicator has counts and a root of its own, and ranks beside the root know none.
            _ if shape.split > 0 => (0, 0),
            // Only the two ranks of a pair know the size of what they exchange.
            _ if kind.known_by_pairs() => (shape.of_pair().unwrap_or(0), shape.root),
            Allgatherv => (shape.recvs.start(ranks), hash((0..ranks).map(|rank| shape.recvs.block(rank).1))),
            ReduceScatter => {
                (shape.sends.start(ranks), hash((0..ranks).map(|rank| shape.sends.block(rank).1)))
            }
            _ => (shape.len, shape.root),
        };
        let bytes = units.saturating_mul(shape.unit);
        // No element that MPI's own operations combine has more than 64 bytes.
        let unit = if kind.reduces() && shape.split == 0 { u64::from((shape.unit | 1).ilog2()) } else { 0 };
        About(
            kind as u64
                | fit(unit, UNITS) << AT_UNIT
                | fit(root.into(), ROOTS) << AT_ROOT
                | fit(bytes, BYTES) << AT_BYTES,
        )
    }

    /// Adds one of MPI's own operations.
    #[inline(always)]
    pub(crate) fn with_builtin(self, op: op::Builtin) -> About {
        About(self.0 | (op as u64) << AT_OP)
    }

    /// Adds any operation, unless the call is `between` two groups, where not all ranks know it.
    pub(crate) fn with_any(self, op: Option<&Op>, between: bool) -> About {
        match op {
            // In an intercommunicator the ranks beside the root know no operation.
            Some(_) if between => self,
            None => self,
            Some(Op::Builtin(op)) => self.with_builtin(*op),
            // The elements may be of types of the user's: their size is left out.
            Some(Op::User { .. }) => About(self.0 & !(((1 << UNITS) - 1) << AT_UNIT) | USERS << AT_OP),
        }
    }

    fn field(self, at: u32, bits: u32) -> u64 {
        self.0 >> at & ((1 << bits) - 1)
    }

    fn kind(self) -> Option<Kind> {
        Kind::ALL.get(self.field(0, KINDS) as usize).map(|row| row.0)
    }

    fn root(self) -> u64 {
        self.field(AT_ROOT, ROOTS)
    }

    fn bytes(self) -> u64 {
        self.field(AT_BYTES, BYTES)
    }

    fn op(self) -> u64 {
        self.field(AT_OP, OPS)
    }

    /// Kind and root: if they differ once, the ranks of the communicator are out of step for good.
    pub(super) fn kind_and_root(self) -> u64 {
        self.0 & (((1 << KINDS) - 1) | (((1 << ROOTS) - 1) << AT_ROOT))
    }
}

/// [`ROOTS`] bits that depend on all the numbers.
fn hash(numbers: impl Iterator<Item = u64>) -> u32 {
    let mixed = numbers.fold(1, |hash: u64, number| (hash.rotate_left(9) ^ number).wrapping_mul(MULTIPLIER));
    (mixed >> (64 - ROOTS)) as u32
}

/// In the words of the user's program: `MPI_Bcast with root 0 and 40 bytes`.
impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind() else { return write!(f, "an unknown collective") };
        let (first, rest) = kind.name().split_at(1);
        write!(f, "MPI_{}{rest}", first.to_uppercase())?;
        let own = |row: &&(op::Builtin, &str)| row.0 as u64 == self.op();
        let op = op::ALL.iter().find(own).map_or("an operation of the user's", |row| row.1);
        let (root, bytes) = (self.root(), self.bytes());
        match kind {
            Kind::Barrier => Ok(()),
            // Of more than two ranks not all know how many bytes.
            _ if kind.known_by_pairs() && bytes == 0 && !kind.rooted() => Ok(()),
            _ if kind.known_by_pairs() && bytes == 0 => write!(f, " with root {root}"),
            _ if kind.known_by_pairs() && !kind.rooted() => {
                write!(f, " with {bytes} bytes between two ranks")
            }
            _ if kind.known_by_pairs() => write!(f, " with root {root} and {bytes} bytes between two ranks"),
            Kind::Reduce => write!(f, " with {op}, root {root} and {bytes} bytes"),
            Kind::ReduceScatter => write!(f, " with {op} and {bytes} bytes in all"),
            Kind::ReduceScatterBlock => write!(f, " with {op} and {bytes} bytes per rank"),
            _ if kind.reduces() => write!(f, " with {op} and {bytes} bytes"),
            Kind::Bcast => write!(f, " with root {root} and {bytes} bytes"),
            Kind::Allgatherv => write!(f, " with {bytes} bytes in all"),
            _ if kind.rooted() => write!(f, " with root {root} and {bytes} bytes per rank"),
            _ => write!(f, " with {bytes} bytes per rank"),
        }
    }
}

/// A rank, and what it says that it has called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// The rank in the communicator.
    pub rank: u32,
    /// What it has called.
    pub about: About,
}

/// What a call consumes of what later calls count on (sequence numbers and chunks of the shared scratch), with its kind and
/// root, in one word. Ranks whose calls have consumed alike are in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used(pub(super) u64);

impl Used {
    /// What a call of so many phases uses, with so many chunks on the shared scratch.
    pub(crate) fn of(about: About, phases: u32, chunks: u32) -> Used {
        Used(about.kind_and_root() ^ u64::from(phases) << AT_BYTES ^ u64::from(chunks) << AT_UNIT)
    }

    /// What a composition uses: that follows from all that the call is about, and on each node in another way.
    pub(crate) fn of_stages(about: About) -> Used {
        Used(about.0)
    }

    /// The same of a call that is counted for [looks](crate::looks::Looks), which must be in step, too.
    pub(crate) fn looked(self, call: Option<Looked>) -> Used {
        Used(self.0 ^ call.map_or(0, Looked::number).rotate_right(16))
    }
}

/// In what two calls differ, the most important first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// They are different collectives.
    Kind,
    /// Their roots differ.
    Root,
    /// Their operations differ.
    Operation,
    /// Their counts, or the sizes of their elements, differ.
    Count,
}

/// The most important difference between what two ranks called.
pub fn difference([one, other]: &[Said; 2]) -> Difference {
    let (one, other) = (one.about, other.about);
    match one.kind() {
        kind if kind != other.kind() => Difference::Kind,
        Some(kind) if kind.rooted() && one.root() != other.root() => Difference::Root,
        _ if one.op() != other.op() => Difference::Operation,
        _ => Difference::Count,
    }
}

/// The text of [`Fault::Differ`](crate::Fault::Differ).
pub(crate) fn differ([one, other]: &[Said; 2]) -> String {
    let (mine, theirs) = (one.about.to_string(), other.about.to_string());
    let also = match mine == theirs {
        true if one.about.root() != other.about.root() => ", but with another list of counts",
        true => ", but with elements of another size",
        false => "",
    };
    format!(
        "rank {} called {mine}, and rank {} called {theirs}{also}: all ranks of a communicator must call the same \
         collectives in the same order, with equal roots, operations and counts",
        one.rank, other.rank
    )
}
