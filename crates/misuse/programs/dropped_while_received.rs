//! A buffer of the scope's own function, which is dropped before the scope ends.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    mpi::request::scope(|scope| {
        let mut got = 0;
        world.any_process().immediate_receive_into(scope, &mut got).wait();
    });
}
