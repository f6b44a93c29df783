//! [`Watch`]: tells which watched memory of this process was unmapped, by the events of userfaultfd, so that nobody's `malloc` has to be
//! replaced.
//!
//! Pages are watched in the mode for write protection, and none is ever protected: no access is held up. But whoever unmaps, moves or
//! empties watched pages waits in the kernel until the event is read, which takes a thread of its own. It reads under a lock, and what it
//! has read is there when the lock is free: so a call of `munmap` that is over is known to whoever looks afterwards. Neither it nor who
//! holds the lock may free memory, which would wait for the thread itself: the room for events is fixed, and if it is full all is gone.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Refuses faults in the kernel, which this never handles: with it no privilege is needed.
const USER_MODE_ONLY: u32 = 1;
const API: u64 = 0xaa;
const GROUP: u8 = 0xaa;
/// Events for memory that is moved, emptied and unmapped; and the mode for write protection.
const FEATURES: u64 = MOVED | EMPTIED | UNMAPPED | 1;
const MOVED: u64 = 1 << 2;
const EMPTIED: u64 = 1 << 3;
const UNMAPPED: u64 = 1 << 6;
const WRITE_PROTECTION: u64 = 2;
/// Events that are read at a time, and those that are kept until somebody looks.
const BATCH: usize = 16;
const KEPT: usize = 64;

/// `struct uffdio_api`.
#[repr(C)]
struct Face {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`, which begins with `struct uffdio_range`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Pages {
    start: u64,
    len: u64,
}

/// Ranges that have gone since somebody looked; of fixed size.
struct Gone {
    ranges: [(usize, usize); KEPT],
    count: usize,
    all: bool,
}

struct Shared {
    fd: OwnedFd,
    end: OwnedFd,
    gone: Mutex<Gone>,
}

/// What watches memory. The thread ends with it.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Whether the system lets this process watch its memory.
    pub fn is_allowed() -> bool {
        Watch::open().is_ok()
    }

    /// What tells of memory that is gone.
    fn open() -> io::Result<OwnedFd> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: in the mode that is used it never holds up an access to memory.
        let fd = unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY))? };
        let mut face = Face { api: API, features: FEATURES, ioctls: 0 };
        // SAFETY: UFFDIO_API takes this struct.
        unsafe { ioctl(&fd, Updater::<{ opcode::read_write::<Face>(GROUP, 0x3f) }, Face>::new(&mut face))? };
        Ok(fd)
    }

    /// Begins to watch.
    ///
    /// # Errors
    /// If the system does not let this process do so.
    pub fn start() -> io::Result<Watch> {
        let fd = Watch::open()?;
        let gone = Mutex::new(Gone { ranges: [(0, 0); KEPT], count: 0, all: false });
        let shared = Arc::new(Shared { fd, end: eventfd(0, EventfdFlags::CLOEXEC)?, gone });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("banyan-memory".into()).spawn(move || its.run())?;
        Ok(Watch { shared, thread: Some(thread) })
    }

    /// Watches whole pages; false if the kernel does not do that for what is mapped there.
    pub fn add(&self, pages: &Range<usize>) -> bool {
        let (start, len) = (pages.start as u64, pages.len() as u64);
        let mut what = Register { start, len, mode: WRITE_PROTECTION, ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER takes this struct; nothing is protected, so no access is held up.
        let done = unsafe {
            ioctl(
                &self.shared.fd,
                Updater::<{ opcode::read_write::<Register>(GROUP, 0) }, Register>::new(&mut what),
            )
        };
        done.is_ok()
    }

    /// Watches whole pages no more, as far as they are there.
    pub fn remove(&self, pages: &Range<usize>) {
        let mut what = Pages { start: pages.start as u64, len: pages.len() as u64 };
        // SAFETY: UFFDIO_UNREGISTER takes this struct. It fails where nothing is mapped, and so nothing is watched.
        let _ = unsafe {
            ioctl(&self.shared.fd, Updater::<{ opcode::read::<Pages>(GROUP, 1) }, Pages>::new(&mut what))
        };
    }

    /// Tells each range that has gone since the last call.
    pub fn gone(&self, tell: &mut dyn FnMut(Range<usize>)) {
        let mut gone = self.shared.lock();
        if gone.count == 0 && !gone.all {
            return;
        }
        let (ranges, count, all) = (gone.ranges, gone.count, gone.all);
        (gone.count, gone.all) = (0, false);
        drop(gone);
        if all {
            return tell(0..usize::MAX);
        }
        ranges[..count].iter().for_each(|&(start, end)| tell(start..end));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It never fails: the counter is far from full.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gone> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        block_signals();
        loop {
            let mut fds = [&self.fd, &self.end].map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            let mut gone = self.lock();
            let mut events = [0; BATCH * Event::BYTES];
            while let Ok(read) = rustix::io::read(&self.fd, &mut events) {
                events[..read].chunks_exact(Event::BYTES).for_each(|event| gone.note(Event::decode(event)));
                if read == 0 {
                    return;
                }
            }
        }
    }
}

impl Gone {
    fn note(&mut self, event: Option<Event>) {
        match event {
            Some(Event { start, end }) if self.count < KEPT => {
                self.ranges[self.count] = (start, end);
                self.count += 1;
            }
            _ => self.all = true,
        }
    }
}

/// A range that has gone.
struct Event {
    start: usize,
    end: usize,
}

impl Event {
    /// Bytes of `struct uffd_msg`.
    const BYTES: usize = 32;

    /// Reads the kernel's form; `None` if it is of an unknown kind.
    fn decode(bytes: &[u8]) -> Option<Event> {
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?) as usize);
        match bytes.first()? {
            0x14 => Some(Event { start: word(8)?, end: word(8)? + word(24)? }),
            0x15 | 0x16 => Some(Event { start: word(8)?, end: word(16)? }),
            _ => None,
        }
    }
}

/// Handlers of the program's do not run in this thread: one that frees memory would wait for it.
fn block_signals() {
    // SAFETY: a set of signals, filled by the first call, for this thread alone.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

    const LEN: usize = 16 * 4096;

    fn map() -> usize {
        // SAFETY: new memory at an address that the kernel chooses.
        let at =
            unsafe { mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        at.expect("memory").expose_provenance()
    }

    fn gone(watch: &Watch) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        watch.gone(&mut |range| all.push((range.start, range.end)));
        all
    }

    /// What is unmapped, emptied or moved is told as soon as the call is over; what is written is not.
    #[test]
    fn what_is_unmapped_is_known_at_once() {
        let watch = match Watch::start() {
            Ok(watch) => watch,
            Err(error) => return eprintln!("not run: this system does not watch memory: {error}"),
        };
        for round in 0..200 {
            let (at, step) = (map(), LEN / 4);
            let to = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(at);
            assert!(watch.add(&(at..at + LEN)), "memory of no file can be watched");
            // SAFETY: memory that was mapped above, which nobody else knows.
            unsafe {
                to.cast::<u8>().add(round).write(1);
                assert_eq!(gone(&watch), [], "a write is no news");
                madvise(to.byte_add(step), step, Advice::LinuxDontNeed).expect("it is mapped");
                assert_eq!(gone(&watch), [(at + step, at + 2 * step)]);
                let moved =
                    mremap(to.byte_add(3 * step), step, 2 * step, MremapFlags::MAYMOVE).expect("room");
                let stays = moved == to.byte_add(3 * step);
                assert!(stays || gone(&watch).contains(&(at + 3 * step, at + 4 * step)));
                munmap(moved, 2 * step).expect("it is mapped");
                gone(&watch);
                munmap(to, step).expect("it is mapped");
                assert_eq!(gone(&watch), [(at, at + step)]);
                watch.remove(&(at + step..at + 3 * step));
                munmap(to.byte_add(step), 2 * step).expect("it is mapped");
                assert_eq!(gone(&watch), [], "it is not watched any more");
            }
        }
    }

    /// More events than there is room for: all is gone.
    #[test]
    fn nothing_is_forgotten_for_want_of_room() {
        let Ok(watch) = Watch::start() else { return };
        for _ in 0..2 * KEPT {
            let at = map();
            assert!(watch.add(&(at..at + LEN)));
            // SAFETY: memory that was mapped above, which nobody else knows.
            unsafe { munmap(std::ptr::with_exposed_provenance_mut(at), LEN).expect("it is mapped") };
        }
        assert_eq!(gone(&watch), [(0, usize::MAX)]);
        assert!(gone(&watch).is_empty());
    }
}
