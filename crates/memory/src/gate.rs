//! [`Gate`]: the one lock of the engine, taken for real only when several threads may call MPI.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Exclusive access to a `T`: a mutex under MPI_THREAD_MULTIPLE, and only a flag otherwise.
///
/// Below THREAD_MULTIPLE the MPI standard has the user serialize all calls (MPI 5.0, 11.6), so the
/// flag only catches re-entry (a callback that runs while the gate is held), which panics.
pub struct Gate<T> {
    shared: bool,
    busy: AtomicBool,
    lock: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard; with `shared` the mutex admits one guard at a time;
// without, the caller's promise (`Gate::new`) does.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// A gate that locks (`shared`), or one that trusts its callers to come one after the other.
    ///
    /// # Safety
    /// With `shared == false`, calls of [`Gate::enter`] from different threads, and the lives of the
    /// guards they give, must be ordered by the caller (MPI_THREAD_SINGLE, FUNNELED, SERIALIZED).
    pub unsafe fn new(shared: bool, value: T) -> Self {
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
        assert!(!self.busy.load(Ordering::Relaxed), "the engine was entered while it is in use");
        self.busy.store(true, Ordering::Relaxed);
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
            self.busy.store(false, Ordering::Relaxed);
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
        self.gate.busy.store(false, Ordering::Relaxed);
        drop(self.locked.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_gate_admits_one_thread_at_a_time() {
        // SAFETY: shared.
        let gate = unsafe { Gate::new(true, 0u64) };
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *gate.enter() += 1));
            }
        });
        assert_eq!(*gate.enter(), 40_000);
    }

    #[test]
    fn an_unshared_gate_notices_re_entry() {
        // SAFETY: one thread only.
        let gate = unsafe { Gate::new(false, ()) };
        let _held = gate.enter();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(gate.enter()))).is_err());
    }
}
