//! Collectives without a root.

use std::sync::Arc;

use banyan_runtime::{Call, Comm, Kind, Op, Operand, bail};

use super::Operation;
use super::signed::Signed;
use crate::datatype::{Buffer, BufferMut, Memory, PartitionedBuffer, PartitionedBufferMut};
use crate::error::{Result, expect, tried};
use crate::request::{PersistentRequest, Request, Scope, StaticScope};
use crate::topology::{Communicator, Rank};

/// The communicator; there is no root.
fn place<C: Communicator + ?Sized>(comm: &C) -> (&Arc<Comm>, Rank) {
    (comm.as_handle().comm(), 0)
}

fn barrier<C: Communicator + ?Sized>(comm: &C) -> Result<()> {
    let (comm, _) = place(comm);
    comm.run(comm.barrier())
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
///
/// ```
/// use mpi::traits::*;
///
/// fn all_agree(comm: &impl CommunicatorCollectives, opinion: bool) -> bool {
///     let mut all = false;
///     comm.all_reduce_into(&opinion, &mut all, mpi::collective::SystemOperation::logical_and());
///     all
/// }
///
/// let agreed = mpi::environment::Universe::simulated(3, |universe| all_agree(&universe.world(), universe.world().rank() != 1));
/// assert_eq!(agreed, [false; 3]);
/// ```
pub trait CommunicatorCollectives: Communicator {
    /// Waits until all processes have called this.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # mpi::environment::Universe::simulated(2, |universe| {
    /// # let world = universe.world();
    /// world.try_barrier().unwrap();
    /// # });
    /// ```
    /// # Errors
    /// A process is gone, or calls something else.
    fn try_barrier(&self) -> Result<()> {
        tried(|| barrier(self))
    }

    /// Waits until all processes have called this.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # mpi::environment::Universe::simulated(2, |universe| {
    /// # let world = universe.world();
    /// world.barrier();
    /// # });
    /// ```
    #[track_caller]
    fn barrier(&self) {
        expect(barrier(self));
    }

    /// Starts a barrier: the request is over when all processes have called this.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # mpi::environment::Universe::simulated(2, |universe| {
    /// # let world = universe.world();
    /// let all_are_here = world.immediate_barrier();
    /// // Something else is done meanwhile.
    /// all_are_here.wait();
    /// # });
    /// ```
    #[track_caller]
    fn immediate_barrier(&self) -> Request<'static, ()> {
        let (comm, _) = place(self);
        let operation = expect(comm.start(comm.barrier()));
        // SAFETY: there are no buffers.
        unsafe { Request::new(operation.held_by(comm.runtime()), &(), StaticScope) }
    }

    /// A barrier that is started again and again. All processes make their persistent collectives in one order.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # mpi::environment::Universe::simulated(2, |universe| {
    /// # let world = universe.world();
    /// let mut barrier = world.barrier_init();
    /// for _ in 0..3 {
    ///     mpi::request::scope(|scope| barrier.start(scope).wait());
    /// }
    /// # });
    /// ```
    #[track_caller]
    fn barrier_init(&self) -> PersistentRequest<'static, ()> {
        let (comm, _) = place(self);
        let operation = expect(comm.persist(comm.barrier()));
        // SAFETY: there are no buffers.
        unsafe { PersistentRequest::new(comm, operation, std::ptr::NonNull::dangling().as_ptr()) }
    }

    collectives! { place:
        "Gathers what each process gives, at all of them in the order of their ranks."
        example "let (mut rank, mut ranks) = (world.rank(), [0; 2]);"
        ["world" "all_gather" "" ("rank") ", &mut ranks[..]"] "assert_eq!(ranks, [0, 1]);"
        Allgather: all_gather_into try_all_gather_into immediate_all_gather_into all_gather_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf.split(comm.blocks()));

        "Gathers what each process gives, of any length, at all of them."
        example "// Rank 0 gives one number, rank 1 gives two.\n\
         use mpi::datatype::PartitionMut;\n\
         let (rank, mut all) = (world.rank(), [9; 3]);\n\
         let mut given = vec![rank; 1 + rank as usize];\n\
         let mut blocks = PartitionMut::new(&mut all[..], [1, 2], [0, 1]);"
        ["world" "all_gather_varcount" "" ("given") ", &mut blocks"] "assert_eq!(all, [0, 1, 1]);"
        Allgatherv: all_gather_varcount_into try_all_gather_varcount_into immediate_all_gather_varcount_into all_gather_varcount_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as PartitionedBufferMut by blocks_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf);

        "Sends a block to each process, and receives one from each."
        example "let (mut given, mut got) = ([10 * world.rank(), 10 * world.rank() + 1], [0; 2]);"
        ["world" "all_to_all" "" ("given[..]") ", &mut got[..]"] "assert_eq!(got, [world.rank(), 10 + world.rank()]);"
        Alltoall: all_to_all_into try_all_to_all_into immediate_all_to_all_into all_to_all_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| {
            let ranks = comm.blocks();
            comm.data_movement(kind, None, &sendbuf.split(ranks), &recvbuf.split(ranks))
        };

        "Sends a block of any length to each process, and receives one from each."
        example "// Rank 0 gets one number from each, rank 1 gets two.\n\
         use mpi::datatype::{Partition, PartitionMut};\n\
         let (rank, given, mut got) = (world.rank(), [world.rank(); 3], [9; 4]);\n\
         let mut out = Partition::new(&given[..], [1, 2], [0, 1]);\n\
         let mut into = PartitionMut::new(&mut got[..], [1 + rank; 2], [0, 1 + rank]);"
        ["world" "all_to_all_varcount" "" ("out") ", &mut into"] "assert_eq!(got, [[0, 1, 9, 9], [0, 0, 1, 1]][rank as usize]);"
        Alltoallv: all_to_all_varcount_into try_all_to_all_varcount_into immediate_all_to_all_varcount_into all_to_all_varcount_init
        ([sendbuf: &S as PartitionedBuffer by blocks] recvbuf: &(mut) R as PartitionedBufferMut by blocks_mut)
        = |comm, root, kind| comm.data_movement(kind, None, &sendbuf, &recvbuf);

        "Combines what each process gives; all get the result."
        example "use mpi::collective::SystemOperation;\n\
         let (mut given, mut sum) = (world.rank() + 1, 0);"
        ["world" "all_reduce" "" ("given") ", &mut sum, SystemOperation::sum()"] "assert_eq!(sum, 3);"
        Allreduce: all_reduce_into try_all_reduce_into immediate_all_reduce_into all_reduce_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);

        "Combines what each process gives, block by block; each gets the result of its block."
        example "use mpi::collective::SystemOperation;\n\
         let (mut given, mut sum) = ([1, 20], 0);"
        ["world" "reduce_scatter_block" "" ("given[..]") ", &mut sum, SystemOperation::sum()"]
        "assert_eq!(sum, [2, 40][world.rank() as usize]);"
        ReduceScatterBlock: reduce_scatter_block_into try_reduce_scatter_block_into immediate_reduce_scatter_block_into reduce_scatter_block_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| each(comm, &sendbuf, &recvbuf).and_then(|result| {
            comm.reduce_scatter((&sendbuf, &recvbuf), (result, op))
        });

        "Combines what the processes up to and with this one give."
        example "use mpi::collective::SystemOperation;\n\
         let (mut given, mut sum) = (world.rank() + 1, 0);"
        ["world" "scan" "" ("given") ", &mut sum, SystemOperation::sum()"] "assert_eq!(sum, [1, 3][world.rank() as usize]);"
        Scan: scan_into try_scan_into immediate_scan_into scan_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);

        "Combines what the processes before this one give. At the first one nothing is written."
        example "use mpi::collective::SystemOperation;\n\
         let (mut given, mut sum) = (world.rank() + 1, 0);"
        ["world" "exclusive_scan" "" ("given") ", &mut sum, SystemOperation::sum()"]
        "assert_eq!(sum, [0, 1][world.rank() as usize]);"
        Exscan: exclusive_scan_into try_exclusive_scan_into immediate_exclusive_scan_into exclusive_scan_init
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| combined(comm, kind, (&sendbuf, &recvbuf), op);
    }
}

impl<C: Communicator + ?Sized> CommunicatorCollectives for C {}
