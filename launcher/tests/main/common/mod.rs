//! Helpers of the launcher's tests: they run mpirun under a watchdog, and find processes that it left behind.
#![allow(unreachable_pub, reason = "all of it is for tests")]

pub mod hosts;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a job of these tests may take.
pub const LIMIT: Duration = Duration::from_secs(20);

/// The time within which no process of a job that ended may be left: two seconds, and several times as much for a machine
/// with other work. The processes that these tests start would last for minutes.
pub const OVER: Duration = Duration::from_secs(10);

/// mpirun with these arguments, and a mark in its environment that all of its descendants inherit.
pub struct Job {
    pub command: Command,
    pub mark: String,
}

/// `mpirun ARGUMENTS`, with no input.
pub fn mpirun(arguments: &[&str]) -> Job {
    // Jobs in the background of a script ignore these signals, and mpirun leaves them ignored.
    let mut command = Command::new("/usr/bin/env");
    command.args(["--default-signal=INT,QUIT", env!("CARGO_BIN_EXE_mpirun")]).args(arguments);
    marked(command)
}

/// `command`, with a mark in its environment.
pub fn marked(mut command: Command) -> Job {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    command.env("BANYAN_TEST_MARK", &mark).stdin(Stdio::null());
    Job { command, mark }
}

/// The outcome of a job.
pub struct Outcome {
    pub status: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Job {
    pub fn env(mut self, name: &str, value: &str) -> Job {
        self.command.env(name, value);
        self
    }

    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Job {
        self.command.stdin(stdin);
        self
    }

    /// Runs the job to its end.
    pub fn run(mut self) -> Outcome {
        let start = Instant::now();
        let child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let Output { status, stdout, stderr } = watched(child, &self.mark);
        assert_eq!(survivors(&self.mark), Vec::<String>::new(), "processes were left");
        Outcome {
            status: status.code().unwrap_or_else(|| panic!("mpirun itself was killed: {status}")),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
            took: start.elapsed(),
        }
    }

    /// Starts the job, and waits until `lines` lines of output have come.
    pub fn start(mut self, lines: usize) -> Running {
        let mut child = self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut seen = String::new();
        for _ in 0..lines {
            assert!(out.read_line(&mut seen).unwrap() > 0, "mpirun ended early, after {seen:?}");
        }
        Running { child, out, seen, mark: self.mark }
    }
}

/// A job that runs.
pub struct Running {
    pub child: Child,
    pub out: BufReader<std::process::ChildStdout>,
    pub seen: String,
    pub mark: String,
}

impl Running {
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Waits for mpirun itself; gives its status (`None`: it was killed), its output and its errors.
    pub fn finish(mut self) -> (Option<i32>, String, String) {
        let mut err = self.child.stderr.take().unwrap();
        let errors = thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let mut text = std::mem::take(&mut self.seen);
        let status = within(LIMIT, || self.child.try_wait().unwrap());
        // The output ends when the last process that has it open is gone.
        self.out.read_to_string(&mut text).unwrap();
        (status.code(), text, errors.join().unwrap())
    }
}

/// Sends a signal with kill(1).
pub fn kill(signal: &str, target: impl ToString) {
    let status = Command::new("kill").args(["-s", signal, "--", &target.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits until `ready` gives something.
pub fn within<T>(time: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < time, "not within {time:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no process with this mark is left.
pub fn gone(mark: &str) {
    let start = Instant::now();
    loop {
        let left = survivors(mark);
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < OVER, "left after {OVER:?}: {left:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The living processes with a mark.
pub fn survivors(mark: &str) -> Vec<String> {
    let needle = format!("BANYAN_TEST_MARK={mark}\0");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environment.windows(needle.len()).any(|part| part == needle.as_bytes()) {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            found.push(format!("{pid} {}", command.replace('\0', " ")));
        }
    }
    found
}

/// The pid of the agent of an mpirun, whose front is `front`.
pub fn agent_of(front: i32) -> i32 {
    let children = fs::read_to_string(format!("/proc/{front}/task/{front}/children")).unwrap();
    children.trim().parse().unwrap_or_else(|_| panic!("mpirun has one child, not '{children}'"))
}

fn watched(child: Child, mark: &str) -> Output {
    let pid = child.id();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let mark = mark.to_owned();
    let guard = thread::spawn(move || {
        if waiting.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("mpirun {pid} hangs; running: {:?}", survivors(&mark));
            kill("KILL", pid);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    guard.join().unwrap();
    output
}

/// Builds a C program that uses MPI, against the library that cargo built for this test; gives its path.
pub fn build(name: &str, source: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let libraries = test.parent().unwrap();
    let _ = std::os::unix::fs::symlink("libmpi_abi.so", libraries.join("libmpi_abi.so.1"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (folder.join(format!("{name}.c")), folder.join(name));
    fs::write(&file, source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-O1", "-o"]).arg(&program).arg(&file);
    gcc.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../abi/include"));
    gcc.arg("-L").arg(libraries).arg("-lmpi_abi").arg(format!("-Wl,-rpath,{}", libraries.display()));
    assert!(gcc.status().unwrap().success(), "{name} does not build");
    program
}
