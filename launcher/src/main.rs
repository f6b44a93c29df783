//! The `mpirun` program; everything is in the library beside it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    banyan_launcher::main()
}
