//! Prints `mpi.h`: `cargo run -p banyan-abi --example header > abi/include/mpi.h`.

fn main() {
    print!("{}", mpi_abi::header::header());
}
