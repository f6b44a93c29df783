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

mod about;

pub use about::{About, Difference, Said, difference};
pub(crate) use about::{Used, differ};

use crate::Fault;

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
