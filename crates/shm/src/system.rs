//! System calls that std does not wrap: futex, membarrier, time slices, reading another process, random bytes.

use std::io;
use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, fence};

/// Sleeps while `word` is `value`, at most `timeout`. Works across processes.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
    let time = timeout.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: left.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel only reads the word and the time. All outcomes are fine: a sleep may end without a reason.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, time) };
}

/// Wakes a thread that sleeps on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// The full barrier of a rank that goes to sleep (see [`crate::doorbell`]).
#[derive(Debug)]
pub(crate) struct Barrier {
    expedited: bool,
}

impl Barrier {
    /// Registers this process with membarrier, so that expedited barriers reach it; not if `crowded`. If the kernel refuses,
    /// or if `crowded`, [`Barrier::works`] is false.
    pub(crate) fn join(crowded: bool) -> Self {
        if crowded {
            return Self { expedited: false };
        }
        let query = membarrier(libc::MEMBARRIER_CMD_QUERY);
        let both = libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED | libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        let offered = query.is_ok_and(|commands| commands & i64::from(both) == i64::from(both));
        let joined = offered && membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).is_ok();
        Self { expedited: joined }
    }

    /// True if publishers need not fence for this rank.
    pub(crate) fn works(&self) -> bool {
        self.expedited
    }

    /// Makes every running thread of every process that joined pass a full barrier, and the caller too. False: only the
    /// caller passed one.
    pub(crate) fn heavy(&self) -> bool {
        fence(Ordering::SeqCst);
        self.expedited && membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED).is_ok()
    }
}

fn membarrier(command: libc::c_int) -> io::Result<i64> {
    // SAFETY: takes no pointers.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        answer if answer >= 0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The shortest time slice that Linux gives.
const SHORTEST_SLICE: Duration = Duration::from_micros(100);

/// Asks for short time slices, for the calling thread and those that it starts later. Its share of a core stays what
/// it is; but a thread that yields forgoes the rest of its slice, and waits that long while another thread works, and a
/// thread that wakes up interrupts one with longer slices. Without effect before Linux 6.12.
pub fn shorten_slices() {
    let Some(mut now) = scheduling() else { return };
    let shortest = SHORTEST_SLICE.as_nanos() as u64;
    if now.sched_policy == libc::SCHED_OTHER as u32 && now.sched_runtime > shortest {
        now.sched_runtime = shortest;
        // SAFETY: the kernel only reads the structure, which says its own size. If it refuses, slices stay as they are.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) };
    }
}

/// How the calling thread is scheduled.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: all zero is a valid value.
    let mut now: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `now` is ours, and of that size.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
    (done == 0).then_some(now)
}

/// Copies the `remote` parts of process `pid`, one after the other, to the `local` ones, or the other way around if it `writes`, as
/// far as one call gets.
///
/// # Safety
/// The parts are valid for writes (and for reads, if it writes).
pub(crate) unsafe fn copy_process(
    pid: u32,
    remote: &[libc::iovec],
    local: &[libc::iovec],
    writes: bool,
) -> io::Result<usize> {
    let copy = if writes { libc::process_vm_writev } else { libc::process_vm_readv };
    let [locals, remotes] = [local, remote].map(|parts| (parts.as_ptr(), parts.len() as libc::c_ulong));
    // SAFETY: the local parts are the caller's promise; the kernel checks the remote ones.
    let copied = unsafe { copy(pid as libc::pid_t, locals.0, locals.1, remotes.0, remotes.1, 0) };
    if copied >= 0 { Ok(copied as usize) } else { Err(io::Error::last_os_error()) }
}

/// Lets every process of this user read this one's memory, where the Yama security module asks for such leave
/// (`kernel.yama.ptrace_scope` 1). Elsewhere it has no effect. Such a process may do more than read (it may attach a debugger),
/// so only ranks whose peers read call this.
pub(crate) fn allow_reading() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Whether processes of the same user may read this one's memory, as far as this process decides: not if it is not
/// "dumpable" (it runs a file that its user may not read, has changed its user, or asked for it). The superuser may always.
pub(crate) fn is_readable() -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 }
}

/// Whether there is a process with this id. One that has ended counts until its parent has noticed.
pub(crate) fn process_exists(pid: u32) -> bool {
    // SAFETY: plain numbers; signal 0 does nothing.
    let done = unsafe { libc::kill(pid as libc::pid_t, 0) };
    done == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Number of cores of this machine that are online.
pub(crate) fn cores() -> usize {
    // SAFETY: takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// A random number, not 0.
pub(crate) fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: 8 bytes of our own.
    let got = unsafe { libc::getrandom((&raw mut word).cast(), 8, libc::GRND_NONBLOCK) };
    if got == 8 && word != 0 {
        return word;
    }
    // No entropy yet (early boot): a number that differs between processes is enough here.
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let clock = clock.map_or(1, |time| time.as_nanos() as u64);
    (clock ^ (u64::from(std::process::id()) << 40)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slice_is_shortened() {
        // In a thread of its own, whose slices stay short.
        let pair = std::thread::spawn(|| {
            let before = scheduling();
            shorten_slices();
            (before, scheduling())
        });
        let (Some(before), Some(after)) = pair.join().unwrap() else { return };
        let kept =
            |of: &libc::sched_attr| (of.sched_policy, of.sched_flags, of.sched_nice, of.sched_priority);
        assert_eq!(kept(&after), kept(&before));
        // Kernels without slices per thread say 0.
        let per_thread = before.sched_policy == libc::SCHED_OTHER as u32 && before.sched_runtime > 0;
        let wanted = if per_thread { SHORTEST_SLICE.as_nanos() as u64 } else { before.sched_runtime };
        assert_eq!(after.sched_runtime, wanted);
    }
}
