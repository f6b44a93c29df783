//! [`Algorithm`], a row of the list of algorithms: what it does, what it needs, what it costs.

use crate::algorithms as a;
use crate::segments::Products;
use crate::{Chunks, Kind, Model, Round, Shape, Stage, Topology};

/// What an algorithm needs besides messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Needs {
    /// Nothing.
    Messages,
    /// CICO buffers, and that the one vector or block which a rank publishes fits into a cell.
    Inline,
    /// CICO buffers, and that the blocks for all ranks which a rank publishes fit into a cell together.
    InlineBlocks,
    /// CICO buffers whose cells have a sub-buffer for each other rank; what does not fit there goes by message.
    SubBuffers,
    /// CICO buffers and a shared scratch, and elements that lie in memory as they are packed, combined by an operation
    /// of MPI's own, if any.
    SharedScratch,
    /// CICO buffers, and ranks that can get out of each other's memory by single copy.
    SingleCopy,
    /// The same, and cells with a sub-buffer for each other rank that holds an offered range.
    Offers,
}

impl Needs {
    /// In the words of the glossary.
    pub fn name(self) -> &'static str {
        match self {
            Needs::Messages => "messages",
            Needs::Inline | Needs::InlineBlocks => "CICO buffers",
            Needs::SubBuffers => "sub-buffers",
            Needs::SharedScratch => "shared scratch",
            Needs::SingleCopy => "single copy",
            Needs::Offers => "offers",
        }
    }
}

/// One way to carry out one collective: pure functions from a [`Shape`] to a schedule.
pub struct Algorithm {
    /// The collective.
    pub kind: Kind,
    /// Its name within the collective, as in `BANYAN_COLL`.
    pub name: &'static str,
    /// Where it comes from, and what it is good for.
    pub about: &'static str,
    /// What it needs besides messages.
    pub needs: Needs,
    /// The algorithm changes the order of operands, so the operation must commute.
    pub reorders: bool,
    /// What rank `r` does with rank `r + d` every rank does with the one that is `d` behind it (all counted around), over ranges
    /// as long, in this case; where not all ranks know the blocks, those of all are as at this one.
    pub rotates: fn(&Shape) -> bool,
    /// The stages of a composition, whose schedule they are; empty where the functions below make it.
    pub stages: &'static [Stage],
    /// Sequence numbers of the shared buffers that one collective uses up (0: it does not touch them).
    pub phases: fn(&Shape) -> u32,
    /// Chunks that go through the shared scratch one after the other; each has an equal share of the phases.
    pub chunks: fn(&Shape) -> Chunks,
    /// Units of [`Buf::Temp`](crate::Buf::Temp) that this rank needs.
    pub temp: fn(&Shape) -> u64,
    /// Number of rounds, alike at all ranks.
    pub rounds: fn(&Shape) -> u32,
    /// Makes one round, by its number.
    pub round: fn(&Shape, u32, &mut Round),
    /// What the slowest rank does.
    pub cost: fn(&Case) -> Cost,
}

impl Algorithm {
    /// What the rows of algorithms that need messages alone have in common.
    pub(crate) const MESSAGES: Algorithm = Algorithm {
        kind: Kind::Barrier,
        name: "",
        about: "",
        needs: Needs::Messages,
        reorders: false,
        rotates: |_| false,
        stages: &[],
        phases: |_| 0,
        chunks: |_| Chunks::NONE,
        temp: |_| 0,
        rounds: |_| 0,
        round: |_, _, _| {},
        // What has no cost of its own is never chosen.
        cost: |_| Cost { steps: f64::INFINITY, ..Cost::ZERO },
    };
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.kind.name(), self.name)
    }
}

impl Default for &Algorithm {
    fn default() -> Self {
        &a::barrier::DISSEMINATION
    }
}

/// Two algorithms are equal if their collectives and their names are.
impl PartialEq for Algorithm {
    fn eq(&self, other: &Algorithm) -> bool {
        (self.kind, self.name) == (other.kind, other.name)
    }
}

impl Eq for Algorithm {}

/// What the cost of a collective depends on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// Bytes: of the vector (bcast and all that reduce), or of one block, the mean if they differ (all others).
    pub bytes: f64,
    /// Ranks.
    pub ranks: u32,
    /// Bytes of the largest block, where blocks differ and all ranks know them; else as `bytes`.
    pub largest: f64,
    /// Bytes of a cell of a CICO buffer.
    pub cell_bytes: f64,
    /// Bytes of the longest block that is quicker by two copies through shared memory than as a message.
    pub longest_copied: f64,
    /// By which what goes through a pipeline is cut.
    pub products: Products,
    /// Bytes of half the shared scratch.
    pub half: f64,
    /// Elements lie in memory as they are packed, and are combined, if at all, by an operation of MPI's own.
    pub plain: bool,
}

impl Case {
    /// A case of plain elements, in blocks of equal length, without CICO buffers.
    pub fn plain(bytes: f64, ranks: u32) -> Case {
        Case {
            bytes,
            largest: bytes,
            cell_bytes: 0.0,
            longest_copied: f64::INFINITY,
            products: Products::UNCUT,
            half: (16 << 20) as f64,
            ranks,
            plain: true,
        }
    }

    /// The same with what this topology and model say of such a collective.
    pub(crate) fn on(&self, topology: &Topology, model: &Model, kind: Kind) -> Case {
        let cell_bytes = topology.shared.map_or(0.0, |shared| shared.inline as f64);
        let (longest_copied, products) = (model.longest_copied(kind, topology), model.products(topology));
        let half = topology.shared.map_or(self.half, |shared| (model.scratch(topology, &shared) / 2) as f64);
        Case { cell_bytes, longest_copied, products, half, ..*self }
    }

    /// Ranks, as a float.
    pub fn p(&self) -> f64 {
        f64::from(self.ranks)
    }

    /// Rounds of a tree: log2 of the ranks, rounded up.
    pub fn lg(&self) -> f64 {
        f64::from(crate::log2_up(self.ranks))
    }

    /// Rounds of recursive doubling: log2 of the ranks, rounded down.
    pub fn doublings(&self) -> f64 {
        f64::from(crate::log2_down(self.ranks))
    }

    /// 1 if the number of ranks is no power of two, else 0: the rounds of some algorithms in which the ranks beyond a
    /// power of two fold in.
    pub fn folds(&self) -> f64 {
        f64::from(u8::from(!self.ranks.is_power_of_two()))
    }
}

/// What the slowest rank does, all of it one after the other.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Cost {
    /// Messages that wait for one another.
    pub steps: f64,
    /// Messages whose latency is hidden behind that of others, so that they cost their handling alone.
    pub extra: f64,
    /// Bytes sent or received.
    pub bytes: f64,
    /// All messages go to the next rank of the ring.
    pub around: bool,
    /// Bytes reduced.
    pub reduced: f64,
    /// Bytes copied within the rank or through the shared scratch.
    pub copied: f64,
    /// Bytes that a rank beside the root copies for it, while all others do so, too.
    pub copied_by_each: f64,
    /// Bytes copied into and out of CICO buffers.
    pub published: f64,
    /// Bytes copied out of another core's cache while that one copies the next ones.
    pub streamed: f64,
    /// Bytes copied over what ranks read last that have another core, where ranks share cores, beside the copy.
    pub rewritten: f64,
    /// Cache lines fetched from other cores.
    pub transfers: f64,
    /// Times that every rank waits for others: scheduling rounds where ranks exceed cores.
    pub waits: f64,
    /// Single-copy gets.
    pub gets: f64,
    /// Bytes that single-copy gets move.
    pub got_bytes: f64,
    /// Those of them that several ranks get at a time.
    pub shared_bytes: f64,
    /// Those of them that their owners have written in this collective.
    pub fresh_bytes: f64,
    /// Blocks that a rank puts into another's memory by single copy, while all others do so, too, and their bytes.
    pub puts: f64,
    /// See there.
    pub put_bytes: f64,
}

impl Cost {
    /// Nothing.
    pub const ZERO: Cost = Cost {
        steps: 0.0,
        extra: 0.0,
        bytes: 0.0,
        around: false,
        reduced: 0.0,
        copied: 0.0,
        copied_by_each: 0.0,
        published: 0.0,
        streamed: 0.0,
        rewritten: 0.0,
        transfers: 0.0,
        waits: 0.0,
        gets: 0.0,
        got_bytes: 0.0,
        shared_bytes: 0.0,
        fresh_bytes: 0.0,
        puts: 0.0,
        put_bytes: 0.0,
    };

    /// So many rounds, in each of which a rank has a message and waits for others, and the bytes of all of them.
    pub const fn rounds(number: f64, bytes: f64) -> Cost {
        Cost { steps: number, waits: number, bytes, ..Cost::ZERO }
    }

    /// The same, if all messages go to the next rank of the ring.
    pub const fn around(number: f64, bytes: f64) -> Cost {
        Cost { around: true, ..Cost::rounds(number, bytes) }
    }
}

/// Every algorithm there is. The first of each kind needs nothing but messages and keeps the order of operands, so it
/// does for every case.
pub fn all() -> impl Iterator<Item = &'static Algorithm> {
    a::FAMILIES.iter().copied().flatten().copied()
}

/// The algorithms for intercommunicators, for each collective that there is between two groups. They need messages alone,
/// and keep the order of operands.
pub const BETWEEN: &[&Algorithm] = &[
    &a::barrier::DISSEMINATION,
    &a::between::BCAST,
    &a::between::BCAST_LONG,
    &a::gather::LINEAR,
    &a::gather::LINEAR_V,
    &a::scatter::LINEAR,
    &a::scatter::LINEAR_V,
    &a::between::ALLGATHER,
    &a::between::ALLGATHER_LONG,
    &a::between::ALLGATHERV,
    &a::between::ALLGATHERV_LONG,
    &a::alltoall::SPREAD,
    &a::alltoall::SPREAD_V,
    &a::alltoall::SPREAD_W,
    &a::between::REDUCE,
    &a::between::REDUCE_LONG,
    &a::between::ALLREDUCE,
    &a::between::ALLREDUCE_LONG,
    &a::between::REDUCE_SCATTER,
    &a::between::REDUCE_SCATTER_LONG,
    &a::between::REDUCE_SCATTER_BLOCK,
    &a::between::REDUCE_SCATTER_BLOCK_LONG,
];

/// The algorithms of one collective.
pub fn of_kind(kind: Kind) -> impl Iterator<Item = &'static Algorithm> {
    all().filter(move |row| row.kind == kind)
}
