//! A buffer that is not borrowed for good, in a request without a scope.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = 1;
    world.any_process().immediate_receive_into(mpi::request::StaticScope, &mut got).wait();
}
