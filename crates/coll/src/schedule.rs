//! What an algorithm says: [`Step`]s in rounds over named ranges, made from a [`Shape`] alone.
//!
//! A schedule is a sequence of rounds. The steps of one round have no order among themselves; a round begins
//! when all steps of the one before are over. Rounds are made one at a time, from their number, when they are
//! needed, so a ring on 100,000 ranks is a number and a function and not 200,000 steps. All ranks number the
//! rounds alike, and a rank with nothing to do in a round has an empty one.

use std::ops::Range;

use crate::sections::{self, Cut};
use crate::{Facts, Kind};

/// Memory that a schedule names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buf {
    /// What this rank gives. Never written. In place, it lies inside [`Buf::Recv`].
    Send,
    /// What this rank gets (bcast: its only buffer).
    Recv,
    /// As many units as the algorithm asked for; their contents are undefined at first.
    Temp,
    /// Memory that all ranks share, of [`Shape::board`] units. Releases and drains keep them apart. Where the first chunk
    /// is changes from call to call.
    Board,
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

    /// True if a unit is in both.
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
    /// Whichever is quicker at this rank: only where the operation commutes, and no other rank combines the
    /// same operands.
    Any,
}

impl Side {
    /// Any side if the operation commutes, else this one.
    pub fn unless(self, commutative: bool) -> Side {
        if commutative { Side::Any } else { self }
    }
}

/// How incoming data are combined with a range; the result goes to one as long, which may be the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merge {
    /// What they are combined with.
    pub with: Span,
    /// Where the result goes.
    pub into: Span,
    /// The order of operands.
    pub side: Side,
}

impl Merge {
    /// `into = incoming op with`, or on the other side.
    pub fn new(with: Span, into: Span, side: Side) -> Merge {
        debug_assert_eq!(with.len, into.len);
        Merge { with, into, side }
    }

    /// `into = incoming op into`, or on the other side.
    pub fn onto(into: Span, side: Side) -> Merge {
        Merge { with: into, into, side }
    }
}

/// How something is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The bytes themselves, copied into the slot: the source is free at once.
    Inline,
    /// Address and length: the source must stay until the others have released the phase.
    Region,
    /// What was laid into the pockets of the slot.
    Laid,
}

/// A part of a slot for one other rank: the length of what its owner gives that rank, then the bytes, if it holds
/// them. Of more it has the length alone, and they go by message: both ends know the length, and so decide alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pocket {
    /// Where it starts in the slot, in bytes.
    pub at: u64,
    /// Bytes that it holds besides the length.
    pub room: u64,
}

impl Pocket {
    /// Bytes of the length.
    pub const HEAD: u64 = 8;

    /// Pocket `index` of a slot of `slot` bytes that is cut into `number`.
    pub fn new(slot: u64, index: u32, number: u32) -> Pocket {
        let each = slot / u64::from(number.max(1));
        Pocket { at: each * u64::from(index), room: each.saturating_sub(Pocket::HEAD) }
    }

    /// True if so many bytes go through it.
    pub fn holds(&self, len: u64) -> bool {
        len <= self.room
    }
}

/// One thing to do. `phase` counts the collective's own stamps from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are those that each step's line speaks of")]
pub enum Step {
    /// A message to a rank; `key` tells messages of the pair apart.
    Send { to: u32, from: Span, key: u32 },
    /// A message from a rank.
    Recv { from: u32, into: Span, key: u32 },
    /// A message from a rank, combined with a range.
    RecvReduce { from: u32, merge: Merge, key: u32 },
    /// `into = from op into`.
    Reduce { from: Span, into: Span },
    /// `into = from`. In place, a copy from Send to Recv has happened already.
    Copy { from: Span, into: Span },
    /// Shows a range to all ranks, once they have released what its bank held.
    Publish { from: Span, phase: u32, form: Form },
    /// Puts bytes, or their length alone, into a pocket of this rank's slot, once all have released what its bank held.
    /// Others see it when this rank publishes.
    Lay { from: Span, phase: u32, pocket: Pocket },
    /// Copies what a rank laid into a pocket, once it has published; it must be as long as `into`.
    Fetch { rank: u32, phase: u32, pocket: Pocket, into: Span },
    /// Waits until a rank has published.
    Await { rank: u32, phase: u32 },
    /// Copies out of what a rank published, from its unit `at` on, once it has.
    Pull { rank: u32, phase: u32, at: u64, into: Span },
    /// Combines what a rank published, from its unit `at` on, with a range, once it has.
    PullReduce { rank: u32, phase: u32, at: u64, merge: Merge },
    /// Says that this rank reads nothing more of the phase, nor of those before.
    Release { phase: u32 },
    /// Waits until a rank has released the phase.
    Drain { rank: u32, phase: u32 },
    /// Waits until all ranks are through with what collectives before this one had on the board where its first chunk
    /// goes, or its second.
    Settle { chunk: u32 },
}

/// The steps of one round, being made.
#[derive(Debug, Default)]
pub struct Round {
    /// What to do, in any order.
    pub steps: Vec<Step>,
    index: u32,
}

impl Round {
    /// Empties it for round `index`.
    pub fn begin(&mut self, index: u32) {
        self.steps.clear();
        self.index = index;
    }

    /// A message of the key that is the round's number. Nothing is sent if there is nothing to send: the
    /// receiver knows.
    pub fn send(&mut self, to: u32, from: Span) {
        self.send_keyed(to, from, self.index);
    }

    /// A message of a key that both sides agree on.
    pub fn send_keyed(&mut self, to: u32, from: Span, key: u32) {
        if from.len > 0 {
            self.steps.push(Step::Send { to, from, key });
        }
    }

    /// The other end of [`Round::send`].
    pub fn recv(&mut self, from: u32, into: Span) {
        self.recv_keyed(from, into, self.index);
    }

    /// The other end of [`Round::send_keyed`].
    pub fn recv_keyed(&mut self, from: u32, into: Span, key: u32) {
        if into.len > 0 {
            self.steps.push(Step::Recv { from, into, key });
        }
    }

    /// As [`Round::recv`], and combines what came.
    pub fn recv_reduce(&mut self, from: u32, merge: Merge) {
        self.recv_reduce_keyed(from, merge, self.index);
    }

    /// As [`Round::recv_keyed`], and combines what came.
    pub fn recv_reduce_keyed(&mut self, from: u32, merge: Merge, key: u32) {
        if merge.into.len > 0 {
            self.steps.push(Step::RecvReduce { from, merge, key });
        }
    }

    /// An empty message, which tells `to` that this rank got here, and the wait for one.
    pub fn signal(&mut self, to: u32, from: u32) {
        let nothing = Span::new(Buf::Send, (0, 0));
        self.steps.push(Step::Recv { from, into: nothing, key: self.index });
        self.steps.push(Step::Send { to, from: nothing, key: self.index });
    }

    /// `into = from`.
    pub fn copy(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.len, into.len);
        if from.len > 0 {
            self.steps.push(Step::Copy { from, into });
        }
    }

    /// `into = from op into`.
    pub fn reduce(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.len, into.len);
        if from.len > 0 {
            self.steps.push(Step::Reduce { from, into });
        }
    }

    /// Any other step.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }
}

/// Where the blocks of the ranks lie in a buffer, in units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// Every rank's block is as long.
    Even(u64),
    /// Where each block starts, and where the last one ends.
    Starts(Vec<u64>),
}

impl Blocks {
    /// From the lengths of the blocks.
    pub fn from_lens(lens: impl IntoIterator<Item = u64>) -> Blocks {
        let mut end = 0;
        let ends = lens.into_iter().map(|len| {
            end += len;
            end
        });
        Blocks::Starts(std::iter::once(0).chain(ends).collect())
    }

    /// The same blocks, where they are those of some ranks, and all others have none.
    pub(crate) fn among(&self, owners: Range<u32>, ranks: u32) -> Blocks {
        let len = |rank: u32| match owners.contains(&rank) {
            true => self.block(rank - owners.start).1,
            false => 0,
        };
        Blocks::from_lens((0..ranks).map(len))
    }

    /// Where block `index` starts; for the number of ranks, where the last block ends.
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

/// Bytes of a board that are used where each rank has a core: more would only be more to keep in the caches (2 ranks, an
/// allgather of 1 MiB: 78 us with 4 MiB, 112 with 8).
const KEPT: u64 = 15 << 18;
/// Bytes of the sections of half a board.
const SECTIONS: u64 = 4 << 20;
const LINE: u64 = 64;
pub(crate) const PAGE: u64 = 4096;

/// All that an algorithm may know: a schedule is a function of it. Apart from `rank`, and from the blocks of
/// collectives whose sizes not all ranks know, it is the same at all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// This rank.
    pub rank: u32,
    /// Ranks in the communicator.
    pub ranks: u32,
    /// Of an intercommunicator, the ranks of the first group: they come first. 0 where there is one group.
    pub split: u32,
    /// The root, 0 where there is none. Of an intercommunicator, at ranks of the root's group that are not the root, any
    /// other one of them: they do not know it, and take no part.
    pub root: u32,
    /// Units of this rank's own block, or of the whole vector where there are no blocks.
    pub len: u64,
    /// Bytes of a unit (to choose segments by; 1 where units are bytes).
    pub unit: u64,
    /// The blocks of [`Buf::Send`], where it has them and they are known here.
    pub sends: Blocks,
    /// The blocks of [`Buf::Recv`], likewise.
    pub recvs: Blocks,
    /// Units of [`Buf::Board`].
    pub board: u64,
    /// Bytes of a rank's slot.
    pub slot: u64,
    /// The operation commutes.
    pub commutative: bool,
    /// The ranks of a node are more than its cores.
    pub crowded: bool,
}

impl Shape {
    /// One rank without data.
    pub(crate) const NOTHING: Shape = Shape {
        rank: 0,
        ranks: 1,
        split: 0,
        root: 0,
        len: 0,
        unit: 1,
        sends: Blocks::Even(0),
        recvs: Blocks::Even(0),
        board: 0,
        slot: 0,
        commutative: true,
        crowded: false,
    };

    /// Fills in what it knows of the ranks' node.
    pub(crate) fn on(&mut self, facts: &Facts) {
        let (slot, board) = facts.slots.map_or((0, 0), |slots| (slots.inline, slots.board));
        self.crowded = facts.per_node > facts.cores;
        let board = if self.crowded { board } else { board.min(KEPT) };
        (self.slot, self.board) = (slot, board / self.unit.max(1));
    }

    /// Units of half the board: whole pages, as what lies at one place of a page is copied quicker to another.
    pub(crate) fn half(&self) -> u64 {
        self.grained(self.board / 2)
    }

    /// Units of a section of the board: no more than the caches hold of all.
    pub(crate) fn section(&self) -> u64 {
        self.grained(self.half().min(SECTIONS / self.unit.max(1)) / u64::from(sections::HALF))
    }

    pub(crate) fn cut(&self) -> Cut {
        Cut { half: self.half(), section: self.section() }
    }

    /// The same, or fewer units, that are whole pages; if that is little, whole cache lines.
    pub(crate) fn grained(&self, units: u64) -> u64 {
        let grain = |bytes: u64| (bytes / self.unit.max(1)).max(1);
        let grain = if units < 16 * grain(PAGE) { grain(LINE) } else { grain(PAGE) };
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

    /// This rank, counted from the root.
    pub fn relative(&self) -> u32 {
        self.behind(self.rank, self.root)
    }

    /// The rank that is `distance` (at most the number of ranks) after `rank`.
    pub fn after(&self, rank: u32, distance: u32) -> u32 {
        let there = u64::from(rank) + u64::from(distance);
        (there % u64::from(self.ranks)) as u32
    }

    /// The rank that is `distance` before `rank`.
    pub fn before(&self, rank: u32, distance: u32) -> u32 {
        self.after(rank, self.ranks - distance)
    }

    /// How far `rank` is behind `origin`, going up.
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

    /// Where [`Buf::Send`] starts in [`Buf::Recv`], if the data of this rank may be in place there.
    pub fn in_place_at(&self, kind: Kind) -> Option<u64> {
        use Kind::*;
        let root = self.rank == self.root;
        match kind {
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
