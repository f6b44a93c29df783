//! A buffer of a list of requests that is used before they are over.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut numbers = [0; 2];
    mpi::request::multiple_scope(1, |scope, requests| {
        requests.add(world.any_process().immediate_receive_into(scope, &mut numbers));
        numbers[0] = 1;
        requests.wait_all(&mut vec![]);
    });
}
