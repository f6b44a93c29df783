//! How a job ends: what counts as a failure of a rank, what mpirun says, and its status.

use std::time::Duration;

use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize};

/// How far a rank's process has come with MPI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Phase {
    /// The process has not called Init (and may never).
    #[default]
    Outside,
    /// The process has joined the job, and is in Init.
    InInit,
    /// Init is over.
    Running,
    /// Finalize is over.
    Finalized,
}

impl Phase {
    /// Between the beginning of Init and the end of Finalize.
    pub(crate) fn is_inside(self) -> bool {
        matches!(self, Phase::InInit | Phase::Running)
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum End {
    Code(u8),
    Signal { number: i32, core: bool },
}

impl End {
    /// What `wait` said about an ended process.
    pub(crate) fn of(status: WaitStatus) -> End {
        match status.terminating_signal() {
            Some(number) => End::Signal { number, core: status.as_raw() & 0x80 != 0 },
            None => End::Code((status.exit_status().unwrap_or(0) & 0xff) as u8),
        }
    }
}

/// Why a job failed. The first failure counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Killed by a signal.
    Signal { number: i32, core: bool },
    /// Killed by the kernel because memory ran out.
    OutOfMemory,
    /// Ended with a status other than 0.
    Code(u8),
    /// Called Init, and ended with status 0 but without Finalize.
    NoFinalize,
    /// The process that had joined has ended; the process that mpirun started (a wrapper) has not.
    JoinedGone { pid: u32 },
    /// Ended without Init although another rank called it.
    NoInit,
    /// MPI_Abort or a fatal error.
    Abort { code: i32, message: String },
    /// The program could not be started.
    Start { status: u8, why: String },
    /// The rank broke the bootstrap protocol.
    Protocol(String),
    /// The agent of another host did not start, or is gone.
    Host(String),
    /// A signal has stopped the rank, for so long, while others ran.
    Stopped(Duration),
    /// --timeout.
    Timeout(Duration),
    /// mpirun got a signal.
    Interrupted(i32),
    /// mpirun's output cannot be written.
    Output(String),
    /// The system refuses a call that mpirun cannot do without.
    System(String),
}

impl Failure {
    /// How a process in `phase` failed, if ending with `end` is a failure; `others_inside` tells whether
    /// another rank is between Init and Finalize.
    pub(crate) fn of(end: End, phase: Phase, others_inside: bool) -> Option<Failure> {
        match (end, phase) {
            (End::Signal { number, core }, _) => Some(Failure::Signal { number, core }),
            (End::Code(0), Phase::InInit | Phase::Running) => Some(Failure::NoFinalize),
            (End::Code(0), Phase::Outside) if others_inside => Some(Failure::NoInit),
            (End::Code(0), _) => None,
            (End::Code(code), _) => Some(Failure::Code(code)),
        }
    }

    /// True for a fatal error that only says that another process is gone, and so is hardly the cause.
    pub(crate) fn is_effect(&self) -> bool {
        matches!(self, Failure::Abort { message, .. } if message.contains("MPI_ERR_PROC_ABORTED"))
    }

    /// True if two ranks aborted for the same reason: code and message are equal but for rank and process.
    pub(crate) fn is_like(&self, rank: u32, other: &Failure, of: u32) -> bool {
        let (Failure::Abort { code, message }, Failure::Abort { code: other_code, message: other_message }) =
            (self, other)
        else {
            return false;
        };
        let anonymous =
            |text: &str, rank: u32| without_process(&text.replace(&format!("rank {rank} of "), "rank of "));
        code == other_code && anonymous(message, rank) == anonymous(other_message, of)
    }

    /// The report of several lines that an aborting rank gave, which names the rank; it is shown unchanged.
    pub(crate) fn report(&self) -> Option<&str> {
        match self {
            Failure::Abort { message, .. } if message.contains('\n') => Some(message),
            _ => None,
        }
    }

    /// The status that mpirun ends with.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Failure::Signal { number, .. } | Failure::Interrupted(number) => 128 + (number & 0x7f) as u8,
            Failure::OutOfMemory => 128 + 9,
            Failure::Code(code) => *code,
            Failure::Abort { code, .. } => match (code & 0xff) as u8 {
                0 => 1,
                status => status,
            },
            Failure::Start { status, .. } => *status,
            Failure::Timeout(_) => 124,
            Failure::NoFinalize
            | Failure::JoinedGone { .. }
            | Failure::NoInit
            | Failure::Protocol(_)
            | Failure::Host(_)
            | Failure::Stopped(_)
            | Failure::Output(_)
            | Failure::System(_) => 1,
        }
    }

    /// The message for the user, given the name of the rank (`rank 3 on host, pid 77`); `None` if the user knows already.
    pub(crate) fn describe(&self, who: &str) -> Option<String> {
        Some(match self {
            Failure::Signal { number, core } => {
                let dumped = if *core { ", core dumped" } else { "" };
                format!("{who} was killed by signal {number} ({}{dumped})", signal_name(*number))
            }
            Failure::OutOfMemory => format!(
                "{who} was killed by the kernel (SIGKILL) because memory ran out: use fewer ranks or a smaller \
                 problem, or raise the limit of the job's control group"
            ),
            Failure::Code(code) => format!("{who} ended with status {code}"),
            Failure::NoFinalize => format!(
                "{who} called MPI_Init but ended without MPI_Finalize (--allow-missing-finalize makes that a notice)"
            ),
            Failure::JoinedGone { pid } => {
                format!("{who}: its MPI process (pid {pid}) is gone without MPI_Finalize")
            }
            Failure::NoInit => {
                format!("{who} ended without MPI_Init, which other ranks of the job called")
            }
            Failure::Abort { code, message } if message.is_empty() => {
                format!("{who} called MPI_Abort with code {code}")
            }
            Failure::Abort { code, .. } if self.report().is_some() => {
                format!("{who} ended the job with code {code}")
            }
            Failure::Abort { code, message } => format!("{who} aborted with code {code}: {message}"),
            Failure::Start { why, .. } => format!("{who} could not be started: {why}"),
            Failure::Protocol(why) => format!("{who}: {why}"),
            Failure::System(why) | Failure::Host(why) => why.clone(),
            Failure::Stopped(time) => format!(
                "{who} has been stopped by a signal for {} s (--patience), while other ranks ran",
                time.as_secs_f64()
            ),
            Failure::Timeout(time) => {
                format!("the job took longer than {} s (--timeout)", time.as_secs_f64())
            }
            Failure::Output(why) => format!("output cannot be written: {why}"),
            Failure::Interrupted(_) => return None,
        })
    }
}

/// A report without the number in `process 77`.
fn without_process(text: &str) -> String {
    let (before, after) = text.split_once("process ").unwrap_or((text, ""));
    format!("{before}{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// What became of a process, as in `killed by signal 9 (SIGKILL)`.
pub(crate) fn killed_by(number: i32) -> String {
    format!("killed by signal {number} ({})", signal_name(number))
}

/// The name of a signal, such as SIGSEGV.
pub(crate) fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "HUP",
        libc::SIGINT => "INT",
        libc::SIGQUIT => "QUIT",
        libc::SIGILL => "ILL",
        libc::SIGTRAP => "TRAP",
        libc::SIGABRT => "ABRT",
        libc::SIGBUS => "BUS",
        libc::SIGFPE => "FPE",
        libc::SIGKILL => "KILL",
        libc::SIGUSR1 => "USR1",
        libc::SIGSEGV => "SEGV",
        libc::SIGUSR2 => "USR2",
        libc::SIGPIPE => "PIPE",
        libc::SIGALRM => "ALRM",
        libc::SIGTERM => "TERM",
        libc::SIGXCPU => "XCPU",
        libc::SIGXFSZ => "XFSZ",
        libc::SIGSYS => "SYS",
        other => return format!("number {other}"),
    };
    format!("SIG{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_judged() {
        let segv = End::Signal { number: 11, core: false };
        assert_eq!(Failure::of(segv, Phase::Finalized, false).unwrap().status(), 139);
        assert_eq!(Failure::of(End::Code(0), Phase::Running, false), Some(Failure::NoFinalize));
        assert_eq!(Failure::of(End::Code(0), Phase::InInit, false), Some(Failure::NoFinalize));
        assert_eq!(Failure::of(End::Code(0), Phase::Outside, true), Some(Failure::NoInit));
        assert_eq!(Failure::of(End::Code(0), Phase::Outside, false), None);
        assert_eq!(Failure::of(End::Code(0), Phase::Finalized, true), None);
        assert_eq!(Failure::of(End::Code(3), Phase::Finalized, true), Some(Failure::Code(3)));
    }

    #[test]
    fn reports_are_compared_apart_from_the_rank() {
        let abort = |code, message: &str| Failure::Abort { code, message: message.to_owned() };
        let (one, two) =
            (abort(6, "where: rank 1 of 8, process 55, x\n"), abort(6, "where: rank 2 of 8, process 7, x\n"));
        assert!(one.is_like(1, &two, 2) && one.report().is_some());
        assert!(!one.is_like(1, &abort(6, "where: rank 2 of 8, elsewhere\n"), 2));
        assert!(!one.is_like(1, &abort(7, "where: rank 2 of 8\n"), 2));
        assert!(!one.is_like(1, &Failure::Code(6), 2) && !one.is_effect());
        assert!(abort(2, "class: MPI_ERR_PROC_ABORTED (2)\n").is_effect());
    }

    #[test]
    fn abort_codes_are_cut_to_a_byte_and_never_success() {
        for (code, status) in [(5, 5), (0, 1), (256, 1), (257, 1), (-1, 255), (511, 255), (i32::MIN, 1)] {
            assert_eq!(Failure::Abort { code, message: String::new() }.status(), status, "{code}");
        }
        assert_eq!(Failure::Interrupted(2).status(), 130);
        assert_eq!(Failure::Timeout(Duration::from_secs(1)).status(), 124);
    }
}
