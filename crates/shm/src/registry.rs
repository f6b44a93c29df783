//! Which communicator has its slots where: all its ranks on the node ask here, in any order, and get the
//! same answer without talking to each other.
//!
//! A list of entries in pieces of [`room`], behind one lock that is held for some hundred
//! instructions. An answer "there is no room" is an entry too, so that all ranks of a communicator hear it.

use crate::layout::{PAGE, arena_slots, arena_stride};
use crate::room::{self, Ground};
use crate::sync::{AtomicU32, AtomicU64, Ordering, rest};

/// The shared state. All zero: nobody has asked yet.
#[repr(C)]
pub(crate) struct Registry {
    lock: AtomicU32,
    /// Not 0: there was no room for more entries once, so who is not in the list gets no slots.
    full: AtomicU32,
    /// Offset of the first piece; 0: none.
    first: AtomicU64,
}

/// Words of an entry: context (0: free), offset of the slots (0: none), ranks that have not left.
const ENTRY: usize = 24;
/// The first word of a piece is the offset of the next.
const ENTRIES: usize = if cfg!(loom) { 2 } else { (PAGE - 8) / ENTRY };

/// Yields before a rank that waits for the lock naps between its tries: who holds it has been stopped, or has no core.
const YIELDS: u32 = 1000;

/// The slots of the communicator `ctx` (not 0) of `ranks` ranks: their offset, the same for all its ranks.
/// Each rank that asked must [`leave`] in the end.
pub(crate) fn join(ground: &impl Ground, registry: &Registry, ctx: u64, ranks: u32) -> Option<u64> {
    let _held = Held::take(registry);
    if let Some(at) = entries(ground, registry).find(|&at| word(ground, at) == ctx) {
        return Some(word(ground, at + 8)).filter(|&slots| slots != 0);
    }
    if registry.full.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let free = entries(ground, registry).find(|&at| word(ground, at) == 0);
    let Some(at) = free.or_else(|| extend(ground, registry)) else {
        registry.full.store(1, Ordering::Relaxed);
        return None;
    };
    let slots = take(ground, ranks);
    set(ground, at, ctx);
    set(ground, at + 8, slots.unwrap_or(0));
    set(ground, at + 16, u64::from(ranks));
    slots
}

/// This rank does not use the slots of `ctx` any more. The last one frees them.
pub(crate) fn leave(ground: &impl Ground, registry: &Registry, ctx: u64, ranks: u32) {
    let _held = Held::take(registry);
    let Some(at) = entries(ground, registry).find(|&at| word(ground, at) == ctx) else { return };
    let left = word(ground, at + 16).saturating_sub(1);
    set(ground, at + 16, left);
    if left > 0 {
        return;
    }
    if word(ground, at + 8) != 0 {
        give(ground, word(ground, at + 8), ranks);
    }
    set(ground, at, 0);
}

/// Room for the slots of so many ranks, zeroed.
pub(crate) fn take(ground: &impl Ground, ranks: u32) -> Option<u64> {
    // Only the slots are sure to have memory: boards get theirs page by page, if they are used at all.
    room::take(ground, arena_stride(ranks), arena_slots(ranks))
}

/// Gives it back.
pub(crate) fn give(ground: &impl Ground, at: u64, ranks: u32) {
    room::give(ground, at, arena_stride(ranks));
}

/// Offsets of all entries.
fn entries<'a>(ground: &'a impl Ground, registry: &Registry) -> impl Iterator<Item = usize> + 'a {
    let pieces = std::iter::successors(Some(registry.first.load(Ordering::Relaxed)), |&piece| {
        (piece != 0).then(|| word(ground, piece as usize))
    });
    pieces
        .take_while(|&piece| piece != 0)
        .flat_map(|piece| (0..ENTRIES).map(move |i| piece as usize + 8 + i * ENTRY))
}

/// One more piece; its first entry.
fn extend(ground: &impl Ground, registry: &Registry) -> Option<usize> {
    let piece = room::take(ground, PAGE, PAGE)?;
    set(ground, piece as usize, registry.first.load(Ordering::Relaxed));
    registry.first.store(piece, Ordering::Relaxed);
    Some(piece as usize + 8)
}

fn word(ground: &impl Ground, at: usize) -> u64 {
    ground.word(at).load(Ordering::Relaxed)
}

fn set(ground: &impl Ground, at: usize, value: u64) {
    ground.word(at).store(value, Ordering::Relaxed);
}

/// The lock, while it is held. A rank that dies with it takes the job down, and the ground goes.
struct Held<'a>(&'a AtomicU32);

impl<'a> Held<'a> {
    fn take(registry: &'a Registry) -> Self {
        let mut tries = 0;
        while registry.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            rest(tries > YIELDS);
        }
        Held(&registry.lock)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Options, Shm};
    use banyan_transport::Peer;

    #[test]
    fn all_ranks_of_a_communicator_get_the_same_slots() {
        let peers = [Peer(0), Peer(1), Peer(2)];
        let memory = Shm::memory(3).unwrap();
        let ranks: Vec<Shm> = (0..3)
            .map(|me| Shm::attach(memory.try_clone().unwrap(), me, &peers, Options::default()).unwrap())
            .collect();
        let world = ranks[0].arena_join(77, 3).unwrap();
        assert_eq!(ranks[2].arena_join(77, 3), Some(world));
        let other = ranks[1].arena_join(78, 2).unwrap();
        assert_ne!(world, other);
        assert_eq!(ranks[1].arena_join(77, 3), Some(world));
        for rank in &ranks {
            rank.arena_leave(77, 3);
        }
        // The room is used again, and the other communicator's is untouched.
        assert_eq!(ranks[0].arena_join(79, 3), Some(world));
        assert_eq!(ranks[0].arena_join(78, 2), Some(other));
    }

    #[test]
    fn without_room_all_hear_the_same() {
        let peers = [Peer(0), Peer(1)];
        let memory = Shm::memory(2).unwrap();
        let ranks: Vec<Shm> = (0..2)
            .map(|me| Shm::attach(memory.try_clone().unwrap(), me, &peers, Options::default()).unwrap())
            .collect();
        let first: Vec<_> = (1..5000).map(|ctx| ranks[0].arena_join(ctx, 2)).collect();
        assert!(first.last().unwrap().is_none(), "the segment is not endless");
        ranks[0].arena_leave(1, 2);
        ranks[1].arena_leave(1, 2);
        let second: Vec<_> = (2..5000).map(|ctx| ranks[1].arena_join(ctx, 2)).collect();
        assert_eq!(first[1..], second);
    }
}

#[cfg(all(test, loom))]
mod interleaved {
    use super::*;
    use crate::interleaved::explore;
    use crate::room::tests::pages;
    use loom::{sync::Arc, thread};

    fn registry() -> Arc<Registry> {
        Arc::new(Registry { lock: AtomicU32::new(0), full: AtomicU32::new(0), first: AtomicU64::new(0) })
    }

    #[test]
    fn two_ranks_hear_the_same() {
        explore(|| {
            let (pages, registry) = (pages(1 << 14), registry());
            let (ground, shared) = (pages.clone(), registry.clone());
            let there = thread::spawn(move || join(&ground, &shared, 7, 2));
            let here = join(&pages, &registry, 7, 2);
            assert!(here.is_some());
            assert_eq!(there.join().expect("it ends"), here);
        });
    }

    #[test]
    fn the_last_to_leave_frees_the_slots() {
        explore(|| {
            let (pages, registry) = (pages(1 << 14), registry());
            let slots = join(&pages, &registry, 7, 2);
            let (ground, shared) = (pages.clone(), registry.clone());
            let there = thread::spawn(move || leave(&ground, &shared, 7, 2));
            leave(&pages, &registry, 7, 2);
            there.join().expect("it ends");
            assert_eq!(join(&pages, &registry, 8, 2), slots, "the room is used again");
        });
    }
}
