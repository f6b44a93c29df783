//! The committed `mpi.h` is the generated one, and compilers take it in every mode.

use crate::common::{project, run};
use std::process::Command;

const PROGRAM: &str = "#include <mpi.h>\n\
    int main(void) { MPI_Status s; MPI_Fint f[MPI_F_STATUS_SIZE]; MPI_Fint c = MPI_Comm_c2f(MPI_COMM_WORLD);\n\
    s.MPI_TAG = 1; MPI_Status_c2f(&s, f); MPI_Status_f2c(f, &s);\n\
    return MPI_Send(MPI_BOTTOM, 0, MPI_INT, MPI_PROC_NULL, f[MPI_F_TAG], MPI_Comm_f2c(c)); }\n";

#[test]
fn the_committed_header_is_the_generated_one() {
    let committed = std::fs::read_to_string(project("abi/include/mpi.h")).expect("abi/include/mpi.h");
    let remedy = "cargo run -p banyan-abi --example header > abi/include/mpi.h";
    assert!(
        committed == mpi_abi::header::header(),
        "abi/include/mpi.h is not what the tables give: {remedy}"
    );
}

#[test]
fn it_compiles_in_every_mode() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let modes = [
        ("gcc", "c", &["-ansi", "c99", "c11", "gnu17", "c2x"][..]),
        ("g++", "cc", &["c++98", "c++11", "c++17", "c++20"]),
    ];
    for (compiler, suffix, standards) in modes {
        let source = folder.join(format!("header.{suffix}"));
        std::fs::write(&source, PROGRAM).expect("the target folder is writable");
        for standard in standards {
            let mut command = Command::new(compiler);
            match *standard {
                "-ansi" => command.arg("-ansi"),
                name => command.arg(format!("-std={name}")),
            };
            command.args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
            run(command.arg(project("abi/include")).arg(&source));
        }
    }
}
