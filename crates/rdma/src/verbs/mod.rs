//! Thin wrappers of libibverbs and librdmacm: what they make ends with them, in the right order. The only module that calls them.
//!
//! The device reads and writes memory by itself. It does so only where memory is registered ([`Region`]), as far as a key allows
//! that; so whoever registers memory promises that it is there as long as the region, and posting work is safe.

pub(crate) mod cm;
mod device;
mod events;
mod memory;
mod pair;
mod queues;

use std::ffi::c_int;
use std::ptr::NonNull;

pub(crate) use device::Device;
pub use device::devices;
pub(crate) use events::{About, Event};
pub(crate) use memory::{DmaBuf, Region, Slots};
pub(crate) use pair::{AddressHandle, Datagrams, Local, Op, Pair, Remote, Use, Work};
pub(crate) use queues::{BATCH, Completion, Completions, Failure, NO_PAIR, Receives, Room};

/// An object of the library. It ends with this.
struct Object<T> {
    raw: NonNull<T>,
    end: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: libibverbs lets any thread use its objects.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above; it locks where two threads use one.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// What a call has made; null is an error, of which `errno` tells more.
    ///
    /// # Safety
    /// `raw` is null or an object that nobody else ends, and `end` ends it.
    unsafe fn new(
        what: &str,
        raw: *mut T,
        end: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Object<T>, String> {
        match NonNull::new(raw) {
            Some(raw) => Ok(Object { raw, end }),
            None => Err(format!("no {what}: {}", std::io::Error::last_os_error())),
        }
    }

    fn get(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: by `new`; objects that need this one hold it, or stand before it in their struct, so they ended earlier.
        unsafe { (self.end)(self.get()) };
    }
}

/// The error of a call that gives an error number.
#[inline]
fn checked(what: &str, error: c_int) -> Result<(), String> {
    if error == 0 { Ok(()) } else { Err(failed(what, error)) }
}

#[cold]
fn failed(what: &str, error: c_int) -> String {
    format!("{what}: {}", std::io::Error::from_raw_os_error(error))
}
