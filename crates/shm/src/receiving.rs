//! The receiving half of [`Shm`]: which rings are polled, what they hold, and the report of lost peers.

use banyan_transport::{Head, Peer, Sink};

use crate::attachment::Attachment;
use crate::fabric::Shm;
use crate::ring::Consumer;
use crate::segment::{MappedBlocks, MappedRing};
use crate::sending::Outgoing;
use crate::swap::Swap;
use crate::sync::Ordering;

/// The most frames consumed from one ring in one poll.
pub(crate) const BATCH: usize = 32;

/// The most rings that every poll reads ("hot" rings). The sender of any other ring sets its inbound bit.
const HOT: usize = 32;

/// The state of receiving from one peer.
#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) ring: Option<Consumer<MappedRing>>,
    /// The swap blocks that this rank has with the peer.
    pub(crate) swap: Swap<MappedBlocks>,
    is_hot: bool,
    /// The number of the poll that last found a frame.
    last_frame_poll: u64,
}

impl Incoming {
    /// Looks for the swap blocks that this rank has with `peer`, after a ring between the two was opened.
    pub(crate) fn find_swap(&mut self, attachment: &Attachment, peer: u32) {
        if !self.swap.is_known() {
            self.swap = attachment.segment.swap(attachment.me, peer).unwrap_or_default();
        }
    }

    /// Sees whether what is sent to the peer now may go in a swap block.
    pub(crate) fn see_streams(&mut self) {
        self.swap.streams = self.ring.as_ref().is_some_and(Consumer::ready);
    }
}

impl Shm {
    /// Starts polling the rings whose inbound bits are set.
    #[cold]
    pub(crate) fn poll_announced(&mut self) {
        let me = self.attachment.me;
        let groups = self.attachment.block(me).inbound.groups.swap(0, Ordering::AcqRel);
        for group in 0..self.attachment.segment.layout.ranks.div_ceil(64) {
            if groups & (1 << (group % 64)) == 0 {
                continue;
            }
            let mut bits = self.attachment.segment.inbound(me, group).swap(0, Ordering::AcqRel);
            while bits != 0 {
                self.start_polling(group * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        if self.hot.len() > HOT {
            self.stop_polling_idle();
        }
    }

    fn start_polling(&mut self, from: u32) {
        let polls = self.polls;
        let Some(incoming) = self.incoming.get_mut(from as usize) else { return };
        incoming.last_frame_poll = polls;
        if incoming.is_hot {
            return;
        }
        // A bit without a ring: that peer has sent nothing.
        let Some(ring) = consumer(&self.attachment, incoming, from) else { return };
        ring.set_hot(true);
        incoming.is_hot = true;
        self.hot.push(from);
    }

    /// Stops polling the half of the hot rings that has been idle for longest.
    #[cold]
    fn stop_polling_idle(&mut self) {
        let incoming = &mut self.incoming;
        self.hot.sort_by_key(|&from| std::cmp::Reverse(incoming[from as usize].last_frame_poll));
        let idle = self.hot.split_off(HOT / 2);
        // Gives whether a frame is there.
        let mut set = |from: u32, hot: bool| {
            let incoming = &mut incoming[from as usize];
            incoming.is_hot = hot;
            incoming.ring.as_ref().inspect(|ring| ring.set_hot(hot));
            incoming.ring.as_ref().is_some_and(Consumer::ready)
        };
        for &from in &idle {
            set(from, false);
        }
        // Either a sender sees that its ring is not polled, or this rank sees what it sent: see `doorbell`.
        let certain = self.attachment.heavy_barrier();
        for from in idle {
            if set(from, false) || !certain {
                set(from, true);
                self.hot.push(from);
            }
        }
    }

    /// Polls one peer, for a caller that waits for it: hands its next frame to `sink`, if the frame is there and the ring in
    /// use; gives whether it was.
    #[inline(always)]
    pub fn take(&mut self, peer: Peer, sink: &mut impl Sink) -> bool {
        self.peers.index(peer).is_some_and(|from| self.drain(from, 1, sink) > 0)
    }

    /// Hands the frames of one ring to `sink`, up to `most`; gives how many.
    #[inline(always)]
    pub(crate) fn drain(&mut self, from: usize, most: usize, sink: &mut impl Sink) -> usize {
        let peer = self.peers.peer(from);
        let incoming = &mut self.incoming[from];
        let Some(ring) = &mut incoming.ring else { return 0 };
        let (mut frames, mut sane) = (0, true);
        while sane && frames < most {
            let mut hand_over = |head: &_, body: &_| match Head::decode(head) {
                Some(head) => sink.frame(peer, &head, body),
                None => sane = false,
            };
            let consumed = ring.consume(&mut hand_over, &mut incoming.swap);
            match consumed {
                Ok(true) => frames += 1,
                Ok(false) => break,
                Err(_) => sane = false,
            }
            // After each frame: a sender that learns of room only after a batch has let the ring run dry meanwhile.
            if ring.ack_some(self.attachment.fences()) {
                self.attachment.wake(from as u32);
            }
        }
        incoming.last_frame_poll = self.polls;
        if !sane {
            self.drop_corrupt_ring(from);
        }
        frames
    }

    /// Gives up a ring whose content no sender can have written, and its peer.
    #[cold]
    fn drop_corrupt_ring(&mut self, from: usize) {
        self.hot.retain(|&hot| hot as usize != from);
        let incoming = &mut self.incoming[from];
        (incoming.is_hot, incoming.ring) = (false, None);
        self.lose(from, "its ring in shared memory holds no valid frame".to_owned());
    }

    /// Hands over the rest of what lost peers have sent, then reports these peers.
    #[cold]
    pub(crate) fn report_lost(&mut self, sink: &mut impl Sink) -> usize {
        let mut events = 0;
        for (index, cause) in std::mem::take(&mut self.lost) {
            let incoming = &mut self.incoming[index as usize];
            consumer(&self.attachment, incoming, index);
            let frames = self.drain(index as usize, BATCH, sink);
            events += frames;
            if frames > 0 {
                self.lost.push((index, cause));
                continue;
            }
            self.outgoing[index as usize] = Outgoing::Down;
            sink.down(self.peers.peer(index as usize), &cause);
            events += 1;
        }
        events
    }
}

/// The receiving side of the ring from `from`, if there is a ring; made on first use, as an idle pair takes no memory.
fn consumer<'a>(
    attachment: &Attachment,
    incoming: &'a mut Incoming,
    from: u32,
) -> Option<&'a mut Consumer<MappedRing>> {
    if incoming.ring.is_none() {
        let start = attachment.segment.layout.first_element(from, attachment.me);
        let number = attachment.segment.ring_number(from, attachment.me)?;
        incoming.ring = Some(Consumer::new(attachment.segment.ring(number), start));
        incoming.find_swap(attachment, from);
    }
    incoming.ring.as_mut()
}
