//! mpirun at a terminal: Ctrl-C, Ctrl-Z, the background, and rank 0, which reads the keyboard.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::{LIMIT, gone, kill, marked, mpirun, within};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A shell with job control at a terminal of its own.
struct Session {
    keys: File,
    shell: Child,
    seen: String,
    mark: String,
}

impl Session {
    fn new(script: &str) -> Session {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave: OwnedFd =
            File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap().into();
        let script = script.replace("mpirun ", concat!(env!("CARGO_BIN_EXE_mpirun"), " "));
        let script = format!("stty -echo; set -m; {script}");
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal=INT,QUIT", "setsid", "--ctty", "--wait", "bash", "-c", &script]);
        let mut job = marked(command);
        job.command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let shell = job.command.spawn().unwrap();
        drop(job.command);
        Session { keys: File::from(master), shell, seen: String::new(), mark: job.mark }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// The rest of the line.
    fn line(&mut self) -> String {
        self.expect("\n")
    }

    /// Reads until `text` has been shown; gives what came before.
    fn expect(&mut self, text: &str) -> String {
        let start = Instant::now();
        while !self.seen.contains(text) {
            assert!(start.elapsed() < LIMIT, "no '{text}' in {:?}", self.seen);
            let limit = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let ready = poll(&mut [PollFd::from_borrowed_fd(self.keys.as_fd(), PollFlags::IN)], Some(&limit));
            if ready == Ok(1) {
                let mut buffer = [0; 4096];
                let count = self.keys.read(&mut buffer).unwrap_or(0);
                self.seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        }
        let at = self.seen.find(text).unwrap();
        let rest = self.seen.split_off(at + text.len());
        let mut before = std::mem::replace(&mut self.seen, rest);
        before.truncate(at);
        before
    }

    fn end(mut self) {
        within(LIMIT, || self.shell.try_wait().unwrap());
        gone(&self.mark);
    }
}

#[test]
fn ctrl_c_is_130() {
    let mut session = Session::new("mpirun -n 2 sh -c 'echo up; sleep 1000'; echo status $?");
    session.expect("up");
    session.expect("up");
    session.press("\x03");
    session.expect("status 130");
    session.end();
}

#[test]
fn ctrl_c_reaches_a_rank_that_cleans_up() {
    let script = "mpirun --grace 10 sh -c 'trap \"echo cleaned; exit 0\" INT; echo up; while :; do sleep 0.05; done'; echo status $?";
    let mut session = Session::new(script);
    session.expect("up");
    session.press("\x03");
    session.expect("cleaned");
    session.expect("status 130");
    session.end();
}

#[test]
fn more_ranks_than_cores_is_said_at_a_terminal() {
    let mut session = Session::new("mpirun -n 200 true; mpirun -n 200 -q true; echo over");
    assert!(session.expect("200 ranks share ").starts_with("mpirun: "));
    assert!(!session.expect("over").contains("ranks share"));
    session.end();
}

#[test]
fn ctrl_z_stops_and_fg_continues() {
    let script =
        "mpirun sh -c 'echo up $$; read x; echo done $x'; echo stopped $?; read x; fg; echo status $?";
    let mut session = Session::new(script);
    session.expect("up ");
    let pid: i32 = session.line().trim().parse().unwrap();
    session.press("\x1a");
    session.expect("stopped 148");
    within(Duration::from_secs(2), || (state(pid) == 'T').then_some(()));
    session.press("\n");
    within(Duration::from_secs(2), || (state(pid) != 'T').then_some(()));
    session.press("words\n");
    session.expect("done words");
    session.expect("status 0");
    session.end();
}

#[test]
fn what_is_typed_goes_to_rank_0() {
    let mut session =
        Session::new("mpirun -n 2 sh -c 'read x; echo rank $BANYAN_RANK got $x.'; echo status $?");
    session.expect("rank 1 got .");
    session.press("words\n");
    session.expect("rank 0 got words.");
    session.end();
}

#[test]
fn the_end_of_typing_is_the_end_of_input() {
    let mut session = Session::new("mpirun sh -c 'echo up; echo got $(cat).'");
    session.expect("up");
    session.press("a b\n\x04");
    session.expect("got a b.");
    session.end();
}

#[test]
fn in_the_background_it_does_not_stop() {
    let script = "mpirun -n 2 sh -c 'echo up; sleep 0.5; echo done' & wait $!; echo status $?";
    let mut session = Session::new(script);
    session.expect("done");
    session.expect("done");
    session.expect("status 0");
    session.end();
}

#[test]
fn a_job_in_the_background_reads_when_it_comes_to_the_front() {
    let mut session =
        Session::new("mpirun sh -c 'echo up; read x; echo got $x.' & read y; fg; echo status $?");
    session.expect("up");
    session.press("for the shell\n");
    session.expect("mpirun");
    session.press("for rank 0\n");
    session.expect("got for rank 0.");
    session.expect("status 0");
    session.end();
}

#[test]
fn ranks_at_a_terminal_have_one_with_the_same_window() {
    let ask = "sh -c 'test -t 1 && echo tty; stty size <&1; test -t 2 || echo pipe >&2'";
    let mut session = Session::new(&format!("stty rows 33 cols 77; mpirun {ask}; echo status $?"));
    let seen = session.expect("status 0");
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["33 77", "pipe", "tty"], "{seen:?}");
    session.end();
    let mut session = Session::new(&format!("mpirun --pty never {ask}; echo status $?"));
    assert!(!session.expect("status 0").contains("tty\r"));
    session.end();
}

#[test]
fn user_signals_are_forwarded() {
    let script = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo up; while :; do sleep 0.05; done";
    let mut job = mpirun(&["-n", "2", "sh", "-c", script]).start(2);
    let pid = job.pid();
    kill("USR1", pid);
    assert_eq!((job.line(), job.line()), ("one\n".into(), "one\n".into()));
    kill("USR2", pid);
    assert_eq!((job.line(), job.line()), ("two\n".into(), "two\n".into()));
    assert_eq!(job.finish().0, Some(0));
}

#[test]
fn ignored_hangups_stay_ignored() {
    let script =
        format!("trap '' HUP; exec {} sh -c 'echo up; sleep 0.5; echo done'", env!("CARGO_BIN_EXE_mpirun"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    let job = marked(shell).start(1);
    kill("HUP", job.pid());
    let (status, out, _) = job.finish();
    assert_eq!((status, out.as_str()), (Some(0), "up\ndone\n"));
}

/// The letter of a process's state: R, S, T...
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}
