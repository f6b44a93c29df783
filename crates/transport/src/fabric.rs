//! [`Fabric`]: what the runtime needs of a fabric besides its [`Port`], and the [`Sink`] that arriving frames go to.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use banyan_memory::Buffer;

#[cfg(doc)]
use crate::Transfer;
use crate::{Head, Outcome, Peer, Port, Token};

/// Receives frames and events of a fabric. Called from inside [`Fabric::poll`]; must not block and cannot call
/// the fabric: a reply that is owed is queued and sent after the poll.
pub trait Sink {
    /// A frame of `peer` arrived. `body` is only valid during the call.
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]);
    /// The memory that the body, of `len` bytes, of a frame that has begun to arrive is to be written to, if it is known
    /// already: this spares a copy. Once this gave memory, the fabric calls [`Sink::landed`] when all of the body is there,
    /// instead of [`Sink::frame`], in the frame's place among the others of the peer. The fabric asks again before it writes more
    /// of the same body; `None` then means that the rest is dropped.
    fn landing(&mut self, _peer: Peer, _head: &Head, _len: usize) -> Option<Buffer> {
        None
    }
    /// All of the body of a frame has arrived in the memory that [`Sink::landing`] gave.
    fn landed(&mut self, _peer: Peer, _head: &Head, _len: usize) {}
    /// The local memory of a [`Port::put`] that is under way, or of one frame of [`Port::send_from`], is not needed any more. A
    /// fabric that learns of both ends of a put at once only calls [`Sink::completed`].
    fn sent(&mut self, token: Token);
    /// A one-sided transfer that was [`Transfer::Started`] is over.
    fn completed(&mut self, token: Token, outcome: Outcome);
    /// The peer is gone, and why: a sentence for people. Called once for each peer. What was under way to it is over, and told
    /// of no more.
    fn down(&mut self, peer: Peer, cause: &str);
    /// A send to this peer was refused because the fabric has no business card of it; each is named once. It may be named once more where
    /// no connection to it came about, so that nothing has left: then [`Fabric::connect`] refuses it with the reason, and another fabric may
    /// carry it.
    fn wanted(&mut self, _peer: Peer) {}
    /// The peer could not be reached so far, or not again: it may be gone, which the launcher knows. Each is named once, until it is reached.
    fn unreached(&mut self, _peer: Peer) {}
}

/// How arrivals end a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wake {
    /// They end [`Fabric::sleep`]: this fabric is all that the process waits for.
    Sleep,
    /// They make [`Fabric::descriptor`] readable: the process waits for several things at once.
    Descriptor,
}

/// A [`Port`] that connects to peers, is polled, and can be slept on. See the [crate] for the invariants.
pub trait Fabric: Port {
    /// Whether this fabric can carry frames to `peer` (once it is connected).
    fn reaches(&self, peer: Peer) -> bool;

    /// Gives the fabric a peer's addresses, as that peer's fabric published them (its *business card*).
    ///
    /// # Errors
    /// If the business card is not one of `peer`.
    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String>;

    /// Takes the launcher's word that the process of `peer` has ended: polls still hand over what it sent, as far as that can be
    /// had, then report it by [`Sink::down`] with `cause`, unless they have done so.
    fn peer_died(&mut self, _peer: Peer, _cause: &str) {}

    /// Sends what can be sent without waiting, and hands frames that arrived to `sink`. Handles a bounded number of
    /// frames; returns how many things happened (0: there is nothing to do now).
    fn poll(&mut self, sink: &mut impl Sink) -> usize
    where
        Self: Sized;

    /// Looks so many times at most until something has come, and for nothing else that a poll attends to; hands over what it finds, as a poll
    /// does. For a process that waits for this fabric alone, where a look takes much less than a poll.
    fn linger(&mut self, _looks: u32, _sink: &mut impl Sink) -> usize
    where
        Self: Sized,
    {
        0
    }

    /// True if it is certain, and cheap to tell, that a poll would find nothing.
    fn nothing_to_poll(&self) -> bool {
        false
    }

    /// True if the kernel brings what comes, by work that may need the core of a process that waits: that process yields it between polls.
    fn by_kernel(&self) -> bool {
        false
    }

    /// True if accepted bytes are still in this process: they need more polls to leave.
    fn unsent(&self) -> bool {
        false
    }

    /// Announces that this process is about to sleep: from now on arrivals end the sleep, in the way that `wake` says. The
    /// caller then polls once more, asks [`Fabric::has_news`], and sleeps.
    fn arm(&mut self, wake: Wake);

    /// Takes the announcement of [`Fabric::arm`] back (after the sleep, or if there was work after all).
    fn disarm(&mut self);

    /// After arming and a poll: true if something has come that no poll shows (room for a refused send, for one), or this
    /// process was woken already. [`Fabric::sleep`] then returns at once, and the descriptor need not become readable.
    fn has_news(&mut self) -> bool {
        false
    }

    /// After arming by [`Wake::Sleep`]: sleeps until something has arrived since, or the deadline has passed; may also return
    /// for no reason.
    fn sleep(&mut self, deadline: Option<Instant>);

    /// The descriptor that arrivals make readable after arming by [`Wake::Descriptor`], as a duplicate: another thread can
    /// sleep on it. What a poll has seen does not make it readable.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    fn descriptor(&mut self) -> io::Result<OwnedFd>;

    /// When the fabric wants to be polled even if nothing arrives; after arming the latest end of the sleep.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// What the fabric has done so far, for people: by what its bytes went, and how many.
    fn account(&self) -> Option<String> {
        None
    }
}
