//! A buffer that is read while a persistent request receives into it.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut got = [0; 3];
    let mut receive = world.any_process().receive_init(&mut got);
    mpi::request::scope(|scope| {
        let request = receive.start(scope);
        let early = receive.data()[0];
        request.wait();
        println!("{early}");
    });
}
