//! The page allocator of a segment: arenas, copies of exposed ranges and the registry's lists come from it. New allocations
//! are taken from the part of the segment that was never used, and freed ones go to a free list per size.
//!
//! Any rank may allocate and free at any time, without locks: a process that dies on the way loses at most
//! one allocation. Allocations are powers of two pages and are never split or joined.
//!
//! The algorithm is generic over the [`PageMemory`] that it allocates from, so that loom checks the very code that runs.

use std::io;

use crate::layout::PAGE;
use crate::sync::{AtomicU64, Ordering};

/// The memory that is allocated.
pub(crate) trait PageMemory {
    /// The shared state of the allocator.
    fn free_lists(&self) -> &FreeLists;
    /// Offset and bytes of all that can be allocated.
    fn range(&self) -> (usize, usize);
    /// The word at an offset inside, a multiple of 8.
    fn word(&self, at: usize) -> &AtomicU64;
    /// Gets memory for `len` bytes at `at`, so that lack of it is an error now and no fault later.
    fn populate(&self, at: usize, len: usize) -> io::Result<()>;
    /// Makes `len` bytes at `at`, which no rank uses, zero.
    fn zero(&self, at: usize, len: usize);
}

/// Number of sizes: allocations of 1, 2, 4 ... pages.
const SIZE_CLASSES: usize = 24;

/// The shared state of the allocator. All zero: nothing was ever allocated.
#[repr(C)]
pub(crate) struct FreeLists {
    /// Bytes, from the start of the range on, that were ever allocated.
    used: AtomicU64,
    /// Per size, the top of its free list: a counter of changes (upper half; it tells an allocation from the same one
    /// freed again, the ABA problem) and its page number plus 1. The first word of each free allocation links to the next.
    free: [AtomicU64; SIZE_CLASSES],
}

/// Allocates at least `bytes`, zeroed, of which the first `populated` have memory now; the offset, or `None` if there
/// is no room or no memory.
pub(crate) fn alloc(memory: &impl PageMemory, bytes: usize, populated: usize) -> Option<u64> {
    let size = size_class(bytes)?;
    let at = pop_free(memory, size).or_else(|| extend(memory, PAGE << size))?;
    if memory.populate(at, populated).is_err() {
        push_free(memory, at, size);
        return None;
    }
    Some(at as u64)
}

/// Frees what [`alloc`] gave for as many `bytes`. No rank may use it any more.
pub(crate) fn free(memory: &impl PageMemory, at: u64, bytes: usize) {
    let Some(size) = size_class(bytes) else { return };
    memory.zero(at as usize, PAGE << size);
    push_free(memory, at as usize, size);
}

fn size_class(bytes: usize) -> Option<usize> {
    let size = bytes.div_ceil(PAGE).next_power_of_two().trailing_zeros() as usize;
    (size < SIZE_CLASSES).then_some(size)
}

fn extend(memory: &impl PageMemory, bytes: usize) -> Option<usize> {
    let (first, room) = memory.range();
    let grow = |now: u64| now.checked_add(bytes as u64).filter(|&end| end <= room as u64);
    let at = memory.free_lists().used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
    Some(first + at as usize)
}

fn pop_free(memory: &impl PageMemory, size: usize) -> Option<usize> {
    let top = &memory.free_lists().free[size];
    loop {
        let seen = top.load(Ordering::Acquire);
        let page = (seen as u32).checked_sub(1)?;
        let at = page as usize * PAGE;
        // Another rank may have got this allocation already and write to it: then the counter has moved on.
        let next = memory.word(at).load(Ordering::Relaxed) as u32;
        if top.compare_exchange(seen, next_top(seen, next), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            memory.word(at).store(0, Ordering::Relaxed);
            return Some(at);
        }
    }
}

fn push_free(memory: &impl PageMemory, at: usize, size: usize) {
    let top = &memory.free_lists().free[size];
    loop {
        let seen = top.load(Ordering::Relaxed);
        memory.word(at).store(u64::from(seen as u32), Ordering::Relaxed);
        let next = next_top(seen, (at / PAGE) as u32 + 1);
        // Release: the rank that pops the allocation finds the link, and the bytes zero.
        if top.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

fn next_top(seen: u64, page: u32) -> u64 {
    ((seen >> 32).wrapping_add(1) << 32) | u64::from(page)
}

#[cfg(all(test, loom))]
pub(crate) mod tests {
    use super::*;
    use crate::interleaved::explore;
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    /// Pages, of which those exist that these tests use: their first words, and an `UnsafeCell` for the rest, so that loom
    /// sees who touches it.
    pub(crate) struct TestPages {
        free_lists: FreeLists,
        count: usize,
        words: Vec<AtomicU64>,
        rest: Vec<UnsafeCell<u64>>,
    }

    /// Number of words of a page that exist.
    const WORDS: usize = 8;
    /// Number of pages that exist. A page is found by its number modulo this: allocations of powers of two pages begin at
    /// different ones.
    const EXIST: usize = 7;

    // SAFETY: an `UnsafeCell` is reached by the thread that has allocated its page, which is what these tests are about.
    unsafe impl Sync for TestPages {}
    // SAFETY: as above.
    unsafe impl Send for TestPages {}

    pub(crate) fn test_pages(count: usize) -> Arc<TestPages> {
        let free = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(TestPages {
            free_lists: FreeLists { used: AtomicU64::new(0), free },
            count,
            words: (0..EXIST * WORDS).map(|_| AtomicU64::new(0)).collect(),
            rest: (0..EXIST).map(|_| UnsafeCell::new(0)).collect(),
        })
    }

    impl TestPages {
        fn rest(&self, at: usize) -> &UnsafeCell<u64> {
            &self.rest[at / PAGE % EXIST]
        }
    }

    impl PageMemory for Arc<TestPages> {
        fn free_lists(&self) -> &FreeLists {
            &self.free_lists
        }
        fn range(&self) -> (usize, usize) {
            (PAGE, self.count * PAGE)
        }
        fn word(&self, at: usize) -> &AtomicU64 {
            &self.words[at / PAGE % EXIST * WORDS + at % PAGE / 8]
        }
        fn populate(&self, _: usize, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn zero(&self, at: usize, _: usize) {
            // SAFETY: loom reports if another thread is at it.
            self.rest(at).with_mut(|rest| unsafe { *rest = 0 });
            (0..WORDS).for_each(|word| self.word(at / PAGE * PAGE + word * 8).store(0, Ordering::Relaxed));
        }
    }

    /// Allocates a page, which is zero and no other thread's, writes to it, and frees it.
    fn use_one(pages: &Arc<TestPages>) {
        let Some(at) = alloc(pages, PAGE, PAGE) else { panic!("there are enough pages") };
        pages.rest(at as usize).with_mut(|rest| {
            // SAFETY: loom reports if another thread is at it.
            unsafe {
                assert_eq!(*rest, 0);
                *rest = at;
            }
        });
        assert_eq!(pages.word(at as usize).load(Ordering::Relaxed), 0);
        free(pages, at, PAGE);
    }

    #[test]
    fn an_allocation_is_one_rank_s_at_a_time() {
        explore(|| {
            let pages = test_pages(2);
            // One page is on the free list, so both threads try to pop it first.
            use_one(&pages);
            let other = pages.clone();
            let there = thread::spawn(move || use_one(&other));
            use_one(&pages);
            there.join().expect("the thread ends");
        });
    }

    #[test]
    fn an_allocation_that_is_freed_again_meanwhile_is_told_from_itself() {
        explore(|| {
            let pages = test_pages(4);
            // Two pages are on the free list.
            let both = [alloc(&pages, PAGE, PAGE), alloc(&pages, PAGE, PAGE)].map(|at| at.expect("a page"));
            both.into_iter().for_each(|at| free(&pages, at, PAGE));
            let other = pages.clone();
            let there = thread::spawn(move || {
                // Pops both, and frees the first one: it is on top again, with nothing behind it.
                let mine =
                    [alloc(&other, PAGE, PAGE), alloc(&other, PAGE, PAGE)].map(|at| at.expect("a page"));
                free(&other, mine[0], PAGE);
                mine[1]
            });
            let first = alloc(&pages, PAGE, PAGE).expect("a page");
            let second = alloc(&pages, PAGE, PAGE).expect("a page");
            let theirs = there.join().expect("the thread ends");
            assert!(first != second && first != theirs && second != theirs, "{first} {second} {theirs}");
        });
    }
}
