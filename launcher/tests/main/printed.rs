//! Nothing that a rank printed is lost: C programs that do not flush their output and end badly.

use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use crate::common::{build, kill, mpirun};

/// Prints a line, then ends as its argument says.
const PRINTS: &str = r#"
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int i, rank;
    char line[80];
    const char *end = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!strcmp(end, "ask")) {
        printf("name? ");
        if (!fgets(line, sizeof line, stdin))
            return 1;
        printf("hello %s", line);
        fputs(isatty(1) ? "terminal\n" : "pipe\n", stdout);
        for (i = 0; i < 256; i++)
            putchar(i);
    } else {
        printf("printed by %d\n", rank);
        if (!strcmp(end, "segv"))
            raise(SIGSEGV);
        if (!strcmp(end, "kill"))
            raise(SIGKILL);
        if (!strcmp(end, "exit"))
            _exit(3);
        if (!strcmp(end, "hang"))
            for (;;)
                pause();
    }
    MPI_Finalize();
    return 0;
}
"#;

fn program() -> &'static str {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("prints", PRINTS)).to_str().unwrap()
}

#[test]
fn a_line_is_seen_before_a_rank_dies() {
    for (end, status) in [("segv", 139), ("kill", 137), ("exit", 3)] {
        for pty in ["auto", "always"] {
            let done = mpirun(&["--pty", pty, program(), end]).run();
            assert_eq!((done.status, done.out.as_str()), (status, "printed by 0\n"), "{end}: {}", done.err);
        }
    }
}

#[test]
fn a_line_is_seen_while_a_rank_hangs() {
    // `start` waits for the lines.
    let job = mpirun(&["-q", "-n", "2", program(), "hang"]).start(2);
    kill("INT", job.pid());
    assert_eq!(job.finish().0, Some(130));
    let done = mpirun(&["--timeout", "1", program(), "hang"]).run();
    assert_eq!((done.status, done.out.as_str()), (124, "printed by 0\n"));
}

#[test]
fn a_prompt_without_a_line_end_is_seen_before_the_answer() {
    for (pty, kind) in [("never", "pipe"), ("auto", "pipe"), ("always", "terminal")] {
        let mut job = mpirun(&["--pty", pty, program(), "ask"]).stdin(Stdio::piped());
        let mut child = job.command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut prompt = [0; 6];
        out.read_exact(&mut prompt).unwrap();
        assert_eq!(&prompt, b"name? ");
        child.stdin.take().unwrap().write_all(b"you\n").unwrap();
        let mut rest = Vec::new();
        out.read_to_end(&mut rest).unwrap();
        let expected: Vec<u8> =
            format!("hello you\n{kind}\n").into_bytes().into_iter().chain(0..=255).collect();
        assert_eq!(rest, expected, "--pty {pty}");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn python_and_fortran_are_told_unless_the_user_did() {
    let script = "echo $PYTHONUNBUFFERED $GFORTRAN_UNBUFFERED_PRECONNECTED";
    let job = || mpirun(&["sh", "-c", script]);
    assert_eq!(job().run().out, "1 y\n");
    assert_eq!(job().env("PYTHONUNBUFFERED", "0").run().out, "0 y\n");
}
