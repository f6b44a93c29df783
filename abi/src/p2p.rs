//! Point-to-point communication (MPI 5.0, 3): sends and receives in all modes, and buffered sends' buffers.

use crate::boundary::{SelfComm, mpi};
use crate::buffers::{self, count};
use crate::comm::{Found, lookup};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use crate::request::{give, give_started};
use crate::status::{any_tag, source_of, store};
use crate::types;
use banyan_datatype::Data;
use banyan_runtime::{
    Attached, Dest, Incoming, Operation, Outcome, Outgoing, Result, SendMode, Status, bail,
};
use std::sync::Arc;

/// The user's data; with MPI_PROC_NULL the buffer is not checked.
pub(crate) fn data<N: Number>(
    buf: Ptr<c_void>,
    count: N,
    datatype: MPI_Datatype,
    peer: c_int,
) -> Result<Data> {
    if peer == MPI_PROC_NULL {
        // Programs pass MPI_DATATYPE_NULL with a count of 0, and other MPI libraries let them.
        if self::count(count)? > 0 || datatype != MPI_DATATYPE_NULL {
            types::committed(datatype)?;
        }
        return Ok(Data::bytes(banyan_memory::Buffer::empty()));
    }
    buffers::data(buf, count, datatype)
}

#[inline(always)]
pub(crate) fn dest_of(rank: c_int) -> Dest {
    if rank == MPI_PROC_NULL { Dest::ProcNull } else { Dest::Rank(rank) }
}

#[inline(always)]
fn outgoing_of(data: &Data, dest: c_int, tag: c_int) -> Outgoing<'_> {
    (data, dest_of(dest), tag)
}

#[inline(always)]
fn incoming_of(data: &Data, source: c_int, tag: c_int) -> Incoming<'_> {
    (data, source_of(source), any_tag(tag))
}

/// Memory of the user: where, how many, of what.
type Elements<N> = (Ptr<c_void>, N, MPI_Datatype);
/// One of the two messages of MPI_Sendrecv: memory, the peer, the tag.
type Half<N> = (Elements<N>, c_int, c_int);
/// The peer of a message, the tag, the communicator.
type Envelope = (c_int, c_int, MPI_Comm);

/// A send or receive of the user's data, with the arguments that it needs besides them. The [`Data`] that [`message_call`]
/// makes in the usual case, and what is made from them, stay in registers. That saves more than instructions: a value that
/// is stored in parts and loaded as a whole waits until the stores of the previous message have reached the other core.
trait MessageCall: Copy {
    /// Runs it. Implementations are to be inlined always.
    fn run(self, comm: &Found, data: &Data, envelope: Envelope) -> Result<()>;
}

#[inline(always)]
fn message_call<N: Number>(memory: Elements<N>, envelope: Envelope, how: impl MessageCall) -> Result<()> {
    // With arguments that stay in registers, too, as they are at hand until it is clear that it is not called.
    #[cold]
    #[inline(never)]
    fn other<N: Number>(
        (buf, count): (Ptr<c_void>, N),
        datatype: MPI_Datatype,
        (peer, tag): (c_int, c_int),
        comm: MPI_Comm,
        how: impl MessageCall,
    ) -> Result<()> {
        how.run(&lookup(comm)?, &data(buf, count, datatype, peer)?, (peer, tag, comm))
    }

    let (buf, count, datatype) = memory;
    // By reference: to move what was just written in parts costs more than to write it.
    match &buffers::plain(buf, count, datatype) {
        Some(data) if envelope.0 != MPI_PROC_NULL => how.run(&lookup(envelope.2)?, data, envelope),
        _ => other((buf, count), datatype, (envelope.0, envelope.1), envelope.2, how),
    }
}

#[derive(Clone, Copy)]
struct Send(SendMode);

impl MessageCall for Send {
    #[inline(always)]
    fn run(self, comm: &Found, data: &Data, (dest, tag, _): Envelope) -> Result<()> {
        comm.send(data, dest_of(dest), tag, self.0)
    }
}

#[derive(Clone, Copy)]
struct Isend(SendMode, Ptr<MPI_Request>);

impl MessageCall for Isend {
    #[inline(always)]
    fn run(self, comm: &Found, data: &Data, (dest, tag, _): Envelope) -> Result<()> {
        give_started(self.1, comm.isend(data, dest_of(dest), tag, self.0)?, comm)
    }
}

#[derive(Clone, Copy)]
struct Recv(Ptr<MPI_Status>);

impl MessageCall for Recv {
    #[inline(always)]
    fn run(self, comm: &Found, data: &Data, (source, tag, _): Envelope) -> Result<()> {
        finish(comm.recv(data, source_of(source), any_tag(tag)), self.0)
    }
}

#[derive(Clone, Copy)]
struct Irecv(Ptr<MPI_Request>);

impl MessageCall for Irecv {
    #[inline(always)]
    fn run(self, comm: &Found, data: &Data, (source, tag, _): Envelope) -> Result<()> {
        give_started(self.0, comm.irecv(data, source_of(source), any_tag(tag))?, comm)
    }
}

/// A send and a receive of the user's data at once. In the usual case their [`Data`] stay in registers, as with [`message_call`].
#[inline(always)]
fn sendrecv<N: Number>(send: Half<N>, recv: Half<N>, comm: MPI_Comm, status: Ptr<MPI_Status>) -> Result<()> {
    #[cold]
    #[inline(never)]
    fn other<N: Number>(
        (send, dest, sendtag): Half<N>,
        (recv, source, recvtag): Half<N>,
        comm: MPI_Comm,
        status: Ptr<MPI_Status>,
    ) -> Result<()> {
        let object = lookup(comm)?;
        let outgoing = data(send.0, send.1, send.2, dest)?;
        let incoming = data(recv.0, recv.1, recv.2, source)?;
        finish(
            object.sendrecv(outgoing_of(&outgoing, dest, sendtag), incoming_of(&incoming, source, recvtag)),
            status,
        )
    }

    let ((given, dest, sendtag), (got, source, recvtag)) = (send, recv);
    // A match on the pair would write both to memory.
    if dest != MPI_PROC_NULL
        && source != MPI_PROC_NULL
        && let Some(outgoing) = &buffers::plain(given.0, given.1, given.2)
        && let Some(incoming) = &buffers::plain(got.0, got.1, got.2)
    {
        let object = lookup(comm)?;
        return finish(
            object.sendrecv(outgoing_of(outgoing, dest, sendtag), incoming_of(incoming, source, recvtag)),
            status,
        );
    }
    other(send, recv, comm, status)
}

/// Stores the status of a receive and returns its error.
#[inline]
pub(crate) fn finish(outcome: Outcome, status: Ptr<MPI_Status>) -> Result<()> {
    store(status, &outcome.status);
    match outcome.error {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

fn attached<N: Number>(buffer: Ptr<c_void>, size: N) -> Result<Attached> {
    if buffer.address() == MPI_BUFFER_AUTOMATIC {
        return Ok(Attached::automatic(MPI_BUFFER_AUTOMATIC));
    }
    let size = size.into();
    match u64::try_from(size) {
        Ok(0) => Ok(Attached::new(buffer.address(), 0)),
        Ok(_) if buffer.is_null() => bail!(ERR_BUFFER, "the buffer to attach is NULL"),
        Ok(size) => {
            buffers::on_host(buffer)?;
            Ok(Attached::new(buffer.address(), size))
        }
        Err(_) => bail!(ERR_ARG, "the size of the buffer is {size}"),
    }
}

fn detached<N: Number>(old: Option<Arc<Attached>>, buffer_addr: Ptr<c_void>, size: Ptr<N>) -> Result<()> {
    let Some(old) = old else { bail!(ERR_BUFFER, "no buffer is attached") };
    let (address, bytes) = old.parts();
    buffer_addr.cast::<usize>().set(address)?;
    match N::fit(bytes as i64) {
        Some(bytes) => size.set(bytes),
        None => bail!(ERR_VALUE_TOO_LARGE, "the size does not fit an int: use the _c form"),
    }
}

/// A request that is over: the runtime keeps copies of its own of buffered messages, so that there is nothing in
/// the user's buffer to wait for.
fn flushed(comm: MPI_Comm, request: Ptr<MPI_Request>) -> Result<()> {
    lookup(comm)?;
    give(request, Operation::done(Status::EMPTY), comm)
}

/// Declares the blocking, the nonblocking and the persistent send of a mode.
macro_rules! sends {
    ($(fn $send:ident<N> fn $isend:ident<N> fn $init:ident<N> as $mode:ident;)*) => { mpi! {$(
        fn $send<N>(buf, count, datatype, dest, tag, comm) on comm {
            message_call((buf, count, datatype), (dest, tag, comm), Send(SendMode::$mode))
        }

        fn $isend<N>(buf, count, datatype, dest, tag, comm, request) on comm gives request {
            message_call((buf, count, datatype), (dest, tag, comm), Isend(SendMode::$mode, request))
        }

        fn $init<N>(buf, count, datatype, dest, tag, comm, request) on comm gives request {
            let object = lookup(comm)?;
            let data = data(buf, count, datatype, dest)?;
            give(request, object.send_init(&data, dest_of(dest), tag, SendMode::$mode)?, comm)
        }
    )*}};
}

sends! {
    fn MPI_Send<N> fn MPI_Isend<N> fn MPI_Send_init<N> as Standard;
    fn MPI_Ssend<N> fn MPI_Issend<N> fn MPI_Ssend_init<N> as Sync;
    fn MPI_Rsend<N> fn MPI_Irsend<N> fn MPI_Rsend_init<N> as Ready;
    fn MPI_Bsend<N> fn MPI_Ibsend<N> fn MPI_Bsend_init<N> as Buffered;
}

mpi! {
    fn MPI_Recv<N>(buf, count, datatype, source, tag, comm, status) on comm {
        message_call((buf, count, datatype), (source, tag, comm), Recv(status))
    }

    fn MPI_Irecv<N>(buf, count, datatype, source, tag, comm, request) on comm gives request {
        message_call((buf, count, datatype), (source, tag, comm), Irecv(request))
    }

    fn MPI_Recv_init<N>(buf, count, datatype, source, tag, comm, request) on comm gives request {
        let object = lookup(comm)?;
        give(request, object.recv_init(&data(buf, count, datatype, source)?, source_of(source), any_tag(tag))?, comm)
    }

    fn MPI_Sendrecv<N>(
        sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm,
        status,
    ) on comm {
        let send = ((sendbuf, sendcount, sendtype), dest, sendtag);
        sendrecv(send, ((recvbuf, recvcount, recvtype), source, recvtag), comm, status)
    }

    fn MPI_Sendrecv_replace<N>(buf, count, datatype, dest, sendtag, source, recvtag, comm, status) on comm {
        let comm = lookup(comm)?;
        let data = buffers::data(buf, count, datatype)?;
        finish(comm.sendrecv_replace(&data, (dest_of(dest), sendtag), (source_of(source), any_tag(recvtag))), status)
    }

    fn MPI_Isendrecv<N>(
        sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm,
        request,
    ) on comm gives request {
        let outgoing = data(sendbuf, sendcount, sendtype, dest)?;
        let incoming = data(recvbuf, recvcount, recvtype, source)?;
        let comm = lookup(comm)?;
        let (send, recv) = (outgoing_of(&outgoing, dest, sendtag), incoming_of(&incoming, source, recvtag));
        give_started(request, comm.isendrecv(send, recv)?, &comm)
    }

    fn MPI_Isendrecv_replace<N>(
        buf, count, datatype, dest, sendtag, source, recvtag, comm, request,
    ) on comm gives request {
        let data = buffers::data(buf, count, datatype)?;
        let comm = lookup(comm)?;
        let (to, from) = ((dest_of(dest), sendtag), (source_of(source), any_tag(recvtag)));
        give_started(request, comm.isendrecv_replace(&data, to, from)?, &comm)
    }

    fn MPI_Buffer_attach<N>(buffer, size) on SelfComm {
        INSTANCE.runtime()?.attachment.attach(attached(buffer, size)?)
    }

    fn MPI_Buffer_detach<N>(buffer_addr, size) on SelfComm {
        let runtime = INSTANCE.runtime()?;
        detached(runtime.attachment.detach(&runtime), buffer_addr, size)
    }

    fn MPI_Buffer_flush() on SelfComm {
        let runtime = INSTANCE.runtime()?;
        runtime.attachment.flush(&runtime);
        Ok(())
    }

    fn MPI_Buffer_iflush(request) on SelfComm gives request {
        flushed(MPI_COMM_SELF, request)
    }

    fn MPI_Comm_attach_buffer<N>(comm, buffer, size) on comm {
        lookup(comm)?.attachment.attach(attached(buffer, size)?)
    }

    fn MPI_Comm_detach_buffer<N>(comm, buffer_addr, size) on comm {
        let comm = lookup(comm)?;
        detached(comm.attachment.detach(comm.runtime()), buffer_addr, size)
    }

    fn MPI_Comm_flush_buffer(comm) on comm {
        let comm = lookup(comm)?;
        comm.attachment.flush(comm.runtime());
        Ok(())
    }

    fn MPI_Comm_iflush_buffer(comm, request) on comm gives request {
        flushed(comm, request)
    }
}
