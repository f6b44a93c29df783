//! The word that says how to wake a rank, and the order of stores and loads that makes waking safe.
//!
//! Who publishes something stores it, then looks at the doorbell. Who goes to sleep stores its doorbell,
//! then looks at what was published. If neither sees the other's store, a wake-up is lost, so a full barrier
//! must lie between store and load on both sides. On an uncrowded node the sleeper pays for both: it makes
//! all running threads pass a barrier (membarrier), and a publisher needs none. Where ranks sleep often, since
//! they are more than the cores, or where the kernel refuses that, both fence.

use crate::sync::{AtomicU32, Ordering, fence};

/// No one is at this place yet: publishers take the slow path, which is always right.
const ABSENT: u32 = 0;
const AWAKE: u32 = 1;
const FUTEX: u32 = 2;
const DESCRIPTOR: u32 = 3;

/// The publisher's side: between what it stored and its look at a doorbell.
#[inline]
pub(crate) fn light_barrier(fences: bool) {
    if fences {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A rank's doorbell, alone in its line; written by its owner, and by who wakes it.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Doorbell {
    word: AtomicU32,
}

/// How a sleeper wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bed {
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

    /// Nothing needs to be done after publishing. The quick look; valid after a barrier (see the module).
    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        self.word.load(Ordering::Relaxed) == AWAKE
    }

    /// After publishing and a barrier: claims the duty to wake the owner, if it sleeps.
    pub(crate) fn claim(&self) -> Option<Bed> {
        let seen = self.word.load(Ordering::Relaxed);
        let bed = match seen {
            FUTEX => Bed::Futex,
            DESCRIPTOR => Bed::Descriptor,
            _ => return None,
        };
        let claimed = self.word.compare_exchange(seen, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok().then_some(bed)
    }

    /// The owner is about to sleep. A barrier follows, then a last look.
    pub(crate) fn arm(&self, bed: Bed) {
        let word = match bed {
            Bed::Futex => FUTEX,
            Bed::Descriptor => DESCRIPTOR,
        };
        self.word.store(word, Ordering::Relaxed);
    }

    /// The owner is awake (again).
    pub(crate) fn awake(&self) {
        self.word.store(AWAKE, Ordering::Relaxed);
    }

    /// The owner has gone: whoever comes next, or no one, sits here.
    pub(crate) fn absent(&self) {
        self.word.store(ABSENT, Ordering::Relaxed);
    }

    /// The owner is armed and no one has woken it.
    pub(crate) fn is_armed(&self) -> bool {
        !matches!(self.word.load(Ordering::Acquire), ABSENT | AWAKE)
    }

    /// The futex: the word, and the value while it sleeps.
    #[cfg(not(loom))]
    pub(crate) fn futex(&self) -> (&AtomicU32, u32) {
        (&self.word, FUTEX)
    }
}
