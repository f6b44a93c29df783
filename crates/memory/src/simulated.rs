//! A device for tests: the host cannot touch its memory at the addresses that stand for it, and its copies are over some time
//! after they were started, in any order.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Owner;
use crate::device::{self, Device};
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
        device::add(self.owner.clone());
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

impl Device for Arc<Driver> {
    fn name(&self) -> &str {
        "a simulated device"
    }

    fn owns(&self, address: usize) -> bool {
        address.checked_sub(self.addresses).is_some_and(|at| at < self.len)
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> u64 {
        let mut state = self.lock();
        state.copies += 1;
        // An xorshift, of which the upper bits are good enough here.
        state.random = (state.random | 1) ^ (state.random << 13);
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let (number, polls) = (state.copies, (state.random >> 33) % 4);
        state.under_way.push(Copy { number, to: to as usize, from: from as usize, len, polls });
        number
    }

    fn is_over(&self, copy: u64) -> bool {
        let mut state = self.lock();
        let Some(index) = state.under_way.iter().position(|entry| entry.number == copy) else { return true };
        let entry = &mut state.under_way[index];
        if entry.polls > 0 {
            entry.polls -= 1;
            return false;
        }
        let Copy { to, from, len, .. } = state.under_way.swap_remove(index);
        // SAFETY: who started the copy promised that both ranges are valid until it is over, which it is only now.
        unsafe { std::ptr::copy(self.real(from, len), self.real(to, len), len) };
        true
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
    use crate::{MemoryKind, kind_at, surely_host};

    #[test]
    fn copies_to_and_from_a_device_are_over_later_and_may_be_waited_for() {
        let device = SimulatedDevice::new(4096, 3);
        let (there, back) = (device.alloc(100), HeapBuffer::zeroed(10));
        let whole = there.rebased(-20);
        assert_eq!((whole.kind(), whole.lo(), whole.hi(), whole.len()), (MemoryKind::Device, 20, 120, 100));
        whole.write(25, b"0123456789");
        let part = whole.slice(27, 5);
        let mut out = [0; 5];
        part.read(0, &mut out);
        assert_eq!(&out, b"23456");
        there.copy_from(50, &there, 5, 10);
        let seen_pending = (0..20).any(|_| {
            back.write(0, &[0; 10]);
            let copying = back.start_copy_from(0, &there, 50, 10).expect("a device's copy");
            let pending = !copying.is_over();
            back.read(0, &mut out);
            assert!(!pending || out == [0; 5], "a copy that is not over has not happened");
            drop(copying);
            back.read(5, &mut out);
            assert_eq!(&out, b"56789");
            pending
        });
        assert!(seen_pending);
        assert_eq!(device.copies().1, 0);
        assert!(back.start_copy_from(0, &back, 5, 5).is_none(), "host memory is copied at once");
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

    #[test]
    fn the_processor_is_kept_from_a_device_s_memory_and_everybody_from_what_is_outside() {
        let there = SimulatedDevice::new(64, 1).alloc(64);
        let said = |f: &dyn Fn()| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_err();
            panic.downcast_ref::<String>().cloned().unwrap_or_default()
        };
        assert!(said(&|| assert!(there.ptr(0, 1).is_null())).contains("memory of a simulated device"));
        let host = HeapBuffer::zeroed(64);
        let outside: [&dyn Fn(); 7] = [
            &|| drop(there.slice(70, 1)),
            &|| drop(there.slice(60, 5)),
            &|| drop(there.slice(-1, 1)),
            &|| there.write(64, b"x"),
            &|| there.read(-1, &mut [0]),
            &|| host.copy_from(60, &there, 0, 5),
            &|| there.copy_from(60, &host, 0, 5),
        ];
        for access in outside {
            assert!(said(access).contains("outside"));
        }
        there.write(64, b"");
        assert_eq!(there.slice(64, 0).len(), 0);
    }

    #[test]
    fn users_addresses_are_classified_once_a_device_is_known() {
        let device = SimulatedDevice::new(4096, 1);
        let there = device.alloc(64);
        let mut word = 7u64;
        let user = (&raw mut word).cast::<u8>();
        device.announce();
        assert!(!surely_host(user as usize) && !surely_host(there.address(0)));
        // SAFETY: 8 bytes of ours, and memory of the device that its driver alone touches.
        let (host, theirs) = unsafe {
            (Buffer::classified(user, 0, 8), Buffer::classified(there.address(-8) as *mut u8, 8, 72))
        };
        assert_eq!((host.kind(), theirs.kind()), (MemoryKind::Host, MemoryKind::Device));
        assert_eq!(
            (kind_at(user as usize), kind_at(there.address(63))),
            (MemoryKind::Host, MemoryKind::Device)
        );
        theirs.copy_from(8, &host, 0, 8);
        let mut out = [0; 8];
        there.read(0, &mut out);
        assert_eq!(out, 7u64.to_ne_bytes());
    }
}
