//! Jobs that hang are explained: which rank waits for which, in which call, and whether the wait can ever end.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::{build, kill, mpirun};

/// A program that hangs in the way that its argument names.
const HANGS: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, x[2] = {0, 0};
    MPI_Request requests[2];
    MPI_Comm world = MPI_COMM_WORLD;
    const char *how = argc > 1 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    MPI_Barrier(world);
    if (!strcmp(how, "receive"))
        MPI_Recv(x, 1, MPI_INT, (rank + 1) % size, 5, world, MPI_STATUS_IGNORE);
    if (!strcmp(how, "send"))
        MPI_Ssend(x, 1, MPI_INT, (rank + 1) % size, 3, world);
    if (!strcmp(how, "named")) {
        MPI_Comm rows;
        MPI_Comm_dup(world, &rows);
        MPI_Comm_set_name(rows, "rows of the matrix");
        if (rank == 0)
            MPI_Recv(x, 1, MPI_INT, 1, 5, rows, MPI_STATUS_IGNORE);
        MPI_Ibarrier(rank == 1 ? rows : world, requests);
        MPI_Wait(requests, MPI_STATUS_IGNORE);
    }
    if (!strcmp(how, "probe"))
        MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, world, MPI_STATUS_IGNORE);
    if (!strcmp(how, "mixed")) {
        if (rank == 0) {
            MPI_Irecv(x, 1, MPI_INT, 1, 1, world, requests);
            MPI_Irecv(x + 1, 1, MPI_INT, 2, 2, world, requests + 1);
            MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        } else if (rank == 1) {
            for (;;)
                pause();
        }
        MPI_Barrier(world);
    }
    if (!strcmp(how, "ask")) {
        if (rank == 0) {
            puts("up");
            getchar();
            MPI_Send(x, 1, MPI_INT, 1, 9, world);
        } else {
            MPI_Recv(x, 1, MPI_INT, 0, 9, world, MPI_STATUS_IGNORE);
        }
    }
    MPI_Finalize();
    return 0;
}
"#;

fn program() -> &'static str {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("hangs", HANGS)).to_str().unwrap()
}

/// The report of mpirun on `ranks` ranks that hang.
fn report(how: &str, ranks: &str, fabrics: &str) -> String {
    let job = mpirun(&["-q", "-n", ranks, "--timeout", "2.5", program(), how]).env("BANYAN_FABRICS", fabrics);
    let done = job.run();
    assert_eq!(done.status, 124, "{}", done.err);
    done.err
}

#[test]
fn communicators_are_called_as_the_program_calls_them() {
    let err = report("named", "3", "shm");
    let receive =
        "  rank 0: MPI_Recv: receive from rank 1, tag 5, 4 bytes, on communicator \"rows of the matrix\" (";
    assert!(err.contains(receive), "{err}");
    assert!(err.contains("  rank 1: MPI_Wait: collective on communicator \"rows of the matrix\" ("), "{err}");
    assert!(
        err.contains("  rank 2: MPI_Wait: collective on MPI_COMM_WORLD (not there: ranks 0, 1)"),
        "{err}"
    );
}

#[test]
fn a_cycle_of_receives_is_a_deadlock() {
    for fabrics in ["shm", "tcp"] {
        let err = report("receive", "2", fabrics);
        let line = "  rank 0: MPI_Recv: receive from rank 1, tag 5, 4 bytes, on MPI_COMM_WORLD (waits for a matching";
        assert!(err.contains(line), "{fabrics}: {err}");
        assert!(err.contains("  rank 1: MPI_Recv: receive from rank 0, tag 5"), "{fabrics}: {err}");
        assert!(
            err.contains("mpirun: deadlock: all ranks wait, and nothing was under way"),
            "{fabrics}: {err}"
        );
        assert!(err.contains("rank 0 waits for rank 1 waits for rank 0"), "{fabrics}: {err}");
    }
}

#[test]
fn a_cycle_of_sends_is_a_deadlock() {
    let err = report("send", "3", "shm,tcp");
    assert!(err.contains("  rank 2: MPI_Ssend: send to rank 0, tag 3, 4 bytes"), "{err}");
    assert!(err.contains("rank 0 waits for rank 1 waits for rank 2 waits for rank 0"), "{err}");
}

#[test]
fn ranks_in_equal_states_are_one_line() {
    let err = report("probe", "8", "shm,tcp");
    assert!(err.contains("  ranks 0-7: MPI_Probe: receive from any rank, any tag"), "{err}");
    assert!(err.contains("deadlock: all ranks wait"), "{err}");
}

#[test]
fn ranks_outside_mpi_are_named_and_are_no_deadlock() {
    for fabrics in ["shm", "tcp"] {
        let err = report("mixed", "4", fabrics);
        assert!(err.contains("  rank 0: MPI_Waitall: receive from rank 1, tag 1"), "{err}");
        assert!(err.contains("; receive from rank 2, tag 2"), "{err}");
        assert!(err.contains("  rank 1: not waiting in MPI"), "{err}");
        let line = "  ranks 2, 3: MPI_Barrier: collective on MPI_COMM_WORLD (not there: ranks 0, 1)";
        assert!(err.contains(line), "{err}");
        assert!(!err.contains("deadlock"), "{err}");
    }
}

#[test]
fn the_report_can_be_had_at_any_time_and_the_job_goes_on() {
    let mut job = mpirun(&["-q", "-n", "2", program(), "ask"]).stdin(Stdio::piped()).start(1);
    let mut err = BufReader::new(job.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("rank 1: MPI_Recv: receive from rank 0, tag 9") {
        std::thread::sleep(Duration::from_millis(50));
        kill("QUIT", job.pid());
        line.clear();
        err.read_line(&mut line).unwrap();
        err.read_line(&mut line).unwrap();
        assert!(line.contains("where the ranks are, "), "{line}");
        if !line.contains("ranks 0, 1: not waiting in MPI") {
            // Rank 1 has a line of its own.
            assert!(line.contains("rank 0: not waiting in MPI"), "{line}");
            err.read_line(&mut line).unwrap();
        }
    }
    job.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert!(job.child.wait().unwrap().success(), "{rest}");
}
