//! The language of algorithms: [`Step`]s in rounds over named ranges, made from a [`Shape`] alone.
//!
//! A schedule is a sequence of rounds. The steps of one round have no order among themselves; a round begins
//! when all steps of the one before are over. Rounds are made one at a time, from their number, when they are
//! needed, so a ring on 100,000 ranks is a number and a function and not 200,000 steps. All ranks number the
//! rounds alike, and a rank with nothing to do in a round has an empty one.

use std::ops::Range;
use std::sync::Arc;

use crate::sections::{self, Cut};
use crate::{Algorithm, Composition, Kind, Topology};

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

    /// Sub-buffer `index` of a cell of `cell_bytes` bytes that is cut into `number` sub-buffers.
    pub fn new(cell_bytes: u64, index: u32, number: u32) -> SubBuffer {
        let each = cell_bytes / u64::from(number.max(1));
        SubBuffer { at: each * u64::from(index), room: each.saturating_sub(SubBuffer::HEAD) }
    }

    /// True if a block of `len` bytes fits.
    pub fn holds(&self, len: u64) -> bool {
        len <= self.room
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
    /// Copies the block that a rank packed into a sub-buffer, once that rank has published; the block must be as long
    /// as `into`.
    Unpack { rank: u32, phase: u32, sub_buffer: SubBuffer, into: R },
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
            Step::Publish { phase, .. } | Step::Pack { phase, .. } => Guard::CellFree(phase),
            Step::Unpack { rank, phase, .. }
            | Step::Await { rank, phase }
            | Step::Get { rank, phase, .. }
            | Step::GetReduce { rank, phase, .. } => Guard::Published(rank, phase),
            Step::WaitAck { rank, phase } => Guard::Acked(rank, phase),
            Step::WaitReuse { chunk } => Guard::Reusable(chunk),
        }
    }

    /// The range that it moves data from or to, of those that another rank has to do with.
    pub(crate) fn range(&self) -> Option<R> {
        match *self {
            Step::Send { from, .. } | Step::Publish { from, .. } | Step::Pack { from, .. } => Some(from),
            Step::Recv { into, .. } | Step::Unpack { into, .. } | Step::Get { into, .. } => Some(into),
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => Some(merge.into),
            _ => None,
        }
    }

    /// The ranges that it reads.
    pub(crate) fn reads(&self) -> [Option<R>; 2] {
        match *self {
            Step::Send { from, .. } | Step::Publish { from, .. } | Step::Pack { from, .. } => {
                [Some(from), None]
            }
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
    /// this index, where they may meet.
    pub(crate) fn add_inner(
        &mut self,
        (row, inner): (&Algorithm, &Shape),
        (index, number): (u32, u32),
        rank: impl Fn(u32) -> u32,
        span: impl Fn(Span) -> Span,
    ) {
        const KEY_BITS: u32 = 24;
        let (before, mut at) = (self.steps.len(), 0);
        let outer = std::mem::replace(&mut self.index, index);
        (row.round)(inner, index, self);
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
                    debug_assert!(*key < 1 << KEY_BITS);
                    (*peer, *key) = (rank(*peer), *key | number << KEY_BITS);
                }
                Step::Copy { from, into } => return from != into,
                _ => {}
            }
            true
        });
    }

    /// Adds a message whose key is the round's number. An empty span adds none: the receiver knows the length, too.
    pub fn send(&mut self, to: u32, from: Span) {
        self.send_keyed(to, from, self.index);
    }

    /// Adds a message with a key that both sides agree on.
    pub fn send_keyed(&mut self, to: u32, from: Span, key: u32) {
        if from.len > 0 {
            self.steps.push(Step::Send { to, from, key });
        }
    }

    /// Adds the receive of what the other end gives to [`Round::send`].
    pub fn recv(&mut self, from: u32, into: Span) {
        self.recv_keyed(from, into, self.index);
    }

    /// Adds the receive of what the other end gives to [`Round::send_keyed`].
    pub fn recv_keyed(&mut self, from: u32, into: Span, key: u32) {
        if into.len > 0 {
            self.steps.push(Step::Recv { from, into, key });
        }
    }

    /// Adds a receive as [`Round::recv`] does, of data that are combined on arrival.
    pub fn recv_reduce(&mut self, from: u32, merge: Merge) {
        self.recv_reduce_keyed(from, merge, self.index);
    }

    /// Adds a receive as [`Round::recv_keyed`] does, of data that are combined on arrival.
    pub fn recv_reduce_keyed(&mut self, from: u32, merge: Merge, key: u32) {
        if merge.into.len > 0 {
            self.steps.push(Step::RecvReduce { from, merge, key });
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

/// Where the blocks of the ranks lie in a buffer, in units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// The blocks of all ranks have this length.
    Even(u64),
    /// Where each block starts, and where the last one ends.
    Starts(Vec<u64>),
}

impl Blocks {
    /// Blocks of these lengths, one after the other.
    pub fn from_lens(lens: impl IntoIterator<Item = u64>) -> Blocks {
        let mut end = 0;
        let ends = lens.into_iter().map(|len| {
            end += len;
            end
        });
        Blocks::Starts(std::iter::once(0).chain(ends).collect())
    }

    /// These blocks as those of the ranks `owners` among `ranks` ranks; the blocks of all others are empty.
    pub(crate) fn among(&self, owners: Range<u32>, ranks: u32) -> Blocks {
        let len = |rank: u32| match owners.contains(&rank) {
            true => self.block(rank - owners.start).1,
            false => 0,
        };
        Blocks::from_lens((0..ranks).map(len))
    }

    /// Where block `index` starts; if `index` is the number of ranks, where the last block ends.
    pub fn start(&self, index: u32) -> u64 {
        match self {
            Blocks::Even(len) => len * u64::from(index),
            Blocks::Starts(starts) => starts[index as usize],
        }
    }

    /// Start and length of block `index`.
    pub fn block(&self, index: u32) -> (u64, u64) {
        self.run(index, index + 1)
    }

    /// Start and length of the blocks `first..end`.
    pub fn run(&self, first: u32, end: u32) -> (u64, u64) {
        let start = self.start(first);
        (start, self.start(end) - start)
    }

    /// Units of `number` blocks from `first` on, counted around the `ranks` blocks.
    pub fn around(&self, first: u32, number: u32, ranks: u32) -> u64 {
        let end = first + number;
        match end <= ranks {
            true => self.run(first, end).1,
            false => self.run(first, ranks).1 + self.start(end - ranks),
        }
    }
}

/// The most bytes of the shared scratch that are used where each rank has a core: more would only be more to keep in
/// the caches (2 ranks, an allgather of 1 MiB: 78 us with 4 MiB, 112 with 8).
const SCRATCH_IN_CACHE: u64 = 15 << 18;
/// The most bytes that the sections of one half of the shared scratch have together.
const HALF_SECTIONS: u64 = 4 << 20;
/// Bytes of a cache line.
const CACHE_LINE: u64 = 64;
/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// All that an algorithm may know: a schedule is a function of it. Apart from `rank`, and from lengths and blocks where
/// not all ranks know the sizes, a shape is the same at all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The collective.
    pub kind: Kind,
    /// This rank.
    pub rank: u32,
    /// Ranks in the communicator.
    pub ranks: u32,
    /// Of an intercommunicator, the number of ranks in the first group: they come first. 0 where there is one group.
    pub split: u32,
    /// The root, 0 where there is none. On an intercommunicator the other ranks of the root's group do not know the
    /// root, and take no part: for them it is any rank of their group but themselves.
    pub root: u32,
    /// Units of this rank's own block, or of the whole vector where there are no blocks.
    pub len: u64,
    /// Bytes of a unit (to choose segments by; 1 where units are bytes).
    pub unit: u64,
    /// The blocks of [`Buf::Send`], where it has blocks and this rank knows them.
    pub sends: Blocks,
    /// The blocks of [`Buf::Recv`], where it has blocks and this rank knows them.
    pub recvs: Blocks,
    /// Units of [`Buf::SharedScratch`].
    pub scratch: u64,
    /// Bytes of a cell of a CICO buffer.
    pub cell_bytes: u64,
    /// The operation commutes.
    pub commutative: bool,
    /// A node has more ranks than cores.
    pub crowded: bool,
    /// What becomes of the stages, if the algorithm is a composition.
    pub composition: Option<Arc<Composition>>,
}

impl Shape {
    /// One rank without data.
    pub(crate) const NOTHING: Shape = Shape {
        kind: Kind::Barrier,
        rank: 0,
        ranks: 1,
        split: 0,
        root: 0,
        len: 0,
        unit: 1,
        sends: Blocks::Even(0),
        recvs: Blocks::Even(0),
        scratch: 0,
        cell_bytes: 0,
        commutative: true,
        crowded: false,
        composition: None,
    };

    /// Fills in what a topology says: sizes of cells and shared scratch, and whether ranks share cores.
    pub(crate) fn on(&mut self, topology: &Topology) {
        let (cell_bytes, scratch) = topology.shared.map_or((0, 0), |shared| (shared.inline, shared.scratch));
        self.crowded = topology.per_node > topology.cores;
        let scratch = if self.crowded { scratch } else { scratch.min(SCRATCH_IN_CACHE) };
        (self.cell_bytes, self.scratch) = (cell_bytes, scratch / self.unit.max(1));
    }

    /// The same lengths in units of `unit` of these, of which they are multiples.
    pub(crate) fn in_units_of(self, unit: u64) -> Shape {
        let blocks = |blocks| match blocks {
            Blocks::Even(len) => Blocks::Even(len / unit),
            Blocks::Starts(starts) => Blocks::Starts(starts.into_iter().map(|start| start / unit).collect()),
        };
        Shape { len: self.len / unit, sends: blocks(self.sends), recvs: blocks(self.recvs), ..self }
    }

    /// Units of half the shared scratch: whole pages, as a copy is quicker where source and destination are at the same
    /// offset of their pages.
    pub(crate) fn half(&self) -> u64 {
        self.round_down(self.scratch / 2)
    }

    /// Units of a section of the shared scratch: so few that all sections together stay in the caches.
    pub(crate) fn section(&self) -> u64 {
        self.round_down(self.half().min(HALF_SECTIONS / self.unit.max(1)) / u64::from(sections::HALF))
    }

    /// Units of the halves and sections that the shared scratch is cut into.
    pub(crate) fn cut(&self) -> Cut {
        Cut { half: self.half(), section: self.section() }
    }

    /// `units`, rounded down to whole pages; if they are less than 16 pages, to whole cache lines.
    pub(crate) fn round_down(&self, units: u64) -> u64 {
        let grain = |bytes: u64| (bytes / self.unit.max(1)).max(1);
        let grain = if units < 16 * grain(PAGE) { grain(CACHE_LINE) } else { grain(PAGE) };
        if units < grain { units } else { units - units % grain }
    }

    /// The ranks of the group that a rank is in.
    pub fn group_of(&self, rank: u32) -> Range<u32> {
        if rank < self.split { 0..self.split } else { self.split..self.ranks }
    }

    /// The ranks of the other group; none where there is one group.
    pub fn group_across(&self, rank: u32) -> Range<u32> {
        if rank < self.split { self.split..self.ranks } else { 0..self.split }
    }

    /// This rank's relative rank: how far it is behind the root.
    pub fn relative(&self) -> u32 {
        self.behind(self.rank, self.root)
    }

    /// The rank that is `distance` (at most the number of ranks) after `rank`.
    pub fn after(&self, rank: u32, distance: u32) -> u32 {
        let sum = u64::from(rank) + u64::from(distance);
        (sum % u64::from(self.ranks)) as u32
    }

    /// The rank that is `distance` before `rank`.
    pub fn before(&self, rank: u32, distance: u32) -> u32 {
        self.after(rank, self.ranks - distance)
    }

    /// How far `rank` is behind `origin`: `after(origin, behind(rank, origin)) == rank`.
    pub fn behind(&self, rank: u32, origin: u32) -> u32 {
        self.after(rank, self.ranks - origin)
    }

    /// Start and length of part `index` of the vector cut into as many parts as there are ranks.
    pub fn part(&self, index: u32) -> (u64, u64) {
        self.parts(index, index + 1)
    }

    /// Start and length of the parts `first..end`.
    pub fn parts(&self, first: u32, end: u32) -> (u64, u64) {
        let cut = |i: u32| (u128::from(self.len) * u128::from(i) / u128::from(self.ranks)) as u64;
        (cut(first), cut(end) - cut(first))
    }

    /// Where [`Buf::Send`] starts in [`Buf::Recv`] if the call is in place; `None` where this rank's cannot be.
    pub fn in_place_at(&self) -> Option<u64> {
        use Kind::*;
        let root = self.rank == self.root;
        match self.kind {
            Gather | Gatherv if root => Some(self.recvs.start(self.rank)),
            Allgather | Allgatherv => Some(self.recvs.start(self.rank)),
            Reduce if root => Some(0),
            Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan => Some(0),
            _ => None,
        }
    }

    /// The whole vector, or this rank's block alone, in a buffer.
    pub fn whole(&self, buf: Buf) -> Span {
        Span::new(buf, (0, self.len))
    }
}

/// The smallest `k` with `2^k >= n`.
pub fn log2_up(n: u32) -> u32 {
    n.max(1).next_power_of_two().trailing_zeros()
}

/// The largest `k` with `2^k <= n`.
pub fn log2_down(n: u32) -> u32 {
    n.max(1).ilog2()
}
