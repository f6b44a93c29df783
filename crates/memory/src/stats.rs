//! How often devices were used, and which of their ways: for tests, and for users who ask what became of their buffers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) static COPIES: AtomicU64 = AtomicU64::new(0);
pub(crate) static COPIES_WAITED: AtomicU64 = AtomicU64::new(0);
pub(crate) static COPIES_BY_HOST: AtomicU64 = AtomicU64::new(0);
pub(crate) static BYTES_TO: AtomicU64 = AtomicU64::new(0);
pub(crate) static BYTES_FROM: AtomicU64 = AtomicU64::new(0);
pub(crate) static BYTES_BETWEEN: AtomicU64 = AtomicU64::new(0);
pub(crate) static BOUNCE_REFUSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static BOUNCE_NOT_PINNED: AtomicU64 = AtomicU64::new(0);
pub(crate) static KERNELS: AtomicU64 = AtomicU64::new(0);
pub(crate) static KERNELS_REFUSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static EXPORTS_REFUSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static IMPORTS: AtomicU64 = AtomicU64::new(0);
pub(crate) static IMPORTS_REFUSED: AtomicU64 = AtomicU64::new(0);

/// Adds one.
pub(crate) fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Adds so many bytes.
pub(crate) fn add(what: &AtomicU64, bytes: usize) {
    what.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// How often devices of this process were used, since it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DeviceStats {
    /// Copies that devices were told to make.
    pub copies: u64,
    /// Those of them that had to be waited for at once, as the driver had no stream or event for them.
    pub copies_waited: u64,
    /// Copies between two devices that went by way of the host's memory, as no driver reaches both, or one has refused.
    pub copies_by_host: u64,
    /// Bytes that were copied from memory of the host to devices.
    pub bytes_to: u64,
    /// Bytes that were copied from devices to memory of the host.
    pub bytes_from: u64,
    /// Bytes that were copied from memory of devices to memory of devices.
    pub bytes_between: u64,
    /// How often all [bounce buffers](crate::Buffer::bounce_buffer) were in use, so that copies were waited for.
    pub bounce_refused: u64,
    /// Bounce buffers that the driver has not pinned: copies are slower there.
    pub bounce_not_pinned: u64,
    /// Kernels that were started.
    pub kernels: u64,
    /// Those that did not start: the host did their work.
    pub kernels_refused: u64,
    /// Memory of this process's that its driver does not share: messages go by the host.
    pub exports_refused: u64,
    /// Allocations of other processes that were mapped.
    pub imports: u64,
    /// Those that the driver did not map: messages go by the host.
    pub imports_refused: u64,
}

/// What is counted so far.
pub fn device_stats() -> DeviceStats {
    let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
    DeviceStats {
        copies: value(&COPIES),
        copies_waited: value(&COPIES_WAITED),
        copies_by_host: value(&COPIES_BY_HOST),
        bytes_to: value(&BYTES_TO),
        bytes_from: value(&BYTES_FROM),
        bytes_between: value(&BYTES_BETWEEN),
        bounce_refused: value(&BOUNCE_REFUSED),
        bounce_not_pinned: value(&BOUNCE_NOT_PINNED),
        kernels: value(&KERNELS),
        kernels_refused: value(&KERNELS_REFUSED),
        exports_refused: value(&EXPORTS_REFUSED),
        imports: value(&IMPORTS),
        imports_refused: value(&IMPORTS_REFUSED),
    }
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
