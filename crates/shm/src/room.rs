//! Room for arenas: taken from the end of the segment, and given back to a shelf per size.
//!
//! Any rank may take and give back at any time, without locks: a process that dies on the way loses at most
//! one piece. Pieces are powers of two pages and are never split or joined.
//!
//! The algorithm is generic over the [`Ground`] that pieces are taken from, so that loom checks the very code that runs.

use std::io;

use crate::layout::PAGE;
use crate::sync::{AtomicU64, Ordering};

/// What pieces are taken from.
pub(crate) trait Ground {
    /// The shared state.
    fn shelf(&self) -> &Shelf;
    /// Offset and bytes of all that there is to take.
    fn extent(&self) -> (usize, usize);
    /// The word at an offset inside, a multiple of 8.
    fn word(&self, at: usize) -> &AtomicU64;
    /// Gets memory for `len` bytes at `at`, so that lack of it is an error now and no fault later.
    fn populate(&self, at: usize, len: usize) -> io::Result<()>;
    /// Makes `len` bytes at `at` zero, which no one uses.
    fn wipe(&self, at: usize, len: usize);
}

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
pub(crate) fn take(ground: &impl Ground, bytes: usize, sure: usize) -> Option<u64> {
    let size = size_of_piece(bytes)?;
    let at = reuse(ground, size).or_else(|| extend(ground, PAGE << size))?;
    if ground.populate(at, sure).is_err() {
        put_back(ground, at, size);
        return None;
    }
    Some(at as u64)
}

/// Gives back what [`take`] gave for as many `bytes`. No rank may use it any more.
pub(crate) fn give(ground: &impl Ground, at: u64, bytes: usize) {
    let Some(size) = size_of_piece(bytes) else { return };
    ground.wipe(at as usize, PAGE << size);
    put_back(ground, at as usize, size);
}

fn size_of_piece(bytes: usize) -> Option<usize> {
    let size = bytes.div_ceil(PAGE).next_power_of_two().trailing_zeros() as usize;
    (size < SIZES).then_some(size)
}

fn extend(ground: &impl Ground, bytes: usize) -> Option<usize> {
    let (first, room) = ground.extent();
    let grow = |now: u64| now.checked_add(bytes as u64).filter(|&end| end <= room as u64);
    let at = ground.shelf().used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
    Some(first + at as usize)
}

fn reuse(ground: &impl Ground, size: usize) -> Option<usize> {
    let top = &ground.shelf().free[size];
    loop {
        let seen = top.load(Ordering::Acquire);
        let page = (seen as u32).checked_sub(1)?;
        let at = page as usize * PAGE;
        // Another may have taken the piece already and write to it: then the counter has moved on.
        let next = ground.word(at).load(Ordering::Relaxed) as u32;
        if top.compare_exchange(seen, step(seen, next), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            ground.word(at).store(0, Ordering::Relaxed);
            return Some(at);
        }
    }
}

fn put_back(ground: &impl Ground, at: usize, size: usize) {
    let top = &ground.shelf().free[size];
    loop {
        let seen = top.load(Ordering::Relaxed);
        ground.word(at).store(u64::from(seen as u32), Ordering::Relaxed);
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

#[cfg(all(test, loom))]
pub(crate) mod tests {
    use super::*;
    use crate::interleaved::explore;
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    /// Pages, of which those exist that are used here: their first words, and a cell for the rest. Loom sees who touches it.
    pub(crate) struct Pages {
        shelf: Shelf,
        count: usize,
        words: Vec<AtomicU64>,
        rest: Vec<UnsafeCell<u64>>,
    }

    /// Words of a page that exist.
    const WORDS: usize = 8;
    /// Pages that exist. A page is found by its number modulo this: pieces of powers of two pages begin at different ones.
    const EXIST: usize = 7;

    // SAFETY: cells are reached by who has taken their page, which is what these tests are about.
    unsafe impl Sync for Pages {}
    // SAFETY: as above.
    unsafe impl Send for Pages {}

    pub(crate) fn pages(count: usize) -> Arc<Pages> {
        let free = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Pages {
            shelf: Shelf { used: AtomicU64::new(0), free },
            count,
            words: (0..EXIST * WORDS).map(|_| AtomicU64::new(0)).collect(),
            rest: (0..EXIST).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    impl Pages {
        fn rest(&self, at: usize) -> &UnsafeCell<u64> {
            &self.rest[at / PAGE % EXIST]
        }
    }

    impl Ground for Arc<Pages> {
        fn shelf(&self) -> &Shelf {
            &self.shelf
        }
        fn extent(&self) -> (usize, usize) {
            (PAGE, self.count * PAGE)
        }
        fn word(&self, at: usize) -> &AtomicU64 {
            &self.words[at / PAGE % EXIST * WORDS + at % PAGE / 8]
        }
        fn populate(&self, _: usize, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn wipe(&self, at: usize, _: usize) {
            // SAFETY: loom says if anybody else is at it.
            self.rest(at).with_mut(|rest| unsafe { *rest = 0 });
            (0..WORDS).for_each(|word| self.word(at / PAGE * PAGE + word * 8).store(0, Ordering::Relaxed));
        }
    }

    /// Takes a page, which is zero and nobody else's, writes to it, and gives it back.
    fn use_one(pages: &Arc<Pages>) {
        let Some(at) = take(pages, PAGE, PAGE) else { panic!("there are enough pages") };
        pages.rest(at as usize).with_mut(|rest| {
            // SAFETY: loom says if anybody else is at it.
            unsafe {
                assert_eq!(*rest, 0);
                *rest = at;
            }
        });
        assert_eq!(pages.word(at as usize).load(Ordering::Relaxed), 0);
        give(pages, at, PAGE);
    }

    #[test]
    fn a_piece_is_one_rank_s_at_a_time() {
        explore(|| {
            let pages = pages(2);
            // One that was given back lies there, so both want the same first.
            use_one(&pages);
            let other = pages.clone();
            let there = thread::spawn(move || use_one(&other));
            use_one(&pages);
            there.join().expect("it ends");
        });
    }

    #[test]
    fn a_piece_that_comes_back_meanwhile_is_told_from_itself() {
        explore(|| {
            let pages = pages(4);
            // Two lie there, one behind the other.
            let both = [take(&pages, PAGE, PAGE), take(&pages, PAGE, PAGE)].map(|at| at.expect("a page"));
            both.into_iter().for_each(|at| give(&pages, at, PAGE));
            let other = pages.clone();
            let there = thread::spawn(move || {
                // Takes both, and gives the first one back: it is on top again, with nothing behind it.
                let mine = [take(&other, PAGE, PAGE), take(&other, PAGE, PAGE)].map(|at| at.expect("a page"));
                give(&other, mine[0], PAGE);
                mine[1]
            });
            let first = take(&pages, PAGE, PAGE).expect("a page");
            let second = take(&pages, PAGE, PAGE).expect("a page");
            let theirs = there.join().expect("it ends");
            assert!(first != second && first != theirs && second != theirs, "{first} {second} {theirs}");
        });
    }
}
