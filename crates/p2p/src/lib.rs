//! Matching, eager and rendezvous as pure state machines.
//!
//! [`Engine`] holds all messages of a process. It does no I/O: what leaves goes through a [`Port`] that the
//! caller passes in, what arrives comes through [`banyan_transport::Sink`], which `Engine` implements. A sink
//! cannot send, so whatever a frame leaves owing (an answer, a read, the next pieces) is queued with its peer
//! and leaves in [`Engine::progress`], to be called after each poll. A blocking operation is a request and a
//! loop of `poll` and `progress` until [`Engine::is_done`].
//!
//! Messages are *tagged* (MPI's point-to-point rules: context, source, tag, wildcards, order) or *keyed* (for
//! schedules of collectives: exact context, peer and 64-bit key). Both use the same transfers.
//!
//! # A send
//!
//! * *Eager*, if the fabric says that copying is quicker (`Caps::eager`) and the receiver has lent credit: the
//!   payload is packed straight into one frame. Complete when the frame is accepted; there is no request. A
//!   synchronous send puts its id before the payload, and awaits `Taken`.
//! * Eager, but longer than both sides should copy one after the other (`Caps::piece`): an offer that says so, then
//!   all of it in pieces (`Early`). No answer is awaited.
//! * Otherwise an *offer* (`Rts`) leaves: length, id, and where the bytes lie if they are in one piece and the
//!   fabric can read them. If it cannot, the first bytes follow unasked, as many as could be eager, so that the
//!   question and its answer cost no time (but not if long messages follow each other: then others fill that time). The
//!   send then awaits the receiver's answer:
//!   * `Taken`: the receiver has read what it wants, or wants nothing: complete;
//!   * `Cts`: the receiver wants so many bytes in pieces: those that have not left yet stream, each packed into a
//!     frame, as the fabric takes them; complete when the last is accepted;
//!   * `Cancelled`, after a `Cancel`: the receiver had not matched it, and has forgotten it.
//! * If the fabric is *busy*, the request queues with its peer, and all later envelopes to this peer behind it.
//!   Whether it is eager is decided when it leaves.
//!
//! # A receive
//!
//! * A caller that waits anyway may first stand at the fabric ([`Awaiting`]), and take its message from there.
//! * Posted, it waits for a *match*. Cancelling takes it out again.
//! * Matched with a whole message: the payload is unpacked from the frame (or from where it was kept, if it was
//!   unexpected) and the receive is complete. If the fabric asks where a body goes that has begun to arrive
//!   ([`banyan_transport::Sink::place`]), that is the match, and the bytes go there.
//! * Matched with an offer that can be read: *read* into the user's memory, or through scratch space piece by
//!   piece if it must be scattered; then `Taken` is owed and the receive is complete. If the fabric finds that
//!   it cannot read that memory, it asks for pieces after all.
//! * Matched with any other offer: `Cts` is owed, unless all of it comes anyway; complete when all *pieces* are there.
//!   They carry offsets. Those that came before the match are kept as unexpected.
//! * Only what there is room for is read or asked for; a longer message completes with
//!   [`Fault::Truncated`], and normally for its sender.
//!
//! # Giving up
//!
//! Who has to report a failure gives up what is under way ([`Engine::abandon`]) without waiting: what still arrives is
//! dropped, what was promised leaves from a copy.
//!
//! # Flow control
//!
//! A receiver lends credit to each sender, out of one budget ([`Config`]), and so bounds the unexpected payload
//! it will ever hold. A message, or a piece that comes unasked, costs its payload and an envelope. What follows an
//! offer that needs an answer leaves half of the initial credit to whole messages. Credit comes back on any frame
//! that goes the other way. A sender without credit offers even small messages, and is never refused; it then gets more
//! credit if there is any, and if there is none, those that were lent more than the initial credit and are
//! quiet are asked to return it. A sender announces only so many messages without an answer, and holds the rest until
//! the receiver looks for one that it does not find (`held`). Who holds credit it does not
//! have, names requests that are not its own, or sends more than it was asked for, is *down* from then on.
//!
//! # Order
//!
//! Envelopes of a pair follow each other in the fabric's order of one peer and class; matching takes them in
//! that order, so MPI's rule of non-overtaking holds whatever transfers are under way. Pieces and answers may
//! be between envelopes anywhere, but what follows an offer unasked is there before the next offer. Frames leave for a
//! peer in this order: answers, envelopes, pieces, credit.
//!
//! No cycle of full links can stop the job: whatever arrives is taken in at once (matched, kept within credit,
//! or noted as an offer) without anything having to leave first.
//!
//! # Later
//!
//! A body may be longer than its kind defines, and flags of an offer that are not known are ignored: an offer
//! and its answer can carry the place of a shared word from which both ends claim chunks of a big message.
#![forbid(unsafe_code)]

mod abandon;
mod awaited;
mod credit;
mod engine;
mod hash;
mod held;
mod landing;
mod matching;
mod payload;
mod peers;
mod pool;
mod port;
mod recv;
mod request;
mod send;
mod sink;
mod slab;
mod types;
mod wire;

#[cfg(test)]
mod tests;

pub use awaited::Awaiting;
pub use engine::Engine;
pub use port::Port;
pub use types::{
    Completion, Config, Envelope, Fault, Mode, MsgId, RecvArgs, ReqId, SendArgs, Started, Stats, Wait,
};
