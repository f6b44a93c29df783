//! [`Table`]: the functions of a fabric as its library gives them, and what crosses besides the values of the contract.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::{Allocation, Buffer, DeviceFailure, Drivers, Exporter, PciAddress};
use banyan_transport::{
    Access, Atomic, Caps, DeviceMoves, Head, Order, Outcome, Peer, Refusal, RegisterError, Remote, Sent,
    Token, Transfer, Wake,
};

/// The version of the table and of all that crosses. It changes with them.
const VERSION: u32 = 6;

/// What tells tables of different releases apart.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edition {
    version: u32,
    /// Bytes of the table and of the largest values that cross.
    sizes: [u32; 3],
}

impl Edition {
    pub(crate) const OURS: Edition = Edition {
        version: VERSION,
        sizes: [size_of::<Table>() as u32, size_of::<Caps>() as u32, size_of::<Terms>() as u32],
    };
}

/// A fabric behind the table: what [`Table::start`] gave.
pub(crate) type Handle = *mut c_void;

/// The functions of a fabric. Each says what the method of this name says. What they are given is there until they return, unless
/// the method needs it for longer.
#[repr(C)]
pub struct Table {
    /// Comes first in every version.
    pub(crate) edition: Edition,
    pub(crate) start: unsafe extern "C" fn(&Terms<'_>, card: Say, why: Say) -> Begun,
    /// Ends the fabric: its handle is good for nothing from then on.
    pub(crate) end: unsafe extern "C" fn(Handle),
    pub(crate) caps: unsafe extern "C" fn(Handle, Peer) -> Caps,
    pub(crate) send_short: unsafe extern "C" fn(Handle, Peer, &Head, Bytes) -> Posted,
    pub(crate) send_bcopy: unsafe extern "C" fn(Handle, Peer, &Head, usize, Fill) -> Posted,
    pub(crate) send_from: unsafe extern "C" fn(Handle, Peer, &Head, Memory, Option<&Token>, Order) -> Posted,
    pub(crate) register: unsafe extern "C" fn(Handle, Peer, Memory, Access, &mut Remote) -> Registered,
    pub(crate) withdraw: unsafe extern "C" fn(Handle, Peer, Remote),
    pub(crate) revoke: unsafe extern "C" fn(Handle, Peer, Remote),
    pub(crate) get: unsafe extern "C" fn(Handle, Peer, Remote, *const Memory, usize, Token) -> Transfer,
    pub(crate) put: unsafe extern "C" fn(Handle, Peer, Remote, *const Memory, usize, Token) -> Transfer,
    pub(crate) atomic: unsafe extern "C" fn(Handle, Peer, Remote, &Atomic, Memory, Token) -> Transfer,
    pub(crate) device_moves: unsafe extern "C" fn(Handle, Peer) -> DeviceMoves,
    pub(crate) reclaim: unsafe extern "C" fn(Handle, Peer, Token),
    pub(crate) reaches: unsafe extern "C" fn(Handle, Peer) -> bool,
    pub(crate) connect: unsafe extern "C" fn(Handle, Peer, Bytes, why: Say) -> bool,
    pub(crate) peer_died: unsafe extern "C" fn(Handle, Peer, Bytes),
    /// With a sink, and the functions that take it.
    pub(crate) poll: unsafe extern "C" fn(Handle, *mut c_void, &Events) -> usize,
    pub(crate) linger: unsafe extern "C" fn(Handle, u32, *mut c_void, &Events) -> usize,
    pub(crate) by_kernel: unsafe extern "C" fn(Handle) -> bool,
    pub(crate) unsent: unsafe extern "C" fn(Handle) -> bool,
    pub(crate) arm: unsafe extern "C" fn(Handle, Wake),
    pub(crate) disarm: unsafe extern "C" fn(Handle),
    pub(crate) has_news: unsafe extern "C" fn(Handle) -> bool,
    pub(crate) sleep: unsafe extern "C" fn(Handle, Until),
    /// Gives a descriptor that is the caller's, or an error number with a minus.
    pub(crate) descriptor: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) next_deadline: unsafe extern "C" fn(Handle) -> Until,
    /// Says nothing if there is nothing to say.
    pub(crate) account: unsafe extern "C" fn(Handle, Say),
}

/// The functions of a [`Sink`](banyan_transport::Sink), but for those by which a fabric writes a body where it belongs. Each takes the
/// sink that came with the poll.
#[repr(C)]
pub(crate) struct Events {
    pub(crate) frame: unsafe extern "C" fn(*mut c_void, Peer, &Head, Bytes),
    pub(crate) sent: unsafe extern "C" fn(*mut c_void, Token),
    pub(crate) completed: unsafe extern "C" fn(*mut c_void, Token, Outcome),
    pub(crate) down: unsafe extern "C" fn(*mut c_void, Peer, Bytes),
    pub(crate) wanted: unsafe extern "C" fn(*mut c_void, Peer),
    pub(crate) unreached: unsafe extern "C" fn(*mut c_void, Peer),
}

/// What a fabric is told of the job: [`Joining`](banyan_transport::Joining), as far as it concerns networks.
#[repr(C)]
pub(crate) struct Terms<'a> {
    pub(crate) me: Peer,
    pub(crate) size: u32,
    pub(crate) job: u64,
    pub(crate) secret: &'a [u8; 32],
    pub(crate) node: *const Peer,
    pub(crate) node_len: usize,
    pub(crate) nodes: u32,
    pub(crate) crowded: bool,
    pub(crate) nics: Bytes,
    pub(crate) rdma: Bytes,
    pub(crate) topology: Bytes,
    /// Nanoseconds.
    pub(crate) patience: u64,
}

/// What became of a start.
#[repr(C)]
pub(crate) struct Begun {
    pub(crate) fabric: Handle,
    pub(crate) how: Start,
}

/// How a start ended.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    Started,
    Unused,
    Absent,
    Broken,
    Fatal,
}

/// What became of a send.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Posted {
    Done,
    Started,
    Busy,
    Down,
}

impl From<Result<Sent, Refusal>> for Posted {
    fn from(sent: Result<Sent, Refusal>) -> Posted {
        match sent {
            Ok(Sent::Done) => Posted::Done,
            Ok(Sent::Started) => Posted::Started,
            Err(Refusal::Busy) => Posted::Busy,
            Err(Refusal::Down) => Posted::Down,
        }
    }
}

impl From<Posted> for Result<Sent, Refusal> {
    fn from(posted: Posted) -> Result<Sent, Refusal> {
        match posted {
            Posted::Done => Ok(Sent::Done),
            Posted::Started => Ok(Sent::Started),
            Posted::Busy => Err(Refusal::Busy),
            Posted::Down => Err(Refusal::Down),
        }
    }
}

/// What became of a registration.
#[repr(C)]
pub(crate) enum Registered {
    Done,
    Unsupported,
    NoRoom,
}

impl From<RegisterError> for Registered {
    fn from(error: RegisterError) -> Registered {
        match error {
            RegisterError::Unsupported => Registered::Unsupported,
            RegisterError::NoRoom => Registered::NoRoom,
        }
    }
}

/// Nanoseconds until a moment; `u64::MAX`: there is none.
#[repr(transparent)]
pub(crate) struct Until(u64);

impl From<Option<Instant>> for Until {
    fn from(moment: Option<Instant>) -> Until {
        let left = |moment: Instant| moment.saturating_duration_since(Instant::now());
        Until(moment.map_or(u64::MAX, |moment| u64::try_from(left(moment).as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl From<Until> for Option<Instant> {
    fn from(Until(nanoseconds): Until) -> Option<Instant> {
        let left = (nanoseconds != u64::MAX).then(|| Duration::from_nanos(nanoseconds))?;
        Instant::now().checked_add(left)
    }
}

/// A slice, for the time of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    start: *const u8,
    len: usize,
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes { start: bytes.as_ptr(), len: bytes.len() }
    }
}

impl Bytes {
    /// # Safety
    /// The slice that this was made of is there for so long.
    pub(crate) unsafe fn get<'a>(self) -> &'a [u8] {
        // SAFETY: made of a slice, which by the caller is there.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The slice as text, which it is.
    ///
    /// # Safety
    /// As for [`Bytes::get`].
    pub(crate) unsafe fn text(self) -> String {
        // SAFETY: by the caller.
        String::from_utf8_lossy(unsafe { self.get() }).into_owned()
    }
}

/// The range of a buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
    /// Who tells of the memory, if it is a device's.
    drivers: Option<&'static DriverTable>,
}

impl From<&Buffer> for Memory {
    fn from(buffer: &Buffer) -> Memory {
        let drivers = (!buffer.kind().is_host_accessible()).then_some(&DriverTable::OURS);
        Memory { start: buffer.address(buffer.lo()) as *mut u8, len: buffer.len(), drivers }
    }
}

impl Memory {
    /// # Safety
    /// As for [`Buffer::new`].
    pub(crate) unsafe fn buffer(self) -> Buffer {
        match self.drivers {
            // SAFETY: by the caller.
            None => unsafe { Buffer::new(self.start, self.len) },
            Some(drivers) => Buffer::elsewhere(self.start, self.len, Arc::new(drivers)),
        }
    }
}

/// The functions of [`Exporter`], as a library calls those of the drivers of the process that has loaded it.
#[repr(C)]
pub(crate) struct DriverTable {
    /// True if there is an allocation that has this address, which it then tells.
    allocation: unsafe extern "C" fn(usize, &mut Allocation) -> bool,
    /// Gives a descriptor that is the caller's, or a negative number, and says why.
    dma_buf: unsafe extern "C" fn(usize, usize, why: Say) -> c_int,
}

impl DriverTable {
    const OURS: DriverTable = DriverTable { allocation, dma_buf };
}

unsafe extern "C" fn allocation(address: usize, told: &mut Allocation) -> bool {
    Drivers.allocation(address).map(|found| *told = found).is_some()
}

unsafe extern "C" fn dma_buf(start: usize, len: usize, why: Say) -> c_int {
    match Drivers.dma_buf(&(start..start + len)) {
        Ok(descriptor) => descriptor.into_raw_fd(),
        Err(failure) => {
            // SAFETY: inside the call that it came with.
            unsafe { why.say(failure.what.as_bytes()) };
            -1
        }
    }
}

impl Exporter for &'static DriverTable {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        let mut told = Allocation { id: 0, start: 0, len: 0, device: PciAddress::new("") };
        // SAFETY: a function of the other side, and room for what it tells.
        unsafe { (self.allocation)(address, &mut told) }.then_some(told)
    }

    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        let mut why = Vec::new();
        // SAFETY: as above.
        match unsafe { (self.dma_buf)(pages.start, pages.len(), Say::into(&mut why)) } {
            error if error < 0 => Err(DeviceFailure { what: String::from_utf8_lossy(&why).into_owned() }),
            // SAFETY: a descriptor that the other side gives away.
            descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        }
    }
}

/// What takes bytes: a business card, or a sentence.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Say {
    pub(crate) to: *mut c_void,
    pub(crate) say: unsafe extern "C" fn(*mut c_void, Bytes),
}

impl Say {
    /// What puts bytes into a vector.
    pub(crate) fn into(vector: &mut Vec<u8>) -> Say {
        unsafe extern "C" fn put(to: *mut c_void, bytes: Bytes) {
            // SAFETY: called with the vector below, inside the call that this was made for; so no other reference is in use.
            unsafe { (*to.cast::<Vec<u8>>()).extend_from_slice(bytes.get()) };
        }
        Say { to: (&raw mut *vector).cast(), say: put }
    }

    /// # Safety
    /// Inside the call that this came with.
    pub(crate) unsafe fn say(self, bytes: &[u8]) {
        // SAFETY: by the caller.
        unsafe { (self.say)(self.to, bytes.into()) };
    }
}

/// What fills the body of a frame.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) by: *mut c_void,
    pub(crate) fill: unsafe extern "C" fn(*mut c_void, *mut u8, usize),
}
