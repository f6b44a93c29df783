//! A send and a receive at once.

use super::{ANY_TAG, Destination, Source, Status, dest_of, one, source_of, tag_of};
use crate::Tag;
use crate::datatype::{Buffer, BufferMut, Equivalence, read, written};
use crate::error::expect;
use crate::topology::handle::AsHandle;
use crate::topology::{Communicator, CommunicatorRelation};

#[track_caller]
fn check<D: Destination, S: Source>(destination: &D, source: &S) {
    let relation = source.as_communicator().compare(destination.as_communicator());
    if relation != CommunicatorRelation::Identical {
        raise!(ERR_COMM, "a send and a receive at once are on one communicator, but these are on two");
    }
}

/// Sends a value and receives one, with these tags.
///
/// ```
/// use mpi::point_to_point::send_receive_with_tags;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let (got, status) = send_receive_with_tags::<_, _, i32, _>(&rank, &other, rank, &other, 1 - rank);
///     assert_eq!((got, status.tag()), (1 - rank, 1 - rank));
/// });
/// ```
#[track_caller]
pub fn send_receive_with_tags<M: Equivalence, D: Destination, R: Equivalence, S: Source>(
    msg: &M,
    destination: &D,
    sendtag: Tag,
    source: &S,
    receivetag: Tag,
) -> (R, Status) {
    check(destination, source);
    let comm = source.as_communicator().as_handle().comm();
    // SAFETY: the send is over when the call returns.
    let send = unsafe { read(msg) };
    let from = (source_of(source.source_rank()), tag_of(receivetag));
    expect(one(|recv| {
        comm.sendrecv((&send, dest_of(destination.destination_rank()), sendtag), (recv, from.0, from.1))
    }))
}

/// Sends a value and receives one.
///
/// ```
/// use mpi::point_to_point::send_receive;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let (got, _) = send_receive::<i32, _, _, _>(&rank, &other, &other);
///     assert_eq!(got, 1 - rank);
/// });
/// ```
#[track_caller]
pub fn send_receive<R: Equivalence, M: Equivalence, D: Destination, S: Source>(
    msg: &M,
    destination: &D,
    source: &S,
) -> (R, Status) {
    send_receive_with_tags(msg, destination, Tag::default(), source, ANY_TAG)
}

/// Sends from one buffer and receives into another one, with these tags.
///
/// ```
/// use mpi::point_to_point::send_receive_into_with_tags;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let mut got = 0;
///     let status = send_receive_into_with_tags(&rank, &other, rank, &mut got, &other, 1 - rank);
///     assert_eq!((got, status.tag()), (1 - rank, 1 - rank));
/// });
/// ```
#[track_caller]
pub fn send_receive_into_with_tags<M, D, B, S>(
    msg: &M,
    destination: &D,
    sendtag: Tag,
    buf: &mut B,
    source: &S,
    receivetag: Tag,
) -> Status
where
    M: Buffer + ?Sized,
    D: Destination,
    B: BufferMut + ?Sized,
    S: Source,
{
    check(destination, source);
    let comm = source.as_communicator().as_handle().comm();
    // SAFETY: both are over when the call returns.
    let (send, recv) = unsafe { (read(msg), written(buf)) };
    let outgoing = (&send, dest_of(destination.destination_rank()), sendtag);
    let incoming = (&recv, source_of(source.source_rank()), tag_of(receivetag));
    Status(expect(comm.sendrecv(outgoing, incoming).into_result()))
}

/// Sends from one buffer and receives into another one.
///
/// ```
/// use mpi::point_to_point::send_receive_into;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let mut got = [0; 2];
///     send_receive_into(&[rank, 7][..], &other, &mut got[..], &other);
///     assert_eq!(got, [1 - rank, 7]);
/// });
/// ```
#[track_caller]
pub fn send_receive_into<M, D, B, S>(msg: &M, destination: &D, buf: &mut B, source: &S) -> Status
where
    M: Buffer + ?Sized,
    D: Destination,
    B: BufferMut + ?Sized,
    S: Source,
{
    send_receive_into_with_tags(msg, destination, Tag::default(), buf, source, ANY_TAG)
}

/// Sends from a buffer, and receives into it, with these tags.
///
/// ```
/// use mpi::point_to_point::send_receive_replace_into_with_tags;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let mut number = rank;
///     send_receive_replace_into_with_tags(&mut number, &other, rank, &other, 1 - rank);
///     assert_eq!(number, 1 - rank);
/// });
/// ```
#[track_caller]
pub fn send_receive_replace_into_with_tags<B: BufferMut + ?Sized, D: Destination, S: Source>(
    buf: &mut B,
    destination: &D,
    sendtag: Tag,
    source: &S,
    receivetag: Tag,
) -> Status {
    check(destination, source);
    let comm = source.as_communicator().as_handle().comm();
    // SAFETY: both are over when the call returns.
    let data = unsafe { written(buf) };
    let to = (dest_of(destination.destination_rank()), sendtag);
    let from = (source_of(source.source_rank()), tag_of(receivetag));
    Status(expect(comm.sendrecv_replace(&data, to, from).into_result()))
}

/// Sends from a buffer, and receives into it.
///
/// ```
/// use mpi::point_to_point::send_receive_replace_into;
/// use mpi::traits::*;
///
/// mpi::environment::Universe::simulated(2, |universe| {
///     let world = universe.world();
///     let (rank, other) = (world.rank(), world.process_at_rank(1 - world.rank()));
///     let mut number = rank;
///     send_receive_replace_into(&mut number, &other, &other);
///     assert_eq!(number, 1 - rank);
/// });
/// ```
#[track_caller]
pub fn send_receive_replace_into<B: BufferMut + ?Sized, D: Destination, S: Source>(
    buf: &mut B,
    destination: &D,
    source: &S,
) -> Status {
    send_receive_replace_into_with_tags(buf, destination, Tag::default(), source, ANY_TAG)
}
