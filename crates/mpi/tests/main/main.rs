//! MPI for Rust on ranks: simulated ones, and processes.

mod common;
mod derive;
mod devices;
mod entry;
mod errors;
mod futures;
mod large;
mod persistent;
mod ranks;
mod simulated;
