//! The words of the engine's interface: arguments, identifiers, results.

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_transport::Peer;

/// Sizes that the engine works with. All ranks that talk must use the same `initial_credit`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of unexpected payload (and envelopes) this process is willing to hold, over all peers.
    pub budget: usize,
    /// Bytes of eager messages that any two processes may have in flight without having asked.
    /// The same number on both sides.
    pub initial_credit: usize,
}

impl Config {
    /// Half of `budget` bytes is split evenly over `ranks` processes as initial credit; the other half is
    /// lent to those that turn out to need more.
    pub fn new(budget: usize, ranks: u32) -> Self {
        let share = budget / 2 / (ranks.max(1) as usize);
        Self { budget, initial_credit: share.min(2 << 20) }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new(4 << 20, 64)
    }
}

/// A request of the engine. Ids are never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReqId(pub u64);

/// A message taken out of matching by [`crate::Engine::mprobe`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MsgId(pub u64);

/// When a send is complete (MPI 5.0, 3.4). Buffered sends are standard ones of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// When the buffer may be used again.
    Standard,
    /// When, besides, the receiver has matched the message.
    Sync,
    /// As standard; the user promises that the receive is posted.
    Ready,
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
    /// The bytes.
    pub data: &'a Data,
    /// When it is complete.
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

/// What is known of a message before it is received.
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
    /// Rank of the sender in the communicator (for sends, one's own).
    pub source: u32,
    /// Tag of the message (of keyed messages: 0).
    pub tag: i32,
    /// Bytes moved: for receives what was written to the buffer, for sends the message's length.
    pub bytes: u64,
    /// It was cancelled, and no byte moved.
    pub cancelled: bool,
    /// What went wrong, if anything did.
    pub fault: Option<Fault>,
}

/// Why a request did not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The message was longer than the buffer; what fits was received.
    Truncated {
        /// Bytes sent.
        sent: u64,
        /// Bytes that there was room for.
        room: u64,
    },
    /// The other process is gone.
    PeerDown {
        /// Which one.
        peer: Peer,
        /// Why, in words for people.
        cause: Arc<str>,
    },
}

/// Whether an operation is over when the call returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Started {
    /// It is; there is no request. A peer that is gone shows as [`Completion::fault`].
    Done(Completion),
    /// It is not: [`crate::Engine::test`] this one.
    Pending(ReqId),
}

/// What a request waits for, for people who ask why a program hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The request.
    pub id: ReqId,
    /// The process waited for; `None` is any.
    pub peer: Option<Peer>,
    /// Context of the communicator.
    pub ctx: u64,
    /// Tag; `None` is any, or a keyed message.
    pub tag: Option<i32>,
    /// Bytes of the message (of receives that are not matched: room for them).
    pub bytes: u64,
    /// What has to happen next, as in "send: waits for a matching receive".
    pub state: &'static str,
}

/// Counters since the engine was made.
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
    /// Reads that the fabric refused, done by messages instead.
    pub get_refused: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Bytes of unexpected payload held now.
    pub held: u64,
    /// The most that was ever held, bytes.
    pub held_most: u64,
    /// Frames that made no sense and were dropped.
    pub nonsense: u64,
}
