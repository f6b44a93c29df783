//! Which communicator has its slots where: all its ranks on the node ask here, in any order, and get the
//! same answer without talking to each other.
//!
//! A list of entries in pieces of [`room`], behind one lock that is held for some hundred
//! instructions. An answer "there is no room" is an entry too, so that all ranks of a communicator hear it.

use crate::core::Core;
use crate::layout::PAGE;
use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{arena, room};

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
const ENTRIES: usize = (PAGE - 8) / ENTRY;

/// The slots of the communicator `ctx` (not 0) of `ranks` ranks: their offset, the same for all its ranks.
/// Each rank that asked must [`leave`] in the end.
pub(crate) fn join(core: &Core, ctx: u64, ranks: u32) -> Option<u64> {
    let segment = &core.segment;
    let registry = &segment.header().registry;
    let _held = Held::take(registry);
    if let Some(at) = entries(segment, registry).find(|&at| word(segment, at) == ctx) {
        return Some(word(segment, at + 8)).filter(|&slots| slots != 0);
    }
    if registry.full.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let free = entries(segment, registry).find(|&at| word(segment, at) == 0);
    let Some(at) = free.or_else(|| extend(segment, registry)) else {
        registry.full.store(1, Ordering::Relaxed);
        return None;
    };
    let slots = arena::take(core, ranks);
    set(segment, at, ctx);
    set(segment, at + 8, slots.unwrap_or(0));
    set(segment, at + 16, u64::from(ranks));
    slots
}

/// This rank does not use the slots of `ctx` any more. The last one frees them.
pub(crate) fn leave(core: &Core, ctx: u64, ranks: u32) {
    let segment = &core.segment;
    let registry = &segment.header().registry;
    let _held = Held::take(registry);
    let Some(at) = entries(segment, registry).find(|&at| word(segment, at) == ctx) else { return };
    let left = word(segment, at + 16).saturating_sub(1);
    set(segment, at + 16, left);
    if left > 0 {
        return;
    }
    if word(segment, at + 8) != 0 {
        arena::give(core, word(segment, at + 8), ranks);
    }
    set(segment, at, 0);
}

/// Offsets of all entries.
fn entries<'a>(segment: &'a Segment, registry: &Registry) -> impl Iterator<Item = usize> + 'a {
    let pieces = std::iter::successors(Some(registry.first.load(Ordering::Relaxed)), |&piece| {
        (piece != 0).then(|| word(segment, piece as usize))
    });
    pieces
        .take_while(|&piece| piece != 0)
        .flat_map(|piece| (0..ENTRIES).map(move |i| piece as usize + 8 + i * ENTRY))
}

/// One more piece; its first entry.
fn extend(segment: &Segment, registry: &Registry) -> Option<usize> {
    let piece = room::take(segment, PAGE, PAGE)?;
    set(segment, piece as usize, registry.first.load(Ordering::Relaxed));
    registry.first.store(piece, Ordering::Relaxed);
    Some(piece as usize + 8)
}

fn word(segment: &Segment, at: usize) -> u64 {
    segment.word(at).load(Ordering::Relaxed)
}

fn set(segment: &Segment, at: usize, value: u64) {
    segment.word(at).store(value, Ordering::Relaxed);
}

/// The lock, while it is held. A rank that dies with it takes the job down, and the segment goes.
struct Held<'a>(&'a AtomicU32);

impl<'a> Held<'a> {
    fn take(registry: &'a Registry) -> Self {
        while registry.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        Held(&registry.lock)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
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
