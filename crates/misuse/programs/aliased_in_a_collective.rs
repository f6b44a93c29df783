//! A buffer that a collective reads and writes.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut number = 1;
    world.all_reduce_into(&number, &mut number, mpi::collective::SystemOperation::sum());
}
