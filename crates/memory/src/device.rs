//! Memory of devices: which there is, and the copies that a device's driver carries out, in its own time. Everything here lies
//! beside the way of host memory, which never comes here.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::buffer::{Buffer, Owner};
use crate::{HeapBuffer, MemoryKind};

/// The driver of a device: the only one who may touch the device's memory.
pub(crate) trait Device: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// What messages call it.
    fn name(&self) -> &str;

    /// True if the byte at this address is memory of the device.
    fn owns(&self, address: usize) -> bool;

    /// Starts to copy `len` bytes, of which at least one side is memory of the device, and returns a number for the copy. Copies
    /// that are under way at a time have no order.
    ///
    /// # Safety
    /// Both ranges stay valid, and what is read there unchanged, until [`Device::is_over`] says that the copy is over.
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> u64;

    /// True if the copy of that number is over.
    fn is_over(&self, copy: u64) -> bool;
}

/// Users' addresses above this one are host memory for sure: those of MPI's constants (0 to 2) are not, and with the first device
/// no address is any more.
static HOST_ABOVE: AtomicUsize = AtomicUsize::new(MOST_CONSTANT);

/// The highest address that is a constant of MPI's C interface.
pub const MOST_CONSTANT: usize = 2;

static DEVICES: RwLock<Vec<Arc<Owner>>> = RwLock::new(vec![]);

/// True if users' memory at this address is host memory for sure. False: it is no memory at all, or [`Buffer::classified`]
/// has to look.
#[inline(always)]
pub fn surely_host(address: usize) -> bool {
    address > HOST_ABOVE.load(Ordering::Relaxed)
}

/// From now on memory of this device is known as such where users pass it.
pub(crate) fn add(device: Arc<Owner>) {
    HOST_ABOVE.store(usize::MAX, Ordering::Relaxed);
    DEVICES.write().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// The owner of the memory at an address, if a device has it.
fn owner_at(address: usize) -> Option<Arc<Owner>> {
    let devices = DEVICES.read().unwrap_or_else(PoisonError::into_inner);
    devices.iter().find(|owner| owner.device().is_some_and(|device| device.owns(address))).cloned()
}

/// What kind of memory a user's address is.
#[cold]
pub fn kind_at(address: usize) -> MemoryKind {
    if owner_at(address).is_some() { MemoryKind::Device } else { MemoryKind::Host }
}

/// A copy that a device has begun. Whoever drops it waits until it is over.
#[must_use]
#[derive(Debug)]
pub struct Copying {
    device: Arc<Owner>,
    number: u64,
    /// The memory lives as long as the copy.
    _ends: [Buffer; 2],
}

impl Copying {
    /// True if the bytes are where they belong.
    pub fn is_over(&self) -> bool {
        self.device.device().is_none_or(|device| device.is_over(self.number))
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        while !self.is_over() {
            std::thread::yield_now();
        }
    }
}

impl Buffer {
    /// A user's memory of whatever kind: the bytes `origin + lo .. origin + hi`.
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range.
    #[cold]
    pub unsafe fn classified(origin: *mut u8, lo: isize, hi: isize) -> Buffer {
        match owner_at(origin.wrapping_offset(lo) as usize) {
            // SAFETY: as the caller promises.
            None => unsafe { Buffer::with_bounds(origin, lo, hi) },
            Some(owner) => Buffer::of_device(origin, lo, hi, owner),
        }
    }

    /// Starts what [`Buffer::copy_from`] does. `None`: it is over, as it always is between buffers of host memory.
    ///
    /// # Panics
    /// As [`Buffer::copy_from`].
    pub fn start_copy_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) -> Option<Copying> {
        if len == 0 {
            return None;
        }
        let (to_owner, from_owner) = (self.device_owner(), from.device_owner());
        let device = match (to_owner, from_owner) {
            (None, None) => {
                self.copy_from(at, from, from_at, len);
                return None;
            }
            (Some(one), Some(other)) if !Arc::ptr_eq(one, other) => {
                // No driver reaches both.
                let between = HeapBuffer::zeroed(len);
                drop(between.start_copy_from(0, from, from_at, len));
                return self.start_copy_from(at, &between, 0, len);
            }
            (Some(owner), _) | (None, Some(owner)) => owner,
        };
        let driver = device.device()?;
        let ends = [self.slice(at, len), from.slice(from_at, len)];
        // SAFETY: both ranges are inside bounds that the makers promised (checked by `slice`), and the value that is returned
        // keeps the memory until the copy is over.
        let number = unsafe { driver.copy(ends[0].first(), ends[1].first(), len) };
        Some(Copying { device: device.clone(), number, _ends: ends })
    }

    /// What device the memory is of.
    fn device_owner(&self) -> Option<&Arc<Owner>> {
        self.owner().filter(|owner| owner.device().is_some())
    }
}

/// What every device keeps, whose memory `alloc` gives.
#[cfg(test)]
pub(crate) fn suite(alloc: &dyn Fn(usize) -> Buffer) {
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
