//! A test that does not say on how many ranks it runs.
#[mpi_derive::test]
fn on_how_many_ranks() {}

fn main() {}
