//! How often devices were used, and which of their ways: for tests, and for users who ask what became of their buffers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Declares counters, one a line: its name, its static, what it counts, and a sentence.
macro_rules! counters {
    ($($name:ident $counter:ident, $unit:literal, $about:literal;)+) => {
        $(pub(crate) static $counter: AtomicU64 = AtomicU64::new(0);)+

        /// How often devices of this process were used, since it began.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct DeviceStats {
            $(#[doc = $about] pub $name: u64,)+
        }

        /// What is counted so far.
        pub fn device_stats() -> DeviceStats {
            DeviceStats { $($name: $counter.load(Ordering::Relaxed),)+ }
        }

        /// The same as a list, with what each number means.
        pub fn device_counters() -> [DeviceCounter; COUNTERS] {
            [$(DeviceCounter {
                name: stringify!($name),
                unit: $unit,
                about: $about,
                value: $counter.load(Ordering::Relaxed),
            },)+]
        }

        /// How many counters there are.
        const COUNTERS: usize = [$($unit),+].len();
    };
}

counters! {
    copies COPIES, "copies", "Copies that devices were told to make.";
    copies_waited COPIES_WAITED, "copies", "Those of them that had to be waited for at once, as the driver had no stream or event for them.";
    copies_by_host COPIES_BY_HOST, "copies",
        "Copies between two devices that went by way of the host's memory, as no driver reaches both, or one has refused.";
    bytes_to BYTES_TO, "bytes", "Bytes that were copied from memory of the host to devices.";
    bytes_from BYTES_FROM, "bytes", "Bytes that were copied from devices to memory of the host.";
    bytes_between BYTES_BETWEEN, "bytes", "Bytes that were copied from memory of devices to memory of devices.";
    mapped_copies MAPPED_COPIES, "copies", "Copies of few bytes that the processor made by itself, as it had the device's memory mapped (GDRCopy). Devices were told of none of them.";
    mapped_refused MAPPED_REFUSED, "times", "How often that was refused, or GDRCopy was not there, so that devices copy.";
    ipc_reads IPC_READS, "reads", "Reads of memory of another process's device (by CUDA IPC): one for each message, or for each part of one.";
    ipc_bytes IPC_BYTES, "bytes", "The bytes of those.";
    exports_refused EXPORTS_REFUSED, "messages", "Messages from memory that its driver does not share: they went by the host.";
    imports IMPORTS, "allocations", "Allocations of other processes that were mapped.";
    imports_refused IMPORTS_REFUSED, "allocations", "Those that the driver did not map: messages went by the host.";
    rdma_shown RDMA_SHOWN, "messages", "Messages in memory of devices that a peer's RDMA device was let read there (GPUDirect RDMA).";
    rdma_transfers RDMA_TRANSFERS, "transfers", "Transfers by which this process's RDMA device wrote to memory of devices (GPUDirect RDMA).";
    rdma_bytes RDMA_BYTES, "bytes", "The bytes of those.";
    rdma_refused RDMA_REFUSED, "times", "How often an RDMA device did not get at memory of a device, so that bytes went by the host.";
    bounced BOUNCED, "pieces", "Pieces of long messages, of up to 512 KiB, that went by way of a bounce buffer.";
    bounce_refused BOUNCE_REFUSED, "pieces", "Pieces for which no bounce buffer was free, so that memory was not pinned, or copies were waited for.";
    bounce_not_pinned BOUNCE_NOT_PINNED, "buffers", "Bounce buffers that the driver has not pinned: copies are slower there.";
    handed_bytes HANDED_BYTES, "bytes",
        "Bytes of long messages that went by way of a handover buffer, which both processes of the host share, counted at either end.";
    handover_not_pinned HANDOVER_NOT_PINNED, "buffers",
        "Handover buffers that a driver has not pinned: a sender takes bounce buffers instead, and copies of a receiver are slower there.";
    kernels KERNELS, "kernels", "Kernels that were started.";
    kernels_refused KERNELS_REFUSED, "kernels", "Those that did not start: the host did their work.";
}

/// A number of [`DeviceStats`], and what it means.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCounter {
    /// The name of the field.
    pub name: &'static str,
    /// What is counted.
    pub unit: &'static str,
    /// A sentence for users.
    pub about: &'static str,
    /// What is counted so far.
    pub value: u64,
}

/// Adds one.
pub(crate) fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Adds so many bytes.
pub(crate) fn add(what: &AtomicU64, bytes: usize) {
    what.fetch_add(bytes as u64, Ordering::Relaxed);
}

static NO_KERNELS: OnceLock<String> = OnceLock::new();

/// Keeps why a device runs no kernels, if it is the first reason.
pub(crate) fn keep_why_no_kernels(why: &str) {
    NO_KERNELS.get_or_init(|| why.to_owned());
}

/// Why a device of this process runs no kernels, so that the host does their work: a sentence. `None` if no device has refused one.
pub fn why_no_kernels() -> Option<&'static str> {
    NO_KERNELS.get().map(String::as_str)
}
