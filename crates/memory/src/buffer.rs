//! [`Buffer`]: checked access to memory that the runtime does not own, or shares.

use std::alloc::Layout;
use std::sync::Arc;

use crate::small_copy::{SMALL, small_copy};

/// Bytes from `origin + lo` up to, not including, `origin + hi`.
///
/// Offsets may be negative: an MPI datatype may reach below the address that the user passes.
/// With an owner ([`HeapBuffer`]) the memory lives as long as the buffer does.
#[derive(Clone)]
pub struct Buffer {
    origin: *mut u8,
    lo: isize,
    hi: isize,
    owner: Option<Arc<Allocation>>,
}

// SAFETY: a Buffer is an address with bounds. The maker promised that the memory may be used until the
// operation that it was made for is over, from whichever thread drives that operation.
unsafe impl Send for Buffer {}
// SAFETY: as above; all accesses go through raw copies, none through references that assume no aliasing.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:p}, {}..{})", self.origin, self.lo, self.hi)
    }
}

impl Buffer {
    /// `len` bytes at `origin`.
    ///
    /// # Safety
    /// The bytes must stay valid for reads (and for writes, if the operation writes) for as long as
    /// the buffer, or anything made from it, is used. `len` may be 0, then `origin` may be anything.
    #[inline(always)]
    pub unsafe fn new(origin: *mut u8, len: usize) -> Self {
        let hi = isize::try_from(len).expect("a buffer is at most isize::MAX bytes");
        Self { origin, lo: 0, hi, owner: None }
    }

    /// The bytes `origin + lo .. origin + hi`; `origin` itself need not lie inside (MPI_BOTTOM).
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range.
    #[inline]
    pub unsafe fn with_bounds(origin: *mut u8, lo: isize, hi: isize) -> Self {
        assert!(lo <= hi, "buffer bounds {lo}..{hi}");
        Self { origin, lo, hi, owner: None }
    }

    /// The bytes from `origin` on that lie within the bounds of another buffer.
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range: `origin` came with arguments that say as much of the memory there as those
    /// which the other buffer was made for said of its own.
    #[inline(always)]
    pub unsafe fn within(origin: *mut u8, Bounds { lo, hi }: Bounds) -> Self {
        Self { origin, lo, hi, owner: None }
    }

    /// No bytes at all.
    #[inline]
    pub fn empty() -> Self {
        Self { origin: std::ptr::null_mut(), lo: 0, hi: 0, owner: None }
    }

    /// Bytes inside the bounds.
    #[inline]
    pub fn len(&self) -> usize {
        (self.hi - self.lo) as usize
    }

    /// True if there are no bytes inside the bounds.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.hi == self.lo
    }

    /// Lowest offset that may be touched.
    #[inline]
    pub fn lo(&self) -> isize {
        self.lo
    }

    /// One past the highest offset that may be touched.
    #[inline]
    pub fn hi(&self) -> isize {
        self.hi
    }

    /// The buffer's bounds, for [`Buffer::within`].
    #[inline]
    pub fn bounds(&self) -> Bounds {
        Bounds { lo: self.lo, hi: self.hi }
    }

    /// The address that offset `at` stands for.
    pub fn address(&self, at: isize) -> usize {
        self.origin.wrapping_offset(at) as usize
    }

    /// The address that offset `at` stands for, as a pointer, after checking that `len` bytes lie there.
    ///
    /// # Panics
    /// If the range is not inside the bounds: a fault of the runtime, not of the user.
    #[inline(always)]
    pub fn ptr(&self, at: isize, len: usize) -> *mut u8 {
        self.check(at, len);
        self.origin.wrapping_offset(at)
    }

    /// The part of `len` bytes at offset `at`, as a buffer whose offsets start at 0.
    #[inline]
    pub fn slice(&self, at: isize, len: usize) -> Buffer {
        let origin = self.ptr(at, len);
        Buffer { origin, lo: 0, hi: len as isize, owner: self.owner.clone() }
    }

    /// A buffer on the same bytes with offsets counted from `by`: what was at `by + x` is at `x`.
    #[inline]
    pub fn rebased(&self, by: isize) -> Buffer {
        let origin = self.origin.wrapping_offset(by);
        Buffer { origin, lo: self.lo - by, hi: self.hi - by, owner: self.owner.clone() }
    }

    /// Copies bytes at offset `at` into `out`.
    #[inline(always)]
    pub fn read(&self, at: isize, out: &mut [u8]) {
        let from = self.ptr(at, out.len());
        // SAFETY: `from` is valid for `out.len()` bytes (checked bounds, promise of the maker); `out`
        // is a slice of ours. `copy` allows overlap.
        unsafe {
            match out.len() {
                0..=SMALL => small_copy(from, out.as_mut_ptr(), out.len()),
                _ => std::ptr::copy(from, out.as_mut_ptr(), out.len()),
            }
        }
    }

    /// Copies `bytes` to offset `at`.
    #[inline(always)]
    pub fn write(&self, at: isize, bytes: &[u8]) {
        let to = self.ptr(at, bytes.len());
        // SAFETY: as in `read`, the other way round.
        unsafe {
            match bytes.len() {
                0..=SMALL => small_copy(bytes.as_ptr(), to, bytes.len()),
                _ => std::ptr::copy(bytes.as_ptr(), to, bytes.len()),
            }
        }
    }

    /// Copies `len` bytes from offset `from_at` of `from` to offset `at`; the two may overlap.
    #[inline(always)]
    pub fn copy_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        let (to, from) = (self.ptr(at, len), from.ptr(from_at, len));
        // SAFETY: both ranges are checked against bounds that their makers promised.
        unsafe {
            match len {
                0..=SMALL => small_copy(from, to, len),
                _ => std::ptr::copy(from, to, len),
            }
        }
    }

    #[inline(always)]
    fn check(&self, at: isize, len: usize) {
        let ok = at >= self.lo && isize::try_from(len).is_ok_and(|n| n <= self.hi - at);
        if !(ok || len == 0) {
            self.outside(at, len);
        }
    }

    #[cold]
    fn outside(&self, at: isize, len: usize) -> ! {
        panic!("bytes {at}+{len} are outside the buffer {}..{}", self.lo, self.hi)
    }
}

/// The bounds of a buffer. They come only from buffers, so safe code cannot invent any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    lo: isize,
    hi: isize,
}

/// What [`HeapBuffer::zeroed`] panics with, so that code that catches panics can tell it from a fault of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory {
    /// Bytes that were asked for.
    pub bytes: usize,
}

/// Makes buffers of zeroed memory of the runtime's own, which is freed when the last [`Buffer`] on it goes.
#[derive(Debug)]
pub struct HeapBuffer;

impl HeapBuffer {
    /// `len` zeroed bytes, aligned for every MPI basic type.
    ///
    /// # Panics
    /// With [`NoMemory`], without a message, if there is no memory for them.
    pub fn zeroed(len: usize) -> Buffer {
        Self::try_zeroed(len).unwrap_or_else(|| std::panic::resume_unwind(Box::new(NoMemory { bytes: len })))
    }

    /// `len` zeroed bytes like those of [`HeapBuffer::zeroed`], or `None` without memory: for lengths that come from the user.
    pub fn try_zeroed(len: usize) -> Option<Buffer> {
        let words = len.div_ceil(size_of::<Word>());
        let layout = Layout::array::<Word>(words).ok()?;
        let first = match words {
            0 => std::ptr::NonNull::<Word>::dangling().as_ptr(),
            // SAFETY: the layout has at least one word.
            _ => unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Word>(),
        };
        if first.is_null() {
            return None;
        }
        let owner = Arc::new(Allocation(std::ptr::slice_from_raw_parts_mut(first, words)));
        Some(Buffer { origin: first.cast(), lo: 0, hi: len as isize, owner: Some(owner) })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let buffer = Self::zeroed(bytes.len());
        buffer.write(0, bytes);
        buffer
    }
}

/// The unit of heap buffers: as aligned as any MPI basic type needs and, being an integer, zeroed by the allocator, so that
/// pages of a large buffer that are never touched cost nothing.
type Word = u128;

/// Heap memory reached only through raw pointers, so that no reference to it ever aliases.
struct Allocation(*mut [Word]);

// SAFETY: the pointer is owned, and only freed by the last owner.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made with a Box's layout in `HeapBuffer::try_zeroed`, dropped once, by the last owner.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside_the_bounds() {
        let a = HeapBuffer::copy_of(b"0123456789");
        let b = a.slice(2, 5);
        let mut out = [0; 5];
        b.read(0, &mut out);
        assert_eq!(&out, b"23456");
        b.copy_from(1, &b, 0, 4);
        b.read(0, &mut out);
        assert_eq!(&out, b"22345");
        assert!(std::panic::catch_unwind(|| b.write(4, b"xy")).is_err());
        assert!(std::panic::catch_unwind(|| b.write(-1, b"x")).is_err());
    }

    #[test]
    fn offsets_may_be_negative() {
        let mut user = *b"abcdef";
        // SAFETY: 3 bytes below and above the middle of `user`.
        let b = unsafe { Buffer::with_bounds(user.as_mut_ptr().add(3), -3, 3) };
        b.write(-3, b"X");
        b.write(2, b"Y");
        assert_eq!(&user, b"XbcdeY");
        assert_eq!(b.len(), 6);
        let mut out = [0; 2];
        b.rebased(-3).read(4, &mut out);
        assert_eq!(&out, b"eY");
        assert!(std::panic::catch_unwind(|| b.rebased(2).write(1, b"x")).is_err());
    }

    #[test]
    fn a_heap_buffer_lives_as_long_as_a_part_of_it() {
        let part = HeapBuffer::copy_of(&[7; 100]).slice(99, 1);
        let mut out = [0];
        part.read(0, &mut out);
        assert_eq!(out, [7]);
        assert_eq!(HeapBuffer::zeroed(0).len(), 0);
    }

    #[test]
    fn lengths_beyond_all_memory_are_refused() {
        assert_eq!(HeapBuffer::try_zeroed(17).map(|buffer| buffer.len()), Some(17));
        for len in [1 << 50, usize::MAX / 2, usize::MAX] {
            assert!(HeapBuffer::try_zeroed(len).is_none(), "{len}");
        }
    }
}
