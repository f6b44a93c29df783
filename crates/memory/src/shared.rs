//! Memory of devices that another process of the host has allocated: its driver gives handles to it.

use std::sync::Arc;

use crate::buffer::Owner;
use crate::device::{self, DeviceFailure};
use crate::{Buffer, stats};

/// How another process reaches an allocation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Exported {
    /// The driver's handle.
    pub handle: [u8; 64],
    /// Where the allocation begins in the process that has made it.
    pub start: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The number of the allocation, which no other one of that process has.
    pub id: u64,
}

/// An allocation of another process, mapped into this one. It is unmapped when this is dropped.
#[derive(Debug)]
pub struct Imported {
    owner: Arc<Owner>,
    memory: Buffer,
}

impl Buffer {
    /// How other processes reach the allocation that this memory is part of; `None` if it is not a device's, or the driver does not
    /// share it.
    pub fn export(&self) -> Option<Exported> {
        let exported = self.device_owner()?.device()?.export(self.address(self.lo()));
        if exported.is_none() {
            stats::count(&stats::EXPORTS_REFUSED);
        }
        exported
    }
}

impl Imported {
    /// Maps an allocation, for copies to and from `near` and memory like it.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn open(exported: &Exported, near: &Buffer) -> Result<Imported, DeviceFailure> {
        let opened = device::owner_near(near).and_then(|owner| {
            let start = owner.device().map_or(Err(no_device()), |device| device.import(exported))?;
            // A length that another process gives: the driver refuses copies beyond what is there.
            let len = isize::try_from(exported.len).map_err(|_| no_device())?;
            Ok(Imported { memory: Buffer::of_device(start, 0, len, owner.clone()), owner })
        });
        stats::count(if opened.is_ok() { &stats::IMPORTS } else { &stats::IMPORTS_REFUSED });
        opened
    }

    /// `len` bytes of it that lie at the address `at` in the process that has made it, to be read once; `None` if they are not in it.
    pub fn part(&self, exported: &Exported, at: u64, len: u64) -> Option<Buffer> {
        let from = at.checked_sub(exported.start)?;
        let inside = from.checked_add(len).is_some_and(|end| end <= exported.len);
        inside.then(|| {
            stats::count(&stats::IPC_READS);
            stats::add(&stats::IPC_BYTES, len as usize);
            self.memory.slice(from as isize, len as usize)
        })
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        if let Some(device) = self.owner.device() {
            device.close(self.memory.first());
        }
    }
}

pub(crate) fn no_device() -> DeviceFailure {
    DeviceFailure { what: "no device of this process can map memory of another one's".to_owned() }
}
