//! [`Gate`]: the one lock of the engine, taken for real only when several threads may call MPI.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Exclusive access to a `T`: a mutex under MPI_THREAD_MULTIPLE, and only a flag otherwise.
///
/// Below THREAD_MULTIPLE the MPI standard has the user serialize all calls (MPI 5.0, 11.6), so nobody ever
/// waits for the flag: finding it taken is a fault (a callback that runs while the gate is held, or a
/// program that asked for too low a thread level), which panics.
pub struct Gate<T> {
    shared: bool,
    busy: AtomicBool,
    lock: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard, and `busy`, taken with Acquire and left with Release, admits
// one guard at a time.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// A gate where threads wait for one another (`shared`), or one for callers that come one after the other.
    pub fn new(shared: bool, value: T) -> Self {
        let (lock, freed) = (Mutex::new(()), Condvar::new());
        Self { shared, busy: AtomicBool::new(false), lock, freed, value: UnsafeCell::new(value) }
    }

    /// Waits for the gate, and holds it until the guard goes.
    ///
    /// # Panics
    /// If this thread (or, unshared, anyone) holds it already.
    #[inline]
    pub fn enter(&self) -> GateGuard<'_, T> {
        let locked = self.shared.then(|| self.lock.lock().unwrap_or_else(|poison| poison.into_inner()));
        assert!(!self.busy.swap(true, Ordering::Acquire), "the engine was entered while it is in use");
        GateGuard { gate: self, locked }
    }

    /// True if several threads may come through this gate.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The value, when no other user is left.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Lets go of the gate until someone calls [`Gate::notify`], or for at most `patience`.
    pub fn wait<'a>(
        &'a self,
        mut guard: GateGuard<'a, T>,
        patience: std::time::Duration,
    ) -> GateGuard<'a, T> {
        if let Some(locked) = guard.locked.take() {
            self.busy.store(false, Ordering::Release);
            let (locked, _) =
                self.freed.wait_timeout(locked, patience).unwrap_or_else(|poison| poison.into_inner());
            self.busy.store(true, Ordering::Relaxed);
            guard.locked = Some(locked);
        }
        guard
    }

    /// Wakes all that wait in [`Gate::wait`].
    pub fn notify(&self) {
        if self.shared {
            self.freed.notify_all();
        }
    }
}

/// The right to use what a [`Gate`] guards.
pub struct GateGuard<'a, T> {
    gate: &'a Gate<T>,
    locked: Option<MutexGuard<'a, ()>>,
}

impl<T> Deref for GateGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: one guard at a time, see `Gate`.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for GateGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: one guard at a time, see `Gate`.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for GateGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.busy.store(false, Ordering::Release);
        drop(self.locked.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_gate_admits_one_thread_at_a_time() {
        let gate = Gate::new(true, 0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *gate.enter() += 1));
            }
        });
        assert_eq!(*gate.enter(), 40_000);
    }

    #[test]
    fn an_unshared_gate_notices_re_entry() {
        let gate = Gate::new(false, ());
        let _held = gate.enter();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(gate.enter()))).is_err());
    }
}
