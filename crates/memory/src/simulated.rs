//! A device for tests: the host cannot touch its memory at the addresses that stand for it, and its copies are over some time
//! after they were started, in any order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Owner;
use crate::device::{self, Device, DeviceFailure, Finder, Found, MemoryClass};
use crate::{Buffer, HeapBuffer};

/// A simulated device with some memory.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    owner: Arc<Owner>,
    driver: Arc<Driver>,
}

/// The addresses of the memory (pages that nobody may touch) and where its bytes really are.
#[derive(Debug)]
struct Driver {
    addresses: usize,
    len: usize,
    bytes: Buffer,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that are given out.
    used: usize,
    random: u64,
    copies: u64,
    under_way: Vec<Copy>,
}

#[derive(Debug)]
struct Copy {
    number: u64,
    to: usize,
    from: usize,
    len: usize,
    /// How often it is still asked for in vain.
    polls: u64,
}

impl SimulatedDevice {
    /// A device with `len` bytes of memory; `seed` decides how long copies take.
    ///
    /// # Panics
    /// If the system has no room for it.
    pub fn new(len: usize, seed: u64) -> SimulatedDevice {
        // SAFETY: new pages anywhere, which nobody can touch.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len.max(1),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(pages != libc::MAP_FAILED, "no room for {len} bytes of a simulated device");
        let state = State { used: 0, random: seed, copies: 0, under_way: vec![] };
        let bytes = HeapBuffer::zeroed(len);
        let driver = Arc::new(Driver { addresses: pages as usize, len, bytes, state: Mutex::new(state) });
        SimulatedDevice { owner: Arc::new(Owner::Device(Box::new(driver.clone()))), driver }
    }

    /// Makes users' pointers to its memory known as such, in this process and for good.
    pub fn announce(&self) {
        device::add(Arc::new(self.clone()));
    }

    /// `len` bytes of its memory.
    ///
    /// # Panics
    /// If it has no more.
    pub fn alloc(&self, len: usize) -> Buffer {
        let mut state = self.driver.lock();
        assert!(len <= self.driver.len - state.used, "the simulated device has no {len} bytes left");
        let at = state.used;
        state.used += len.next_multiple_of(64).min(self.driver.len - at);
        Buffer::of_device((self.driver.addresses + at) as *mut u8, 0, len as isize, self.owner.clone())
    }

    /// Copies that were started, and those that are under way.
    pub fn copies(&self) -> (u64, usize) {
        let state = self.driver.lock();
        (state.copies, state.under_way.len())
    }
}

impl Driver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes behind an address are: those of the device lie elsewhere.
    fn real(&self, address: usize, len: usize) -> *mut u8 {
        match address.checked_sub(self.addresses).filter(|&at| at < self.len) {
            Some(at) => self.bytes.ptr(at as isize, len),
            None => address as *mut u8,
        }
    }
}

impl Finder for SimulatedDevice {
    fn find(&self, address: usize) -> Found {
        let is_ours = address.checked_sub(self.driver.addresses).is_some_and(|at| at < self.driver.len);
        Ok(is_ours.then(|| (MemoryClass::Device(0), Some(self.owner.clone()))))
    }
}

impl Device for Arc<Driver> {
    fn name(&self) -> &str {
        "a simulated device"
    }

    fn driver(&self) -> &'static str {
        "simulated"
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<u64, DeviceFailure> {
        let mut state = self.lock();
        state.copies += 1;
        // An xorshift, of which the upper bits are good enough here.
        state.random = (state.random | 1) ^ (state.random << 13);
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let (number, polls) = (state.copies, (state.random >> 33) % 4);
        state.under_way.push(Copy { number, to: to as usize, from: from as usize, len, polls });
        Ok(number)
    }

    fn is_over(&self, copy: u64) -> Result<bool, DeviceFailure> {
        let mut state = self.lock();
        let Some(index) = state.under_way.iter().position(|entry| entry.number == copy) else {
            return Ok(true);
        };
        let entry = &mut state.under_way[index];
        if entry.polls > 0 {
            entry.polls -= 1;
            return Ok(false);
        }
        let Copy { to, from, len, .. } = state.under_way.swap_remove(index);
        // SAFETY: who started the copy promised that both ranges are valid until it is over, which it is only now.
        unsafe { std::ptr::copy(self.real(from, len), self.real(to, len), len) };
        Ok(true)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: the pages of `SimulatedDevice::new`; all buffers on them hold the owner, which holds this.
        unsafe { libc::munmap(self.addresses as *mut libc::c_void, self.len.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{SUITE_BYTES, suite, users_pointers_are_classified};

    #[test]
    fn it_passes_the_suite_of_devices() {
        let device = SimulatedDevice::new(SUITE_BYTES + 64, 3);
        users_pointers_are_classified(&device.alloc(64), Arc::new(device.clone()));
        suite(&|len| device.alloc(len));
        let (started, under_way) = device.copies();
        assert!(started > 10 && under_way == 0, "{started} copies, {under_way} under way");
    }

    #[test]
    fn a_copy_that_is_not_over_has_not_happened() {
        let (there, back) = (SimulatedDevice::new(64, 3).alloc(5), HeapBuffer::zeroed(5));
        there.write(0, b"56789");
        let mut out = [0; 5];
        let seen_pending = (0..20).any(|_| {
            back.write(0, &[0; 5]);
            let copying = back.start_copy_from(0, &there, 0, 5).expect("a device's copy");
            let pending = !copying.is_over();
            back.read(0, &mut out);
            assert!(!pending || out == [0; 5]);
            drop(copying);
            back.read(0, &mut out);
            assert_eq!(&out, b"56789");
            pending
        });
        assert!(seen_pending);
    }

    #[test]
    fn what_belongs_to_two_devices_is_copied_through_the_host() {
        let [one, other] = [1, 2].map(|seed| SimulatedDevice::new(64, seed).alloc(64));
        one.write(0, b"abcd");
        other.copy_from(60, &one, 0, 4);
        let mut out = [0; 4];
        other.read(60, &mut out);
        assert_eq!(&out, b"abcd");
    }
}
