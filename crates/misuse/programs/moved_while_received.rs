//! A buffer that is moved while it is received into.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = vec![0; 4];
    mpi::request::scope(|scope| {
        let request = world.any_process().immediate_receive_into(scope, &mut got[..]);
        drop(got);
        request.wait();
    });
}
