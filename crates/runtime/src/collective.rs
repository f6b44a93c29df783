//! From the arguments of a collective to a checked [`Call`] (MPI 5.0, chapter 6): which arguments are significant at which
//! rank, where a buffer may be in place, who the root is, how many blocks a buffer has, and that buffers are distinct.
//!
//! A face of the library (the C functions, say) names each buffer by an [`Argument`]. What an argument says is asked for
//! only where it is significant: elsewhere the program may pass anything.

use std::sync::Arc;

use banyan_coll::{Call, Kind, Op, Operand};
use banyan_datatype::op::defined_on;
use banyan_datatype::{Datatype, Span, TypeArc};
use banyan_memory::Buffer;

use crate::bail;
use crate::comm::Comm;
use crate::error::{Class, Error, Result};

/// Memory of the user, as a face names it.
pub trait UserMemory {
    /// True for MPI_IN_PLACE.
    fn is_in_place(&self) -> bool;

    /// The memory of a span of elements; offset 0 is the address that the user gave.
    ///
    /// # Errors
    /// MPI_ERR_BUFFER for an address that cannot be meant, or for memory that does not have the span.
    fn region(&self, span: Span) -> Result<Buffer>;
}

/// A buffer of a collective that moves data, and what lies there.
pub trait Argument: UserMemory {
    /// What lies there, without the memory. An operand with a block per rank has `blocks` of them.
    ///
    /// # Errors
    /// Those of counts, displacements and datatypes.
    fn operand(&self, blocks: usize) -> Result<Operand>;
}

/// Memory of the library's own: it is checked that the span lies inside.
impl UserMemory for Buffer {
    fn is_in_place(&self) -> bool {
        false
    }

    fn region(&self, span: Span) -> Result<Buffer> {
        if span.bytes > 0 && (span.lo < self.lo() as i64 || span.hi > self.hi() as i64) {
            let (lo, hi) = (self.lo(), self.hi());
            bail!(ERR_BUFFER, "bytes {} to {} are needed, the buffer has {lo} to {hi}", span.lo, span.hi);
        }
        Ok(self.clone())
    }
}

impl UserMemory for (Buffer, u64, TypeArc) {
    fn is_in_place(&self) -> bool {
        false
    }

    fn region(&self, span: Span) -> Result<Buffer> {
        self.0.region(span)
    }
}

/// So many elements of a type.
impl Argument for (Buffer, u64, TypeArc) {
    fn operand(&self, _: usize) -> Result<Operand> {
        Ok(Operand::uniform(self.1, self.2.clone()))
    }
}

/// The root of a collective, as a rank names it (MPI 5.0, 6.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Root {
    /// The process of this rank: of the other group, if there are two.
    Rank(i32),
    /// This process, on an intercommunicator (MPI_ROOT).
    Here,
    /// Another process of this one's group of an intercommunicator (MPI_PROC_NULL): this one takes no part.
    ProcNull,
}

/// The part of this rank in a collective with a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Role {
    /// The root, as schedules number ranks.
    pub(crate) root: u32,
    /// This rank is the root.
    pub(crate) here: bool,
    /// This rank gives or gets data besides the root: every rank of an intracommunicator; in an intercommunicator those of the
    /// group that the root is not in.
    pub(crate) leaf: bool,
}

impl Role {
    /// The root may have its own data in place: on an intracommunicator.
    fn in_place(self) -> bool {
        self.here && self.leaf
    }
}

impl Comm {
    /// MPI_Barrier.
    pub fn barrier(&self) -> Call {
        Call::barrier()
    }

    /// MPI_Bcast.
    pub fn bcast(&self, root: Root, data: &dyn Argument) -> Result<Call> {
        let role = self.role(root)?;
        let data = if role.here || role.leaf { placed(data, data.operand(1)?, 1)? } else { Operand::Nothing };
        Ok(Call::bcast(data, role.root))
    }

    /// The collectives that move data between blocks of all ranks, with a root (gather, scatter) or without one (allgather,
    /// alltoall), and their `v` and `w` forms: who has a block per rank, and who may have its own in place, follows from the kind.
    pub fn data_movement(
        &self,
        kind: Kind,
        root: Option<Root>,
        send: &dyn Argument,
        recv: &dyn Argument,
    ) -> Result<Call> {
        let role = match root {
            Some(root) => self.role(root)?,
            None => Role { root: 0, here: true, leaf: true },
        };
        let in_place = role.in_place() && !self.is_inter();
        let (send, recv) = match kind {
            Kind::Scatter | Kind::Scatterv => {
                (self.blocks_if(role.here, send)?, block_if(role.leaf, in_place, recv)?)
            }
            Kind::Alltoall | Kind::Alltoallv | Kind::Alltoallw => {
                let recv = self.blocks_if(true, recv)?;
                let send = match in_place && send.is_in_place() {
                    true => Operand::InPlace,
                    false => self.blocks_if(true, send)?,
                };
                (send, recv)
            }
            _ => {
                let recv = self.blocks_if(role.here, recv)?;
                (block_if(role.leaf, in_place, send)?, recv)
            }
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(kind, send, recv, role.root))
    }

    /// MPI_Reduce; `elements` gives the count and type of the elements, and the operation.
    pub fn reduce(
        &self,
        root: Root,
        buffers: (&dyn UserMemory, &dyn UserMemory),
        elements: impl FnOnce() -> Result<(u64, TypeArc, Op)>,
    ) -> Result<Call> {
        let role = self.role(root)?;
        if !role.here && !role.leaf {
            return Ok(Call::data_movement(Kind::Reduce, Operand::Nothing, Operand::Nothing, role.root));
        }
        self.reduction(Kind::Reduce, role, buffers, elements()?)
    }

    /// MPI_Allreduce, MPI_Scan and MPI_Exscan.
    pub fn allreduce(
        &self,
        kind: Kind,
        buffers: (&dyn UserMemory, &dyn UserMemory),
        elements: (u64, TypeArc, Op),
    ) -> Result<Call> {
        self.allows(kind)?;
        let role = Role { root: 0, here: true, leaf: true };
        self.reduction(kind, role, buffers, elements)
    }

    fn reduction(
        &self,
        kind: Kind,
        role: Role,
        (send, recv): (&dyn UserMemory, &dyn UserMemory),
        (count, ty, op): (u64, TypeArc, Op),
    ) -> Result<Call> {
        check_op(&op, &ty)?;
        let recv = match role.here {
            true => placed(recv, Operand::uniform(count, ty.clone()), 1)?,
            false => Operand::Nothing,
        };
        let send = match role.leaf {
            true if role.in_place() && send.is_in_place() && !self.is_inter() => Operand::InPlace,
            true => placed(send, Operand::uniform(count, ty), 1)?,
            false => Operand::Nothing,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::reduction(kind, send, recv, op, role.root))
    }

    /// MPI_Reduce_scatter_block (of a uniform operand: the elements of each rank) and MPI_Reduce_scatter (of a vector without
    /// displacements).
    pub fn reduce_scatter(
        &self,
        (send, recv): (&dyn UserMemory, &dyn UserMemory),
        (result, op): (Operand, Op),
    ) -> Result<Call> {
        let (all, mine, kind, ty) = match &result {
            Operand::Uniform { count, ty, .. } => {
                (total(*count, self.size().into())?, *count, Kind::ReduceScatterBlock, ty.clone())
            }
            Operand::Vector { counts, ty, .. } => {
                let all = counts.iter().try_fold(0u64, |all, count| all.checked_add(*count));
                let Some(all) = all else { bail!(ERR_COUNT, "the counts together do not fit into 64 bits") };
                (all, counts[self.rank() as usize], Kind::ReduceScatter, ty.clone())
            }
            _ => bail!(ERR_TYPE, "a reduction has elements of one type"),
        };
        check_op(&op, &ty)?;
        let (send, here) = match send.is_in_place() && !self.is_inter() {
            true => (Operand::InPlace, all),
            false => (placed(send, Operand::uniform(all, ty.clone()), 1)?, mine),
        };
        let recv = result.at(recv.region(ty.span(here)?)?);
        check_distinct(&send, &recv)?;
        Ok(Call::reduction(kind, send, recv, op, 0))
    }

    /// Checks the root of a collective (MPI 5.0, 6.2.3).
    fn role(&self, root: Root) -> Result<Role> {
        match root {
            Root::Rank(rank) if !self.is_inter() => match u32::try_from(rank) {
                Ok(root) if root < self.size() => Ok(Role { root, here: root == self.rank(), leaf: true }),
                _ => Err(self.no_root(root)),
            },
            _ if self.is_inter() => self.role_between(root),
            _ => Err(self.no_root(root)),
        }
    }

    #[cold]
    fn role_between(&self, root: Root) -> Result<Role> {
        let (coll_state, size, me) = (self.coll_state(), self.size(), self.rank());
        match root {
            Root::Here => Ok(Role { root: coll_state.schedule_rank(me, true), here: true, leaf: false }),
            Root::ProcNull if size > 1 => {
                // Any other rank will do: nothing is sent there.
                Ok(Role { root: coll_state.schedule_rank((me + 1) % size, true), here: false, leaf: false })
            }
            Root::ProcNull => bail!(
                ERR_ROOT,
                "root is MPI_PROC_NULL, but this rank is alone in its group of the intercommunicator: the root itself \
                 gives MPI_ROOT, and all ranks of the other group give its rank"
            ),
            Root::Rank(root) => match u32::try_from(root).ok().filter(|&rank| rank < self.blocks()) {
                Some(rank) => {
                    Ok(Role { root: coll_state.schedule_rank(rank, false), here: false, leaf: true })
                }
                None => bail!(
                    ERR_ROOT,
                    "root is {root}, but the other group of the intercommunicator has ranks 0 to {}; in the root's own \
                     group the root gives MPI_ROOT, and the others MPI_PROC_NULL",
                    self.blocks() - 1
                ),
            },
        }
    }

    #[cold]
    fn no_root(&self, root: Root) -> Error {
        let (name, last) = (self.name_or_kind(), self.size() - 1);
        let what = match root {
            Root::Here => "MPI_ROOT, which is for intercommunicators".to_string(),
            Root::ProcNull => "MPI_PROC_NULL, which is for intercommunicators".to_string(),
            Root::Rank(root) => root.to_string(),
        };
        Error::new(Class::ERR_ROOT, format!("root is {what}, but {name} has ranks 0 to {last}"))
    }

    /// Refuses a collective that MPI does not define on intercommunicators, if this is one.
    fn allows(&self, kind: Kind) -> Result<()> {
        if self.is_inter() { self.allows_between(kind) } else { Ok(()) }
    }

    #[cold]
    fn allows_between(&self, kind: Kind) -> Result<()> {
        if !banyan_coll::BETWEEN.iter().any(|row| row.kind == kind) {
            bail!(ERR_COMM, "MPI has no {} on intercommunicators: merge its groups first", kind.name());
        }
        Ok(())
    }

    /// A buffer with a block per rank, if it is significant.
    fn blocks_if(&self, significant: bool, argument: &dyn Argument) -> Result<Operand> {
        let blocks = self.blocks();
        match significant {
            true => placed(argument, argument.operand(blocks as usize)?, blocks.into()),
            false => Ok(Operand::Nothing),
        }
    }
}

/// A buffer of one block, if it is significant; in place, if it `may_be` and is.
fn block_if(significant: bool, may_be_in_place: bool, argument: &dyn Argument) -> Result<Operand> {
    match significant {
        false => Ok(Operand::Nothing),
        true if may_be_in_place && argument.is_in_place() => Ok(Operand::InPlace),
        true => placed(argument, argument.operand(1)?, 1),
    }
}

/// An operand at the memory of an argument; one that is uniform has so many blocks.
fn placed(memory: &dyn UserMemory, operand: Operand, blocks: u64) -> Result<Operand> {
    let span = match &operand {
        Operand::Uniform { count, ty, .. } => ty.span(total(*count, blocks)?)?,
        several => span_of_blocks(&blocks_of(several)?)?,
    };
    Ok(operand.at(memory.region(span)?))
}

/// The blocks of an operand whose blocks may lie anywhere: of each the number of elements, the displacement in bytes, the type.
fn blocks_of(operand: &Operand) -> Result<Vec<(u64, i64, &TypeArc)>> {
    Ok(match operand {
        Operand::Nothing | Operand::InPlace => Vec::new(),
        Operand::Uniform { count, ty, .. } => vec![(*count, 0, ty)],
        // The blocks follow one another.
        Operand::Vector { counts, displs, ty, .. } if displs.is_empty() => vec![(counts.iter().sum(), 0, ty)],
        Operand::Vector { counts, displs, ty, .. } => {
            let block = |(count, displ): (&u64, &i64)| match displ.checked_mul(ty.extent()) {
                Some(bytes) => Ok((*count, bytes, ty)),
                None => bail!(ERR_ARG, "a displacement of {displ} elements is too far away"),
            };
            counts.iter().zip(displs).map(block).collect::<Result<_>>()?
        }
        Operand::Wide { counts, displs, types, .. } => {
            counts.iter().zip(displs).zip(types).map(|((count, displ), ty)| (*count, *displ, ty)).collect()
        }
    })
}

#[inline]
fn total(count: u64, blocks: u64) -> Result<u64> {
    match count.checked_mul(blocks) {
        Some(all) => Ok(all),
        None => bail!(ERR_COUNT, "{blocks} times {count} elements do not fit into 64 bits"),
    }
}

/// The span of all blocks.
fn span_of_blocks(blocks: &[(u64, i64, &TypeArc)]) -> Result<Span> {
    let mut all = Span { bytes: 0, lo: 0, hi: 0 };
    for &(count, at, ty) in blocks {
        let span = ty.span(count)?;
        if span.bytes == 0 {
            continue;
        }
        let shifted = |offset: i64| match offset.checked_add(at) {
            Some(offset) => Ok(offset),
            None => bail!(ERR_ARG, "a displacement of {at} bytes is too far away"),
        };
        let (lo, hi) = (shifted(span.lo)?, shifted(span.hi)?);
        all = match all.bytes {
            0 => Span { bytes: span.bytes, lo, hi },
            bytes => Span { bytes: bytes.saturating_add(span.bytes), lo: all.lo.min(lo), hi: all.hi.max(hi) },
        };
    }
    Ok(all)
}

/// Refuses a predefined operation that is not defined on the elements (MPI 5.0, 6.9.2).
#[inline]
pub fn check_op(op: &Op, ty: &Arc<Datatype>) -> Result<()> {
    match op {
        Op::Builtin(builtin) if !defined_on(*builtin, ty) => {
            let name = if ty.name().is_empty() { "a derived datatype" } else { ty.name() };
            bail!(ERR_OP, "{} is not defined on {name}", builtin.name())
        }
        _ => Ok(()),
    }
}

/// Refuses one buffer for two purposes: no sent block may start where a received block starts.
fn check_distinct(send: &Operand, recv: &Operand) -> Result<()> {
    match (send, recv) {
        (Operand::Uniform { base, count, ty }, Operand::Uniform { base: other, .. }) => {
            let same = base.address(0) == other.address(0) && *count > 0 && ty.size() > 0;
            // NULL is MPI_BOTTOM, from which types may lead anywhere.
            if same && base.address(0) != 0 { Err(same_memory(base.address(0))) } else { Ok(()) }
        }
        (Operand::InPlace | Operand::Nothing, _) | (_, Operand::InPlace | Operand::Nothing) => Ok(()),
        _ => match first_common(&starts(send), &starts(recv)) {
            Some(address) => Err(same_memory(address)),
            None => Ok(()),
        },
    }
}

#[cold]
fn same_memory(address: usize) -> Error {
    let what = format!(
        "sendbuf and recvbuf have the same memory, at {address:#x}: what is sent would be overwritten; \
         MPI_IN_PLACE is for that"
    );
    Error::new(Class::ERR_BUFFER, what)
}

/// The addresses where the non-empty blocks of an operand start, in ascending order.
fn starts(operand: &Operand) -> Vec<usize> {
    let (Some(base), Ok(blocks)) = (operand.base(), blocks_of(operand)) else { return Vec::new() };
    let filled = blocks.into_iter().filter(|(count, _, ty)| *count > 0 && ty.size() > 0);
    let start =
        |(_, at, ty): (u64, i64, &TypeArc)| base.address(at as isize).wrapping_add(ty.true_lb() as usize);
    let mut all: Vec<usize> = filled.map(start).collect();
    all.sort_unstable();
    all
}

fn first_common(some: &[usize], others: &[usize]) -> Option<usize> {
    some.iter().copied().find(|address| others.binary_search(address).is_ok())
}
