//! Memory that processes of a host share: that of devices which another one has allocated, to which its driver gives handles, and the host's, which
//! the drivers of both pin.

use std::any::Any;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::buffer::Owner;
use crate::device::{self, DeviceFailure};
use crate::{Buffer, forked, stats};

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

/// What is to happen to memory of the host when the last buffer on it goes happens as this is dropped.
pub type Keeper = Box<dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// Memory of the host that the driver of a device has pinned for as long as this is there, so that copies from and to it are quick.
#[derive(Debug)]
pub struct Pinned {
    owner: Arc<Owner>,
    address: usize,
}

impl Buffer {
    /// `len` bytes of the host's memory, with what is dropped with the last buffer on them.
    ///
    /// # Safety
    /// The bytes are valid for reads and writes until `keeper` is dropped.
    pub unsafe fn kept(origin: *mut u8, len: usize, keeper: Keeper) -> Buffer {
        Buffer::owned(origin, len, Arc::new(Owner::Kept(keeper)))
    }

    /// Has the driver of the device whose memory this is pin `len` bytes of the host's; `None` if it does not, or this is no memory of a device.
    ///
    /// # Safety
    /// The bytes stay mapped until what is returned is dropped.
    pub unsafe fn pin(&self, address: *mut u8, len: usize) -> Option<Pinned> {
        let owner = self.device_owner()?;
        if !owner.device()?.pin(address, len) {
            stats::count(&stats::HANDOVER_NOT_PINNED);
            return None;
        }
        Some(Pinned { owner: owner.clone(), address: address as usize })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A child after fork has no driver.
        if let Some(device) = self.owner.device().filter(|_| !forked()) {
            device.unpin(self.address as *mut u8);
        }
    }
}

/// So many bytes of a message have gone, or come, in memory that both processes share.
pub fn count_handed(bytes: usize) {
    stats::add(&stats::HANDED_BYTES, bytes);
}

pub(crate) fn no_device() -> DeviceFailure {
    DeviceFailure { what: "no device of this process can map memory of another one's".to_owned() }
}
