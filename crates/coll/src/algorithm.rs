//! A row of the list of algorithms: what it does, what it needs, what it costs.

use crate::algorithms as a;
use crate::{Chunks, Kind, Round, Shape};

/// What an algorithm needs besides messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// Nothing.
    Messages,
    /// Shared slots, and what a rank publishes, one vector or block, fits into one.
    Inline,
    /// Shared slots, and what a rank publishes, a block for each rank, fits into one.
    InlineBlocks,
    /// Shared slots with some room for each other rank; what does not fit there goes by message.
    Pockets,
    /// Shared slots with a board, and elements that lie in memory as they are packed, combined by an operation of
    /// MPI's own, if any.
    Board,
    /// Shared slots, and ranks that can pull out of each other's memory.
    Regions,
}

/// One way to carry out one collective: pure functions from a [`Shape`] to a schedule.
pub struct Algorithm {
    /// The collective.
    pub kind: Kind,
    /// Its name within the collective, as in `BANYAN_COLL`.
    pub name: &'static str,
    /// Where it comes from, and what it is good for.
    pub about: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// It changes the order of operands, so the operation must commute.
    pub reorders: bool,
    /// Stamps of the shared slots that it uses up (0: it does not touch them).
    pub phases: fn(&Shape) -> u32,
    /// Chunks that go through the board in turn; each has its share of the phases.
    pub chunks: fn(&Shape) -> Chunks,
    /// Units of [`Buf::Temp`](crate::Buf::Temp) that it wants.
    pub temp: fn(&Shape) -> u64,
    /// Number of rounds, alike at all ranks.
    pub rounds: fn(&Shape) -> u32,
    /// Makes one round.
    pub round: fn(&Shape, u32, &mut Round),
    /// What the slowest rank does.
    pub cost: fn(&Case) -> Cost,
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.name)
    }
}

/// Its name tells an algorithm from the others of its collective.
impl PartialEq for Algorithm {
    fn eq(&self, other: &Algorithm) -> bool {
        (self.kind, self.name) == (other.kind, other.name)
    }
}

/// What the cost of a collective depends on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// Bytes: of the vector (bcast and all that reduce), or of one block, the mean if they differ (all others).
    pub bytes: f64,
    /// Ranks.
    pub ranks: u32,
    /// Bytes of the largest block, where ranks know that they differ; else as `bytes`.
    pub largest: f64,
    /// Bytes of a slot.
    pub slot: f64,
    /// Elements lie in memory as they are packed, and are combined, if at all, by an operation of MPI's own.
    pub plain: bool,
}

impl Case {
    /// Of elements that are plain, in blocks that are alike, without slots.
    pub fn plain(bytes: f64, ranks: u32) -> Case {
        Case { bytes, largest: bytes, slot: 0.0, ranks, plain: true }
    }

    /// Ranks, for arithmetic.
    pub fn p(&self) -> f64 {
        f64::from(self.ranks)
    }

    /// Rounds of a tree: log2 of the ranks, rounded up.
    pub fn lg(&self) -> f64 {
        f64::from(crate::log2_up(self.ranks))
    }

    /// 1 if the ranks are no power of two, else 0: extra rounds of some algorithms.
    pub fn odd(&self) -> f64 {
        f64::from(u8::from(!self.ranks.is_power_of_two()))
    }
}

/// What the slowest rank does, one after the other.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Cost {
    /// Messages that wait for one another.
    pub steps: f64,
    /// Messages that go in the shadow of others, and only cost their handling.
    pub extra: f64,
    /// Bytes sent or received.
    pub bytes: f64,
    /// Bytes reduced.
    pub reduced: f64,
    /// Bytes copied within the rank or through shared slots.
    pub copied: f64,
    /// Cache lines fetched from other cores.
    pub hops: f64,
    /// Times that every rank waits for others: scheduling rounds where ranks exceed cores.
    pub waits: f64,
    /// Regions pulled.
    pub pulls: f64,
    /// Bytes pulled.
    pub pulled: f64,
}

/// Every algorithm there is. The first of a kind that needs nothing but messages and keeps the order does
/// for every case.
pub const ALL: &[&Algorithm] = &[
    &a::barrier::DISSEMINATION,
    &a::shared::BARRIER,
    &a::bcast::BINOMIAL,
    &a::bcast::SCATTER_RING,
    &a::bcast::CHAIN,
    &a::shared::BCAST,
    &a::shared::BCAST_PULL,
    &a::board::BCAST,
    &a::gather::BINOMIAL,
    &a::gather::LINEAR,
    &a::shared::GATHER,
    &a::board::GATHER,
    &a::gather::LINEAR_V,
    &a::pockets::GATHERV,
    &a::scatter::BINOMIAL,
    &a::scatter::LINEAR,
    &a::shared::SCATTER,
    &a::board::SCATTER,
    &a::scatter::LINEAR_V,
    &a::pockets::SCATTERV,
    &a::allgather::BRUCK,
    &a::allgather::RING,
    &a::shared::ALLGATHER,
    &a::board::ALLGATHER,
    &a::allgather::BRUCK_V,
    &a::allgather::RING_V,
    &a::shared::ALLGATHERV,
    &a::board::ALLGATHERV,
    &a::alltoall::BRUCK,
    &a::alltoall::PAIRWISE,
    &a::alltoall::SPREAD,
    &a::shared::ALLTOALL,
    &a::board::ALLTOALL,
    &a::alltoall::PAIRWISE_V,
    &a::alltoall::SPREAD_V,
    &a::pockets::ALLTOALLV,
    &a::alltoall::PAIRWISE_W,
    &a::alltoall::SPREAD_W,
    &a::pockets::ALLTOALLW,
    &a::reduce::BINOMIAL,
    &a::reduce::RABENSEIFNER,
    &a::shared::REDUCE,
    &a::shared::REDUCE_PULL,
    &a::board::REDUCE,
    &a::board::REDUCE_POOL,
    &a::allreduce::DOUBLING,
    &a::allreduce::RABENSEIFNER,
    &a::allreduce::RING,
    &a::shared::ALLREDUCE,
    &a::shared::ALLREDUCE_PULL,
    &a::board::ALLREDUCE,
    &a::board::ALLREDUCE_POOL,
    &a::reduce_scatter::DOUBLING,
    &a::reduce_scatter::PAIRWISE,
    &a::shared::REDUCE_SCATTER,
    &a::board::REDUCE_SCATTER,
    &a::board::REDUCE_SCATTER_POOL,
    &a::reduce_scatter::DOUBLING_BLOCK,
    &a::reduce_scatter::PAIRWISE_BLOCK,
    &a::shared::REDUCE_SCATTER_BLOCK,
    &a::board::REDUCE_SCATTER_BLOCK,
    &a::board::REDUCE_SCATTER_BLOCK_POOL,
    &a::scan::DOUBLING,
    &a::scan::CHAIN,
    &a::shared::SCAN,
    &a::board::SCAN,
    &a::scan::EXCLUSIVE_DOUBLING,
    &a::scan::EXCLUSIVE_CHAIN,
    &a::shared::EXSCAN,
    &a::board::EXSCAN,
];

/// The algorithms for intercommunicators, one for each collective that there is between two groups. They need messages
/// alone.
pub const BETWEEN: &[&Algorithm] = &[
    &a::barrier::DISSEMINATION,
    &a::between::BCAST,
    &a::gather::LINEAR,
    &a::gather::LINEAR_V,
    &a::scatter::LINEAR,
    &a::scatter::LINEAR_V,
    &a::between::ALLGATHER,
    &a::between::ALLGATHERV,
    &a::alltoall::SPREAD,
    &a::alltoall::SPREAD_V,
    &a::alltoall::SPREAD_W,
    &a::between::REDUCE,
    &a::between::ALLREDUCE,
    &a::between::REDUCE_SCATTER,
    &a::between::REDUCE_SCATTER_BLOCK,
];

/// The algorithm of a collective for intercommunicators; there are no scans between groups.
pub fn between(kind: Kind) -> Option<&'static Algorithm> {
    BETWEEN.iter().copied().find(|row| row.kind == kind)
}

/// The algorithms of one collective.
pub fn of_kind(kind: Kind) -> impl Iterator<Item = &'static Algorithm> {
    ALL.iter().copied().filter(move |row| row.kind == kind)
}
