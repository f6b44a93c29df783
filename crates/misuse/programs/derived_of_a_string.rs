//! A struct with a field that has no datatype.
#[derive(mpi::traits::Equivalence)]
struct Named {
    name: String,
}

fn main() {}
