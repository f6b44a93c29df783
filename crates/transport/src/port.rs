//! [`Port`]: what a fabric does towards its peers, and the values that say what became of it.

use banyan_memory::Buffer;

#[cfg(doc)]
use crate::Sink;
use crate::{Head, Peer};

/// What a fabric can do towards one peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Caps {
    /// Largest body of [`Port::send_short`], bytes.
    pub max_short: usize,
    /// Largest body of [`Port::send_bcopy`], bytes; at least 4096.
    pub max_bcopy: usize,
    /// Up to this many bytes a copy through the fabric is quicker than a rendezvous.
    pub eager: usize,
    /// Frames of long messages should be about so long, bytes: a longer message travels quicker in several frames, since
    /// both sides copy at the same time.
    pub piece: usize,
    /// [`Port::get`] works towards this peer.
    pub get: bool,
    /// Latency of a frame, seconds (alpha of the cost model).
    pub alpha: f64,
    /// Seconds a byte (beta of the cost model).
    pub beta: f64,
}

/// Why a fabric refused a send. The send had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No room now, or not connected yet: poll, then try again.
    Busy,
    /// The peer is gone; [`Sink::down`] said why.
    Down,
}

/// An exposed range: memory that a peer has made readable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address in the peer's address space.
    pub addr: u64,
    /// Length, bytes.
    pub len: u64,
    /// The fabric's key for the range (see [`Port::expose`]).
    pub key: u64,
}

/// Names a one-sided read until it is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// What became of a one-sided read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Get {
    /// The bytes are there already.
    Done,
    /// The read is under way; [`Sink::got`] will tell its outcome.
    Started,
    /// This fabric cannot read that memory (no permission, or no such mechanism): use messages instead. It may have written
    /// some of the bytes to the local memory, all of which a later transfer writes again.
    Impossible,
}

/// Sends frames to peers and reads their memory. A single fabric is a port, and so is the runtime's list of all its fabrics,
/// which passes each call to the fabric that reaches the peer. See the [crate] for the invariants.
pub trait Port {
    /// What the fabric can do towards `peer` (also before a connection exists).
    fn caps(&self, peer: Peer) -> Caps;

    /// Sends `head` and a body of at most `caps.max_short` bytes.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal>;

    /// Sends `head` and a body of `len` bytes (at most `caps.max_bcopy`). If the send is not refused, `fill` is called once,
    /// before this returns, with a slice of `len` bytes that it writes the body to.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal>;

    /// Sends `head` and the `len` bytes (at most `caps.max_bcopy`) of `memory` at offset `at`. A fabric may send them without
    /// a copy; once this returns it does not need them any more.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        memory: &Buffer,
        at: isize,
        len: usize,
    ) -> Result<(), Refusal> {
        self.send_bcopy(peer, head, len, &mut |body| memory.read(at, body))
    }

    /// Exposes memory of this process: `peer` may read it by [`Port::get`].
    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote;

    /// Ends the exposure of a range to `peer`, which does not need it any more.
    fn withdraw(&mut self, _peer: Peer, _remote: Remote) {}

    /// Ends the exposure of a range that `peer` may be reading, because the memory is about to be used for something else:
    /// no read of it that ends from now on is [`Get::Done`], also if it began before. Reads of other memory of this process
    /// that are under way may be refused with it.
    fn revoke(&mut self, peer: Peer, remote: Remote) {
        self.withdraw(peer, remote);
    }

    /// Reads an exposed range of `peer`, or a part of it, into `local`, which has the same length.
    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get;

    /// Cancels a read of memory of `peer` that was [`Get::Started`], if it is not over: from now on none of its bytes is
    /// written, and [`Sink::got`] is not called for it.
    fn recall(&mut self, _peer: Peer, _token: Token) {}
}
