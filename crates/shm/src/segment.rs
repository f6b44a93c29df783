//! The memory that the ranks of a node share: mapped, checked, and read through typed views.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::layout::{Layout, PAGE, first_span};
use crate::pages::{FreeLists, PageMemory};
use crate::ring::{Control, LINE, RingMemory};
use crate::swap::{BLOCK, BlockMemory, Holder, Moved, Swap};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// "BANYAN" and the version of the layout, which changes whenever the layout does.
const MAGIC: u64 = u64::from_le_bytes(*b"BANYAN\x06\x00");

/// The start of a segment. All zero: the segment is new.
#[repr(C, align(64))]
pub(crate) struct Header {
    magic: AtomicU64,
    ranks: AtomicU32,
    /// Not 0: some rank cannot use membarrier, so every rank that publishes must fence.
    pub(crate) fences: AtomicU32,
    /// The random key that a datagram must hold to wake a doorbell socket of this segment. 0: not drawn yet.
    pub(crate) key: AtomicU64,
    /// Number of rings, from the first one on, that pairs have got.
    rings: AtomicU32,
    /// See [`crate::pages`].
    pub(crate) pages: FreeLists,
    /// See [`crate::registry`].
    pub(crate) registry: crate::registry::Registry,
}

/// What a rank tells the others about itself.
#[repr(C)]
pub(crate) struct Block {
    pub(crate) bell: Doorbell,
    pub(crate) identity: Identity,
    pub(crate) inbound: InboundLine,
}

/// The process that is attached as a rank. Valid once `present` is 1.
#[repr(C, align(64))]
pub(crate) struct Identity {
    pub(crate) present: AtomicU32,
    pub(crate) pid: AtomicU32,
    /// A random number per process image: ranks with equal numbers share an address space.
    pub(crate) space: AtomicU64,
    /// The address of a word of that process, and the word's value: peers read it to see that they can.
    pub(crate) probe_at: AtomicU64,
    pub(crate) probe: AtomicU64,
    /// The key of what that process exposes, odd: a read counts only if the key is the same before and after it.
    pub(crate) key: AtomicU64,
    /// The name of its doorbell socket (see [`crate::socket`]); 0: it has none.
    pub(crate) socket: AtomicU64,
    /// The rank whose memory that process writes at this moment, plus 1; 0: none.
    pub(crate) writes: AtomicU32,
    /// A bit for each of the rank's handover buffers that a peer has (see `handover.rs`). What peers still have when a later process
    /// attaches, they return to it.
    pub(crate) handed: AtomicU64,
}

/// A bit per group of 64 inbound bits: set if one of them may be set. The groups follow.
#[repr(C, align(64))]
pub(crate) struct InboundLine {
    pub(crate) groups: AtomicU64,
}

const _: () = assert!(size_of::<Header>() <= PAGE && size_of::<Block>() == 3 * LINE);

/// A mapped segment.
pub(crate) struct Segment {
    base: *mut u8,
    size: usize,
    memory: OwnedFd,
    pub(crate) layout: Layout,
}

// SAFETY: the mapping is shared memory that only atomics, and copies ordered by them, touch.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps `memory`, which is new (all zero) or in use by others with the same number of ranks.
    pub(crate) fn map(memory: OwnedFd, ranks: u32) -> Result<Self, Error> {
        let size = size_of_file(&memory).map_err(|cause| Error::System { what: "fstat", cause })?;
        let layout = Layout::of(size, ranks).map_err(|need| Error::TooSmall { size, need })?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, prot, flags, memory.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(Error::System { what: "mmap", cause: io::Error::last_os_error() });
        }
        // SAFETY: the range just mapped. A child after fork must not use the segment; without a mapping it
        // faults instead of disturbing its parent. Best effort.
        unsafe { libc::madvise(base, size, libc::MADV_DONTFORK) };
        let segment = Self { base: base.cast(), size, memory, layout };
        segment.check_header()?;
        Ok(segment)
    }

    /// The first rank writes version and number of ranks; each later one checks that it has the same.
    fn check_header(&self) -> Result<(), Error> {
        let header = self.header();
        let magic = header.magic.compare_exchange(0, MAGIC, Ordering::AcqRel, Ordering::Acquire);
        if let Err(found) = magic
            && found != MAGIC
        {
            return Err(Error::Foreign { found });
        }
        let ranks = self.layout.ranks;
        match header.ranks.compare_exchange(0, ranks, Ordering::AcqRel, Ordering::Acquire) {
            Err(found) if found != ranks => Err(Error::Ranks { found, expected: ranks }),
            _ => Ok(()),
        }
    }

    pub(crate) fn header(&self) -> &Header {
        // SAFETY: offset 0 is page aligned and inside; all zero is valid; atomics only.
        unsafe { &*self.base.cast::<Header>() }
    }

    #[inline]
    pub(crate) fn block(&self, rank: u32) -> &Block {
        assert!(rank < self.layout.ranks, "no rank {rank} in this segment");
        // SAFETY: `Layout::block` is inside the segment and aligned to a line; atomics only.
        unsafe { &*self.base.add(self.layout.block(rank)).cast::<Block>() }
    }

    /// Inbound bits `64 * group ..` of a rank.
    pub(crate) fn inbound(&self, rank: u32, group: u32) -> &AtomicU64 {
        assert!(rank < self.layout.ranks && group < self.layout.ranks.div_ceil(64), "no such group");
        let at = self.layout.block(rank) + size_of::<Block>() + group as usize * 8;
        // SAFETY: the block has a word for every group behind its lines.
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    /// The number of the ring from `from` to `to`, plus 1; 0: the two have not talked yet.
    fn pair(&self, from: u32, to: u32) -> &AtomicU32 {
        assert!(from < self.layout.ranks && to < self.layout.ranks, "no ring from {from} to {to}");
        // SAFETY: `Layout::pair` is inside the segment and aligned to its 4 bytes; used as an atomic by all.
        unsafe { &*self.base.add(self.layout.pair(from, to)).cast::<AtomicU32>() }
    }

    /// The number of the ring from `from` to `to`, if it has one.
    pub(crate) fn ring_number(&self, from: u32, to: u32) -> Option<u32> {
        // Acquire, with the Release in `assign_ring`. A number that no ring has was written by something else.
        let number = self.pair(from, to).load(Ordering::Acquire).checked_sub(1)?;
        (number < self.layout.rings()).then_some(number)
    }

    /// The number of the ring from `from` to `to`, which gets one if it has none. Only the sender calls this. `None`: the
    /// table has been overwritten, as there are as many rings as pairs.
    pub(crate) fn assign_ring(&self, from: u32, to: u32) -> Option<u32> {
        if let Some(number) = self.ring_number(from, to) {
            return Some(number);
        }
        let all = self.layout.rings();
        let grow = |used: u32| (used < all).then_some(used + 1);
        let number = self.header().rings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).ok()?;
        self.pair(from, to).store(number + 1, Ordering::Release);
        Some(number)
    }

    /// Ring number `number`, below [`Layout::rings`]. Lives no longer than the segment.
    pub(crate) fn ring(&self, number: u32) -> MappedRing {
        assert!(number < self.layout.rings(), "no ring {number}");
        // SAFETY: `Layout::ring` is inside the segment.
        let base = unsafe { self.base.add(self.layout.ring(number)) };
        MappedRing {
            base,
            data: base.wrapping_add(self.layout.ring_head_bytes()),
            elements: self.layout.elements,
            data_bytes: self.layout.data_bytes,
        }
    }

    /// The number of the ring that the swap blocks of a pair are behind, if that ring is in use and rings have blocks.
    fn ring_with_blocks(&self, one: u32, other: u32) -> Option<u32> {
        let number = self.ring_number(one.min(other), one.max(other))?;
        (one != other && self.layout.blocks() > 0).then_some(number)
    }

    /// The swap blocks of `me` and `peer`, as `me` has left them, once their ring is in use.
    pub(crate) fn swap(&self, me: u32, peer: u32) -> Option<Swap<MappedBlocks>> {
        let ring = self.ring(self.ring_with_blocks(me, peer)?);
        let base = ring.data.wrapping_add(ring.data_bytes as usize);
        let memory = MappedBlocks { base, blocks: self.layout.blocks() };
        Some(Swap::new(memory, moved(&ring, me < peer).load()))
    }

    /// Leaves what `me` holds of the swap blocks that it has with `peer` for its next instance.
    pub(crate) fn save_swap(&self, me: u32, peer: u32, swap: &Swap<MappedBlocks>) {
        if let Some(number) = self.ring_with_blocks(me, peer).filter(|_| swap.is_known()) {
            moved(&self.ring(number), me < peer).store(swap.mask());
        }
    }

    /// Gets pages for `len` bytes at `at` now, so that lack of memory is an error here and no fault later.
    pub(crate) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        match self.allocate(0, at, len) {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM)) => {
                // The system lacks or refuses this call: then pages come when they are touched.
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Gives the pages of a range back: it reads as zero then.
    fn discard(&self, at: usize, len: usize) -> io::Result<()> {
        self.allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, at, len)
    }

    fn allocate(&self, mode: i32, at: usize, len: usize) -> io::Result<()> {
        loop {
            // SAFETY: acts on our own descriptor.
            let done = unsafe { libc::fallocate(self.memory.as_raw_fd(), mode, at as i64, len as i64) };
            let error = io::Error::last_os_error();
            match done {
                0 => return Ok(()),
                _ if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            }
        }
    }

    /// A pointer to `len` bytes at offset `at`.
    #[inline]
    pub(crate) fn ptr(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.size), "{at}+{len} is not in the segment");
        self.base.wrapping_add(at)
    }

    /// The address of offset `at`, unchecked: only its use needs a check.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize) -> *mut u8 {
        self.base.wrapping_add(at)
    }

    /// The word at offset `at`, unchecked.
    ///
    /// # Safety
    /// The word lies inside the segment, and is aligned.
    #[inline(always)]
    pub(crate) unsafe fn word_at(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the caller's promise; used as an atomic by all.
        unsafe { &*self.base.add(at).cast::<AtomicU64>() }
    }

    /// The word at offset `at`.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8), "a word is aligned");
        // SAFETY: inside (checked by `ptr`) and aligned; used as an atomic by all.
        unsafe { &*self.ptr(at, 8).cast::<AtomicU64>() }
    }
}

impl PageMemory for Segment {
    fn free_lists(&self) -> &FreeLists {
        &self.header().pages
    }

    fn range(&self) -> (usize, usize) {
        (self.layout.arenas(), self.layout.arena_bytes)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        Segment::word(self, at)
    }

    fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        Segment::populate(self, at, len)
    }

    fn zero(&self, at: usize, len: usize) {
        if self.discard(at, len).is_err() {
            let start = self.ptr(at, len);
            // SAFETY: inside the segment (checked), and no rank uses it any more (the caller's promise).
            unsafe { std::ptr::write_bytes(start, 0, len) };
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; nothing that points into it outlives the segment.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

fn size_of_file(file: &OwnedFd) -> io::Result<usize> {
    // SAFETY: all zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is ours to be written.
    match unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } {
        0 => Ok(stat.st_size as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// New shared memory for `ranks`, all zero, whose size cannot change any more; closed on exec. Its size is
/// [`Layout::recommended`], or less where this process may not have files, or mappings, as large.
pub(crate) fn new_memory(ranks: u32, private_cache: Option<u64>) -> io::Result<OwnedFd> {
    let size = Layout::recommended(ranks, private_cache).min(limit());
    if size < Layout::least(ranks) {
        let need = Layout::least(ranks);
        let why = format!("{ranks} ranks need {need} bytes, the limit (ulimit -f, ulimit -v) allows {size}");
        return Err(io::Error::other(why));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"banyan".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and ours.
    let memory = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: our own descriptor.
    if unsafe { libc::ftruncate(fd, size as i64) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // A rank that made the file shorter would take the pages away from all others.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: our own descriptor. Best effort: kernels without sealing lose only a safeguard.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) };
    Ok(memory)
}

/// The most bytes that a segment may have in this process: the limit of a file, and a quarter of the address space, of
/// which the program needs the rest.
fn limit() -> usize {
    let of = |what| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is ours to be written. If the call fails, it stays as it is.
        unsafe { libc::getrlimit(what, &raw mut limit) };
        limit.rlim_cur
    };
    let file = of(libc::RLIMIT_FSIZE);
    let space = match of(libc::RLIMIT_AS) {
        libc::RLIM_INFINITY => u64::MAX,
        bytes => bytes / 4,
    };
    usize::try_from(file.min(space)).unwrap_or(usize::MAX)
}

/// Asks the cache for the line at an address that will be read before long: a hint.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Where the sender (`first`) or the receiver of a ring leaves which of the swap blocks behind it have moved.
fn moved(ring: &MappedRing, first: bool) -> Moved<'_> {
    match first {
        true => Moved(&ring.control().sender.blocks, Holder::First),
        false => Moved(&ring.control().receiver.blocks, Holder::Second),
    }
}

/// The swap blocks of a pair, in a segment.
#[derive(Debug)]
pub(crate) struct MappedBlocks {
    base: *mut u8,
    blocks: usize,
}

// SAFETY: points into a segment, which may be used from any thread.
unsafe impl Send for MappedBlocks {}

impl MappedBlocks {
    /// The beginning of a block.
    #[inline(always)]
    fn at(&self, block: u8) -> *mut u8 {
        self.base.wrapping_add(usize::from(block) * BLOCK)
    }
}

impl BlockMemory for MappedBlocks {
    #[inline]
    fn blocks(&self) -> usize {
        self.blocks
    }

    unsafe fn fill_block(&self, block: u8, len: usize, f: impl FnOnce(*mut u8)) {
        debug_assert!(usize::from(block) < self.blocks && len <= BLOCK);
        f(self.at(block));
    }

    unsafe fn read_block(&self, block: u8, len: usize, f: impl FnOnce(*const u8)) {
        debug_assert!(usize::from(block) < self.blocks && len <= BLOCK);
        f(self.at(block));
    }

    #[inline]
    fn prefetch(&self, block: u8, len: usize) {
        for line in (0..len).step_by(LINE) {
            prefetch(self.at(block).wrapping_add(line));
        }
    }
}

/// A ring in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRing {
    base: *mut u8,
    data: *mut u8,
    elements: u32,
    data_bytes: u64,
}

// SAFETY: points into a segment, which may be used from any thread.
unsafe impl Send for MappedRing {}

impl MappedRing {
    #[inline(always)]
    fn element(&self, element: u32) -> *mut u8 {
        debug_assert!(element < self.elements);
        self.base.wrapping_add(size_of::<Control>() + element as usize * LINE)
    }
}

impl RingMemory for MappedRing {
    #[inline(always)]
    fn elements(&self) -> u32 {
        self.elements
    }

    #[inline(always)]
    fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    fn first_span(&self) -> u64 {
        first_span(self.data_bytes)
    }

    #[inline(always)]
    fn control(&self) -> &Control {
        // SAFETY: a ring starts with its control lines; the fabric that holds this ring holds the segment.
        unsafe { &*self.base.cast::<Control>() }
    }

    #[inline(always)]
    fn word(&self, element: u32) -> &AtomicU64 {
        // SAFETY: as in `control`; an element starts with its word.
        unsafe { &*self.element(element).cast::<AtomicU64>() }
    }

    #[inline(always)]
    unsafe fn fill_element(&self, element: u32, f: impl FnOnce(*mut u8)) {
        f(self.element(element).wrapping_add(8));
    }

    #[inline(always)]
    unsafe fn read_element<R>(&self, element: u32, f: impl FnOnce(*const u8) -> R) -> R {
        f(self.element(element).wrapping_add(8))
    }

    #[inline(always)]
    fn prefetch(&self, element: u32) {
        prefetch(self.element(element));
    }

    unsafe fn fill_data(&self, at: u64, len: usize, f: impl FnOnce(*mut u8)) {
        debug_assert!(at + len as u64 <= self.data_bytes);
        f(self.data.wrapping_add(at as usize));
    }

    unsafe fn read_data<R>(&self, at: u64, len: usize, f: impl FnOnce(*const u8) -> R) -> R {
        debug_assert!(at + len as u64 <= self.data_bytes);
        f(self.data.wrapping_add(at as usize))
    }
}
