//! Collectives with a root. Where it does something else than the other processes it calls another method.

use std::sync::Arc;

use banyan_runtime::{self as rt, Argument, Call, Comm, Kind, bail};

use super::Operation;
use super::signed::Signed;
use crate::datatype::{Buffer, BufferMut, Memory, PartitionedBuffer, PartitionedBufferMut};
use crate::error::{Result, expect, tried};
use crate::request::{PersistentRequest, Request, Scope};
use crate::topology::handle::AsHandle;
use crate::topology::{AsCommunicator, Process, Rank};

fn place<R: Root + ?Sized>(root: &R) -> (&Arc<Comm>, Rank) {
    (root.as_communicator().as_handle().comm(), root.root_rank())
}

/// The root, for a call of the root itself, or one of the other processes.
fn only(comm: &Comm, root: Rank, by_root: bool) -> Result<rt::Root> {
    if (i64::from(comm.rank()) == i64::from(root)) != by_root {
        let (who, other) =
            if by_root { ("only the root", "without _root") } else { ("all but the root", "with _root") };
        bail!(
            ERR_ROOT,
            "the root is {root} and this is rank {}, but {who} calls this: call the method {other}",
            comm.rank()
        );
    }
    Ok(rt::Root::Rank(root))
}

/// Data movement, if the right one of the two methods is called.
fn moved(
    comm: &Comm,
    kind: Kind,
    root: Result<rt::Root>,
    send: &dyn Argument,
    recv: &dyn Argument,
) -> Result<Call> {
    comm.data_movement(kind, Some(root?), send, recv)
}

/// A process as the root of collectives.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let root = world.process_at_rank(0);
/// let mut text = if root.is_self() { *b"hello" } else { [0; 5] };
/// root.broadcast_into(&mut text);
/// assert_eq!(&text, b"hello");
/// ```
pub trait Root: AsCommunicator {
    /// The rank of the root.
    ///
    /// ```
    /// # use mpi::traits::*;
    /// # let universe = mpi::initialize().unwrap();
    /// assert_eq!(universe.world().process_at_rank(0).root_rank(), 0);
    /// ```
    fn root_rank(&self) -> Rank;

    collectives! { place:
        "Gives all processes what the root has in the buffer."
        example "let root = world.process_at_rank(0);\n\
         let mut number = if root.is_self() { 7 } else { 0 };"
        ["root" "broadcast" "" () "&mut number"] "assert_eq!(number, 7);"
        Bcast: broadcast_into try_broadcast_into immediate_broadcast_into broadcast_init
        (buffer: &(mut) Buf as BufferMut by of_mut)
        = |comm, root, kind| comm.bcast(rt::Root::Rank(root), &buffer);

        "Gives the root what this process has."
        example "let root = world.process_at_rank(0);\n\
         let (mut rank, mut ranks) = (world.rank(), [9; 2]);"
        ["root" "gather" "_root" ("rank") ", &mut ranks[..]"]
        ["root" "gather" "" ("rank") ""]
        "assert_eq!(ranks, if root.is_self() { [0, 1] } else { [9, 9] });"
        Gather: gather_into try_gather_into immediate_gather_into gather_init
        (sendbuf: &S as Buffer by of)
        = |comm, root, kind| moved(comm, kind, only(comm, root, false), &sendbuf, &Memory::nothing());

        "Gathers what each process gives, in the order of their ranks."
        example "let root = world.process_at_rank(0);\n\
         let (mut rank, mut ranks) = (world.rank(), [9; 2]);"
        ["root" "gather" "_root" ("rank") ", &mut ranks[..]"]
        ["root" "gather" "" ("rank") ""]
        "assert_eq!(ranks, if root.is_self() { [0, 1] } else { [9, 9] });"
        Gather: gather_into_root try_gather_into_root immediate_gather_into_root gather_init_root
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, true), &sendbuf, &recvbuf.split(comm.blocks()));

        "Gives the root what this process has, of any length."
        example "// Rank 0 gives one number, rank 1 gives two.\n\
         use mpi::datatype::PartitionMut;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut all) = (vec![world.rank(); 1 + world.rank() as usize], [9; 3]);\n\
         let mut blocks = PartitionMut::new(&mut all[..], [1, 2], [0, 1]);"
        ["root" "gather_varcount" "_root" ("given") ", &mut blocks"]
        ["root" "gather_varcount" "" ("given") ""]
        "assert_eq!(all, if root.is_self() { [0, 1, 1] } else { [9; 3] });"
        Gatherv: gather_varcount_into try_gather_varcount_into immediate_gather_varcount_into gather_varcount_init
        (sendbuf: &S as Buffer by of)
        = |comm, root, kind| moved(comm, kind, only(comm, root, false), &sendbuf, &Memory::nothing());

        "Gathers what each process gives, of any length."
        example "// Rank 0 gives one number, rank 1 gives two.\n\
         use mpi::datatype::PartitionMut;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut all) = (vec![world.rank(); 1 + world.rank() as usize], [9; 3]);\n\
         let mut blocks = PartitionMut::new(&mut all[..], [1, 2], [0, 1]);"
        ["root" "gather_varcount" "_root" ("given") ", &mut blocks"]
        ["root" "gather_varcount" "" ("given") ""]
        "assert_eq!(all, if root.is_self() { [0, 1, 1] } else { [9; 3] });"
        Gatherv: gather_varcount_into_root try_gather_varcount_into_root immediate_gather_varcount_into_root gather_varcount_init_root
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as PartitionedBufferMut by blocks_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, true), &sendbuf, &recvbuf);

        "Gets this process's block from the root."
        example "let root = world.process_at_rank(0);\n\
         let (mut given, mut got) = ([5, 6], 0);"
        ["root" "scatter" "_root" ("given[..]") ", &mut got"]
        ["root" "scatter" "" () "&mut got"]
        "assert_eq!(got, 5 + world.rank());"
        Scatter: scatter_into try_scatter_into immediate_scatter_into scatter_init
        (recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, false), &Memory::nothing(), &recvbuf);

        "Gives each process a block, in the order of their ranks."
        example "let root = world.process_at_rank(0);\n\
         let (mut given, mut got) = ([5, 6], 0);"
        ["root" "scatter" "_root" ("given[..]") ", &mut got"]
        ["root" "scatter" "" () "&mut got"]
        "assert_eq!(got, 5 + world.rank());"
        Scatter: scatter_into_root try_scatter_into_root immediate_scatter_into_root scatter_init_root
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, true), &sendbuf.split(comm.blocks()), &recvbuf);

        "Gets this process's block, of any length, from the root."
        example "// Rank 0 gets one number, rank 1 gets two.\n\
         use mpi::datatype::Partition;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut got) = ([5, 6, 6], vec![0; 1 + world.rank() as usize]);\n\
         let mut blocks = Partition::new(&given[..], [1, 2], [0, 1]);"
        ["root" "scatter_varcount" "_root" ("blocks") ", &mut got"]
        ["root" "scatter_varcount" "" () "&mut got"]
        "assert!(got.iter().all(|number| *number == 5 + world.rank()));"
        Scatterv: scatter_varcount_into try_scatter_varcount_into immediate_scatter_varcount_into scatter_varcount_init
        (recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, false), &Memory::nothing(), &recvbuf);

        "Gives each process a block of any length."
        example "// Rank 0 gets one number, rank 1 gets two.\n\
         use mpi::datatype::Partition;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut got) = ([5, 6, 6], vec![0; 1 + world.rank() as usize]);\n\
         let mut blocks = Partition::new(&given[..], [1, 2], [0, 1]);"
        ["root" "scatter_varcount" "_root" ("blocks") ", &mut got"]
        ["root" "scatter_varcount" "" () "&mut got"]
        "assert!(got.iter().all(|number| *number == 5 + world.rank()));"
        Scatterv: scatter_varcount_into_root try_scatter_varcount_into_root immediate_scatter_varcount_into_root scatter_varcount_init_root
        ([sendbuf: &S as PartitionedBuffer by blocks] recvbuf: &(mut) R as BufferMut by of_mut)
        = |comm, root, kind| moved(comm, kind, only(comm, root, true), &sendbuf, &recvbuf);

        "Gives what the root combines."
        example "use mpi::collective::SystemOperation;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut sum) = (world.rank() + 1, 0);"
        ["root" "reduce" "_root" ("given") ", &mut sum, SystemOperation::sum()"]
        ["root" "reduce" "" ("given") ", SystemOperation::sum()"]
        "assert_eq!(sum, if root.is_self() { 3 } else { 0 });"
        Reduce: reduce_into try_reduce_into immediate_reduce_into reduce_init
        (sendbuf: &S as Buffer by of; op)
        = |comm, root, kind| only(comm, root, false).and_then(|root| {
            let elements = || Ok((sendbuf.elements(), sendbuf.ty().clone(), op));
            comm.reduce(root, (&sendbuf, &Memory::nothing()), elements)
        });

        "Combines what each process gives."
        example "use mpi::collective::SystemOperation;\n\
         let root = world.process_at_rank(0);\n\
         let (mut given, mut sum) = (world.rank() + 1, 0);"
        ["root" "reduce" "_root" ("given") ", &mut sum, SystemOperation::sum()"]
        ["root" "reduce" "" ("given") ", SystemOperation::sum()"]
        "assert_eq!(sum, if root.is_self() { 3 } else { 0 });"
        Reduce: reduce_into_root try_reduce_into_root immediate_reduce_into_root reduce_init_root
        ([sendbuf: &S as Buffer by of] recvbuf: &(mut) R as BufferMut by of_mut; op)
        = |comm, root, kind| only(comm, root, true).and_then(|root| {
            let elements = || sendbuf.alike(&recvbuf).map(|(count, ty)| (count, ty, op));
            comm.reduce(root, (&sendbuf, &recvbuf), elements)
        });
    }
}

impl Root for Process<'_> {
    fn root_rank(&self) -> Rank {
        self.rank()
    }
}
