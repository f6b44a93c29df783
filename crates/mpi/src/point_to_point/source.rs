//! Receives and probes.

use banyan_datatype::Data;
use banyan_runtime::Outcome;

use super::{ANY_TAG, Message, Status, one, source_of, tag_of};
use crate::Tag;
use crate::datatype::{BufferMut, Equivalence, written};
use crate::error::{Result, expect, tried};
use crate::request::{PersistentRequest, ReceiveFuture, Request, Scope};
use crate::topology::handle::AsHandle;
use crate::topology::{ANY_SOURCE, AnyProcess, AsCommunicator, Process, Rank};

fn receive<S: Source + ?Sized>(from: &S, data: &Data, tag: Tag) -> Outcome {
    from.as_communicator().as_handle().comm().recv(data, source_of(from.source_rank()), tag_of(tag))
}

fn receive_into<S: Source + ?Sized, B: BufferMut + ?Sized>(
    from: &S,
    buf: &mut B,
    tag: Tag,
) -> Result<Status> {
    // SAFETY: the receive is over when it returns.
    receive(from, &unsafe { written(buf) }, tag).into_result().map(Status)
}

fn receive_vec<S: Source + ?Sized, M: Equivalence>(from: &S, tag: Tag) -> Result<(Vec<M>, Status)> {
    let (message, status) = matched_probe(from, tag)?;
    message.receive_vec(status)
}

fn probe<S: Source + ?Sized>(from: &S, tag: Tag) -> Result<Status> {
    let comm = from.as_communicator().as_handle().comm();
    comm.probe(source_of(from.source_rank()), tag_of(tag)).map(Status)
}

fn matched_probe<S: Source + ?Sized>(from: &S, tag: Tag) -> Result<(Message, Status)> {
    let comm = from.as_communicator().as_handle().comm();
    let (message, status) = comm.mprobe(source_of(from.source_rank()), tag_of(tag))?;
    Ok((Message::new(message), Status(status)))
}

/// Where messages come from. The forms with a tag take a message that has it, the others take any.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (me, any) = (world.this_process(), world.any_process());
/// assert_eq!((me.source_rank(), any.source_rank()), (0, -1));
///
/// // One value, a buffer, as much as there comes.
/// let (mut one, mut pair) = (0, [0; 2]);
/// (0..9).for_each(|tag| me.send_with_tag(&[tag, tag][..1 + usize::from(tag > 5)], tag));
/// assert_eq!(me.receive::<i32>().0, 0);
/// assert_eq!(me.receive_with_tag::<i32>(1).0, 1);
/// assert_eq!(me.try_receive_with_tag::<i32>(2)?.0, 2);
/// me.receive_into(&mut one);
/// me.receive_into_with_tag(&mut one, 4);
/// assert_eq!(me.try_receive_into_with_tag(&mut one, 5)?.tag(), 5);
/// assert_eq!(any.receive_vec::<i32>().0, [6, 6]);
/// assert_eq!(any.receive_vec_with_tag::<i32>(7).0, [7, 7]);
/// assert_eq!(any.try_receive_vec_with_tag::<i32>(8)?.0, [8, 8]);
/// assert_eq!(one, 5);
///
/// // Started, and completed later.
/// mpi::request::scope(|scope| {
///     let (first, rest) = pair.split_at_mut(1);
///     let receives = [me.immediate_receive_into(scope, first), me.immediate_receive_into_with_tag(scope, rest, 2)];
///     let (third, fourth) = (any.immediate_receive::<i32>(), any.immediate_receive_with_tag::<i32>(4));
///     (1..5).for_each(|tag| me.send_with_tag(&tag, tag));
///     receives.map(|receive| receive.wait());
///     assert_eq!((third.get().0, fourth.get().0), (3, 4));
/// });
/// assert_eq!(pair, [1, 2]);
/// # Ok::<(), mpi::Error>(())
/// ```
///
/// Started again and again:
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (me, mut even, mut odd) = (world.this_process(), 0, 0);
/// let (mut evens, mut odds) = (me.receive_init_with_tag(&mut even, 0), world.any_process().receive_init(&mut odd));
/// for number in 0..6 {
///     me.send_with_tag(&number, number % 2);
///     let receive = if number % 2 == 0 { &mut evens } else { &mut odds };
///     mpi::request::scope(|scope| receive.start(scope).wait());
/// }
/// assert_eq!((*evens.data(), *odds.data()), (4, 5));
/// ```
///
/// A probe tells of a message that has come; a matched one keeps it for who has probed.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (me, any) = (world.this_process(), world.any_process());
/// assert!(any.immediate_probe().is_none() && any.immediate_matched_probe_with_tag(1).is_none());
/// (0..5).for_each(|tag| me.send_with_tag(&tag, tag));
/// assert_eq!((any.probe().tag(), any.probe_with_tag(2).tag()), (0, 2));
/// assert_eq!((any.try_probe_with_tag(3)?.tag(), any.immediate_probe_with_tag(4).unwrap().tag()), (3, 4));
/// let (message, status) = any.matched_probe();
/// assert_eq!((message.matched_receive::<i32>().0, status.tag()), (0, 0));
/// assert_eq!(any.matched_probe_with_tag(1).matched_receive_vec::<i32>().0, [1]);
/// assert_eq!(any.try_matched_probe_with_tag(2)?.try_matched_receive_vec::<i32>()?.0, [2]);
/// let (message, _) = any.immediate_matched_probe().unwrap();
/// assert_eq!(message.matched_receive::<i32>().0, 3);
/// # any.receive::<i32>();
/// # Ok::<(), mpi::Error>(())
/// ```
pub trait Source: AsCommunicator {
    /// The rank of the process that they come from.
    fn source_rank(&self) -> Rank;

    /// Waits for a message with this tag, and leaves it there.
    ///
    /// # Errors
    /// There is no such tag, or the sender is gone.
    fn try_probe_with_tag(&self, tag: Tag) -> Result<Status> {
        tried(|| probe(self, tag))
    }

    /// Waits for a message with this tag, and leaves it there.
    #[track_caller]
    fn probe_with_tag(&self, tag: Tag) -> Status {
        expect(probe(self, tag))
    }

    /// Waits for a message, and leaves it there.
    #[track_caller]
    fn probe(&self) -> Status {
        self.probe_with_tag(ANY_TAG)
    }

    /// Waits for a message with this tag, which is then received by [`Message`] alone.
    ///
    /// # Errors
    /// There is no such tag, or the sender is gone.
    fn try_matched_probe_with_tag(&self, tag: Tag) -> Result<(Message, Status)> {
        tried(|| matched_probe(self, tag))
    }

    /// Waits for a message with this tag, which is then received by [`Message`] alone.
    #[track_caller]
    fn matched_probe_with_tag(&self, tag: Tag) -> (Message, Status) {
        expect(matched_probe(self, tag))
    }

    /// Waits for a message, which is then received by [`Message`] alone.
    #[track_caller]
    fn matched_probe(&self) -> (Message, Status) {
        self.matched_probe_with_tag(ANY_TAG)
    }

    /// Receives one value with this tag.
    ///
    /// # Errors
    /// There is no such tag, the message is not one value long, or the sender is gone.
    fn try_receive_with_tag<Msg: Equivalence>(&self, tag: Tag) -> Result<(Msg, Status)> {
        tried(|| one(|data| receive(self, data, tag)))
    }

    /// Receives one value with this tag.
    ///
    /// # Panics
    /// If the message is not one value long.
    #[track_caller]
    fn receive_with_tag<Msg: Equivalence>(&self, tag: Tag) -> (Msg, Status) {
        expect(one(|data| receive(self, data, tag)))
    }

    /// Receives one value.
    ///
    /// # Panics
    /// If the message is not one value long.
    #[track_caller]
    fn receive<Msg: Equivalence>(&self) -> (Msg, Status) {
        self.receive_with_tag(ANY_TAG)
    }

    /// Receives into a buffer a message with this tag, which may be shorter than that.
    ///
    /// # Errors
    /// There is no such tag, the message is longer, or the sender is gone.
    fn try_receive_into_with_tag<Buf: BufferMut + ?Sized>(&self, buf: &mut Buf, tag: Tag) -> Result<Status> {
        tried(|| receive_into(self, buf, tag))
    }

    /// Receives into a buffer a message with this tag, which may be shorter than that.
    #[track_caller]
    fn receive_into_with_tag<Buf: BufferMut + ?Sized>(&self, buf: &mut Buf, tag: Tag) -> Status {
        expect(receive_into(self, buf, tag))
    }

    /// Receives into a buffer a message, which may be shorter than that.
    #[track_caller]
    fn receive_into<Buf: BufferMut + ?Sized>(&self, buf: &mut Buf) -> Status {
        self.receive_into_with_tag(buf, ANY_TAG)
    }

    /// Receives a message with this tag, of any length.
    ///
    /// # Errors
    /// There is no such tag, the message's end is within a value, or the sender is gone.
    fn try_receive_vec_with_tag<Msg: Equivalence>(&self, tag: Tag) -> Result<(Vec<Msg>, Status)> {
        tried(|| receive_vec(self, tag))
    }

    /// Receives a message with this tag, of any length.
    #[track_caller]
    fn receive_vec_with_tag<Msg: Equivalence>(&self, tag: Tag) -> (Vec<Msg>, Status) {
        expect(receive_vec(self, tag))
    }

    /// Receives a message of any length.
    #[track_caller]
    fn receive_vec<Msg: Equivalence>(&self) -> (Vec<Msg>, Status) {
        self.receive_vec_with_tag(ANY_TAG)
    }

    /// Starts to receive into a buffer a message with this tag.
    #[track_caller]
    fn immediate_receive_into_with_tag<'a, Sc: Scope<'a>, Buf: BufferMut + ?Sized>(
        &self,
        scope: Sc,
        buf: &'a mut Buf,
        tag: Tag,
    ) -> Request<'a, Buf, Sc> {
        let comm = self.as_communicator().as_handle().comm();
        let start: *const Buf = buf;
        // SAFETY: the request borrows the buffer.
        let data = unsafe { written(buf) };
        let started = expect(comm.irecv(&data, source_of(self.source_rank()), tag_of(tag)));
        // SAFETY: the buffer is borrowed mutably for 'a.
        unsafe { Request::new(started.hold(comm.runtime()), start, scope) }
    }

    /// Starts to receive into a buffer.
    #[track_caller]
    fn immediate_receive_into<'a, Sc: Scope<'a>, Buf: BufferMut + ?Sized>(
        &self,
        scope: Sc,
        buf: &'a mut Buf,
    ) -> Request<'a, Buf, Sc> {
        self.immediate_receive_into_with_tag(scope, buf, ANY_TAG)
    }

    /// A receive into a buffer, with this tag, that is started again and again.
    #[track_caller]
    fn receive_init_with_tag<'a, Buf: BufferMut + ?Sized>(
        &self,
        buf: &'a mut Buf,
        tag: Tag,
    ) -> PersistentRequest<'a, Buf> {
        let comm = self.as_communicator().as_handle().comm();
        let start: *mut Buf = buf;
        // SAFETY: the request borrows the buffer.
        let data = unsafe { written(&mut *start) };
        let operation = expect(comm.recv_init(&data, source_of(self.source_rank()), tag_of(tag)));
        // SAFETY: the buffer is borrowed mutably for 'a.
        unsafe { PersistentRequest::new(comm, operation, start) }
    }

    /// A receive into a buffer that is started again and again.
    #[track_caller]
    fn receive_init<'a, Buf: BufferMut + ?Sized>(&self, buf: &'a mut Buf) -> PersistentRequest<'a, Buf> {
        self.receive_init_with_tag(buf, ANY_TAG)
    }

    /// Starts to receive one value with this tag.
    #[track_caller]
    fn immediate_receive_with_tag<Msg: Equivalence>(&self, tag: Tag) -> ReceiveFuture<Msg> {
        let comm = self.as_communicator().as_handle().comm();
        ReceiveFuture::new(|data| {
            expect(comm.irecv(data, source_of(self.source_rank()), tag_of(tag))).hold(comm.runtime())
        })
    }

    /// Starts to receive one value.
    #[track_caller]
    fn immediate_receive<Msg: Equivalence>(&self) -> ReceiveFuture<Msg> {
        self.immediate_receive_with_tag(ANY_TAG)
    }

    /// The status of a message with this tag, if one is there.
    #[track_caller]
    fn immediate_probe_with_tag(&self, tag: Tag) -> Option<Status> {
        let comm = self.as_communicator().as_handle().comm();
        expect(comm.iprobe(source_of(self.source_rank()), tag_of(tag))).map(Status)
    }

    /// The status of a message, if one is there.
    #[track_caller]
    fn immediate_probe(&self) -> Option<Status> {
        self.immediate_probe_with_tag(ANY_TAG)
    }

    /// A message with this tag, if one is there, which is then received by [`Message`] alone.
    #[track_caller]
    fn immediate_matched_probe_with_tag(&self, tag: Tag) -> Option<(Message, Status)> {
        let comm = self.as_communicator().as_handle().comm();
        let found = expect(comm.improbe(source_of(self.source_rank()), tag_of(tag)));
        found.map(|(message, status)| (Message::new(message), Status(status)))
    }

    /// A message, if one is there, which is then received by [`Message`] alone.
    #[track_caller]
    fn immediate_matched_probe(&self) -> Option<(Message, Status)> {
        self.immediate_matched_probe_with_tag(ANY_TAG)
    }
}

impl Source for AnyProcess<'_> {
    fn source_rank(&self) -> Rank {
        ANY_SOURCE
    }
}

impl Source for Process<'_> {
    fn source_rank(&self) -> Rank {
        self.rank()
    }
}
