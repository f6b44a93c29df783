//! The C and C++ programs of `tests/abi`, each a process of its own without a launcher.

mod common;

use common::{library_folder, project, run};
use mpi_abi::not_built::MISSING;
use mpi_abi::tables::functions;
use std::path::{Path, PathBuf};
use std::process::Command;

fn sources() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(project("tests/abi")).expect("tests/abi");
    let mut sources: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|suffix| suffix == "c" || suffix == "cc"));
    sources.sort();
    sources
}

fn build(source: &Path) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().expect("a name"));
    let compiler = if source.extension().is_some_and(|suffix| suffix == "cc") { "g++" } else { "gcc" };
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wno-unused-function", "-O1", "-o"]).arg(&program).arg(source);
    command.arg("-I").arg(project("abi/include")).arg("-L").arg(library_folder());
    run(command.arg("-lmpi_abi"));
    program
}

#[test]
fn they_find_no_errors() {
    for source in sources() {
        let program = build(&source);
        let text = run(Command::new(&program).env("LD_LIBRARY_PATH", library_folder()));
        assert!(text.contains("No Errors"), "{}:\n{text}", source.display());
    }
}

#[test]
fn every_large_count_twin_is_called() {
    let texts: Vec<String> =
        sources().iter().map(|source| std::fs::read_to_string(source).expect("a source")).collect();
    for f in functions().iter().filter(|f| f.name.ends_with("_c")) {
        let built = MISSING.iter().all(|missing| missing.name != f.name);
        let called = texts.iter().any(|text| text.contains(&format!("{}(", f.name)));
        assert!(!built || called, "no program in tests/abi calls {}", f.name);
    }
}

#[test]
fn a_fatal_error_says_everything_and_flushes() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("fatal.c");
    let text = "#include <mpi.h>\n#include <stdio.h>\n\
        int main(void) { int x = 0; MPI_Init(0, 0); printf(\"not flushed yet\");\n\
        MPI_Send(&x, 1, MPI_INT, 3, 0, MPI_COMM_WORLD); return 0; }\n";
    std::fs::write(&source, text).expect("the target folder is writable");
    let output =
        Command::new(build(&source)).env("LD_LIBRARY_PATH", library_folder()).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "not flushed yet");
    assert_eq!(output.status.code(), Some(6));
    for part in
        ["MPI_Send", "rank 0 of 1", "MPI_COMM_WORLD", "MPI_ERR_RANK", "dest is 3", "MPI_ERRORS_RETURN"]
    {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
}
