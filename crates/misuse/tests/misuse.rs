//! No program of the folder `programs` compiles, and the compiler says what stands beside it.
//!
//! `TRYBUILD=overwrite cargo test -p banyan-misuse` writes that anew.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("programs/*.rs");
}
