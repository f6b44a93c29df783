//! Ranks that fail or are stopped while others run: who is ended, who goes on, and what mpirun says.

use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use crate::common::{Running, build, mpirun, survivors};

/// `failing stop RANKS` stops so many of the last ranks and then meets all; `failing leave CODE` ends the last rank with this status,
/// and the others meet; `failing abort` does so with errors that are fatal.
const SOURCE: &str = r#"
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, ranks, number = argc > 2 ? atoi(argv[2]) : 3, class;
    MPI_Comm others;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_split(MPI_COMM_WORLD, rank == ranks - 1, 0, &others);
    if (strcmp(argv[1], "stop") == 0) {
        printf("%d\n", (int)getpid());
        if (rank >= ranks - number)
            raise(SIGSTOP);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Finalize();
        return 0;
    }
    if (rank == ranks - 1)
        _exit(number);
    if (strcmp(argv[1], "leave") == 0)
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Error_class(MPI_Barrier(MPI_COMM_WORLD), &class);
    MPI_Barrier(others);
    printf("%s\n", class == MPI_ERR_PROC_ABORTED ? "left" : "wrong");
    MPI_Finalize();
    return 0;
}
"#;

fn program() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| build("failing", SOURCE).to_str().unwrap().to_owned())
}

#[test]
fn a_rank_that_is_stopped_while_others_run_ends_the_job() {
    let done = mpirun(&["-n", "3", "--patience", "2", program(), "stop", "1"]).run();
    assert_eq!(done.status, 1);
    assert!(
        done.err.contains("rank 2 on") && done.err.contains("stopped by a signal for 2 s"),
        "{}",
        done.err
    );
}

#[test]
fn a_job_whose_ranks_are_all_stopped_waits() {
    let job: Running = mpirun(&["-n", "2", "--patience", "1", program(), "stop", "2"]).start(2);
    thread::sleep(Duration::from_secs(4));
    assert!(!survivors(&job.mark).is_empty());
    let ranks: Vec<String> = job.seen.lines().map(str::to_owned).collect();
    // Until all have gone on: one that goes on alone would wait for the other.
    assert!(Command::new("kill").arg("-CONT").args(&ranks).status().unwrap().success());
    let (status, _, err) = job.finish();
    assert_eq!(status, Some(0), "{err}");
}

#[test]
fn the_others_go_on_if_they_are_asked_to() {
    let done = mpirun(&["-n", "4", "--keep-going", program(), "leave", "3"]).run();
    assert_eq!((done.status, done.out.as_str()), (3, "left\nleft\nleft\n"), "{}", done.err);
    let said = ["rank 3 on", "ended with status 3; the job goes on", "1 of 4 ranks failed"];
    assert!(said.iter().all(|said| done.err.contains(said)), "{}", done.err);
}

#[test]
fn errors_that_are_fatal_end_a_job_that_may_go_on() {
    let done = mpirun(&["-n", "3", "--keep-going", program(), "abort"]).run();
    assert!(done.status != 0 && !done.out.contains("left"), "{} {}", done.status, done.out);
    assert!(done.err.contains("MPI_ERR_PROC_ABORTED"), "{}", done.err);
}

#[test]
fn programs_without_mpi_go_on_too() {
    let script = "[ $BANYAN_RANK = 1 ] && exit 7; sleep 0.3; echo $BANYAN_RANK";
    let done = mpirun(&["-n", "3", "--keep-going", "sh", "-c", script]).run();
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!((done.status, lines), (7, vec!["0", "2"]), "{}", done.err);
    // Without the option they are ended.
    assert_eq!(mpirun(&["-n", "3", "sh", "-c", script]).run().status, 7);
}
