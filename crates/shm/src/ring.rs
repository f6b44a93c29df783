//! One ring: frames from one sender to one receiver, in order, without locks.
//!
//! A frame takes one *element*, a cache line: a word, the head and up to [`INLINE`] bytes of body. The sender
//! fills the line and stores the word last (Release); the receiver sees the word that it expects next (Acquire)
//! and reads the rest. The word counts frames, so an element need not be cleared: the receiver never writes
//! there, and a small message moves one line from core to core. Larger bodies lie in the *data ring*; both
//! sides compute from the length where. Or they lie in a block that the sender hands over with the frame (`swap.rs`).
//! The receiver acknowledges what it has consumed lazily, on a line of its own.
//!
//! The algorithm is generic over [`RingMemory`], so that loom checks the very code that runs.

use crate::doorbell::light_barrier;
use crate::swap::{BlockMemory, Swap};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes of an encoded head.
pub(crate) const HEAD: usize = banyan_transport::Head::BYTES;
/// Body bytes that fit into an element, beside the word and the head.
pub(crate) const INLINE: usize = LINE - 8 - HEAD;
/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// How many elements ahead the receiver prefetches: the line comes while the frames before it are handled.
const PREFETCH_AHEAD: u32 = 3;

/// What both sides of a ring tell each other beside frames. All zero: the ring is new.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Control {
    /// Written by the receiver.
    pub(crate) receiver: ReceiverLine,
    /// Written by the sender.
    pub(crate) sender: SenderLine,
}

/// The cache line that the receiver writes.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct ReceiverLine {
    /// Number of frames consumed, as far as acknowledged.
    pub(crate) acked: AtomicU64,
    /// Position in the data ring up to which the sender may overwrite bytes, as far as acknowledged.
    pub(crate) data_acked: AtomicU64,
    /// The swap blocks that the receiver holds, left here for its next instance: see [`crate::swap`].
    pub(crate) blocks: AtomicU32,
}

/// The cache line that the sender writes, and what it reads with each frame: that must not share a line with what the
/// receiver writes at each acknowledgement.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct SenderLine {
    /// 1: the sender sleeps, or is about to, and wants to be woken when there is room.
    pub(crate) wake_requested: AtomicU32,
    /// Number of frames sent, left here for the sender's next instance.
    pub(crate) sent: AtomicU64,
    /// The sender's position in the data ring, left here for its next instance.
    pub(crate) data: AtomicU64,
    /// Written by the receiver. 1: it polls this ring; 0: the sender has to set its inbound bit.
    pub(crate) hot: AtomicU32,
    /// The swap blocks that the sender does not hold, left here for its next instance: see [`crate::swap`].
    pub(crate) blocks: AtomicU32,
}

/// The memory of a ring. Elements and data are touched only by the side whose turn it is.
pub(crate) trait RingMemory {
    /// Number of elements.
    fn elements(&self) -> u32;
    /// Bytes of the data ring, a power of two and a multiple of [`LINE`].
    fn data_bytes(&self) -> u64;
    /// The shared control lines.
    fn control(&self) -> &Control;
    /// The word of an element.
    fn word(&self, element: u32) -> &AtomicU64;
    /// Lends the `LINE - 8` bytes of an element behind its word, to write.
    ///
    /// # Safety
    /// It is the sender's turn on this element.
    unsafe fn fill_element(&self, element: u32, f: impl FnOnce(*mut u8));
    /// Lends the `LINE - 8` bytes of an element behind its word, to read.
    ///
    /// # Safety
    /// It is the receiver's turn on this element.
    unsafe fn read_element<R>(&self, element: u32, f: impl FnOnce(*const u8) -> R) -> R;
    /// The receiver will read this element before long: a hint, which may come before its turn.
    fn prefetch(&self, element: u32);
    /// Lends `len` bytes of the data ring at `at`, to write.
    ///
    /// # Safety
    /// They lie inside, and it is the sender's turn on them.
    unsafe fn fill_data(&self, at: u64, len: usize, f: impl FnOnce(*mut u8));
    /// Lends `len` bytes of the data ring at `at`, to read.
    ///
    /// # Safety
    /// They lie inside, and it is the receiver's turn on them.
    unsafe fn read_data<R>(&self, at: u64, len: usize, f: impl FnOnce(*const u8) -> R) -> R;
}

/// Largest body for a data ring of so many bytes: it fits even if a quarter is not acknowledged yet, and as much is lost at
/// the end of the ring.
pub(crate) const fn max_body(data_bytes: u64) -> usize {
    (data_bytes / 4) as usize
}

/// Where a body of `len` bytes goes if the data ring is at `cursor`: (start, end). It never goes across the ring's end.
fn data_range(cursor: u64, len: usize, data_bytes: u64) -> (u64, u64) {
    let need = len.next_multiple_of(LINE) as u64;
    let left = data_bytes - (cursor & (data_bytes - 1));
    let start = if need > left { cursor + left } else { cursor };
    (start, start + need)
}

/// The word of frame number `number` (counted from 0), with its body length and, if the body is in a swap block, which.
fn word(number: u64, len: usize, block: Option<u8>) -> u64 {
    let block = block.map_or(0, |block| u64::from(block) + 1);
    u64::from((number as u32).wrapping_add(1)) | (len as u64) << 32 | block << BLOCK_SHIFT
}

/// Where a word says which swap block the body is in; body lengths have the bits below.
const BLOCK_SHIFT: u32 = 56;

/// The sending side.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    /// Number of frames sent.
    sent: u64,
    /// What `sent` may grow to before the receiver's line must be read again.
    limit: u64,
    /// The next element.
    element: u32,
    /// The last send was refused.
    starved: bool,
    /// The receiver was asked to wake the sender.
    wake_requested: bool,
    /// Position in the data ring.
    data: u64,
    /// What `data` may grow to before the receiver's line must be read again.
    data_limit: u64,
}

impl<M: RingMemory> Producer<M> {
    /// The sender's side of the ring in `memory`; frames start at element `start` (which only spreads rings over cache sets).
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (sent, data) = {
            let line = &memory.control().sender;
            (line.sent.load(Ordering::Relaxed), line.data.load(Ordering::Relaxed))
        };
        let element = element_of(sent, start, memory.elements());
        let (starved, wake_requested) = (false, false);
        let mut ring =
            Self { memory, sent, limit: sent, element, starved, wake_requested, data, data_limit: data };
        ring.refresh();
        ring
    }

    /// Sends a frame with a body of at most [`INLINE`] bytes; false if there is no room.
    #[inline(always)]
    pub(crate) fn push_short(&mut self, head: &[u8; HEAD], body: &[u8]) -> bool {
        assert!(body.len() <= INLINE, "{} bytes are not short", body.len());
        if self.sent == self.limit && !self.has_element() {
            return false;
        }
        // SAFETY: `sent < limit`: the receiver has consumed what was in this element, and reads it again only
        // after `publish`. An element has room for the head and INLINE bytes.
        unsafe {
            self.memory.fill_element(self.element, |to| {
                std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD);
                copy_short(body, to.add(HEAD));
            });
        }
        self.publish(body.len(), None);
        true
    }

    /// Sends a frame whose body of `len` bytes `fill` writes; false, without a call of `fill`, if there is no room.
    pub(crate) fn push<B: BlockMemory>(
        &mut self,
        head: &[u8; HEAD],
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        swap: &mut Swap<B>,
    ) -> bool {
        if len <= INLINE {
            if self.sent == self.limit && !self.has_element() {
                return false;
            }
            let mut body = [0; INLINE];
            fill(&mut body[..len]);
            return self.push_short(head, &body[..len]);
        }
        if let Some(block) = swap.next(len) {
            if self.sent == self.limit && !self.has_element() {
                return false;
            }
            // SAFETY: `give` lends so many bytes to write. The head as below.
            unsafe {
                swap.give(len, |to| fill(std::slice::from_raw_parts_mut(to, len)));
                self.memory
                    .fill_element(self.element, |to| std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD));
            }
            self.publish(len, Some(block));
            return true;
        }
        assert!(len <= max_body(self.memory.data_bytes()), "{len} bytes are too many for one frame");
        let (start, end) = data_range(self.data, len, self.memory.data_bytes());
        if (self.sent == self.limit || end > self.data_limit) && !self.has_room(end) {
            return false;
        }
        let at = start & (self.memory.data_bytes() - 1);
        // SAFETY: `data_range` keeps the range inside; `end <= data_limit` says that the receiver is done with it.
        unsafe {
            self.memory.fill_data(at, len, |to| fill(std::slice::from_raw_parts_mut(to, len)));
            self.memory
                .fill_element(self.element, |to| std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD));
        }
        self.data = end;
        self.publish(len, None);
        true
    }

    #[inline(always)]
    fn publish(&mut self, len: usize, block: Option<u8>) {
        // Release: a receiver that sees the word (Acquire in `Consumer::ready`) sees head and body.
        self.memory.word(self.element).store(word(self.sent, len, block), Ordering::Release);
        self.sent += 1;
        self.element += 1;
        if self.element == self.memory.elements() {
            self.element = 0;
        }
        self.starved = false;
        if self.wake_requested {
            self.wake_requested = false;
            self.memory.control().sender.wake_requested.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn has_element(&mut self) -> bool {
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
        // Acquire, with the Release in `Consumer::ack`: the receiver has read what the sender may overwrite now.
        self.limit = line.acked.load(Ordering::Acquire).wrapping_add(u64::from(self.memory.elements()));
        self.data_limit = line.data_acked.load(Ordering::Acquire).wrapping_add(self.memory.data_bytes());
    }

    /// True if the last send was refused, and the receiver has acknowledged something since.
    pub(crate) fn has_news(&self) -> bool {
        let line = &self.memory.control().receiver;
        self.starved
            && (line.acked.load(Ordering::Acquire).wrapping_add(u64::from(self.memory.elements()))
                != self.limit
                || line.data_acked.load(Ordering::Acquire).wrapping_add(self.memory.data_bytes())
                    != self.data_limit)
    }

    /// True if the last send was refused.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Asks the receiver to wake this sender when there is room. A barrier and [`Producer::has_news`] follow. Only for a
    /// sender that was refused and goes to sleep: a line that both sides write for every frame is slow.
    pub(crate) fn request_wake(&mut self) {
        self.wake_requested = true;
        self.memory.control().sender.wake_requested.store(1, Ordering::Relaxed);
    }

    /// Whether the receiver polls this ring, without its inbound bit.
    #[inline]
    pub(crate) fn is_hot(&self) -> bool {
        self.memory.control().sender.hot.load(Ordering::Relaxed) == 1
    }

    /// The offset in the data ring at which a body of `len` bytes would end if sent now.
    pub(crate) fn data_end(&self, len: usize) -> u64 {
        let (start, _) = data_range(self.data, len, self.memory.data_bytes());
        (start & (self.memory.data_bytes() - 1)) + len as u64
    }

    /// Leaves the positions in the shared line for a later `Producer` of the same ring.
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
    /// Number of frames consumed.
    consumed: u64,
    /// Number of frames acknowledged.
    acked: u64,
    /// The next element.
    element: u32,
    /// Position in the data ring.
    data: u64,
    /// Position in the data ring, as far as acknowledged.
    data_acked: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// The receiver's side of the ring in `memory`; `start` is what the producer got.
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (consumed, data) = {
            let line = &memory.control().receiver;
            (line.acked.load(Ordering::Relaxed), line.data_acked.load(Ordering::Relaxed))
        };
        let element = element_of(consumed, start, memory.elements());
        Self { memory, consumed, acked: consumed, element, data, data_acked: data }
    }

    /// True if a frame is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        let seen = self.memory.word(self.element).load(Ordering::Acquire);
        seen as u32 == (self.consumed as u32).wrapping_add(1)
    }

    /// Hands the next frame, if there is one, to `f`: head and body, valid during the call.
    #[inline(always)]
    pub(crate) fn consume<B: BlockMemory>(
        &mut self,
        f: &mut impl FnMut(&[u8; HEAD], &[u8]),
        swap: &mut Swap<B>,
    ) -> Result<bool, Corrupt> {
        let seen = self.memory.word(self.element).load(Ordering::Acquire);
        if seen as u32 != (self.consumed as u32).wrapping_add(1) {
            return Ok(false);
        }
        let ahead = self.element + PREFETCH_AHEAD;
        self.memory.prefetch(if ahead < self.memory.elements() {
            ahead
        } else {
            ahead - self.memory.elements()
        });
        let len = (seen >> 32) as usize;
        if len <= INLINE {
            self.consume_short(len, f);
        } else {
            self.consume_long(len, f, swap)?;
        }
        self.consumed += 1;
        self.element += 1;
        if self.element == self.memory.elements() {
            self.element = 0;
        }
        Ok(true)
    }

    #[inline(always)]
    fn consume_short(&mut self, len: usize, f: &mut impl FnMut(&[u8; HEAD], &[u8])) {
        // SAFETY: the word says that this element is filled; the sender does not touch it until this
        // side acknowledges the frame. `len <= INLINE`.
        unsafe {
            self.memory.read_element(self.element, |from| {
                f(&*from.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(from.add(HEAD), len));
            });
        }
    }

    #[inline(never)]
    fn consume_long<B: BlockMemory>(
        &mut self,
        len: usize,
        f: &mut impl FnMut(&[u8; HEAD], &[u8]),
        swap: &mut Swap<B>,
    ) -> Result<(), Corrupt> {
        if let Some(block) = (len >> (BLOCK_SHIFT - 32)).checked_sub(1) {
            let len = len & ((1 << (BLOCK_SHIFT - 32)) - 1);
            // SAFETY: as in `consume_short` for the element; `take` lends so many bytes to read.
            let taken = unsafe {
                self.memory.read_element(self.element, |head| {
                    swap.take(block as u8, len, |body| {
                        f(&*head.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(body, len));
                    })
                })
            };
            return if taken { Ok(()) } else { Err(Corrupt) };
        }
        if len > max_body(self.memory.data_bytes()) {
            return Err(Corrupt);
        }
        let (start, end) = data_range(self.data, len, self.memory.data_bytes());
        let at = start & (self.memory.data_bytes() - 1);
        // SAFETY: as in `consume_short`; `data_range` keeps the range inside, `len` is checked.
        unsafe {
            self.memory.read_element(self.element, |head| {
                self.memory.read_data(at, len, |body| {
                    f(&*head.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(body, len));
                });
            });
        }
        self.data = end;
        Ok(())
    }

    /// Acknowledges all frames consumed once they are a quarter of the ring; true if the sender sleeps and has to be woken.
    /// `fences` as for [`light_barrier`].
    #[inline]
    pub(crate) fn ack_some(&mut self, fences: bool) -> bool {
        let enough = self.consumed - self.acked >= u64::from(self.memory.elements() / 4).max(1)
            || self.data - self.data_acked >= self.memory.data_bytes() / 4;
        enough && self.ack(fences)
    }

    /// Acknowledges all frames consumed; true if the sender sleeps and has to be woken. `fences` as for [`light_barrier`].
    #[cold]
    pub(crate) fn ack(&mut self, fences: bool) -> bool {
        let line = &self.memory.control().receiver;
        // Release, with the Acquire in `Producer::refresh`.
        line.data_acked.store(self.data, Ordering::Release);
        line.acked.store(self.consumed, Ordering::Release);
        (self.acked, self.data_acked) = (self.consumed, self.data);
        // Either this barrier comes second and this side sees `wake_requested`, or the barrier of the sender that goes to
        // sleep does, and the sender sees what was acknowledged (`Producer::has_news`).
        light_barrier(fences);
        self.memory.control().sender.wake_requested.load(Ordering::Relaxed) == 1
    }

    /// Tells the sender whether this side polls the ring without its inbound bit.
    pub(crate) fn set_hot(&self, hot: bool) {
        self.memory.control().sender.hot.store(u32::from(hot), Ordering::Relaxed);
    }
}

fn element_of(count: u64, start: u32, elements: u32) -> u32 {
    ((count + u64::from(start)) % u64::from(elements)) as u32
}

/// Copies up to [`INLINE`] bytes; the usual sizes without a function call.
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
