//! Calls that come one after the other: the program's promise, and locks that cost nothing under it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether calls to an instance of MPI come one after the other: what the program promised when it began.
pub(crate) struct Promise(AtomicBool);

impl Promise {
    /// There is no promise.
    pub(crate) const fn none() -> Promise {
        Promise(AtomicBool::new(false))
    }

    /// Makes the promise.
    ///
    /// # Safety
    /// Until [`Promise::end`] no two threads use what relies on this promise at the same time, and each use happens before
    /// the next one.
    pub(crate) unsafe fn make(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// From now on there is no promise.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    #[inline(always)]
    fn holds(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that can be reached only while calls come one after the other.
pub(crate) struct Serial<T> {
    promise: &'static Promise,
    value: T,
}

// SAFETY: `get` gives it out only while the promise holds.
unsafe impl<T> Sync for Serial<T> {}

impl<T> Serial<T> {
    /// Keeps `value`, which relies on `promise`.
    pub(crate) const fn new(value: T, promise: &'static Promise) -> Self {
        Self { promise, value }
    }

    /// The value, if calls come one after the other. For calls that the promise is about only.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&T> {
        self.promise.holds().then_some(&self.value)
    }
}

/// A lock for a few instructions, without user code: one atomic exchange when it is free, and none where calls come one
/// after the other.
pub(crate) struct Spin<T> {
    /// Threads come one after the other while this holds.
    promise: Option<&'static Promise>,
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `SpinGuard`. One thread at a time has one: because of `busy` or
// because of the promise.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T, promise: Option<&'static Promise>) -> Self {
        Self { promise, busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Locks the value. A thread that holds the lock must not call this again.
    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        if self.promise.is_some_and(Promise::holds) {
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
    fn a_value_is_there_while_its_promise_holds() {
        static PROMISE: Promise = Promise::none();
        let value = Serial::new(7, &PROMISE);
        assert_eq!(value.get(), None);
        // SAFETY: nothing but `value` relies on the promise, and only this thread uses it.
        unsafe { PROMISE.make() };
        assert_eq!(value.get(), Some(&7));
        PROMISE.end();
        assert_eq!(value.get(), None);
    }

    #[test]
    fn a_lock_under_a_promise_notices_that_it_is_entered_twice() {
        static PROMISE: Promise = Promise::none();
        let lock = Spin::new(7, Some(&PROMISE));
        // SAFETY: nothing but `lock` relies on the promise, and only this thread uses it.
        unsafe { PROMISE.make() };
        let guard = lock.lock();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.lock()))).is_err());
        drop(guard);
        assert_eq!(*lock.lock(), 7);
    }
}
