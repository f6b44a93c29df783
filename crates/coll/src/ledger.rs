//! Finds collectives that ranks call differently: such calls end in an error at each rank that needs what never comes,
//! and never in wrong data.
//!
//! * [`About`] holds, in one word, what all ranks of a communicator must say alike of a call. A [`Ledger`] numbers the
//!   calls of a communicator and computes a *tag* for each: 16 bits that depend on what the call is about, and on how far
//!   all earlier calls have advanced the sequence numbers and the sections of the shared scratch. The tag is part of the
//!   sequence number that a rank publishes under and of the key of each message, so no rank takes what is meant for
//!   another call.
//! * A rank that has waited for long sends a [`Note`] to each rank that it waits for. A rank answers if it has called
//!   something else, has given the call up, or is through with it. The notes say in plain numbers what the two called.

use std::fmt;

use banyan_datatype::op;

use crate::{Fault, Kind, Op, Shape};

/// What all ranks must say alike of a collective, in one word: kind, operation, size of an element (its logarithm), root (or
/// a hash of the list of counts), and bytes. A value that does not fit its bits becomes the largest that does.
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
            _ if kind.size_unknown() => (0, shape.root),
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
    fn kind_and_root(self) -> u64 {
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
    /// The rank in the communicator.
    pub rank: u32,
    /// What it has called.
    pub about: About,
}

/// What a call consumes of what later calls count on (sequence numbers and chunks of the shared scratch), with its kind and
/// root, in one word. Ranks whose calls have consumed alike are in step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used(u64);

impl Used {
    /// What a call of so many phases uses, with so many chunks on the shared scratch.
    pub(crate) fn of(about: About, phases: u32, chunks: u32) -> Used {
        Used(about.kind_and_root() ^ u64::from(phases) << AT_BYTES ^ u64::from(chunks) << AT_UNIT)
    }

    /// What a composition uses: that follows from all that the call is about, and on each node in another way.
    pub(crate) fn of_stages(about: About) -> Used {
        Used(about.0)
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

/// The text of [`Fault::Differ`].
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

/// An odd number whose bits are well mixed: a multiplier that loses no bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bits of a tag.
const TAG: u32 = 16;
/// The lowest bit of the tag in a sequence number.
pub(crate) const AT_TAG: u32 = 64 - TAG;

/// What this rank knows of a communicator's calls.
#[derive(Debug)]
pub struct Ledger {
    rank: u32,
    /// How many calls there were.
    calls: u64,
    /// A hash of all that ranks must have done alike so far.
    history: u64,
    /// The last calls: that with number `n` at `n` modulo [`Ledger::KEPT`].
    recent: [Entry; Ledger::KEPT],
    /// The numbers of calls that failed here, and why.
    failed: Vec<(u64, Reason)>,
    /// There are no more calls.
    closed: bool,
    /// Calls under way here, each with a rank that has said to be through with it or to have given it up.
    finished: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    about: About,
    /// [`Ledger::history`] before the call.
    history: u64,
}

/// Why a rank gave a call up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// Two ranks called differently: [`Fault::Differ`].
    Differ([Said; 2]),
    /// Two ranks are out of step: [`Fault::OutOfStep`].
    OutOfStep([u32; 2]),
    /// This rank had a fault of its own: [`Fault::Left`] for all others.
    Own(u32),
    /// A rank that takes part is gone: [`Fault::Gone`].
    Gone(u32),
}

impl Ledger {
    /// How many calls are remembered.
    const KEPT: usize = 64;

    pub(crate) fn new(rank: u32) -> Ledger {
        let recent = [Entry::default(); Ledger::KEPT];
        Ledger {
            rank,
            calls: 0,
            history: MULTIPLIER,
            recent,
            failed: vec![],
            closed: false,
            finished: vec![],
        }
    }

    /// Enters the next call. Returns its tag, in the bits that it has in a sequence number.
    #[inline(always)]
    pub(crate) fn enter(&mut self, about: About, used: Used) -> u64 {
        let history = self.history;
        self.recent[self.calls as usize % Ledger::KEPT] = Entry { about, history };
        self.calls += 1;
        self.history = history.wrapping_mul(MULTIPLIER).wrapping_add(used.0);
        (history ^ about.0).wrapping_mul(MULTIPLIER) & !0 << AT_TAG
    }

    /// Closes the ledger: there are no more calls, and a rank that waits for one is told so.
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
        kept.then(|| self.recent[number as usize % Ledger::KEPT])
    }

    /// The note about a call that this rank has waited for long, for the ranks that it [awaits](crate::Execution::awaits).
    pub fn ask(&self, number: u64) -> Note {
        self.note(number, State::Waiting)
    }

    /// Enters that call `number` has failed here. Returns the note for all other ranks, unless they have been told already.
    pub fn fail(&mut self, number: u64, fault: &Fault) -> Note {
        let reason = Reason::of(fault, self.rank);
        self.failed.retain(|(failed, _)| *failed + Ledger::KEPT as u64 >= self.calls && *failed != number);
        self.failed.push((number, reason));
        self.finished.retain(|(finished, _)| *finished != number);
        self.note(number, State::GivenUp(reason))
    }

    /// What follows from another rank's note about a call, which is still `running` here, or not.
    pub fn hear(&mut self, note: Note, running: bool) -> Heard {
        if note.number >= self.calls {
            // This rank may still make the call: it answers nothing yet, and the rank that waits asks again.
            let never = self.closed.then(|| self.note(note.number, State::GivenUp(Reason::Own(self.rank))));
            return Heard { answer: never, ..Heard::default() };
        }
        let failed = self.failed.iter().find(|(failed, _)| *failed == note.number).map(|failed| failed.1);
        let own_state = match failed {
            Some(reason) => Some(State::GivenUp(reason)),
            None if running => None,
            None => Some(State::Over),
        };
        let waits = note.state == State::Waiting;
        let answer = own_state.filter(|_| waits).map(|state| self.note(note.number, state));
        let Some(mine) = self.entry(note.number) else { return Heard { answer, ..Heard::default() } };
        if let Some(fault) = self.compare(mine, note) {
            // The answer tells the other rank what was called here.
            let differs = State::GivenUp(Reason::of(&fault, self.rank));
            let answer = answer.or_else(|| waits.then(|| self.note(note.number, differs)));
            if running {
                return Heard { answer, fault: Some(fault), ..Heard::default() };
            }
            // Calls of different kinds or roots under one number: all later calls are out of step.
            let lasting = mine.about.kind_and_root() != note.about.kind_and_root();
            return Heard { answer, later: lasting.then_some(fault), ..Heard::default() };
        }
        match note.state {
            State::GivenUp(reason @ (Reason::Differ(_) | Reason::OutOfStep(_))) if running => {
                Heard { fault: Some(reason.fault()), others_told: true, ..Heard::default() }
            }
            State::Over | State::GivenUp(Reason::Own(_) | Reason::Gone(_)) if running => {
                let reason = match note.state {
                    State::GivenUp(reason) => Some(reason.fault()),
                    _ => None,
                };
                let finished = (note.number, note.rank);
                // What that rank sent or published before its first note may not have been polled here yet: only its second
                // note counts.
                let again = self.finished.contains(&finished);
                if !again {
                    self.finished.retain(|(number, _)| number + Ledger::KEPT as u64 >= self.calls);
                    self.finished.push(finished);
                }
                Heard { silent: again.then_some((note.rank, reason)), ..Heard::default() }
            }
            _ => Heard { answer, ..Heard::default() },
        }
    }

    /// What is wrong if this rank made the call `mine` and another rank, under the same number, that of its note.
    fn compare(&self, mine: Entry, note: Note) -> Option<Fault> {
        let remembered = note.about != About::default() || note.history != 0;
        if !remembered || note.rank == self.rank {
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
    /// The reason that `rank` gives for a fault of its own.
    fn of(fault: &Fault, rank: u32) -> Reason {
        match *fault {
            Fault::Differ { said } => Reason::Differ(said),
            Fault::OutOfStep { ranks } => Reason::OutOfStep(ranks),
            Fault::Left { rank } => Reason::Own(rank),
            Fault::Gone { rank, .. } => Reason::Gone(rank),
            _ => Reason::Own(rank),
        }
    }

    fn fault(self) -> Fault {
        match self {
            Reason::Differ(said) => Fault::Differ { said },
            Reason::OutOfStep(ranks) => Fault::OutOfStep { ranks },
            Reason::Own(rank) => Fault::Left { rank },
            Reason::Gone(rank) => Fault::Gone { rank, cause: "another rank lost it".to_owned() },
        }
    }
}

/// What follows from a note.
#[derive(Debug, Default)]
pub struct Heard {
    /// The answer to the sender of the note.
    pub answer: Option<Note>,
    /// The call is to fail here for this reason.
    pub fault: Option<Fault>,
    /// All later calls that are under way are to fail for this reason.
    pub later: Option<Fault>,
    /// The sender has told all other ranks of the fault, too.
    pub others_told: bool,
    /// The sender, which has said twice that it is through with the call, or (with a fault) that it has given it up for a reason of
    /// its own. That concerns only ranks that wait for it, which wait in vain: see
    /// [`Execution::unanswered`](crate::Execution::unanswered).
    pub silent: Option<(u32, Option<Fault>)>,
}

/// What a rank tells another one about a call of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    /// The sender's rank in the communicator.
    rank: u32,
    number: u64,
    about: About,
    /// [`Ledger::history`] before the call.
    history: u64,
    state: State,
}

/// How far the sender of a note is with the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It waits for the rank that it sends the note to.
    Waiting,
    /// It is through with the call, or has forgotten it.
    Over,
    /// It has given the call up.
    GivenUp(Reason),
}

impl Note {
    /// Bytes of a note on the wire.
    pub const BYTES: usize = 64;

    /// The number of the call on its communicator.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The bytes that travel.
    pub fn encode(&self) -> [u8; Note::BYTES] {
        let (state, ranks, abouts) = match self.state {
            State::Waiting => (0, [0; 2], [About::default(); 2]),
            State::Over => (1, [0; 2], [About::default(); 2]),
            State::GivenUp(Reason::Differ(said)) => {
                (2, said.map(|said| said.rank), said.map(|said| said.about))
            }
            State::GivenUp(Reason::OutOfStep(ranks)) => (3, ranks, [About::default(); 2]),
            State::GivenUp(Reason::Own(rank)) => (4, [rank, 0], [About::default(); 2]),
            State::GivenUp(Reason::Gone(rank)) => (5, [rank, 0], [About::default(); 2]),
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

    /// Reads what [`Note::encode`] wrote; `None` if the bytes are no note.
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
            2 => State::GivenUp(Reason::Differ(said.map(|(rank, about)| Said { rank, about: About(about) }))),
            3 => State::GivenUp(Reason::OutOfStep(ranks)),
            4 => State::GivenUp(Reason::Own(ranks[0])),
            5 => State::GivenUp(Reason::Gone(ranks[0])),
            _ => return None,
        };
        let rank = u32::try_from(word(0)).ok()?;
        Some(Note { rank, number: word(1), about: About(word(2)), history: word(3), state })
    }
}

fn pair([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
