//! [`Attachment`]: what the fabric of a rank and its arenas share: the segment, waking, and reading of peers' memory.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, OnceLock, PoisonError, Weak};

use banyan_memory::Buffer;
use banyan_transport::{Remote, Transfer};

use crate::aliased;
use crate::arena::WakeConditions;
use crate::doorbell::SleepMode;
use crate::segment::{Block, Segment};
use crate::socket::Socket;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::system::{self, Barrier};
use crate::{Error, Options, SingleCopy, Stats};

/// A rank's attachment to the segment of its node.
pub(crate) struct Attachment {
    pub(crate) segment: Segment,
    pub(crate) me: u32,
    pub(crate) barrier: Barrier,
    single_copy: SingleCopy,
    /// The node has more ranks than cores.
    pub(crate) crowded: bool,
    /// Id of the process that attached: its child after fork must not act for it.
    pid: u32,
    /// How this rank can read each peer's memory: a [`ReadPath`] as a number.
    read_path: Vec<AtomicU32>,
    /// The system has refused to write a peer's memory.
    write_refused: AtomicBool,
    /// The word that peers read to see that they can; its address is in this rank's identity.
    probe: Box<AtomicU64>,
    /// The socket that datagrams to peers' doorbells are sent from.
    waker: OnceLock<Option<Socket>>,
    pub(crate) wake_conditions: Mutex<Vec<Weak<WakeConditions>>>,
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

/// How this rank can read a peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReadPath {
    /// Not tried yet.
    Unknown,
    /// By a plain copy: both ranks are in one address space.
    SameProcess,
    /// By `process_vm_readv`.
    Syscall,
    /// Not at all.
    Refused,
}

/// The way of a copy between this process and a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the peer.
    Read,
    /// To the peer.
    Write,
}

impl ReadPath {
    fn of(number: u32) -> Self {
        [ReadPath::SameProcess, ReadPath::Syscall, ReadPath::Refused]
            .into_iter()
            .find(|&r| r as u32 == number)
            .unwrap_or(ReadPath::Unknown)
    }
}

impl Attachment {
    pub(crate) fn new(segment: Segment, me: u32, options: &Options) -> Result<Self, Error> {
        let ranks = segment.layout.ranks;
        if me >= ranks {
            return Err(Error::Index { me, ranks });
        }
        let crowded = options.crowded.unwrap_or_else(|| ranks as usize > system::cores());
        let attachment = Self {
            segment,
            me,
            barrier: Barrier::join(crowded),
            single_copy: options.single_copy,
            crowded,
            pid: std::process::id(),
            read_path: (0..ranks).map(|_| AtomicU32::new(ReadPath::Unknown as u32)).collect(),
            write_refused: AtomicBool::new(false),
            probe: Box::new(AtomicU64::new(system::random())),
            waker: OnceLock::new(),
            wake_conditions: Mutex::new(Vec::new()),
            counters: Counters::default(),
        };
        attachment.attach()?;
        Ok(attachment)
    }

    /// Claims this rank's local index, and tells the others about this process.
    fn attach(&self) -> Result<(), Error> {
        if !self.barrier.works() {
            self.segment.header().fences.store(1, Ordering::SeqCst);
        }
        let me = self.block(self.me);
        let id = &me.identity;
        // 2: a process is attaching. Acquire, with the Release in `detach`: the process before has left.
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
        id.writes.store(0, Ordering::Relaxed);
        // Release: a rank that sees `present` 1 sees the rest.
        id.present.store(1, Ordering::Release);
        me.bell.awake();
        Ok(())
    }

    /// Frees this rank's local index for a later instance.
    pub(crate) fn detach(&self) {
        let me = self.block(self.me);
        me.bell.absent();
        me.identity.socket.store(0, Ordering::Relaxed);
        me.identity.present.store(0, Ordering::Release);
    }

    /// True in the process that attached, false in its child after fork.
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    #[inline]
    pub(crate) fn block(&self, rank: u32) -> &Block {
        self.segment.block(rank)
    }

    /// True if publishers must fence before they read a doorbell.
    #[inline(always)]
    pub(crate) fn fences(&self) -> bool {
        self.segment.header().fences.load(Ordering::Relaxed) != 0
    }

    /// Wakes `rank` if it sleeps. To be called after publishing something for it, and a barrier.
    pub(crate) fn wake(&self, rank: u32) {
        let Some(sleep_mode) = self.block(rank).bell.claim() else { return };
        self.counters.wakes.fetch_add(1, Ordering::Relaxed);
        match sleep_mode {
            SleepMode::Futex => system::futex_wake(self.block(rank).bell.futex().0),
            SleepMode::Descriptor => self.wake_by_datagram(rank),
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

    /// Makes this rank's doorbell socket, and publishes its name.
    pub(crate) fn new_socket(&self) -> std::io::Result<Socket> {
        let (socket, name) = Socket::of(self.key())?;
        // Release: a rank that finds the name finds the key, which was drawn before.
        self.block(self.me).identity.socket.store(name, Ordering::Release);
        Ok(socket)
    }

    /// The key that wakes sockets of this segment; the first rank that needs it draws it.
    fn key(&self) -> u64 {
        let key = &self.segment.header().key;
        let drawn = match key.load(Ordering::Relaxed) {
            0 => system::random(),
            key => return key,
        };
        key.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed).map_or_else(|k| k, |_| drawn)
    }

    /// The full barrier of a rank that goes to sleep, before it polls once more; see [`crate::doorbell`]. False if it is not
    /// certain that publishers passed a barrier, too.
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

    /// Whether this rank can read the memory of `rank`, as far as known: true before the first try.
    #[inline(always)]
    pub(crate) fn can_read(&self, rank: u32) -> bool {
        self.single_copy != SingleCopy::Off
            && self.read_path[rank as usize].load(Ordering::Relaxed) != ReadPath::Refused as u32
    }

    /// Whether this rank can read the memory of `rank`: tried now, if `rank` has attached; `None` otherwise.
    pub(crate) fn test_read(&self, rank: u32) -> Option<bool> {
        match self.read_path(rank) {
            ReadPath::Unknown => None,
            read_path => Some(read_path != ReadPath::Refused),
        }
    }

    /// `memory` of this rank, as peers address it.
    pub(crate) fn remote(&self, memory: &Buffer) -> Remote {
        let (addr, len) = (memory.address(memory.lo()) as u64, memory.len() as u64);
        Remote { addr, len, key: self.block(self.me).identity.key.load(Ordering::Relaxed) }
    }

    /// From now on no read of what was exposed so far succeeds, and nothing is written there. What the user writes there afterwards
    /// is not mistaken for what was exposed: a reader compares the key again when it has the bytes. A peer that writes at this
    /// moment is waited for, as long as the kernel copies for it.
    pub(crate) fn revoke(&self) {
        self.block(self.me).identity.key.fetch_add(2, Ordering::SeqCst);
        // With the fence in `transfer`: a writer sees the new key, or is seen here.
        fence(Ordering::SeqCst);
        self.await_writers();
    }

    /// Waits while the kernel copies into this rank's memory for a peer.
    pub(crate) fn await_writers(&self) {
        for rank in (0..self.segment.layout.ranks).filter(|rank| *rank != self.me) {
            let id = &self.block(rank).identity;
            while id.writes.load(Ordering::Acquire) == self.me + 1
                && id.present.load(Ordering::Acquire) == 1
                && system::process_exists(id.pid.load(Ordering::Relaxed))
            {
                std::thread::yield_now();
            }
        }
    }

    /// Copies between the `remote.len` bytes that `rank` registered and `local`, whose buffers follow one another.
    pub(crate) fn transfer(&self, rank: u32, remote: Remote, local: &[Buffer], way: Way) -> Transfer {
        self.transfer_while(rank, remote, local, way, &|| true)
    }

    /// The same, if that is `valid`, before the copy and after it.
    pub(crate) fn transfer_while(
        &self,
        rank: u32,
        remote: Remote,
        local: &[Buffer],
        way: Way,
        valid: &dyn Fn() -> bool,
    ) -> Transfer {
        let len: usize = local.iter().map(Buffer::len).sum();
        assert_eq!(remote.len, len as u64, "a transfer takes all of its buffers");
        if len == 0 {
            return Transfer::Done;
        }
        let writes = &self.block(self.me).identity.writes;
        if way == Way::Write {
            writes.store(rank + 1, Ordering::Relaxed);
            // With the fence in `revoke`.
            fence(Ordering::SeqCst);
        }
        let done = self.while_valid(rank, remote.key, valid, || match self.read_path(rank) {
            ReadPath::SameProcess => copy_in_process(remote, local, way),
            ReadPath::Syscall => self.copy_by_syscall(rank, remote, local, way),
            ReadPath::Unknown | ReadPath::Refused => false,
        });
        if way == Way::Write {
            // Release, with the Acquire in `revoke`: the bytes are there.
            writes.store(0, Ordering::Release);
        }
        if !done {
            self.counters.refused_reads.fetch_add(1, Ordering::Relaxed);
            return Transfer::Impossible;
        }
        if way == Way::Read {
            self.count_reads(1, len);
        }
        Transfer::Done
    }

    /// Whether `copy` has copied what `rank` registered under this key, and that and what is `also` asked hold before and after it.
    fn while_valid(&self, rank: u32, key: u64, also: &dyn Fn() -> bool, copy: impl FnOnce() -> bool) -> bool {
        let id = &self.block(rank).identity;
        let valid =
            || id.present.load(Ordering::Acquire) == 1 && id.key.load(Ordering::Relaxed) == key && also();
        let copied = valid() && copy();
        // Acquire, with the fence in `revoke`: a reader that got bytes written after it finds another key, too.
        fence(Ordering::Acquire);
        copied && valid()
    }

    fn count_reads(&self, reads: usize, bytes: usize) {
        self.counters.reads.fetch_add(reads as u64, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Reads several ranges that `rank` registered, each into its buffer, by one call of the system; gives how many, or 0 if not all of them
    /// could be read.
    pub(crate) fn read_together(&self, rank: u32, gets: &mut dyn Iterator<Item = (Remote, Buffer)>) -> usize {
        if self.read_path(rank) != ReadPath::Syscall {
            return 0;
        }
        let identity = &self.block(rank).identity;
        let key = identity.key.load(Ordering::Relaxed);
        let (mut remote, mut local) = ([part(0, 0); PARTS], [part(0, 0); PARTS]);
        let (mut count, mut bytes) = (0, 0);
        for (there, here) in gets.take(PARTS) {
            assert_eq!(there.len, here.len() as u64, "a transfer takes all of its buffer");
            if there.key != key {
                return 0;
            }
            remote[count] = part(there.addr, here.len());
            local[count] = part(here.ptr(here.lo(), here.len()) as u64, here.len());
            (count, bytes) = (count + 1, bytes + here.len());
        }
        let pid = identity.pid.load(Ordering::Relaxed);
        // SAFETY: the parts are checked against the bounds of buffers that may be written.
        let read = || unsafe { system::copy_process(pid, &remote[..count], &local[..count], false) };
        if count == 0 || !self.while_valid(rank, key, &|| true, || read().is_ok_and(|read| read == bytes)) {
            return 0;
        }
        self.count_reads(count, bytes);
        count
    }

    /// Reads memory of another process, as much as `into` has; false if that is not possible.
    pub(crate) fn read_bytes(&self, rank: u32, addr: u64, into: &Buffer) -> bool {
        let remote = Remote { addr, len: into.len() as u64, key: 0 };
        self.read_path(rank) == ReadPath::Syscall
            && self.copy_by_syscall(rank, remote, std::slice::from_ref(into), Way::Read)
    }

    /// From now on the memory of `rank` is not read: that rank is gone, and its process id may come to mean another process.
    pub(crate) fn forget(&self, rank: u32) {
        self.read_path[rank as usize].store(ReadPath::Refused as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    fn cached_read_path(&self, rank: u32) -> ReadPath {
        ReadPath::of(self.read_path[rank as usize].load(Ordering::Relaxed))
    }

    fn read_path(&self, rank: u32) -> ReadPath {
        let cached = self.cached_read_path(rank);
        if cached != ReadPath::Unknown {
            return cached;
        }
        let found = self.probe_peer(rank);
        self.read_path[rank as usize].store(found as u32, Ordering::Relaxed);
        found
    }

    /// Really reads a word of the peer, which shows whatever may forbid it: permissions, a seccomp filter, Yama, or a process
    /// id that means another process in this namespace.
    fn probe_peer(&self, rank: u32) -> ReadPath {
        if self.single_copy == SingleCopy::Off {
            return ReadPath::Refused;
        }
        let id = &self.block(rank).identity;
        if id.present.load(Ordering::Acquire) != 1 {
            return ReadPath::Unknown;
        }
        if self.single_copy == SingleCopy::Auto && id.space.load(Ordering::Relaxed) == address_space() {
            return ReadPath::SameProcess;
        }
        let (pid, at) = (id.pid.load(Ordering::Relaxed), id.probe_at.load(Ordering::Relaxed));
        let mut word = 0u64;
        let (there, local) = ([part(at, 8)], [part(&raw mut word as u64, 8)]);
        // SAFETY: 8 bytes of our own.
        let got = unsafe { system::copy_process(pid, &there, &local, false) };
        let right = got.is_ok_and(|n| n == 8) && word == id.probe.load(Ordering::Relaxed);
        if right { ReadPath::Syscall } else { ReadPath::Refused }
    }

    fn copy_by_syscall(&self, rank: u32, remote: Remote, local: &[Buffer], way: Way) -> bool {
        if way == Way::Write && self.write_refused.load(Ordering::Relaxed) {
            return false;
        }
        let pid = self.block(rank).identity.pid.load(Ordering::Relaxed);
        let mut done = 0;
        while done < remote.len as usize {
            let (parts, count) = batch(local, done);
            let parts = &parts[..count];
            let len = parts.iter().map(|part| part.iov_len).sum();
            let there = [part(remote.addr + done as u64, len)];
            let copied = match local {
                [one] if aliased::shuns(remote.addr, one, way) => {
                    aliased::copy(pid, remote.addr + done as u64, (one, done), way)
                }
                // SAFETY: the parts are checked against the bounds of buffers that may be read and written.
                _ => unsafe { system::copy_process(pid, &there, parts, way == Way::Write) },
            };
            match copied {
                Ok(got) if got > 0 => done += got,
                Ok(_) => return false,
                Err(error) => {
                    self.note_failure(rank, &error, way);
                    return false;
                }
            }
        }
        true
    }

    /// After a bad address other copies may succeed. After any other error the peer is not read again, and no peer is written
    /// (a filter of system calls may forbid one and not the other).
    fn note_failure(&self, rank: u32, error: &std::io::Error, way: Way) {
        match way {
            _ if error.raw_os_error() == Some(libc::EFAULT) => {}
            Way::Read => self.forget(rank),
            Way::Write => self.write_refused.store(true, Ordering::Relaxed),
        }
    }

    pub(crate) fn wake_conditions(&self) -> std::sync::MutexGuard<'_, Vec<Weak<WakeConditions>>> {
        self.wake_conditions.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Copies from or to a peer in the same process (ranks as threads).
fn copy_in_process(remote: Remote, local: &[Buffer], way: Way) -> bool {
    let Ok(len) = usize::try_from(remote.len) else { return false };
    // SAFETY: a peer in this address space registers these bytes until the transfer is over.
    let there = unsafe { Buffer::new(remote.addr as *mut u8, len) };
    let mut at = 0;
    for local in local {
        match way {
            Way::Read => local.copy_from(local.lo(), &there, at, local.len()),
            Way::Write => there.copy_from(at, local, local.lo(), local.len()),
        }
        at += local.len() as isize;
    }
    true
}

/// Most parts of local memory in one system call.
const PARTS: usize = 16;
/// Most bytes of one part.
const MOST: usize = 1 << 30;

/// So many bytes from `addr` on, here or there, as the system wants them named.
pub(crate) fn part(addr: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: len }
}

/// The parts of `local` for the next system call, from byte `skip` of all of them on, and how many parts these are.
fn batch(local: &[Buffer], mut skip: usize) -> ([libc::iovec; PARTS], usize) {
    let mut parts = [part(0, 0); PARTS];
    let mut count = 0;
    for buffer in local {
        let before = skip.min(buffer.len());
        skip -= before;
        let len = (buffer.len() - before).min(MOST);
        if len > 0 {
            parts[count] = part(buffer.ptr(buffer.lo() + before as isize, len) as u64, len);
            count += 1;
        }
        // The rest of a longer buffer comes before the next one.
        if count == PARTS || before + len < buffer.len() {
            break;
        }
    }
    (parts, count)
}

/// A number that tells this process image from others.
fn address_space() -> u64 {
    static TOKEN: OnceLock<(u32, u64)> = OnceLock::new();
    let pid = std::process::id();
    let (maker, token) = *TOKEN.get_or_init(|| (pid, system::random()));
    // A child after fork has a copy of the token and an address space of its own.
    if maker == pid { token } else { token ^ (u64::from(pid) << 32) }
}
