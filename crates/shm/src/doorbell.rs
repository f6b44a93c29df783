//! [`Doorbell`]: the word that says how to wake a rank, and the order of stores and loads that makes waking safe.
//!
//! A publisher stores what it publishes, then reads the doorbell. A sleeper stores its doorbell, then reads
//! what was published. If neither sees the other's store, a wake-up is lost, so a full barrier must lie between
//! store and load on both sides. On an uncrowded node the sleeper pays for both: it makes all running threads
//! pass a barrier (membarrier), and a publisher needs none. Where ranks sleep often, as there are more ranks
//! than cores, or where the kernel refuses membarrier, both fence.

use crate::sync::{AtomicU32, Ordering, fence};

/// No process is attached as this rank: publishers take the slow path, which is always right.
const ABSENT: u32 = 0;
const AWAKE: u32 = 1;
const FUTEX: u32 = 2;
const DESCRIPTOR: u32 = 3;

/// The publisher's barrier, between storing what it publishes and reading a doorbell. `fences`: a real one is needed.
#[inline]
pub(crate) fn light_barrier(fences: bool) {
    if fences {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A rank's doorbell, alone in its cache line; written by its owner, and by the ranks that wake it.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Doorbell {
    word: AtomicU32,
}

/// How a rank that sleeps is woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SleepMode {
    /// By a futex on the doorbell.
    Futex,
    /// By a datagram to its socket.
    Descriptor,
}

impl Doorbell {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(AWAKE) }
    }

    /// True if the owner does not sleep, so a publisher need not wake it. Valid after a barrier (see the module).
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.word.load(Ordering::Relaxed) == AWAKE
    }

    /// After publishing and a barrier: if the owner sleeps, makes the caller the one that wakes it, and says how.
    pub(crate) fn claim(&self) -> Option<SleepMode> {
        let seen = self.word.load(Ordering::Relaxed);
        let sleep_mode = match seen {
            FUTEX => SleepMode::Futex,
            DESCRIPTOR => SleepMode::Descriptor,
            _ => return None,
        };
        let claimed = self.word.compare_exchange(seen, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok().then_some(sleep_mode)
    }

    /// The owner is about to sleep. A barrier follows, then a last poll.
    pub(crate) fn arm(&self, sleep_mode: SleepMode) {
        let word = match sleep_mode {
            SleepMode::Futex => FUTEX,
            SleepMode::Descriptor => DESCRIPTOR,
        };
        self.word.store(word, Ordering::Relaxed);
    }

    /// The owner is awake (again).
    pub(crate) fn awake(&self) {
        self.word.store(AWAKE, Ordering::Relaxed);
    }

    /// The owner's process detaches; a later instance of this rank may attach.
    pub(crate) fn absent(&self) {
        self.word.store(ABSENT, Ordering::Relaxed);
    }

    /// True if the owner is armed and no rank has woken it.
    pub(crate) fn is_armed(&self) -> bool {
        !matches!(self.word.load(Ordering::Acquire), ABSENT | AWAKE)
    }

    /// The futex: the word, and its value while the owner sleeps.
    #[cfg(not(loom))]
    pub(crate) fn futex(&self) -> (&AtomicU32, u32) {
        (&self.word, FUTEX)
    }
}
