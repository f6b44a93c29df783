//! What ranks say of their calls, so that calls which do not go together are an error at each rank that needs what is not
//! there, and never wrong data.
//!
//! * [`About`] is what all ranks of a communicator must say alike of a call, in one word. A [`Ledger`] numbers the calls of
//!   a communicator and makes a *tag* of each: 16 bits that depend on what the call is about, and on how far all calls before
//!   have brought stamps and board. The tag is in the stamp that a rank publishes under and in the key of each message, so
//!   that what is meant for another call is never taken.
//! * A rank that has waited for long asks those it waits for, by a [`Note`]. Who has called something else, has given up, or
//!   is through with that call, answers. What the two called is in the notes, in plain numbers.

use std::fmt;

use banyan_datatype::op;

use crate::{Fault, Kind, Op, Shape};

/// What all ranks must say alike of a collective, in one word: kind, operation, size of an element (its logarithm), root (or
/// a mark of the list of counts), and bytes. What does not fit is cut at the largest that does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct About(u64);

const KINDS: u32 = 5;
const OPS: u32 = 6;
const UNITS: u32 = 4;
const ROOTS: u32 = 12;
const BYTES: u32 = 64 - KINDS - OPS - UNITS - ROOTS;
const AT_OP: u32 = KINDS;
const AT_UNIT: u32 = AT_OP + OPS;
const AT_ROOT: u32 = AT_UNIT + UNITS;
const AT_BYTES: u32 = AT_ROOT + ROOTS;
/// In place of one of MPI's own operations: one of the user's.
const USERS: u64 = 1;

/// The value, or the largest that so many bits hold.
fn fit(value: u64, bits: u32) -> u64 {
    value.min((1 << bits) - 1)
}

impl About {
    /// Of a call of this shape, but for its operation.
    pub(crate) fn of(kind: Kind, shape: &Shape) -> About {
        use Kind::*;
        let ranks = shape.ranks;
        let (units, root) = match kind {
            // Each group of an intercommunicator has counts and a root of its own, and ranks beside the root know none.
            _ if shape.split > 0 => (0, 0),
            // Each pair knows its own.
            _ if kind.size_unknown() => (0, shape.root),
            Allgatherv => (shape.recvs.start(ranks), mark((0..ranks).map(|rank| shape.recvs.block(rank).1))),
            ReduceScatter => {
                (shape.sends.start(ranks), mark((0..ranks).map(|rank| shape.sends.block(rank).1)))
            }
            _ => (shape.len, shape.root),
        };
        let bytes = units.saturating_mul(shape.unit);
        // No element of MPI's operations has more than 64 bytes.
        let unit = if kind.reduces() && shape.split == 0 { u64::from((shape.unit | 1).ilog2()) } else { 0 };
        About(
            kind as u64
                | fit(unit, UNITS) << AT_UNIT
                | fit(root.into(), ROOTS) << AT_ROOT
                | fit(bytes, BYTES) << AT_BYTES,
        )
    }

    /// The same with one of MPI's own operations.
    #[inline(always)]
    pub(crate) fn with(self, op: op::Builtin) -> About {
        About(self.0 | (op as u64) << AT_OP)
    }

    /// The same with any operation, if all ranks know one.
    pub(crate) fn with_any(self, op: Option<&Op>, between: bool) -> About {
        match op {
            // Ranks beside the root of an intercommunicator know none.
            Some(_) if between => self,
            None => self,
            Some(Op::Builtin(op)) => self.with(*op),
            // Their elements may be of types of the user's.
            Some(Op::User { .. }) => About(self.0 & !(((1 << UNITS) - 1) << AT_UNIT) | USERS << AT_OP),
        }
    }

    fn part(self, at: u32, bits: u32) -> u64 {
        self.0 >> at & ((1 << bits) - 1)
    }

    fn kind(self) -> Option<Kind> {
        Kind::ALL.get(self.part(0, KINDS) as usize).map(|row| row.0)
    }

    fn root(self) -> u64 {
        self.part(AT_ROOT, ROOTS)
    }

    fn bytes(self) -> u64 {
        self.part(AT_BYTES, BYTES)
    }

    fn op(self) -> u64 {
        self.part(AT_OP, OPS)
    }

    /// What may not differ once without the communicator's being out of step for good: kind and root.
    fn firm(self) -> u64 {
        self.0 & (((1 << KINDS) - 1) | (((1 << ROOTS) - 1) << AT_ROOT))
    }
}

/// Some bits that depend on all the numbers.
fn mark(numbers: impl Iterator<Item = u64>) -> u32 {
    let mixed = numbers.fold(1, |mark: u64, number| (mark.rotate_left(9) ^ number).wrapping_mul(ODD));
    (mixed >> (64 - ROOTS)) as u32
}

/// As in the user's program: `MPI_Bcast with root 0 and 40 bytes`.
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
            _ if kind.size_unknown() && !kind.rooted() => Ok(()),
            _ if kind.size_unknown() => write!(f, " with root {root}"),
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
    /// In the communicator.
    pub rank: u32,
    /// Its call.
    pub about: About,
}

/// What a call does to the numbers of those after it, and what it must not differ in if these are to be alike, in one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used(u64);

impl Used {
    /// Of a call that uses so many stamps, and places on the board.
    pub(crate) fn of(about: About, phases: u32, chunks: u32) -> Used {
        Used(about.firm() ^ u64::from(phases) << AT_BYTES ^ u64::from(chunks) << AT_UNIT)
    }
}

/// In what two calls differ, the weightiest first.
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

/// In what they differ.
pub fn difference([one, other]: &[Said; 2]) -> Difference {
    let (one, other) = (one.about, other.about);
    match one.kind() {
        kind if kind != other.kind() => Difference::Kind,
        Some(kind) if kind.rooted() && one.root() != other.root() => Difference::Root,
        _ if one.op() != other.op() => Difference::Operation,
        _ => Difference::Count,
    }
}

/// The words for it.
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

/// An odd number whose bits are well mixed.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of a tag.
const TAG: u32 = 16;
/// Where it is in a stamp.
pub(crate) const AT_TAG: u32 = 64 - TAG;

/// What is known of a communicator's calls at this rank.
#[derive(Debug)]
pub struct Ledger {
    rank: u32,
    /// How many there were.
    calls: u64,
    /// Of all that ranks must have done alike so far.
    history: u64,
    /// The last ones, by number.
    past: [Entry; Ledger::KEPT],
    /// Those that failed, and why.
    left: Vec<(u64, Reason)>,
    /// There are no more calls.
    closed: bool,
    /// Ranks that said to be through with a call under way here.
    through: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    about: About,
    history: u64,
}

/// Why a rank gave a call up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    Differ([Said; 2]),
    OutOfStep([u32; 2]),
    Own(u32),
}

impl Ledger {
    /// Calls that are remembered.
    const KEPT: usize = 64;

    pub(crate) fn new(rank: u32) -> Ledger {
        let past = [Entry::default(); Ledger::KEPT];
        Ledger { rank, calls: 0, history: ODD, past, left: vec![], closed: false, through: vec![] }
    }

    /// Enters the next call; its tag, where it is in a stamp.
    #[inline(always)]
    pub(crate) fn enter(&mut self, about: About, used: Used) -> u64 {
        let history = self.history;
        self.past[self.calls as usize % Ledger::KEPT] = Entry { about, history };
        self.calls += 1;
        self.history = history.wrapping_mul(ODD).wrapping_add(used.0);
        (history ^ about.0).wrapping_mul(ODD) & !0 << AT_TAG
    }

    /// There are no more calls: nobody is to wait for one.
    pub(crate) fn close(mut self) -> Ledger {
        self.closed = true;
        self
    }

    /// The number of the last call.
    pub fn last(&self) -> u64 {
        self.calls.wrapping_sub(1)
    }

    fn note(&self, number: u64, state: State) -> Note {
        let Entry { about, history } = self.entry(number).unwrap_or_default();
        Note { rank: self.rank, number, about, history, state }
    }

    fn entry(&self, number: u64) -> Option<Entry> {
        let kept = number < self.calls && number + Ledger::KEPT as u64 >= self.calls;
        kept.then(|| self.past[number as usize % Ledger::KEPT])
    }

    /// What this rank says of a call for which it has waited long to those that it [awaits](crate::Execution::awaits).
    pub fn ask(&self, number: u64) -> Note {
        self.note(number, State::Waiting)
    }

    /// Call `number` has failed here; what all others are to be told, unless they know.
    pub fn fail(&mut self, number: u64, fault: &Fault) -> Note {
        let reason = Reason::of(fault, self.rank);
        self.left.retain(|(left, _)| *left + Ledger::KEPT as u64 >= self.calls && *left != number);
        self.left.push((number, reason));
        self.through.retain(|(through, _)| *through != number);
        self.note(number, State::Left(reason))
    }

    /// What follows from what another rank says of a call that is still `running` here, or not.
    pub fn hear(&mut self, note: Note, running: bool) -> Heard {
        if note.number >= self.calls {
            // Who waits asks again.
            let never = self.closed.then(|| self.note(note.number, State::Left(Reason::Own(self.rank))));
            return Heard { answer: never, ..Heard::default() };
        }
        let left = self.left.iter().find(|(left, _)| *left == note.number).map(|left| left.1);
        let state = match left {
            Some(reason) => Some(State::Left(reason)),
            None if running => None,
            None => Some(State::Over),
        };
        let waits = note.state == State::Waiting;
        let answer = state.filter(|_| waits).map(|state| self.note(note.number, state));
        let Some(mine) = self.entry(note.number) else { return Heard { answer, ..Heard::default() } };
        if let Some(fault) = self.compare(mine, note) {
            // It learns from this what was called here.
            let left = State::Left(Reason::of(&fault, self.rank));
            let answer = answer.or_else(|| waits.then(|| self.note(note.number, left)));
            if running {
                return Heard { answer, fault: Some(fault), ..Heard::default() };
            }
            // Calls of other kinds under one number: what follows is out of step.
            let lasting = mine.about.firm() != note.about.firm();
            return Heard { answer, later: lasting.then_some(fault), ..Heard::default() };
        }
        match note.state {
            State::Left(reason @ (Reason::Differ(_) | Reason::OutOfStep(_))) if running => {
                Heard { fault: Some(reason.fault()), known: true, ..Heard::default() }
            }
            State::Over | State::Left(Reason::Own(_)) if running => {
                let left = match note.state {
                    State::Left(reason) => Some(reason.fault()),
                    _ => None,
                };
                let said = (note.number, note.rank);
                // What it gave before it said so may not have been looked at yet.
                let again = self.through.contains(&said);
                if !again {
                    self.through.retain(|(through, _)| through + Ledger::KEPT as u64 >= self.calls);
                    self.through.push(said);
                }
                Heard { silent: again.then_some((note.rank, left)), ..Heard::default() }
            }
            _ => Heard { answer, ..Heard::default() },
        }
    }

    /// What is wrong if two ranks called that under one number.
    fn compare(&self, mine: Entry, note: Note) -> Option<Fault> {
        let known = note.about != About::default() || note.history != 0;
        if !known || note.rank == self.rank {
            return None;
        }
        let [one, other] =
            [(self.rank, mine.about), (note.rank, note.about)].map(|(rank, about)| Said { rank, about });
        let said = if one.rank < other.rank { [one, other] } else { [other, one] };
        match (mine.about == note.about, mine.history == note.history) {
            (false, _) => Some(Fault::Differ { said }),
            (true, false) => Some(Fault::OutOfStep { ranks: said.map(|said| said.rank) }),
            (true, true) => None,
        }
    }
}

impl Reason {
    /// Of a fault at `rank`.
    fn of(fault: &Fault, rank: u32) -> Reason {
        match *fault {
            Fault::Differ { said } => Reason::Differ(said),
            Fault::OutOfStep { ranks } => Reason::OutOfStep(ranks),
            Fault::Left { rank } => Reason::Own(rank),
            _ => Reason::Own(rank),
        }
    }

    fn fault(self) -> Fault {
        match self {
            Reason::Differ(said) => Fault::Differ { said },
            Reason::OutOfStep(ranks) => Fault::OutOfStep { ranks },
            Reason::Own(rank) => Fault::Left { rank },
        }
    }
}

/// What follows from a note.
#[derive(Debug, Default)]
pub struct Heard {
    /// For its sender.
    pub answer: Option<Note>,
    /// The call is to fail here for this reason.
    pub fault: Option<Fault>,
    /// All later calls that are under way are to fail for this reason.
    pub later: Option<Fault>,
    /// Who said so has told all others, too.
    pub known: bool,
    /// This rank has said twice that it is through with the call, or has given it up for a reason of its own, which concerns
    /// only those who wait for it: they wait for nothing.
    pub silent: Option<(u32, Option<Fault>)>,
}

/// What a rank says to another of one of its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// Who says it, in the communicator.
    rank: u32,
    number: u64,
    about: About,
    history: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It waits for whom it says this to.
    Waiting,
    /// It is through with the call, or has forgotten it.
    Over,
    /// It has given the call up.
    Left(Reason),
}

impl Note {
    /// Bytes of a note that travels.
    pub const BYTES: usize = 64;

    /// The number of the call on its communicator.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The form in which it travels.
    pub fn encode(&self) -> [u8; Note::BYTES] {
        let (state, ranks, abouts) = match self.state {
            State::Waiting => (0, [0; 2], [About::default(); 2]),
            State::Over => (1, [0; 2], [About::default(); 2]),
            State::Left(Reason::Differ(said)) => (2, said.map(|said| said.rank), said.map(|said| said.about)),
            State::Left(Reason::OutOfStep(ranks)) => (3, ranks, [About::default(); 2]),
            State::Left(Reason::Own(rank)) => (4, [rank, 0], [About::default(); 2]),
        };
        let words = [
            u64::from(self.rank),
            self.number,
            self.about.0,
            self.history,
            state,
            pair(ranks),
            abouts[0].0,
            abouts[1].0,
        ];
        let mut bytes = [0; Note::BYTES];
        bytes.chunks_mut(8).zip(words).for_each(|(out, word)| out.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Reads what [`Note::encode`] wrote; `None` if it is nothing of the kind.
    pub fn decode(bytes: &[u8]) -> Option<Note> {
        let bytes: &[u8; Note::BYTES] = bytes.try_into().ok()?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_le_bytes(word)
        };
        let ranks = [word(5) as u32, (word(5) >> 32) as u32];
        let said = [(ranks[0], word(6)), (ranks[1], word(7))];
        let state = match word(4) {
            0 => State::Waiting,
            1 => State::Over,
            2 => State::Left(Reason::Differ(said.map(|(rank, about)| Said { rank, about: About(about) }))),
            3 => State::Left(Reason::OutOfStep(ranks)),
            4 => State::Left(Reason::Own(ranks[0])),
            _ => return None,
        };
        let rank = u32::try_from(word(0)).ok()?;
        Some(Note { rank, number: word(1), about: About(word(2)), history: word(3), state })
    }
}

fn pair([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
