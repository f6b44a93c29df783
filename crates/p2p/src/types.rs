//! Arguments, identifiers and results of [`crate::P2p`].

use std::fmt;
use std::sync::Arc;

use banyan_datatype::Data;
use banyan_topo::KnownWay;
use banyan_transport::Peer;

use crate::ways::{CLASSES, Found, Preference, Way};

/// Sizes that [`crate::P2p`] works with. All ranks that talk must have the same `initial_credit`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of unexpected payload (and envelopes) this process is willing to hold, over all peers.
    pub budget: usize,
    /// Bytes of eager messages that a process may have in flight to another one from the start, without having asked for
    /// credit. Both have the same number.
    pub initial_credit: usize,
    /// Which way messages of 16 KiB and more take that are announced to a peer which can read this process's memory. As far as
    /// credit allows, shorter ones, and those that the fabric takes whole, are sent eagerly in any case.
    pub choice: Choice,
    /// The shortest message from memory of a device that its receiver reads there, where the fabric can do that, bytes.
    pub ipc_from: u64,
    /// What earlier jobs have found, where the way is chosen.
    pub known: Known,
}

/// How the way of long messages is chosen. All ranks that talk must have alike.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// It is always this one.
    Fixed(Way),
    /// Their receiver chooses by what it measures.
    Measured {
        /// This process. Of two that send each other long messages at the same time the one with the lower number chooses for both:
        /// what both do by turns, or one alone does, would not show what it is worth.
        me: Peer,
        /// Gives the time, ns, from any beginning.
        clock: fn() -> u64,
    },
}

impl Choice {
    /// Classes of messages, as bits, that are announced to a peer of which nothing is known; and those whose frames are copied past the caches.
    pub(crate) fn first(&self) -> (u16, u16) {
        const ALL: u16 = (1 << CLASSES) - 1;
        match self {
            Choice::Fixed(Way::NonTemporal) => (0, ALL),
            Choice::Fixed(_) => (0, 0),
            Choice::Measured { .. } => (u16::from(Preference::FIRST.announces()) * ALL, 0),
        }
    }

    /// The time, ns; 0 where nothing is measured.
    pub(crate) fn now(&self) -> u64 {
        match self {
            Choice::Fixed(_) => 0,
            Choice::Measured { clock, .. } => clock(),
        }
    }

    pub(crate) fn me(&self) -> Option<Peer> {
        match self {
            Choice::Fixed(_) => None,
            Choice::Measured { me, .. } => Some(*me),
        }
    }
}

/// Of classes and traffic what is known of their ways, and by whom.
pub type KnownRows = Vec<(KnownWay, Found)>;

/// What is known beforehand of the ways of long messages to and from a peer: what earlier jobs have found ([`Found::Before`]), and for the
/// rest what the machine's profile says ([`Found::NotYet`]). Both ends must have the same. It is asked once for each peer, when there is such a
/// message.
#[derive(Clone, Default)]
pub struct Known(Option<Arc<dyn Fn(Peer) -> KnownRows + Send + Sync>>);

impl Known {
    /// By this function.
    pub fn by(known: impl Fn(Peer) -> KnownRows + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(known)))
    }

    pub(crate) fn of(&self, peer: Peer) -> KnownRows {
        self.0.as_ref().map_or(Vec::new(), |known| known(peer))
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Known" } else { "Unknown" })
    }
}

impl Config {
    /// Half of `budget` bytes is split evenly over `ranks` processes as initial credit (at most 2 MiB each); the other half
    /// is lent to those that turn out to need more.
    pub fn new(budget: usize, ranks: u32) -> Self {
        let share = budget / 2 / (ranks.max(1) as usize);
        Self {
            budget,
            initial_credit: share.min(2 << 20),
            choice: Choice::Fixed(Way::Read),
            ipc_from: 64 << 10,
            known: Known::default(),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new(4 << 20, 64)
    }
}

/// Id of a request of [`crate::P2p`]. No id is used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReqId(pub u64);

/// Id of a message taken out of matching by [`crate::P2p::mprobe`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MsgId(pub u64);

/// When a send is complete (MPI 5.0, 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// When the buffer may be used again.
    Standard,
    /// When the buffer may be used again and the receiver has matched the message.
    Sync,
    /// When the buffer may be used again; the user promises that the receive is posted.
    Ready,
    /// When the buffer may be used again, which is at once: a message that cannot leave at once leaves from a copy.
    Buffered,
}

/// What to send, and where.
#[derive(Clone, Copy)]
pub struct SendArgs<'a> {
    /// The process that receives.
    pub peer: Peer,
    /// Context of the communicator.
    pub ctx: u64,
    /// Tag, not negative.
    pub tag: i32,
    /// Rank of this process in the communicator, as the receiver sees it.
    pub src_rank: u32,
    /// The bytes to send.
    pub data: &'a Data,
    /// When the send is complete.
    pub mode: Mode,
}

/// What to receive, and where to put it.
#[derive(Clone, Copy)]
pub struct RecvArgs<'a> {
    /// Context of the communicator.
    pub ctx: u64,
    /// Rank of the sender in the communicator and the process behind it; `None` is MPI_ANY_SOURCE.
    pub src: Option<(u32, Peer)>,
    /// Tag; `None` is MPI_ANY_TAG.
    pub tag: Option<i32>,
    /// Where the bytes go.
    pub data: &'a Data,
}

/// What a receiver knows of a message before it is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Rank of the sender in the communicator.
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Bytes sent.
    pub bytes: u64,
}

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Rank of the sender in the communicator; of a send, that of this process.
    pub source: u32,
    /// Tag of the message (of keyed messages: 0).
    pub tag: i32,
    /// Bytes moved: of a receive those written to the buffer, of a send the message's length.
    pub bytes: u64,
    /// The request was cancelled, and no byte moved.
    pub cancelled: bool,
    /// What went wrong, if anything did: a pointer, so that good outcomes are small.
    pub fault: Option<Box<Fault>>,
}

/// Why a request did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The message was longer than the buffer; the bytes that fit were received.
    Truncated {
        /// Bytes sent.
        sent: u64,
        /// Bytes that there was room for.
        room: u64,
    },
    /// There is no memory for a copy of the message.
    NoMemory {
        /// Bytes of the message.
        bytes: u64,
    },
    /// A device of this process has not copied the message.
    Device {
        /// A sentence: what failed, why, and what to do.
        what: Arc<str>,
    },
    /// A device of the sender has not given the message.
    Unsent {
        /// The sender.
        peer: Peer,
    },
    /// The other process is gone.
    PeerDown {
        /// The process.
        peer: Peer,
        /// Why it is gone, for people; a sentence in which "it" is the process.
        cause: Arc<str>,
    },
}

/// Whether an operation is over when the call returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Started {
    /// The operation is over; there is no request. A peer that is gone shows as [`Completion::fault`].
    Done(Completion),
    /// There is a request: [`crate::P2p::test`] tells when the operation is over, which may be at once.
    Pending(ReqId),
}

/// What a request waits for, for people who ask why a program hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The request.
    pub id: ReqId,
    /// The process that is waited for; `None` is any.
    pub peer: Option<Peer>,
    /// Context of the communicator.
    pub ctx: u64,
    /// Tag; `None` is any, or a keyed message.
    pub tag: Option<i32>,
    /// Bytes of the message; of a receive that is not matched, its room in bytes.
    pub bytes: u64,
    /// What has to happen next, as in "send: waits for a matching receive".
    pub state: &'static str,
}

/// Counters since [`crate::P2p::new`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Messages sent eagerly.
    pub eager: u64,
    /// Messages sent by rendezvous because of their size or mode.
    pub rendezvous: u64,
    /// Messages sent by rendezvous only because the receiver had lent no credit for them.
    pub starved: u64,
    /// Sends that had to wait for room in the fabric.
    pub busy: u64,
    /// Messages read out of the sender's memory.
    pub gets: u64,
    /// Messages, or halves of them, written to the receiver's memory.
    pub puts: u64,
    /// Reads that the fabric refused, done by messages instead.
    pub get_refused: u64,
    /// Memory that the fabric did not register, so that it could not be read.
    pub registrations_refused: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Bytes of unexpected payload kept now.
    pub buffered: u64,
    /// The most that was ever kept, bytes.
    pub buffered_most: u64,
    /// Frames that were dropped: of a peer that misbehaved, too late for a request that is gone, or of a class that is not
    /// for messages (or, of class Control, too long or too many).
    pub misbehaved: u64,
}
