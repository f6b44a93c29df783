//! Helpers of tests with several hosts: a script in the place of ssh.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::{Job, Outcome, build, mpirun, survivors};

/// What takes the place of ssh: `SCRIPT HOST COMMAND...`. It says something first, as a remote shell may; hosts called `no...` are
/// not there.
pub fn ssh() -> String {
    const SCRIPT: &str = r#"#!/bin/sh
host=$1; shift
case $host in
no-key*) echo "me@$host: Permission denied (publickey)." >&2; exit 255;;
no*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255;;
old*) printf 'welcome\nbanyan-agent 0.0.1.9.9\n'; exec cat >/dev/null;;
mute*) exec sleep 300;;
narrow*) taskset -p 1 $$ >/dev/null;;
esac
printf 'Welcome to %s!\nno newline here' "$host"
unset DISPLAY
export HOSTNAME=$host BANYAN_TEST_HOST=$host
cd /
exec sh -c "$*"
"#;
    // Tests run side by side in this process: one of them writes it.
    static WRITTEN: OnceLock<String> = OnceLock::new();
    let write = || {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no-ssh");
        let own = path.with_extension(std::process::id().to_string());
        if std::fs::read_to_string(&path).ok().as_deref() != Some(SCRIPT) {
            std::fs::write(&own, SCRIPT).unwrap();
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::rename(&own, &path).unwrap();
        }
        path.to_str().unwrap().to_owned()
    };
    WRITTEN.get_or_init(write).clone()
}

/// mpirun on names of this machine.
pub fn on_names(hosts: &str, arguments: &[&str]) -> Job {
    let ssh = ssh();
    mpirun(&[&["--host", hosts, "--ssh", &ssh], arguments].concat())
        .env("HOSTNAME", "here")
        .env("BANYAN_NIC", "lo")
}

/// mpirun on hosts that are not this one.
pub fn on(hosts: &str, arguments: &[&str]) -> Job {
    on_names(hosts, &[&["--separate-hosts"], arguments].concat())
}

/// True if hosts called `narrow...`, which have the first CPU of this machine only, have all of it.
pub fn has_one_cpu() -> bool {
    std::thread::available_parallelism().unwrap().get() < 2
}

pub fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

pub fn fine(done: &Outcome) -> &str {
    assert_eq!((done.status, done.err.as_str()), (0, ""), "{}", done.out);
    &done.out
}

/// An MPI program that checks collectives on all ranks and messages around a ring.
pub fn ring() -> String {
    const SOURCE: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, size, sum, from;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 0; round < 20; round++) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        if (sum != size * (size - 1) / 2) { fprintf(stderr, "sum %d\n", sum); return 3; }
        MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 7, &from, 1, MPI_INT, (rank + size - 1) % size, 7,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (from != (rank + size - 1) % size) { fprintf(stderr, "from %d\n", from); return 3; }
    }
    int *all = malloc(size * 100000 * sizeof *all), *one = malloc(100000 * sizeof *one);
    for (int i = 0; i < 100000; i++) one[i] = rank * 1000003 + i;
    MPI_Allgather(one, 100000, MPI_INT, all, 100000, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < 100000; i++)
            if (all[r * 100000 + i] != r * 1000003 + i) { fprintf(stderr, "wrong at %d %d\n", r, i); return 3; }
    printf("rank %d of %d: local %s of %s on %s\n", rank, size, getenv("BANYAN_LOCAL_RANK"), getenv("BANYAN_LOCAL_SIZE"),
           getenv("HOSTNAME"));
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "hang")) { if (rank == 1) MPI_Recv(&from, 1, MPI_INT, 0, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE); else pause(); }
    if (argc > 1 && !strcmp(argv[1], "abort") && rank == 2) MPI_Abort(MPI_COMM_WORLD, 9);
    if (argc > 1 && strcmp(argv[1], "none")) MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
"#;
    static PROGRAM: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| build("hosts-ring", SOURCE).to_str().unwrap().to_owned()).clone()
}

/// The pid of the agent of `host`, or of what started it.
pub fn agent_of(mark: &str, host: &str) -> i32 {
    let found = survivors(mark).into_iter().filter(|process| process.ends_with("--agent "));
    let mut pids = found.filter_map(|process| process.split(' ').next()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let needle = format!("BANYAN_TEST_HOST={host}\0");
        name == "banyan-agent\n" && environment.windows(needle.len()).any(|part| part == needle.as_bytes())
    };
    pids.find(is_it).unwrap_or_else(|| panic!("no agent of {host}"))
}
