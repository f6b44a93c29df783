//! A request that outlives its scope.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let (given, mut kept) = (1, None);
    mpi::request::scope(|scope| {
        kept = Some(world.this_process().immediate_send(scope, &given));
    });
    kept.unwrap().wait();
}
