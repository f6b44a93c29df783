//! A request that goes to a scope which its buffer does not outlive.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let given = 1;
    mpi::request::scope(|scope| {
        let request = world.this_process().immediate_send(scope, &given);
        request.shrink_scope_to(mpi::request::StaticScope).wait();
    });
}
