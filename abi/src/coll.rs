//! Collective communication (MPI 5.0, 6): blocking, nonblocking and persistent forms from one declaration. The rules of the
//! arguments are the runtime's; here handles, numbers and lists are translated.

use crate::boundary::{mpi, typed};
use crate::buffers::{count, counts, displacements};
use crate::comm::{Object, lookup};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::signature::{Argument as Signed, Arguments};
use crate::types::committed;
use crate::{info, op, request};
use banyan_datatype::{Span, TypeArc};
use banyan_memory::Buffer;
use banyan_runtime::{Argument, Call, Kind, Op, Operand, Operation, Result, Root, UserMemory, bail};

/// A buffer, and what the call says of its elements.
struct Elements<L>(Ptr<c_void>, L);

impl<L> UserMemory for Elements<L> {
    fn is_in_place(&self) -> bool {
        self.0.is_in_place()
    }

    fn region(&self, span: Span) -> Result<Buffer> {
        self.0.region(span)
    }
}

/// A count and a datatype.
impl<N: Number> Argument for Elements<(N, MPI_Datatype)> {
    fn operand(&self, _: usize) -> Result<Operand> {
        let (number, datatype) = self.1;
        Ok(Operand::uniform(count(number)?, committed(datatype)?))
    }
}

/// Counts, displacements and a datatype.
impl<N: Number> Argument for Elements<(Ptr<N>, Ptr<N>, MPI_Datatype)> {
    fn operand(&self, blocks: usize) -> Result<Operand> {
        let (list, displs, datatype) = self.1;
        let ty = committed(datatype)?;
        let (counts, displs) = (counts(list, blocks)?, displacements(displs, blocks)?);
        Ok(Operand::Vector { base: Buffer::empty(), counts, displs, ty })
    }
}

/// Counts, displacements and datatypes.
impl<N: Number> Argument for Elements<(Ptr<N>, Ptr<N>, Ptr<MPI_Datatype>)> {
    fn operand(&self, blocks: usize) -> Result<Operand> {
        let (list, displs, datatypes) = self.1;
        if datatypes.is_null() && blocks > 0 {
            bail!(ERR_TYPE, "the list of datatypes is NULL");
        }
        let types = datatypes.list(blocks)?.into_iter().map(committed).collect::<Result<_>>()?;
        let (counts, displs) = (counts(list, blocks)?, displacements(displs, blocks)?);
        Ok(Operand::Wide { base: Buffer::empty(), counts, displs, types })
    }
}

/// The count, datatype and operation of a reduction.
pub(crate) fn reduced<N: Number>(
    number: N,
    datatype: MPI_Datatype,
    op: MPI_Op,
) -> Result<(u64, TypeArc, Op)> {
    Ok((count(number)?, committed(datatype)?, op::lookup(op, datatype)?))
}

fn root_of(root: c_int) -> Root {
    match root {
        MPI_ROOT => Root::Here,
        MPI_PROC_NULL => Root::ProcNull,
        rank => Root::Rank(rank),
    }
}

/// Gives the user the request of a collective. It is no part of each of the functions that start one.
#[inline(never)]
fn give(request: Ptr<MPI_Request>, operation: Operation, comm: MPI_Comm) -> Result<()> {
    request::give(request, operation, comm)
}

/// The signature of a call with these arguments, its lists, and its buffers within bounds.
macro_rules! signature {
    ($n:ident, $kind:ident, $($arg:ident),*) => {{
        #[allow(unused_mut, reason = "a barrier has no arguments")]
        let mut arguments = Arguments::<$n>::new();
        $(Signed::<$n>::add_to($arg, &mut arguments);)*
        let (signature, lists, buffers) = arguments.signature(Kind::$kind);
        // SAFETY: the runtime asks for the buffers with the bounds of the kept plan whose signature is this one.
        (signature, lists, move |bounds| unsafe { buffers.within(bounds) })
    }};
}

/// Declares a collective in its three forms. The body makes the call from the arguments; `comm` in it is the
/// communicator.
macro_rules! collective {
    (
        fn $blocking:ident<$n:ident> fn $nonblocking:ident<N> fn $persistent:ident<N>
        ($($arg:ident),*) on $comm:ident as $kind:ident $body:block
        $($rest:tt)*
    ) => {
        const _: () = {
            typed! { $blocking [$n] collective! @call $n $comm ($($arg,)* _handle) $body }

            mpi! {
                fn $blocking<$n>($($arg,)* $comm) on $comm {
                    let object = lookup($comm)?;
                    let (signature, lists, buffers) = signature!($n, $kind, $($arg),*);
                    object.run_signed(signature, &lists, buffers, || call::<$n>(&object, $($arg,)* $comm))
                }

                fn $nonblocking<$n>($($arg,)* $comm, request) on $comm gives request {
                    let object = lookup($comm)?;
                    let (signature, lists, buffers) = signature!($n, $kind, $($arg),*);
                    let call = || call::<$n>(&object, $($arg,)* $comm);
                    give(request, object.start_signed(signature, &lists, buffers, call)?, $comm)
                }

                fn $persistent<$n>($($arg,)* $comm, info, request) on $comm gives request {
                    let object = lookup($comm)?;
                    info::optional(info)?;
                    give(request, object.persist(call::<$n>(&object, $($arg,)* $comm)?)?, $comm)
                }
            }
        };
        collective! { $($rest)* }
    };
    (@call $n:ident $comm:ident ($($arg:ident),*) $body:block [$($type:ty),*] $result:tt) => {
        #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
        #[inline(never)]
        fn call<$n: Number>($comm: &Object, $($arg: $type),*) -> Result<Call> $body
    };
    () => {};
}

mpi! {
    fn MPI_Barrier(comm) on comm {
        let object = lookup(comm)?;
        let (signature, lists, buffers) = signature!(c_int, Barrier,);
        object.run_signed(signature, &lists, buffers, || Ok(object.barrier()))
    }

    fn MPI_Ibarrier(comm, request) on comm gives request {
        let object = lookup(comm)?;
        let (signature, lists, buffers) = signature!(c_int, Barrier,);
        give(request, object.start_signed(signature, &lists, buffers, || Ok(object.barrier()))?, comm)
    }

    fn MPI_Barrier_init(comm, info, request) on comm gives request {
        let object = lookup(comm)?;
        info::optional(info)?;
        give(request, object.persist(object.barrier())?, comm)
    }
}

collective! {
    fn MPI_Bcast<N> fn MPI_Ibcast<N> fn MPI_Bcast_init<N>
    (buffer, count, datatype, root) on comm as Bcast {
        comm.bcast(root_of(root), &Elements(buffer, (count, datatype)))
    }

    fn MPI_Gather<N> fn MPI_Igather<N> fn MPI_Gather_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root) on comm as Gather {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcount, recvtype)));
        comm.data_movement(Kind::Gather, Some(root_of(root)), &send, &recv)
    }

    fn MPI_Gatherv<N> fn MPI_Igatherv<N> fn MPI_Gatherv_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root) on comm as Gatherv {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcounts, displs, recvtype)));
        comm.data_movement(Kind::Gatherv, Some(root_of(root)), &send, &recv)
    }

    fn MPI_Scatter<N> fn MPI_Iscatter<N> fn MPI_Scatter_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root) on comm as Scatter {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcount, recvtype)));
        comm.data_movement(Kind::Scatter, Some(root_of(root)), &send, &recv)
    }

    fn MPI_Scatterv<N> fn MPI_Iscatterv<N> fn MPI_Scatterv_init<N>
    (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root) on comm as Scatterv {
        let (send, recv) = (Elements(sendbuf, (sendcounts, displs, sendtype)), Elements(recvbuf, (recvcount, recvtype)));
        comm.data_movement(Kind::Scatterv, Some(root_of(root)), &send, &recv)
    }

    fn MPI_Allgather<N> fn MPI_Iallgather<N> fn MPI_Allgather_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype) on comm as Allgather {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcount, recvtype)));
        comm.data_movement(Kind::Allgather, None, &send, &recv)
    }

    fn MPI_Allgatherv<N> fn MPI_Iallgatherv<N> fn MPI_Allgatherv_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype) on comm as Allgatherv {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcounts, displs, recvtype)));
        comm.data_movement(Kind::Allgatherv, None, &send, &recv)
    }

    fn MPI_Alltoall<N> fn MPI_Ialltoall<N> fn MPI_Alltoall_init<N>
    (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype) on comm as Alltoall {
        let (send, recv) = (Elements(sendbuf, (sendcount, sendtype)), Elements(recvbuf, (recvcount, recvtype)));
        comm.data_movement(Kind::Alltoall, None, &send, &recv)
    }

    fn MPI_Alltoallv<N> fn MPI_Ialltoallv<N> fn MPI_Alltoallv_init<N>
    (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype) on comm as Alltoallv {
        let (send, recv) = (Elements(sendbuf, (sendcounts, sdispls, sendtype)), Elements(recvbuf, (recvcounts, rdispls, recvtype)));
        comm.data_movement(Kind::Alltoallv, None, &send, &recv)
    }

    fn MPI_Alltoallw<N> fn MPI_Ialltoallw<N> fn MPI_Alltoallw_init<N>
    (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes) on comm as Alltoallw {
        let (send, recv) = (Elements(sendbuf, (sendcounts, sdispls, sendtypes)), Elements(recvbuf, (recvcounts, rdispls, recvtypes)));
        comm.data_movement(Kind::Alltoallw, None, &send, &recv)
    }

    fn MPI_Reduce<N> fn MPI_Ireduce<N> fn MPI_Reduce_init<N>
    (sendbuf, recvbuf, count, datatype, op, root) on comm as Reduce {
        comm.reduce(root_of(root), (&sendbuf, &recvbuf), || reduced(count, datatype, op))
    }

    fn MPI_Allreduce<N> fn MPI_Iallreduce<N> fn MPI_Allreduce_init<N>
    (sendbuf, recvbuf, count, datatype, op) on comm as Allreduce {
        comm.allreduce(Kind::Allreduce, (&sendbuf, &recvbuf), reduced(count, datatype, op)?)
    }

    fn MPI_Scan<N> fn MPI_Iscan<N> fn MPI_Scan_init<N>
    (sendbuf, recvbuf, count, datatype, op) on comm as Scan {
        comm.allreduce(Kind::Scan, (&sendbuf, &recvbuf), reduced(count, datatype, op)?)
    }

    fn MPI_Exscan<N> fn MPI_Iexscan<N> fn MPI_Exscan_init<N>
    (sendbuf, recvbuf, count, datatype, op) on comm as Exscan {
        comm.allreduce(Kind::Exscan, (&sendbuf, &recvbuf), reduced(count, datatype, op)?)
    }

    fn MPI_Reduce_scatter<N> fn MPI_Ireduce_scatter<N> fn MPI_Reduce_scatter_init<N>
    (sendbuf, recvbuf, recvcounts, datatype, op) on comm as ReduceScatter {
        let (ty, op) = (committed(datatype)?, op::lookup(op, datatype)?);
        let counts = counts(recvcounts, comm.size() as usize)?;
        let result = Operand::Vector { base: Buffer::empty(), counts, displs: Vec::new(), ty };
        comm.reduce_scatter((&sendbuf, &recvbuf), (result, op))
    }

    fn MPI_Reduce_scatter_block<N> fn MPI_Ireduce_scatter_block<N> fn MPI_Reduce_scatter_block_init<N>
    (sendbuf, recvbuf, recvcount, datatype, op) on comm as ReduceScatterBlock {
        let (count, ty, op) = reduced(recvcount, datatype, op)?;
        comm.reduce_scatter((&sendbuf, &recvbuf), (Operand::uniform(count, ty), op))
    }
}
