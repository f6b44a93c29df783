//! Memory of devices: which there is, and the copies that a device's driver carries out, in its own time. Everything here lies
//! beside the way of host memory, which never comes here.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::buffer::{Buffer, Owner};
use crate::dma_buf::{Allocation, no_dma_buf};
use crate::kernel::{Launch, Value};
use crate::shared::{Exported, no_device};
use crate::{HeapBuffer, MemoryKind, stats};

/// Which way bytes go between memory of a device and the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Out of the device's memory.
    Read,
    /// Into the device's memory.
    Write,
}

/// The driver of a device: the only one who may touch the device's memory.
pub(crate) trait Device: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// What messages call it.
    fn name(&self) -> &str;

    /// True if this device copies between its own memory and that of the other one.
    fn reaches(&self, _other: &dyn Device) -> bool {
        false
    }

    /// Which driver it belongs to: devices of one driver may reach each other. No two drivers have the same.
    fn driver(&self) -> &'static str;

    /// Starts to copy `len` bytes, of which at least one side is memory of the device, and returns a number for the copy. Copies
    /// that are under way at a time have no order.
    ///
    /// # Errors
    /// Why it cannot: nothing was copied.
    ///
    /// # Safety
    /// The ranges do not overlap. Both stay valid, and what is read there unchanged, until [`Device::is_over`] says that the copy is
    /// over.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<u64, DeviceFailure>;

    /// Copies as [`Device::copy`] does, and returns when that is over.
    ///
    /// # Errors
    /// Why it cannot.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    unsafe fn copy_now(&self, to: *mut u8, from: *const u8, len: usize) -> Result<(), DeviceFailure> {
        // SAFETY: as the caller promises; the copy is over when this returns.
        let number = unsafe { self.copy(to, from, len) }?;
        while !self.is_over(number)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Copies as [`Device::copy_now`] does, by the processor, where that is quicker and it reaches the device's memory: that is one side alone. False: the
    /// driver has to, and bytes may have been copied.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    unsafe fn copy_mapped(
        &self,
        _direction: Direction,
        _there: *mut u8,
        _here: *mut u8,
        _len: usize,
    ) -> bool {
        false
    }

    /// Has its driver pin memory of the host that stays mapped while it is pinned, so that copies from and to it are quick; false if it does not.
    fn pin(&self, _address: *mut u8, _len: usize) -> bool {
        false
    }

    /// Undoes what [`Device::pin`] did.
    fn unpin(&self, _address: *mut u8) {}

    /// Starts a kernel on values for its parameters, and returns a number for it, as [`Device::copy`] does.
    ///
    /// # Errors
    /// Why it cannot: nothing runs.
    ///
    /// # Safety
    /// As for [`Launch::start`]; memory stays valid until [`Device::is_over`] says that the kernel is over.
    unsafe fn launch(&self, launch: &Launch<'_>, _values: &[Value<'_>]) -> Result<u64, DeviceFailure> {
        let name = launch.name.to_string_lossy();
        Err(DeviceFailure { what: format!("the kernel {name} cannot run: {} runs none", self.name()) })
    }

    /// Memory of the device for our own use, of at least so many bytes: the address, and how many they are.
    ///
    /// # Errors
    /// Why there is none.
    fn allocate(&self, len: usize) -> Result<(*mut u8, usize), DeviceFailure> {
        Err(DeviceFailure { what: format!("{} gives no {len} bytes of memory", self.name()) })
    }

    /// Takes back memory of [`Device::allocate`].
    ///
    /// # Safety
    /// Nobody uses it any more.
    unsafe fn free(&self, _address: *mut u8, _len: usize) {}

    /// How other processes reach the allocation that has this address; `None`: they do not.
    fn export(&self, _address: usize) -> Option<Exported> {
        None
    }

    /// Maps an allocation of another process; the address of its first byte.
    ///
    /// # Errors
    /// Why it cannot.
    fn import(&self, _exported: &Exported) -> Result<*mut u8, DeviceFailure> {
        Err(no_device())
    }

    /// Unmaps what [`Device::import`] has mapped.
    fn close(&self, _start: *mut u8) {}

    /// The allocation that has this address; `None`: the driver numbers none there.
    fn allocation(&self, _address: usize) -> Option<Allocation> {
        None
    }

    /// A dma-buf of whole pages of one allocation, by which other devices get at them.
    ///
    /// # Errors
    /// Why the driver gives none.
    fn dma_buf(&self, _pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        Err(no_dma_buf(self.name()))
    }

    /// Other devices have written to memory of this one: what it begins from now on sees that.
    ///
    /// # Errors
    /// That cannot be said of it.
    fn settle(&self) -> Result<(), DeviceFailure> {
        Ok(())
    }

    /// True if all bytes of the copy of that number are where they belong, or the kernel has ended; from then on whenever it is asked.
    ///
    /// # Errors
    /// What became of it. From then on it counts as over.
    fn is_over(&self, number: u64) -> Result<bool, DeviceFailure>;
}

/// A device has not done what it was told. Where a call cannot go on without that it unwinds with this value (without a panic's
/// message), so that code that catches panics can tell it from a fault of the library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFailure {
    /// A sentence: what failed, why, and what to do.
    pub what: String,
}

thread_local! {
    /// What this thread unwinds with, if it is a [`DeviceFailure`].
    static UNWINDS: RefCell<Option<DeviceFailure>> = const { RefCell::new(None) };
}

impl DeviceFailure {
    /// Ends the call that is under way.
    #[cold]
    pub fn unwind(self) -> ! {
        UNWINDS.set(Some(self.clone()));
        std::panic::resume_unwind(Box::new(self))
    }

    /// The failure that this thread unwinds with now; `None`: with none.
    pub fn that_unwinds() -> Option<DeviceFailure> {
        std::thread::panicking().then(|| UNWINDS.with_borrow(Option::clone))?
    }

    /// Does some work that may end so, and gives the failure instead: what the work has changed must be good in either case.
    ///
    /// # Errors
    /// The failure that the work has ended with.
    pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, DeviceFailure> {
        let outer = UNWINDS.take();
        let over = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        UNWINDS.set(outer);
        over.map_err(|panic| match panic.downcast::<DeviceFailure>() {
            Ok(failure) => *failure,
            Err(other) => std::panic::resume_unwind(other),
        })
    }
}

/// What a user's address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryClass {
    /// Memory of the host, of which no driver knows.
    Host,
    /// Memory of the host that a driver has pinned.
    Pinned,
    /// Memory that moves between the host and devices as it is touched. Its driver copies it; the processor may touch it, too,
    /// if `shared`.
    Managed {
        /// The processor may touch it at any time.
        shared: bool,
    },
    /// Memory of the device of that number.
    Device(u32),
}

impl MemoryClass {
    /// True if the processor may touch it.
    pub fn is_host_accessible(self) -> bool {
        matches!(self, MemoryClass::Host | MemoryClass::Pinned | MemoryClass::Managed { shared: true })
    }
}

/// What a driver knows of an address.
pub(crate) type Found = Result<Option<(MemoryClass, Option<Arc<Owner>>)>, DeviceFailure>;

/// Who can tell whether memory is a device's.
pub(crate) trait Finder: Send + Sync {
    /// What memory the byte at this address is, and whose, if a driver copies it; `None`: it is not known here.
    ///
    /// # Errors
    /// Nobody can go to this memory.
    fn find(&self, address: usize) -> Found;

    /// A device that memory of other processes may be mapped for, where none is told by the memory that it is copied to.
    fn any(&self) -> Option<Arc<Owner>> {
        None
    }
}

/// Users' addresses above this one are host memory for sure: those of MPI's constants (0 to 2) are not, and with the first device
/// no address is any more.
static HOST_ABOVE: AtomicUsize = AtomicUsize::new(MOST_CONSTANT);

/// The highest address that is a constant of MPI's C interface.
pub const MOST_CONSTANT: usize = 2;

static FINDERS: RwLock<Vec<Arc<dyn Finder>>> = RwLock::new(vec![]);

/// True if users' memory at this address is host memory for sure. False: it is no memory at all, or [`Buffer::classified`]
/// has to look.
#[inline(always)]
pub fn surely_host(address: usize) -> bool {
    address > HOST_ABOVE.load(Ordering::Relaxed)
}

/// From now on memory that it finds is known as such where users pass it.
pub(crate) fn add(finder: Arc<dyn Finder>) {
    FINDERS.write().unwrap_or_else(PoisonError::into_inner).push(finder);
    HOST_ABOVE.store(usize::MAX, Ordering::Relaxed);
}

/// What memory a user's address is, and its owner if a driver copies it.
fn find(address: usize) -> Result<(MemoryClass, Option<Arc<Owner>>), DeviceFailure> {
    let finders = FINDERS.read().unwrap_or_else(PoisonError::into_inner);
    let mut refused = None;
    for finder in finders.iter() {
        match finder.find(address) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(failure) => refused = Some(failure),
        }
    }
    refused.map_or(Ok((MemoryClass::Host, None)), Err)
}

/// The device whose memory has a user's address.
pub(crate) fn owner_at(address: usize) -> Option<Arc<Owner>> {
    find(address).ok()?.1
}

/// The device whose memory it is; else any device.
pub(crate) fn owner_near(memory: &Buffer) -> Result<Arc<Owner>, DeviceFailure> {
    if let Some(owner) = memory.device_owner() {
        return Ok(owner.clone());
    }
    let finders = FINDERS.read().unwrap_or_else(PoisonError::into_inner);
    finders.iter().find_map(|finder| finder.any()).ok_or_else(no_device)
}

/// What memory a user's address is; host memory if that cannot be told.
#[cold]
pub fn class_at(address: usize) -> MemoryClass {
    find(address).map_or(MemoryClass::Host, |found| found.0)
}

/// What kind of memory a user's address is: who copies it.
#[cold]
pub fn kind_at(address: usize) -> MemoryKind {
    match find(address) {
        Ok((_, Some(_))) => MemoryKind::Device,
        _ => MemoryKind::Host,
    }
}

/// A copy, or the run of a kernel, that a device has begun. Whoever drops it waits until it is over, and does not ask what became of it.
#[must_use]
#[derive(Debug)]
pub struct Copying {
    device: Arc<Owner>,
    number: u64,
    /// The memory lives as long as the copy.
    _held: Held,
}

/// The memory that something under way goes to.
#[derive(Debug)]
pub(crate) enum Held {
    Ends(#[expect(dead_code, reason = "is kept")] [Buffer; 2]),
    Parts(#[expect(dead_code, reason = "is kept")] Vec<Buffer>),
}

impl Copying {
    pub(crate) fn new(device: Arc<Owner>, number: u64, held: Held) -> Copying {
        Copying { device, number, _held: held }
    }

    /// True if the bytes are where they belong. If the device has failed, the call that is under way ends
    /// ([`DeviceFailure::unwind`]).
    pub fn is_over(&self) -> bool {
        self.poll().unwrap_or_else(|failure| failure.unwind())
    }

    /// Waits until the bytes are where they belong; ends the call as [`Copying::is_over`] does.
    pub fn wait(self) {
        while !self.is_over() {
            std::thread::yield_now();
        }
    }

    fn poll(&self) -> Result<bool, DeviceFailure> {
        self.device.device().map_or(Ok(true), |device| device.is_over(self.number))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        while matches!(self.poll(), Ok(false)) {
            std::thread::yield_now();
        }
    }
}

/// Who makes a copy.
enum By<'a> {
    /// There are no bytes.
    Nobody,
    Processor,
    /// The driver of this device.
    Driver(&'a Arc<Owner>),
    /// Drivers, by way of the host's memory.
    Host,
}

impl Buffer {
    /// A user's memory of whatever kind: the bytes `origin + lo .. origin + hi`.
    ///
    /// # Errors
    /// Nobody can go to this memory: it was a device's and is freed, or was never there.
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range.
    #[cold]
    pub unsafe fn classified(origin: *mut u8, lo: isize, hi: isize) -> Result<Buffer, DeviceFailure> {
        Ok(match find(origin.wrapping_offset(lo) as usize)?.1 {
            // SAFETY: as the caller promises.
            None => unsafe { Buffer::with_bounds(origin, lo, hi) },
            Some(owner) => Buffer::of_device(origin, lo, hi, owner),
        })
    }

    /// Starts what [`Buffer::copy_from`] does. `None`: it is over, as it always is between buffers of host memory.
    ///
    /// # Panics
    /// As [`Buffer::copy_from`].
    pub fn start_copy_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) -> Option<Copying> {
        match self.copied_by(at, from, from_at, len) {
            By::Nobody => None,
            By::Processor => {
                self.copy_from(at, from, from_at, len);
                None
            }
            By::Host => self.start_copy_by_host(at, from, from_at, len),
            By::Driver(owner) => {
                let device = owner.device()?;
                let ends = [self.slice(at, len), from.slice(from_at, len)];
                if is_copied_by_mapping(device, &ends, len) {
                    return None;
                }
                // SAFETY: both ranges are inside bounds that the makers promised (checked by `slice`), and the value that is returned
                // keeps the memory until the copy is over.
                match unsafe { device.copy(ends[0].first(), ends[1].first(), len) } {
                    Ok(number) => Some(Copying::new(owner.clone(), number, Held::Ends(ends))),
                    Err(failure) => self.start_otherwise(at, from, from_at, len, failure),
                }
            }
        }
    }

    /// [`Buffer::start_copy_from`] where a driver has refused.
    fn start_otherwise(
        &self,
        at: isize,
        from: &Buffer,
        from_at: isize,
        len: usize,
        failure: DeviceFailure,
    ) -> Option<Copying> {
        if self.device_owner().is_none() || from.device_owner().is_none() {
            failure.unwind();
        }
        self.start_copy_by_host(at, from, from_at, len)
    }

    /// [`Buffer::start_copy_from`] that is over when this returns: of few bytes that is quicker than to ask whether it is.
    pub(crate) fn copy_now_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        let By::Driver(owner) = self.copied_by(at, from, from_at, len) else {
            return self.start_copy_from(at, from, from_at, len).into_iter().for_each(Copying::wait);
        };
        let Some(device) = owner.device() else { return };
        let ends = [self.slice(at, len), from.slice(from_at, len)];
        if is_copied_by_mapping(device, &ends, len) {
            return;
        }
        // SAFETY: as in `start_copy_from`; the copy is over when this returns.
        if let Err(failure) = unsafe { device.copy_now(ends[0].first(), ends[1].first(), len) } {
            self.start_otherwise(at, from, from_at, len, failure).into_iter().for_each(Copying::wait);
        }
    }

    /// Who makes a copy from `from`.
    fn copied_by<'a>(&'a self, at: isize, from: &'a Buffer, from_at: isize, len: usize) -> By<'a> {
        let (to_owner, from_owner) = (self.device_owner(), from.device_owner());
        match (to_owner, from_owner) {
            _ if len == 0 => By::Nobody,
            (None, None) => By::Processor,
            (Some(one), Some(other))
                if !reach(one, other) || self.address(at).abs_diff(from.address(from_at)) < len =>
            {
                // No driver reaches both, or the ranges overlap.
                By::Host
            }
            (to, Some(owner)) => {
                stats::add(if to.is_some() { &stats::BYTES_BETWEEN } else { &stats::BYTES_FROM }, len);
                By::Driver(owner)
            }
            (Some(owner), None) => {
                stats::add(&stats::BYTES_TO, len);
                By::Driver(owner)
            }
        }
    }

    /// A copy from device to device by way of the host's memory: the first half is over when this returns.
    fn start_copy_by_host(&self, at: isize, from: &Buffer, from_at: isize, len: usize) -> Option<Copying> {
        stats::count(&stats::COPIES_BY_HOST);
        let between = HeapBuffer::zeroed(len);
        between.copy_now_from(0, from, from_at, len);
        self.start_copy_from(at, &between, 0, len)
    }

    /// True if both are memory of one device, whose kernels may go to both. Copies may lead further: a driver takes them by way of the host
    /// where one device does not reach the memory of another.
    pub fn shares_device(&self, other: &Buffer) -> bool {
        self.device_owner().zip(other.device_owner()).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// What device the memory is of.
    pub(crate) fn device_owner(&self) -> Option<&Arc<Owner>> {
        self.owner().filter(|owner| owner.device().is_some())
    }
}

/// Has the processor copy all of the second buffer to the first one, where one of them is the device's memory, which it has mapped.
fn is_copied_by_mapping(device: &dyn Device, [to, from]: &[Buffer; 2], len: usize) -> bool {
    let (direction, there, here) = match (to.kind(), from.kind()) {
        (MemoryKind::Device, MemoryKind::Host) => (Direction::Write, to.first(), from.first()),
        (MemoryKind::Host, MemoryKind::Device) => (Direction::Read, from.first(), to.first()),
        _ => return false,
    };
    // SAFETY: both are of this length, inside bounds that their makers promised; the copy is over when this returns.
    unsafe { device.copy_mapped(direction, there, here, len) }
}

/// True if a copy between both devices can be told to the second one.
fn reach(one: &Arc<Owner>, other: &Arc<Owner>) -> bool {
    Arc::ptr_eq(one, other)
        || one
            .device()
            .zip(other.device())
            .is_some_and(|(one, other)| one.driver() == other.driver() && other.reaches(one))
}

/// What every device keeps. `alloc` gives memory of it, which has [`SUITE_BYTES`] of it in all. What finds users' pointers to it also passes
/// [`users_pointers_are_classified`].
#[cfg(test)]
pub(crate) fn suite(alloc: &dyn Fn(usize) -> Buffer) {
    bytes_arrive_and_nothing_else_is_touched(alloc);
    let (there, back) = (alloc(100), HeapBuffer::zeroed(10));
    let whole = there.rebased(-20);
    assert_eq!((whole.kind(), whole.lo(), whole.hi(), whole.len()), (MemoryKind::Device, 20, 120, 100));
    // To the device, from it, and within it.
    whole.write(25, b"0123456789");
    let mut out = [0; 5];
    whole.slice(27, 5).read(0, &mut out);
    assert_eq!(&out, b"23456");
    there.copy_from(50, &there, 5, 10);
    let copies: Vec<Option<Copying>> = (0..10).map(|i| back.start_copy_from(i, &there, 50 + i, 1)).collect();
    assert!(copies.iter().all(Option::is_some), "they are the device's");
    drop(copies);
    let mut all = [0; 10];
    back.read(0, &mut all);
    assert_eq!(&all, b"0123456789");
    assert!(back.start_copy_from(0, &back, 5, 5).is_none(), "host memory is copied at once");
    // The processor is kept from its memory, and everybody from what is outside.
    let said = |f: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("a refusal");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    assert!(said(&|| assert!(there.ptr(0, 1).is_null())).contains("which the processor cannot touch"));
    let outside: [&dyn Fn(); 7] = [
        &|| drop(there.slice(110, 1)),
        &|| drop(there.slice(96, 5)),
        &|| drop(there.slice(-1, 1)),
        &|| there.write(100, b"x"),
        &|| there.read(-1, &mut [0]),
        &|| back.copy_from(6, &there, 0, 5),
        &|| there.copy_from(96, &back, 0, 5),
    ];
    for access in outside {
        assert!(said(access).contains("outside"));
    }
    there.write(100, b"");
    assert_eq!(there.slice(100, 0).len(), 0);
}

/// Bytes of a device's memory that [`suite`] takes.
#[cfg(test)]
pub(crate) const SUITE_BYTES: usize = 1 << 15;

/// Copies to the device, within it and from it, of all lengths and alignments, many of them under way at a time and waited for in any
/// order; all memory is compared after each batch.
#[cfg(test)]
fn bytes_arrive_and_nothing_else_is_touched(alloc: &dyn Fn(usize) -> Buffer) {
    const BYTES: usize = 10_000;
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let ends = [HeapBuffer::zeroed(BYTES), alloc(BYTES), alloc(BYTES), HeapBuffer::zeroed(BYTES)];
    let mut expected = [(); 4].map(|()| (0..BYTES).map(|_| random(256) as u8).collect::<Vec<_>>());
    ends.iter().zip(&expected).for_each(|(end, bytes)| end.write(0, bytes));
    let ways = [(0, 1), (1, 3), (1, 2), (2, 3), (2, 1)];
    for (round, (from, to)) in ways.into_iter().cycle().take(30).enumerate() {
        let (mut at, mut copies) = (random(50), vec![]);
        loop {
            let len = [random(20), 250 + random(12), 1 + random(3000)][random(3)];
            if at + len > BYTES {
                break;
            }
            let from_at = random(BYTES - len);
            copies.extend(ends[to].start_copy_from(at as isize, &ends[from], from_at as isize, len));
            let bytes = expected[from][from_at..from_at + len].to_vec();
            expected[to][at..at + len].copy_from_slice(&bytes);
            at += len + random(3);
        }
        while !copies.is_empty() {
            drop(copies.swap_remove(random(copies.len())));
        }
        let (at, from_at, len) = (random(100), random(100), random(1000));
        ends[to].copy_from(at as isize, &ends[to], from_at as isize, len);
        expected[to].copy_within(from_at..from_at + len, at);
        for (end, expected) in ends.iter().zip(&expected) {
            let mut bytes = vec![0; BYTES];
            end.read(0, &mut bytes);
            let wrong = bytes.iter().zip(expected).position(|(byte, expected)| byte != expected);
            assert_eq!(wrong, None, "the first wrong byte after round {round}, from {from} to {to}");
        }
    }
}

/// Users' pointers to `there`, 64 bytes of a device, are known as such from now on: `finder` finds them.
#[cfg(test)]
pub(crate) fn users_pointers_are_classified(there: &Buffer, finder: Arc<dyn Finder>) {
    let mut word = 7u64;
    let user = (&raw mut word).cast::<u8>();
    assert_eq!(kind_at(there.address(0)), MemoryKind::Host, "nobody has said yet that it is a device's");
    add(finder);
    assert!(!surely_host(user as usize) && !surely_host(there.address(0)));
    // SAFETY: 8 bytes of ours, and memory of the device that its driver alone touches.
    let (host, theirs) =
        unsafe { (Buffer::classified(user, 0, 8), Buffer::classified(there.address(-8) as *mut u8, 8, 72)) };
    let (host, theirs) = (host.expect("the host's"), theirs.expect("a device's"));
    assert_eq!((host.kind(), theirs.kind()), (MemoryKind::Host, MemoryKind::Device));
    let kinds = [user as usize, there.address(0), there.address(63)].map(kind_at);
    assert_eq!(kinds, [MemoryKind::Host, MemoryKind::Device, MemoryKind::Device]);
    theirs.copy_from(8, &host, 0, 8);
    let mut out = [0; 8];
    there.read(0, &mut out);
    assert_eq!(out, 7u64.to_ne_bytes());
}
