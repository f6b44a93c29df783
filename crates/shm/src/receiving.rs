//! The receiving half of [`Shm`]: which rings are polled, what they hold, what becomes of the dead.

use banyan_transport::{Head, Peer, Sink};

use crate::core::Core;
use crate::fabric::Shm;
use crate::ring::Consumer;
use crate::segment::MappedRing;
use crate::sending::Outgoing;
use crate::sync::Ordering;

/// Frames taken from one ring in one poll.
pub(crate) const BATCH: usize = 32;
/// Rings polled without being told of.
const HOT: usize = 32;
/// From one peer.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) ring: Option<Consumer<MappedRing>>,
    is_hot: bool,
    /// The poll that last found a frame.
    seen: u64,
}

impl Shm {
    /// Starts polling the rings whose senders said that they are not polled.
    #[cold]
    pub(crate) fn welcome(&mut self) {
        let me = self.core.me;
        let groups = self.core.block(me).inbound.groups.swap(0, Ordering::AcqRel);
        for group in 0..self.core.segment.layout.ranks.div_ceil(64) {
            if groups & (1 << (group % 64)) == 0 {
                continue;
            }
            let mut bits = self.core.segment.inbound(me, group).swap(0, Ordering::AcqRel);
            while bits != 0 {
                self.warm(group * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        if self.hot.len() > HOT {
            self.cool();
        }
    }

    fn warm(&mut self, from: u32) {
        let polls = self.polls;
        let Some(slot) = self.incoming.get_mut(from as usize) else { return };
        slot.seen = polls;
        if slot.is_hot {
            return;
        }
        // A bit without a ring: nobody has sent anything.
        let Some(ring) = consumer(&self.core, slot, from) else { return };
        ring.set_hot(true);
        slot.is_hot = true;
        self.hot.push(from);
    }

    /// Stops polling the half of the hot rings that has been idle for longest.
    #[cold]
    fn cool(&mut self) {
        let incoming = &mut self.incoming;
        self.hot.sort_by_key(|&from| std::cmp::Reverse(incoming[from as usize].seen));
        let idle = self.hot.split_off(HOT / 2);
        // Answers whether a frame is there.
        let mut set = |from: u32, hot: bool| {
            let slot = &mut incoming[from as usize];
            slot.is_hot = hot;
            slot.ring.as_ref().inspect(|ring| ring.set_hot(hot));
            slot.ring.as_ref().is_some_and(Consumer::ready)
        };
        for &from in &idle {
            set(from, false);
        }
        // Either a sender sees that its ring is cold, or we see what it sent: see `doorbell`.
        let certain = self.core.heavy_barrier();
        for from in idle {
            if set(from, false) || !certain {
                set(from, true);
                self.hot.push(from);
            }
        }
    }

    /// Hands over the next frame of `peer`, if it is there and its ring in use; gives whether it was. What a poll
    /// does, for a caller that waits for this peer.
    #[inline(always)]
    pub fn take(&mut self, peer: Peer, sink: &mut impl Sink) -> bool {
        self.names.index(peer).is_some_and(|from| self.drain(from, 1, sink) > 0)
    }

    /// Hands over what one ring has, up to `most` frames.
    #[inline(always)]
    pub(crate) fn drain(&mut self, from: usize, most: usize, sink: &mut impl Sink) -> usize {
        let peer = self.names.peer(from);
        let slot = &mut self.incoming[from];
        let Some(ring) = &mut slot.ring else { return 0 };
        let (mut frames, mut sane) = (0, true);
        while sane && frames < most {
            let taken = ring.take(|head, body| match Head::decode(head) {
                Some(head) => sink.frame(peer, &head, body),
                None => sane = false,
            });
            match taken {
                Ok(true) => frames += 1,
                Ok(false) => break,
                Err(_) => sane = false,
            }
            // At once: a sender that is told after a batch has let the ring run dry meanwhile.
            if ring.tell_some(self.core.fences()) {
                self.core.wake(from as u32);
            }
        }
        slot.seen = self.polls;
        if !sane {
            self.disown(from);
        }
        frames
    }

    #[cold]
    fn disown(&mut self, from: usize) {
        self.hot.retain(|&hot| hot as usize != from);
        let slot = &mut self.incoming[from];
        (slot.is_hot, slot.ring) = (false, None);
        self.lose(from, "its ring in shared memory holds no valid frame".to_owned());
    }

    /// Hands over the rest of what the dead sent, then reports them.
    #[cold]
    pub(crate) fn bury(&mut self, sink: &mut impl Sink) -> usize {
        let mut events = 0;
        for (index, cause) in std::mem::take(&mut self.dying) {
            let slot = &mut self.incoming[index as usize];
            consumer(&self.core, slot, index);
            let taken = self.drain(index as usize, BATCH, sink);
            events += taken;
            if taken > 0 {
                self.dying.push((index, cause));
                continue;
            }
            self.outgoing[index as usize] = Outgoing::Down;
            sink.down(self.names.peer(index as usize), &cause);
            events += 1;
        }
        events
    }
}

/// The receiving side of the ring from `from`, if there is one, made on first use: an idle pair takes no memory.
fn consumer<'a>(core: &Core, slot: &'a mut Incoming, from: u32) -> Option<&'a mut Consumer<MappedRing>> {
    if slot.ring.is_none() {
        let start = core.segment.layout.first_slot(from, core.me);
        let number = core.segment.ring_number(from, core.me)?;
        slot.ring = Some(Consumer::new(core.segment.ring(number), start));
    }
    slot.ring.as_mut()
}
