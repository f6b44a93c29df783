//! One ring: frames from one sender to one receiver, in order, without locks.
//!
//! A frame is a *slot* of one cache line: a word, the head and up to [`INLINE`] bytes of body. The sender
//! fills the line and stores the word last (Release); the receiver sees the word it expects next (Acquire)
//! and reads the rest. The word counts frames, so a slot need not be cleared: the receiver never writes
//! there, and a small message moves one line from core to core. Larger bodies lie in the *data ring*; both
//! sides compute from the length where. What was consumed is told lazily, on a line of its own.
//!
//! The algorithm is generic over [`Memory`], so that loom checks the very code that runs.

use crate::doorbell::light_barrier;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes of an encoded head.
pub(crate) const HEAD: usize = banyan_transport::Head::BYTES;
/// Body bytes that fit into a slot, beside the word and the head.
pub(crate) const INLINE: usize = LINE - 8 - HEAD;
/// A cache line.
pub(crate) const LINE: usize = 64;

/// So many slots ahead the receiver asks for the line of a frame: it comes while the frames before are dealt with.
const AHEAD: u32 = 3;

/// What both sides of a ring tell each other beside frames. All zero is a new ring.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Control {
    /// Written by the receiver.
    pub(crate) receiver: ReceiverLine,
    /// Written by the sender.
    pub(crate) sender: SenderLine,
}

/// The receiver's line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct ReceiverLine {
    /// Frames taken, as far as told.
    pub(crate) taken: AtomicU64,
    /// Position in the data ring up to which bytes may be overwritten, as far as told.
    pub(crate) freed: AtomicU64,
}

/// The sender's line, and what it looks at with each frame: that must not lie where the receiver tells of each batch.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct SenderLine {
    /// 1: the sender sleeps, or is about to, and wants to be woken when there is room.
    pub(crate) starved: AtomicU32,
    /// Frames sent, left here for the sender's next instance.
    pub(crate) sent: AtomicU64,
    /// Position in the data ring, likewise.
    pub(crate) data: AtomicU64,
    /// Written by the receiver. 1: it polls this ring; 0: it has to be told by its inbound bitmap.
    pub(crate) hot: AtomicU32,
}

/// Where a ring lives. Slots and data are touched only by the side whose turn it is.
pub(crate) trait Memory {
    /// Number of slots.
    fn slots(&self) -> u32;
    /// Bytes of the data ring, a power of two and a multiple of [`LINE`].
    fn data_bytes(&self) -> u64;
    /// The shared control lines.
    fn control(&self) -> &Control;
    /// The word of a slot.
    fn word(&self, slot: u32) -> &AtomicU64;
    /// Lends the `LINE - 8` bytes of a slot behind its word, to write.
    ///
    /// # Safety
    /// It is the sender's turn on this slot.
    unsafe fn fill_slot(&self, slot: u32, f: impl FnOnce(*mut u8));
    /// Lends the same bytes, to read.
    ///
    /// # Safety
    /// It is the receiver's turn on this slot.
    unsafe fn read_slot<R>(&self, slot: u32, f: impl FnOnce(*const u8) -> R) -> R;
    /// The receiver will read this slot before long: a hint, which may come before its turn.
    fn expect(&self, slot: u32);
    /// Lends `len` bytes of the data ring at `at`, to write.
    ///
    /// # Safety
    /// They lie inside, and it is the sender's turn on them.
    unsafe fn fill_data(&self, at: u64, len: usize, f: impl FnOnce(*mut u8));
    /// Lends the same bytes, to read.
    ///
    /// # Safety
    /// They lie inside, and it is the receiver's turn on them.
    unsafe fn read_data<R>(&self, at: u64, len: usize, f: impl FnOnce(*const u8) -> R) -> R;
}

/// Largest body for a data ring of so many bytes: with a quarter not told yet, and as much lost at the
/// end of the ring, it still fits.
pub(crate) const fn max_body(data_bytes: u64) -> usize {
    (data_bytes / 4) as usize
}

/// Where a body of `len` bytes goes if the data ring is at `cursor`: (start, end). Never across the end.
fn place(cursor: u64, len: usize, data_bytes: u64) -> (u64, u64) {
    let need = len.next_multiple_of(LINE) as u64;
    let left = data_bytes - (cursor & (data_bytes - 1));
    let start = if need > left { cursor + left } else { cursor };
    (start, start + need)
}

/// The word of frame number `number` (counted from 0), with its body length.
fn word(number: u64, len: usize) -> u64 {
    u64::from((number as u32).wrapping_add(1)) | (len as u64) << 32
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    /// Frames sent.
    sent: u64,
    /// Frames that may be sent before `taken` must be read again.
    limit: u64,
    slot: u32,
    /// The last send was refused; and the receiver is asked to wake us.
    starved: bool,
    asked: bool,
    /// Position in the data ring, and how far it may go.
    data: u64,
    data_limit: u64,
}

impl<M: Memory> Producer<M> {
    /// Takes the sender's side; frames start at slot `start` (which only spreads rings over cache sets).
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (sent, data) = {
            let line = &memory.control().sender;
            (line.sent.load(Ordering::Relaxed), line.data.load(Ordering::Relaxed))
        };
        let slot = slot_of(sent, start, memory.slots());
        let (starved, asked) = (false, false);
        let mut ring = Self { memory, sent, limit: sent, slot, starved, asked, data, data_limit: data };
        ring.refresh();
        ring
    }

    /// Sends a frame with a body of at most [`INLINE`] bytes; false if there is no room.
    #[inline(always)]
    pub(crate) fn push_short(&mut self, head: &[u8; HEAD], body: &[u8]) -> bool {
        assert!(body.len() <= INLINE, "{} bytes are not short", body.len());
        if self.sent == self.limit && !self.has_slot() {
            return false;
        }
        // SAFETY: `sent < limit`: the receiver has taken what was in this slot, and looks at it again only
        // after `publish`. A slot has room for the head and INLINE bytes.
        unsafe {
            self.memory.fill_slot(self.slot, |to| {
                std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD);
                copy_short(body, to.add(HEAD));
            });
        }
        self.publish(body.len());
        true
    }

    /// Sends a frame whose body of `len` bytes `fill` writes; false, and `fill` not called, without room.
    pub(crate) fn push(&mut self, head: &[u8; HEAD], len: usize, fill: &mut dyn FnMut(&mut [u8])) -> bool {
        if len <= INLINE {
            if self.sent == self.limit && !self.has_slot() {
                return false;
            }
            let mut body = [0; INLINE];
            fill(&mut body[..len]);
            return self.push_short(head, &body[..len]);
        }
        assert!(len <= max_body(self.memory.data_bytes()), "{len} bytes are too many for one frame");
        let (start, end) = place(self.data, len, self.memory.data_bytes());
        if (self.sent == self.limit || end > self.data_limit) && !self.has_room(end) {
            return false;
        }
        let at = start & (self.memory.data_bytes() - 1);
        // SAFETY: `place` keeps the range inside; `end <= data_limit` says that the receiver is done with it.
        unsafe {
            self.memory.fill_data(at, len, |to| fill(std::slice::from_raw_parts_mut(to, len)));
            self.memory.fill_slot(self.slot, |to| std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD));
        }
        self.data = end;
        self.publish(len);
        true
    }

    #[inline(always)]
    fn publish(&mut self, len: usize) {
        // Release: whoever sees the word (Acquire in `Consumer::ready`) sees head and body.
        self.memory.word(self.slot).store(word(self.sent, len), Ordering::Release);
        self.sent += 1;
        self.slot += 1;
        if self.slot == self.memory.slots() {
            self.slot = 0;
        }
        self.starved = false;
        if self.asked {
            self.asked = false;
            self.memory.control().sender.starved.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn has_slot(&mut self) -> bool {
        self.has_room(self.data)
    }

    #[cold]
    fn has_room(&mut self, end: u64) -> bool {
        self.refresh();
        self.starved = !(self.sent < self.limit && end <= self.data_limit);
        !self.starved
    }

    fn refresh(&mut self) {
        let line = &self.memory.control().receiver;
        // Acquire, with the Release in `Consumer::tell`: the receiver has read what we may overwrite now.
        self.limit = line.taken.load(Ordering::Acquire).wrapping_add(u64::from(self.memory.slots()));
        self.data_limit = line.freed.load(Ordering::Acquire).wrapping_add(self.memory.data_bytes());
    }

    /// A send was refused, and room has been made since.
    pub(crate) fn has_news(&self) -> bool {
        let line = &self.memory.control().receiver;
        self.starved
            && (line.taken.load(Ordering::Acquire).wrapping_add(u64::from(self.memory.slots())) != self.limit
                || line.freed.load(Ordering::Acquire).wrapping_add(self.memory.data_bytes())
                    != self.data_limit)
    }

    /// The last send was refused.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Who is refused and goes to sleep asks to be woken when there is room. A barrier and
    /// [`Producer::has_news`] follow. Only then: a line that both write at every turn is slow.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
        self.memory.control().sender.starved.store(1, Ordering::Relaxed);
    }

    /// Whether the receiver polls this ring without being told.
    #[inline]
    pub(crate) fn is_hot(&self) -> bool {
        self.memory.control().sender.hot.load(Ordering::Relaxed) == 1
    }

    /// How far into the data ring a body of `len` bytes would reach if sent now.
    pub(crate) fn reach(&self, len: usize) -> u64 {
        let (start, _) = place(self.data, len, self.memory.data_bytes());
        (start & (self.memory.data_bytes() - 1)) + len as u64
    }

    /// Leaves the position behind for a later `Producer` of the same ring.
    pub(crate) fn save(&self) {
        let line = &self.memory.control().sender;
        line.sent.store(self.sent, Ordering::Relaxed);
        line.data.store(self.data, Ordering::Relaxed);
    }
}

/// A frame that cannot have been written by a sender that keeps to the rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// The receiving side.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    /// Frames taken, and how many of them the sender was told of.
    taken: u64,
    told: u64,
    slot: u32,
    /// Position in the data ring, and what was told of it.
    data: u64,
    data_told: u64,
}

impl<M: Memory> Consumer<M> {
    /// Takes the receiver's side; `start` as given to the producer.
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (taken, data) = {
            let line = &memory.control().receiver;
            (line.taken.load(Ordering::Relaxed), line.freed.load(Ordering::Relaxed))
        };
        let slot = slot_of(taken, start, memory.slots());
        Self { memory, taken, told: taken, slot, data, data_told: data }
    }

    /// A frame is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        let seen = self.memory.word(self.slot).load(Ordering::Acquire);
        seen as u32 == (self.taken as u32).wrapping_add(1)
    }

    /// Hands the next frame, if there is one, to `f`: head and body, valid during the call.
    #[inline(always)]
    pub(crate) fn take(&mut self, f: impl FnOnce(&[u8; HEAD], &[u8])) -> Result<bool, Corrupt> {
        let seen = self.memory.word(self.slot).load(Ordering::Acquire);
        if seen as u32 != (self.taken as u32).wrapping_add(1) {
            return Ok(false);
        }
        let ahead = self.slot + AHEAD;
        self.memory.expect(if ahead < self.memory.slots() { ahead } else { ahead - self.memory.slots() });
        let len = (seen >> 32) as usize;
        if len <= INLINE {
            self.take_short(len, f);
        } else {
            self.take_long(len, f)?;
        }
        self.taken += 1;
        self.slot += 1;
        if self.slot == self.memory.slots() {
            self.slot = 0;
        }
        Ok(true)
    }

    #[inline(always)]
    fn take_short(&mut self, len: usize, f: impl FnOnce(&[u8; HEAD], &[u8])) {
        // SAFETY: the word says that this slot is filled; the sender does not touch it until it is told
        // that it was taken. `len <= INLINE`.
        unsafe {
            self.memory.read_slot(self.slot, |from| {
                f(&*from.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(from.add(HEAD), len));
            });
        }
    }

    #[inline(never)]
    fn take_long(&mut self, len: usize, f: impl FnOnce(&[u8; HEAD], &[u8])) -> Result<(), Corrupt> {
        if len > max_body(self.memory.data_bytes()) {
            return Err(Corrupt);
        }
        let (start, end) = place(self.data, len, self.memory.data_bytes());
        let at = start & (self.memory.data_bytes() - 1);
        // SAFETY: as in `take_short`; `place` keeps the range inside, `len` is checked.
        unsafe {
            self.memory.read_slot(self.slot, |head| {
                self.memory.read_data(at, len, |body| {
                    f(&*head.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(body, len));
                });
            });
        }
        self.data = end;
        Ok(())
    }

    /// Tells the sender what was taken, if that has become a quarter of the ring; true if it sleeps until
    /// then. `fences` as for [`light_barrier`].
    #[inline]
    pub(crate) fn tell_some(&mut self, fences: bool) -> bool {
        let enough = self.taken - self.told >= u64::from(self.memory.slots() / 4).max(1)
            || self.data - self.data_told >= self.memory.data_bytes() / 4;
        enough && self.tell(fences)
    }

    /// Tells the sender all that was taken; true if it sleeps until then.
    #[cold]
    pub(crate) fn tell(&mut self, fences: bool) -> bool {
        let line = &self.memory.control().receiver;
        // Release, with the Acquire in `Producer::refresh`.
        line.freed.store(self.data, Ordering::Release);
        line.taken.store(self.taken, Ordering::Release);
        (self.told, self.data_told) = (self.taken, self.data);
        // Either this barrier comes first and we see `starved`, or that of the sender that goes to sleep
        // does, and it sees what we told (`Producer::has_news`).
        light_barrier(fences);
        self.memory.control().sender.starved.load(Ordering::Relaxed) == 1
    }

    /// Says whether this ring is polled without being told of.
    pub(crate) fn set_hot(&self, hot: bool) {
        self.memory.control().sender.hot.store(u32::from(hot), Ordering::Relaxed);
    }
}

fn slot_of(count: u64, start: u32, slots: u32) -> u32 {
    ((count + u64::from(start)) % u64::from(slots)) as u32
}

/// Copies up to [`INLINE`] bytes; the usual sizes without a call.
///
/// # Safety
/// `to` is valid for `body.len()` bytes, apart from `body`.
#[inline]
unsafe fn copy_short(body: &[u8], to: *mut u8) {
    // SAFETY: lengths are what is matched on; the rest is the caller's promise.
    unsafe {
        match body.len() {
            0 => {}
            4 => to.cast::<[u8; 4]>().write(*body.as_ptr().cast()),
            8 => to.cast::<[u8; 8]>().write(*body.as_ptr().cast()),
            n => std::ptr::copy_nonoverlapping(body.as_ptr(), to, n),
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
