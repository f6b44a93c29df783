//! Memory of a device as a network's device gets at it by itself (GPUDirect RDMA): the allocation that it is part of, and a dma-buf of some of its
//! pages, both of which the driver gives. A library of its own has no driver: it asks the process that has loaded it ([`Exporter`]).

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::Buffer;
use crate::buffer::Owner;
use crate::device::{self, Device, DeviceFailure};
use crate::stats;

/// An allocation of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Allocation {
    /// Its number, which no other one of the process has, nor will have when this one is freed.
    pub id: u64,
    /// Its first address.
    pub start: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The device it is on.
    pub device: PciAddress,
}

/// Where a device is on the PCI bus, such as `0000:18:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct PciAddress([u8; 16]);

impl PciAddress {
    /// As text, which ends at the first NUL; longer ones are cut.
    pub fn new(text: &str) -> PciAddress {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from.to_ascii_lowercase());
        PciAddress(bytes)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        f.write_str(&String::from_utf8_lossy(&self.0[..end]))
    }
}

/// What a driver says of memory, as one says it who has no driver.
pub trait Exporter: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// The allocation that has this address; `None` if no driver knows one, or numbers it.
    fn allocation(&self, address: usize) -> Option<Allocation>;

    /// A dma-buf of whole pages of one allocation.
    ///
    /// # Errors
    /// Why there is none: a sentence.
    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure>;
}

/// The drivers of this process.
#[derive(Clone, Copy, Debug)]
pub struct Drivers;

impl Exporter for Drivers {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        device::owner_at(address)?.device()?.allocation(address)
    }

    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        let owner = device::owner_at(pages.start);
        let device = owner.as_ref().and_then(|owner| owner.device());
        device.map_or_else(|| Err(no_dma_buf("this memory")), |device| device.dma_buf(pages))
    }
}

/// A device whose driver another part of the process has.
struct Elsewhere(Arc<dyn Exporter>);

impl Device for Elsewhere {
    fn name(&self) -> &'static str {
        "a device whose driver is not here"
    }

    fn driver(&self) -> &'static str {
        "none"
    }

    unsafe fn copy(&self, _to: *mut u8, _from: *const u8, _len: usize) -> Result<u64, DeviceFailure> {
        Err(DeviceFailure { what: format!("{} copies nothing", self.name()) })
    }

    fn is_over(&self, _number: u64) -> Result<bool, DeviceFailure> {
        Ok(true)
    }

    fn allocation(&self, address: usize) -> Option<Allocation> {
        self.0.allocation(address)
    }

    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        self.0.dma_buf(pages)
    }
}

impl Buffer {
    /// Memory of a device that somebody else copies, and of which this one tells.
    pub fn elsewhere(start: *mut u8, len: usize, exporter: Arc<dyn Exporter>) -> Buffer {
        let owner = Arc::new(Owner::Device(Box::new(Elsewhere(exporter))));
        Buffer::of_device(start, 0, len as isize, owner)
    }

    /// The allocation of a device's that this memory is part of; `None` if it is none, or its driver does not number it.
    pub fn allocation(&self) -> Option<Allocation> {
        self.allocation_at(self.address(self.lo()))
    }

    /// The allocation that has an address now, as the driver of this memory knows it.
    pub fn allocation_at(&self, address: usize) -> Option<Allocation> {
        self.device_owner()?.device()?.allocation(address)
    }

    /// A dma-buf of whole pages of the allocation that this memory is part of.
    ///
    /// # Errors
    /// Why there is none: a sentence.
    pub fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        let device = self.device_owner().and_then(|owner| owner.device());
        device.map_or_else(|| Err(no_dma_buf("memory of the host")), |device| device.dma_buf(pages))
    }

    /// A network's device has been let read this memory of a device, or (`reached` is false) cannot get at it: that is counted.
    pub fn count_network(&self, reached: bool) {
        stats::count(if reached { &stats::RDMA_SHOWN } else { &stats::RDMA_REFUSED });
    }
}

/// A network's device has moved bytes from or to these buffers, of which those are counted that are a device's: from now on that device sees them.
///
/// # Errors
/// That cannot be said of it.
pub fn settle(all: &[Buffer]) -> Result<(), DeviceFailure> {
    let mut bytes = 0;
    for buffer in all {
        let Some(device) = buffer.device_owner().and_then(|owner| owner.device()) else { continue };
        // Parts of one message are one allocation's, as a rule, and one call is enough.
        if bytes == 0 {
            device.settle()?;
        }
        bytes += buffer.len();
    }
    if bytes > 0 {
        stats::count(&stats::RDMA_TRANSFERS);
        stats::add(&stats::RDMA_BYTES, bytes);
    }
    Ok(())
}

pub(crate) fn no_dma_buf(of: &str) -> DeviceFailure {
    DeviceFailure { what: format!("{of} is not exported as a dma-buf") }
}
