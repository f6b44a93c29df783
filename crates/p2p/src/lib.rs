//! Matching, eager and rendezvous as pure state machines.
//!
//! [`P2p`] holds all messages of a process. It does no I/O: frames leave through a [`Port`](banyan_transport::Port) that the
//! caller passes in, and arrive through [`banyan_transport::Sink`], which `P2p` implements. A sink
//! cannot send, so what a frame leaves owing (a reply, a read, the next pieces) is queued with its peer
//! and leaves in [`P2p::progress`], to be called after each poll. A blocking operation is a request and a
//! loop of `poll` and `progress` until [`P2p::is_done`].
//!
//! Messages are *tagged* (MPI's point-to-point rules: context, source, tag, wildcards, order) or *keyed* (for
//! schedules of collectives: exact context, peer and 64-bit key). Both use the same transfers. The kinds of frames
//! (RTS, CTS, DATA, FIN and others) are in `wire`.
//!
//! # A send
//!
//! * *Eager*, if the fabric says that copying is quicker (`Caps::eager`) and the receiver has lent credit: the
//!   payload is packed straight into one frame. The send is complete when the frame is accepted; there is no request. A
//!   synchronous send puts its id before the payload, and awaits FIN.
//! * Eager, but longer than both sides should copy one after the other (`Caps::piece`): an RTS that says so, then
//!   the whole message in *fragments*. The send awaits no reply.
//! * Otherwise by *rendezvous*: an RTS leaves, with the length, the id, and where the bytes can be read if they are
//!   contiguous and the fabric can read them. If it cannot, the first bytes follow as fragments, as many as could be eager,
//!   so that RTS and CTS cost no time (but not if long messages follow each other: then other messages fill that time). The
//!   send then awaits the receiver's reply:
//!   * FIN: the receiver has read what it accepts, or accepts nothing: complete;
//!   * CTS with a grant (if the RTS proposed that): the sender writes to the receiver's memory and says so (Written), all that is
//!     accepted, or one half while the receiver reads the other one (`grants`);
//!   * CTS: the receiver accepts so many bytes in pieces: those that have not left yet leave as DATA, each packed into a
//!     frame, as the fabric takes them; complete when the last is accepted;
//!   * Cancelled, after a Cancel: the receiver had not matched the message, and has dropped it.
//! * Memory of a device is never waited for in a rendezvous: its driver copies pieces to bounce buffers ahead of the frames that carry
//!   them, the first ones while the reply is awaited, and a piece whose copy is not over is pending, as one is that the fabric has no room
//!   for (`staging`). No fragments follow such an RTS.
//! * Where both processes share memory (`Port::handover`), pieces from or to a device lie there, and are *handed over* in place of DATA: the
//!   receiver's device, or the receiver, copies them from there, and the memory is the sender's again (`staging`, `handed`).
//! * Pieces of long messages may leave straight from the user's memory after the call ([`banyan_transport::Sent::Started`]):
//!   the send is complete when the fabric has told that it needs the memory of none any more (`lent`).
//! * If the fabric is *busy*, the request queues with its peer, and all later envelopes to this peer behind it.
//!   Whether it is eager is decided when it leaves.
//!
//! # A receive
//!
//! * A caller that waits anyway may first poll the fabric itself ([`ReceiveBypass`]), and take its message from there.
//! * Posted, a receive waits for a *match*. Cancelling takes it out again.
//! * Matched with a whole message: the payload is unpacked from the frame (or from where it was kept, if it was
//!   unexpected) and the receive is complete; a long one that was kept, and goes to a device, once the device has copied it. If
//!   the fabric asks where a body goes that has begun to arrive ([`banyan_transport::Sink::landing`]), that is the match, and the
//!   bytes go there.
//! * Matched with an RTS of memory that can be read: *read* into the user's memory, or through a buffer where that lies
//!   in many short pieces; then FIN is owed and the receive is complete. If the fabric finds that
//!   it cannot read that memory, the receive asks for pieces after all.
//! * Matched with any other RTS: CTS is owed, unless the whole message comes anyway; complete when all *pieces* (DATA or
//!   fragments) are there. They carry offsets. Fragments that came before the match are kept as unexpected.
//! * What comes in pieces, or by a read that does not reach the receive's memory, gathers in bounce buffers where that memory is a
//!   device's. The receive is complete once the device has copied all of it.
//! * Only what there is room for is read or asked for; a longer message completes with
//!   [`Fault::Truncated`], and normally for its sender.
//!
//! # The way of long messages
//!
//! Messages of 16 KiB and more may take several *ways* between processes that can read and write each other's memory: in pieces, by a
//! read, by a write of the sender's, or half and half. The sender's RTS says which. It is always the same one, or the receiver
//! measures how long messages take, chooses (`ways`, a pure core), and tells the sender what to take from then on (`long`). A message
//! that could go whole in one frame is announced while its way is looked for, and where another way is better. What earlier jobs have
//! measured ([`Known`]) both ends begin with, as if this one had.
//!
//! # Giving up
//!
//! A caller that has to report a failure gives up what is under way ([`P2p::abandon`]) without waiting: bytes that still
//! arrive are dropped, bytes that were promised leave from a copy.
//!
//! # Flow control
//!
//! A receiver lends credit to each sender, out of one budget ([`Config`]), and so bounds the unexpected payload
//! it will ever keep. A whole message, and a fragment, costs its payload and an envelope. The first fragments of a
//! rendezvous leave half of the initial credit to whole messages. Credit is returned on any frame
//! that goes the other way. A sender without credit sends RTSs even of small messages, which are never refused; it then gets
//! more credit if there is any. If there is none, processes that were lent more than the initial credit and are
//! quiet are asked to return it. A sender announces only so many messages that are not answered, and holds the rest until
//! the receiver looks for one that it does not find (`held`). A peer that spends credit it does not
//! have, names requests that are not its own, or sends more than it was asked for, is *down* from then on; the cause
//! says what it did (`misbehaved`).
//!
//! # Order
//!
//! Envelopes of a pair follow each other in the fabric's order of one peer and class; matching takes them in
//! that order, so MPI's rule of non-overtaking holds whatever transfers are under way. DATA and replies may
//! be between envelopes anywhere, but the fragments of an RTS come before the next RTS. Frames leave for a
//! peer in this order: replies, envelopes, DATA, credit.
//!
//! No cycle of full links can stop the job: whatever arrives is taken in at once (matched, kept within credit,
//! or noted as an RTS) without anything having to leave first.
#![forbid(unsafe_code)]

mod abandon;
mod bypass;
mod credit;
mod failed;
mod flow;
mod grants;
mod handed;
mod held;
mod landing;
mod lent;
mod long;
mod matching;
mod misbehaved;
mod p2p;
mod payload;
mod peers;
mod pool;
mod recv;
mod request;
mod rts;
mod send;
mod sink;
mod slab;
mod staging;
mod types;
mod ways;
mod wire;

#[cfg(test)]
mod tests;

pub use bypass::ReceiveBypass;
pub use long::Measured;
pub use p2p::P2p;
pub use types::{
    Choice, Completion, Config, Envelope, Fault, Known, KnownRows, Mode, MsgId, RecvArgs, ReqId, SendArgs,
    Started, Stats, Wait,
};
pub use ways::{Found, Traffic, Way};
