//! mpirun where the system refuses something: system calls (by a seccomp filter), /dev, memory. mpirun does without it, or
//! names it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Job, Outcome, build, marked};

/// A program that executes another one, to which one system call is refused (if one of its arguments has a value).
const REFUSE: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#define LOAD(what) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, what)
#define ELSE(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)
#define ANSWER(what) BPF_STMT(BPF_RET | BPF_K, what)
int main(int argc, char **argv) {
    int at = atoi(argv[2]), any = at < 0;
    unsigned number = strtoul(argv[1], 0, 10), value = strtoul(argv[3], 0, 10);
    unsigned where = offsetof(struct seccomp_data, args) + (any ? 0 : 8 * at);
    struct sock_filter code[] = {LOAD(offsetof(struct seccomp_data, nr)), ELSE(number, 3), LOAD(where),
        ELSE(value, any ? 0 : 1), ANSWER(SECCOMP_RET_ERRNO | EPERM), ANSWER(SECCOMP_RET_ALLOW)};
    struct sock_fprog filter = {sizeof code / sizeof code[0], code};
    if (argc < 5 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 99;
    execv(argv[4], argv + 4);
    return 98;
}
"#;

/// The system call to refuse, and the argument that must have a value for that, if any.
type Refused = (i64, Option<(u32, u32)>);

/// `mpirun ARGUMENTS`, with a system call refused to it.
fn without(refuse: &Path, (number, argument): Refused, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(refuse);
    let (at, value) = argument.map_or((-1, 0), |(at, value)| (i64::from(at), value));
    command.args([number, at, i64::from(value)].map(|number| number.to_string()));
    command.arg(env!("CARGO_BIN_EXE_mpirun")).args(arguments);
    marked(command).run()
}

#[test]
fn refused_system_calls_are_named() {
    let refuse = build("refuse_named", REFUSE);
    const FIONBIO: u32 = 0x5421;
    let calls: [(Refused, &str); 13] = [
        ((libc::SYS_socketpair, None), "socketpair"),
        ((libc::SYS_signalfd4, None), "signalfd"),
        ((libc::SYS_clone, None), "fork"),
        ((libc::SYS_prctl, Some((0, 36))), "prctl(PR_SET_CHILD_SUBREAPER)"),
        ((libc::SYS_prctl, Some((0, 15))), "prctl(PR_SET_NAME)"),
        ((libc::SYS_setpgid, None), "setpgid"),
        ((libc::SYS_pipe2, None), "pipe2"),
        ((libc::SYS_ioctl, Some((1, FIONBIO))), "ioctl(FIONBIO)"),
        ((libc::SYS_epoll_create1, None), "epoll_create1"),
        ((libc::SYS_epoll_ctl, None), "epoll_ctl"),
        ((libc::SYS_epoll_pwait, None), "epoll_wait"),
        ((libc::SYS_getrandom, None), "getrandom"),
        ((libc::SYS_prlimit64, None), "getrlimit"),
    ];
    for (call, name) in calls {
        let done = without(&refuse, call, &["-n", "2", "sleep", "100"]);
        let text = format!("the system refuses {name}: Operation not permitted (by a seccomp filter");
        assert!(done.status == 1 && done.err.contains(&text), "{name}: {} {}", done.status, done.err);
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    }
}

#[test]
fn a_refused_binding_names_the_way_out() {
    let (refuse, bind) = (build("refuse_binding", REFUSE), (libc::SYS_sched_setaffinity, None));
    let done = without(&refuse, bind, &["--bind-to", "core", "true"]);
    assert_eq!(done.status, 1);
    assert!(
        done.err.contains("rank 0 on ") && done.err.contains("refuses sched_setaffinity: "),
        "{}",
        done.err
    );
    assert!(done.err.contains("--bind-to none does without"), "{}", done.err);
    assert_eq!(without(&refuse, bind, &["--bind-to", "none", "true"]).status, 0);
}

/// A program that sends small and large messages between two ranks.
const TALK: &str = r#"
#include <mpi.h>
static char out[1 << 20], in[1 << 20];
int main(void) {
    int rank;
    MPI_Init(0, 0);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int bytes = 1; bytes <= 1 << 20; bytes *= 4) {
        out[bytes - 1] = (char)(rank + 1);
        MPI_Sendrecv(out, bytes, MPI_CHAR, 1 - rank, 0, in, bytes, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (in[bytes - 1] != 2 - rank) MPI_Abort(MPI_COMM_WORLD, 7);
    }
    MPI_Finalize();
    return 0;
}
"#;

#[test]
fn a_job_does_without_what_only_helps() {
    let (refuse, talk) = (build("refuse_help", REFUSE), build("talk", TALK));
    let talk = ["-n", "2", talk.to_str().unwrap()];
    for (call, name) in [
        (libc::SYS_process_vm_readv, "process_vm_readv"),
        (libc::SYS_pidfd_open, "pidfd_open"),
        (libc::SYS_membarrier, "membarrier"),
        (libc::SYS_setsockopt, "setsockopt"),
    ] {
        let done = without(&refuse, (call, None), &talk);
        assert_eq!((done.status, done.err.as_str()), (0, ""), "{name}");
    }
    let done = without(&refuse, (libc::SYS_memfd_create, None), &talk);
    assert_eq!(done.status, 0, "{}", done.err);
    let refused = "the system refuses a file in memory (memfd_create, ftruncate): Operation not permitted (by a seccomp";
    assert!(done.err.contains(&format!("no shared memory between ranks: {refused}")), "{}", done.err);
    assert!(done.err.contains(&format!("no status lines: {refused}")), "{}", done.err);
}

/// A shell script in namespaces of its own, where it may mount; `None` if the system allows no namespaces.
fn apart(script: &str) -> Option<Job> {
    let spaces = ["--user", "--map-root-user", "--mount"];
    let allowed = Command::new("unshare").args(spaces).arg("true").output();
    if !allowed.is_ok_and(|done| done.status.success()) {
        eprintln!("not tested: the system allows no name spaces");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(spaces).args(["sh", "-ec", script]);
    Some(marked(command).env("MPIRUN", env!("CARGO_BIN_EXE_mpirun")))
}

#[test]
fn a_missing_dev_is_named() {
    let Some(job) = apart("mount -t tmpfs none /dev; exec \"$MPIRUN\" -n 2 true") else { return };
    let done = job.run();
    assert_eq!(done.status, 1, "{}", done.err);
    let text =
        "mpirun: cannot start: /dev/null, which ranks read, cannot be opened: No such file or directory\n";
    assert_eq!(done.err, text);
}

/// Runs a job whose rank 1 is killed when the kernel's count of kills for want of memory (here a file) is `count`.
fn killed(count: u32) -> Option<Outcome> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("vmstat-{count}"));
    std::fs::write(&file, "nr_free_pages 5\noom_kill 3\n").unwrap();
    // Without control groups the count of the whole machine is what there is.
    let job = apart(
        "mount -t tmpfs none /sys/fs/cgroup; mount --bind \"$FILE\" /proc/vmstat; exec \"$MPIRUN\" -n 2 sh -c \
         '[ $BANYAN_RANK = 0 ] || { echo \"oom_kill $COUNT\" > \"$FILE\"; kill -KILL $$; }; sleep 100'",
    )?;
    Some(job.env("FILE", file.to_str().unwrap()).env("COUNT", &count.to_string()).run())
}

#[test]
fn a_kill_for_want_of_memory_is_named() {
    let Some(done) = killed(4) else { return };
    assert_eq!(done.status, 137);
    assert!(done.err.contains("rank 1 on ") && done.err.contains("because memory ran out"), "{}", done.err);
    let done = killed(3).unwrap();
    assert_eq!(done.status, 137);
    assert!(
        done.err.contains("rank 1 on ") && done.err.contains("killed by signal 9 (SIGKILL)"),
        "{}",
        done.err
    );
}
