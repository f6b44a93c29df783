//! The contract that every fabric keeps: active messages and one-sided reads.
//!
//! A fabric moves *frames* (a small [`Head`] and a body) between *peers*, in order per peer and class,
//! each exactly once. It never blocks: what it cannot take now it refuses ([`Refusal::Busy`]) and the
//! frame is still the caller's. Frames that arrive go to a [`Sink`] from inside [`Fabric::poll`].
//!
//! Invariants that the conformance suite checks for each fabric:
//! * frames of one pair arrive in the order sent, once, whole, with the bytes they were sent with;
//! * a refused send has no effect, and succeeds later if the receiver keeps polling;
//! * `poll` makes no progress only if nothing is there: a process that polls drains everything in bounded time;
//! * after `arm` a frame that arrives ends `sleep`, also one that arrives between the two;
//! * a peer that is gone is reported once by [`Sink::down`], then sends to it are refused with [`Refusal::Down`].
#![forbid(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(any(feature = "conformance", feature = "sim"))]
pub mod random;
#[cfg(feature = "sim")]
pub mod sim;

use std::time::Instant;

use banyan_memory::Buffer;

/// A process, by its number in the universe of jobs (within one job: its rank in MPI_COMM_WORLD).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Peer(pub u32);

/// The part of the library that handles a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// Point-to-point messages (and the protocol behind all payload).
    P2p = 0,
    /// Messages of collective schedules.
    Coll = 1,
    /// One-sided communication.
    Rma = 2,
    /// Housekeeping between runtimes.
    Control = 3,
}

impl Class {
    /// The class with this number, if there is one.
    #[inline]
    pub fn from_u8(value: u8) -> Option<Class> {
        match value {
            0 => Some(Class::P2p),
            1 => Some(Class::Coll),
            2 => Some(Class::Rma),
            3 => Some(Class::Control),
            _ => None,
        }
    }
}

/// The fixed part of every frame: 20 bytes on the wire, so that head and a small body share one cache line.
/// Each class defines what `kind`, `aux`, `a`, `b` and `ctx` mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The part of the library that handles the frame.
    pub class: Class,
    /// What the frame is, within its class.
    pub kind: u8,
    /// Small extra field.
    pub aux: u16,
    /// First word (P2p: tag; Coll: low half of the key).
    pub a: u32,
    /// Second word (P2p: rank of the sender in the communicator; Coll: high half of the key).
    pub b: u32,
    /// Context id of the communicator.
    pub ctx: u64,
}

impl Head {
    /// Bytes of an encoded head.
    pub const BYTES: usize = 20;

    /// Little-endian form: class, kind, aux, a, b, ctx.
    #[inline(always)]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let first = u32::from(self.class as u8) | u32::from(self.kind) << 8 | u32::from(self.aux) << 16;
        out[..4].copy_from_slice(&first.to_le_bytes());
        out[4..8].copy_from_slice(&self.a.to_le_bytes());
        out[8..12].copy_from_slice(&self.b.to_le_bytes());
        out[12..20].copy_from_slice(&self.ctx.to_le_bytes());
        out
    }

    /// Reads what [`Head::encode`] wrote; `None` if the class is unknown.
    #[inline(always)]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Head> {
        let [class, kind, x0, x1, a0, a1, a2, a3, b0, b1, b2, b3, ctx @ ..] = *bytes;
        Some(Head {
            class: Class::from_u8(class)?,
            kind,
            aux: u16::from_le_bytes([x0, x1]),
            a: u32::from_le_bytes([a0, a1, a2, a3]),
            b: u32::from_le_bytes([b0, b1, b2, b3]),
            ctx: u64::from_le_bytes(ctx),
        })
    }
}

/// What a fabric can do towards one peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Caps {
    /// Largest body of [`Fabric::send_short`], bytes.
    pub max_short: usize,
    /// Largest body of [`Fabric::send_bcopy`], bytes; at least 4096.
    pub max_bcopy: usize,
    /// Up to this many bytes a copy through the fabric is quicker than a rendezvous.
    pub eager: usize,
    /// Frames of long messages should be about so long, bytes: a longer message travels quicker in several frames, since
    /// both sides copy at the same time.
    pub piece: usize,
    /// [`Fabric::get`] works towards this peer.
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
    /// The fabric's key for the range (see [`Fabric::expose`]).
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

/// Receives frames and events of a fabric. Called from inside [`Fabric::poll`]; must not block and cannot call
/// the fabric: a reply that is owed is queued and sent after the poll.
pub trait Sink {
    /// A frame of `peer` arrived. `body` is only valid during the call.
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]);
    /// The memory that the body, of `len` bytes, of a frame that has begun to arrive is to be written to, if it is known
    /// already: this spares a copy. Once this gave memory, the fabric calls [`Sink::placed`] when all of the body is there,
    /// instead of [`Sink::frame`], before any other frame of the peer. The fabric asks again before it writes more of the
    /// same body; `None` then means that the rest is dropped.
    fn place(&mut self, _peer: Peer, _head: &Head, _len: usize) -> Option<Buffer> {
        None
    }
    /// All of the body of a frame has arrived in the memory that [`Sink::place`] gave.
    fn placed(&mut self, _peer: Peer, _head: &Head, _len: usize) {}
    /// A [`Fabric::get`] that was [`Get::Started`] is over; `outcome` is one of the other two.
    fn got(&mut self, token: Token, outcome: Get);
    /// The peer is gone, and why: a sentence for people. Called once for each peer.
    fn down(&mut self, peer: Peer, cause: &str);
}

/// What every fabric can do. See the module for the invariants.
pub trait Fabric {
    /// Short name, as in `BANYAN_FABRICS`.
    fn name(&self) -> &'static str;

    /// What the fabric can do towards `peer` (also before a connection exists).
    fn caps(&self, peer: Peer) -> Caps;

    /// Gives the fabric a peer's addresses, as that peer's fabric published them (its *business card*).
    ///
    /// # Errors
    /// If the business card is not one of `peer`.
    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String>;

    /// A peer that a send was refused to because this fabric has no business card of it; each is named once.
    fn wanted(&mut self) -> Option<Peer> {
        None
    }

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

    /// Exposes memory of this process: `peer` may read it by [`Fabric::get`].
    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote;

    /// Ends the exposure of a range when the peer does not need it any more.
    fn withdraw(&mut self, _remote: Remote) {}

    /// Ends the exposure of a range that the peer may be reading, because the memory is about to be used for something else:
    /// no read of it that ends from now on is [`Get::Done`], also if it began before. Reads of other memory of this process
    /// that are under way may be refused with it.
    fn revoke(&mut self, remote: Remote) {
        self.withdraw(remote);
    }

    /// Reads an exposed range of `peer`, or a part of it, into `local`, which has the same length.
    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get;

    /// Cancels a read that was [`Get::Started`], if it is not over: from now on none of its bytes is written, and
    /// [`Sink::got`] is not called for it.
    fn recall(&mut self, _token: Token) {}

    /// Sends what can be sent without waiting, and hands frames that arrived to `sink`. Handles a bounded number of
    /// frames; returns how many things happened (0: there is nothing to do now).
    fn poll(&mut self, sink: &mut impl Sink) -> usize;

    /// True if accepted bytes are still in this process: they need more polls to leave.
    fn unsent(&self) -> bool {
        false
    }

    /// Announces that this process is about to sleep: from now on arrivals end [`Fabric::sleep`]. The caller
    /// polls once more between `arm` and `sleep`.
    fn arm(&mut self);

    /// Takes the announcement of [`Fabric::arm`] back (after the sleep, or if there was work after all).
    fn disarm(&mut self);

    /// Sleeps until something has arrived since `arm` or the deadline has passed; may also return for no reason.
    fn sleep(&mut self, deadline: Option<Instant>);

    /// When the fabric wants to be polled even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
