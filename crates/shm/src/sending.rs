//! The sending half of [`Shm`]: lanes to peers, opened and given memory as they are used.

use std::io;

use banyan_transport::{Peer, Refusal};

use crate::doorbell::{Doorbell, light_barrier};
use crate::fabric::Shm;
use crate::ring::Producer;
use crate::segment::MappedRing;
use crate::sync::{Ordering, fence};

/// The data ring gets its pages in pieces of so many bytes, as it is used.
const CARVE: u64 = 32 << 10;
/// Towards one peer.
pub(crate) enum Outgoing {
    Cold,
    Open(Lane),
    /// Gone, and not yet reported.
    Dying,
    Down,
}

pub(crate) struct Lane {
    pub(crate) ring: Producer<MappedRing>,
    bell: *const Doorbell,
    /// Offset of the data ring.
    data: usize,
    /// Bytes of the data ring that have pages.
    carved: u64,
}

// SAFETY: the pointer leads into the segment, which the fabric holds; a doorbell is shared by all.
unsafe impl Send for Lane {}

impl Lane {
    /// Nothing more needs to be done after a send: the peer polls this ring, and does not sleep.
    #[inline(always)]
    pub(crate) fn is_settled(&self, fences: bool) -> bool {
        light_barrier(fences);
        // SAFETY: `core` keeps the segment mapped for as long as this lane.
        let bell = unsafe { &*self.bell };
        bell.is_awake() && self.ring.is_hot()
    }
}

impl Shm {
    /// The lane to a peer, opened on first use.
    #[inline(always)]
    pub(crate) fn lane(&mut self, peer: Peer) -> Result<(usize, &mut Lane), Refusal> {
        let to = self.names.index(peer).ok_or(Refusal::Down)?;
        if !matches!(self.outgoing[to], Outgoing::Open(_)) {
            return self.open(to);
        }
        match &mut self.outgoing[to] {
            Outgoing::Open(lane) => Ok((to, lane)),
            _ => Err(Refusal::Busy),
        }
    }

    #[cold]
    fn open(&mut self, to: usize) -> Result<(usize, &mut Lane), Refusal> {
        match self.outgoing[to] {
            Outgoing::Down => return Err(Refusal::Down),
            Outgoing::Dying | Outgoing::Open(_) => return Err(Refusal::Busy),
            Outgoing::Cold => {}
        }
        let (me, segment) = (self.core.me, &self.core.segment);
        let layout = &segment.layout;
        let Some(number) = segment.assign_ring(me, to as u32) else {
            self.lose(to, "the table of rings in shared memory has been overwritten".to_owned());
            return Err(Refusal::Busy);
        };
        if let Err(error) = segment.populate(layout.ring(number), layout.ring_head_bytes()) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        let ring = Producer::new(segment.ring(number), layout.first_slot(me, to as u32));
        let bell = std::ptr::from_ref(&self.core.block(to as u32).bell);
        let data = layout.ring(number) + layout.ring_head_bytes();
        self.outgoing[to] = Outgoing::Open(Lane { ring, bell, data, carved: 0 });
        match &mut self.outgoing[to] {
            Outgoing::Open(lane) => Ok((to, lane)),
            _ => Err(Refusal::Busy),
        }
    }

    /// Makes sure that the data ring has pages for a body of `len` bytes.
    pub(crate) fn carve(&mut self, to: usize, len: usize) -> Result<(), Refusal> {
        let Outgoing::Open(lane) = &mut self.outgoing[to] else { return Err(Refusal::Busy) };
        let reach = lane.ring.reach(len);
        if reach <= lane.carved {
            return Ok(());
        }
        let reach = reach.next_multiple_of(CARVE).min(self.core.segment.layout.data_bytes);
        let (from, more) = (lane.data + lane.carved as usize, (reach - lane.carved) as usize);
        if let Err(error) = self.core.segment.populate(from, more) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        lane.carved = reach;
        Ok(())
    }

    /// After a send: tells the peer if it does not poll this ring, or sleeps.
    #[cold]
    pub(crate) fn announce(&self, to: usize) {
        fence(Ordering::SeqCst);
        if let Outgoing::Open(lane) = &self.outgoing[to]
            && !lane.ring.is_hot()
        {
            self.mark_inbound(to as u32, self.core.me);
            fence(Ordering::SeqCst);
        }
        self.core.wake(to as u32);
    }

    /// Sets the bit of `from` in the inbound bitmap of `to`.
    pub(crate) fn mark_inbound(&self, to: u32, from: u32) {
        let (group, bit) = (from / 64, from % 64);
        let before = self.core.segment.inbound(to, group).fetch_or(1 << bit, Ordering::AcqRel);
        if before == 0 {
            // More than 64 groups share bits.
            let groups = &self.core.block(to).inbound.groups;
            groups.fetch_or(1 << (group % 64), Ordering::AcqRel);
        }
    }

    #[cold]
    pub(crate) fn refuse(&mut self, to: usize) -> Refusal {
        self.core.counters.busy.fetch_add(1, Ordering::Relaxed);
        if !self.starved.contains(&(to as u32)) {
            self.starved.push(to as u32);
        }
        Refusal::Busy
    }

    pub(crate) fn lose(&mut self, index: usize, cause: String) {
        if !matches!(self.outgoing[index], Outgoing::Dying | Outgoing::Down) {
            self.outgoing[index] = Outgoing::Dying;
            self.core.forget(index as u32);
            self.dying.push((index as u32, cause));
        }
    }
}

fn no_memory(error: &io::Error) -> String {
    format!("no shared memory for a ring to it: {error} (is the memory limit of this container too small?)")
}
