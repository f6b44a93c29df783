//! Collectives on real data, in an in-memory world.

mod execution;
mod faults;
mod mismatch;
mod pairs;
mod shared_buffers;
#[path = "../world/mod.rs"]
mod world;
