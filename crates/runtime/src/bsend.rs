//! Buffers attached for buffered sends (MPI 5.0, 3.6).
//!
//! The attached memory bounds what may be under way; the copies themselves are made by the runtime, so a
//! buffer that the user breaks cannot break a message.

use std::sync::Mutex;

use crate::bail;
use crate::error::Result;

/// Bytes of attached buffer that each message takes besides its data (MPI_BSEND_OVERHEAD).
pub const BSEND_OVERHEAD: usize = 512;

/// An attached buffer.
#[derive(Debug)]
pub struct Attached {
    address: usize,
    size: u64,
    automatic: bool,
    used: Mutex<u64>,
}

impl Attached {
    /// A buffer of `size` bytes at `address` (handed back by detach, never touched).
    pub fn new(address: usize, size: u64) -> Self {
        Self { address, size, automatic: false, used: Mutex::new(0) }
    }

    /// MPI_BUFFER_AUTOMATIC: a buffer without a limit.
    pub fn automatic(address: usize) -> Self {
        Self { address, size: 0, automatic: true, used: Mutex::new(0) }
    }

    /// Address and size in bytes, as they were attached.
    pub fn parts(&self) -> (usize, u64) {
        (self.address, self.size)
    }

    /// Takes room for a message of `bytes`; returns what to give back later.
    pub(crate) fn take(&self, bytes: u64) -> Result<usize> {
        let need = bytes.saturating_add(BSEND_OVERHEAD as u64);
        let mut used = self.used.lock().unwrap_or_else(|poison| poison.into_inner());
        if !self.automatic && need > self.size - *used {
            bail!(
                ERR_BUFFER,
                "the attached buffer of {} bytes has {} left, the message takes {need} (data plus MPI_BSEND_OVERHEAD); attach a larger one",
                self.size,
                self.size - *used
            );
        }
        if self.automatic {
            return Ok(0);
        }
        *used += need;
        Ok(need as usize)
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        let mut used = self.used.lock().unwrap_or_else(|poison| poison.into_inner());
        *used -= bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    #[test]
    fn an_attached_buffer_bounds_what_is_under_way() {
        let attached = Attached::new(0, 2 * BSEND_OVERHEAD as u64 + 100);
        let first = attached.take(60).unwrap();
        assert_eq!(attached.take(60).unwrap_err().class, Class::ERR_BUFFER);
        let second = attached.take(40).unwrap();
        attached.give_back(first);
        attached.give_back(second);
        assert!(attached.take(60).is_ok());
        assert!(Attached::automatic(0).take(u64::MAX).is_ok());
    }
}
