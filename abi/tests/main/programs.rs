//! The C and C++ programs of `tests/abi`, each a process of its own without a launcher.

use crate::common::{library_folder, project, run};
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

/// What a program of this text says on stdout and stderr, and its status.
fn said(name: &str, text: &str) -> (String, String, Option<i32>) {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.c"));
    std::fs::write(&source, text).expect("the target folder is writable");
    let output =
        Command::new(build(&source)).env("LD_LIBRARY_PATH", library_folder()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn a_fatal_error_says_everything_and_flushes() {
    let (out, err, status) = said(
        "fatal",
        "#include <mpi.h>\n#include <stdio.h>\n\
        int main(void) { int x = 0; MPI_Init(0, 0); printf(\"not flushed yet\");\n\
        MPI_Send(&x, 1, MPI_INT, 3, 0, MPI_COMM_WORLD); return 0; }\n",
    );
    assert_eq!(out, "not flushed yet");
    assert_eq!(status, Some(6));
    for part in [
        "MPI_Send",
        "rank 0 of 1",
        "on MPI_COMM_WORLD",
        "MPI_ERR_RANK",
        "dest is 3",
        "MPI_Comm_size",
        "MPI_ERRORS_RETURN",
    ] {
        assert!(err.contains(part), "{part} is not in\n{err}");
    }
}

#[test]
fn a_fatal_error_names_no_communicator_that_was_not_in_the_call() {
    let (_, err, status) = said(
        "fatal_type",
        "#include <mpi.h>\nint main(void) { int n; MPI_Init(0, 0); MPI_Type_size(MPI_DATATYPE_NULL, &n); return 0; }\n",
    );
    assert_eq!(status, Some(3));
    assert!(!err.contains("on MPI_COMM_SELF"), "{err}");
    assert!(
        err.contains("of MPI_COMM_SELF, which is asked where a call names no valid communicator"),
        "{err}"
    );
    assert!(!err.contains("MPI_Comm_size"), "the way out is that of another class:\n{err}");
}

#[test]
fn what_is_not_built_says_so_once_where_errors_pass() {
    let (_, err, status) = said(
        "unnoticed",
        "#include <mpi.h>\nint main(void) { MPI_File f; int i; MPI_Init(0, 0);\n\
        for (i = 0; i < 3; i++) MPI_File_open(MPI_COMM_SELF, \"x\", MPI_MODE_RDONLY, MPI_INFO_NULL, &f);\n\
        MPI_File_delete(\"x\", MPI_INFO_NULL); return MPI_Finalize(); }\n",
    );
    assert_eq!(status, Some(0));
    for name in ["MPI_File_open", "MPI_File_delete"] {
        let lines: Vec<_> =
            err.lines().filter(|line| line.contains(&format!("{name} is not built yet"))).collect();
        assert!(
            matches!(lines[..], [line] if line.contains("MPI_ERR_UNSUPPORTED_OPERATION")),
            "{name}:\n{err}"
        );
    }
}

#[test]
fn an_abort_in_a_signal_handler_is_an_abort() {
    let (_, err, status) = said(
        "signalled",
        "#include <mpi.h>\n#include <signal.h>\n#include <unistd.h>\n\
        static void on(int s) { (void)s; MPI_Abort(MPI_COMM_WORLD, 9); }\n\
        int main(void) { int x; MPI_Init(0, 0); signal(SIGALRM, on); ualarm(50000, 0);\n\
        MPI_Recv(&x, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE); return 0; }\n",
    );
    assert_eq!((err.as_str(), status), ("", Some(9)));
}

#[test]
fn finalize_says_what_it_waits_for() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("unreceived.c");
    let text = "#include <mpi.h>\nstatic char bytes[1000000];\n\
        int main(void) { MPI_Request request; MPI_Init(0, 0);\n\
        MPI_Isend(bytes, 1000000, MPI_BYTE, 0, 5, MPI_COMM_SELF, &request); MPI_Request_free(&request);\n\
        return MPI_Finalize(); }\n";
    std::fs::write(&source, text).expect("the target folder is writable");
    let mut command = Command::new(build(&source));
    command.env("LD_LIBRARY_PATH", library_folder()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut said = String::new();
    let errors = child.stderr.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(errors), &mut said).expect("a line");
    child.kill().expect("it waits for ever");
    child.wait().expect("it was killed");
    for part in
        ["rank 0 on ", "MPI_Finalize waits for a send with tag 5 of 1000000 bytes to rank 0", "MPI_COMM_SELF"]
    {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}
