//! Running programs: one output for both streams, a time limit, and nothing left behind.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// The most that a program may print before it is ended, in bytes.
const OUTPUT_LIMIT: u64 = 256 << 20;
/// What is kept of a long output: its end, in bytes.
const OUTPUT_KEPT: u64 = 8 << 20;

/// A program to run.
#[derive(Clone)]
pub(crate) struct Job {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
    limit: Duration,
}

/// What a program did.
pub(crate) struct Done {
    /// How it ended.
    pub(crate) end: End,
    /// Standard output and error, as they came.
    pub(crate) output: String,
    /// How long it ran.
    pub(crate) time: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this status.
    Exit(i32),
    /// By a signal.
    Signal(i32),
    /// It was ended at its time limit.
    TimedOut,
    /// It was ended because it printed without end.
    TooMuchOutput,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Exit(code) => write!(f, "exit status {code}"),
            End::Signal(signal) => write!(f, "signal {signal}"),
            End::TimedOut => write!(f, "ended at its time limit"),
            End::TooMuchOutput => write!(f, "ended because it printed without end"),
        }
    }
}

impl Job {
    /// A program by path or name, with ten minutes to run.
    pub(crate) fn new(program: impl AsRef<Path>) -> Job {
        Job {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            folder: None,
            limit: Duration::from_secs(600),
        }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Job {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Adds an argument in front of all others.
    pub(crate) fn first_arg(mut self, arg: impl AsRef<OsStr>) -> Job {
        self.args.insert(0, arg.as_ref().to_owned());
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Job {
        self.env.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes an environment variable.
    pub(crate) fn without_env(mut self, name: impl AsRef<OsStr>) -> Job {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// Sets the folder to run in.
    pub(crate) fn folder(mut self, folder: impl AsRef<Path>) -> Job {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    /// Sets how long it may run, in seconds.
    pub(crate) fn limit(mut self, seconds: u64) -> Job {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// This job as the last arguments of another program.
    pub(crate) fn under(&self, program: &Path, args: &[&str]) -> Job {
        let mut job = self.clone();
        job.program = program.to_owned();
        job.args = args.iter().map(OsString::from).collect();
        job.args.push(self.program.clone().into_os_string());
        job.args.extend(self.args.iter().cloned());
        job
    }

    /// The folder that it runs in, if one was set.
    pub(crate) fn in_folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The command line, for messages.
    pub(crate) fn line(&self) -> String {
        let words =
            std::iter::once(self.program.as_os_str()).chain(self.args.iter().map(OsString::as_os_str));
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// Runs it to its end, with nothing on standard input.
    pub(crate) fn run(&self) -> Result<Done> {
        let mut output = output_file()?;
        let start = Instant::now();
        let mut command = self.command();
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let end = self.watched(&mut command, Some(&output))?;
        Ok(Done { end, output: tail_of(&mut output)?, time: start.elapsed() })
    }

    /// Runs it to its end with its output shown as it comes.
    pub(crate) fn show(&self) -> Result<End> {
        self.watched(&mut self.command(), None)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).process_group(0);
        // Cargo adds its build folders, whose libmpi_abi would take the place of other libraries.
        command.env_remove("LD_LIBRARY_PATH");
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }

    fn watched(&self, command: &mut Command, output: Option<&File>) -> Result<End> {
        let deadline = Instant::now() + self.limit;
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        let _group = Group::watch(&child);
        wait(&mut child, output, deadline)
    }

    /// Runs it; anything but exit status 0 is an error that shows the end of the output.
    pub(crate) fn run_ok(&self) -> Result<Done> {
        let done = self.run()?;
        if done.end != End::Exit(0) {
            bail!("{}: {}\n{}", self.line(), done.end, tail(&done.output, 60));
        }
        Ok(done)
    }
}

/// The last `lines` lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    let mut shown = all[from..].join("\n");
    if from > 0 {
        shown.insert_str(0, &format!("[{from} lines before]\n"));
    }
    shown
}

/// Ends what still runs when xtask itself is interrupted.
pub(crate) fn end_children_on_signals() -> Result<()> {
    ctrlc::set_handler(|| {
        let groups = RUNNING.lock().map(|set| set.clone()).unwrap_or_default();
        for group in groups {
            end_group(group);
        }
        std::process::exit(130);
    })?;
    Ok(())
}

/// Calls `work` on each item, `jobs` at a time, and returns the answers in the items' order.
pub(crate) fn parallel<T: Sync, R: Send>(jobs: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1).min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let answer = work(item);
                    answers.lock().expect("a worker does not panic with the lock held").push((index, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner().expect("the workers are done");
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The process groups that run now.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A process group in [`RUNNING`] while this lives; what is left of the group ends with it.
pub(crate) struct Group(i32);

impl Group {
    /// Of a child that leads a process group.
    pub(crate) fn watch(child: &Child) -> Group {
        let id = child.id().cast_signed();
        if let Ok(mut running) = RUNNING.lock() {
            running.insert(id);
        }
        Group(id)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        end_group(self.0);
        if let Ok(mut running) = RUNNING.lock() {
            running.remove(&self.0);
        }
    }
}

fn end_group(id: i32) {
    if let Some(pid) = Pid::from_raw(id) {
        // An empty group is the usual case and not an error.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

fn wait(child: &mut Child, output: Option<&File>, deadline: Instant) -> Result<End> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a child process")?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for a child process"),
        }
        if let Some(status) = child.try_wait()? {
            let by_signal = status.signal().map(End::Signal);
            return Ok(status.code().map(End::Exit).or(by_signal).unwrap_or(End::Exit(-1)));
        }
        let printed = output.map_or(Ok(0), |file| file.metadata().map(|data| data.len()))?;
        let end = if printed > OUTPUT_LIMIT {
            End::TooMuchOutput
        } else if Instant::now() >= deadline {
            End::TimedOut
        } else {
            continue;
        };
        // A launcher gets a moment to take its ranks along.
        let _ = kill_process_group(pid, Signal::TERM);
        let moment = Timespec { tv_sec: 2, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&moment));
        end_group(pid.as_raw_nonzero().get());
        child.wait()?;
        return Ok(end);
    }
}

fn output_file() -> Result<File> {
    let fd = rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC).context("memfd_create")?;
    let file = File::from(fd);
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::APPEND)?;
    Ok(file)
}

fn tail_of(output: &mut File) -> Result<String> {
    let length = output.metadata()?.len();
    output.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_KEPT)))?;
    let mut bytes = Vec::new();
    output.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_come_back() {
        let done = Job::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]).run().unwrap();
        assert_eq!(done.end, End::Exit(3));
        assert_eq!(done.output, "one\ntwo\n");
    }

    #[test]
    fn a_limit_ends_grandchildren_too() {
        let done = Job::new("sh").args(["-c", "sleep 61 & echo $!; wait"]).limit(0).run().unwrap();
        assert_eq!(done.end, End::TimedOut);
        let missing = Job::new("/no/such/program").run().err().unwrap();
        assert!(missing.to_string().contains("/no/such/program"));
    }

    #[test]
    fn parallel_keeps_the_order() {
        let squares = parallel(4, &[1, 2, 3, 4, 5], |n| n * n);
        assert_eq!(squares, [1, 4, 9, 16, 25]);
    }

    #[test]
    fn a_tail_says_what_it_leaves_out() {
        assert_eq!(tail("a\nb\nc", 2), "[1 lines before]\nb\nc");
        assert_eq!(tail("a\nb", 2), "a\nb");
    }
}
