//! A collective as the user asked for it: [`Call`].

use std::sync::Arc;

use banyan_datatype::device;
use banyan_datatype::op::{self, Builtin};
use banyan_datatype::{Datatype, Error, TypeArc};
use banyan_memory::Buffer;

/// The collectives of MPI 5.0, chapter 6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// MPI_Barrier.
    Barrier,
    /// MPI_Bcast.
    Bcast,
    /// MPI_Gather.
    Gather,
    /// MPI_Gatherv.
    Gatherv,
    /// MPI_Scatter.
    Scatter,
    /// MPI_Scatterv.
    Scatterv,
    /// MPI_Allgather.
    Allgather,
    /// MPI_Allgatherv.
    Allgatherv,
    /// MPI_Alltoall.
    Alltoall,
    /// MPI_Alltoallv.
    Alltoallv,
    /// MPI_Alltoallw.
    Alltoallw,
    /// MPI_Reduce.
    Reduce,
    /// MPI_Allreduce.
    Allreduce,
    /// MPI_Reduce_scatter.
    ReduceScatter,
    /// MPI_Reduce_scatter_block.
    ReduceScatterBlock,
    /// MPI_Scan.
    Scan,
    /// MPI_Exscan.
    Exscan,
}

impl Kind {
    /// All collectives, with the names that settings and `--explain` use.
    pub const ALL: [(Kind, &'static str); 17] = [
        (Kind::Barrier, "barrier"),
        (Kind::Bcast, "bcast"),
        (Kind::Gather, "gather"),
        (Kind::Gatherv, "gatherv"),
        (Kind::Scatter, "scatter"),
        (Kind::Scatterv, "scatterv"),
        (Kind::Allgather, "allgather"),
        (Kind::Allgatherv, "allgatherv"),
        (Kind::Alltoall, "alltoall"),
        (Kind::Alltoallv, "alltoallv"),
        (Kind::Alltoallw, "alltoallw"),
        (Kind::Reduce, "reduce"),
        (Kind::Allreduce, "allreduce"),
        (Kind::ReduceScatter, "reduce_scatter"),
        (Kind::ReduceScatterBlock, "reduce_scatter_block"),
        (Kind::Scan, "scan"),
        (Kind::Exscan, "exscan"),
    ];

    /// The name that settings and `--explain` use.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The collective of that name.
    pub fn named(name: &str) -> Option<Kind> {
        Self::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// True if the collective combines elements with an operation.
    pub fn reduces(self) -> bool {
        use Kind::*;
        matches!(self, Reduce | Allreduce | ReduceScatter | ReduceScatterBlock | Scan | Exscan)
    }

    /// True if any of so many ranks combines elements: of two, the second one gets in an exscan what the first one gave.
    pub(crate) fn combines(self, ranks: u32) -> bool {
        self.reduces() && (self != Kind::Exscan || ranks != 2)
    }

    /// True if each rank gets the part of the result that is its block.
    pub(crate) fn scatters_result(self) -> bool {
        matches!(self, Kind::ReduceScatter | Kind::ReduceScatterBlock)
    }

    /// True if each rank has a block of its own in what it gives or gets.
    pub(crate) fn has_blocks(self) -> bool {
        use Kind::*;
        !matches!(self, Barrier | Bcast | Reduce | Allreduce | Scan | Exscan)
    }

    /// True if one rank is its root.
    pub fn rooted(self) -> bool {
        use Kind::*;
        matches!(self, Bcast | Gather | Gatherv | Scatter | Scatterv | Reduce)
    }

    /// True if the root gives each rank a block, or gets one from each.
    pub(crate) fn gathers_or_scatters(self) -> bool {
        self.rooted() && self.has_blocks()
    }

    /// True if the blocks of the ranks may differ in length.
    #[inline]
    pub fn uneven(self) -> bool {
        use Kind::*;
        matches!(self, Gatherv | Scatterv | Allgatherv | Alltoallv | Alltoallw | ReduceScatter)
    }

    /// True if only the two ranks of a pair know how many bytes they exchange.
    pub fn known_by_pairs(self) -> bool {
        use Kind::*;
        matches!(self, Gatherv | Scatterv | Alltoallv | Alltoallw)
    }

    /// True if some of so many ranks do not know how many bytes others move, so that the choice of an algorithm must not
    /// depend on sizes.
    pub fn size_unknown(self, ranks: u32) -> bool {
        self.known_by_pairs() && ranks != 2
    }
}

/// User memory that a collective reads or writes at this rank. Offset 0 of a buffer is the address that the user gave.
#[derive(Clone, Debug)]
pub enum Operand {
    /// Not significant at this rank.
    Nothing,
    /// MPI_IN_PLACE: the data are in the other argument.
    InPlace,
    /// `count` elements; in each rank's block, where the collective has blocks.
    Uniform {
        /// Offset 0 is the user's address.
        base: Buffer,
        /// Number of elements.
        count: u64,
        /// Type of the elements.
        ty: TypeArc,
    },
    /// A block per rank: `counts[r]` elements at `displs[r]` extents from the base.
    Vector {
        /// Offset 0 is the user's address.
        base: Buffer,
        /// Number of elements, per rank.
        counts: Vec<u64>,
        /// Displacements in extents of the type, per rank. Empty: the blocks follow each other.
        displs: Vec<i64>,
        /// Type of the elements.
        ty: TypeArc,
    },
    /// A block per rank, each of a type of its own (MPI_Alltoallw).
    Wide {
        /// Offset 0 is the user's address.
        base: Buffer,
        /// Number of elements, per rank.
        counts: Vec<u64>,
        /// Displacements in bytes, per rank.
        displs: Vec<i64>,
        /// Type of the elements, per rank.
        types: Vec<TypeArc>,
    },
}

impl Operand {
    /// `count` elements of a type, without memory.
    #[inline(always)]
    pub fn uniform(count: u64, ty: TypeArc) -> Operand {
        Operand::Uniform { base: Buffer::empty(), count, ty }
    }

    /// The operand at this memory.
    #[inline(always)]
    pub fn at(mut self, memory: Buffer) -> Operand {
        if let Operand::Uniform { base, .. } | Operand::Vector { base, .. } | Operand::Wide { base, .. } =
            &mut self
        {
            *base = memory;
        }
        self
    }

    /// The memory, from the user's address on.
    pub fn base(&self) -> Option<Buffer> {
        match self {
            Operand::Nothing | Operand::InPlace => None,
            Operand::Uniform { base, .. } | Operand::Vector { base, .. } | Operand::Wide { base, .. } => {
                Some(base.clone())
            }
        }
    }

    /// True if its elements lie in memory as they are packed, from the address on: so their number says where they are.
    pub(crate) fn is_dense(&self) -> bool {
        match self {
            Operand::Nothing | Operand::InPlace => true,
            Operand::Uniform { ty, .. } | Operand::Vector { ty, .. } => ty.is_dense(),
            Operand::Wide { .. } => false,
        }
    }

    /// The type of all its elements.
    pub(crate) fn element_type(&self) -> Option<&TypeArc> {
        match self {
            Operand::Uniform { ty, .. } | Operand::Vector { ty, .. } => Some(ty),
            _ => None,
        }
    }
}

/// A reduction operation.
#[derive(Clone)]
pub enum Op {
    /// One of MPI's own.
    Builtin(Builtin),
    /// An operation of the user's (MPI_Op_create).
    User {
        /// Whether the user said that it commutes.
        commutative: bool,
        /// The user's function.
        fun: Arc<dyn UserOp>,
    },
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Builtin(op) => write!(f, "Builtin({op:?})"),
            Op::User { commutative, .. } => write!(f, "User {{ commutative: {commutative} }}"),
        }
    }
}

impl Op {
    /// `inout[i] = input[i] op inout[i]` for `count` elements of `ty`, in any memory (MPI_Reduce_local).
    ///
    /// # Errors
    /// [`Error::Op`] if the operation is not defined on the type, [`Error::Overflow`] for impossible counts.
    ///
    /// # Panics
    /// If the elements are not inside the buffers' bounds.
    pub fn reduce_local(
        &self,
        input: &Buffer,
        inout: &Buffer,
        count: u64,
        ty: &Arc<Datatype>,
    ) -> Result<(), Error> {
        match self {
            Op::Builtin(builtin) => device::reduce(*builtin, ty, input, inout, count),
            Op::User { fun, .. } => {
                op::on_host(ty, input, inout, count, |input, inout| fun.apply(input, inout, count, ty));
                Ok(())
            }
        }
    }

    /// True if the operation commutes.
    #[inline]
    pub fn commutative(&self) -> bool {
        match self {
            Op::Builtin(op) => op.is_commutative(),
            Op::User { commutative, .. } => *commutative,
        }
    }
}

/// A reduction function of the user.
pub trait UserOp: Send + Sync {
    /// `inout[i] = input[i] op inout[i]` for `count` elements; offset 0 of each buffer is the first element's
    /// address as MPI means it (the lower bound may be elsewhere).
    fn apply(&self, input: &Buffer, inout: &Buffer, count: u64, ty: &Arc<Datatype>);
}

/// A collective as the user asked for it, arguments already checked.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which collective.
    pub kind: Kind,
    /// The root, 0 where there is none.
    pub root: u32,
    /// The data that this rank gives. With blocks: a block for each rank.
    pub send: Operand,
    /// Where this rank gets its result (bcast: the only buffer, also at the root).
    pub recv: Operand,
    /// The operation, if the kind reduces.
    pub op: Option<Op>,
}

impl Call {
    /// The memory of both operands, empty where there is none, for [`replay`](crate::replay).
    pub fn buffers(&self) -> [Buffer; 2] {
        [&self.send, &self.recv].map(|operand| operand.base().unwrap_or_else(Buffer::empty))
    }

    /// MPI_Barrier.
    #[inline]
    pub fn barrier() -> Call {
        Call { kind: Kind::Barrier, root: 0, send: Operand::Nothing, recv: Operand::Nothing, op: None }
    }

    /// MPI_Bcast of `data` (uniform).
    #[inline]
    pub fn bcast(data: Operand, root: u32) -> Call {
        Call { kind: Kind::Bcast, root, send: Operand::Nothing, recv: data, op: None }
    }

    /// A collective that moves data, without a reduction. Rooted kinds: `send` may be in place at the root of a gather,
    /// `recv` at the root of a scatter, and an operand that is not significant is [`Operand::Nothing`]. Gather,
    /// allgather and scatter take uniform operands, `count` per rank. The `v` forms take [`Operand::Vector`] on the
    /// side that has blocks, alltoallv on both sides, and alltoallw takes [`Operand::Wide`] on both.
    pub fn data_movement(kind: Kind, send: Operand, recv: Operand, root: u32) -> Call {
        Call { kind, root, send, recv, op: None }
    }

    /// A reduction. Reduce, allreduce, scan, exscan: both operands are uniform, `count` elements (`recv` is nothing at
    /// ranks other than a reduce's root; `send` may be in place). Reduce_scatter: `send` is uniform with all elements,
    /// `recv` a vector with the counts of all ranks and no displacements. Reduce_scatter_block: `send` is
    /// uniform with all elements, `recv` uniform with those of this rank. If `send` is in place for the latter two,
    /// `recv.base` covers all elements.
    #[inline]
    pub fn reduction(kind: Kind, send: Operand, recv: Operand, op: Op, root: u32) -> Call {
        Call { kind, root, send, recv, op: Some(op) }
    }
}
