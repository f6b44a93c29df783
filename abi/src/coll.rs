//! Collective communication (MPI 5.0, 6): blocking, nonblocking and persistent forms from one declaration.

use crate::boundary::mpi;
use crate::buffers::{check, count, counts, displacements, region};
use crate::comm::{Found, Object, lookup};
use crate::datatype::{self, OrMpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::signature::{Argument, Arguments};
use crate::{info, op, request};
use banyan_datatype::{Datatype, Span, TypeArc};
use banyan_memory::Buffer;
use banyan_runtime::{Call, Class, Error, Kind, Op, Operand, Result, Root, bail};
use std::sync::Arc;

/// True for MPI_IN_PLACE.
#[inline]
fn in_place(buf: Ptr<c_void>) -> bool {
    buf.address() == MPI_IN_PLACE
}

/// True for MPI_IN_PLACE where it is allowed: not on an intercommunicator.
#[inline]
fn in_place_on(comm: &Object, buf: Ptr<c_void>) -> bool {
    in_place(buf) && !comm.is_inter()
}

/// `blocks` times `count` elements, one block after the other.
#[inline(always)]
fn uniform(buf: Ptr<c_void>, count: u64, blocks: u64, datatype: MPI_Datatype) -> Result<Operand> {
    elements(buf, count, total(count, blocks)?, &datatype::committed(datatype)?)
}

/// `all` elements in blocks of `count`.
#[inline(always)]
fn elements(buf: Ptr<c_void>, count: u64, all: u64, ty: &TypeArc) -> Result<Operand> {
    let span = ty.span(all).mpi()?;
    check(buf, span, ty)?;
    Ok(Operand::Uniform { base: region(buf, span), count, ty: ty.clone() })
}

#[inline]
fn total(count: u64, blocks: u64) -> Result<u64> {
    match count.checked_mul(blocks) {
        Some(all) => Ok(all),
        None => bail!(ERR_COUNT, "{blocks} times {count} elements do not fit into 64 bits"),
    }
}

/// The span of all blocks: each `counts[r]` elements at `displs[r]` bytes.
fn span_of_blocks<'a>(blocks: impl Iterator<Item = (u64, Result<i64>, &'a Arc<Datatype>)>) -> Result<Span> {
    let mut all = Span { bytes: 0, lo: 0, hi: 0 };
    for (count, at, ty) in blocks {
        let at = at?;
        let span = ty.span(count).mpi()?;
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

fn in_bytes(displ: i64, extent: i64) -> Result<i64> {
    match displ.checked_mul(extent) {
        Some(bytes) => Ok(bytes),
        None => bail!(ERR_ARG, "a displacement of {displ} elements is too far away"),
    }
}

/// A block of `counts[r]` elements at `displs[r]` extents for each rank.
fn vector<N: Number>(
    buf: Ptr<c_void>,
    ranks: usize,
    (list, displs): (Ptr<N>, Ptr<N>),
    datatype: MPI_Datatype,
) -> Result<Operand> {
    let ty = datatype::committed(datatype)?;
    let (counts, displs) = (counts(list, ranks)?, displacements(displs, ranks)?);
    let extent = ty.extent();
    let blocks = counts.iter().zip(&displs).map(|(count, displ)| (*count, in_bytes(*displ, extent), &*ty));
    let span = span_of_blocks(blocks)?;
    check_address(buf, span)?;
    Ok(Operand::Vector { base: region(buf, span), counts, displs, ty: ty.clone() })
}

/// A block of `counts[r]` elements of `types[r]` at `displs[r]` bytes for each rank.
fn wide<N: Number>(
    buf: Ptr<c_void>,
    ranks: usize,
    (list, displs): (Ptr<N>, Ptr<N>),
    datatypes: Ptr<MPI_Datatype>,
) -> Result<Operand> {
    if datatypes.is_null() && ranks > 0 {
        bail!(ERR_TYPE, "the list of datatypes is NULL");
    }
    let types = datatypes.list(ranks)?.into_iter().map(datatype::committed).collect::<Result<Vec<_>>>()?;
    let (counts, displs) = (counts(list, ranks)?, displacements(displs, ranks)?);
    let blocks = counts.iter().zip(&displs).zip(&types).map(|((count, at), ty)| (*count, Ok(*at), &**ty));
    let span = span_of_blocks(blocks)?;
    check_address(buf, span)?;
    Ok(Operand::Wide { base: region(buf, span), counts, displs, types })
}

/// Refuses addresses that cannot be meant, for operands in which every block has a displacement.
fn check_address(buf: Ptr<c_void>, span: Span) -> Result<()> {
    if span.bytes > 0 && in_place(buf) {
        bail!(ERR_BUFFER, "the buffer is MPI_IN_PLACE, which is not allowed here");
    }
    if span.bytes > 0 && buf.is_null() && span.lo == 0 {
        bail!(ERR_BUFFER, "the buffer is NULL, but {} bytes are to be moved", span.bytes);
    }
    Ok(())
}

/// Refuses one buffer for two purposes: no sent block may start where a received block starts.
#[inline(always)]
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
    let start = |base: &Buffer, count: u64, at: i64, ty: &Datatype| {
        (count > 0 && ty.size() > 0).then(|| base.address(at as isize).wrapping_add(ty.true_lb() as usize))
    };
    let mut all: Vec<usize> = match operand {
        Operand::Nothing | Operand::InPlace => Vec::new(),
        Operand::Uniform { base, count, ty } => start(base, *count, 0, ty).into_iter().collect(),
        // The blocks follow one another.
        Operand::Vector { base, counts, displs, ty } if displs.is_empty() => {
            start(base, counts.iter().sum(), 0, ty).into_iter().collect()
        }
        Operand::Vector { base, counts, displs, ty } => {
            let blocks = counts.iter().zip(displs);
            blocks
                .filter_map(|(count, displ)| start(base, *count, displ.wrapping_mul(ty.extent()), ty))
                .collect()
        }
        Operand::Wide { base, counts, displs, types } => {
            let blocks = counts.iter().zip(displs).zip(types);
            blocks.filter_map(|((count, displ), ty)| start(base, *count, *displ, ty)).collect()
        }
    };
    all.sort_unstable();
    all
}

fn first_common(some: &[usize], others: &[usize]) -> Option<usize> {
    some.iter().copied().find(|address| others.binary_search(address).is_ok())
}

/// The operands of a reduction of `count` elements, and its operation.
#[inline(always)]
fn operands(
    comm: &Object,
    (sendbuf, recvbuf): (Ptr<c_void>, Ptr<c_void>),
    count: u64,
    (datatype, op): (MPI_Datatype, MPI_Op),
    (gives, receives): (bool, bool),
) -> Result<(Operand, Operand, Op)> {
    let ty = datatype::committed(datatype)?;
    let op = op::lookup(op, datatype, &ty)?;
    let recv = match receives {
        true => elements(recvbuf, count, count, &ty)?,
        false => Operand::Nothing,
    };
    if !gives {
        return Ok((Operand::Nothing, recv, op));
    }
    if receives && in_place_on(comm, sendbuf) {
        return Ok((Operand::InPlace, recv, op));
    }
    let send = elements(sendbuf, count, count, &ty)?;
    check_distinct(&send, &recv)?;
    Ok((send, recv, op))
}

/// A reduction that all ranks get a result of.
#[inline(always)]
fn reduction(
    comm: &Object,
    kind: Kind,
    bufs: (Ptr<c_void>, Ptr<c_void>),
    count: u64,
    how: (MPI_Datatype, MPI_Op),
) -> Result<Call> {
    let (send, recv, op) = operands(comm, bufs, count, how, (true, true))?;
    Ok(Call::reduction(kind, send, recv, op, 0))
}

/// The datatype and operation of a reduce-scatter.
fn type_and_op(datatype: MPI_Datatype, op: MPI_Op) -> Result<(TypeArc, Op)> {
    let ty = datatype::committed(datatype)?;
    let op = op::lookup(op, datatype, &ty)?;
    Ok((ty, op))
}

/// The number of ranks that each rank has a block for, or of.
fn ranks(comm: &Object) -> usize {
    comm.blocks() as usize
}

/// The communicator of a collective, if MPI allows the collective on it.
#[inline(always)]
fn lookup_for(comm: MPI_Comm, kind: Kind) -> Result<Found> {
    let object = lookup(comm)?;
    object.allows(kind)?;
    Ok(object)
}

/// Declares a collective in its three forms. The body makes the call from the arguments; `comm` in it is the
/// communicator.
macro_rules! collective {
    (
        fn $blocking:ident<$n:ident>
        fn $nonblocking:ident<N>
        fn $persistent:ident<N>
        ($($arg:ident: $type:ty),* $(,)?) on $comm:ident as $kind:ident $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
            #[inline(never)]
            fn call<$n: Number>($comm: &Object, $($arg: $type),*) -> Result<Call> $body

            mpi! {
                fn $blocking<$n>($($arg: $type,)* $comm: MPI_Comm) on $comm {
                    let object = lookup_for($comm, Kind::$kind)?;
                    let mut arguments = Arguments::<$n>::new();
                    $(Argument::<$n>::add_to($arg, &mut arguments);)*
                    let (signature, lists, buffers) = arguments.signature(Kind::$kind);
                    // SAFETY: the runtime asks for the buffers with the bounds of the kept plan whose signature is this one.
                    let within = |bounds| unsafe { buffers.within(bounds) };
                    object.run_signed(signature, &lists, within, || call::<$n>(&object, $($arg),*))
                }

                fn $nonblocking<$n>(
                    $($arg: $type,)*
                    $comm: MPI_Comm,
                    request: Ptr<MPI_Request>,
                ) on $comm gives request {
                    let object = lookup_for($comm, Kind::$kind)?;
                    request::give(request, object.start(call::<$n>(&object, $($arg),*)?)?, $comm)
                }

                fn $persistent<$n>(
                    $($arg: $type,)*
                    $comm: MPI_Comm,
                    info: MPI_Info,
                    request: Ptr<MPI_Request>,
                ) on $comm gives request {
                    let object = lookup_for($comm, Kind::$kind)?;
                    info::optional(info)?;
                    request::give(request, object.persist(call::<$n>(&object, $($arg),*)?)?, $comm)
                }
            }
        };
        collective! { $($rest)* }
    };
    () => {};
}

mpi! {
    fn MPI_Barrier(comm: MPI_Comm) on comm {
        let object = lookup(comm)?;
        object.run(object.barrier()?)
    }

    fn MPI_Ibarrier(comm: MPI_Comm, request: Ptr<MPI_Request>) on comm gives request {
        let object = lookup(comm)?;
        request::give(request, object.start(object.barrier()?)?, comm)
    }

    fn MPI_Barrier_init(comm: MPI_Comm, info: MPI_Info, request: Ptr<MPI_Request>) on comm gives request {
        let object = lookup(comm)?;
        info::optional(info)?;
        request::give(request, object.persist(object.barrier()?)?, comm)
    }
}

collective! {
    fn MPI_Bcast<N>
    fn MPI_Ibcast<N>
    fn MPI_Bcast_init<N>
    (buffer: Ptr<c_void>, count: N, datatype: MPI_Datatype, root: c_int) on comm as Bcast {
        let root = comm.root(root)?;
        if let Some(call) = root.bystander(Kind::Bcast) {
            return Ok(call);
        }
        Ok(Call::bcast(uniform(buffer, self::count(count)?, 1, datatype)?, root.rank))
    }

    fn MPI_Gather<N>
    fn MPI_Igather<N>
    fn MPI_Gather_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcount: N, recvtype: MPI_Datatype,
        root: c_int,
    ) on comm as Gather {
        let root = comm.root(root)?;
        let recv = match root.here {
            true => uniform(recvbuf, count(recvcount)?, ranks(comm) as u64, recvtype)?,
            false => Operand::Nothing,
        };
        let send = match root {
            Root { leaf: false, .. } => Operand::Nothing,
            Root { here: true, .. } if in_place(sendbuf) => Operand::InPlace,
            _ => uniform(sendbuf, count(sendcount)?, 1, sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Gather, send, recv, root.rank))
    }

    fn MPI_Gatherv<N>
    fn MPI_Igatherv<N>
    fn MPI_Gatherv_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcounts: Ptr<N>, displs: Ptr<N>, recvtype: MPI_Datatype,
        root: c_int,
    ) on comm as Gatherv {
        let root = comm.root(root)?;
        let recv = match root.here {
            true => vector(recvbuf, ranks(comm), (recvcounts, displs), recvtype)?,
            false => Operand::Nothing,
        };
        let send = match root {
            Root { leaf: false, .. } => Operand::Nothing,
            Root { here: true, .. } if in_place(sendbuf) => Operand::InPlace,
            _ => uniform(sendbuf, count(sendcount)?, 1, sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Gatherv, send, recv, root.rank))
    }

    fn MPI_Scatter<N>
    fn MPI_Iscatter<N>
    fn MPI_Scatter_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcount: N, recvtype: MPI_Datatype,
        root: c_int,
    ) on comm as Scatter {
        let root = comm.root(root)?;
        let send = match root.here {
            true => uniform(sendbuf, count(sendcount)?, ranks(comm) as u64, sendtype)?,
            false => Operand::Nothing,
        };
        let recv = match root {
            Root { leaf: false, .. } => Operand::Nothing,
            Root { here: true, .. } if in_place(recvbuf) => Operand::InPlace,
            _ => uniform(recvbuf, count(recvcount)?, 1, recvtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Scatter, send, recv, root.rank))
    }

    fn MPI_Scatterv<N>
    fn MPI_Iscatterv<N>
    fn MPI_Scatterv_init<N>
    (
        sendbuf: Ptr<c_void>, sendcounts: Ptr<N>, displs: Ptr<N>, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcount: N, recvtype: MPI_Datatype,
        root: c_int,
    ) on comm as Scatterv {
        let root = comm.root(root)?;
        let send = match root.here {
            true => vector(sendbuf, ranks(comm), (sendcounts, displs), sendtype)?,
            false => Operand::Nothing,
        };
        let recv = match root {
            Root { leaf: false, .. } => Operand::Nothing,
            Root { here: true, .. } if in_place(recvbuf) => Operand::InPlace,
            _ => uniform(recvbuf, count(recvcount)?, 1, recvtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Scatterv, send, recv, root.rank))
    }

    fn MPI_Allgather<N>
    fn MPI_Iallgather<N>
    fn MPI_Allgather_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcount: N, recvtype: MPI_Datatype,
    ) on comm as Allgather {
        let recv = uniform(recvbuf, count(recvcount)?, ranks(comm) as u64, recvtype)?;
        let send = match in_place_on(comm, sendbuf) {
            true => Operand::InPlace,
            false => uniform(sendbuf, count(sendcount)?, 1, sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Allgather, send, recv, 0))
    }

    fn MPI_Allgatherv<N>
    fn MPI_Iallgatherv<N>
    fn MPI_Allgatherv_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcounts: Ptr<N>, displs: Ptr<N>, recvtype: MPI_Datatype,
    ) on comm as Allgatherv {
        let recv = vector(recvbuf, ranks(comm), (recvcounts, displs), recvtype)?;
        let send = match in_place_on(comm, sendbuf) {
            true => Operand::InPlace,
            false => uniform(sendbuf, count(sendcount)?, 1, sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Allgatherv, send, recv, 0))
    }

    fn MPI_Alltoall<N>
    fn MPI_Ialltoall<N>
    fn MPI_Alltoall_init<N>
    (
        sendbuf: Ptr<c_void>, sendcount: N, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcount: N, recvtype: MPI_Datatype,
    ) on comm as Alltoall {
        let blocks = ranks(comm) as u64;
        let recv = uniform(recvbuf, count(recvcount)?, blocks, recvtype)?;
        let send = match in_place_on(comm, sendbuf) {
            true => Operand::InPlace,
            false => uniform(sendbuf, count(sendcount)?, blocks, sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Alltoall, send, recv, 0))
    }

    fn MPI_Alltoallv<N>
    fn MPI_Ialltoallv<N>
    fn MPI_Alltoallv_init<N>
    (
        sendbuf: Ptr<c_void>, sendcounts: Ptr<N>, sdispls: Ptr<N>, sendtype: MPI_Datatype,
        recvbuf: Ptr<c_void>, recvcounts: Ptr<N>, rdispls: Ptr<N>, recvtype: MPI_Datatype,
    ) on comm as Alltoallv {
        let ranks = ranks(comm);
        let recv = vector(recvbuf, ranks, (recvcounts, rdispls), recvtype)?;
        let send = match in_place_on(comm, sendbuf) {
            true => Operand::InPlace,
            false => vector(sendbuf, ranks, (sendcounts, sdispls), sendtype)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Alltoallv, send, recv, 0))
    }

    fn MPI_Alltoallw<N>
    fn MPI_Ialltoallw<N>
    fn MPI_Alltoallw_init<N>
    (
        sendbuf: Ptr<c_void>, sendcounts: Ptr<N>, sdispls: Ptr<N>, sendtypes: Ptr<MPI_Datatype>,
        recvbuf: Ptr<c_void>, recvcounts: Ptr<N>, rdispls: Ptr<N>, recvtypes: Ptr<MPI_Datatype>,
    ) on comm as Alltoallw {
        let ranks = ranks(comm);
        let recv = wide(recvbuf, ranks, (recvcounts, rdispls), recvtypes)?;
        let send = match in_place_on(comm, sendbuf) {
            true => Operand::InPlace,
            false => wide(sendbuf, ranks, (sendcounts, sdispls), sendtypes)?,
        };
        check_distinct(&send, &recv)?;
        Ok(Call::data_movement(Kind::Alltoallw, send, recv, 0))
    }

    fn MPI_Reduce<N>
    fn MPI_Ireduce<N>
    fn MPI_Reduce_init<N>
    (
        sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, count: N, datatype: MPI_Datatype, op: MPI_Op,
        root: c_int,
    ) on comm as Reduce {
        let root = comm.root(root)?;
        if let Some(call) = root.bystander(Kind::Reduce) {
            return Ok(call);
        }
        let (bufs, how) = ((sendbuf, recvbuf), (datatype, op));
        let (send, recv, op) = operands(comm, bufs, self::count(count)?, how, (root.leaf, root.here))?;
        Ok(Call::reduction(Kind::Reduce, send, recv, op, root.rank))
    }

    fn MPI_Allreduce<N>
    fn MPI_Iallreduce<N>
    fn MPI_Allreduce_init<N>
    (sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, count: N, datatype: MPI_Datatype, op: MPI_Op) on comm as Allreduce {
        reduction(comm, Kind::Allreduce, (sendbuf, recvbuf), self::count(count)?, (datatype, op))
    }

    fn MPI_Scan<N>
    fn MPI_Iscan<N>
    fn MPI_Scan_init<N>
    (sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, count: N, datatype: MPI_Datatype, op: MPI_Op) on comm as Scan {
        reduction(comm, Kind::Scan, (sendbuf, recvbuf), self::count(count)?, (datatype, op))
    }

    fn MPI_Exscan<N>
    fn MPI_Iexscan<N>
    fn MPI_Exscan_init<N>
    (sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, count: N, datatype: MPI_Datatype, op: MPI_Op) on comm as Exscan {
        reduction(comm, Kind::Exscan, (sendbuf, recvbuf), self::count(count)?, (datatype, op))
    }

    fn MPI_Reduce_scatter<N>
    fn MPI_Ireduce_scatter<N>
    fn MPI_Reduce_scatter_init<N>
    (sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, recvcounts: Ptr<N>, datatype: MPI_Datatype, op: MPI_Op) on comm as ReduceScatter {
        let (ty, op) = type_and_op(datatype, op)?;
        let counts = counts(recvcounts, comm.size() as usize)?;
        let all = counts.iter().try_fold(0u64, |all, count| all.checked_add(*count));
        let Some(all) = all else { bail!(ERR_COUNT, "the counts together do not fit into 64 bits") };
        let mine = counts[comm.rank() as usize];
        let (send, recv_elements) = match in_place_on(comm, sendbuf) {
            true => (Operand::InPlace, all),
            false => (uniform(sendbuf, all, 1, datatype)?, mine),
        };
        let span = ty.span(recv_elements).mpi()?;
        check(recvbuf, span, &ty)?;
        let recv = Operand::Vector { base: region(recvbuf, span), counts, displs: Vec::new(), ty: ty.clone() };
        check_distinct(&send, &recv)?;
        Ok(Call::reduction(Kind::ReduceScatter, send, recv, op, 0))
    }

    fn MPI_Reduce_scatter_block<N>
    fn MPI_Ireduce_scatter_block<N>
    fn MPI_Reduce_scatter_block_init<N>
    (sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, recvcount: N, datatype: MPI_Datatype, op: MPI_Op) on comm as ReduceScatterBlock {
        let (ty, op) = type_and_op(datatype, op)?;
        let mine = count(recvcount)?;
        let all = total(mine, comm.size().into())?;
        let (send, recv_elements) = match in_place_on(comm, sendbuf) {
            true => (Operand::InPlace, all),
            false => (uniform(sendbuf, all, 1, datatype)?, mine),
        };
        let span = ty.span(recv_elements).mpi()?;
        check(recvbuf, span, &ty)?;
        let recv = Operand::Uniform { base: region(recvbuf, span), count: mine, ty: ty.clone() };
        check_distinct(&send, &recv)?;
        Ok(Call::reduction(Kind::ReduceScatterBlock, send, recv, op, 0))
    }
}
