//! Whether this process is a child that `fork` made of one that uses this library: nothing that the parent shares with
//! others is the child's to use.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

/// True in a child that `fork` made since the first call of `watch_forks`, until it executes another program.
#[inline(always)]
pub fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// From now on children are known.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function stays for as long as the library, whose unloading takes it off the list; it only stores a flag.
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
    use crate::{Gate, Refused, Serialized};

    #[test]
    fn a_child_finds_every_gate_closed() {
        // SAFETY: one thread uses each of them.
        let gates = [Gate::new(7, None), Gate::new(7, Some(unsafe { Serialized::promise() }))];
        // What another thread held at the fork is held for ever in the child.
        let held = gates[0].enter();
        // SAFETY: the child makes system calls, and unwinds through frames of its own; then it ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let closed = |gate: &Gate<i32>| {
                let enter = || drop(gate.enter());
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(enter));
                panic.is_err_and(|why| why.downcast_ref() == Some(&Refused::Forked))
            };
            let good = forked() && gates.iter().all(closed);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        drop(held);
        let mut status = -1;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child found a gate open");
        assert!(!forked() && gates.iter().all(|gate| *gate.enter() == 7));
    }
}
