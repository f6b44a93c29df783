//! A buffer that two receives write.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = 0;
    mpi::request::scope(|scope| {
        let one = world.any_process().immediate_receive_into(scope, &mut got);
        let other = world.any_process().immediate_receive_into(scope, &mut got);
        one.wait();
        other.wait();
    });
}
