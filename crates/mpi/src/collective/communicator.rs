//! Collectives without a root.

use std::sync::Arc;

use banyan_runtime::{Call, Comm, Kind, Op, Operand, bail};

use super::Operation;
use super::signed::Signed;
use crate::datatype::{Buffer, BufferMut, Memory, PartitionedBuffer, PartitionedBufferMut};
use crate::error::{Result, expect};
use crate::request::{PersistentRequest, Request, Scope, StaticScope};
use crate::topology::{Communicator, Rank};

/// The communicator; there is no root.
fn place<C: Communicator + ?Sized>(comm: &C) -> (&Arc<Comm>, Rank) {
    (comm.as_handle().comm(), 0)
}

/// The elements of each rank in a reduction whose result is scattered.
fn each(comm: &Comm, send: &Memory, recv: &Memory) -> Result<Operand> {
    let (all, each) = (send.elements(), recv.elements());
    if each.checked_mul(comm.size().into()) != Some(all) {
        bail!(
            ERR_COUNT,
            "{all} elements are reduced and scattered into {each} for each of {} ranks",
            comm.size()
        );
    }
    send.same_type(recv)?;
    Ok(Operand::uniform(each, send.ty().clone()))
}

/// A reduction whose result is as long as what each process gives.
fn combined(comm: &Comm, kind: Kind, (send, recv): (&Memory, &Memory), op: Op) -> Result<Call> {
    let (count, ty) = send.alike(recv)?;
    comm.allreduce(kind, (send, recv), (count, ty, op))
}

/// Collectives without a root: every process does the same.
pub trait CommunicatorCollectives: Communicator {
    /// Waits until all processes have called this.
    ///
    /// # Errors
    /// A process is gone, or calls something else.
    fn try_barrier(&self) -> Result<()> {
        let (comm, _) = place(self);
        comm.run(comm.barrier())
    }

    /// Waits until all processes have called this.
    #[track_caller]
    fn barrier(&self) {
        expect(self.try_barrier());
    }

    /// Starts a barrier: the request is over when all processes have called this.
    #[track_caller]
    fn immediate_barrier(&self) -> Request<'static, ()> {
        let (comm, _) = place(self);
        let operation = expect(comm.start(comm.barrier()));
        // SAFETY: there are no buffers.
        unsafe { Request::new(operation.held_by(comm.runtime()), &(), StaticScope) }
    }

    /// A barrier that is started again and again. All processes make their persistent collectives in one order.
    #[track_caller]
    fn barrier_init(&self) -> PersistentRequest<'static, ()> {
        let (comm, _) = place(self);
        let operation = expect(comm.persist(comm.barrier()));
        // SAFETY: there are no buffers.
        unsafe { PersistentRequest::new(comm, operation, std::ptr::NonNull::dangling().as_ptr()) }
    }

    collectives! { place:
        "Gathers what each process gives, at all of them in the order of their ranks."
        Allgather: all_gather_into try_all_gather_into immediate_all_gather_into all_gather_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf.split(comm.blocks()));

        "Gathers what each process gives, of any length, at all of them."
        Allgatherv: all_gather_varcount_into try_all_gather_varcount_into immediate_all_gather_varcount_into all_gather_varcount_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as PartitionedBufferMut by blocks_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf);

        "Sends a block to each process, and receives one from each."
        Alltoall: all_to_all_into try_all_to_all_into immediate_all_to_all_into all_to_all_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| {
            let ranks = comm.blocks();
            comm.data_movement(kind, None, &sendbuf.split(ranks), &recvbuf.split(ranks))
        };

        "Sends a block of any length to each process, and receives one from each."
        Alltoallv: all_to_all_varcount_into try_all_to_all_varcount_into immediate_all_to_all_varcount_into all_to_all_varcount_init
        ([sendbuf: &S as PartitionedBuffer by blocks] recvbuf: &(mut) R as PartitionedBufferMut by blocks_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf);

        "Combines what each process gives; all get the result."
        Allreduce: all_reduce_into try_all_reduce_into immediate_all_reduce_into all_reduce_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);

        "Combines what each process gives, block by block; each gets the result of its block."
        ReduceScatterBlock: reduce_scatter_block_into try_reduce_scatter_block_into immediate_reduce_scatter_block_into reduce_scatter_block_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| each(comm, &sendbuf, &recvbuf).and_then(|result| {
            comm.reduce_scatter((&sendbuf, &recvbuf), (result, op))
        });

        "Combines what the processes up to and with this one give."
        Scan: scan_into try_scan_into immediate_scan_into scan_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);

        "Combines what the processes before this one give. At the first one nothing is written."
        Exscan: exclusive_scan_into try_exclusive_scan_into immediate_exclusive_scan_into exclusive_scan_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);
    }
}

impl<C: Communicator + ?Sized> CommunicatorCollectives for C {}
