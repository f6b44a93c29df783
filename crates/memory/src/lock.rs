//! [`EngineLock`]: the one lock of the engine. It is a real lock only when several threads may call MPI.

use std::ops::{Deref, DerefMut};
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use crate::fork::{forked, watch_forks};
use crate::sync::{AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, UnsafeCell, yield_now};

/// Tries before a thread sleeps until the engine lock is free. The thread that holds it works, or lost this very core to the
/// one that tries, and a thread that sleeps has to be woken each time.
const YIELDS: u32 = 50;

/// How long these tries may take: another thread that gets the core may keep it for a whole time slice.
#[cfg(not(loom))]
const TRY_TIME: Duration = Duration::from_millis(1);

/// True if a thread has tried for [`TRY_TIME`].
#[cfg(not(loom))]
fn is_time_up(until: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    now >= *until.get_or_insert(now + TRY_TIME)
}

/// Loom has no clock: only the number of tries counts.
#[cfg(loom)]
fn is_time_up(_: &mut Option<Instant>) -> bool {
    false
}

/// Exclusive access to a `T`: a mutex under MPI_THREAD_MULTIPLE, and only a flag otherwise.
///
/// Below THREAD_MULTIPLE the MPI standard has the user serialize all calls (MPI 5.0, 11.6), so no thread ever
/// waits for the flag: finding it set is a fault (a callback that runs while the engine lock is held, or a
/// program that asked for too low a thread level), which panics with [`Refused::Taken`]. The flag is no lock: a locked
/// instruction would wait until all earlier stores, such as that of a message, have reached the other core.
///
/// In a child that `fork` made every engine lock refuses entry: the engine belongs to the parent.
pub struct EngineLock<T> {
    /// Several threads may call MPI, so the mutex is used.
    multi_threaded: bool,
    /// A guard exists.
    busy: AtomicBool,
    /// A thread has found the mutex locked.
    contended: AtomicBool,
    /// Threads in [`EngineLock::wait`]; changes under the lock.
    waiting: AtomicU32,
    lock: Mutex<()>,
    notified: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a guard. One exists at a time: because of the mutex if several threads may call
// MPI, otherwise because of the promise that callers come one after the other, with the flag as a check.
unsafe impl<T: Send> Send for EngineLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for EngineLock<T> {}

/// A promise that the users of an engine lock come one after the other, whatever threads they are.
#[derive(Debug)]
pub struct Serialized(());

impl Serialized {
    /// Makes the promise.
    ///
    /// # Safety
    /// What is made with the promise may be used by several threads, but never by two at the same time, and what one
    /// thread did happens before what the next one does.
    pub unsafe fn promise() -> Self {
        Self(())
    }
}

/// Why an engine lock refused entry: what [`EngineLock::enter`] panics with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Callers promised to come one after the other, and the lock is held.
    Taken,
    /// This process is a child that `fork` made of the one that the lock belongs to.
    Forked,
}

impl<T> EngineLock<T> {
    /// An engine lock that threads wait for; with the promise, one that is only a flag.
    pub fn new(value: T, serialized: Option<Serialized>) -> Self {
        watch_forks();
        Self {
            multi_threaded: serialized.is_none(),
            busy: AtomicBool::new(false),
            contended: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            lock: Mutex::new(()),
            notified: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the engine lock, and holds it until the guard goes.
    ///
    /// # Panics
    /// With [`Refused`], without a message: if the lock is only a flag and is held already, or in a child after `fork`.
    #[inline(always)]
    pub fn enter(&self) -> EngineGuard<'_, T> {
        if forked() {
            refuse(Refused::Forked);
        }
        let locked = self.multi_threaded.then(|| self.lock());
        if self.busy.load(Ordering::Relaxed) {
            refuse(Refused::Taken);
        }
        self.busy.store(true, Ordering::Relaxed);
        EngineGuard { lock: self, locked }
    }

    #[inline(never)]
    fn lock(&self) -> MutexGuard<'_, ()> {
        let mut until = None;
        for tries in 0..YIELDS {
            match self.lock.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poison)) => return poison.into_inner(),
                Err(TryLockError::WouldBlock) if is_time_up(&mut until) => break,
                Err(TryLockError::WouldBlock) => yield_now(),
            }
            if tries == 0 {
                self.contended.store(true, Ordering::Relaxed);
            }
        }
        self.lock.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// True if several threads may take this engine lock.
    #[inline]
    pub fn is_multi_threaded(&self) -> bool {
        self.multi_threaded
    }

    /// True if a thread has ever had to wait for another one, so that several use the engine.
    #[inline]
    pub fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed)
    }

    /// The value, when no other user is left.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Releases the engine lock until a thread calls [`EngineLock::notify`], or for at most `timeout`. Without effect if the
    /// lock is only a flag.
    pub fn wait<'a>(&'a self, mut guard: EngineGuard<'a, T>, timeout: Duration) -> EngineGuard<'a, T> {
        if let Some(locked) = guard.locked.take() {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.busy.store(false, Ordering::Relaxed);
            let (locked, _) =
                self.notified.wait_timeout(locked, timeout).unwrap_or_else(|poison| poison.into_inner());
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.busy.store(true, Ordering::Relaxed);
            guard.locked = Some(locked);
        }
        guard
    }

    /// Wakes all threads that wait in [`EngineLock::wait`]. To be called with the engine lock held, or after it was: a thread
    /// that enters later sees for itself what has changed.
    #[inline]
    pub fn notify(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.notified.notify_all();
        }
    }
}

#[cold]
#[inline(never)]
fn refuse(why: Refused) -> ! {
    std::panic::resume_unwind(Box::new(why))
}

/// The right to use what an [`EngineLock`] guards.
pub struct EngineGuard<'a, T> {
    lock: &'a EngineLock<T>,
    locked: Option<MutexGuard<'a, ()>>,
}

impl<T> Deref for EngineGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: one guard at a time, see `EngineLock`.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for EngineGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: one guard at a time, see `EngineLock`.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for EngineGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.busy.store(false, Ordering::Relaxed);
        if let Some(locked) = self.locked.take() {
            unlock(locked);
        }
    }
}

/// Apart from the guard's own drop, which is inlined with nothing of the mutex in it.
#[inline(never)]
fn unlock(locked: MutexGuard<'_, ()>) {
    drop(locked);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_several_threads_admits_one_at_a_time() {
        let lock = EngineLock::new(0u64, None);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..10_000).for_each(|_| *lock.enter() += 1));
            }
        });
        assert_eq!(*lock.enter(), 40_000);
    }

    #[test]
    fn a_lock_that_is_only_a_flag_notices_re_entry() {
        // SAFETY: one thread.
        let lock = EngineLock::new((), Some(unsafe { Serialized::promise() }));
        let _held = lock.enter();
        let panic =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.enter()))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&Refused::Taken));
    }
}

/// Every order in which threads can interleave, up to three preemptions.
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
            let lock = Arc::new(EngineLock::new(0, None));
            let other = lock.clone();
            let there = thread::spawn(move || *other.enter() += 1);
            *lock.enter() += 1;
            there.join().expect("the thread ends");
            assert_eq!(*lock.enter(), 2);
        });
    }

    #[test]
    fn a_waiting_thread_is_notified() {
        explore(|| {
            let lock = Arc::new(EngineLock::new(false, None));
            let other = lock.clone();
            let there = thread::spawn(move || {
                *other.enter() = true;
                other.notify();
            });
            let mut guard = lock.enter();
            while !*guard {
                // Under loom a wait ends only by a notification.
                guard = lock.wait(guard, Duration::from_secs(1));
            }
            drop(guard);
            there.join().expect("the thread ends");
        });
    }
}
