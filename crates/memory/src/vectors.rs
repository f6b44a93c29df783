//! Copies in the place of the C library's: by vectors, where that is quicker on this machine, and past the caches.
//!
//! From 2, 4 or 8 KiB on the C library copies by `rep movsb`. On some processors that waits for each line that is in another core's cache,
//! where loads of vectors run ahead. On others it takes some twenty times as long where the copy is *aliased*: its target lies a few bytes
//! further in its page than the source. Which way is quicker the profile of the machine says.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::small_copy;

/// Shorter copies of what another core has written, or gets, go as all others do, bytes.
const SHORTEST: usize = 4 << 10;
/// Of more than this the copy is in no other core's cache, bytes: 1 MiB took as long by either way.
const LONGEST: usize = 256 << 10;
/// The C library copies no more than this by vectors itself, bytes.
pub(crate) const BY_LIBRARY: usize = 2 << 10;
/// Bytes of a page.
const PAGE: usize = 4 << 10;
/// An aliased copy's target lies less than this further in its page than the source, bytes.
const ALIASED: usize = 32;

static TAKES: AtomicBool = AtomicBool::new(false);
static GIVES: AtomicBool = AtomicBool::new(false);
static SHUNS_ALIASED: AtomicBool = AtomicBool::new(false);
static SHUNS_ALIASED_SINGLE_COPY: AtomicBool = AtomicBool::new(false);
/// The shortest buffer that is read past the caches when a peer gets it, bytes.
static PAST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// How this process had better copy.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Vectors copy what another core has written.
    pub taken: bool,
    /// Vectors copy what another process gets.
    pub given: bool,
    /// Vectors copy what would be aliased.
    pub aliased: bool,
    /// The system had better not be asked for a single copy that is aliased.
    pub aliased_single_copy: bool,
    /// The shortest buffer that is read past the caches when a peer gets it, bytes.
    pub past: usize,
}

/// From now on this process copies so.
pub fn choose(choice: Choice) {
    TAKES.store(choice.taken && are_there(), Ordering::Relaxed);
    GIVES.store(choice.given && are_there(), Ordering::Relaxed);
    SHUNS_ALIASED.store(choice.aliased && are_there(), Ordering::Relaxed);
    SHUNS_ALIASED_SINGLE_COPY.store(choice.aliased_single_copy, Ordering::Relaxed);
    PAST.store(if are_there() { choice.past } else { usize::MAX }, Ordering::Relaxed);
}

/// Whether a single copy of `len` bytes between these addresses had better go by way of memory that lies elsewhere in its page.
pub fn shuns_single_copy(from: u64, to: u64, len: usize) -> bool {
    len > PAGE && SHUNS_ALIASED_SINGLE_COPY.load(Ordering::Relaxed) && is_aliased(from as usize, to as usize)
}

/// Whether a copy between these addresses is aliased.
fn is_aliased(from: usize, to: usize) -> bool {
    (1..ALIASED).contains(&(to.wrapping_sub(from) % PAGE))
}

/// A plain copy of more than [`BY_LIBRARY`] bytes; the two stretches may overlap.
///
/// # Safety
/// As for [`take`].
#[inline(never)]
pub(crate) unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let aliased = is_aliased(from as usize, to as usize) && are_apart(from, to, len);
    // SAFETY: the caller's promise; vectors were chosen because they are there.
    unsafe {
        if !(aliased && SHUNS_ALIASED.load(Ordering::Relaxed) && by_vectors::<false>(from, to, len)) {
            std::ptr::copy(from, to, len);
        }
    }
}

/// Copies a slice to another one of the same length by vectors; false if this processor has none.
///
/// # Panics
/// If they differ in length.
pub fn copy(from: &[u8], to: &mut [u8]) -> bool {
    assert_eq!(from.len(), to.len());
    // SAFETY: two slices of the same length, on a processor that has what it takes.
    are_there() && unsafe { by_vectors::<false>(from.as_ptr(), to.as_mut_ptr(), from.len()) }
}

/// Copies a slice to another one of the same length past the caches of this core; false if this processor cannot, or they are shorter than that is of use.
///
/// # Panics
/// If they differ in length.
pub fn copy_past(from: &[u8], to: &mut [u8]) -> bool {
    assert_eq!(from.len(), to.len());
    // SAFETY: two slices of the same length.
    unsafe { past(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    cfg!(target_arch = "x86_64") && from.len() >= SHORTEST
}

/// Copies bytes that another process has written; the two stretches may overlap.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline(always)]
pub(crate) unsafe fn take(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            SHORTEST..=LONGEST => take_long(from, to, len),
            _ => small_copy::copy(from, to, len),
        }
    }
}

/// # Safety
/// As for [`take`].
#[inline(never)]
unsafe fn take_long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; vectors were chosen because they are there.
    unsafe {
        if !(are_apart(from, to, len) && TAKES.load(Ordering::Relaxed) && by_vectors::<false>(from, to, len))
        {
            copy_long(from, to, len);
        }
    }
}

/// Copies bytes for another process, which are a part of `whole` bytes that it gets; the two stretches may overlap. Where the caches do not hold
/// so many anyway, what is read takes no other line's place there.
///
/// # Safety
/// As for [`take`].
#[inline(always)]
pub(crate) unsafe fn give(from: *const u8, to: *mut u8, len: usize, whole: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            SHORTEST.. => give_long(from, to, len, whole),
            _ => small_copy::copy(from, to, len),
        }
    }
}

/// # Safety
/// As for [`take`].
#[inline(never)]
unsafe fn give_long(from: *const u8, to: *mut u8, len: usize, whole: usize) {
    let past = whole >= PAST.load(Ordering::Relaxed);
    let vectors = (past || GIVES.load(Ordering::Relaxed)) && are_apart(from, to, len);
    // SAFETY: the caller's promise; vectors were chosen because they are there.
    unsafe {
        let done = match past {
            true => vectors && by_vectors::<true>(from, to, len),
            false => vectors && by_vectors::<false>(from, to, len),
        };
        if !done {
            copy_long(from, to, len);
        }
    }
}

/// Whether two stretches of so many bytes do not overlap.
fn are_apart(from: *const u8, to: *mut u8, len: usize) -> bool {
    (from as usize).abs_diff(to as usize) >= len
}

#[cfg(target_arch = "x86_64")]
fn are_there() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

/// Gives true: all is copied. `PAST` the caches: what is read is asked for as lines that are wanted once (`prefetchnta`).
///
/// # Safety
/// As for [`take`], for stretches that do not overlap, on a processor that has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn by_vectors<const PAST: bool>(from: *const u8, to: *mut u8, len: usize) -> bool {
    use std::arch::x86_64::{__m256i, _MM_HINT_NTA, _mm_prefetch, _mm256_loadu_si256, _mm256_storeu_si256};
    const VECTOR: usize = size_of::<__m256i>();
    /// How far ahead lines are asked for, bytes: from 256 to 2,048 were alike on an EPYC of family 23.
    const AHEAD: usize = 512;

    let mut at = 0;
    while len - at >= 4 * VECTOR {
        if PAST {
            // They never fault, wherever they are.
            let ahead = from.wrapping_add(at + AHEAD).cast::<i8>();
            _mm_prefetch::<_MM_HINT_NTA>(ahead);
            _mm_prefetch::<_MM_HINT_NTA>(ahead.wrapping_add(2 * VECTOR));
        }
        // SAFETY: so many bytes are left, by the promise; loads and stores take any alignment.
        unsafe {
            let (from, to) = (from.add(at).cast(), to.add(at).cast());
            // Not in a closure, which would be a function without vectors.
            let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
            _mm256_storeu_si256(to, a);
            _mm256_storeu_si256(to.add(1), b);
            _mm256_storeu_si256(to.add(2), c);
            _mm256_storeu_si256(to.add(3), d);
        }
        at += 4 * VECTOR;
    }
    // SAFETY: the rest, by the promise.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), len - at) };
    true
}

/// Copies bytes past the caches of this core: the lines that are written need not be read before, and take no other line's place. That is quicker
/// where they are in no cache, and slower where they are. Elsewhere than on x86-64, and where the two stretches overlap, it is a copy like others.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes.
pub(crate) unsafe fn past(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if len >= SHORTEST && are_apart(from, to, len) {
            return by_non_temporal_stores(from, to, len);
        }
        small_copy::copy(from, to, len);
    }
}

/// # Safety
/// As for [`past`], for at least a line, and stretches that do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn by_non_temporal_stores(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const VECTOR: usize = size_of::<__m128i>();

    // Whole lines of the target are written at a time.
    let first = to.align_offset(LINE);
    let last = len - (len - first) % LINE;
    // SAFETY: all is within the `len` bytes, by the promise; `to + first` is aligned to lines. The fence has what others see of the stores in order with
    // what this thread writes later.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, first);
        let mut at = first;
        while at < last {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), d);
            at += 4 * VECTOR;
        }
        std::ptr::copy_nonoverlapping(from.add(last), to.add(last), len - last);
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn are_there() -> bool {
    false
}

/// Gives false, and copies nothing: AVX is only on x86.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn by_vectors<const PAST: bool>(_: *const u8, _: *mut u8, _: usize) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_overlaps_give_what_a_plain_copy_gives() {
        choose(Choice { taken: true, given: true, aliased: true, aliased_single_copy: true, past: 5000 });
        let lengths = [0, 1, 127, 128, 129, 4095, 4096, 4097, 5000, 70_001];
        for (len, shift) in
            lengths.into_iter().flat_map(|len| [0, 1, 100, 5000, 80_000].map(move |shift| (len, shift)))
        {
            let memory: Vec<u8> = (0..len + shift).map(|i| (i * 7 % 251) as u8).collect();
            for (from, to) in [(0, shift), (shift, 0)] {
                let (mut copied, mut expected) = (memory.clone(), memory.clone());
                expected.copy_within(from..from + len, to);
                let start = copied.as_mut_ptr();
                // SAFETY: both stretches lie inside.
                unsafe { take(start.add(from), start.add(to), len) };
                assert!(copied == expected, "{len} bytes taken from {from} to {to}");
                copied.copy_from_slice(&memory);
                let start = copied.as_mut_ptr();
                // SAFETY: both stretches lie inside.
                unsafe { give(start.add(from), start.add(to), len, len) };
                assert!(copied == expected, "{len} bytes given from {from} to {to}");
                copied.copy_from_slice(&memory);
                let start = copied.as_mut_ptr();
                // SAFETY: both stretches lie inside.
                unsafe { copy_long(start.add(from), start.add(to), len) };
                assert!(copied == expected, "{len} bytes copied from {from} to {to}");
            }
            let (mut to, expected) = (vec![9; len + 2], [&[9][..], &memory[shift..], &[9]].concat());
            // SAFETY: both stretches lie inside.
            unsafe { give(memory[shift..].as_ptr(), to[1..].as_mut_ptr(), len, len) };
            assert!(to == expected, "{len} bytes from {shift}");
        }
        let mut to = vec![0; 1000];
        assert!(!copy(&[5; 1000], &mut to) || to == [5; 1000]);
    }

    #[test]
    fn few_bytes_further_in_the_page_are_aliased() {
        assert!(is_aliased(0, 1) && is_aliased(0x7010, 0x302f) && is_aliased(0x1ff8, 0x5008));
        assert!(!is_aliased(0, 0) && !is_aliased(0, 32) && !is_aliased(1, 0) && !is_aliased(0x7010, 0x3010));
        choose(Choice { taken: true, given: true, aliased: true, aliased_single_copy: true, past: 5000 });
        assert!(shuns_single_copy(0x1000, 0x9010, 5000));
        assert!(!shuns_single_copy(0x1000, 0x9010, 4096) && !shuns_single_copy(0x1010, 0x9000, 5000));
    }

    #[test]
    fn copies_past_the_caches_touch_nothing_else() {
        for (len, start) in [0, 1, 4095, 4096, 4159, 16_384, 20_001]
            .into_iter()
            .flat_map(|len| [64, 65, 127].map(|start| (len, start)))
        {
            let from: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let (mut to, mut expected) = (vec![9; len + 256], vec![9; len + 256]);
            expected[start..start + len].copy_from_slice(&from);
            // SAFETY: the stretch lies inside.
            unsafe { past(from.as_ptr(), to.as_mut_ptr().add(start), len) };
            assert!(to == expected, "{len} bytes to {start}");
        }
        let mut to = vec![0; 5000];
        assert!(!copy_past(&[7; 100], &mut to[..100]) && to[..101] == [&[7; 100][..], &[0]].concat());
        assert!(copy_past(&[7; 5000], &mut to) == cfg!(target_arch = "x86_64") && to == [7; 5000]);
        let mut moved: Vec<u32> = (0..5000).collect();
        // SAFETY: both stretches lie inside.
        unsafe { past(moved.as_ptr().cast(), moved.as_mut_ptr().add(10).cast(), 4 * 4990) };
        assert!(moved[10..].iter().copied().eq(0..4990));
    }
}
