//! The sending half of [`Shm`]: an endpoint per peer, opened and given memory as it is used.

use std::io;

use banyan_transport::{Peer, Refusal};

use crate::doorbell::{Doorbell, light_barrier};
use crate::fabric::Shm;
use crate::ring::Producer;
use crate::segment::MappedRing;
use crate::swap::BLOCK;
use crate::sync::{Ordering, fence};

/// Bytes of a data ring that get their pages at once: it gets them as it is used.
const POPULATE_STEP: u64 = 32 << 10;

/// The state of sending to one peer.
pub(crate) enum Outgoing {
    /// Nothing was sent yet.
    Unopened,
    Open(Endpoint),
    /// The peer is gone, which is not reported yet.
    Lost,
    /// The peer is gone, which is reported.
    Down,
}

/// This rank's end of the ring to one peer.
pub(crate) struct Endpoint {
    pub(crate) ring: Producer<MappedRing>,
    /// The peer's doorbell.
    bell: *const Doorbell,
    /// Offset of the data ring in the segment.
    data: usize,
    /// Bytes of the data ring, from its start, that have pages.
    populated: u64,
    /// How many of the swap blocks behind the data ring, from the first one on, have pages. Where another rank held them first,
    /// that one has seen to it.
    blocks: u8,
}

// SAFETY: the pointer leads into the segment, which the fabric holds; a doorbell is shared by all.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// True if nothing is left to do after a send: the peer polls this ring, and does not sleep.
    #[inline(always)]
    pub(crate) fn is_peer_polling(&self, fences: bool) -> bool {
        light_barrier(fences);
        // SAFETY: `attachment` keeps the segment mapped for as long as this endpoint.
        let bell = unsafe { &*self.bell };
        bell.is_awake() && self.ring.is_hot()
    }
}

impl Shm {
    /// Local index of, and endpoint to, a peer; opened on first use.
    #[inline(always)]
    pub(crate) fn endpoint(&mut self, peer: Peer) -> Result<(usize, &mut Endpoint), Refusal> {
        let to = self.peers.index(peer).ok_or(Refusal::Down)?;
        if !matches!(self.outgoing[to], Outgoing::Open(_)) {
            return self.open(to);
        }
        match &mut self.outgoing[to] {
            Outgoing::Open(endpoint) => Ok((to, endpoint)),
            _ => Err(Refusal::Busy),
        }
    }

    #[cold]
    fn open(&mut self, to: usize) -> Result<(usize, &mut Endpoint), Refusal> {
        match self.outgoing[to] {
            Outgoing::Down => return Err(Refusal::Down),
            Outgoing::Lost | Outgoing::Open(_) => return Err(Refusal::Busy),
            Outgoing::Unopened => {}
        }
        let (me, segment) = (self.attachment.me, &self.attachment.segment);
        let layout = &segment.layout;
        let Some(number) = segment.assign_ring(me, to as u32) else {
            self.lose(to, "the table of rings in shared memory has been overwritten".to_owned());
            return Err(Refusal::Busy);
        };
        if let Err(error) = segment.populate(layout.ring(number), layout.ring_head_bytes()) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        let ring = Producer::new(segment.ring(number), layout.first_element(me, to as u32));
        let bell = std::ptr::from_ref(&self.attachment.block(to as u32).bell);
        let data = layout.ring(number) + layout.ring_head_bytes();
        self.outgoing[to] = Outgoing::Open(Endpoint { ring, bell, data, populated: 0, blocks: 0 });
        self.incoming[to].find_swap(&self.attachment, to as u32);
        match &mut self.outgoing[to] {
            Outgoing::Open(endpoint) => Ok((to, endpoint)),
            _ => Err(Refusal::Busy),
        }
    }

    /// Makes sure that what a body of `len` bytes goes in has pages: a swap block, or the data ring.
    pub(crate) fn populate_body(&mut self, to: usize, len: usize) -> Result<(), Refusal> {
        let Outgoing::Open(endpoint) = &mut self.outgoing[to] else { return Err(Refusal::Busy) };
        let segment = &self.attachment.segment;
        let (start, end) = match self.incoming[to].swap.next(len) {
            // Blocks are first used in their order.
            Some(block) if block < endpoint.blocks || (to as u32) < self.attachment.me => return Ok(()),
            Some(block) => {
                endpoint.blocks = block + 1;
                let start = segment.layout.data_bytes as usize + usize::from(block) * BLOCK;
                (start, start + BLOCK)
            }
            None => {
                // Where there is no room nothing is sent.
                let Some(end) = endpoint.ring.data_end(len) else { return Ok(()) };
                if end <= endpoint.populated {
                    return Ok(());
                }
                let end = end.next_multiple_of(POPULATE_STEP).min(segment.layout.data_bytes);
                (std::mem::replace(&mut endpoint.populated, end) as usize, end as usize)
            }
        };
        if let Err(error) = segment.populate(endpoint.data + start, end - start) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        Ok(())
    }

    /// After a send: marks the ring in the peer's inbound bits if it does not poll this ring, and wakes it if it sleeps.
    #[cold]
    pub(crate) fn notify(&self, to: usize) {
        fence(Ordering::SeqCst);
        if let Outgoing::Open(endpoint) = &self.outgoing[to]
            && !endpoint.ring.is_hot()
        {
            self.mark_inbound(to as u32, self.attachment.me);
            fence(Ordering::SeqCst);
        }
        self.attachment.wake(to as u32);
    }

    /// Sets the inbound bit of `from` in the block of `to`.
    pub(crate) fn mark_inbound(&self, to: u32, from: u32) {
        let (group, bit) = (from / 64, from % 64);
        let before = self.attachment.segment.inbound(to, group).fetch_or(1 << bit, Ordering::AcqRel);
        if before == 0 {
            // With more than 64 groups, several share a bit.
            let groups = &self.attachment.block(to).inbound.groups;
            groups.fetch_or(1 << (group % 64), Ordering::AcqRel);
        }
    }

    /// Notes that there is no room for a frame to `to`.
    #[cold]
    pub(crate) fn refuse(&mut self, to: usize) -> Refusal {
        self.attachment.counters.busy.fetch_add(1, Ordering::Relaxed);
        if !self.starved.contains(&(to as u32)) {
            self.starved.push(to as u32);
        }
        Refusal::Busy
    }

    /// Notes that a peer is gone; the next poll reports it.
    pub(crate) fn lose(&mut self, index: usize, cause: String) {
        if !matches!(self.outgoing[index], Outgoing::Lost | Outgoing::Down) {
            self.outgoing[index] = Outgoing::Lost;
            self.attachment.forget(index as u32);
            self.devices.forget(index);
            self.lost.push((index as u32, cause));
            self.rare = true;
        }
    }
}

fn no_memory(error: &io::Error) -> String {
    format!("no shared memory for a ring to it: {error} (is the memory limit of this container too small?)")
}
