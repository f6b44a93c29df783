//! Matching, eager and rendezvous as pure state machines.
#![forbid(unsafe_code)]

mod credit;
mod engine;
mod hash;
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

pub use engine::Engine;
pub use port::Port;
pub use types::{
    Completion, Config, Envelope, Fault, Mode, MsgId, RecvArgs, ReqId, SendArgs, Started, Stats, Wait,
};
