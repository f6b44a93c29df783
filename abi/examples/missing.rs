//! Prints the functions that are not built yet, one a line: name, tab, what has to be there first.

fn main() {
    for m in mpi_abi::not_built::MISSING {
        println!("{}\t{}", m.name, m.waits_for);
    }
}
