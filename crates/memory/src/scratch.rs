//! Memory of devices that is ours for a while.

use crate::Buffer;
use crate::device::DeviceFailure;

/// Memory of a device, given back when this goes: so it must outlive what the device does with it.
#[derive(Debug)]
pub struct Scratch {
    memory: Buffer,
    /// What the device gave, which may be more.
    len: usize,
}

impl Scratch {
    /// `len` bytes of the device that has some memory.
    ///
    /// # Errors
    /// Why there are none; also if it is the host's memory.
    pub fn beside(memory: &Buffer, len: usize) -> Result<Scratch, DeviceFailure> {
        let host = || DeviceFailure { what: format!("{memory:?} is no memory of a device") };
        let owner = memory.device_owner().ok_or_else(host)?;
        let (address, room) = owner.device().ok_or_else(host)?.allocate(len)?;
        Ok(Scratch { memory: Buffer::of_device(address, 0, len as isize, owner.clone()), len: room })
    }

    /// The bytes, from offset 0 on.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(device) = self.memory.device_owner().and_then(|owner| owner.device()) {
            // SAFETY: memory that `beside` was given; who holds this waits for what uses it.
            unsafe { device.free(self.memory.first(), self.len) };
        }
    }
}

/// Scratch memory of a device that is not in use, by address and length, the one that was given back last at the end.
#[derive(Debug, Default)]
pub(crate) struct Spare(Vec<(usize, usize)>);

impl Spare {
    /// How long a piece is that `len` bytes are taken from: `least`, or twice that, and so on.
    pub(crate) fn room(len: usize, least: usize) -> usize {
        len.max(least).checked_next_power_of_two().unwrap_or(usize::MAX)
    }

    /// A piece of exactly this length.
    pub(crate) fn take(&mut self, room: usize) -> Option<*mut u8> {
        let fit = self.0.iter().position(|&(_, len)| len == room)?;
        Some(self.0.remove(fit).0 as *mut u8)
    }

    pub(crate) fn put(&mut self, address: *mut u8, room: usize) {
        self.0.push((address as usize, room));
    }

    /// Of more than `most` pieces the address of the one that was not used for longest, which goes.
    pub(crate) fn least_used(&mut self, most: usize) -> Option<usize> {
        (self.0.len() > most).then(|| self.0.remove(0).0)
    }
}
