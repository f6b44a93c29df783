//! A function that is to begin with MPI and takes something else than a communicator.
#[mpi::main]
fn main(_world: u32) {}
