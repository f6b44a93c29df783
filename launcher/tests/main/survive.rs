//! No process survives: whatever ends a job, within two seconds none of its processes is left.

use std::time::Instant;

use crate::common::{self, OVER, agent_of, gone, kill, mpirun};

/// A rank that ignores all signals that it can, with a child, a child that left the session, and one that is stopped.
const STUBBORN: &str = "trap '' TERM INT HUP QUIT USR1
    setsid sh -c 'trap \"\" TERM; (trap \"\" TERM; sleep 1000) & echo up; sleep 1000' &
    sleep 1000 & (sh -c 'kill -STOP $$; sleep 1000') &
    echo up; while :; do sleep 0.05; done";

fn stubborn() -> common::Running {
    mpirun(&["-n", "2", "sh", "-c", STUBBORN]).start(4)
}

/// Starts stubborn ranks, calls `deed` with the pids of mpirun's front and agent, and gives mpirun's status.
fn after(deed: impl FnOnce(i32, i32)) -> (Option<i32>, String) {
    let job = stubborn();
    let (front, agent, mark) = (job.pid(), agent_of(job.pid()), job.mark.clone());
    deed(front, agent);
    gone(&mark);
    let (status, _, err) = job.finish();
    (status, err)
}

#[test]
fn mpirun_is_killed() {
    assert_eq!(after(|front, _| kill("KILL", front)).0, None);
}

#[test]
fn the_agent_is_killed() {
    let (status, err) = after(|_, agent| kill("KILL", agent));
    assert_eq!(status, Some(137));
    assert!(err.contains("was killed by signal 9"), "{err}");
}

#[test]
fn mpirun_is_killed_while_stopped() {
    let (status, _) = after(|front, _| {
        kill("STOP", front);
        kill("KILL", front);
    });
    assert_eq!(status, None);
}

#[test]
fn mpirun_is_interrupted() {
    assert_eq!(after(|front, _| kill("INT", front)).0, Some(130));
    assert_eq!(after(|front, _| kill("TERM", front)).0, Some(143));
    assert_eq!(after(|front, _| kill("HUP", front)).0, Some(129));
}

#[test]
fn a_second_interrupt_does_not_wait_for_the_grace() {
    let job = mpirun(&["-n", "2", "--grace", "1000", "sh", "-c", STUBBORN]).start(4);
    let mark = job.mark.clone();
    kill("INT", job.pid());
    kill("TERM", job.pid());
    gone(&mark);
    assert!(matches!(job.finish().0, Some(130 | 143)));
}

#[test]
fn a_rank_dies_and_takes_stubborn_ones_along() {
    for (deed, status) in [("exit 3", 3), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)] {
        let script = format!("[ $BANYAN_RANK = 0 ] && {{ sleep 0.2; {deed}; }}; {STUBBORN}");
        let start = Instant::now();
        let done = mpirun(&["-n", "2", "sh", "-c", &script]).run();
        assert_eq!(done.status, status);
        assert!(start.elapsed() < OVER + OVER / 4, "{:?}", start.elapsed());
    }
}

#[test]
fn a_rank_that_ends_well_leaves_nothing_either() {
    let start = Instant::now();
    let done = mpirun(&["-n", "2", "sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 0"]).run();
    assert_eq!((done.status, done.err.lines().count()), (0, 1), "{}", done.err);
    assert!(done.err.contains("killed what ranks had left running: sleep (pid "), "{}", done.err);
    assert!(start.elapsed() < OVER);
}

#[test]
fn a_stopped_agent_is_ended_by_the_second_interrupt() {
    let job = stubborn();
    let (front, agent, mark) = (job.pid(), agent_of(job.pid()), job.mark.clone());
    kill("STOP", agent);
    kill("INT", front);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!common::survivors(&mark).is_empty());
    kill("INT", front);
    gone(&mark);
    let (status, _, err) = job.finish();
    assert_eq!(status, Some(130));
    assert!(err.contains("agent did not answer"), "{err}");
}

#[test]
fn what_finishes_soon_may_finish() {
    let done = mpirun(&["sh", "-c", "(sleep 0.2; echo late) & echo early"]).run();
    assert_eq!((done.status, done.out.as_str()), (0, "early\nlate\n"));
}

#[test]
fn ranks_behind_a_shell_and_grandchildren() {
    let script = "sh -c 'setsid sh -c \"sleep 1000\" & sleep 1000 & sh -c \"exit 5\"'";
    let done = mpirun(&["-n", "2", "sh", "-c", script]).run();
    assert_eq!(done.status, 5);
}

#[test]
fn a_stopped_rank_is_killed() {
    let script = "[ $BANYAN_RANK = 0 ] && kill -STOP $$; sleep 0.2; exit 4";
    let done = mpirun(&["-n", "2", "sh", "-c", script]).run();
    assert_eq!(done.status, 4);
    assert!(done.took < OVER + OVER / 4);
}

#[test]
fn a_job_inside_a_job_goes_with_it() {
    let inner = env!("CARGO_BIN_EXE_mpirun");
    let job = mpirun(&["-n", "2", inner, "-n", "2", "-q", "sh", "-c", STUBBORN]).start(8);
    let mark = job.mark.clone();
    kill("KILL", job.pid());
    gone(&mark);
}

#[test]
fn no_shared_memory_or_file_is_left() {
    let list = || {
        let shm = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let names = shm.map(|entry| entry.file_name().into_string().unwrap_or_default());
        names.filter(|name| name.contains("banyan")).collect::<Vec<_>>()
    };
    let before = list();
    after(|front, _| kill("KILL", front));
    assert_eq!(list(), before);
}
