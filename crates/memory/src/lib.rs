//! Memory that messages are read from and written to.
//!
//! A [`Buffer`] is an origin address and the bounds, relative to it, inside which bytes may be
//! touched. It stands for memory of the user, which other code may change at any time, so it is
//! never turned into a long-lived slice: everything is a bounded copy. Making one from an address is
//! `unsafe`; using one is not, because every access is checked against the bounds.
//!
//! Memory has a kind ([`MemoryKind`]). What is a device's, only that device's driver copies.

mod bounce;
mod buffer;
mod device;
mod dma_buf;
mod drivers;
mod fork;
mod gpu;
mod kernel;
mod lock;
mod scratch;
mod shared;
mod simulated;
mod small_copy;
mod socket;
mod stats;
mod sync;
pub mod vectors;

pub use bounce::{BOUNCE_BUFFER, bounce_buffers_left};
pub use buffer::{Bounds, Buffer, HeapBuffer, MemoryKind, NoMemory};
pub use device::{Copying, DeviceFailure, MOST_CONSTANT, MemoryClass, class_at, kind_at, surely_host};
pub use dma_buf::{Allocation, Drivers, Exporter, PciAddress, settle};
pub use drivers::Platform;
pub use drivers::compiler::{Compiler, Target};
pub use drivers::mapped::{MappedCopies, why_not_mapped};
pub use drivers::nvml::{NvLinks, nvlinks};
pub use drivers::stream::{Place, ProgramStream, Turn};
pub use fork::forked;
pub use gpu::{Gpus, current_device, look_for, sees};
pub use kernel::{Arg, Launch, Module};
pub use lock::{EngineGuard, EngineLock, Refused, Serialized};
pub use scratch::Scratch;
pub use shared::{Exported, Imported, Keeper, Pinned, count_handed};
pub use simulated::SimulatedDevice;
pub use small_copy::{copy, copy_short};
pub use stats::{DeviceCounter, DeviceStats, device_counters, device_stats, why_no_kernels};
