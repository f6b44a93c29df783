//! The fabric, arenas and handover buffers, within one process.

mod arena;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod fabric;
mod handovers;
