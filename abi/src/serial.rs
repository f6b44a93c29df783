//! Calls that come one after the other: the program's promise, and locks that cost nothing under it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Calls come one after the other: a runtime is open, and the program has promised it for each that is.
static SERIALIZED: AtomicBool = AtomicBool::new(false);

/// Open runtimes: those without the promise, and those with it.
static OPEN: Mutex<[usize; 2]> = Mutex::new([0; 2]);

/// What the program has promised of the calls to a runtime, from its start to its end.
pub(crate) struct Callers {
    serialized: bool,
}

impl Callers {
    /// Says whether calls to a runtime come one after the other.
    ///
    /// # Safety
    /// If they are `serialized`, no two threads make calls to any open runtime at the same time, unless one of these runtimes
    /// has no such promise, and one call happens before the next one.
    pub(crate) unsafe fn promise(serialized: bool) -> Callers {
        Self::count(serialized, 1);
        Callers { serialized }
    }

    fn count(serialized: bool, by: isize) {
        let mut open = OPEN.lock().unwrap_or_else(|poison| poison.into_inner());
        let count = &mut open[usize::from(serialized)];
        *count = count.wrapping_add_signed(by);
        SERIALIZED.store(open[0] == 0 && open[1] > 0, Ordering::Relaxed);
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        Self::count(self.serialized, -1);
    }
}

/// A value that can be reached only while calls come one after the other.
pub(crate) struct Serial<T>(T);

// SAFETY: `get` gives it out only under the promise of [`Callers`].
unsafe impl<T> Sync for Serial<T> {}

impl<T> Serial<T> {
    /// Keeps `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, if calls come one after the other. For calls between initialization and finalization only.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        SERIALIZED.load(Ordering::Relaxed).then_some(&self.0)
    }
}

/// A lock for a few instructions, without user code: one atomic exchange when it is free, and none where calls come one
/// after the other.
pub(crate) struct Spin<T> {
    serial: bool,
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `SpinGuard`. One thread at a time has one: because of `busy` or, if it is
// `serial`, because of the promise of [`Callers`].
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T, serial: bool) -> Self {
        Self { serial, busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks the value. A thread that holds the lock must not call this again.
    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if self.serial && SERIALIZED.load(Ordering::Relaxed) {
            assert!(!self.busy.load(Ordering::Relaxed), "a table was entered while it is in use");
            self.busy.store(true, Ordering::Relaxed);
        } else {
            while self.busy.swap(true, Ordering::Acquire) {
                self.back_off();
            }
        }
        SpinGuard(self)
    }

    #[cold]
    fn back_off(&self) {
        for _ in 0..100 {
            if !self.busy.load(Ordering::Relaxed) {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// The right to use what a [`Spin`] guards.
pub(crate) struct SpinGuard<'a, T>(&'a Spin<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `busy` was false and is ours until this goes.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_ends_with_its_runtime_and_is_no_other_ones() {
        let value = Serial::new(7);
        // SAFETY: nothing but `value` is used under the promise, and by this thread only.
        let promise = |serialized| unsafe { Callers::promise(serialized) };
        assert_eq!(value.get(), None);
        let first = promise(true);
        assert_eq!(value.get(), Some(&7));
        let second = promise(false);
        assert_eq!(value.get(), None);
        drop(second);
        assert_eq!(value.get(), Some(&7));
        drop(first);
        assert_eq!(value.get(), None);
    }
}
