//! A buffer that is written while it is sent.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut given = 1;
    mpi::request::scope(|scope| {
        let request = world.this_process().immediate_send(scope, &given);
        given = 2;
        request.wait();
    });
}
