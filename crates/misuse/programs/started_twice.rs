//! A persistent request that is started twice at a time.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = [0; 3];
    let mut receive = world.any_process().receive_init(&mut got);
    mpi::request::scope(|scope| {
        let first = receive.start(scope);
        let second = receive.start(scope);
        first.wait();
        second.wait();
    });
}
