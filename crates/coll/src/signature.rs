//! [`Signature`]: the arguments of a collective as they came, by which what was worked out for one call serves the next with the
//! same arguments.
//!
//! To check arguments, to make a [`Call`] of them and to work out its steps takes longer than to carry them out. All of it
//! depends only on what is compared here, or is looked at again: where buffers are.

use banyan_datatype::TypeArc;
use banyan_datatype::op::is_settled;
use banyan_memory::MemoryKind;

use crate::{Call, Kind, Op, Operand};

/// The arguments of a collective, as the user gave them, but for lists. It goes from hand to hand as a value: numbers that were
/// just written to memory, and are compared several at a time, would be waited for.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Which one.
    pub kind: Kind,
    /// Its counts, handles and root, in their order.
    pub numbers: [u64; Signature::NUMBERS],
    /// The addresses of what is given and of what is got (the same, if there is only one).
    pub buffers: [(usize, ArgKind); 2],
}

/// What an address stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgKind {
    /// There may be data, in memory of that kind.
    Data(MemoryKind),
    /// MPI_IN_PLACE.
    InPlace,
    /// NULL, or another constant.
    Other,
}

impl ArgKind {
    /// A set with this kind alone.
    #[inline(always)]
    fn set(self) -> u8 {
        match self {
            ArgKind::Data(MemoryKind::Host) => 1,
            ArgKind::Data(MemoryKind::Device) => 2,
            ArgKind::InPlace => 4,
            ArgKind::Other => 8,
        }
    }

    /// The set of all kinds.
    const ANY: u8 = 15;
}

/// Lists of counts and displacements, a number for each rank, by their order among the arguments.
pub trait Lists {
    /// Whether a list is there, and has these values.
    fn is(&self, index: usize, values: &[i64]) -> bool;
}

impl Signature {
    /// The most numbers that a collective takes.
    pub const NUMBERS: usize = 5;

    /// What of it is compared.
    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        let [(send, sends), (recv, gets)] = self.buffers;
        Key { kind: self.kind, numbers: self.numbers, arguments: [sends, gets], one_buffer: send == recv }
    }
}

/// What of a signature is compared, but for lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    kind: Kind,
    numbers: [u64; Signature::NUMBERS],
    arguments: [ArgKind; 2],
    one_buffer: bool,
}

/// Tells numbers that were made of a [`Call`] from those of a signature, which start with a count.
const OF_CALL: u64 = 1 << 63;

impl Key {
    /// A number below `places`, for the place where a plan is kept.
    #[inline(always)]
    pub(crate) fn place(&self, places: usize) -> usize {
        let [a, b, c, d, e] = self.numbers;
        let sum = a.wrapping_add(b).wrapping_add(c).wrapping_add(d).wrapping_add(e);
        (sum as usize).wrapping_add(self.kind as usize * 7) % places
    }

    /// That of a call whose face gives none, or one with handles that may mean something else later; `None` if that would be a
    /// long list. It says all that a plan depends on.
    pub(crate) fn of(call: &Call) -> Option<Key> {
        let [(sends, sent), (gets, got)] = [side(&call.send)?, side(&call.recv)?];
        // Which memory is combined matters; of data that only move their length does.
        let elements = match (&call.op, call.send.element_type().or(call.recv.element_type())) {
            (Some(_), Some(TypeArc::Predefined(ty))) => std::ptr::from_ref(*ty) as u64,
            // No address: those are even.
            (Some(_), Some(ty)) => ty.size() << 1 | 1,
            _ => 0,
        };
        let op = match &call.op {
            None => 0,
            Some(Op::Builtin(op)) => *op as u64,
            Some(Op::User { commutative, .. }) => 1 << 32 | u64::from(*commutative),
        };
        let flags = u64::from(sent) | u64::from(got) << 2;
        let numbers = [OF_CALL | flags << 32 | u64::from(call.root), sends, gets, elements, op];
        let arguments = [argument(&call.send), argument(&call.recv)];
        Some(Key { kind: call.kind, numbers, arguments, one_buffer: false })
    }
}

/// Bytes of a side (of a block, where all are alike), and marks of how they lie.
fn side(operand: &Operand) -> Option<(u64, u8)> {
    let dense = |ty: &TypeArc| u8::from(ty.is_dense());
    Some(match operand {
        Operand::Nothing | Operand::InPlace => (0, 0),
        Operand::Uniform { count, ty, .. } => (count.checked_mul(ty.size())?, dense(ty)),
        Operand::Vector { displs, ty, .. } => (ty.size(), dense(ty) | u8::from(!displs.is_empty()) << 1),
        Operand::Wide { .. } => return None,
    })
}

fn argument(operand: &Operand) -> ArgKind {
    match operand.base() {
        Some(base) => ArgKind::Data(base.kind()),
        None if matches!(operand, Operand::InPlace) => ArgKind::InPlace,
        None => ArgKind::Other,
    }
}

/// The lists of a call, as its face would number them.
pub(crate) struct CallLists<'a>(pub(crate) &'a Call);

impl Lists for CallLists<'_> {
    fn is(&self, index: usize, values: &[i64]) -> bool {
        lists(self.0).any(|(at, list)| at == index && list.iter().eq(values))
    }
}

/// The lists of counts and displacements of a call, with their order among its arguments.
fn lists(call: &Call) -> impl Iterator<Item = (usize, Vec<i64>)> {
    let first = |side: usize| if call.kind == Kind::Alltoallv { 2 * side } else { 0 };
    [&call.send, &call.recv].into_iter().enumerate().flat_map(move |(side, operand)| {
        let Operand::Vector { counts, displs, .. } = operand else { return vec![] };
        let counts = counts.iter().map(|&count| count as i64).collect();
        let mut lists = vec![(first(side), counts)];
        lists.extend((!displs.is_empty()).then(|| (first(side) + 1, displs.clone())));
        lists
    })
}

/// The calls that a plan is for.
#[derive(Debug)]
pub(crate) struct Description {
    kind: Kind,
    numbers: [u64; Signature::NUMBERS],
    /// What each argument may be: [`ArgKind::set`].
    arguments: [u8; 2],
    /// There are data on both sides.
    apart: bool,
    /// Which lists matter, and what was in them.
    lists: Vec<(usize, Box<[i64]>)>,
}

impl Description {
    /// Calls that are described like this one.
    pub(crate) fn new(key: Key, call: &Call) -> Description {
        let kinds = [&call.send, &call.recv].map(argument);
        let apart = kinds.iter().all(|kind| matches!(kind, ArgKind::Data(_)));
        let arguments = kinds.map(|kind| if kind == ArgKind::Other { ArgKind::ANY } else { kind.set() });
        let lists = lists(call).map(|(at, list)| (at, list.into())).collect();
        Description { kind: key.kind, numbers: key.numbers, arguments, apart, lists }
    }

    /// True if a call is one of those, and nothing is wrong with its buffers.
    #[inline(always)]
    pub(crate) fn is_of(&self, key: Key, lists: &(impl Lists + ?Sized)) -> bool {
        let ([a, b, c, d, e], numbers) = (key.numbers, &self.numbers);
        // One by one, in registers.
        let alike =
            a == numbers[0] && b == numbers[1] && c == numbers[2] && d == numbers[3] && e == numbers[4];
        let takes = |side: usize| self.arguments[side] & key.arguments[side].set() != 0;
        self.kind == key.kind
            && alike
            && takes(0)
            && takes(1)
            // Whether both may be the same depends on the collective.
            && !(self.apart && key.one_buffer)
            && self.lists_are(lists)
    }

    #[inline(always)]
    fn lists_are(&self, lists: &(impl Lists + ?Sized)) -> bool {
        for (index, values) in &self.lists {
            if !lists.is(*index, values) {
                return false;
            }
        }
        true
    }
}

/// True if the handles of a call mean what they mean for good, so that its signature describes it.
pub(crate) fn lasts(call: &Call) -> bool {
    let settled = |operand: &Operand| match operand {
        Operand::Nothing | Operand::InPlace => true,
        Operand::Uniform { ty, .. } | Operand::Vector { ty, .. } => {
            matches!(ty, TypeArc::Predefined(ty) if is_settled(ty))
        }
        Operand::Wide { .. } => false,
    };
    settled(&call.send) && settled(&call.recv) && !matches!(call.op, Some(Op::User { .. }))
}
