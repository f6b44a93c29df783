//! A buffer that is changed while a partition of it is used.
use mpi::traits::*;

fn main() {
    let universe = mpi::initialize().unwrap();
    let world = universe.world();
    let mut numbers = vec![0; 4];
    let mut parts = mpi::datatype::PartitionMut::new(&mut numbers[..], vec![4], vec![0]);
    numbers.clear();
    world.all_gather_varcount_into(&[0; 4], &mut parts);
}
