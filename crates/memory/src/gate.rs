//! [`Gate`]: the one lock of the engine, taken for real only when several threads may call MPI.

use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use crate::fork::{forked, watch_forks};
use crate::sync::{AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, UnsafeCell, yield_now};

/// Tries before a thread sleeps until the gate is free: who holds it works, or lost this very core to the thread that
/// wants in, and one that sleeps has to be woken each time.
const YIELDS: u32 = 50;

/// How long such tries may take: who gets the core may keep it for a whole slice.
#[cfg(not(loom))]
const TRYING: Duration = Duration::from_millis(1);

/// True if a thread has tried for long.
#[cfg(not(loom))]
fn is_over(until: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    now >= *until.get_or_insert(now + TRYING)
}

/// Loom knows no time: only the tries count.
#[cfg(loom)]
fn is_over(_: &mut Option<Instant>) -> bool {
    false
}

/// Exclusive access to a `T`: a mutex under MPI_THREAD_MULTIPLE, and only a flag otherwise.
///
/// Below THREAD_MULTIPLE the MPI standard has the user serialize all calls (MPI 5.0, 11.6), so nobody ever
/// waits for the flag: finding it taken is a fault (a callback that runs while the gate is held, or a
/// program that asked for too low a thread level), which panics with [`Refused::Taken`]. The flag is no lock: a locked
/// instruction would wait until all earlier stores, such as that of a message, have reached the other core.
///
/// A child that `fork` made finds every gate closed: what lies behind belongs to its parent.
pub struct Gate<T> {
    shared: bool,
    busy: AtomicBool,
    /// A thread has found it taken.
    contended: AtomicBool,
    /// Threads in [`Gate::wait`]; changes under the lock.
    waiting: AtomicU32,
    lock: Mutex<()>,
    freed: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard. One exists at a time: of a shared gate because of the mutex, of
// any other because of the promise that its callers come one after the other, with the flag as a check.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Gate<T> {}

/// A promise that the users of a gate come one after the other, whatever threads they are.
#[derive(Debug)]
pub struct Serialized(());

impl Serialized {
    /// Promises it.
    ///
    /// # Safety
    /// What is made with it may be used by several threads, but never by two at the same time, and what one
    /// did happens before what the next one does.
    pub unsafe fn promise() -> Self {
        Self(())
    }
}

/// Why a gate did not open: what [`Gate::enter`] panics with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It is not shared, and held already.
    Taken,
    /// This process is a child that `fork` made of the one that it belongs to.
    Forked,
}

impl<T> Gate<T> {
    /// A gate where threads wait for one another or, with the promise, one for callers that need not.
    pub fn new(value: T, serialized: Option<Serialized>) -> Self {
        watch_forks();
        Self {
            shared: serialized.is_none(),
            busy: AtomicBool::new(false),
            contended: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            lock: Mutex::new(()),
            freed: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the gate, and holds it until the guard goes.
    ///
    /// # Panics
    /// With [`Refused`], without a message: if it is not shared and held already, or in a child after `fork`.
    #[inline(always)]
    pub fn enter(&self) -> GateGuard<'_, T> {
        if forked() {
            refuse(Refused::Forked);
        }
        let locked = self.shared.then(|| self.lock());
        if self.busy.load(Ordering::Relaxed) {
            refuse(Refused::Taken);
        }
        self.busy.store(true, Ordering::Relaxed);
        GateGuard { gate: self, locked }
    }

    #[inline(never)]
    fn lock(&self) -> MutexGuard<'_, ()> {
        let mut until = None;
        for tries in 0..YIELDS {
            match self.lock.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poison)) => return poison.into_inner(),
                Err(TryLockError::WouldBlock) if is_over(&mut until) => break,
                Err(TryLockError::WouldBlock) => yield_now(),
            }
            if tries == 0 {
                self.contended.store(true, Ordering::Relaxed);
            }
        }
        self.lock.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// True if several threads may come through this gate.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// True if a thread has had to wait for another one's way through it, so that several are busy.
    #[inline]
    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// The value, when no other user is left.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Lets go of the gate until someone calls [`Gate::notify`], or for at most `patience`.
    pub fn wait<'a>(&'a self, mut guard: GateGuard<'a, T>, patience: Duration) -> GateGuard<'a, T> {
        if let Some(locked) = guard.locked.take() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.busy.store(false, Ordering::Relaxed);
            let (locked, _) =
                self.freed.wait_timeout(locked, patience).unwrap_or_else(|poison| poison.into_inner());
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.busy.store(true, Ordering::Relaxed);
            guard.locked = Some(locked);
        }
        guard
    }

    /// Wakes all that wait in [`Gate::wait`]. To be called with the gate held, or after it was: a thread that
    /// enters later sees for itself what has changed.
    #[inline]
    pub fn notify(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.freed.notify_all();
        }
    }
}

#[cold]
#[inline(never)]
fn refuse(why: Refused) -> ! {
    std::panic::resume_unwind(Box::new(why))
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
        self.gate.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for GateGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: one guard at a time, see `Gate`.
        self.gate.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for GateGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.busy.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shared_gate_admits_one_thread_at_a_time() {
        let gate = Gate::new(0u64, None);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *gate.enter() += 1));
            }
        });
        assert_eq!(*gate.enter(), 40_000);
    }

    #[test]
    fn a_gate_that_is_not_shared_notices_re_entry() {
        // SAFETY: one thread.
        let gate = Gate::new((), Some(unsafe { Serialized::promise() }));
        let _held = gate.enter();
        let panic =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(gate.enter()))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&Refused::Taken));
    }
}

/// Every order in which threads can come, up to some preemptions.
#[cfg(all(test, loom))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn explore(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }

    #[test]
    fn one_thread_at_a_time_is_inside() {
        explore(|| {
            let gate = Arc::new(Gate::new(0, None));
            let other = gate.clone();
            let there = thread::spawn(move || *other.enter() += 1);
            *gate.enter() += 1;
            there.join().expect("it ends");
            assert_eq!(*gate.enter(), 2);
        });
    }

    #[test]
    fn who_waits_is_told() {
        explore(|| {
            let gate = Arc::new(Gate::new(false, None));
            let other = gate.clone();
            let there = thread::spawn(move || {
                *other.enter() = true;
                other.notify();
            });
            let mut guard = gate.enter();
            while !*guard {
                // Loom's waits have no end but being told.
                guard = gate.wait(guard, Duration::from_secs(1));
            }
            drop(guard);
            there.join().expect("it ends");
        });
    }
}
