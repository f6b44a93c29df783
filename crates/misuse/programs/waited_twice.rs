//! A request that is waited for twice.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let given = 1;
    mpi::request::scope(|scope| {
        let request = world.this_process().immediate_send(scope, &given);
        request.wait();
        request.wait();
    });
}
