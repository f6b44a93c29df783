//! Says when mpirun is to be linked anew.

fn main() {
    // `cargo xtask install` names it to the linker.
    println!("cargo::rerun-if-changed=hot.ld");
}
