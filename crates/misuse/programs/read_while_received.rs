//! A buffer that is read while it is received into.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = 0;
    mpi::request::scope(|scope| {
        let request = world.any_process().immediate_receive_into(scope, &mut got);
        let early = got + 1;
        request.wait();
        println!("{early}");
    });
}
