//! The registry of arenas: where each communicator has its arena. All its ranks ask here, in any order, and get the
//! same answer without talking to each other.
//!
//! It is a list of entries in [`pages`], behind one lock that is held for some hundred
//! instructions. The answer "there is no room" is an entry too, so that all ranks of a communicator get it.

use crate::layout::{PAGE, arena_buffers, arena_stride};
use crate::pages::{self, PageMemory};
use crate::sync::{AtomicU32, AtomicU64, Ordering, rest};

/// The shared state of the registry. All zero: no rank has asked yet.
#[repr(C)]
pub(crate) struct Registry {
    lock: AtomicU32,
    /// Not 0: there was no room for more entries once, so a communicator that is not in the list gets no arena.
    full: AtomicU32,
    /// Offset of the first page of entries; 0: none.
    first: AtomicU64,
}

/// Bytes of an entry. Its words: context (0: free), offset of the arena (0: none), number of ranks that have not left.
const ENTRY_BYTES: usize = 24;
/// Entries of a page. The first word of a page is the offset of the next page.
const PAGE_ENTRIES: usize = if cfg!(loom) { 2 } else { (PAGE - 8) / ENTRY_BYTES };

/// Tries for the lock after which a rank sleeps between tries instead of yielding: the rank that holds the lock has been
/// stopped, or has no core.
const YIELDS: u32 = 1000;

/// The offset of the arena of the communicator `ctx` (not 0) of `ranks` ranks, the same for all its ranks; `None` (for all
/// of them) if there is no room. Each rank that asked must [`leave`] in the end, also after `None`.
pub(crate) fn join(memory: &impl PageMemory, registry: &Registry, ctx: u64, ranks: u32) -> Option<u64> {
    let _guard = LockGuard::lock(registry);
    if let Some(at) = entries(memory, registry).find(|&at| word(memory, at) == ctx) {
        return Some(word(memory, at + 8)).filter(|&arena| arena != 0);
    }
    if registry.full.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let free = entries(memory, registry).find(|&at| word(memory, at) == 0);
    let Some(at) = free.or_else(|| extend(memory, registry)) else {
        registry.full.store(1, Ordering::Relaxed);
        return None;
    };
    let arena = alloc(memory, ranks);
    set(memory, at, ctx);
    set(memory, at + 8, arena.unwrap_or(0));
    set(memory, at + 16, u64::from(ranks));
    arena
}

/// This rank does not use the arena of `ctx` any more. The last rank to leave frees it.
pub(crate) fn leave(memory: &impl PageMemory, registry: &Registry, ctx: u64, ranks: u32) {
    let _guard = LockGuard::lock(registry);
    let Some(at) = entries(memory, registry).find(|&at| word(memory, at) == ctx) else { return };
    let left = word(memory, at + 16).saturating_sub(1);
    set(memory, at + 16, left);
    if left > 0 {
        return;
    }
    if word(memory, at + 8) != 0 {
        free(memory, word(memory, at + 8), ranks);
    }
    set(memory, at, 0);
}

/// Allocates a zeroed arena for so many ranks.
pub(crate) fn alloc(memory: &impl PageMemory, ranks: u32) -> Option<u64> {
    // Only the CICO buffers get memory now: the shared scratch gets it page by page, if it is used at all.
    pages::alloc(memory, arena_stride(ranks), arena_buffers(ranks))
}

/// Frees an arena for so many ranks.
pub(crate) fn free(memory: &impl PageMemory, at: u64, ranks: u32) {
    pages::free(memory, at, arena_stride(ranks));
}

/// Offsets of all entries.
fn entries<'a>(memory: &'a impl PageMemory, registry: &Registry) -> impl Iterator<Item = usize> + 'a {
    let pages = std::iter::successors(Some(registry.first.load(Ordering::Relaxed)), |&page| {
        (page != 0).then(|| word(memory, page as usize))
    });
    pages
        .take_while(|&page| page != 0)
        .flat_map(|page| (0..PAGE_ENTRIES).map(move |i| page as usize + 8 + i * ENTRY_BYTES))
}

/// Adds a page of entries; the offset of its first entry.
fn extend(memory: &impl PageMemory, registry: &Registry) -> Option<usize> {
    let page = pages::alloc(memory, PAGE, PAGE)?;
    set(memory, page as usize, registry.first.load(Ordering::Relaxed));
    registry.first.store(page, Ordering::Relaxed);
    Some(page as usize + 8)
}

fn word(memory: &impl PageMemory, at: usize) -> u64 {
    memory.word(at).load(Ordering::Relaxed)
}

fn set(memory: &impl PageMemory, at: usize, value: u64) {
    memory.word(at).store(value, Ordering::Relaxed);
}

/// The lock, while it is held. A rank that dies holding it takes the job down, and the segment goes; a job that goes on without
/// the rank (`mpirun --keep-going`) can make no more communicators on this node.
struct LockGuard<'a>(&'a AtomicU32);

impl<'a> LockGuard<'a> {
    fn lock(registry: &'a Registry) -> Self {
        let mut tries = 0;
        while registry.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries += 1;
            rest(tries > YIELDS);
        }
        LockGuard(&registry.lock)
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{Options, Shm};
    use banyan_transport::Peer;

    #[test]
    fn all_ranks_of_a_communicator_get_the_same_arena() {
        let peers = [Peer(0), Peer(1), Peer(2)];
        let memory = Shm::memory(3, None).unwrap();
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
    fn without_room_all_ranks_get_the_same_answer() {
        let peers = [Peer(0), Peer(1)];
        let memory = Shm::memory(2, None).unwrap();
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
    use crate::pages::tests::test_pages;
    use loom::{sync::Arc, thread};

    fn registry() -> Arc<Registry> {
        Arc::new(Registry { lock: AtomicU32::new(0), full: AtomicU32::new(0), first: AtomicU64::new(0) })
    }

    #[test]
    fn two_ranks_get_the_same_answer() {
        explore(|| {
            let (memory, registry) = (test_pages(1 << 14), registry());
            let (other_memory, other) = (memory.clone(), registry.clone());
            let there = thread::spawn(move || join(&other_memory, &other, 7, 2));
            let here = join(&memory, &registry, 7, 2);
            assert!(here.is_some());
            assert_eq!(there.join().expect("the thread ends"), here);
        });
    }

    #[test]
    fn the_last_to_leave_frees_the_arena() {
        explore(|| {
            let (memory, registry) = (test_pages(1 << 14), registry());
            let arena = join(&memory, &registry, 7, 2);
            let (other_memory, other) = (memory.clone(), registry.clone());
            let there = thread::spawn(move || leave(&other_memory, &other, 7, 2));
            leave(&memory, &registry, 7, 2);
            there.join().expect("the thread ends");
            assert_eq!(join(&memory, &registry, 8, 2), arena, "the room is used again");
        });
    }
}
