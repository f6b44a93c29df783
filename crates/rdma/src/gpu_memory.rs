//! Memory of a GPU as an RDMA device gets at it: registered as the dma-buf that the GPU's driver has exported, where the two are near
//! and the device takes it; else it is staged, for a reason.

use std::os::fd::BorrowedFd;

use banyan_topo::{Distance, GpuPath};

use crate::cache::Access;
use crate::fabric::Rdma;
use crate::verbs::Region;

/// A part of a dma-buf.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'a> {
    /// The descriptor that the driver has exported.
    pub fd: BorrowedFd<'a>,
    /// Where in it the memory begins.
    pub offset: u64,
    /// Bytes of the memory.
    pub len: usize,
    /// The memory's address on the GPU.
    pub address: u64,
}

/// By which path the device of a fabric gets at memory of a GPU.
pub enum GpuMemory {
    /// By itself, as long as this is there ([`GpuPath::DmaBuf`]).
    Registered(GpuRegion),
    /// Not at all ([`GpuPath::Staged`]), because of this.
    Staged(String),
}

/// Memory of a GPU that a device may use as long as this is there.
pub struct GpuRegion {
    region: Region,
}

impl GpuRegion {
    /// The key by which peers reach it.
    pub fn key(&self) -> u32 {
        self.region.rkey()
    }
}

impl Rdma {
    /// Registers memory of a GPU that is so far from the device, for this side's work.
    pub fn register_dmabuf(&self, memory: &DmaBuf<'_>, distance: Distance) -> GpuMemory {
        if GpuPath::of(distance) == GpuPath::Staged {
            return GpuMemory::Staged(format!("{distance} is too far for GPUDirect RDMA"));
        }
        match Region::of_dmabuf(&self.device, memory, Access::LOCAL) {
            Ok(region) => GpuMemory::Registered(GpuRegion { region }),
            Err(why) => GpuMemory::Staged(why),
        }
    }
}
