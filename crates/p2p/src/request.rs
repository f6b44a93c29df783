//! Requests and unexpected messages, and the states they go through.

use std::num::NonZeroU64;
use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::{Buffer, DeviceFailure};
use banyan_transport::{Class, Head, Peer, Remote};

use crate::long::Chosen;
use crate::misbehaved::Misbehaved;
use crate::payload;
use crate::staging::{Incoming, Outgoing};
use crate::types::{Completion, Fault, ReqId, Wait};
use crate::ways::Way;
use crate::wire::{self, Grant, Kind};

/// A request, from the call that starts it to the test that finds it done.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) state: State,
    /// Nobody will test it: it is freed when it is done.
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

    /// The outcome of this request if no byte moves.
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

    /// The request cannot complete without this peer.
    pub(crate) fn needs(&self, peer: Peer) -> bool {
        match &self.state {
            State::Done(_) => false,
            State::Send(send) => send.peer == peer,
            State::Recv(recv) => recv.peer == Some(peer) && !recv.awaits_device(),
        }
    }

    /// The memory that the request exposes, and the peer that may read it, or write it if it is a receive's.
    #[inline]
    pub(crate) fn exposed(&self) -> Option<(Peer, Remote)> {
        match &self.state {
            State::Send(send) => Some((send.peer, send.step.region()?)),
            State::Recv(recv) => Some((recv.peer?, recv.step.granted()?)),
            State::Done(_) => None,
        }
    }
}

/// A send that is under way.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) peer: Peer,
    /// The envelope; its kind and `aux` are set when it leaves.
    pub(crate) head: Head,
    pub(crate) data: Data,
    /// Frames for which the fabric needs `data` until it tells.
    pub(crate) lent: u32,
    pub(crate) step: SendStep,
}

/// What a send waits for.
#[derive(Debug)]
pub(crate) enum SendStep {
    /// Room in the fabric for the envelope. The region is exposed already if an attempt to send was refused.
    AwaitRoom { sync: bool, region: Option<Remote> },
    /// FIN, CTS, or (after a cancel) Cancelled from the receiver. `sent` bytes have followed the RTS, or the first of a device's are
    /// `staged`. A `counted` send is among those of [`crate::peers::Link::announced`].
    AwaitReply { region: Option<Remote>, staged: Option<Box<Outgoing>>, sent: u32, counted: bool },
    /// Room in the fabric for the fragments of the whole message, of `piece` bytes each.
    PushAll { sent: u64, piece: usize },
    /// Room in the fabric for what a CTS asked for.
    PushGranted(Box<Granted>),
    /// The fabric needs the memory no more. All else is over, with this outcome.
    AwaitMemory(Box<Completion>),
}

/// What a CTS asked for: up to byte `room`, for receive `to` of the peer.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) to: u64,
    pub(crate) room: u64,
    pub(crate) sent: u64,
    /// Memory to write the rest to. Without it the rest leaves as DATA.
    pub(crate) grant: Option<Grant>,
    /// The write is under way.
    pub(crate) started: bool,
    /// The receiver reads the bytes before from `region`, and answers again.
    pub(crate) more: bool,
    pub(crate) region: Option<Remote>,
    /// The receiver's memory is a device's.
    pub(crate) to_device: bool,
    /// What a device has copied ahead of the frames that are to carry it, if the data are a device's.
    pub(crate) staged: Option<Box<Outgoing>>,
}

impl SendStep {
    /// The memory that the peer may read.
    fn region(&self) -> Option<Remote> {
        match self {
            SendStep::AwaitRoom { region, .. } | SendStep::AwaitReply { region, .. } => *region,
            SendStep::PushGranted(granted) => granted.region,
            SendStep::PushAll { .. } | SendStep::AwaitMemory(_) => None,
        }
    }
}

/// A receive that is under way.
#[derive(Debug)]
pub(crate) struct Recv {
    /// The process that the receive names, or, once it is matched, the sender.
    pub(crate) peer: Option<Peer>,
    pub(crate) ctx: u64,
    pub(crate) class: Class,
    /// The tag that the receive names (a keyed receive: none).
    pub(crate) tag: Option<i32>,
    pub(crate) data: Data,
    pub(crate) step: RecvStep,
}

/// What a receive waits for.
#[derive(Debug)]
#[expect(clippy::enum_variant_names, reason = "a state is named for what it awaits")]
pub(crate) enum RecvStep {
    /// A message; `entry` is the receive's in the queue of those posted.
    AwaitMatch { entry: u32 },
    /// Pieces of the message: DATA that the sender was asked for, fragments, or the rest of a frame.
    AwaitPieces(Box<Pieces>),
    /// The end of a read of the sender's memory.
    AwaitRead(Box<Read>),
}

/// A message that arrives in pieces, and the bytes that are there.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) message: Matched,
    pub(crate) received: u64,
    /// The memory that the sender may write.
    pub(crate) granted: Option<Remote>,
    /// What a device still copies of them.
    pub(crate) staged: Incoming,
}

/// A message that is read from the sender's memory.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) message: Matched,
    /// Where the sender exposes it: address and key.
    pub(crate) region: (u64, u64),
    /// That is memory of a device.
    pub(crate) device: bool,
    /// The way that the sender proposed, until the first byte is read.
    pub(crate) way: Way,
    /// Bytes to be read.
    pub(crate) end: u64,
    /// Those after them, which the sender brings.
    pub(crate) rest: Option<Rest>,
    /// Bytes read so far.
    pub(crate) done: u64,
    /// Bytes that the read under way brings.
    pub(crate) reading: u64,
    /// Where they are read to, if not to the receive's memory.
    pub(crate) piece: Option<Buffer>,
    /// What a device still copies of those that were read.
    pub(crate) staged: Incoming,
}

/// The second half of a message, while its receiver reads the first one.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Where the sender writes it.
    pub(crate) granted: Remote,
    /// Bytes of it that are there.
    pub(crate) arrived: u64,
    /// The first half cannot be read.
    pub(crate) unreadable: bool,
}

/// What a receive knows of its message once they are matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matched {
    pub(crate) peer: Peer,
    /// Id of the send, in the sender's process.
    pub(crate) sender: u64,
    pub(crate) source: u32,
    pub(crate) tag: i32,
    /// Bytes sent.
    pub(crate) total: u64,
    /// Bytes of them that the receive has room for.
    pub(crate) accepted: u64,
    /// What is known of it if its way was a choice.
    pub(crate) chosen: Option<Chosen>,
}

/// How a piece of a message has come.
pub(crate) enum Arrival<'a> {
    /// In a frame, with this body.
    Body(&'a [u8]),
    /// In the memory that was named for it when it began to arrive.
    Landed,
    /// Its sender has written it.
    Written,
}

impl RecvStep {
    /// The message, once there is one.
    fn message(&self) -> Option<&Matched> {
        match self {
            RecvStep::AwaitMatch { .. } => None,
            RecvStep::AwaitPieces(pieces) => Some(&pieces.message),
            RecvStep::AwaitRead(read) => Some(&read.message),
        }
    }

    /// The memory that the sender may write.
    pub(crate) fn granted(&self) -> Option<Remote> {
        match self {
            RecvStep::AwaitMatch { .. } => None,
            RecvStep::AwaitPieces(pieces) => pieces.granted,
            RecvStep::AwaitRead(read) => read.rest.as_ref().map(|rest| rest.granted),
        }
    }
}

impl Matched {
    pub(crate) fn completion(&self) -> Completion {
        received(self.source, self.tag, self.total, self.accepted)
    }
}

/// The outcome of a receive that accepted so many of the `sent` bytes of its message.
#[inline(always)]
pub(crate) fn received(source: u32, tag: i32, sent: u64, accepted: u64) -> Completion {
    // Not as a whole from another function: it would be written to memory in pieces, and read from there in others.
    let fault = (sent > accepted).then(|| truncated(sent, accepted));
    Completion { source, tag, bytes: accepted, cancelled: false, fault }
}

#[cold]
#[inline(never)]
fn truncated(sent: u64, room: u64) -> Box<Fault> {
    Fault::Truncated { sent, room }.into()
}

impl Send {
    /// The outcome if the message was sent.
    pub(crate) fn completion(&self) -> Completion {
        sent(&self.head, self.data.len())
    }

    pub(crate) fn wait(&self, id: ReqId) -> Wait {
        let state = match self.step {
            SendStep::AwaitRoom { .. } => "send: waits for room in the fabric",
            SendStep::AwaitReply { .. } => "send: waits for a matching receive",
            SendStep::PushAll { .. } | SendStep::PushGranted { .. } => {
                "send: waits for room in the fabric for the rest of its data"
            }
            SendStep::AwaitMemory(_) => "send: waits until its last data have left",
        };
        let tag = (self.head.class == Class::P2p).then_some(self.head.a as i32);
        Wait { id, peer: Some(self.peer), ctx: self.head.ctx, tag, bytes: self.data.len(), state }
    }
}

impl Recv {
    /// True if all of the message is here, and only a device has something to do.
    pub(crate) fn awaits_device(&self) -> bool {
        match &self.step {
            RecvStep::AwaitPieces(pieces) => pieces.received == pieces.message.accepted,
            RecvStep::AwaitRead(_) | RecvStep::AwaitMatch { .. } => false,
        }
    }

    /// Whether `peer` may send such a piece to this receive.
    pub(crate) fn awaits(&self, peer: Peer, at: u64, len: usize) -> Result<(), Misbehaved> {
        let (message, first, received) = match &self.step {
            RecvStep::AwaitPieces(pieces) => (&pieces.message, 0, pieces.received),
            RecvStep::AwaitRead(read) => match &read.rest {
                Some(rest) => (&read.message, read.end, read.end + rest.arrived),
                None => return Err(Misbehaved::DataUnasked),
            },
            RecvStep::AwaitMatch { .. } => return Err(Misbehaved::DataUnasked),
        };
        if self.peer != Some(peer) {
            return Err(Misbehaved::ForeignReceive);
        }
        let end = at.checked_add(len as u64).ok_or(Misbehaved::DataOverrun)?;
        let fits = at >= first && end <= message.accepted && received + len as u64 <= message.accepted;
        if fits { Ok(()) } else { Err(Misbehaved::DataOverrun) }
    }

    /// Puts a piece of `len` bytes in its place, or on its way there.
    pub(crate) fn place(&mut self, at: u64, len: usize, arrival: Arrival<'_>) {
        let (staged, total) = match &mut self.step {
            RecvStep::AwaitPieces(pieces) => (&mut pieces.staged, pieces.message.accepted),
            RecvStep::AwaitRead(read) => (&mut read.staged, read.message.accepted),
            RecvStep::AwaitMatch { .. } => return,
        };
        match arrival {
            Arrival::Body(bytes) => staged.place(&self.data, total, at, bytes),
            Arrival::Landed => staged.landed(&self.data, total, at, len),
            Arrival::Written => {}
        }
    }

    /// A piece of `len` bytes is in place; gives the message with the last piece of all.
    pub(crate) fn arrived(&mut self, len: usize) -> Option<Matched> {
        match &mut self.step {
            RecvStep::AwaitPieces(pieces) => {
                pieces.received += len as u64;
                (pieces.received == pieces.message.accepted).then_some(pieces.message)
            }
            RecvStep::AwaitRead(read) => {
                read.rest.as_mut()?.arrived += len as u64;
                None
            }
            RecvStep::AwaitMatch { .. } => None,
        }
    }

    pub(crate) fn wait(&self, id: ReqId) -> Wait {
        let state = match self.step {
            RecvStep::AwaitMatch { .. } => "receive: waits for a matching message",
            RecvStep::AwaitPieces(_) => "receive: matched, waits for the data",
            RecvStep::AwaitRead(_) => "receive: matched, reads the sender's memory",
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

/// The outcome of a request that cannot complete because `peer` is gone.
pub(crate) fn lost(peer: Peer, cause: &Arc<str>, mut outcome: Completion) -> Completion {
    outcome.bytes = 0;
    outcome.fault = Some(Fault::PeerDown { peer, cause: cause.clone() }.into());
    outcome
}

/// The outcome of a request whose message a device of this process has not copied.
#[cold]
pub(crate) fn not_copied(failure: &DeviceFailure, outcome: Completion) -> Completion {
    let fault = Fault::Device { what: failure.what.as_str().into() };
    Completion { bytes: 0, fault: Some(fault.into()), ..outcome }
}

/// Unpacks a whole message into a receive's memory, which is a device's: the outcome of the receive.
#[cold]
pub(crate) fn delivered_to_device(data: &Data, (source, tag): (u32, i32), body: &[u8]) -> Completion {
    match DeviceFailure::caught(|| payload::unpack(data, 0, body)) {
        Ok(accepted) => received(source, tag, body.len() as u64, accepted as u64),
        Err(failure) => not_copied(&failure, received(source, tag, 0, 0)),
    }
}

/// The outcome of a send of so many bytes that was to leave from a copy.
#[cold]
pub(crate) fn no_memory(head: &Head, bytes: u64) -> Completion {
    Completion { fault: Some(Fault::NoMemory { bytes }.into()), ..sent(head, 0) }
}

/// Payload of up to so many bytes lies in [`Message`] itself: what fits without making it larger.
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
    /// All of the message: the first `len` of `bytes`. `sync_id` is the id of a synchronous send, which awaits FIN.
    Short { sync_id: Option<NonZeroU64>, len: u8, bytes: [u8; SHORT] },
    /// All of a message that is longer than [`SHORT`].
    Whole { sync_id: Option<NonZeroU64>, payload: Vec<u8> },
    /// The RTS of a message that is still with the sender, but for the fragments that came.
    Rts { rts: wire::Rts, fragments: Option<Box<Fragments>> },
}

impl Body {
    /// The bytes of a whole message; none of one that is still with its sender.
    pub(crate) fn payload(&self) -> &[u8] {
        match self {
            Body::Short { len, bytes, .. } => &bytes[..usize::from(*len)],
            Body::Whole { payload, .. } => payload,
            Body::Rts { .. } => &[],
        }
    }
}

/// The first bytes of a message, as its fragments brought them.
#[derive(Debug, Default)]
pub(crate) struct Fragments {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) bytes: u64,
}

impl Message {
    pub(crate) fn bytes(&self) -> u64 {
        match &self.body {
            Body::Rts { rts, .. } => rts.total,
            whole => whole.payload().len() as u64,
        }
    }

    /// Id of the send, if it was said: a send that is complete has no use for it.
    pub(crate) fn sender(&self) -> Option<u64> {
        match &self.body {
            Body::Short { sync_id, .. } | Body::Whole { sync_id, .. } => sync_id.map(NonZeroU64::get),
            Body::Rts { rts, .. } => Some(rts.id),
        }
    }
}

/// A frame without payload that is owed to a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    body: [u8; wire::Cts::MOST],
    len: u8,
}

impl Reply {
    /// A reply without a body; `wide` goes to `a` and `b` of the head.
    pub(crate) fn bare(kind: Kind, ctx: u64, wide: u64) -> Self {
        Self { head: wire::control(kind, ctx, wide), body: [0; wire::Cts::MOST], len: 0 }
    }

    /// A reply with a body of at most 32 bytes.
    pub(crate) fn with(head: Head, bytes: &[u8]) -> Self {
        let mut reply = Self { head, body: [0; wire::Cts::MOST], len: 0 };
        reply.body[..bytes.len()].copy_from_slice(bytes);
        reply.len = bytes.len() as u8;
        reply
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body[..self.len as usize]
    }
}
