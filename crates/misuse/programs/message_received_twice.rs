//! A matched message that is received twice.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let (message, _) = world.any_process().matched_probe();
    let (one, _) = message.matched_receive::<i32>();
    let (other, _) = message.matched_receive::<i32>();
    println!("{one} {other}");
}
