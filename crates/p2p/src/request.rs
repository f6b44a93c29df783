//! Requests and unexpected messages, and the states they go through.

use std::num::NonZeroU64;
use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Head, Peer, Remote};

use crate::types::{Completion, Fault, ReqId, Wait};
use crate::wire::{self, Kind};

/// A request, from the call that starts it to the test that finds it done.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) state: State,
    /// Nobody will test it: it goes when it is done.
    pub(crate) orphan: bool,
}

#[derive(Debug)]
pub(crate) enum State {
    Send(Send),
    Recv(Recv),
    Done(Completion),
}

impl Request {
    #[inline]
    pub(crate) fn new(state: State) -> Self {
        Self { state, orphan: false }
    }

    /// An outcome in which nothing happened.
    pub(crate) fn blank(&self) -> Completion {
        match &self.state {
            State::Done(completion) => completion.clone(),
            State::Send(send) => sent(&send.head, 0),
            State::Recv(recv) => match recv.step.message() {
                Some(message) => received(message.source, message.tag, 0, 0),
                None => received(0, recv.tag.unwrap_or(0), 0, 0),
            },
        }
    }

    /// It cannot complete without this peer.
    pub(crate) fn needs(&self, peer: Peer) -> bool {
        match &self.state {
            State::Done(_) => false,
            State::Send(send) => send.peer == peer,
            State::Recv(recv) => recv.peer == Some(peer),
        }
    }

    /// Memory that it exposed, and to whom.
    #[inline]
    pub(crate) fn exposed(&self) -> Option<(Peer, Remote)> {
        let State::Send(send) = &self.state else { return None };
        match send.step {
            SendStep::Leave { region, .. } | SendStep::Answer { region, .. } => Some((send.peer, region?)),
            SendStep::Follow { .. } | SendStep::Stream { .. } => None,
        }
    }
}

/// A send that is under way.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) peer: Peer,
    /// The envelope; its kind and `aux` are filled in when it leaves.
    pub(crate) head: Head,
    pub(crate) data: Data,
    pub(crate) step: SendStep,
}

/// What a send waits for.
#[derive(Debug)]
pub(crate) enum SendStep {
    /// Room in the fabric for the envelope. The region is exposed already if that was tried before.
    Leave { sync: bool, region: Option<Remote> },
    /// The receiver: it may take the message, ask for pieces, or (after a cancel) forget it. So many bytes have
    /// followed the offer. It is `counted` among those announced.
    Answer { region: Option<Remote>, sent: u64, counted: bool },
    /// Room in the fabric for what follows the offer, which is all, in frames of `piece` bytes.
    Follow { sent: u64, piece: usize },
    /// Room in the fabric for the pieces that the receiver asked for.
    Stream { to: u64, room: u64, sent: u64 },
}

/// A receive that is under way.
#[derive(Debug)]
pub(crate) struct Recv {
    /// The process that was named, or, once matched, the sender.
    pub(crate) peer: Option<Peer>,
    pub(crate) ctx: u64,
    pub(crate) class: Class,
    /// Tag that was named (of keyed receives: none).
    pub(crate) tag: Option<i32>,
    pub(crate) data: Data,
    pub(crate) step: RecvStep,
}

/// What a receive waits for.
#[derive(Debug)]
pub(crate) enum RecvStep {
    /// A message; the place is where it is posted.
    Match { place: u32 },
    /// Pieces that the sender was asked for.
    Pieces(Box<Pieces>),
    /// A read of the sender's memory.
    Read(Box<Read>),
}

/// A message that arrives in pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) message: Matched,
    pub(crate) received: u64,
}

/// A message that is read where it lies.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) message: Matched,
    /// Where: address and key.
    pub(crate) region: (u64, u64),
    pub(crate) done: u64,
    /// Where the bytes go first, if they must be scattered.
    pub(crate) scratch: Option<Buffer>,
}

/// What is known of a rendezvous once it is matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched {
    pub(crate) peer: Peer,
    /// Id of the send, there.
    pub(crate) sender: u64,
    pub(crate) source: u32,
    pub(crate) tag: i32,
    /// Bytes sent.
    pub(crate) total: u64,
    /// Bytes that are wanted of them.
    pub(crate) wanted: u64,
}

impl RecvStep {
    /// The message, once there is one.
    fn message(&self) -> Option<&Matched> {
        match self {
            RecvStep::Match { .. } => None,
            RecvStep::Pieces(pieces) => Some(&pieces.message),
            RecvStep::Read(read) => Some(&read.message),
        }
    }
}

impl Matched {
    pub(crate) fn completion(&self) -> Completion {
        received(self.source, self.tag, self.total, self.wanted)
    }
}

/// The outcome of a receive of `sent` bytes into room for `wanted` or more of them.
#[inline(always)]
pub(crate) fn received(source: u32, tag: i32, sent: u64, wanted: u64) -> Completion {
    if sent > wanted {
        return truncated(source, tag, sent, wanted);
    }
    Completion { source, tag, bytes: wanted, cancelled: false, fault: None }
}

#[cold]
fn truncated(source: u32, tag: i32, sent: u64, room: u64) -> Completion {
    let fault = Some(Fault::Truncated { sent, room });
    Completion { source, tag, bytes: room, cancelled: false, fault }
}

impl Send {
    /// The outcome if all went well.
    pub(crate) fn completion(&self) -> Completion {
        sent(&self.head, self.data.len())
    }

    pub(crate) fn wait(&self, id: ReqId) -> Wait {
        let state = match self.step {
            SendStep::Leave { .. } => "send: waits for room in the fabric",
            SendStep::Answer { .. } => "send: waits for a matching receive",
            SendStep::Follow { .. } | SendStep::Stream { .. } => {
                "send: waits for room in the fabric for the rest of its data"
            }
        };
        let tag = (self.head.class == Class::P2p).then_some(self.head.a as i32);
        Wait { id, peer: Some(self.peer), ctx: self.head.ctx, tag, bytes: self.data.len(), state }
    }
}

impl Recv {
    /// Such a piece of a message may come from `peer`, if anything may.
    pub(crate) fn awaits(&self, peer: Peer, at: u64, len: usize) -> Option<()> {
        let RecvStep::Pieces(pieces) = &self.step else { return None };
        let Pieces { message, received } = &**pieces;
        let ends = at.checked_add(len as u64)?;
        let fits = ends <= message.wanted && *received + len as u64 <= message.wanted;
        (self.peer == Some(peer) && fits).then_some(())
    }

    /// A piece is there; gives the outcome with the last one.
    pub(crate) fn arrived(&mut self, len: usize) -> Option<Completion> {
        let RecvStep::Pieces(pieces) = &mut self.step else { return None };
        let Pieces { message, received } = &mut **pieces;
        *received += len as u64;
        (*received == message.wanted).then(|| message.completion())
    }

    pub(crate) fn wait(&self, id: ReqId) -> Wait {
        let state = match self.step {
            RecvStep::Match { .. } => "receive: waits for a matching message",
            RecvStep::Pieces(_) => "receive: matched, waits for the data",
            RecvStep::Read(_) => "receive: matched, reads the sender's memory",
        };
        let (tag, bytes) = match self.step.message() {
            Some(message) => (Some(message.tag), message.total),
            None => (self.tag, self.data.len()),
        };
        let tag = tag.filter(|_| self.class == Class::P2p);
        Wait { id, peer: self.peer, ctx: self.ctx, tag, bytes, state }
    }
}

/// The outcome of a send of `bytes` bytes.
#[inline]
pub(crate) fn sent(head: &Head, bytes: u64) -> Completion {
    let (source, tag) = labels(head);
    Completion { source, tag, bytes, cancelled: false, fault: None }
}

/// Rank of the sender and tag of an envelope (keyed messages have neither).
#[inline]
pub(crate) fn labels(head: &Head) -> (u32, i32) {
    match head.class {
        Class::Coll => (0, 0),
        _ => (head.b, head.a as i32),
    }
}

/// The outcome when `peer` is gone.
pub(crate) fn lost(peer: Peer, cause: &Arc<str>, mut but: Completion) -> Completion {
    but.bytes = 0;
    but.fault = Some(Fault::PeerDown { peer, cause: cause.clone() });
    but
}

/// Payload up to this long lies in the message itself, bytes: what fits without making one larger.
pub(crate) const SHORT: usize = 23;

/// A message that no receive has taken yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) peer: Peer,
    pub(crate) source: u32,
    pub(crate) tag: i32,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// All of it is here: the first `len` of `bytes`. The sender may wait to hear that it is matched.
    Short { waits: Option<NonZeroU64>, len: u8, bytes: [u8; SHORT] },
    /// All of it is here, and longer than that.
    Whole { waits: Option<NonZeroU64>, payload: Vec<u8> },
    /// It is still with the sender, but for what has followed the offer.
    Offer { rts: wire::Rts, early: Option<Box<Early>> },
}

impl Body {
    /// What is here of a whole message.
    pub(crate) fn payload(&self) -> &[u8] {
        match self {
            Body::Short { len, bytes, .. } => &bytes[..usize::from(*len)],
            Body::Whole { payload, .. } => payload,
            Body::Offer { .. } => &[],
        }
    }
}

/// The first bytes of a message, as frames brought them.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
}

impl Message {
    pub(crate) fn bytes(&self) -> u64 {
        match &self.body {
            Body::Offer { rts, .. } => rts.total,
            whole => whole.payload().len() as u64,
        }
    }

    /// Id of the send, if it is known.
    pub(crate) fn sender(&self) -> Option<u64> {
        match &self.body {
            Body::Short { waits, .. } | Body::Whole { waits, .. } => waits.map(NonZeroU64::get),
            Body::Offer { rts, .. } => Some(rts.id),
        }
    }
}

/// A frame that is owed to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    body: [u8; 16],
    len: u8,
}

impl Reply {
    pub(crate) fn bare(kind: Kind, ctx: u64, wide: u64) -> Self {
        Self { head: wire::control(kind, ctx, wide), body: [0; 16], len: 0 }
    }

    pub(crate) fn with(kind: Kind, ctx: u64, bytes: &[u8]) -> Self {
        let mut reply = Self::bare(kind, ctx, 0);
        reply.body[..bytes.len()].copy_from_slice(bytes);
        reply.len = bytes.len() as u8;
        reply
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body[..self.len as usize]
    }
}
