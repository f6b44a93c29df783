//! Slots that the ranks of a communicator share: what one publishes, all look at in place.
//!
//! A rank's slot is a line of its own words (up to which stamp it has released; who sleeps until it does
//! something) and some banks, used in turn. A bank starts with its stamp, stored
//! last (Release), so a small publication is one line. See `Slots` of the collectives for the rules.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use banyan_memory::Buffer;
use banyan_transport::{Get, Remote};

use crate::core::Core;
use crate::doorbell::light_barrier;
use crate::layout::{BANK_HEAD, BANKS, arena_board, arena_inline, arena_slot, arena_stride, bank_bytes};
use crate::ring::LINE;
use crate::room;
use crate::segment::{Segment, prefetch};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::system;

/// In a bank's length word: the bytes are elsewhere, and the bank holds address, length and key.
const REGION: u64 = 1 << 63;

/// What a rank published.
#[derive(Debug)]
pub enum Published {
    /// The bytes, in shared memory: to be read until this rank releases the stamp, and never written.
    Inline(Buffer),
    /// That many bytes in the publisher's memory, to be [pulled](Arena::pull).
    Region(u64),
}

/// One rank's view of the slots of a communicator. See [`Shm::arena`](crate::Shm::arena).
pub struct Arena {
    core: Arc<Core>,
    place: Place,
    inline_bytes: usize,
    /// Local index of each rank.
    peers: Box<[u32]>,
    watch: Arc<Watch>,
    /// Regions of this rank that lie in the room, with their stamps.
    copies: Mutex<Vec<(u64, Remote)>>,
}

impl Arena {
    /// Banks of a slot.
    pub const BANKS: u64 = crate::layout::BANKS;

    /// Bytes that one publication can carry inline.
    #[inline]
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Bytes of the board.
    pub fn board_bytes(&self) -> usize {
        Arena::sizes(self.place.ranks).1
    }

    /// Of an arena of `ranks` ranks: bytes that one publication can carry inline, and bytes of the board.
    pub fn sizes(ranks: u32) -> (usize, usize) {
        (arena_inline(ranks), arena_stride(ranks) - arena_board(ranks))
    }

    /// Memory that all ranks of the arena share besides the slots: who may touch what, and when, is for them to
    /// agree on, by what they release.
    pub fn board(&self) -> Buffer {
        let at = self.place.at + arena_board(self.place.ranks);
        let board = self.core.segment.ptr(at, self.board_bytes());
        // SAFETY: inside the segment, which outlives the collective that uses the board; of the arena alone.
        unsafe { Buffer::new(board, self.board_bytes()) }
    }

    /// Copies `bytes` (at most [`Arena::inline_bytes`]) into my bank of `stamp` (from 1), then stamps it.
    pub fn publish(&self, stamp: u64, bytes: &Buffer) {
        self.publish_part(stamp, bytes, bytes.lo(), bytes.len());
    }

    /// The same with `len` bytes from offset `at` of `bytes`.
    #[inline(always)]
    pub fn publish_part(&self, stamp: u64, bytes: &Buffer, at: isize, len: usize) {
        assert!(len <= self.inline_bytes(), "{len} bytes do not fit into a bank");
        let bank = self.place.my_bank(stamp);
        // SAFETY: the bank has room for `len` and lies in the range that `open` has checked; every rank has released what
        // was in it (the caller's promise), so no one reads it now.
        let to = unsafe { Buffer::new(self.core.segment.at(bank + BANK_HEAD), len) };
        to.copy_from(0, bytes, at, len);
        self.stamp(bank, stamp, len as u64);
    }

    /// My bank of `stamp`, to be filled before [`Arena::publish_bank`].
    #[inline]
    pub fn bank(&self, stamp: u64) -> Buffer {
        let at = self.core.segment.ptr(self.place.my_bank(stamp) + BANK_HEAD, self.inline_bytes());
        // SAFETY: inside the segment, which outlives the collective; every rank has released what was in it (the
        // caller's promise), so no one reads it now.
        unsafe { Buffer::new(at, self.inline_bytes()) }
    }

    /// Stamps my bank of `stamp` with whatever is in it.
    #[inline]
    pub fn publish_bank(&self, stamp: u64) {
        self.stamp(self.place.my_bank(stamp), stamp, self.inline_bytes() as u64);
    }

    /// Publishes address and length of `bytes`, for others to [pull](Arena::pull) until all released `stamp`.
    ///
    /// If no other process may read this one's memory (it is not dumpable: prctl(2)), a copy is published that lies in the room.
    pub fn publish_region(&self, stamp: u64, bytes: &Buffer) {
        let bank = self.place.my_bank(stamp);
        let copy = if system::is_readable() { None } else { self.copy_of(stamp, bytes) };
        let Remote { addr, len, key } = copy.unwrap_or_else(|| self.core.remote(bytes));
        for (i, word) in [addr, len, key].into_iter().enumerate() {
            self.word(bank + BANK_HEAD + i * 8).store(word, Ordering::Relaxed);
        }
        self.stamp(bank, stamp, len | REGION);
    }

    /// A copy of `bytes` in the room, to be published under `stamp`; `None` if there is no room.
    #[cold]
    fn copy_of(&self, stamp: u64, bytes: &Buffer) -> Option<Remote> {
        // Whoever uses a bank again may: all have released what was in it.
        self.free_copies(|other| other + BANKS <= stamp);
        let len = bytes.len();
        let at = room::take(&self.core.segment, len, len)?;
        // SAFETY: inside the segment (checked), and just taken for this rank.
        let copy = unsafe { Buffer::new(self.core.segment.ptr(at as usize, len), len) };
        copy.copy_from(0, bytes, bytes.lo(), len);
        let remote = Remote { addr: at, len: len as u64, key: IN_ROOM };
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).push((stamp, remote));
        Some(remote)
    }

    /// Frees the copies whose stamps all ranks have `released`.
    fn free_copies(&self, released: impl Fn(u64) -> bool) {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(stamp, copy)| {
            let free = released(stamp);
            if free {
                room::give(&self.core.segment, copy.addr, copy.len as usize);
            }
            !free
        });
    }

    /// Takes back the regions that this rank published under `first` to `last`, although others may be pulling them: from
    /// now on no pull of them succeeds.
    pub fn revoke_regions(&self, first: u64, last: u64) {
        for stamp in first.max((last + 1).saturating_sub(BANKS))..=last {
            let bank = self.place.my_bank(stamp);
            let published = self.word(bank).load(Ordering::Relaxed) == stamp;
            if published && self.word(bank + 8).load(Ordering::Relaxed) & REGION != 0 {
                // No key is even.
                self.word(bank + BANK_HEAD + 16).store(0, Ordering::Relaxed);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// What `rank` (maybe this one) published under `stamp`; `None` if it has not yet. To be asked only
    /// before this rank releases `stamp`.
    #[inline(always)]
    pub fn look(&self, rank: u32, stamp: u64) -> Option<Published> {
        let bank = self.place.bank(rank, stamp);
        // Acquire, with the Release in `stamp`: length and bytes are there too.
        if self.word(bank).load(Ordering::Acquire) != stamp {
            self.watch.miss(&self.watch.missing[rank as usize], stamp);
            return None;
        }
        self.watch.missing[rank as usize].store(0, Ordering::Relaxed);
        // A root that is ahead has filled the next one already.
        prefetch(std::ptr::from_ref(self.word(self.place.bank(rank, stamp + 1))).cast());
        let len = self.word(bank + 8).load(Ordering::Relaxed);
        if len & REGION != 0 {
            return Some(Published::Region(len & !REGION));
        }
        let len = (len as usize).min(self.inline_bytes());
        // SAFETY: in the range that `open` has checked of the segment, which this arena holds; not written again before this
        // rank releases the stamp.
        Some(Published::Inline(unsafe { Buffer::new(self.core.segment.at(bank + BANK_HEAD), len) }))
    }

    /// Copies `into.len()` bytes from offset `at` of what `rank` published under `stamp`. False: refused
    /// (not published, outside, or that memory cannot be read from here).
    pub fn pull(&self, rank: u32, stamp: u64, at: u64, into: &Buffer) -> bool {
        let bytes = into.len() as u64;
        let inside = |len: u64| at.checked_add(bytes).is_some_and(|end| end <= len);
        match self.look(rank, stamp) {
            Some(Published::Inline(data)) if inside(data.len() as u64) => {
                into.copy_from(into.lo(), &data, at as isize, into.len());
                true
            }
            Some(Published::Region(len)) if inside(len) => {
                let body = self.place.bank(rank, stamp) + BANK_HEAD;
                let [addr, key] = [0, 16].map(|i| self.word(body + i).load(Ordering::Relaxed));
                let part = Remote { addr: addr.wrapping_add(at), len: bytes, key };
                if key == IN_ROOM {
                    // SAFETY: inside the segment (checked), and not given back before this rank releases the stamp.
                    let copy = unsafe {
                        Buffer::new(self.core.segment.ptr(part.addr as usize, into.len()), into.len())
                    };
                    into.copy_from(into.lo(), &copy, 0, into.len());
                    return true;
                }
                // Looked at again as `Core::read` does: it may have been taken back meanwhile.
                self.core.read(self.peers[rank as usize], part, into) == Get::Done
                    && self.word(body + 16).load(Ordering::Relaxed) == key
            }
            _ => false,
        }
    }

    /// Whether regions that `rank` publishes can be pulled: really tried, on the first call after `rank` has
    /// attached; `None` before that.
    pub fn can_pull(&self, rank: u32) -> Option<bool> {
        self.core.try_reach(self.peers[rank as usize])
    }

    /// This rank is done with everything published up to and including `stamp`.
    #[inline(always)]
    pub fn release(&self, stamp: u64) {
        self.word(self.place.mine).store(stamp, Ordering::Release);
        self.tell();
    }

    /// Up to which stamp `rank` (maybe this one) has released; 0 at first.
    #[inline(always)]
    pub fn released(&self, rank: u32) -> u64 {
        if rank == self.place.me {
            return self.word(self.place.mine).load(Ordering::Relaxed);
        }
        // Acquire: its reads of what it released are over.
        let stamp = self.word(self.place.own(rank)).load(Ordering::Acquire);
        self.watch.miss(&self.watch.unreleased[rank as usize], stamp + 1);
        stamp
    }

    /// What this rank releases from `first` to `last` does not say that it has got there: it has given up. Before the release.
    pub fn void(&self, first: u64, last: u64) {
        let [from, to] = VOID.map(|word| self.word(self.place.mine + word));
        // Who is still there has not seen that of a call before.
        let slowest = (0..self.place.ranks).map(|rank| self.released(rank)).min();
        if slowest >= Some(to.load(Ordering::Relaxed)) {
            from.store(first, Ordering::Relaxed);
        }
        to.store(last, Ordering::Relaxed);
    }

    /// True if `rank` has released `stamp` because it got there.
    #[inline]
    pub fn reached(&self, rank: u32, stamp: u64) -> bool {
        if self.released(rank) < stamp {
            return false;
        }
        // Written before what was released.
        let [from, to] = VOID.map(|word| self.word(self.place.own(rank) + word).load(Ordering::Relaxed));
        !(from..=to).contains(&stamp)
    }

    #[inline(always)]
    fn stamp(&self, bank: usize, stamp: u64, len: u64) {
        self.word(bank + 8).store(len, Ordering::Relaxed);
        self.word(bank).store(stamp, Ordering::Release);
        self.tell();
    }

    /// After a store: wakes who sleeps until this rank does something. One look at a line of our own if
    /// no one does.
    #[inline(always)]
    fn tell(&self) {
        light_barrier(self.core.fences());
        let waiters = self.word(self.place.mine + WAITERS);
        if waiters.load(Ordering::Relaxed) != 0 {
            self.wake(waiters.swap(0, Ordering::SeqCst));
        }
    }

    #[cold]
    fn wake(&self, waiters: u64) {
        for (rank, &peer) in self.peers.iter().enumerate() {
            if waiters & waiter_bit(rank as u32) != 0 {
                self.core.wake(peer);
            }
        }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an offset that `Place` gives for one of the arena's ranks: all those lie in the range that `open`
        // has checked, and are multiples of 8.
        unsafe { self.core.segment.word_at(at) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let all = (0..self.place.ranks).map(|rank| self.released(rank)).min().unwrap_or(0);
        // What somebody may still look at is left there.
        self.free_copies(|stamp| stamp <= all);
    }
}

/// The key of a region that lies in the room: keys of regions elsewhere are odd, and 0 is taken back.
const IN_ROOM: u64 = 2;

fn waiter_bit(rank: u32) -> u64 {
    1 << (rank % 64)
}

/// From a slot's start to the first and the last stamp that its rank gave up; at first none: stamps count from 1.
const VOID: [usize; 2] = [16, 24];

/// From a slot's start to the word that says who sleeps until its rank does something.
const WAITERS: usize = 8;

/// Where an arena is, and whose view this is.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    me: u32,
    /// Offset of this rank's own slot.
    mine: usize,
    ranks: u32,
    slot_bytes: usize,
    bank_bytes: usize,
}

impl Place {
    /// Offset of a rank's slot, which starts with its word "released".
    #[inline(always)]
    fn own(&self, rank: u32) -> usize {
        assert!(rank < self.ranks, "no rank {rank} in an arena of {}", self.ranks);
        self.at + rank as usize * self.slot_bytes
    }

    /// The word that says who sleeps until this rank does something: a bit per rank (modulo 64).
    #[inline]
    fn waiters(&self, rank: u32) -> usize {
        self.own(rank) + WAITERS
    }

    #[inline(always)]
    fn bank(&self, rank: u32, stamp: u64) -> usize {
        self.own(rank) + self.bank_in_slot(stamp)
    }

    #[inline(always)]
    fn my_bank(&self, stamp: u64) -> usize {
        self.mine + self.bank_in_slot(stamp)
    }

    #[inline(always)]
    fn bank_in_slot(&self, stamp: u64) -> usize {
        LINE + (stamp % BANKS) as usize * self.bank_bytes
    }
}

/// Who misses publications of more ranks than this needs them all before it gets anywhere, and asks only the last few
/// ([`LAST`]) of these ranks to wake it: where a thousand start one after the other, each would be woken by each.
const MANY: usize = 64;
const LAST: usize = 8;

/// What this rank found missing when it last looked: what it should be woken for when it sleeps.
pub(crate) struct Watch {
    place: Place,
    /// Per rank, the stamp that was not published yet; 0: none.
    missing: Box<[AtomicU64]>,
    /// Per rank, the least stamp whose release would be news; 0: none.
    unreleased: Box<[AtomicU64]>,
    any: AtomicU32,
}

impl Watch {
    #[inline(always)]
    fn miss(&self, what: &AtomicU64, stamp: u64) {
        what.store(stamp, Ordering::Relaxed);
        self.any.store(1, Ordering::Relaxed);
    }

    /// Asks to be woken by whoever something is missing from. A barrier and [`Watch::has_news`] follow.
    pub(crate) fn mark(&self, segment: &Segment) {
        if self.any.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut left = match self.missing.iter().filter(|stamp| stamp.load(Ordering::Relaxed) != 0).count() {
            0..=MANY => MANY,
            _ => LAST,
        };
        let mut any = 0;
        for rank in (0..self.place.ranks).rev() {
            let wanted = |list: &[AtomicU64]| list[rank as usize].load(Ordering::Relaxed) != 0;
            let missing = left > 0 && wanted(&self.missing);
            left -= usize::from(missing);
            if missing || wanted(&self.unreleased) {
                let waiters = segment.word(self.place.waiters(rank));
                waiters.fetch_or(waiter_bit(self.place.me), Ordering::Relaxed);
                any = 1;
            }
        }
        self.any.store(any, Ordering::Relaxed);
    }

    /// Something that was missing has come. It is not missing any more.
    pub(crate) fn has_news(&self, segment: &Segment) -> bool {
        if self.any.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut news = false;
        for rank in 0..self.place.ranks {
            let (missing, unreleased) = (&self.missing[rank as usize], &self.unreleased[rank as usize]);
            let stamp = missing.load(Ordering::Relaxed);
            if stamp != 0 && segment.word(self.place.bank(rank, stamp)).load(Ordering::Acquire) == stamp {
                missing.store(0, Ordering::Relaxed);
                news = true;
            }
            let stamp = unreleased.load(Ordering::Relaxed);
            if stamp != 0 && segment.word(self.place.own(rank)).load(Ordering::Acquire) >= stamp {
                unreleased.store(0, Ordering::Relaxed);
                news = true;
            }
        }
        news
    }
}

/// The view of rank `me` of an arena of `ranks` at offset `at`; its failed looks count when the rank sleeps.
pub(crate) fn open(core: &Arc<Core>, at: u64, me: u32, peers: &[u32]) -> Arena {
    let ranks = peers.len() as u32;
    let (slot_bytes, bank_bytes) = (arena_slot(ranks), bank_bytes(ranks));
    assert!(me < ranks, "no rank {me} in an arena of {ranks}");
    let mine = at as usize + me as usize * slot_bytes;
    let place = Place { at: at as usize, me, mine, ranks, slot_bytes, bank_bytes };
    // Checks the range and, as its words are used as atomics, the alignment, once.
    assert!(place.at.is_multiple_of(LINE), "slots at {at}, which is no place for them");
    core.segment.ptr(place.at, arena_stride(ranks));
    let words = || (0..ranks).map(|_| AtomicU64::new(0)).collect();
    let watch = Arc::new(Watch { place, missing: words(), unreleased: words(), any: AtomicU32::new(0) });
    let mut watches = core.watches();
    watches.retain(|other| other.strong_count() > 0);
    watches.push(Arc::downgrade(&watch));
    drop(watches);
    Arena {
        core: core.clone(),
        place,
        inline_bytes: arena_inline(ranks),
        peers: peers.into(),
        watch,
        copies: Mutex::default(),
    }
}

/// Marks all live watches; see [`Watch::mark`].
pub(crate) fn mark_all(core: &Core) {
    core.watches().iter().filter_map(Weak::upgrade).for_each(|watch| watch.mark(&core.segment));
}

/// True if any live watch has news.
pub(crate) fn any_news(core: &Core) -> bool {
    core.watches().iter().filter_map(Weak::upgrade).any(|watch| watch.has_news(&core.segment))
}
