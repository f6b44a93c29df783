//! The TCP fabric: the [contract](banyan_transport) over TCP connections, on an event loop of mio.
//!
//! A process listens from the start and publishes its addresses on a [`card`]; connections are made on first
//! contact, one for each pair. Both sides prove that they know the secret of the job, and who they are, before any
//! frame is read ([`handshake`]); [`frame`]s follow in the clear. If two processes connect to each other at the same
//! time, the attempt of the lower peer is kept.
//!
//! What is not built yet: encryption of the frames (the handshake yields the keys for it), several connections
//! per pair, and taking up a connection that broke.
//!
//! Latency comes from reading the sockets of the peers heard last without asking the system first; throughput from
//! reading many frames at once, and from small frames that share packets when many come one after the other (`burst`).
#![forbid(unsafe_code)]

mod burst;
pub mod card;
mod dial;
mod fabric;
pub mod frame;
mod guests;
pub mod handshake;
mod link;
mod options;
mod pool;
mod stream;
mod talk;

pub use fabric::Tcp;
pub use options::{Error, Options};
