//! One ring: frames from one sender to one receiver, in order, without locks.
//!
//! A frame takes one *element*, a cache line: a word, the head and up to [`INLINE`] bytes of body. The sender
//! fills the line and stores the word last (Release); the receiver sees the word that it expects next (Acquire)
//! and reads the rest. The word counts frames, so an element need not be cleared: the receiver never writes
//! there, and a small message moves one line from core to core. Larger bodies lie in the *data ring*, of which a [`Span`]
//! is in use; both sides compute from the length where. Or they lie in a block that the sender hands over with the frame (`swap.rs`).
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
    /// The span of the data ring, left here for the receiver's next instance: see [`Span`].
    pub(crate) span: AtomicU64,
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
    /// The span of the data ring, and from which position on it holds, left here for the sender's next instance: see [`Span`].
    pub(crate) span: AtomicU64,
    pub(crate) since: AtomicU64,
}

/// The memory of a ring. Elements and data are touched only by the side whose turn it is.
pub(crate) trait RingMemory {
    /// Number of elements.
    fn elements(&self) -> u32;
    /// Bytes of the data ring, a power of two and a multiple of [`LINE`].
    fn data_bytes(&self) -> u64;
    /// Bytes of it that are in use at first, likewise.
    fn first_span(&self) -> u64;
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

/// The part of a data ring that is in use, from its start on. Pages come into being when they are first used, which takes several times as long as
/// to copy a page, so that a ring begins with a short span. A sender that finds no room doubles it, and so does one that has gone around it
/// [`LAPS`] times: its next body lies at the start of the half that was never used, and says so in its word. Bodies that were sent before lie
/// in the other half until they are read.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// A power of two and a multiple of [`LINE`].
    bytes: u64,
}

impl Span {
    /// What an earlier instance has left, if there was one.
    fn new(memory: &impl RingMemory, left: u64) -> Self {
        let [first, all] = [memory.first_span(), memory.data_bytes()];
        Self { bytes: if left.is_power_of_two() { left.clamp(first, all) } else { first } }
    }

    /// Where a body of `len` bytes goes if the ring is at `cursor`: (start, end). It never goes across the end of the span.
    fn range(self, cursor: u64, len: usize) -> (u64, u64) {
        let need = len.next_multiple_of(LINE) as u64;
        let left = self.bytes - self.offset(cursor);
        let start = if need > left { cursor + left } else { cursor };
        (start, start + need)
    }

    /// Where in the ring a position is.
    fn offset(self, position: u64) -> u64 {
        position & (self.bytes - 1)
    }

    /// Doubles it; the first position from `cursor` on that is at the start of the new half.
    fn double(&mut self, cursor: u64) -> u64 {
        let half = self.bytes;
        self.bytes *= 2;
        cursor + self.offset(half.wrapping_sub(cursor))
    }
}

/// Where the body of a frame is that does not fit into its element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At the position of the data ring, or there is no body.
    Ring,
    /// There, where the span of the ring is this power of two of bytes from now on.
    Widened(u8),
    /// In this swap block.
    Block(u8),
}

impl Place {
    /// What words have in their bits from [`PLACE_SHIFT`] on.
    const WIDENED: u8 = 128;

    fn code(self) -> u8 {
        match self {
            Place::Ring => 0,
            Place::Block(block) => 1 + block,
            Place::Widened(exponent) => Self::WIDENED | exponent,
        }
    }

    fn of(code: u8) -> Self {
        match code {
            0 => Place::Ring,
            Self::WIDENED.. => Place::Widened(code - Self::WIDENED),
            _ => Place::Block(code - 1),
        }
    }
}

/// The word of frame number `number` (counted from 0), with its body length, and where the body is.
fn word(number: u64, len: usize, place: Place) -> u64 {
    u64::from((number as u32).wrapping_add(1)) | (len as u64) << 32 | u64::from(place.code()) << PLACE_SHIFT
}

/// Where a word says where the body is; body lengths have the bits below.
const PLACE_SHIFT: u32 = 56;

/// So often a sender goes around the same span: a longer one is quicker where it does not fit into the caches of the cores (`layout.rs`), and the
/// pages of its new half then add little to the time of what has come through the other one.
const LAPS: u64 = 8;

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
    span: Span,
    /// The position from which on it holds: the start of the half that was new then.
    since: u64,
}

impl<M: RingMemory> Producer<M> {
    /// The sender's side of the ring in `memory`; frames start at element `start` (which only spreads rings over cache sets).
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (sent, data, span, since) = {
            let line = &memory.control().sender;
            let [sent, data, span, since] =
                [&line.sent, &line.data, &line.span, &line.since].map(|word| word.load(Ordering::Relaxed));
            (sent, data, Span::new(&memory, span), since)
        };
        let mut ring = Self {
            element: element_of(sent, start, memory.elements()),
            memory,
            sent,
            limit: sent,
            starved: false,
            wake_requested: false,
            data,
            data_limit: data,
            span,
            since,
        };
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
        self.publish(body.len(), Place::Ring);
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
            self.publish(len, Place::Block(block));
            return true;
        }
        assert!(len <= max_body(self.memory.data_bytes()), "{len} bytes are too many for one frame");
        let Some((start, end)) = self.room(len) else { return false };
        // SAFETY: `Span::range` keeps the range inside; `end <= data_limit` says that the receiver is done with it.
        unsafe {
            self.memory
                .fill_data(self.span.offset(start), len, |to| fill(std::slice::from_raw_parts_mut(to, len)));
            self.memory
                .fill_element(self.element, |to| std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD));
        }
        // The first body of a new half is at its start.
        let widened = self.data == self.since && self.since > 0;
        self.data = end;
        self.publish(len, if widened { Place::Widened(self.span.bytes.ilog2() as u8) } else { Place::Ring });
        true
    }

    #[inline(always)]
    fn publish(&mut self, len: usize, place: Place) {
        // Release: a receiver that sees the word (Acquire in `Consumer::ready`) sees head and body.
        self.memory.word(self.element).store(word(self.sent, len, place), Ordering::Release);
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
        self.refresh();
        self.starved = self.sent == self.limit;
        !self.starved
    }

    /// Where a body of `len` bytes goes if sent now, as positions in the data ring; `None`: there is no room.
    #[inline]
    fn room(&mut self, len: usize) -> Option<(u64, u64)> {
        let place = self.span.range(self.data, len);
        if self.sent == self.limit || place.1 > self.data_limit { self.make_room(len) } else { Some(place) }
    }

    #[cold]
    fn make_room(&mut self, len: usize) -> Option<(u64, u64)> {
        self.refresh();
        loop {
            let place = self.span.range(self.data, len);
            let fits = place.1 <= self.data_limit;
            let wider = self.span.bytes < self.memory.data_bytes();
            self.starved = self.sent == self.limit || !(fits || wider);
            if self.starved {
                return None;
            }
            if fits && !(wider && self.data - self.since >= LAPS * self.span.bytes) {
                return Some(place);
            }
            self.data = self.span.double(self.data);
            self.since = self.data;
            self.data_limit = self.data + self.span.bytes / 2;
        }
    }

    fn refresh(&mut self) {
        (self.limit, self.data_limit) = self.limits();
    }

    /// What `sent` and `data` may grow to.
    fn limits(&self) -> (u64, u64) {
        let line = &self.memory.control().receiver;
        // Acquire, with the Release in `Consumer::ack`: the receiver has read what the sender may overwrite now.
        let (acked, data) = (line.acked.load(Ordering::Acquire), line.data_acked.load(Ordering::Acquire));
        // What was sent before the span was doubled lies in the half that was in use then.
        let data = if data < self.since {
            self.since + self.span.bytes / 2
        } else {
            data.wrapping_add(self.span.bytes)
        };
        (acked.wrapping_add(u64::from(self.memory.elements())), data)
    }

    /// True if the last send was refused, and the receiver has acknowledged something since.
    pub(crate) fn has_news(&self) -> bool {
        self.starved && self.limits() != (self.limit, self.data_limit)
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

    /// The offset in the data ring at which a body of `len` bytes ends if sent now; `None`: there is no room.
    pub(crate) fn data_end(&mut self, len: usize) -> Option<u64> {
        let (start, _) = self.room(len)?;
        Some(self.span.offset(start) + len as u64)
    }

    /// Leaves the positions in the shared line for a later `Producer` of the same ring.
    pub(crate) fn save(&self) {
        let line = &self.memory.control().sender;
        line.sent.store(self.sent, Ordering::Relaxed);
        line.data.store(self.data, Ordering::Relaxed);
        line.span.store(self.span.bytes, Ordering::Relaxed);
        line.since.store(self.since, Ordering::Relaxed);
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
    span: Span,
}

impl<M: RingMemory> Consumer<M> {
    /// The receiver's side of the ring in `memory`; `start` is what the producer got.
    pub(crate) fn new(memory: M, start: u32) -> Self {
        let (consumed, data, span) = {
            let line = &memory.control().receiver;
            let [consumed, data, span] =
                [&line.acked, &line.data_acked, &line.span].map(|word| word.load(Ordering::Relaxed));
            (consumed, data, Span::new(&memory, span))
        };
        let element = element_of(consumed, start, memory.elements());
        Self { memory, consumed, acked: consumed, element, data, data_acked: data, span }
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
        let place = Place::of((len >> (PLACE_SHIFT - 32)) as u8);
        let len = len & ((1 << (PLACE_SHIFT - 32)) - 1);
        match place {
            Place::Ring => {}
            Place::Widened(exponent) => self.widen(exponent)?,
            Place::Block(block) => {
                // SAFETY: as in `consume_short` for the element; `take` lends so many bytes to read.
                let taken = unsafe {
                    self.memory.read_element(self.element, |head| {
                        swap.take(block, len, |body| {
                            f(&*head.cast::<[u8; HEAD]>(), std::slice::from_raw_parts(body, len));
                        })
                    })
                };
                return if taken { Ok(()) } else { Err(Corrupt) };
            }
        }
        if len > max_body(self.memory.data_bytes()) {
            return Err(Corrupt);
        }
        let (start, end) = self.span.range(self.data, len);
        let at = self.span.offset(start);
        if at + len as u64 > self.span.bytes {
            return Err(Corrupt);
        }
        // SAFETY: as in `consume_short`; the range is inside the span, and that inside the ring.
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

    /// The sender has doubled the span, once or more often, until it was this power of two of bytes.
    #[cold]
    fn widen(&mut self, exponent: u8) -> Result<(), Corrupt> {
        let bytes = 1_u64.checked_shl(exponent.into()).ok_or(Corrupt)?;
        if bytes <= self.span.bytes || bytes > self.memory.data_bytes() {
            return Err(Corrupt);
        }
        while self.span.bytes < bytes {
            self.data = self.span.double(self.data);
        }
        self.memory.control().receiver.span.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Acknowledges all frames consumed once they are a quarter of the ring, as far as it is in use; true if the sender sleeps and has to be woken.
    /// `fences` as for [`light_barrier`].
    #[inline]
    pub(crate) fn ack_some(&mut self, fences: bool) -> bool {
        let enough = self.consumed - self.acked >= u64::from(self.memory.elements() / 4).max(1)
            || self.data - self.data_acked >= self.span.bytes / 4;
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
