//! What the fabric and its arenas share: the segment, who sits where, waking, and reading of peers' memory.

use std::sync::{Mutex, OnceLock, PoisonError, Weak};

use banyan_memory::Buffer;
use banyan_transport::{Get, Remote};

use crate::arena::Watch;
use crate::doorbell::Bed;
use crate::segment::{Block, Segment};
use crate::socket::Socket;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::system::{self, Barrier};
use crate::{Error, Options, SingleCopy, Stats};

/// One rank's hold on a segment.
pub(crate) struct Core {
    pub(crate) segment: Segment,
    pub(crate) me: u32,
    pub(crate) barrier: Barrier,
    single_copy: SingleCopy,
    /// Process id of who attached: a child after fork must not act for its parent.
    pid: u32,
    /// How each peer's memory can be read, a `Reach` as a number.
    reach: Vec<AtomicU32>,
    /// What peers read to see that they can; its address is in our identity.
    probe: Box<AtomicU64>,
    /// To wake from.
    waker: OnceLock<Option<Socket>>,
    pub(crate) watches: Mutex<Vec<Weak<Watch>>>,
    pub(crate) counters: Counters,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) refused_reads: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) lost_wakes: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) busy: AtomicU64,
}

/// How a peer's memory can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// Not tried.
    Unknown,
    /// It is in our address space.
    Here,
    /// By process_vm_readv.
    Syscall,
    /// Not at all.
    Refused,
}

impl Reach {
    fn of(number: u32) -> Self {
        [Reach::Here, Reach::Syscall, Reach::Refused]
            .into_iter()
            .find(|&r| r as u32 == number)
            .unwrap_or(Reach::Unknown)
    }
}

impl Core {
    pub(crate) fn new(segment: Segment, me: u32, options: &Options) -> Result<Self, Error> {
        let ranks = segment.layout.ranks;
        if me >= ranks {
            return Err(Error::Index { me, ranks });
        }
        let crowded = options.crowded.unwrap_or_else(|| ranks as usize > system::cores());
        let core = Self {
            segment,
            me,
            barrier: Barrier::join(crowded),
            single_copy: options.single_copy,
            pid: std::process::id(),
            reach: (0..ranks).map(|_| AtomicU32::new(Reach::Unknown as u32)).collect(),
            probe: Box::new(AtomicU64::new(system::random())),
            waker: OnceLock::new(),
            watches: Mutex::new(Vec::new()),
            counters: Counters::default(),
        };
        core.sit_down()?;
        Ok(core)
    }

    /// Tells the others who we are.
    fn sit_down(&self) -> Result<(), Error> {
        if !self.barrier.works() {
            self.segment.header().fences.store(1, Ordering::SeqCst);
        }
        let me = self.block(self.me);
        let id = &me.identity;
        // 2: someone is sitting down. Acquire, with the Release in `stand_up`: the one before has left.
        if id.present.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Occupied { me: self.me, pid: id.pid.load(Ordering::Relaxed) });
        }
        if self.single_copy != SingleCopy::Off {
            system::allow_reading();
        }
        id.pid.store(self.pid, Ordering::Relaxed);
        id.space.store(address_space(), Ordering::Relaxed);
        id.probe_at.store(std::ptr::from_ref::<AtomicU64>(&self.probe) as u64, Ordering::Relaxed);
        id.probe.store(self.probe.load(Ordering::Relaxed), Ordering::Relaxed);
        id.key.store(system::random() | 1, Ordering::Relaxed);
        // Release: who sees `present` 1 sees the rest.
        id.present.store(1, Ordering::Release);
        me.bell.awake();
        Ok(())
    }

    /// Frees our place for a later instance.
    pub(crate) fn stand_up(&self) {
        let me = self.block(self.me);
        me.bell.absent();
        me.identity.socket.store(0, Ordering::Relaxed);
        me.identity.present.store(0, Ordering::Release);
    }

    /// We are the process that attached, and not its child.
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    #[inline]
    pub(crate) fn block(&self, rank: u32) -> &Block {
        self.segment.block(rank)
    }

    /// Publishers must fence before they look at a doorbell.
    #[inline(always)]
    pub(crate) fn fences(&self) -> bool {
        self.segment.header().fences.load(Ordering::Relaxed) != 0
    }

    /// After publishing something for `rank`, and a barrier: wakes it if it sleeps.
    pub(crate) fn wake(&self, rank: u32) {
        let Some(bed) = self.block(rank).bell.claim() else { return };
        self.counters.wakes.fetch_add(1, Ordering::Relaxed);
        match bed {
            Bed::Futex => system::futex_wake(self.block(rank).bell.futex().0),
            Bed::Descriptor => self.wake_by_datagram(rank),
        }
    }

    fn wake_by_datagram(&self, rank: u32) {
        let waker = self.waker.get_or_init(|| Socket::nameless().ok());
        let name = self.block(rank).identity.socket.load(Ordering::Acquire);
        let sent = name != 0 && waker.as_ref().is_some_and(|socket| socket.wake(name, self.key()).is_ok());
        if !sent {
            self.counters.lost_wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// This rank's doorbell socket, which the others learn of.
    pub(crate) fn new_socket(&self) -> std::io::Result<Socket> {
        let (socket, name) = Socket::of(self.key())?;
        // Release: who finds the name finds the key that was drawn before.
        self.block(self.me).identity.socket.store(name, Ordering::Release);
        Ok(socket)
    }

    /// What wakes sockets of this segment; drawn by who needs it first.
    fn key(&self) -> u64 {
        let key = &self.segment.header().key;
        let drawn = match key.load(Ordering::Relaxed) {
            0 => system::random(),
            key => return key,
        };
        key.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|k| k, |_| drawn)
    }

    /// A full barrier, then the sleepers' last look; see [`crate::doorbell`]. False if it is not certain
    /// that publishers passed one too.
    pub(crate) fn heavy_barrier(&self) -> bool {
        if self.fences() {
            fence(Ordering::SeqCst);
            return true;
        }
        self.barrier.heavy() || {
            self.segment.header().fences.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            false
        }
    }

    /// Whether `rank`'s memory can be read, as far as known: true before the first try.
    #[inline(always)]
    pub(crate) fn can_read(&self, rank: u32) -> bool {
        self.single_copy != SingleCopy::Off
            && self.reach[rank as usize].load(Ordering::Relaxed) != Reach::Refused as u32
    }

    /// Whether `rank`'s memory can be read: tried now, if `rank` has attached.
    pub(crate) fn try_reach(&self, rank: u32) -> Option<bool> {
        match self.reach(rank) {
            Reach::Unknown => None,
            reach => Some(reach != Reach::Refused),
        }
    }

    /// What we expose, as peers address it.
    pub(crate) fn remote(&self, memory: &Buffer) -> Remote {
        let (addr, len) = (memory.address(memory.lo()) as u64, memory.len() as u64);
        Remote { addr, len, key: self.block(self.me).identity.key.load(Ordering::Relaxed) }
    }

    /// From now on no read of what was exposed so far succeeds. What the user writes there afterwards is not mistaken for
    /// what was exposed: who reads looks at the key again when the bytes are there.
    pub(crate) fn revoke(&self) {
        self.block(self.me).identity.key.fetch_add(2, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Reads `remote.len` bytes of `rank` into `local`.
    pub(crate) fn read(&self, rank: u32, remote: Remote, local: &Buffer) -> Get {
        assert_eq!(remote.len, local.len() as u64, "a read fills its buffer");
        if local.is_empty() {
            return Get::Done;
        }
        let id = &self.block(rank).identity;
        let valid =
            || id.present.load(Ordering::Acquire) == 1 && id.key.load(Ordering::Relaxed) == remote.key;
        let read = valid()
            && match self.reach(rank) {
                Reach::Here => copy_here(remote, local),
                Reach::Syscall => self.read_by_syscall(rank, remote, local),
                Reach::Unknown | Reach::Refused => false,
            };
        // Acquire, with the fence in `revoke`: who has read something of what came later finds another key, too.
        fence(Ordering::Acquire);
        if !(read && valid()) {
            self.counters.refused_reads.fetch_add(1, Ordering::Relaxed);
            return Get::Impossible;
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(remote.len, Ordering::Relaxed);
        Get::Done
    }

    /// From now on `rank`'s memory is not read: it is gone, and its process id may come to mean another.
    pub(crate) fn forget(&self, rank: u32) {
        self.reach[rank as usize].store(Reach::Refused as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    fn known_reach(&self, rank: u32) -> Reach {
        Reach::of(self.reach[rank as usize].load(Ordering::Relaxed))
    }

    fn reach(&self, rank: u32) -> Reach {
        let known = self.known_reach(rank);
        if known != Reach::Unknown {
            return known;
        }
        let found = self.probe_peer(rank);
        self.reach[rank as usize].store(found as u32, Ordering::Relaxed);
        found
    }

    /// Really reads a word of the peer: permission, a seccomp filter, Yama, or a process id that means
    /// another process in our namespace all show.
    fn probe_peer(&self, rank: u32) -> Reach {
        if self.single_copy == SingleCopy::Off {
            return Reach::Refused;
        }
        let id = &self.block(rank).identity;
        if id.present.load(Ordering::Acquire) != 1 {
            return Reach::Unknown;
        }
        if self.single_copy == SingleCopy::Auto && id.space.load(Ordering::Relaxed) == address_space() {
            return Reach::Here;
        }
        let (pid, at) = (id.pid.load(Ordering::Relaxed), id.probe_at.load(Ordering::Relaxed));
        let mut word = 0u64;
        // SAFETY: 8 bytes of our own.
        let got = unsafe { system::read_process(pid, at, (&raw mut word).cast(), 8) };
        let right = got.is_ok_and(|n| n == 8) && word == id.probe.load(Ordering::Relaxed);
        if right { Reach::Syscall } else { Reach::Refused }
    }

    fn read_by_syscall(&self, rank: u32, remote: Remote, local: &Buffer) -> bool {
        let pid = self.block(rank).identity.pid.load(Ordering::Relaxed);
        let mut done = 0;
        while done < local.len() {
            let len = (local.len() - done).min(1 << 30);
            let to = local.ptr(local.lo() + done as isize, len);
            // SAFETY: `to` is checked against the bounds of a buffer that may be written.
            match unsafe { system::read_process(pid, remote.addr + done as u64, to, len) } {
                Ok(got) if got > 0 => done += got,
                Ok(_) => return false,
                Err(error) => {
                    self.note_failure(rank, &error);
                    return false;
                }
            }
        }
        true
    }

    /// A bad address is that read's fault; anything else will be so next time.
    fn note_failure(&self, rank: u32, error: &std::io::Error) {
        if error.raw_os_error() != Some(libc::EFAULT) {
            self.forget(rank);
        }
    }

    pub(crate) fn watches(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Watch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> Stats {
        let c = &self.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            reads: of(&c.reads),
            read_bytes: of(&c.read_bytes),
            refused_reads: of(&c.refused_reads),
            wakes: of(&c.wakes),
            lost_wakes: of(&c.lost_wakes),
            sleeps: of(&c.sleeps),
            busy: of(&c.busy),
        }
    }
}

/// A peer of the same process (ranks as threads).
fn copy_here(remote: Remote, local: &Buffer) -> bool {
    let Ok(len) = usize::try_from(remote.len) else { return false };
    // SAFETY: a peer of this address space exposed these bytes until the read is over.
    let from = unsafe { Buffer::new(remote.addr as *mut u8, len) };
    local.copy_from(local.lo(), &from, 0, len);
    true
}

/// Names this process image.
fn address_space() -> u64 {
    static TOKEN: OnceLock<(u32, u64)> = OnceLock::new();
    let pid = std::process::id();
    let (maker, token) = *TOKEN.get_or_init(|| (pid, system::random()));
    // A child after fork has a copy of the token and an address space of its own.
    if maker == pid { token } else { token ^ (u64::from(pid) << 32) }
}
