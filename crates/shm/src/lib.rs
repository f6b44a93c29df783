//! Shared memory: the fabric between ranks of one node.
//!
//! One segment (a memfd) per node holds a ring for each directed pair of ranks that talks, doorbells, and room for the
//! [`Arena`]s of collectives. A small message moves one cache line (`ring.rs`); a large one is read straight out of
//! the sender's memory (`process_vm_readv`) where the system allows it, and goes through the ring elsewhere.
//! A rank that sleeps is woken by a futex or a datagram (`doorbell.rs`); a rank that is awake costs a sender nothing.
//!
//! A peer process is trusted as far as it could write to this process's memory anyway (same user, same job). Still,
//! what a ring says is checked: nothing in it makes this process read or write outside of the segment.

#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
#[cfg(not(loom))]
mod devices;
mod doorbell;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod layout;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod pages;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod registry;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod ring;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod swap;
#[cfg_attr(loom, allow(dead_code, reason = "only what loom checks is built"))]
mod sync;

/// How loom's models are run.
#[cfg(all(test, loom))]
mod interleaved {
    /// Runs `test` in every order in which its threads can interleave, up to three preemptions.
    pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }
}

#[cfg(not(loom))]
mod aliased;
#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod attachment;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod handover;
#[cfg(not(loom))]
mod member;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod peer_map;
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
