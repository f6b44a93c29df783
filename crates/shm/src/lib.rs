//! Shared memory: the fabric between ranks of one node.
//!
//! One segment (a memfd) per node holds a ring for each directed pair of ranks that talks, doorbells, and room for the
//! slots of collectives. Small messages move one cache line (`ring.rs`); large ones are read straight out of
//! the sender's memory (`process_vm_readv`), where the system lets us, and go through the rings elsewhere.
//! A rank that sleeps is woken by a futex or a datagram (`doorbell.rs`), and costs a sender nothing while it
//! is awake.
//!
//! A peer process is trusted as far as it could write to our memory anyway (same user, same job), and yet
//! what a ring says is checked: nothing in it makes us read or write outside.

#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod doorbell;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod layout;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod registry;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod ring;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod room;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod sync;

/// How loom's models are run.
#[cfg(all(test, loom))]
mod interleaved {
    /// Runs `test` in every order in which its threads can come, up to three preemptions.
    pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }
}

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod names;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod receiving;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod sending;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
mod system;

#[cfg(not(loom))]
pub use self::{
    arena::{Arena, Published},
    error::Error,
    fabric::Shm,
    options::{Options, SingleCopy, Stats},
    system::shorten_slices,
};
