//! [`copy`], [`small_copy`] and [`copy_short`]: copy a few bytes without a function call, which would cost more than the copy.

use crate::vectors::{BY_LIBRARY, copy_long};

/// The most bytes that [`small_copy`] copies.
pub(crate) const SMALL: usize = 16;

/// Copies at most [`SMALL`] bytes; the two stretches may overlap.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes, and `len <= SMALL`.
#[inline(always)]
pub(crate) unsafe fn small_copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            8 => to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()),
            9.. => ends::<u64>(from, to, len - 8),
            4.. => ends::<u32>(from, to, len - 4),
            2.. => ends::<u16>(from, to, len - 2),
            1 => to.write(from.read()),
            0 => {}
        }
    }
}

/// Copies so many bytes; the two stretches may overlap.
///
/// # Safety
/// `from` is valid for reads of `len` bytes and `to` for writes.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            0..=SMALL => small_copy(from, to, len),
            _ if len <= BY_LIBRARY => std::ptr::copy(from, to, len),
            _ => copy_long(from, to, len),
        }
    }
}

/// Copies a slice, which is short in most cases, to another one of the same length.
///
/// # Panics
/// If they differ in length.
#[inline(always)]
pub fn copy_short(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    match from.len() {
        // SAFETY: two slices of the same length, which is no more than `SMALL`.
        0..=SMALL => unsafe { small_copy(from.as_ptr(), to.as_mut_ptr(), from.len()) },
        _ => to.copy_from_slice(from),
    }
}

/// Copies a `T` at the start and one at offset `last`. Both are read before one is written.
///
/// # Safety
/// `from` is valid for reads of both, and `to` for writes.
#[inline(always)]
unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, last: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(a);
        to.add(last).cast::<T>().write_unaligned(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_overlaps_give_what_a_plain_copy_gives() {
        for (from, to) in (0..20).flat_map(|from| (0..20).map(move |to| (from, to))) {
            for len in 0..=SMALL {
                let mut memory: [u8; 40] = std::array::from_fn(|i| i as u8);
                let mut expected = memory;
                expected.copy_within(from..from + len, to);
                // SAFETY: both stretches lie inside.
                unsafe { small_copy(memory.as_ptr().add(from), memory.as_mut_ptr().add(to), len) };
                assert_eq!(memory, expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}
