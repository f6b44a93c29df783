//! An enum, of which not every byte is a value.
#[derive(mpi::traits::Equivalence)]
enum Direction {
    Left,
    Right,
}

fn main() {}
