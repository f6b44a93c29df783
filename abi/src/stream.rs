//! Operations that are enqueued on a stream of CUDA's or HIP's, with the names and parameters that MPICH gives them (mpi-ext.h). What the arguments
//! name is looked up when an operation is enqueued; it is carried out by the same method of the runtime as the call without "enqueue".

use crate::boundary::{SelfComm, Target, boundary, named, sentence};
use crate::comm::{self, lookup};
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::p2p::{data, dest_of, finish};
use crate::pointer::Ptr;
use crate::request::Entry;
use crate::status::{any_tag, source_of, store_empty};
use crate::tables::When;
use crate::{coll, info};
use banyan_runtime::{
    Attributes, Class, Comm, Enqueuer, Error, Kind, Operation, Outcome, Platform, Request, Result, SendMode,
    bail,
};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A handle of a stream: a pointer in C, of which only the number matters.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
#[allow(non_camel_case_types, reason = "MPICH's name")]
pub(crate) struct MPIX_Stream(usize);

const MPIX_STREAM_NULL: MPIX_Stream = MPIX_Stream(0);

/// A stream that operations are enqueued on.
pub(crate) struct Stream {
    enqueuer: Enqueuer,
    /// The number of its handle.
    handle: OnceLock<usize>,
}

/// An operation that was started in a stream, once it is.
type Slot = Arc<Mutex<Option<Result<Request>>>>;

/// Streams, and what was started on one and is not waited for yet, by the handles of the requests.
#[derive(Default)]
struct Known {
    streams: Vec<Weak<Stream>>,
    started: HashMap<usize, (Arc<Stream>, Slot)>,
}

/// The streams of an instance.
pub(crate) struct Streams(Mutex<Option<Known>>);

impl Streams {
    pub(crate) const fn new() -> Streams {
        Streams(Mutex::new(None))
    }

    fn known<R>(&self, work: impl FnOnce(&mut Known) -> R) -> R {
        work(lock(&self.0).get_or_insert_default())
    }

    /// Waits until all that is enqueued on streams is over, and ends their threads.
    pub(crate) fn close(&self) -> Result<()> {
        let Some(Known { streams, started }) = lock(&self.0).take() else { return Ok(()) };
        let closed = streams.iter().filter_map(Weak::upgrade).map(|stream| stream.enqueuer.close());
        let outcome = closed.fold(Ok(()), Result::and);
        drop(started);
        outcome
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pointer of the program's for which it answers until the operation is over that it gave it to.
struct Later<T>(Ptr<T>);

// SAFETY: by the contract of these functions the memory stays, and is left alone, until the operation is over, whose thread alone goes to it.
unsafe impl<T> Send for Later<T> {}

impl<T> Later<T> {
    fn take(self) -> Ptr<T> {
        self.0
    }
}

impl Stream {
    fn of(info: MPI_Info) -> Result<Stream> {
        let info = match info::optional(info)? {
            Some(info) => info,
            None => {
                bail!(ERR_INFO, "a stream is named by an info object with the keys \"type\" and \"value\"")
            }
        };
        let kind = info.value("type")?.unwrap_or_default();
        let platform = match kind.as_slice() {
            b"cudaStream_t" => Platform::Cuda,
            b"hipStream_t" => Platform::Hip,
            _ => {
                let kind = String::from_utf8_lossy(&kind).into_owned();
                bail!(
                    ERR_INFO_VALUE,
                    "the type of the stream is \"{kind}\"; known are \"cudaStream_t\" and \"hipStream_t\""
                )
            }
        };
        let digits = info.value("value")?.unwrap_or_default();
        let Some(stream) = from_hex(&digits) else {
            bail!(
                ERR_INFO_VALUE,
                "the \"value\" of the stream is not what MPIX_Info_set_hex makes of a stream"
            );
        };
        let runtime = INSTANCE.runtime()?;
        if !runtime.takes(platform)? {
            let kind = String::from_utf8_lossy(&kind).into_owned();
            bail!(
                ERR_INFO_VALUE,
                "the type of the stream is \"{kind}\", and the driver of such streams is not in use (BANYAN_GPU)"
            )
        }
        Ok(Stream { enqueuer: Enqueuer::new(&runtime, platform, stream)?, handle: OnceLock::new() })
    }

    /// Enqueues work for the call `name`. If it fails the error handler of the communicator is called by the stream's thread, and the error is
    /// returned by the next call on the stream.
    fn enqueue(
        self: &Arc<Self>,
        name: &'static CStr,
        awaited: bool,
        comm: MPI_Comm,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let stream = self.clone();
        self.enqueuer.enqueue(
            awaited,
            Box::new(move |before| {
                let body = move || {
                    before?;
                    work()
                };
                let code = boundary(name, When::Running, Target::Comm(comm), body, || {});
                if code != MPI_SUCCESS {
                    let what = sentence(code).unwrap_or_default();
                    let name = name.to_string_lossy();
                    let what = format!("an operation that was enqueued by {name} has failed: {what}");
                    stream.enqueuer.keep_error(Error::new(Class(code), what));
                }
            }),
        )
    }

    /// Enqueues the start of a message, and gives the user its request.
    fn enqueue_start(
        self: &Arc<Self>,
        name: &'static CStr,
        comm: MPI_Comm,
        request: Ptr<MPI_Request>,
        start: impl FnOnce() -> Result<Request> + Send + 'static,
    ) -> Result<()> {
        let slot = Slot::default();
        // What other functions that complete requests say of it.
        let what = "the request was made on a stream: wait for it there, by MPIX_Wait_enqueue";
        let outcome = Outcome::failed(Error::new(Class::ERR_REQUEST, what.to_owned()));
        let operation = Operation::over(&INSTANCE.runtime()?, outcome);
        let handle = INSTANCE.handles.requests.insert_with(|| Entry { operation, comm })?;
        request.set(MPI_Request(handle))?;
        INSTANCE.streams.known(|known| known.started.insert(handle, (self.clone(), slot.clone())));
        self.enqueue(name, false, comm, move || {
            *lock(&slot) = Some(start());
            Ok(())
        })
    }
}

/// The stream behind hexadecimal digits of its bytes.
fn from_hex(digits: &[u8]) -> Option<usize> {
    let digit = |at: usize| char::from(*digits.get(at)?).to_digit(16);
    let mut bytes = [0; size_of::<usize>()];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = (digit(2 * at)? * 16 + digit(2 * at + 1)?) as u8;
    }
    Some(usize::from_ne_bytes(bytes))
}

/// A communicator for operations on a stream, and its stream.
fn streamed(comm: MPI_Comm) -> Result<(Arc<Comm>, Arc<Stream>)> {
    let object = lookup(comm)?;
    match object.stream() {
        Some(stream) => Ok(((*object).clone(), stream.clone())),
        None => bail!(
            ERR_COMM,
            "the communicator has no stream at this rank: make one that has by MPIX_Stream_comm_create"
        ),
    }
}

/// What was started under this request, which is over for the program with this.
fn taken(request: Ptr<MPI_Request>) -> Result<(Arc<Stream>, Slot, MPI_Comm)> {
    let handle = request.get()?;
    let Some((stream, slot)) = INSTANCE.streams.known(|known| known.started.remove(&handle.0)) else {
        bail!(ERR_REQUEST, "the request is of no operation that was started on a stream and not waited for");
    };
    let entry = INSTANCE.handles.requests.remove(handle.0)?;
    request.set(MPI_REQUEST_NULL)?;
    Ok((stream, slot, entry.comm))
}

/// Waits for what was started, in the stream's thread.
fn wait(slot: &Slot, status: Ptr<MPI_Status>) -> Result<()> {
    match lock(slot).take() {
        Some(started) => finish(started?.wait(), status),
        None => bail!(ERR_INTERN, "the operation was not started in its stream; please report it"),
    }
}

/// Declares functions of mpi-ext.h.
macro_rules! mpix {
    ($(fn $name:ident($this:ident; $($arg:ident: $type:ty),*) on $target:expr, $when:ident $body:block)+) => {$(
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            #[allow(clippy::too_many_arguments, reason = "MPICH's parameters")]
            fn body($this: &'static CStr, $($arg: $type),*) -> Result<()> $body
            let name = const { named(concat!(stringify!($name), "\0")) };
            boundary(name, When::$when, $target, move || body(name, $($arg),*), || {})
        }
    )+};
}

mpix! {
    fn MPIX_Info_set_hex(_this; info: MPI_Info, key: Ptr<c_char>, value: Ptr<c_void>, value_size: c_int) on SelfComm, Always {
        let Ok(size) = usize::try_from(value_size) else { bail!(ERR_ARG, "the size of the value is {value_size}") };
        let bytes: Vec<u8> = value.cast::<u8>().list(size)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        info::lookup(info)?.set(key.bytes()?, digits)
    }

    fn MPIX_Stream_create(_this; info: MPI_Info, stream: Ptr<MPIX_Stream>) on SelfComm, Running {
        stream.set(MPIX_STREAM_NULL)?;
        let new = Arc::new(Stream::of(info)?);
        let handle = INSTANCE.handles.streams.insert(new.clone())?;
        let _ = new.handle.set(handle);
        INSTANCE.streams.known(|known| {
            known.streams.retain(|stream| stream.strong_count() > 0);
            known.streams.push(Arc::downgrade(&new));
        });
        stream.set(MPIX_Stream(handle))
    }

    fn MPIX_Stream_free(_this; stream: Ptr<MPIX_Stream>) on SelfComm, Running {
        let old = INSTANCE.handles.streams.remove(stream.get()?.0)?;
        stream.set(MPIX_STREAM_NULL)?;
        old.enqueuer.drain()
    }

    fn MPIX_Stream_comm_create(_this; comm: MPI_Comm, stream: MPIX_Stream, newcomm: Ptr<MPI_Comm>) on comm, Running {
        newcomm.set(MPI_COMM_NULL)?;
        let new = lookup(comm)?.dup()?;
        let stream = match stream {
            MPIX_STREAM_NULL => None,
            MPIX_Stream(handle) => Some(INSTANCE.handles.streams.lookup(handle)?),
        };
        comm::give_with_stream(newcomm, new, Attributes::new(), stream)
    }

    fn MPIX_Comm_get_stream(_this; comm: MPI_Comm, idx: c_int, stream: Ptr<MPIX_Stream>) on comm, Running {
        if idx != 0 {
            bail!(ERR_ARG, "the stream number is {idx}, but a communicator has one at most");
        }
        let handle = lookup(comm)?.stream().and_then(|stream| stream.handle.get().copied());
        stream.set(handle.map_or(MPIX_STREAM_NULL, MPIX_Stream))
    }

    fn MPIX_Send_enqueue(
        this; buf: Ptr<c_void>, count: c_int, datatype: MPI_Datatype, dest: c_int, tag: c_int, comm: MPI_Comm
    ) on comm, Running {
        let ((on, stream), data) = (streamed(comm)?, data(buf, count, datatype, dest)?);
        stream.enqueue(this, true, comm, move || on.send(&data, dest_of(dest), tag, SendMode::Standard))
    }

    fn MPIX_Recv_enqueue(
        this; buf: Ptr<c_void>, count: c_int, datatype: MPI_Datatype, source: c_int, tag: c_int, comm: MPI_Comm,
        status: Ptr<MPI_Status>
    ) on comm, Running {
        let ((on, stream), data, status) = (streamed(comm)?, data(buf, count, datatype, source)?, Later(status));
        stream.enqueue(this, true, comm, move || finish(on.recv(&data, source_of(source), any_tag(tag)), status.take()))
    }

    fn MPIX_Allreduce_enqueue(
        this; sendbuf: Ptr<c_void>, recvbuf: Ptr<c_void>, count: c_int, datatype: MPI_Datatype, op: MPI_Op, comm: MPI_Comm
    ) on comm, Running {
        let (on, stream) = streamed(comm)?;
        let call = on.allreduce(Kind::Allreduce, (&sendbuf, &recvbuf), coll::reduced(count, datatype, op)?)?;
        stream.enqueue(this, true, comm, move || on.run(call))
    }

    fn MPIX_Isend_enqueue(
        this; buf: Ptr<c_void>, count: c_int, datatype: MPI_Datatype, dest: c_int, tag: c_int, comm: MPI_Comm,
        request: Ptr<MPI_Request>
    ) on comm, Running {
        let ((on, stream), data) = (streamed(comm)?, data(buf, count, datatype, dest)?);
        stream.enqueue_start(this, comm, request, move || {
            Ok(on.isend(&data, dest_of(dest), tag, SendMode::Standard)?.hold(on.runtime()))
        })
    }

    fn MPIX_Irecv_enqueue(
        this; buf: Ptr<c_void>, count: c_int, datatype: MPI_Datatype, source: c_int, tag: c_int, comm: MPI_Comm,
        request: Ptr<MPI_Request>
    ) on comm, Running {
        let ((on, stream), data) = (streamed(comm)?, data(buf, count, datatype, source)?);
        stream.enqueue_start(this, comm, request, move || {
            Ok(on.irecv(&data, source_of(source), any_tag(tag))?.hold(on.runtime()))
        })
    }

    fn MPIX_Wait_enqueue(this; request: Ptr<MPI_Request>, status: Ptr<MPI_Status>) on SelfComm, Running {
        if request.get()? == MPI_REQUEST_NULL {
            store_empty(status);
            return Ok(());
        }
        let ((stream, slot, comm), status) = (taken(request)?, Later(status));
        stream.enqueue(this, true, comm, move || wait(&slot, status.take()))
    }

    fn MPIX_Waitall_enqueue(
        this; count: c_int, requests: Ptr<MPI_Request>, statuses: Ptr<MPI_Status>
    ) on SelfComm, Running {
        for at in 0..count.max(0) as usize {
            let status = statuses.nth(at);
            if requests.at(at)? == MPI_REQUEST_NULL {
                store_empty(status);
                continue;
            }
            let ((stream, slot, comm), status) = (taken(requests.nth(at))?, Later(status));
            stream.enqueue(this, true, comm, move || wait(&slot, status.take()))?;
        }
        Ok(())
    }
}
