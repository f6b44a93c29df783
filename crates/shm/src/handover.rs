//! Handover buffers: memory of the segment that a rank fills for another one, which empties it. Each rank has some in its part of the segment, which
//! takes no memory until they are used; who fills and who empties one has the driver of its device pin it, once. A bit for each in the rank's
//! identity says that a peer has it. The peer clears it.

use std::collections::HashMap;
use std::sync::Arc;

use banyan_memory::{BOUNCE_BUFFER, Buffer, Pinned, count_handed};
use banyan_transport::{Handed, Handover};

use crate::attachment::Attachment;
use crate::sync::{AtomicU64, Ordering, fence};

/// What a rank knows of its own handover buffers, and of those of peers.
pub(crate) struct Handovers {
    /// Its own that this process has buffers on, as bits.
    used: Arc<AtomicU64>,
    /// Its own that have pages, as bits.
    populated: u64,
    /// The local indices of those that they were handed over to last.
    to: HashMap<u32, usize>,
    /// Those that drivers were asked to pin, by rank and number; `None`: the driver has refused.
    pinned: HashMap<(u32, u32), Option<Arc<Pinned>>>,
}

/// This rank fills it, or has filled it and may look whether it is returned.
struct Filled {
    used: Arc<AtomicU64>,
    bit: u64,
    /// Is dropped before the segment goes.
    _pinned: Option<Arc<Pinned>>,
    _attachment: Arc<Attachment>,
}

/// This rank has what another one has filled.
struct Emptied {
    rank: u32,
    bit: u64,
    /// Is dropped before the segment goes.
    _pinned: Option<Arc<Pinned>>,
    attachment: Arc<Attachment>,
}

impl Handovers {
    pub(crate) fn new() -> Handovers {
        Handovers { used: Arc::default(), populated: 0, to: HashMap::new(), pinned: HashMap::new() }
    }

    /// One that is free, for copies from `near`.
    pub(crate) fn take(&mut self, attachment: &Arc<Attachment>, near: &Buffer) -> Option<Handover> {
        let (me, all) = (attachment.me, attachment.segment.layout.handovers());
        // Acquire, with the Release of both owners: nobody reads or writes there any more.
        let busy = self.used.load(Ordering::Acquire) | with_peers(attachment, me).load(Ordering::Acquire);
        let number = (!busy).trailing_zeros();
        let (at, bit) = (attachment.segment.layout.handover(me, number)?, 1 << number);
        if self.populated & bit == 0 {
            attachment.segment.populate(at, BOUNCE_BUFFER).ok()?;
            self.populated |= bit;
        }
        let pinned = self.pin(attachment, (me, number), near);
        if pinned.is_none() && !near.kind().is_host_accessible() {
            return None;
        }
        self.used.fetch_or(bit, Ordering::Relaxed);
        let keeper =
            Filled { used: self.used.clone(), bit, _pinned: pinned, _attachment: attachment.clone() };
        let start = attachment.segment.ptr(at, BOUNCE_BUFFER);
        // SAFETY: inside the segment, which stays mapped as long as the attachment.
        let memory = unsafe { Buffer::kept(start, BOUNCE_BUFFER, Box::new(keeper)) };
        Some(Handover { memory, number, scarce: 2 * busy.count_ones() >= all })
    }

    /// From now on, or before it is told, a peer has one of this rank's.
    pub(crate) fn give(&mut self, attachment: &Attachment, number: u32, to: usize) {
        self.to.insert(number, to);
        with_peers(attachment, attachment.me).fetch_or(1 << number, Ordering::Relaxed);
    }

    /// One of this rank's is not with a peer.
    pub(crate) fn take_back(attachment: &Attachment, number: u32) {
        with_peers(attachment, attachment.me).fetch_and(!(1 << number), Ordering::Release);
    }

    /// What is with a peer whose process has ended is so no more.
    pub(crate) fn peer_died(&mut self, attachment: &Attachment, index: usize) {
        self.to.extract_if(|_, to| *to == index).for_each(|(number, _)| Self::take_back(attachment, number));
    }

    /// What `rank` has handed over, for copies to `near`.
    pub(crate) fn find(
        &mut self,
        attachment: &Arc<Attachment>,
        (rank, handed): (u32, Handed),
        near: &Buffer,
    ) -> Option<Buffer> {
        let Handed { number, len } = handed;
        let (at, len) = (attachment.segment.layout.handover(rank, number)?, len as usize);
        if len > BOUNCE_BUFFER || !is_with_peer(attachment, rank, number) {
            return None;
        }
        let pinned = self.pin(attachment, (rank, number), near);
        let keeper = Emptied { rank, bit: 1 << number, _pinned: pinned, attachment: attachment.clone() };
        count_handed(len);
        // SAFETY: inside the segment, which stays mapped as long as the attachment.
        Some(unsafe { Buffer::kept(attachment.segment.ptr(at, len), len, Box::new(keeper)) })
    }

    /// Has one pinned for the device whose memory is `near`, if it is a device's and none has.
    fn pin(
        &mut self,
        attachment: &Attachment,
        (rank, number): (u32, u32),
        near: &Buffer,
    ) -> Option<Arc<Pinned>> {
        if near.kind().is_host_accessible() {
            return self.pinned.get(&(rank, number)).cloned().flatten();
        }
        let at = attachment.segment.layout.handover(rank, number)?;
        let start = attachment.segment.ptr(at, BOUNCE_BUFFER);
        // SAFETY: inside the segment, which all buffers on it, and this rank, unmap after they have dropped what is returned.
        let new = || unsafe { near.pin(start, BOUNCE_BUFFER) }.map(Arc::new);
        self.pinned.entry((rank, number)).or_insert_with(new).clone()
    }
}

/// True if a handover buffer of a rank is with one of its peers.
pub(crate) fn is_with_peer(attachment: &Attachment, rank: u32, number: u32) -> bool {
    // Acquire, with the Release of whoever returns it: it was read before.
    with_peers(attachment, rank).load(Ordering::Acquire) & 1 << number != 0
}

/// The bits of those of a rank that are with peers.
fn with_peers(attachment: &Attachment, rank: u32) -> &AtomicU64 {
    &attachment.block(rank).identity.handed
}

impl Drop for Filled {
    fn drop(&mut self) {
        self.used.fetch_and(!self.bit, Ordering::Release);
    }
}

impl Drop for Emptied {
    fn drop(&mut self) {
        // A child after fork has no segment.
        if !self.attachment.is_ours() {
            return;
        }
        with_peers(&self.attachment, self.rank).fetch_and(!self.bit, Ordering::Release);
        // Before the doorbell is read.
        fence(Ordering::SeqCst);
        self.attachment.wake(self.rank);
    }
}
