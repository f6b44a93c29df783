//! A request that a test has taken.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let given = 1;
    mpi::request::scope(|scope| {
        let request = world.this_process().immediate_send(scope, &given);
        let over = request.test().is_ok();
        request.wait();
        println!("{over}");
    });
}
