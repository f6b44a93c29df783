//! Whether this process is a child that `fork` made of one that uses this library: such a child must not use anything that
//! its parent shares with other processes.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// True in a child that `fork` made since the first call of `watch_forks`, until it executes another program.
#[inline(always)]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// From now on, children of this process see that they are [`forked`].
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function exists as long as the library, whose unloading takes it off the list; it only stores a flag.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(note));
    });
}

unsafe extern "C" fn note() {
    FORKED.store(true, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{EngineLock, Refused, Serialized};

    #[test]
    fn in_a_child_every_engine_lock_refuses_entry() {
        // SAFETY: one thread uses each of them.
        let locks = [EngineLock::new(7, None), EngineLock::new(7, Some(unsafe { Serialized::promise() }))];
        // A lock that another thread held at the fork stays held in the child.
        let held = locks[0].enter();
        // SAFETY: the child makes system calls, and unwinds through frames of its own; then it ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refuses = |lock: &EngineLock<i32>| {
                let enter = || drop(lock.enter());
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(enter));
                panic.is_err_and(|why| why.downcast_ref() == Some(&Refused::Forked))
            };
            let good = forked() && locks.iter().all(refuses);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        drop(held);
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a lock let the child in");
        assert!(!forked() && locks.iter().all(|lock| *lock.enter() == 7));
    }
}
