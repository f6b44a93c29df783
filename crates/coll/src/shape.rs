//! [`Shape`]: all that an algorithm may know of a call, and [`Blocks`], where the blocks of the ranks are.

use std::ops::Range;
use std::sync::Arc;

use crate::schedule::{Buf, Span};
use crate::sections::{self, Cut};
use crate::segments::Products;
use crate::{Composition, Kind, Model, RingOrder, Topology};

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

    /// True if the blocks of `ranks` ranks have one length.
    pub(crate) fn are_even(&self, ranks: u32) -> bool {
        (1..ranks).all(|rank| self.block(rank).1 == self.block(0).1)
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

/// The most bytes of the shared scratch that are used where each rank has a core, with a last-level cache of 32 MiB and more: more would only be more to
/// keep in the caches (2 ranks, an allgather of 1 MiB: 78 us with 4 MiB, 112 with 8). With 8 MiB of cache (EPYC of family 23) an alltoall of
/// 4 MiB took 2,443 us with so many, and 2,049 with a quarter.
pub(crate) const SCRATCH_IN_CACHE: u64 = 15 << 18;
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
    /// Where not all ranks know all sizes: units of the longest block that is quicker by two copies than as a message.
    pub longest_copied: u64,
    /// By which what goes through a pipeline is cut.
    pub products: Products,
    /// Bytes of its buffers that a rank reads and writes from which on it copies past its caches.
    pub past: u64,
    /// The operation commutes.
    pub commutative: bool,
    /// A node has more ranks than cores.
    pub crowded: bool,
    /// Ranks of a node may read and write each other's memory by single copy.
    pub single_copy: bool,
    /// The order of ranks on a ring, if it is another one than that of their numbers.
    pub ring: Option<Arc<RingOrder>>,
    /// What becomes of the stages, if the algorithm is a composition.
    pub composition: Option<Arc<Composition>>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape::NOTHING
    }
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
        longest_copied: u64::MAX,
        products: Products::UNCUT,
        past: u64::MAX,
        commutative: true,
        crowded: false,
        single_copy: false,
        ring: None,
        composition: None,
    };

    /// Fills in what a topology says, and a model of it: sizes of cells and shared scratch, whether ranks share cores, and by what pipelines
    /// are cut.
    pub(crate) fn on(&mut self, topology: &Topology, model: &Model) {
        self.products = model.products(topology);
        let (cell_bytes, scratch) =
            topology.shared.map_or((0, 0), |shared| (shared.inline, model.scratch(topology, &shared)));
        self.past = model.past(topology);
        self.crowded = topology.crowded();
        self.single_copy = topology.shared.is_some_and(|shared| shared.single_copy);
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
        Cut { half: self.half(), section: self.section(), unit: self.unit.max(1) }
    }

    /// `units`, rounded down to whole pages; if they are less than 16 pages, to whole cache lines.
    pub(crate) fn round_down(&self, units: u64) -> u64 {
        let grain = self.grain(units);
        if units < grain { units } else { units - units % grain }
    }

    /// `units`, rounded up in the same way.
    pub(crate) fn round_up(&self, units: u64) -> u64 {
        units.next_multiple_of(self.grain(units))
    }

    fn grain(&self, units: u64) -> u64 {
        let grain = |bytes: u64| (bytes / self.unit.max(1)).max(1);
        if units < 16 * grain(PAGE) { grain(CACHE_LINE) } else { grain(PAGE) }
    }

    /// The ranks of the group that a rank is in.
    pub fn group_of(&self, rank: u32) -> Range<u32> {
        if rank < self.split { 0..self.split } else { self.split..self.ranks }
    }

    /// The ranks of the other group; none where there is one group.
    pub fn group_across(&self, rank: u32) -> Range<u32> {
        if rank < self.split { self.split..self.ranks } else { 0..self.split }
    }

    /// True if it is neither the first nor the last rank: in a chain it combines a prefix for the next one.
    pub(crate) fn passes_on(&self) -> bool {
        self.rank > 0 && self.rank + 1 < self.ranks
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

    /// The rank that is `distance` (at most the number of ranks) after `rank` on the ring.
    pub fn ring_after(&self, rank: u32, distance: u32) -> u32 {
        self.ring.as_ref().map_or_else(|| self.after(rank, distance), |ring| ring.after(rank, distance))
    }

    /// The rank that is `distance` before `rank` on the ring.
    pub fn ring_before(&self, rank: u32, distance: u32) -> u32 {
        self.ring_after(rank, self.ranks - distance)
    }

    /// How far `rank` is behind `origin` on the ring: `ring_after(origin, ring_behind(rank, origin)) == rank`.
    pub fn ring_behind(&self, rank: u32, origin: u32) -> u32 {
        self.ring.as_ref().map_or_else(|| self.behind(rank, origin), |ring| ring.behind(rank, origin))
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

    /// Units of [`Buf::Send`] and of [`Buf::Recv`] at this rank.
    pub(crate) fn extents(&self) -> [u64; 2] {
        use Kind::*;
        let (len, root) = (self.len, self.rank == self.root);
        let (sends, recvs) = (|| self.sends.start(self.ranks), || self.recvs.start(self.ranks));
        match self.kind {
            Barrier => [0, 0],
            Bcast => [0, len],
            Gather | Gatherv => [len, if root { recvs() } else { 0 }],
            Scatter | Scatterv => [if root { sends() } else { 0 }, len],
            Allgather | Allgatherv => [len, recvs()],
            Alltoall | Alltoallv | Alltoallw => [sends(), recvs()],
            // On an intercommunicator the root gives nothing.
            Reduce if root && self.split > 0 => [0, len],
            Reduce => [len, if root { len } else { 0 }],
            ReduceScatter | ReduceScatterBlock => [sends(), len],
            Allreduce | Scan | Exscan => [len, len],
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
