//! The TCP fabric: the [contract](banyan_transport) over TCP connections, on an event loop of mio.
//!
//! A process listens from the start and publishes its addresses on a [`business_card`]; connections are made on first
//! contact. Both sides prove that they know the secret of the job, and who they are, before any
//! frame is read ([`handshake`]); [`frame`]s follow. Of several addresses of a peer the first one is kept where it is reached; those
//! that are silent are tried beside each other. If two processes connect to each other at the same time, the attempt of the lower
//! peer is kept.
//!
//! A pair may have several streams, each a connection of its own ([`Options::streams`]), which begin with different network interfaces
//! where both hosts have several. Frames that must keep their order go by the
//! first one, all others take turns; the other streams are connected when there are such frames. A peer
//! has left when all have brought what was sent.
//!
//! A stream to another host is resumable: when its connection breaks, another one is made, and both sides send what the other one has
//! not received (`queue`). Otherwise the peer is gone when one of its streams breaks.
//!
//! Where one side wants it ([`Options::encrypt`]), all bytes of a stream travel in encrypted records ([`seal`]).
//!
//! Latency is low because the sockets of the peers heard last are read without asking the system first. Throughput comes
//! from reading many frames at once, and from small frames that share packets when many follow each other (`burst`).
#![forbid(unsafe_code)]

mod burst;
pub mod business_card;
mod dial;
mod fabric;
pub mod frame;
pub mod handshake;
mod link;
mod member;
mod options;
mod paths;
mod pending_connections;
mod pool;
mod port;
mod queue;
pub mod seal;
mod stream;
mod talk;

pub use fabric::Tcp;
pub use options::{Error, MAX_STREAMS, Options};
