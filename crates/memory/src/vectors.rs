//! Copies of memory that another core has written: by vectors, in the place of the C library's copy, where that is quicker on this
//! machine.
//!
//! From 4 or 8 KiB on the C library copies by `rep movsb`. On some processors that waits for each line that is in another core's cache,
//! where loads of vectors run ahead. Which way is quicker the profile of the machine says.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::small_copy;

/// The C library copies less than this by vectors, too, bytes.
const SHORTEST: usize = 4 << 10;
/// Of more than this the copy is in no other core's cache, bytes: 1 MiB took as long by either way.
const LONGEST: usize = 256 << 10;

static CHOSEN: AtomicBool = AtomicBool::new(false);

/// From now on `take` copies by vectors, or not.
pub fn choose(vectors: bool) {
    CHOSEN.store(vectors && are_there(), Ordering::Relaxed);
}

/// Copies a slice to another one of the same length by vectors; false if this processor has none.
///
/// # Panics
/// If they differ in length.
pub fn copy(from: &[u8], to: &mut [u8]) -> bool {
    assert_eq!(from.len(), to.len());
    // SAFETY: two slices of the same length, on a processor that has what it takes.
    are_there() && unsafe { by_vectors(from.as_ptr(), to.as_mut_ptr(), from.len()) }
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
    let apart = (from as usize).abs_diff(to as usize) >= len;
    // SAFETY: the caller's promise; vectors were chosen because they are there.
    unsafe {
        if !(apart && CHOSEN.load(Ordering::Relaxed) && by_vectors(from, to, len)) {
            std::ptr::copy(from, to, len);
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn are_there() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

/// Gives true: all is copied.
///
/// # Safety
/// As for [`take`], for stretches that do not overlap, on a processor that has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn by_vectors(from: *const u8, to: *mut u8, len: usize) -> bool {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const VECTOR: usize = size_of::<__m256i>();

    let mut at = 0;
    while len - at >= 4 * VECTOR {
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

#[cfg(not(target_arch = "x86_64"))]
fn are_there() -> bool {
    false
}

/// Gives false, and copies nothing: AVX is only on x86.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn by_vectors(_: *const u8, _: *mut u8, _: usize) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_overlaps_give_what_a_plain_copy_gives() {
        choose(true);
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
                assert!(copied == expected, "{len} bytes from {from} to {to}");
            }
        }
        let mut to = vec![0; 1000];
        assert!(!copy(&[5; 1000], &mut to) || to == [5; 1000]);
    }
}
