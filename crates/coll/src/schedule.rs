//! The language of algorithms: [`Step`]s in rounds over named ranges, made from a [`Shape`] alone.
//!
//! A schedule is a sequence of rounds. The steps of one round have no order among themselves; a round begins
//! when all steps of the one before are over. Rounds are made one at a time, from their number, when they are
//! needed, so a ring on 100,000 ranks is a number and a function and not 200,000 steps. All ranks number the
//! rounds alike, and a rank with nothing to do in a round has an empty one.

use crate::{Algorithm, Shape};

/// Memory that a schedule names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buf {
    /// The data that this rank gives. Never written. In place, it lies inside [`Buf::Recv`].
    Send,
    /// Where this rank gets its result (bcast: its only buffer).
    Recv,
    /// Private memory of as many units as the algorithm asked for; their contents are undefined at first.
    Temp,
    /// The shared scratch: [`Shape::scratch`] units that all ranks may read and write. [`Step::Ack`], [`Step::WaitAck`]
    /// and [`Step::WaitReuse`] order their accesses. Where the first chunk lies changes from call to call.
    SharedScratch,
}

/// A range of units of a named buffer. A unit is an element of the call's type where the collective reduces,
/// and otherwise a byte of the packed data, blocks in the order of ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which buffer.
    pub buf: Buf,
    /// First unit.
    pub at: u64,
    /// Number of units.
    pub len: u64,
}

impl Span {
    /// `len` units from `at`.
    pub fn new(buf: Buf, (at, len): (u64, u64)) -> Span {
        Span { buf, at, len }
    }

    /// True if both spans have a unit in common.
    pub fn overlaps(&self, other: &Span) -> bool {
        let apart = self.at + self.len <= other.at || other.at + other.len <= self.at;
        self.buf == other.buf && self.len > 0 && other.len > 0 && !apart
    }
}

/// Which operand of the reduction the incoming data are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `into = incoming op with`.
    Left,
    /// `into = with op incoming`.
    Right,
    /// Whichever is quicker at this rank. Only where the operation commutes, and no other rank combines the
    /// same operands.
    Any,
}

impl Side {
    /// [`Side::Any`] if the operation commutes, else this side.
    pub fn unless(self, commutative: bool) -> Side {
        if commutative { Side::Any } else { self }
    }
}

/// How incoming data are combined with the range `with`. The result goes to the range `into`, which is as long, and may
/// be `with` itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge<R = Span> {
    /// The range that the incoming data are combined with.
    pub with: R,
    /// Where the result goes.
    pub into: R,
    /// The order of operands.
    pub side: Side,
}

impl Merge {
    /// `into = incoming op with`, or with the operands exchanged, according to `side`.
    pub fn new(with: Span, into: Span, side: Side) -> Merge {
        debug_assert_eq!(with.len, into.len);
        Merge { with, into, side }
    }

    /// `into = incoming op into`, or with the operands exchanged, according to `side`.
    pub fn onto(into: Span, side: Side) -> Merge {
        Merge { with: into, into, side }
    }
}

/// How a range is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// By a copy of its bytes in the cell: the source is free at once.
    Inline,
    /// By its address and length (an exposed range): the source must stay until the others have acknowledged the phase.
    Exposed,
    /// By what was packed into the sub-buffers of the cell before.
    Packed,
}

/// A part of a cell for one other rank: the length of the block that the owner gives that rank, then the block's
/// bytes, if they fit. Of a longer block it has the length alone, and the bytes go by message: both ends know the
/// length, and so decide alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubBuffer {
    /// Where it starts in the cell, in bytes.
    pub at: u64,
    /// Bytes of a block that fit into it, besides the length.
    pub room: u64,
}

impl SubBuffer {
    /// Bytes that the length takes.
    pub const HEAD: u64 = 8;

    /// Bytes of an offer, besides the length: where a range is.
    pub const OFFER: u64 = 24;

    /// Sub-buffer `index` of a cell of `cell_bytes` bytes that is cut into `number` sub-buffers.
    pub fn new(cell_bytes: u64, index: u32, number: u32) -> SubBuffer {
        let each = cell_bytes / u64::from(number.max(1));
        SubBuffer { at: each * u64::from(index), room: each.saturating_sub(SubBuffer::HEAD) }
    }

    /// The byte of the cell where an offer starts.
    pub(crate) fn offer(&self) -> u64 {
        self.at + SubBuffer::HEAD
    }

    /// True if it has room for an offer.
    pub fn holds_offer(&self) -> bool {
        self.room >= SubBuffer::OFFER
    }

    /// True if a block of `len` bytes fits.
    pub fn holds(&self, len: u64) -> bool {
        len <= self.room
    }

    /// True if it is a sub-buffer that a block of `len` bytes does not fit into.
    pub(crate) fn leaves_out(this: Option<SubBuffer>, len: u64) -> bool {
        this.is_some_and(|sub_buffer| !sub_buffer.holds(len))
    }
}

/// One step of a round, over ranges `R`: of units in an algorithm ([`Span`]), of bytes in a compiled plan. What each step
/// means is written once, in `execute::step`. `phase` counts the collective's own sequence numbers from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the doc line of each step explains its fields")]
pub enum Step<R = Span> {
    /// Sends a message to a rank; `key` tells messages of the pair apart.
    Send { to: u32, from: R, key: u32 },
    /// Receives a message from a rank.
    Recv { from: u32, into: R, key: u32 },
    /// Receives a message from a rank and combines it with a range.
    RecvReduce { from: u32, merge: Merge<R>, key: u32 },
    /// `into = from op into`.
    Reduce { from: R, into: R },
    /// `into = from`. In place, a copy from [`Buf::Send`] to [`Buf::Recv`] does nothing: the data are there already.
    Copy { from: R, into: R },
    /// Publishes a range to all ranks, once they have acknowledged what the phase's cell held before.
    Publish { from: R, phase: u32, form: Form },
    /// Puts a block, or its length alone, into a sub-buffer of this rank's cell of the phase, once all ranks have
    /// acknowledged what the cell held before. Others see it when this rank publishes.
    Pack { from: R, phase: u32, sub_buffer: SubBuffer },
    /// Copies the block that a rank packed into a sub-buffer, once that rank has published, or all that it has published; the
    /// block must be as long as `into`.
    Unpack { rank: u32, phase: u32, sub_buffer: Option<SubBuffer>, into: R },
    /// Waits until a rank has published.
    Await { rank: u32, phase: u32 },
    /// Copies from unit `at` on of what a rank published, once it has published.
    Get { rank: u32, phase: u32, at: u64, into: R },
    /// Combines with a range what a rank published, from unit `at` on, once it has published.
    GetReduce { rank: u32, phase: u32, at: u64, merge: Merge<R> },
    /// Acknowledges the phase: this rank reads nothing more of it, nor of the phases before it.
    Ack { phase: u32 },
    /// Waits until a rank has acknowledged the phase.
    WaitAck { rank: u32, phase: u32 },
    /// Says in a sub-buffer of this rank's cell of the phase, as [`Step::Pack`] says what a block is, where a range is. The rank whose
    /// sub-buffer it is takes the block there, if this rank `gives` it, or puts its own there. Until it has, nothing else touches
    /// the range.
    Offer { range: R, gives: bool, phase: u32, sub_buffer: SubBuffer },
    /// Copies to `into` the range that a rank offered in a sub-buffer, once that rank has published. The range must be as long.
    Take { rank: u32, phase: u32, sub_buffer: SubBuffer, into: R },
    /// Copies a block to the range that a rank offered in a sub-buffer, once that rank has published, and publishes that. The range must
    /// be as long.
    Put { rank: u32, phase: u32, sub_buffer: SubBuffer, from: R },
    /// Waits until a rank has published that its block is in the range that was offered to it.
    AwaitPut { rank: u32, phase: u32, into: R },
    /// Waits until all ranks have acknowledged what earlier collectives had in those sections of the shared scratch
    /// that chunk 0 or 1 of this one takes.
    WaitReuse { chunk: u32 },
}

/// What has to be so before a rank can carry a step out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// Nothing: the step is within this rank.
    Free,
    /// This rank's turn: it is through with all collectives before this one. All guards below include it.
    Turn,
    /// All ranks have acknowledged what the cell of this phase held before.
    CellFree(u32),
    /// The rank has published the phase.
    Published(u32, u32),
    /// The rank has acknowledged the phase.
    Acked(u32, u32),
    /// All ranks are through with what went through the place of this chunk before.
    Reusable(u32),
    /// The message has come from the rank, or gone to it.
    Message(u32),
}

impl<R: Copy> Step<R> {
    /// What has to be so before it can be carried out: for executors, verifier and simulator alike.
    #[inline(always)]
    pub(crate) fn guard(&self) -> Guard {
        match *self {
            Step::Send { to: peer, .. }
            | Step::Recv { from: peer, .. }
            | Step::RecvReduce { from: peer, .. } => Guard::Message(peer),
            Step::Copy { .. } | Step::Reduce { .. } => Guard::Free,
            Step::Ack { .. } => Guard::Turn,
            Step::Publish { phase, .. } | Step::Pack { phase, .. } | Step::Offer { phase, .. } => {
                Guard::CellFree(phase)
            }
            Step::Unpack { rank, phase, .. }
            | Step::Await { rank, phase }
            | Step::Get { rank, phase, .. }
            | Step::Take { rank, phase, .. }
            | Step::Put { rank, phase, .. }
            | Step::AwaitPut { rank, phase, .. }
            | Step::GetReduce { rank, phase, .. } => Guard::Published(rank, phase),
            Step::WaitAck { rank, phase } => Guard::Acked(rank, phase),
            Step::WaitReuse { chunk } => Guard::Reusable(chunk),
        }
    }

    /// The range that it moves data from or to, of those that another rank has to do with.
    pub(crate) fn range(&self) -> Option<R> {
        match *self {
            Step::Send { from, .. }
            | Step::Publish { from, .. }
            | Step::Pack { from, .. }
            | Step::Put { from, .. } => Some(from),
            Step::Recv { into, .. }
            | Step::Unpack { into, .. }
            | Step::Get { into, .. }
            | Step::Take { into, .. }
            | Step::Offer { range: into, .. }
            | Step::AwaitPut { into, .. } => Some(into),
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => Some(merge.into),
            _ => None,
        }
    }

    /// The ranges that it reads.
    pub(crate) fn reads(&self) -> [Option<R>; 2] {
        match *self {
            Step::Send { from, .. }
            | Step::Publish { from, .. }
            | Step::Pack { from, .. }
            | Step::Offer { range: from, gives: true, .. }
            | Step::Put { from, .. } => [Some(from), None],
            Step::Copy { from, .. } => [Some(from), None],
            Step::Reduce { from, into } => [Some(from), Some(into)],
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => [Some(merge.with), None],
            _ => [None, None],
        }
    }

    /// The range that it writes.
    pub(crate) fn writes(&self) -> Option<R> {
        match *self {
            Step::Recv { into, .. }
            | Step::Unpack { into, .. }
            | Step::Get { into, .. }
            | Step::Take { into, .. }
            | Step::AwaitPut { into, .. }
            | Step::Reduce { into, .. }
            | Step::Copy { into, .. } => Some(into),
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => Some(merge.into),
            _ => None,
        }
    }

    /// The same step over other ranges: `unit` of the new units for each old one. `None` if one of its ranges has no
    /// counterpart.
    pub(crate) fn over<T>(&self, unit: u64, mut range: impl FnMut(R) -> Option<T>) -> Option<Step<T>> {
        let merge = |Merge { with, into, side }, range: &mut dyn FnMut(R) -> Option<T>| {
            Some(Merge { with: range(with)?, into: range(into)?, side })
        };
        Some(match *self {
            Step::Send { to, from, key } => Step::Send { to, from: range(from)?, key },
            Step::Recv { from, into, key } => Step::Recv { from, into: range(into)?, key },
            Step::RecvReduce { from, merge: m, key } => {
                Step::RecvReduce { from, merge: merge(m, &mut range)?, key }
            }
            Step::Reduce { from, into } => Step::Reduce { from: range(from)?, into: range(into)? },
            Step::Copy { from, into } => Step::Copy { from: range(from)?, into: range(into)? },
            Step::Publish { from, phase, form } => Step::Publish { from: range(from)?, phase, form },
            Step::Pack { from, phase, sub_buffer } => Step::Pack { from: range(from)?, phase, sub_buffer },
            Step::Unpack { rank, phase, sub_buffer, into } => {
                Step::Unpack { rank, phase, sub_buffer, into: range(into)? }
            }
            Step::Await { rank, phase } => Step::Await { rank, phase },
            Step::Get { rank, phase, at, into } => {
                Step::Get { rank, phase, at: at * unit, into: range(into)? }
            }
            Step::GetReduce { rank, phase, at, merge: m } => {
                Step::GetReduce { rank, phase, at: at * unit, merge: merge(m, &mut range)? }
            }
            Step::Ack { phase } => Step::Ack { phase },
            Step::WaitAck { rank, phase } => Step::WaitAck { rank, phase },
            Step::Offer { range: place, gives, phase, sub_buffer } => {
                Step::Offer { range: range(place)?, gives, phase, sub_buffer }
            }
            Step::Take { rank, phase, sub_buffer, into } => {
                Step::Take { rank, phase, sub_buffer, into: range(into)? }
            }
            Step::Put { rank, phase, sub_buffer, from } => {
                Step::Put { rank, phase, sub_buffer, from: range(from)? }
            }
            Step::AwaitPut { rank, phase, into } => Step::AwaitPut { rank, phase, into: range(into)? },
            Step::WaitReuse { chunk } => Step::WaitReuse { chunk },
        })
    }
}

/// The steps of one round, while an algorithm makes them.
#[derive(Debug, Default)]
pub struct Round {
    /// The steps so far; their order means nothing.
    pub steps: Vec<Step>,
    index: u32,
}

impl Round {
    /// Removes all steps, and begins round `index`.
    pub fn begin(&mut self, index: u32) {
        self.steps.clear();
        self.index = index;
    }

    /// Adds round `index` of an algorithm among some of the ranks: its steps, with the `rank` that each member is which it has
    /// messages with, and with each range where `span` says. Copies of what is there already are left out. The members of shared
    /// buffers stay as they are: they are those of the group. `number` tells the messages from those of other groups' rounds with
    /// this index, where they may meet: it is in bits of their keys that the algorithm does not use.
    pub(crate) fn add_inner(
        &mut self,
        (row, inner): (&Algorithm, &Shape),
        (index, number): (u32, u32),
        rank: impl Fn(u32) -> u32,
        span: impl Fn(Span) -> Span,
    ) {
        let (before, mut at) = (self.steps.len(), 0);
        let outer = std::mem::replace(&mut self.index, index);
        row.add_round(inner, index, self);
        self.index = outer;
        self.steps.retain_mut(|step| {
            at += 1;
            if at <= before {
                return true;
            }
            *step = step.over(1, |inner| Some(span(inner))).expect("every range has a counterpart");
            match step {
                Step::Send { to: peer, key, .. }
                | Step::Recv { from: peer, key, .. }
                | Step::RecvReduce { from: peer, key, .. } => {
                    debug_assert!(number == 0 || *key < 1 << number.trailing_zeros());
                    (*peer, *key) = (rank(*peer), *key | number);
                }
                Step::Copy { from, into } => return from != into,
                _ => {}
            }
            true
        });
    }

    /// The same round, in which messages added from here on have a key that both sides agree on, and not the round's number.
    pub fn keyed(&mut self, key: u32) -> &mut Round {
        self.index = key;
        self
    }

    /// Adds a message whose key is the round's number. An empty span adds none: the receiver knows the length, too.
    pub fn send(&mut self, to: u32, from: Span) {
        if from.len > 0 {
            self.steps.push(Step::Send { to, from, key: self.index });
        }
    }

    /// Adds the receive of what the other end gives to [`Round::send`].
    pub fn recv(&mut self, from: u32, into: Span) {
        if into.len > 0 {
            self.steps.push(Step::Recv { from, into, key: self.index });
        }
    }

    /// Adds a receive as [`Round::recv`] does, of data that are combined on arrival.
    pub fn recv_reduce(&mut self, from: u32, merge: Merge) {
        if merge.into.len > 0 {
            self.steps.push(Step::RecvReduce { from, merge, key: self.index });
        }
    }

    /// Adds an empty message, which tells `to` that this rank got here, and the wait for the one of `from`.
    pub fn signal(&mut self, to: u32, from: u32) {
        let nothing = Span::new(Buf::Send, (0, 0));
        self.steps.push(Step::Recv { from, into: nothing, key: self.index });
        self.steps.push(Step::Send { to, from: nothing, key: self.index });
    }

    /// Adds the copy `into = from`.
    pub fn copy(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.len, into.len);
        if from.len > 0 {
            self.steps.push(Step::Copy { from, into });
        }
    }

    /// Adds the reduction `into = from op into`.
    pub fn reduce(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.len, into.len);
        if from.len > 0 {
            self.steps.push(Step::Reduce { from, into });
        }
    }

    /// Adds any other step.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }
}
