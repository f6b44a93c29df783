//! A receive of a type that has no datatype.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let (text, _) = world.any_process().receive::<String>();
    println!("{text}");
}
