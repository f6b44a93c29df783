//! [`Arena`]: the shared memory of one communicator, a CICO buffer per rank and the shared scratch. What one rank publishes
//! in its buffer, all ranks read in place.
//!
//! A CICO buffer is a cache line of control words (up to which sequence number the rank has acknowledged; which ranks sleep
//! until it does something) and [`Arena::CELLS`] cells, used in turn. A cell starts with its sequence number, which is stored
//! last (Release), so a small publication is one cache line. A longer one begins at the cell's second line, so that the first one, which
//! other ranks look at, is written only when all the rest is there. What has few bytes goes to small cells of their own, of which there are more, and
//! which lie together: so a stream of them takes few pages, and waits seldom. `SharedBuffers` of the collectives states the rules.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use banyan_memory::Buffer;
use banyan_transport::{Remote, Transfer};

use crate::attachment::{Attachment, Way};
use crate::doorbell::light_barrier;
use crate::layout::{
    CELL_HEAD, CELLS, CELLS_AT, SMALL_BYTES, SMALL_CELLS, SMALL_CELLS_AT, arena_cico, arena_inline,
    arena_scratch, arena_stride, cell_bytes,
};
use crate::pages;
use crate::ring::LINE;
use crate::segment::{Segment, prefetch};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::system;

/// Set in a cell's length word if the bytes are elsewhere: the cell holds their address, length and key.
const EXPOSED: u64 = 1 << 63;
/// Set in a cell's length word if the bytes begin behind the head, as few bytes do, although they may be many: it is not known
/// how many of them are used.
const PACKED: u64 = 1 << 62;
/// Set in the length word of a packed cell when the ranges that it offers are taken back.
const TAKEN_BACK: u64 = 1 << 61;

/// What a rank published under a sequence number.
#[derive(Debug)]
pub enum Published {
    /// The bytes, in shared memory. This rank may read them until it acknowledges the sequence number, and never writes them.
    Inline(Buffer),
    /// An exposed range of that many bytes in the publisher's memory, to be read by [`Arena::get`].
    Exposed(u64),
}

/// One rank's view of the shared memory of a communicator. See [`Shm::arena`](crate::Shm::arena).
pub struct Arena {
    attachment: Arc<Attachment>,
    layout: ArenaLayout,
    inline_bytes: usize,
    /// Local index of each rank of the communicator.
    peers: Box<[u32]>,
    wake_conditions: Arc<WakeConditions>,
    /// What each rank published last, of what was seen, was in no small cell.
    large_last: Box<[AtomicBool]>,
    /// Copies of exposed ranges of this rank that lie in the segment, with their sequence numbers, untagged.
    copies: Mutex<Vec<(u64, Remote)>>,
}

impl Arena {
    /// Number of cells of a CICO buffer.
    pub const CELLS: u64 = crate::layout::CELLS;

    /// Number of cells that a CICO buffer has for publications of so many bytes, if they are inline: at least [`Arena::CELLS`].
    #[inline(always)]
    pub fn cells_for(bytes: u64) -> u64 {
        if bytes <= SMALL_BYTES as u64 { SMALL_CELLS } else { CELLS }
    }

    /// Bytes that one cell can carry.
    #[inline]
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Bytes of the shared scratch.
    pub fn scratch_bytes(&self) -> usize {
        Arena::sizes(self.layout.ranks).1
    }

    /// Sizes of an arena of `ranks` ranks: bytes that one cell can carry, and bytes of the shared scratch.
    pub fn sizes(ranks: u32) -> (usize, usize) {
        (arena_inline(ranks), arena_stride(ranks) - arena_scratch(ranks))
    }

    /// The shared scratch: memory beside the CICO buffers that all ranks of the arena may read and write. The ranks
    /// agree on who may touch what, and when, by the sequence numbers that they publish and acknowledge.
    pub fn scratch(&self) -> Buffer {
        let at = self.layout.at + arena_scratch(self.layout.ranks);
        let scratch = self.attachment.segment.ptr(at, self.scratch_bytes());
        // SAFETY: inside the segment, which outlives the collective that uses the shared scratch; no other arena has it.
        unsafe { Buffer::new(scratch, self.scratch_bytes()) }
    }

    /// Copies `bytes` (at most [`Arena::inline_bytes`]) into this rank's cell of `seq` (from 1), then publishes it.
    pub fn publish(&self, seq: u64, bytes: &Buffer) {
        self.publish_part(seq, bytes, bytes.lo(), bytes.len());
    }

    /// Publishes `len` bytes from offset `at` of `bytes`; otherwise like [`Arena::publish`].
    #[inline(always)]
    pub fn publish_part(&self, seq: u64, bytes: &Buffer, at: isize, len: usize) {
        assert!(len <= self.inline_bytes(), "{len} bytes do not fit into a cell");
        let small = len <= SMALL_BYTES;
        let cell = if small { self.layout.my_small_cell(seq) } else { self.layout.my_cell(seq) };
        // SAFETY: the cell has room for `len` bytes and lies in the range that `open` has checked; every rank has
        // acknowledged what was in it (the caller's promise), so no rank reads it now.
        let to = unsafe { Buffer::new(self.attachment.segment.at(cell + body_at(len as u64)), len) };
        to.copy_from(0, bytes, at, len);
        self.mark_published(cell, seq, len as u64);
        if !small {
            self.prefetch_next(seq);
        }
    }

    /// This rank's cell of `seq`, to be filled before [`Arena::publish_cell`].
    #[inline]
    pub fn cell(&self, seq: u64) -> Buffer {
        let at = self.attachment.segment.ptr(self.layout.my_cell(seq) + CELL_HEAD, self.inline_bytes());
        // SAFETY: inside the segment, which outlives the collective; every rank has acknowledged what was in the cell (the
        // caller's promise), so no rank reads it now.
        unsafe { Buffer::new(at, self.inline_bytes()) }
    }

    /// Publishes this rank's cell of `seq`, all of it, with whatever is in it.
    #[inline]
    pub fn publish_cell(&self, seq: u64) {
        self.mark_published(self.layout.my_cell(seq), seq, self.inline_bytes() as u64 | PACKED);
        self.prefetch_next(seq);
    }

    /// Fetches the cells that this rank may fill next, if it goes on publishing or if ranks publish in turn: each is on a page of its own. Where two cores are
    /// 0.24 us a line apart (EPYC of family 23) a broadcast of 64 bytes takes a tenth less.
    #[inline(always)]
    fn prefetch_next(&self, seq: u64) {
        for next in [seq + 1, seq + u64::from(self.layout.ranks)] {
            let cell = self.layout.my_cell(next);
            prefetch(std::ptr::from_ref(self.word(cell)).cast());
            prefetch(std::ptr::from_ref(self.word(cell + LINE)).cast());
        }
    }

    /// Publishes address and length of `bytes`, for other ranks to [get](Arena::get) until all have acknowledged `seq`.
    ///
    /// If no other process may read this one's memory (it is not dumpable: prctl(2)), a copy in the segment is published.
    pub fn expose(&self, seq: u64, bytes: &Buffer) {
        let cell = self.layout.my_cell(seq);
        self.mark_exposed(cell, seq, self.reachable(seq, bytes));
    }

    /// `bytes` as other ranks reach them: where they are, or a copy in the segment.
    fn reachable(&self, seq: u64, bytes: &Buffer) -> Remote {
        let copy = if system::is_readable() { None } else { self.copy_into_segment(seq, bytes) };
        copy.unwrap_or_else(|| self.attachment.remote(bytes))
    }

    /// Publishes a range under a sequence number.
    fn mark_exposed(&self, cell: usize, seq: u64, Remote { addr, len, key }: Remote) {
        for (i, word) in [addr, len, key].into_iter().enumerate() {
            self.word(cell + CELL_HEAD + i * 8).store(word, Ordering::Relaxed);
        }
        self.mark_published(cell, seq, len | EXPOSED);
    }

    /// Makes a copy of `bytes` in the segment, to be published under `seq`; `None` if the segment has no room.
    #[cold]
    fn copy_into_segment(&self, seq: u64, bytes: &Buffer) -> Option<Remote> {
        let seq = untagged(seq);
        // All ranks have acknowledged what was published `CELLS` numbers ago, as this rank may use that cell again.
        self.free_copies(|other| other + CELLS <= seq);
        let len = bytes.len();
        let at = pages::alloc(&self.attachment.segment, len, len)?;
        // SAFETY: inside the segment (checked), and just allocated for this rank.
        let copy = unsafe { Buffer::new(self.attachment.segment.ptr(at as usize, len), len) };
        copy.copy_from(0, bytes, bytes.lo(), len);
        let remote = Remote { addr: at, len: len as u64, key: IN_SEGMENT };
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).push((seq, remote));
        Some(remote)
    }

    /// Frees the copies of which `acked` says that all ranks have acknowledged their sequence number.
    fn free_copies(&self, acked: impl Fn(u64) -> bool) {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(seq, copy)| {
            let free = acked(seq);
            if free {
                pages::free(&self.attachment.segment, copy.addr, copy.len as usize);
            }
            !free
        });
    }

    /// Takes back the ranges that this rank exposed or offered under `first` to `last`, although other ranks may be using
    /// them: from now on no [`Arena::get`] of them succeeds, and nothing is [put](Arena::put) there.
    pub fn revoke_exposed(&self, first: u64, last: u64) {
        let mut offers = false;
        for cell in (0..CELLS).map(|number| self.layout.my_cell(number)) {
            let published = (first..=last).contains(&self.word(cell).load(Ordering::Relaxed));
            let len = self.word(cell + 8).load(Ordering::Relaxed);
            if published && len & EXPOSED != 0 {
                // No exposed range has the key 0.
                self.word(cell + CELL_HEAD + 16).store(0, Ordering::Relaxed);
            }
            if published && len & PACKED != 0 {
                self.word(cell + 8).store(len | TAKEN_BACK, Ordering::Relaxed);
                offers = true;
            }
        }
        // With the one in `Attachment::transfer`: who writes sees that, or is seen to write.
        fence(Ordering::SeqCst);
        if offers {
            self.attachment.await_writers();
        }
    }

    /// Offers `range`: says in 24 bytes from byte `at` of this rank's cell of `seq` on where it is, for one other rank to
    /// [take](Arena::take) it, or to [put](Arena::put) a block there, once the [cell is published](Arena::publish_cell).
    ///
    /// If no other process may reach this one's memory, a copy in the segment is offered, and nothing can be put.
    pub fn offer(&self, seq: u64, at: u64, range: &Buffer) {
        let Remote { addr, len, key } = self.reachable(seq, range);
        let words = [addr, len, key].map(u64::to_ne_bytes);
        self.cell(seq).write(at as isize, words.as_flattened());
    }

    /// Copies the range that `rank` has offered by byte `at` of its cell of `seq`, which this rank has [seen](Arena::poll) published.
    /// False: it is not as long as `into`, it was taken back, or this process cannot read that memory.
    pub fn take(&self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        self.use_offer((rank, seq, at), into, Way::Read)
    }

    /// Copies `data` to the range that `rank` has offered by byte `at` of its cell of `seq`, which this rank has
    /// [seen](Arena::poll) published, then publishes nothing under `seq`. If `rank` offers none, that is not possible or the lengths
    /// differ, a copy of `data` is exposed instead.
    pub fn put(&self, rank: u32, seq: u64, at: Option<u64>, data: &Buffer) {
        let cell = self.layout.my_cell(seq);
        if at.is_some_and(|at| self.use_offer((rank, seq, at), data, Way::Write)) {
            return self.mark_published(cell, seq, 0);
        }
        let nowhere = Remote { addr: 0, len: data.len() as u64, key: 0 };
        self.mark_exposed(cell, seq, self.copy_into_segment(seq, data).unwrap_or(nowhere));
    }

    /// Copies from or to an offered range as long; false if that is not possible.
    fn use_offer(&self, (rank, seq, at): (u32, u64, u64), local: &Buffer, way: Way) -> bool {
        let cell = self.layout.cell(rank, seq);
        let valid = || {
            let len = self.word(cell + 8).load(Ordering::Relaxed);
            self.word(cell).load(Ordering::Acquire) == seq && len & (PACKED | TAKEN_BACK) == PACKED
        };
        if !valid() {
            return false;
        }
        // SAFETY: in the range of the segment that `open` has checked; the cell is not written again before this rank
        // acknowledges the sequence number.
        let offers =
            unsafe { Buffer::new(self.attachment.segment.at(cell + CELL_HEAD), self.inline_bytes()) };
        let mut words = [[0; 8]; 3];
        offers.read(at as isize, words.as_flattened_mut());
        let [addr, len, key] = words.map(u64::from_ne_bytes);
        if len != local.len() as u64 {
            return false;
        }
        if key == IN_SEGMENT {
            return way == Way::Read && self.read_copy(addr, 0, local);
        }
        let (peer, local) = (self.peers[rank as usize], std::slice::from_ref(local));
        let remote = Remote { addr, len, key };
        self.attachment.transfer_while(peer, remote, local, way, &valid) == Transfer::Done
    }

    /// Reads a copy in the segment, from some byte on.
    fn read_copy(&self, addr: u64, at: u64, into: &Buffer) -> bool {
        let place = self.attachment.segment.ptr((addr + at) as usize, into.len());
        // SAFETY: inside the segment (checked), and not freed before this rank acknowledges the sequence number.
        let copy = unsafe { Buffer::new(place, into.len()) };
        into.copy_from(into.lo(), &copy, 0, into.len());
        true
    }

    /// What `rank` (maybe this one) published under `seq`; `None` if it has not yet, and unless it is to be seen `at_once`, at the first look, too, where
    /// it has published what is longer or shorter than what was seen of it last. To be called only before this rank acknowledges `seq`.
    #[inline(always)]
    pub fn poll(&self, rank: u32, seq: u64, at_once: bool) -> Option<Published> {
        let [small, large] = self.layout.cells(rank, seq);
        // Acquire, with the Release in `mark_published`: length and bytes are there too.
        let published = |cell: usize| self.word(cell).load(Ordering::Acquire) == seq;
        let unpublished = &self.wake_conditions.unpublished[rank as usize];
        // A rank mostly publishes what is as long as before, and each look takes a cache line and a page: where a rank looks once in a turn, one more costs 3 %.
        let large_last = &self.large_last[rank as usize];
        let likely = large_last.load(Ordering::Relaxed);
        let is_large = if published(if likely { large } else { small }) {
            likely
        } else if (at_once || unpublished.load(Ordering::Relaxed) == seq)
            && published(if likely { small } else { large })
        {
            large_last.store(!likely, Ordering::Relaxed);
            !likely
        } else {
            self.wake_conditions.note(unpublished, seq);
            return None;
        };
        unpublished.store(0, Ordering::Relaxed);
        let cell = if is_large { large } else { small };
        let len = self.word(cell + 8).load(Ordering::Relaxed);
        let body = body_at(len);
        // A root that is ahead has filled the next cell already, with as much, and ranks that had a core before this one have.
        let next = self.layout.cells(rank, seq + 1)[usize::from(is_large)];
        prefetch(std::ptr::from_ref(self.word(next)).cast());
        if body == LINE {
            prefetch(std::ptr::from_ref(self.word(next + LINE)).cast());
        }
        if len & EXPOSED != 0 {
            return Some(Published::Exposed(len & !EXPOSED));
        }
        let len = ((len & !(PACKED | TAKEN_BACK)) as usize).min(self.inline_bytes());
        // SAFETY: in the range of the segment that `open` has checked, and this arena holds the segment; the cell is not
        // written again before this rank acknowledges the sequence number.
        Some(Published::Inline(unsafe { Buffer::new(self.attachment.segment.at(cell + body), len) }))
    }

    /// Copies `into.len()` bytes from offset `at` of what `rank` published under `seq`. False: nothing is published, the
    /// bytes are outside of it, it was taken back, or this process cannot read that memory.
    pub fn get(&self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        let bytes = into.len() as u64;
        let inside = |len: u64| at.checked_add(bytes).is_some_and(|end| end <= len);
        match self.poll(rank, seq, true) {
            Some(Published::Inline(data)) if inside(data.len() as u64) => {
                into.copy_from(into.lo(), &data, at as isize, into.len());
                true
            }
            Some(Published::Exposed(len)) if inside(len) => {
                let body = self.layout.cell(rank, seq) + CELL_HEAD;
                let [addr, key] = [0, 16].map(|i| self.word(body + i).load(Ordering::Relaxed));
                let part = Remote { addr: addr.wrapping_add(at), len: bytes, key };
                if key == IN_SEGMENT {
                    return self.read_copy(addr, at, into);
                }
                let local = std::slice::from_ref(into);
                let valid = || self.word(body + 16).load(Ordering::Relaxed) == key;
                let peer = self.peers[rank as usize];
                self.attachment.transfer_while(peer, part, local, Way::Read, &valid) == Transfer::Done
            }
            _ => false,
        }
    }

    /// Whether this process can read exposed ranges of `rank`. The first call after `rank` has attached really tries it;
    /// `None` before that.
    pub fn can_get(&self, rank: u32) -> Option<bool> {
        self.attachment.test_read(self.peers[rank as usize])
    }

    /// Acknowledges `seq`: this rank is done with everything published up to and including it.
    #[inline(always)]
    pub fn ack(&self, seq: u64) {
        self.word(self.layout.my_cico).store(seq, Ordering::Release);
        self.wake_waiters();
    }

    /// The last sequence number that `rank` (maybe this one) has acknowledged; 0 at first.
    #[inline(always)]
    pub fn acked(&self, rank: u32) -> u64 {
        if rank == self.layout.me {
            return self.word(self.layout.my_cico).load(Ordering::Relaxed);
        }
        // Acquire: that rank's reads of what it acknowledged are over.
        let seq = self.word(self.layout.cico(rank)).load(Ordering::Acquire);
        self.wake_conditions.note(&self.wake_conditions.unacked[rank as usize], seq + 1);
        seq
    }

    /// Marks the sequence numbers `first` to `last` of this rank as void: it gives that collective up, so its
    /// acknowledgement of them does not mean that the work was done. To be called before [`Arena::ack`].
    pub fn void(&self, first: u64, last: u64) {
        let [from, to] = VOID.map(|word| self.word(self.layout.my_cico + word));
        // The void numbers of an earlier collective stay void until all ranks are past them: one behind may still ask.
        let slowest = (0..self.layout.ranks).map(|rank| self.acked(rank)).min();
        if slowest >= Some(to.load(Ordering::Relaxed)) {
            from.store(first, Ordering::Relaxed);
        }
        to.store(last, Ordering::Relaxed);
    }

    /// True if `rank` has acknowledged `seq` because it did the work up to there, and did not [give it up](Arena::void).
    #[inline]
    pub fn reached(&self, rank: u32, seq: u64) -> bool {
        if self.acked(rank) < seq {
            return false;
        }
        // That rank wrote the void numbers before it acknowledged them.
        let [from, to] = VOID.map(|word| self.word(self.layout.cico(rank) + word).load(Ordering::Relaxed));
        !(from..=to).contains(&seq)
    }

    /// Stores length and, last, sequence number of a cell of this rank.
    #[inline(always)]
    fn mark_published(&self, cell: usize, seq: u64, len: u64) {
        self.word(cell + 8).store(len, Ordering::Relaxed);
        self.word(cell).store(seq, Ordering::Release);
        self.wake_waiters();
    }

    /// After a store: wakes the ranks that sleep until this rank does something. If there are none, it is one load from
    /// this rank's own cache line.
    #[inline(always)]
    fn wake_waiters(&self) {
        light_barrier(self.attachment.fences());
        let waiters = self.word(self.layout.my_cico + WAITERS);
        if waiters.load(Ordering::Relaxed) != 0 {
            self.wake_ranks(waiters.swap(0, Ordering::SeqCst));
        }
    }

    #[cold]
    fn wake_ranks(&self, waiters: u64) {
        for (rank, &peer) in self.peers.iter().enumerate() {
            if waiters & waiter_bit(rank as u32) != 0 {
                self.attachment.wake(peer);
            }
        }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an offset that `ArenaLayout` gives for one of the arena's ranks: all those lie in the range that `open`
        // has checked, and are multiples of 8.
        unsafe { self.attachment.segment.word_at(at) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let all = (0..self.layout.ranks).map(|rank| self.acked(rank)).min().unwrap_or(0);
        // A copy that some rank may still read is never freed.
        self.free_copies(|seq| seq <= all);
    }
}

/// Offset in a cell of the bytes that it carries, by its length word: behind the head if they fit into its line, else a line of
/// their own on.
#[inline(always)]
fn body_at(len: u64) -> usize {
    if len & PACKED != 0 || len <= SMALL_BYTES as u64 { CELL_HEAD } else { LINE }
}

/// A sequence number as ranks acknowledge it: without its upper 16 bits, by which those that publish tell calls apart.
fn untagged(seq: u64) -> u64 {
    seq & (u64::MAX >> 16)
}

/// The key of an exposed range whose copy lies in the segment. Keys of ranges in a rank's own memory are odd; 0: taken back.
const IN_SEGMENT: u64 = 2;

fn waiter_bit(rank: u32) -> u64 {
    1 << (rank % 64)
}

/// Offsets, from a CICO buffer's start, of the first and the last void sequence number of its rank. Both are 0 at first,
/// which is no number: sequence numbers count from 1.
const VOID: [usize; 2] = [16, 24];

/// Offset, from a CICO buffer's start, of the word that says which ranks sleep until its rank does something.
const WAITERS: usize = 8;

/// Offsets of an arena, as one of its ranks uses them.
#[derive(Clone, Copy)]
struct ArenaLayout {
    /// Offset of the arena in the segment.
    at: usize,
    me: u32,
    /// Offset of this rank's own CICO buffer.
    my_cico: usize,
    ranks: u32,
    cico_bytes: usize,
    cell_bytes: usize,
}

impl ArenaLayout {
    /// Offset of a rank's CICO buffer, whose first word is the last sequence number that the rank has acknowledged.
    #[inline(always)]
    fn cico(&self, rank: u32) -> usize {
        assert!(rank < self.ranks, "no rank {rank} in an arena of {}", self.ranks);
        self.at + rank as usize * self.cico_bytes
    }

    /// Offset of the word that says which ranks sleep until `rank` does something: a bit per rank (modulo 64).
    #[inline]
    fn waiters(&self, rank: u32) -> usize {
        self.cico(rank) + WAITERS
    }

    #[inline(always)]
    fn cell(&self, rank: u32, seq: u64) -> usize {
        self.cico(rank) + self.cell_in_buffer(seq)
    }

    /// The small cell and the other one in which a rank may publish under a sequence number.
    #[inline(always)]
    fn cells(&self, rank: u32, seq: u64) -> [usize; 2] {
        [small_cell_in_buffer(seq), self.cell_in_buffer(seq)].map(|at| self.cico(rank) + at)
    }

    #[inline(always)]
    fn my_cell(&self, seq: u64) -> usize {
        self.my_cico + self.cell_in_buffer(seq)
    }

    #[inline(always)]
    fn my_small_cell(&self, seq: u64) -> usize {
        self.my_cico + small_cell_in_buffer(seq)
    }

    #[inline(always)]
    fn cell_in_buffer(&self, seq: u64) -> usize {
        CELLS_AT + (seq % CELLS) as usize * self.cell_bytes
    }
}

#[inline(always)]
fn small_cell_in_buffer(seq: u64) -> usize {
    SMALL_CELLS_AT + (seq % SMALL_CELLS) as usize * LINE
}

/// A rank that misses publications of more ranks than this needs them all before it gets anywhere, so it asks only the last
/// [`LAST_RANKS`] of these ranks to wake it: where a thousand ranks start one after the other, each would be woken by each.
const MANY_UNPUBLISHED: usize = 64;
const LAST_RANKS: usize = 8;

/// What this rank last polled for in vain in one arena: it wants to be woken for that when it sleeps.
pub(crate) struct WakeConditions {
    layout: ArenaLayout,
    /// Per rank, the sequence number that it had not published yet; 0: none.
    unpublished: Box<[AtomicU64]>,
    /// Per rank, the least sequence number whose acknowledgement would be news; 0: none.
    unacked: Box<[AtomicU64]>,
    /// 0: all words of both lists are 0.
    any: AtomicU32,
    /// Not 0: something is on the lists that no rank was asked for yet, as it was missed when others had been asked already. A rank does not sleep then.
    unasked: AtomicU32,
}

impl WakeConditions {
    #[inline(always)]
    fn note(&self, what: &AtomicU64, seq: u64) {
        if what.load(Ordering::Relaxed) != seq {
            what.store(seq, Ordering::Relaxed);
            self.any.store(1, Ordering::Relaxed);
            self.unasked.store(1, Ordering::Relaxed);
        }
    }

    /// Asks each rank of which something is missing to wake this one. A barrier and [`WakeConditions::has_news`] follow.
    pub(crate) fn request_wake(&self, segment: &Segment) {
        if self.any.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut left = match self.unpublished.iter().filter(|seq| seq.load(Ordering::Relaxed) != 0).count() {
            0..=MANY_UNPUBLISHED => MANY_UNPUBLISHED,
            _ => LAST_RANKS,
        };
        let mut any = 0;
        for rank in (0..self.layout.ranks).rev() {
            let wanted = |list: &[AtomicU64]| list[rank as usize].load(Ordering::Relaxed) != 0;
            let unpublished = left > 0 && wanted(&self.unpublished);
            left -= usize::from(unpublished);
            if unpublished || wanted(&self.unacked) {
                let waiters = segment.word(self.layout.waiters(rank));
                waiters.fetch_or(waiter_bit(self.layout.me), Ordering::Relaxed);
                any = 1;
            }
        }
        self.any.store(any, Ordering::Relaxed);
        self.unasked.store(0, Ordering::Relaxed);
    }

    /// True if something that was missing has come, which is taken off the lists, or if not all ranks were asked of which something is missing.
    pub(crate) fn has_news(&self, segment: &Segment) -> bool {
        if self.any.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut news = self.unasked.load(Ordering::Relaxed) != 0;
        for rank in 0..self.layout.ranks {
            let (unpublished, unacked) = (&self.unpublished[rank as usize], &self.unacked[rank as usize]);
            let seq = unpublished.load(Ordering::Relaxed);
            let mut cells = self.layout.cells(rank, seq).into_iter();
            if seq != 0 && cells.any(|cell| segment.word(cell).load(Ordering::Acquire) == seq) {
                unpublished.store(0, Ordering::Relaxed);
                news = true;
            }
            let seq = unacked.load(Ordering::Relaxed);
            if seq != 0 && segment.word(self.layout.cico(rank)).load(Ordering::Acquire) >= seq {
                unacked.store(0, Ordering::Relaxed);
                news = true;
            }
        }
        news
    }
}

/// The view that rank `me` has of the arena at offset `at`. What the rank polls for in it in vain ends its sleep when it comes.
pub(crate) fn open(attachment: &Arc<Attachment>, at: u64, me: u32, peers: &[u32]) -> Arena {
    let ranks = peers.len() as u32;
    let (cico_bytes, cell_bytes) = (arena_cico(ranks), cell_bytes(ranks));
    assert!(me < ranks, "no rank {me} in an arena of {ranks}");
    let my_cico = at as usize + me as usize * cico_bytes;
    let layout = ArenaLayout { at: at as usize, me, my_cico, ranks, cico_bytes, cell_bytes };
    // Checks, once, the range and (its words are used as atomics) the alignment.
    assert!(layout.at.is_multiple_of(LINE), "an arena at offset {at}, which is not aligned to {LINE}");
    attachment.segment.ptr(layout.at, arena_stride(ranks));
    let words = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
    let wake_conditions = Arc::new(WakeConditions {
        layout,
        unpublished: words(),
        unacked: words(),
        any: AtomicU32::new(0),
        unasked: AtomicU32::new(0),
    });
    let mut all = attachment.wake_conditions();
    all.retain(|other| other.strong_count() > 0);
    all.push(Arc::downgrade(&wake_conditions));
    drop(all);
    Arena {
        attachment: attachment.clone(),
        layout,
        inline_bytes: arena_inline(ranks),
        peers: peers.into(),
        wake_conditions,
        large_last: peers.iter().map(|_| AtomicBool::new(false)).collect(),
        copies: Mutex::default(),
    }
}

/// Calls [`WakeConditions::request_wake`] for each arena in use.
pub(crate) fn request_wakes(attachment: &Attachment) {
    attachment
        .wake_conditions()
        .iter()
        .filter_map(Weak::upgrade)
        .for_each(|conditions| conditions.request_wake(&attachment.segment));
}

/// True if any arena in use [has news](WakeConditions::has_news).
pub(crate) fn any_news(attachment: &Attachment) -> bool {
    attachment
        .wake_conditions()
        .iter()
        .filter_map(Weak::upgrade)
        .any(|conditions| conditions.has_news(&attachment.segment))
}
