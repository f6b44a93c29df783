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
mod ring;
mod sync;

#[cfg(not(loom))]
mod arena;
#[cfg(not(loom))]
mod core;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod names;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod receiving;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
mod room;
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
