//! A test on ranks does not say how many they are.

#[mpi_derive::test(timeout = 5)]
fn ranks_agree() {}

fn main() {}
