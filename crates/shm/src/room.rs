//! Room for arenas: taken from the end of the segment, and given back to a shelf per size.
//!
//! Any rank may take and give back at any time, without locks: a process that dies on the way loses at most
//! one piece. Pieces are powers of two pages and are never split or joined.

use crate::layout::PAGE;
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};

/// Number of sizes: pieces of 1, 2, 4 ... pages.
const SIZES: usize = 24;

/// The shared state. All zero: nothing was ever taken.
#[repr(C)]
pub(crate) struct Shelf {
    /// Bytes taken from the end.
    used: AtomicU64,
    /// Per size, the first piece that was given back: a counter (upper half; it tells a piece from itself
    /// given back once more) and its page number plus 1. The piece's first word links to the next.
    free: [AtomicU64; SIZES],
}

/// Takes a zeroed piece of at least `bytes`, of which the first `sure` have memory; its offset, or `None` if there
/// is no room or no memory.
pub(crate) fn take(segment: &Segment, bytes: usize, sure: usize) -> Option<u64> {
    let size = size_of_piece(bytes)?;
    let at = reuse(segment, size).or_else(|| extend(segment, PAGE << size))?;
    if segment.populate(at, sure).is_err() {
        put_back(segment, at, size);
        return None;
    }
    Some(at as u64)
}

/// Gives back what [`take`] gave for as many `bytes`. No rank may use it any more.
pub(crate) fn give(segment: &Segment, at: u64, bytes: usize) {
    let Some(size) = size_of_piece(bytes) else { return };
    let at = at as usize;
    if segment.discard(at, PAGE << size).is_err() {
        let piece = segment.ptr(at, PAGE << size);
        // SAFETY: inside the segment (checked), and no one uses it any more (the caller's promise).
        unsafe { std::ptr::write_bytes(piece, 0, PAGE << size) };
    }
    put_back(segment, at, size);
}

fn size_of_piece(bytes: usize) -> Option<usize> {
    let size = bytes.div_ceil(PAGE).next_power_of_two().trailing_zeros() as usize;
    (size < SIZES).then_some(size)
}

fn extend(segment: &Segment, bytes: usize) -> Option<usize> {
    let used = &segment.header().room.used;
    let room = segment.layout.arena_bytes as u64;
    let grow = |now: u64| now.checked_add(bytes as u64).filter(|&end| end <= room);
    let at = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
    Some(segment.layout.arenas() + at as usize)
}

fn reuse(segment: &Segment, size: usize) -> Option<usize> {
    let top = &segment.header().room.free[size];
    loop {
        let seen = top.load(Ordering::Acquire);
        let page = (seen as u32).checked_sub(1)?;
        let at = page as usize * PAGE;
        // Another may have taken the piece already and write to it: then the counter has moved on.
        let next = segment.word(at).load(Ordering::Relaxed) as u32;
        if top.compare_exchange(seen, step(seen, next), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            segment.word(at).store(0, Ordering::Relaxed);
            return Some(at);
        }
    }
}

fn put_back(segment: &Segment, at: usize, size: usize) {
    let top = &segment.header().room.free[size];
    loop {
        let seen = top.load(Ordering::Relaxed);
        segment.word(at).store(u64::from(seen as u32), Ordering::Relaxed);
        let next = step(seen, (at / PAGE) as u32 + 1);
        // Release: who takes the piece finds the link, and its bytes zero.
        if top.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn step(seen: u64, page: u32) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | u64::from(page)
}
