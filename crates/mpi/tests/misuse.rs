//! Misuse that does not compile: each program of the folder `misuse` is one, beside what the compiler says of it.
//!
//! `TRYBUILD=overwrite cargo test -p banyan-mpi --test misuse` writes what it says anew.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
