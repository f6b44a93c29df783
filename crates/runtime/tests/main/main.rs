//! The runtime's calls, in one process: on a communicator of its own, and over a simulated network.

mod collectives;
mod requests;
mod runtimes;
mod world;
