//! The atomics of this crate, and how a thread waits for others, in one place so that loom can replace them (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Lets other threads run: sleeps for a millisecond if the wait is `long` already, else yields.
#[cfg(not(loom))]
pub(crate) fn rest(long: bool) {
    match long {
        true => std::thread::sleep(std::time::Duration::from_millis(1)),
        false => std::thread::yield_now(),
    }
}

#[cfg(loom)]
pub(crate) fn rest(_long: bool) {
    loom::thread::yield_now();
}
