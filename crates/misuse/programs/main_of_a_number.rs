//! A function that is run as a rank takes a number.

#[mpi::main]
fn main(ranks: u32) {
    println!("{ranks}");
}
