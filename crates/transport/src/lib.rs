//! The contract between the engine and every fabric: active messages and one-sided reads.
//!
//! A fabric moves *frames* (a small [`Head`] and a body) between *peers*, in order per peer and class,
//! each exactly once. It never blocks: what it cannot take now it refuses ([`Refusal::Busy`]) and the
//! frame is still the caller's. Frames that arrive go to a [`Sink`] from inside [`Fabric::poll`].
//!
//! Invariants that the conformance suite checks for each fabric:
//! * frames of one pair arrive in the order sent, once, whole, with the bytes they were sent with;
//! * a refused send has no effect, and succeeds later if the receiver keeps polling;
//! * `poll` makes no progress only if nothing is there: whoever polls drains everything in bounded time;
//! * after `arm` a frame that arrives ends `sleep`; none is missed between the two;
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

/// Who handles a frame.
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
/// What `kind`, `aux`, `a`, `b` and `ctx` mean is the business of the class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Who handles it.
    pub class: Class,
    /// What it is, within the class.
    pub kind: u8,
    /// Small extra field.
    pub aux: u16,
    /// First word (p2p: tag; coll: sequence number).
    pub a: u32,
    /// Second word (p2p: rank of the sender in the communicator; coll: step).
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
    /// Frames of long messages should be about so long, bytes: what is longer travels quicker in several, since both sides
    /// work at the same time.
    pub piece: usize,
    /// [`Fabric::get`] works towards this peer.
    pub get: bool,
    /// Latency of a frame, seconds (the model's alpha).
    pub alpha: f64,
    /// Seconds a byte (the model's beta).
    pub beta: f64,
}

/// Why a send was not taken. It had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No room now, or not connected yet: poll, then try again.
    Busy,
    /// The peer is gone; [`Sink::down`] said why.
    Down,
}

/// Memory of a peer that it offers for reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address in the peer's address space.
    pub addr: u64,
    /// Bytes there.
    pub len: u64,
    /// The fabric's key for it (see [`Fabric::expose`]).
    pub key: u64,
}

/// Names a one-sided operation until it is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

/// What became of a one-sided read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Get {
    /// The bytes are there already.
    Done,
    /// [`Sink::got`] will tell.
    Started,
    /// This fabric cannot read that memory (permission, no such mechanism): use messages instead. No byte
    /// was written that a later transfer would not write again.
    Impossible,
}

/// Receives what a fabric has to tell. Called from inside [`Fabric::poll`]; must not block and has no way
/// back into the fabric: an answer that is owed is queued and sent after the poll.
pub trait Sink {
    /// A frame of `peer` arrived. `body` is only valid during the call.
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]);
    /// Where the body, of `len` bytes, of a frame that has begun to arrive may be written, if that is known already: it
    /// spares a copy. Once this gave a place, [`Sink::placed`] will say that all of the body is there, instead of
    /// [`Sink::frame`], before any other frame of the peer. The fabric asks again before it writes more of the same body;
    /// if there is no place any more the bytes are dropped.
    fn place(&mut self, _peer: Peer, _head: &Head, _len: usize) -> Option<Buffer> {
        None
    }
    /// The body of a frame arrived where [`Sink::place`] said.
    fn placed(&mut self, _peer: Peer, _head: &Head, _len: usize) {}
    /// A [`Fabric::get`] that had been started is over.
    fn got(&mut self, token: Token, outcome: Get);
    /// The peer is gone, and why. Said once.
    fn down(&mut self, peer: Peer, cause: &str);
}

/// What every fabric can do. See the module for the invariants.
pub trait Fabric {
    /// Short name, as in `BANYAN_FABRICS`.
    fn name(&self) -> &'static str;

    /// What can be done towards `peer` (may be asked before a connection exists).
    fn caps(&self, peer: Peer) -> Caps;

    /// Gives the fabric a peer's address, as that peer's fabric published it (its *card*).
    fn connect(&mut self, peer: Peer, card: &[u8]) -> Result<(), String>;

    /// A peer whose card this fabric needs before it can send what was tried; each is named once.
    fn wanted(&mut self) -> Option<Peer> {
        None
    }

    /// Sends `head` and a body of at most `caps.max_short` bytes.
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal>;

    /// Sends `head` and `len` (at most `caps.max_bcopy`) bytes that `fill` writes, at once, to the slice it
    /// is given (exactly `len` long). `fill` is not called if the send is refused, and at most once.
    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal>;

    /// As [`Fabric::send_bcopy`], with the `len` bytes of `memory` at offset `at` as the body. A fabric may take them from
    /// there without a copy; once this returns it has no more need of them.
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

    /// Makes memory of this process readable for `peer` by [`Fabric::get`].
    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote;

    /// Takes back what [`Fabric::expose`] gave, when the peer is done with it.
    fn withdraw(&mut self, _remote: Remote) {}

    /// The same while the peer may still read it, because the memory is about to be used for something else: no read that
    /// ends from now on is [`Get::Done`], also if it began before. Reads of other memory of this process that are under way
    /// may be refused with it.
    fn revoke(&mut self, remote: Remote) {
        self.withdraw(remote);
    }

    /// Reads `remote.len` bytes of `peer`'s memory into `local` (same length).
    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get;

    /// Ends a read that was [`Get::Started`], if it is not over: from now on none of its bytes is written, and [`Sink::got`]
    /// is not called for it.
    fn recall(&mut self, _token: Token) {}

    /// Moves what can be moved without waiting, and hands what arrived to `sink`. Handles a bounded number of
    /// frames; returns how many things happened (0: nothing to do now).
    fn poll(&mut self, sink: &mut impl Sink) -> usize;

    /// Bytes accepted but not yet handed to the other side (they need more polls of ours to leave).
    fn unsent(&self) -> bool {
        false
    }

    /// Announces that this process is about to sleep: from now on arrivals end [`Fabric::sleep`]. The caller
    /// polls once more between `arm` and `sleep`.
    fn arm(&mut self);

    /// Takes the announcement back (after the sleep, or if there was work after all).
    fn disarm(&mut self);

    /// Sleeps until something arrived since `arm`, or the deadline passed, or for no reason.
    fn sleep(&mut self, deadline: Option<Instant>);

    /// When the fabric wants to be polled even if nothing arrives.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
