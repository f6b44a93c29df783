//! The hardware of this machine: which CPUs this process may use, how they form cores, sockets and NUMA
//! nodes, what caches they share, which of them a rank is bound to, at which addresses other hosts reach it, where its NICs and GPUs
//! are ([`HardwareMap`]), and what things take here ([`Profile`]).
//!
//! Nothing is read before a function asks for it. [`usable_cores`] is a few system calls; [`Machine::read`] reads
//! many files of `/sys` and is for callers that bind ranks or print the hardware.
#![forbid(unsafe_code)]

mod binding;
mod cpus;
mod gpu;
mod gpu_links;
mod gpu_ring;
pub mod kept;
mod known;
mod machine;
mod map;
mod nics;
mod place;
mod profile;
mod rdma;
mod single_copy;
mod slots;
mod tree;
pub mod ways;

pub use binding::{Bound, Mapping, Unit, bound, place, share};
pub use cpus::{CpuSet, MAX_CPU, ParseError};
pub use gpu::{Gpu, GpuPath};
pub use gpu_links::{GPU_ROW, GpuFigures, GpuGroup, GpuLink, GpuLinks, GpuLocation, GpuRow, GpuWay, NvLinks};
pub use kept::{Kept, user_folder};
pub use known::{KnownWay, KnownWays};
pub use machine::{Cache, Cpu, Machine, Reader, private_cache};
pub use map::{HardwareMap, Holder, HostMap, Nic, NumaNode, NvLink, Switch};
pub use nics::{NicAddress, NicFilter, addresses, all_addresses, nic_filters, same_subnet};
pub use place::{Distance, PcieLink, Place};
pub use profile::{DISTANCES, GPU_MESSAGES, Message, Origin, Pair, Profile, SharedCache, fills};
pub use rdma::{RdmaLink, RdmaPort, Turn, rdma_ports};
pub use single_copy::{get, put, single_copy};
pub use slots::slots;
pub use tree::{Branch, Device};
pub use ways::{SingleCopy, Traffic, Way};

/// Number of cores that this process may use at once: its affinity mask, cut by the CPU quota of its control group
/// (containers). At least 1.
pub fn usable_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get().try_into().unwrap_or(u32::MAX))
}

/// This machine's name, for messages only: nothing is ever resolved by it.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
