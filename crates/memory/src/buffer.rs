//! [`Buffer`]: checked access to memory that the runtime does not own, or shares.

use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::device::Device;
use crate::shared::Keeper;
use crate::{small_copy, vectors};

/// What memory is made of: who may touch it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryKind {
    /// Memory that the processor reads and writes.
    Host,
    /// Memory that only the driver of its device may touch.
    Device,
}

impl MemoryKind {
    /// True if the processor may touch such memory. Where it may not, a driver copies: collectives mirror such operands, and no plan
    /// on them is compiled.
    #[inline]
    pub const fn is_host_accessible(self) -> bool {
        match self {
            MemoryKind::Host => true,
            MemoryKind::Device => false,
        }
    }
}

/// Bytes from `origin + lo` up to, not including, `origin + hi`.
///
/// Offsets may be negative: an MPI datatype may reach below the address that the user passes.
/// With an owner ([`HeapBuffer`], or a device) the memory lives as long as the buffer does.
pub struct Buffer {
    origin: *mut u8,
    /// The first of both bounds in host memory, the second one in a device's: so the check of bounds that each access of the
    /// host's makes fails there, and asks nothing else.
    one: isize,
    /// The other bound.
    other: isize,
    owner: Option<Arc<Owner>>,
}

impl Clone for Buffer {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: the references are good. Each bound is loaded by itself, which the compiler would not do otherwise: a load of both waits, where
        // they were just stored one by one, until all earlier stores have left the core, such as those to the line of the message before.
        let (one, other) =
            unsafe { (std::ptr::read_volatile(&self.one), std::ptr::read_volatile(&self.other)) };
        Self { origin: self.origin, one, other, owner: self.owner.clone() }
    }
}

/// Who the memory belongs to, if it is not a user's on the host.
pub(crate) enum Owner {
    Heap(#[expect(dead_code, reason = "is freed with its owner")] Allocation),
    Kept(#[expect(dead_code, reason = "is dropped with its owner")] Keeper),
    Device(Box<dyn Device>),
}

impl Owner {
    /// The device whose memory it is.
    pub(crate) fn device(&self) -> Option<&dyn Device> {
        match self {
            Owner::Heap(_) | Owner::Kept(_) => None,
            Owner::Device(device) => Some(&**device),
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.device().map_or("this library", Device::name))
    }
}

// SAFETY: a Buffer is an address with bounds. The maker promised that the memory may be used until the
// operation that it was made for is over, from whichever thread drives that operation.
unsafe impl Send for Buffer {}
// SAFETY: as above; all accesses go through raw copies, none through references that assume no aliasing.
unsafe impl Sync for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({:p}, {}..{}, {:?})", self.origin, self.lo(), self.hi(), self.kind())
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
        Self { origin, one: 0, other: hi, owner: None }
    }

    /// The bytes `origin + lo .. origin + hi`; `origin` itself need not lie inside (MPI_BOTTOM).
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range.
    #[inline]
    pub unsafe fn with_bounds(origin: *mut u8, lo: isize, hi: isize) -> Self {
        assert!(lo <= hi, "buffer bounds {lo}..{hi}");
        Self { origin, one: lo, other: hi, owner: None }
    }

    /// The bytes from `origin` on that lie within the bounds of another buffer.
    ///
    /// # Safety
    /// As for [`Buffer::new`], for that range: `origin` came with arguments that say as much of the memory there as those
    /// which the other buffer was made for said of its own.
    #[inline(always)]
    pub unsafe fn within(origin: *mut u8, Bounds { one, other }: Bounds) -> Self {
        Self { origin, one, other, owner: None }
    }

    /// No bytes at all.
    #[inline]
    pub fn empty() -> Self {
        Self { origin: std::ptr::null_mut(), one: 0, other: 0, owner: None }
    }

    /// Memory of a device: the bytes `origin + lo .. origin + hi`.
    pub(crate) fn of_device(origin: *mut u8, lo: isize, hi: isize, owner: Arc<Owner>) -> Self {
        Self { origin, one: hi, other: lo, owner: Some(owner) }
    }

    /// `len` bytes of the host's memory that live as long as their owner.
    pub(crate) fn owned(origin: *mut u8, len: usize, owner: Arc<Owner>) -> Self {
        Self { origin, one: 0, other: len as isize, owner: Some(owner) }
    }

    /// What its memory is made of.
    #[inline]
    pub fn kind(&self) -> MemoryKind {
        if self.one <= self.other { MemoryKind::Host } else { MemoryKind::Device }
    }

    /// True if the memory is there for as long as the buffer is; otherwise as its maker promised.
    pub fn keeps_memory(&self) -> bool {
        self.owner.is_some()
    }

    /// True if there is another buffer on the same memory, and the memory is there as long as any.
    pub fn is_shared(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| Arc::strong_count(owner) > 1)
    }

    pub(crate) fn owner(&self) -> Option<&Arc<Owner>> {
        self.owner.as_ref()
    }

    /// Bytes inside the bounds.
    #[inline]
    pub fn len(&self) -> usize {
        self.other.abs_diff(self.one)
    }

    /// True if there are no bytes inside the bounds.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.one == self.other
    }

    /// Lowest offset that may be touched.
    #[inline]
    pub fn lo(&self) -> isize {
        self.one.min(self.other)
    }

    /// One past the highest offset that may be touched.
    #[inline]
    pub fn hi(&self) -> isize {
        self.one.max(self.other)
    }

    /// The buffer's bounds, for [`Buffer::within`].
    #[inline]
    pub fn bounds(&self) -> Bounds {
        Bounds { one: self.one, other: self.other }
    }

    /// The address that offset `at` stands for.
    pub fn address(&self, at: isize) -> usize {
        self.origin.wrapping_offset(at) as usize
    }

    /// The address that offset `at` stands for, as a pointer for the host, after checking that `len` bytes lie there.
    ///
    /// # Panics
    /// If the range is not inside the bounds, or memory of a device: a fault of the runtime, not of the user.
    #[inline(always)]
    pub fn ptr(&self, at: isize, len: usize) -> *mut u8 {
        self.host(at, len).unwrap_or_else(|| self.refuse(at, len))
    }

    /// The pointer of [`Buffer::ptr`]; `None` where that panics.
    #[inline(always)]
    pub fn host(&self, at: isize, len: usize) -> Option<*mut u8> {
        // `&` has all of it looked at, which takes less time than a branch for each; the difference is one where `at` is within the bounds.
        let inside = (at >= self.one) & (len as isize >= 0) & (len as isize <= self.other.wrapping_sub(at));
        (inside | (len == 0)).then(|| self.origin.wrapping_offset(at))
    }

    /// The part of `len` bytes at offset `at`, as a buffer whose offsets start at 0.
    #[inline]
    pub fn slice(&self, at: isize, len: usize) -> Buffer {
        match self.host(at, len) {
            Some(origin) => Buffer { origin, one: 0, other: len as isize, owner: self.owner.clone() },
            None => self.device_slice(at, len),
        }
    }

    /// True if these bytes are within the bounds, and a device's.
    fn is_on_device(&self, at: isize, len: usize) -> bool {
        let inside = at >= self.lo() && isize::try_from(len).is_ok_and(|n| n <= self.hi() - at);
        !self.kind().is_host_accessible() && inside
    }

    #[cold]
    fn device_slice(&self, at: isize, len: usize) -> Buffer {
        match &self.owner {
            Some(owner) if self.is_on_device(at, len) => {
                Buffer::of_device(self.origin.wrapping_offset(at), 0, len as isize, owner.clone())
            }
            _ => self.refuse(at, len),
        }
    }

    /// A buffer on the same bytes with offsets counted from `by`: what was at `by + x` is at `x`.
    #[inline]
    pub fn rebased(&self, by: isize) -> Buffer {
        let origin = self.origin.wrapping_offset(by);
        Buffer { origin, one: self.one - by, other: self.other - by, owner: self.owner.clone() }
    }

    /// Copies bytes at offset `at` into `out`. Like the other copies it waits for the device whose memory it is, if it is one's.
    #[inline(always)]
    pub fn read(&self, at: isize, out: &mut [u8]) {
        // SAFETY: a slice of ours.
        unsafe { self.read_to(at, out.as_mut_ptr(), out.len()) };
    }

    /// [`Buffer::read`] of bytes that a peer gets: of a buffer that is longer than the caches hold past them, as [`vectors::choose`] was told.
    #[inline(always)]
    pub fn give(&self, at: isize, out: &mut [u8]) {
        match self.host(at, out.len()) {
            // SAFETY: valid for so many bytes (checked bounds, promise of the maker), and a slice of ours.
            Some(from) => unsafe { vectors::give(from, out.as_mut_ptr(), out.len(), self.len()) },
            // SAFETY: a slice of ours.
            None => unsafe { self.read_device(at, out.as_mut_ptr(), out.len()) },
        }
    }

    /// Copies bytes at offset `at` into `room`, in which nothing need be yet; gives it filled.
    #[inline(always)]
    pub fn read_into<'a>(&self, at: isize, room: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let (start, len) = (room.as_mut_ptr().cast(), room.len());
        // SAFETY: a slice of ours, of which each byte is there after the copy.
        unsafe {
            self.read_to(at, start, len);
            std::slice::from_raw_parts_mut(start, len)
        }
    }

    /// # Safety
    /// `out` is valid for writes of `len` bytes, which are nobody else's.
    #[inline(always)]
    unsafe fn read_to(&self, at: isize, out: *mut u8, len: usize) {
        // SAFETY: by the caller.
        let Some(from) = self.host(at, len) else { return unsafe { self.read_device(at, out, len) } };
        // SAFETY: `from` is valid for `len` bytes (checked bounds, promise of the maker), `out` by the caller.
        unsafe { small_copy::copy(from, out, len) }
    }

    /// # Safety
    /// As [`Buffer::read_to`].
    #[cold]
    unsafe fn read_device(&self, at: isize, out: *mut u8, len: usize) {
        // SAFETY: by the caller, and the copy is over when this returns.
        let to = unsafe { Buffer::new(out, len) };
        to.copy_by_device(0, self, at, len);
    }

    /// Copies `bytes`, which most often another process has written, to offset `at`.
    #[inline(always)]
    pub fn write(&self, at: isize, bytes: &[u8]) {
        let Some(to) = self.host(at, bytes.len()) else { return self.write_device(at, bytes) };
        // SAFETY: as in `read`, the other way round.
        unsafe { vectors::take(bytes.as_ptr(), to, bytes.len()) }
    }

    /// [`Buffer::write`] past the caches of this core, by non-temporal stores.
    #[inline(never)]
    pub fn write_past(&self, at: isize, bytes: &[u8]) {
        let Some(to) = self.host(at, bytes.len()) else { return self.write_device(at, bytes) };
        // SAFETY: as in `write`.
        unsafe { vectors::past(bytes.as_ptr(), to, bytes.len()) }
    }

    #[cold]
    fn write_device(&self, at: isize, bytes: &[u8]) {
        // SAFETY: a slice of ours, of which the copy only reads, and which is over when this returns.
        let from = unsafe { Buffer::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        self.copy_by_device(at, &from, 0, bytes.len());
    }

    /// Copies `len` bytes from offset `from_at` of `from` to offset `at`; the two may overlap.
    #[inline(always)]
    pub fn copy_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        match self.of_host(at, from, from_at, len) {
            // SAFETY: what `of_host` says.
            Some((from, to)) => unsafe { small_copy::copy(from, to, len) },
            None => self.copy_by_device(at, from, from_at, len),
        }
    }

    /// [`Buffer::copy_from`] of bytes that another process has written.
    #[inline(always)]
    pub fn take_from(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        match self.of_host(at, from, from_at, len) {
            // SAFETY: what `of_host` says.
            Some((from, to)) => unsafe { vectors::take(from, to, len) },
            None => self.copy_by_device(at, from, from_at, len),
        }
    }

    /// [`Buffer::copy_from`] of bytes that a peer gets, as [`Buffer::give`].
    #[inline(always)]
    pub fn copy_given(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        match self.of_host(at, from, from_at, len) {
            // SAFETY: what `of_host` says.
            Some((source, to)) => unsafe { vectors::give(source, to, len, from.len()) },
            None => self.copy_by_device(at, from, from_at, len),
        }
    }

    /// [`Buffer::copy_from`] past the caches of this core, by non-temporal stores.
    #[inline(never)]
    pub fn copy_past(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        match self.of_host(at, from, from_at, len) {
            // SAFETY: what `of_host` says.
            Some((from, to)) => unsafe { vectors::past(from, to, len) },
            None => self.copy_by_device(at, from, from_at, len),
        }
    }

    /// Where a copy reads and writes, both of which are valid for `len` bytes: checked against bounds that their makers promised. `None`
    /// if either is a device's.
    #[inline(always)]
    fn of_host(&self, at: isize, from: &Buffer, from_at: isize, len: usize) -> Option<(*mut u8, *mut u8)> {
        Some((from.host(from_at, len)?, self.host(at, len)?))
    }

    /// The copy of [`Buffer::copy_from`] where a device has to do it.
    #[cold]
    fn copy_by_device(&self, at: isize, from: &Buffer, from_at: isize, len: usize) {
        let sides = [(self, at), (from, from_at)];
        // What is outside a buffer of the host's is found there; what is outside a device's, where the copy starts.
        for (side, at) in sides.into_iter().filter(|(side, _)| side.kind().is_host_accessible()) {
            side.ptr(at, len);
        }
        self.copy_now_from(at, from, from_at, len);
    }

    /// The address of offset 0, for the driver of a device.
    pub(crate) fn first(&self) -> *mut u8 {
        self.origin
    }

    #[cold]
    fn refuse(&self, at: isize, len: usize) -> ! {
        match &self.owner {
            Some(owner) if self.is_on_device(at, len) => {
                panic!("bytes {at}+{len} are memory of {owner:?}, which the processor cannot touch")
            }
            _ => panic!("bytes {at}+{len} are outside the buffer {}..{}", self.lo(), self.hi()),
        }
    }
}

/// The bounds of a buffer. They come only from buffers, so safe code cannot invent any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    one: isize,
    other: isize,
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
        let owner = Arc::new(Owner::Heap(Allocation(std::ptr::slice_from_raw_parts_mut(first, words))));
        Some(Buffer::owned(first.cast(), len, owner))
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
pub(crate) struct Allocation(*mut [Word]);

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
