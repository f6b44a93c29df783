//! The contract that every fabric keeps: active messages and one-sided transfers.
//!
//! A fabric moves *frames* (a small [`Head`] and a body) between *peers*, in order per peer and class unless they are
//! [`Order::Unordered`], each exactly once. A [`Port`] is what a fabric does towards its peers; a [`Fabric`] also polls, connects and sleeps.
//! It never blocks: what it cannot take now it refuses ([`Refusal::Busy`]) and the
//! frame is still the caller's. Frames that arrive go to a [`Sink`] from inside [`Fabric::poll`].
//!
//! The values of calls have C's layout, so that a fabric may be in a library of its own.
//!
//! Invariants that the conformance suite checks for each fabric:
//! * frames of one pair arrive in the order sent (if they keep it), once, whole, with the bytes they were sent with;
//! * a refused send has no effect, and succeeds later if the receiver keeps polling;
//! * `poll` makes no progress only if nothing is there: a process that polls drains everything in bounded time;
//! * after `arm` a frame that arrives ends `sleep`, or makes the descriptor readable, also one that arrives between the two;
//! * memory that a send or transfer uses is neither read nor written after it is over, was taken back, or the peer is down;
//! * a peer that is gone is reported once by [`Sink::down`], then sends to it are refused with [`Refusal::Down`].
#![forbid(unsafe_code)]

#[cfg(feature = "conformance")]
pub mod conformance;
mod fabric;
pub mod hash;
mod joining;
mod port;
#[cfg(any(feature = "conformance", feature = "sim"))]
pub mod random;
#[cfg(feature = "sim")]
pub mod sim;

pub use fabric::{Fabric, Sink, Wake};
pub use joining::{Joining, Member, NotStarted};
pub use port::{
    Access, Atomic, Caps, DeviceMoves, Fetch, Handed, Handover, Kinds, Order, Outcome, Port, Refusal,
    RegisterError, Remote, Sent, Token, Transfer,
};

/// A process, by its number in the universe of jobs (within one job: its rank in MPI_COMM_WORLD).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
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
/// Each class defines what `kind`, `aux`, `a`, `b` and `ctx` mean. In memory fields that are stored one by one are not side by side, nor is one a part of a
/// word: compilers load those together, which waits until all stores have left, and so until the frame before has reached the other core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Head {
    /// The part of the library that handles the frame.
    pub class: Class,
    /// What the frame is, within its class.
    pub kind: u8,
    /// First word (P2p: tag; Coll: low half of the key).
    pub a: u32,
    /// Context id of the communicator.
    pub ctx: u64,
    /// Second word (P2p: rank of the sender in the communicator; Coll: high half of the key).
    pub b: u32,
    /// Small extra field: its lower 16 bits are on the wire.
    pub aux: u32,
}

impl Head {
    /// Bytes of an encoded head.
    pub const BYTES: usize = 20;

    /// Little-endian form: class, kind, aux, a, b, ctx.
    #[inline(always)]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let first = u32::from(self.class as u8) | u32::from(self.kind) << 8 | self.aux << 16;
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
            aux: u16::from_le_bytes([x0, x1]).into(),
            a: u32::from_le_bytes([a0, a1, a2, a3]),
            b: u32::from_le_bytes([b0, b1, b2, b3]),
            ctx: u64::from_le_bytes(ctx),
        })
    }
}
