//! The front: the process that the user started. It relays signals and the terminal's input to the agent, and ends with the
//! job's status; if the agent is killed, it kills all processes that are left.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, kill_process, set_child_subreaper, wait};
use rustix::termios::tcgetpgrp;

use crate::agent::{self, Setup};
use crate::options::{Global, Options};
use crate::start::{arrived, fork, is_ignored, stop_self, take_signals};
use crate::trouble::refused;
use crate::verdict::{End, killed_by};
use crate::{Trouble, descendants};

/// The byte that the agent sends when it has stopped all ranks.
pub(crate) const STOPPED: u8 = b's';

/// Signals that end, stop or explain (SIGQUIT) a job, unless they were set to be ignored when mpirun started.
const ENDING: [i32; 5] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGTSTP];

/// Other signals that the front reads. SIGTTIN and SIGTTOU only stay blocked: the terminal then answers with
/// an error instead of stopping mpirun.
const OTHERS: [i32; 6] =
    [libc::SIGCHLD, libc::SIGCONT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGTTIN, libc::SIGTTOU];

/// How often an mpirun in the background checks whether it has the terminal now.
const TERMINAL_CHECK: Duration = Duration::from_millis(200);

/// How long killed processes may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// What an agent is for.
pub(crate) enum Work {
    /// A job.
    Job(Box<Options>),
    /// The ranks of this host, of a job that another host's agent asks for.
    Host,
}

/// Runs a job and gives mpirun's status. The agent plans the job, not the front: the less memory the front has touched,
/// the less there is to copy when it forks the agent.
///
/// # Errors
/// If the system refuses a call that is needed before the agent is started.
pub(crate) fn run(work: Work) -> Result<u8, Trouble> {
    let signals: Vec<i32> = ENDING.into_iter().filter(|&signal| !is_ignored(signal)).chain(OTHERS).collect();
    let failed = |why: io::Error| Trouble::new(format!("cannot start: {why}"));
    let (signals, mask) = take_signals(&signals).map_err(refused("signalfd")).map_err(failed)?;
    let (control, agent_end) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(refused("socketpair"))
            .map_err(failed)?;
    let options = match work {
        Work::Job(options) => Some(*options),
        Work::Host => None,
    };
    let (terminal, input) = match &options {
        Some(options) => terminal_pipe(&options.global).map_err(failed)?,
        None => (None, None),
    };
    // Orphans of the agent become children of this process; see `kill_descendants`.
    set_child_subreaper(Some(getpid())).map_err(refused("prctl(PR_SET_CHILD_SUBREAPER)")).map_err(failed)?;
    match fork().map_err(refused("fork")).map_err(failed)? {
        Some(agent) => {
            drop((agent_end, input));
            Ok(Front { agent, signals, control, terminal, end_signals: Vec::new() }.watch())
        }
        None => {
            drop((signals, control, terminal));
            let status = agent::run(Setup { options, control: agent_end, input, mask });
            process::exit(status.into())
        }
    }
}

/// If rank 0 is to read from a terminal: a pipe through which the front passes the input on, as only the foreground process
/// group may read from a terminal.
fn terminal_pipe(global: &Global) -> io::Result<(Option<Terminal>, Option<OwnedFd>)> {
    if global.stdin == "none" || !io::stdin().is_terminal() {
        return Ok((None, None));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    Ok((Some(Terminal { pipe: write, input: Vec::new() }), Some(read)))
}

/// Relays the terminal's input to rank 0.
struct Terminal {
    pipe: OwnedFd,
    /// Bytes that were read and not passed on yet.
    input: Vec<u8>,
}

impl Terminal {
    fn is_ours() -> bool {
        tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
    }

    /// Passes input on without waiting; false when no more will come or rank 0's end is closed.
    fn relay(&mut self) -> bool {
        if self.input.is_empty() && Terminal::is_ours() {
            let mut buffer = [0; 4096];
            match rustix::io::read(io::stdin(), &mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR | Errno::AGAIN) => return true,
                // mpirun was moved to the background just now; if not, the terminal is gone.
                Err(Errno::IO) => return !Terminal::is_ours(),
                Err(_) => return false,
            }
        }
        match rustix::io::write(&self.pipe, &self.input) {
            Ok(count) => {
                self.input.drain(..count);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        }
    }
}

struct Front {
    agent: Pid,
    signals: OwnedFd,
    control: OwnedFd,
    terminal: Option<Terminal>,
    /// Signals that have asked for the end of the job.
    end_signals: Vec<i32>,
}

impl Front {
    fn watch(mut self) -> u8 {
        loop {
            let readable = self.wait();
            for signal in arrived(&self.signals) {
                match signal {
                    libc::SIGCHLD => {
                        if let Some(status) = self.agent_ended() {
                            return status;
                        }
                    }
                    libc::SIGTSTP => self.stop(),
                    libc::SIGTTIN | libc::SIGTTOU => {}
                    libc::SIGINT | libc::SIGTERM | libc::SIGHUP => self.ask_to_end(signal),
                    other => self.tell(other),
                }
            }
            if readable
                && let Some(terminal) = &mut self.terminal
                && !terminal.relay()
            {
                self.terminal = None;
            }
        }
    }

    /// Waits for a signal or the terminal; true if input can be relayed.
    fn wait(&self) -> bool {
        let mut waiting = vec![PollFd::new(&self.signals, PollFlags::IN)];
        let mut timeout = None;
        let stdin = io::stdin();
        if let Some(terminal) = &self.terminal {
            if !terminal.input.is_empty() {
                waiting.push(PollFd::new(&terminal.pipe, PollFlags::OUT));
            } else if Terminal::is_ours() {
                waiting.push(PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN));
            } else {
                let nanoseconds = TERMINAL_CHECK.subsec_nanos().into();
                timeout = Some(Timespec { tv_sec: 0, tv_nsec: nanoseconds });
            }
        }
        let _ = poll(&mut waiting, timeout.as_ref());
        waiting.get(1).is_some_and(|fd| !fd.revents().is_empty())
    }

    /// Sends a signal's number to the agent, which may be gone already.
    fn tell(&self, signal: i32) {
        let _ = rustix::net::send(&self.control, &[signal as u8], rustix::net::SendFlags::NOSIGNAL);
    }

    /// Handles SIGINT, SIGTERM and SIGHUP. The agent ends the job. If the agent is stopped at the second signal, or still
    /// there at the third, it is killed, and then all that is left of the job.
    fn ask_to_end(&mut self, signal: i32) {
        self.end_signals.push(signal);
        self.tell(signal);
        let stopped = || matches!(descendants::state(self.agent), Some('T' | 't'));
        if self.end_signals.len() > 2 || (self.end_signals.len() == 2 && stopped()) {
            let _ = kill_process(self.agent, Signal::KILL);
        }
    }

    /// Handles Ctrl-Z: stops the ranks, then this process; when it is continued it continues the ranks.
    fn stop(&self) {
        self.tell(libc::SIGTSTP);
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&self.control, PollFlags::IN)], Some(&limit)) == Ok(1) {
            let _ = rustix::io::read(&self.control, &mut [0; 16]);
        }
        stop_self();
        self.tell(libc::SIGCONT);
    }

    /// The job's status, if the agent has ended.
    fn agent_ended(&self) -> Option<u8> {
        let mut ended = None;
        let left = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.agent => ended = Some(End::of(status)),
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        match ended? {
            End::Code(status) => {
                if left {
                    kill_descendants();
                }
                Some(status)
            }
            End::Signal { number: libc::SIGKILL, .. } if self.end_signals.len() > 1 => {
                kill_descendants();
                eprintln!("mpirun: its agent did not answer: it and all ranks were killed");
                Some(128 + (self.end_signals[0] & 0x7f) as u8)
            }
            End::Signal { number, .. } => {
                kill_descendants();
                eprintln!(
                    "mpirun: its agent (pid {}) was {}: the job is over",
                    self.agent.as_raw_pid(),
                    killed_by(number)
                );
                Some(128 + (number & 0x7f) as u8)
            }
        }
    }
}

/// Kills all descendants of this process, until none is left.
fn kill_descendants() {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        descendants::kill_below(getpid(), &[]);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return, // no child is left
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
