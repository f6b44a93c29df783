//! A buffer that is dropped while its send is under way.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    mpi::request::scope(|scope| {
        let request = {
            let given = [1, 2, 3];
            world.this_process().immediate_send(scope, &given)
        };
        request.wait();
    });
}
