//! Swap blocks: memory that two ranks hand to each other with the bodies in it.
//!
//! A core writes those lines quickest that it has read last: they are in its own cache, and the other core has nothing newer.
//! So each pair of ranks has a few blocks. Who holds one may send a body in it, and gives the block away with that frame; the receiver holds it
//! from then on. Where bodies go to and fro they lie in the same lines again and again; in a stream one way the first ones take the blocks
//! along, and the others go through the data ring. So does what a rank sends while a frame of the peer
//! waits for it: of streams both ways at once nobody has read a line last.
//!
//! At first the rank with the lower local index holds all of them. They lie behind the ring from that rank to the other one.

use crate::sync::{AtomicU32, Ordering};

/// The most blocks of a pair: as many as the pieces of a message that waits for no answer. With 16 of them windows of 16 KiB both ways
/// took a quarter longer, and messages of 256 KiB were no quicker.
pub(crate) const MOST: usize = 4;
const _: () = assert!(MOST <= size_of::<u32>());

/// Bytes of a block: the longest body that is copied in whole before it is copied out.
pub(crate) const BLOCK: usize = 16 << 10;

/// Bytes of a body whose lines are asked for together when its frame is there, before the frame is looked at. (Lines that are asked for while the frame is
/// waited for are taken from a sender who is still writing there.)
const AT_ONCE: usize = 256;

/// The memory of a pair's blocks. Only the rank that holds a block touches it.
pub(crate) trait BlockMemory {
    /// How many there are, at most [`MOST`].
    fn blocks(&self) -> usize;
    /// Lends the first `len` bytes of a block, to write.
    ///
    /// # Safety
    /// There is such a block, it is as long, and this rank holds it.
    unsafe fn fill_block(&self, block: u8, len: usize, f: impl FnOnce(*mut u8));
    /// Lends the first `len` bytes of a block, to read.
    ///
    /// # Safety
    /// As for `fill_block`.
    unsafe fn read_block(&self, block: u8, len: usize, f: impl FnOnce(*const u8));
    /// This rank will read the first `len` bytes of a block before long: a hint.
    fn prefetch(&self, block: u8, len: usize);
}

/// The blocks of a pair, as one of the two ranks sees them.
#[derive(Debug)]
pub(crate) struct Swap<B> {
    memory: Option<B>,
    /// The blocks that this rank holds, a byte for each, the one that it got last in the lowest. (In an array of bytes, all of which were looked at
    /// after one had just been stored, each look waited until that store had left.)
    held: u32,
    /// A bit for each of them.
    mask: u8,
    /// A frame of the peer waits for this rank, which therefore sends in no block.
    pub(crate) streams: bool,
}

impl<B> Default for Swap<B> {
    fn default() -> Self {
        Swap { memory: None, held: 0, mask: 0, streams: false }
    }
}

impl<B: BlockMemory> Swap<B> {
    /// The blocks in `memory`, of which this rank holds those whose bits are in `mask`.
    pub(crate) fn new(memory: B, mask: u32) -> Self {
        let blocks = memory.blocks().min(MOST) as u8;
        let mut swap = Swap { memory: Some(memory), ..Swap::default() };
        (0..blocks).rev().filter(|block| mask & 1 << block != 0).for_each(|block| swap.hold(block));
        swap
    }

    /// True once the pair's blocks are known.
    pub(crate) fn is_known(&self) -> bool {
        self.memory.is_some()
    }

    /// The block that a body of so many bytes goes in, if one is at hand.
    #[inline]
    pub(crate) fn next(&self, len: usize) -> Option<u8> {
        (len <= BLOCK && self.mask != 0 && !self.streams).then_some(self.held as u8)
    }

    /// Fills the block of [`Swap::next`], and gives it away: its body is to be announced to the peer now.
    pub(crate) fn give(&mut self, len: usize, fill: impl FnOnce(*mut u8)) {
        let block = self.next(len).expect("a block is at hand");
        let memory = self.memory.as_ref().expect("blocks that are held are known");
        // SAFETY: it is held, so it is one, and `next` has looked at the length.
        unsafe { memory.fill_block(block, len, fill) };
        self.held >>= 8;
        self.mask &= !(1 << block);
    }

    /// Takes a block over from the peer with a body of so many bytes in it, which `f` reads. False, without a call of `f`, if the peer cannot
    /// have held that block, or the body does not fit.
    pub(crate) fn take(&mut self, block: u8, len: usize, f: impl FnOnce(*const u8)) -> bool {
        let Some(memory) = &self.memory else { return false };
        if usize::from(block) >= memory.blocks() || len > BLOCK || self.mask & 1 << block != 0 {
            return false;
        }
        memory.prefetch(block, len.min(AT_ONCE));
        // SAFETY: there is such a block, it is as long, and the peer has given it to this rank.
        unsafe { memory.read_block(block, len, f) };
        self.hold(block);
        true
    }

    fn hold(&mut self, block: u8) {
        self.held = self.held << 8 | u32::from(block);
        self.mask |= 1 << block;
    }

    /// A bit for each block that this rank holds.
    pub(crate) fn mask(&self) -> u32 {
        self.mask.into()
    }
}

/// Where a rank leaves which blocks it holds for its next instance, as the blocks that have moved since the ring was new.
pub(crate) struct Moved<'a>(pub(crate) &'a AtomicU32, pub(crate) Holder);

/// Which of the two ranks of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// The one that holds all blocks at first.
    First,
    Second,
}

impl Moved<'_> {
    fn flip(&self, mask: u32) -> u32 {
        if self.1 == Holder::First { !mask } else { mask }
    }

    pub(crate) fn load(&self) -> u32 {
        self.flip(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn store(&self, mask: u32) {
        self.0.store(self.flip(mask), Ordering::Relaxed);
    }
}
