//! Bounce buffers: pinned memory of the host that bytes go through between a device and a fabric. There is one pool for the process, of
//! bounded size, which grows as it is used and is kept.

use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::Owner;
use crate::device::Device;
use crate::{Buffer, stats};

/// Bytes of a bounce buffer: a device copies so many at nearly its full speed, and several of them in the time of one long message.
pub const BOUNCE_BUFFER: usize = 1 << 19;
/// The most of them in a process.
const MOST: usize = 64;

/// Addresses of those that are not in use, and how many there are.
struct Pool {
    free: Vec<usize>,
    made: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), made: 0 });

/// A bounce buffer in use, by its address. It goes back to the pool with the last buffer on it.
struct Bounce(usize);

impl Drop for Bounce {
    fn drop(&mut self) {
        POOL.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.0);
    }
}

impl Buffer {
    /// A bounce buffer for copies from and to this memory: [`BOUNCE_BUFFER`] bytes of the host that are the caller's for as long as a
    /// buffer on them is there. `None`: this is no memory of a device, or all are in use.
    pub fn bounce_buffer(&self) -> Option<Buffer> {
        let device = self.device_owner()?.device()?;
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let address = pool.free.pop().or_else(|| {
            let new = (pool.made < MOST).then(|| new_bounce_buffer(device)).flatten()?;
            pool.made += 1;
            Some(new)
        });
        drop(pool);
        let Some(address) = address else {
            stats::count(&stats::BOUNCE_REFUSED);
            return None;
        };
        stats::count(&stats::BOUNCED);
        Some(Buffer::owned(
            address as *mut u8,
            BOUNCE_BUFFER,
            Arc::new(Owner::Kept(Box::new(Bounce(address)))),
        ))
    }
}

/// How many more bounce buffers the process may use now.
pub fn bounce_buffers_left() -> usize {
    let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    MOST - pool.made + pool.free.len()
}

/// New pages, which the driver of a device pins if it can. They stay pages of this process whatever becomes of the context in which they
/// were pinned.
fn new_bounce_buffer(device: &dyn Device) -> Option<usize> {
    // SAFETY: new pages anywhere.
    let pages = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BOUNCE_BUFFER,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if pages == libc::MAP_FAILED {
        return None;
    }
    if !device.pin(pages.cast(), BOUNCE_BUFFER) {
        stats::count(&stats::BOUNCE_NOT_PINNED);
    }
    Some(pages as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeapBuffer, SimulatedDevice};

    #[test]
    fn bounce_buffers_are_bounded_and_come_again() {
        let there = SimulatedDevice::new(100, 1).alloc(100);
        assert!(HeapBuffer::zeroed(10).bounce_buffer().is_none(), "the host's memory needs none");
        let left = bounce_buffers_left();
        let mut all: Vec<Buffer> = std::iter::from_fn(|| there.bounce_buffer()).collect();
        assert_eq!((all.len(), bounce_buffers_left()), (left, 0));
        let one = all.pop().expect("a bounce buffer");
        let part = one.slice(BOUNCE_BUFFER as isize - 10, 10);
        drop(one);
        assert!(there.bounce_buffer().is_none(), "a part is still used");
        part.copy_from(0, &there, 0, 10);
        drop(part);
        let again = there.bounce_buffer().expect("a bounce buffer");
        assert_eq!(
            (again.len(), again.kind().is_host_accessible(), bounce_buffers_left()),
            (BOUNCE_BUFFER, true, 0)
        );
        drop((all, again));
        assert_eq!(bounce_buffers_left(), left);
    }
}
