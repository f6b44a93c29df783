//! How a job ends: ends of processes, failures, signals, and killing what is left.

use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, wait};

use super::{Agent, JobState};
use crate::front::STOPPED;
use crate::verdict::{End, Failure, Phase};
use crate::{descendants, oom};

/// How long the failure of a rank in MPI is held back for a better explanation: other ranks may notice that a peer is
/// being killed before the system reports its end.
const HOLD: Duration = Duration::from_millis(20);

/// Most time for which a failure is held back longer in a large job, so that ranks with the same failure are counted.
const HOLD_MOST: Duration = Duration::from_millis(200);

impl Agent {
    pub(super) fn reap(&mut self) {
        let mut ended = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => ended.extend(self.ended(pid, status)),
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.childless = true;
                    break;
                }
            }
        }
        // The cause before its consequences: ranks that were killed by a signal come first.
        ended.sort_by_key(|&(_, end)| matches!(end, End::Code(_)));
        for (rank, end) in ended {
            self.judge(rank, end);
        }
        if let JobState::Killing(_) = self.state {
            descendants::kill_below(getpid());
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) -> Option<(u32, End)> {
        let rank = self.by_pid.remove(&pid.as_raw_pid())?;
        let end = End::of(status);
        let state = &mut self.ranks[rank as usize];
        (state.pid, state.ended) = (None, Some(end));
        self.alive -= 1;
        Some((rank, end))
    }

    fn judge(&mut self, rank: u32, end: End) {
        let at = rank as usize;
        self.read_start_errors();
        self.read_requests(at);
        let phase = self.ranks[at].phase;
        let others_inside = self.ranks.iter().any(|other| other.phase.is_inside() && other.ended.is_none());
        let Some(mut failure) = Failure::of(end, phase, others_inside) else { return };
        if failure == Failure::NoFinalize && self.plan.global.allow_missing_finalize {
            return self.count_as_finalized(at);
        }
        if let Failure::Signal { number: libc::SIGKILL, .. } = failure
            && self.state == JobState::Running
            && self.oom.as_ref().is_some_and(oom::Watch::has_killed)
        {
            failure = Failure::OutOfMemory;
        }
        let killed = matches!(failure, Failure::Signal { .. } | Failure::OutOfMemory);
        if let Some((_, first, held)) = &self.held
            && (*first == rank || !(killed || held.is_effect()))
        {
            return; // the held failure came first
        }
        match failure {
            // The rank is finished with MPI: its status counts, but the other ranks go on.
            Failure::Code(_) if phase == Phase::Finalized => self.record(Some(rank), failure),
            Failure::Code(_) if others_inside => self.hold(rank, failure),
            _ => self.fail(rank, failure),
        }
    }

    /// A rank failed, perhaps only because another one did: reports it after a while, unless a better explanation comes.
    pub(super) fn hold(&mut self, rank: u32, failure: Failure) {
        let recorded = self.failure.as_ref().and_then(|failure| Some((self.culprit?, failure)));
        if let Some((of, other)) = recorded.or(self.held.as_ref().map(|(_, of, other)| (*of, other)))
            && of != rank
            && failure.is_like(rank, other, of)
        {
            self.same_failure += 1;
        }
        if self.failure.is_some() {
            return;
        }
        if self.held.as_ref().is_none_or(|(.., held)| held.is_effect() && !failure.is_effect()) {
            let others = Duration::from_millis(self.ranks.len() as u64).min(HOLD_MOST);
            self.held = Some((Instant::now() + HOLD + others, rank, failure));
        }
    }

    /// Reports the failure that was held back, and ends the job.
    pub(super) fn report_held(&mut self) {
        if let Some((_, rank, failure)) = self.held.take() {
            // A rank that aborts ends by itself, after it has written its output.
            let aborting = matches!(failure, Failure::Abort { .. }).then_some(rank);
            self.record(Some(rank), failure);
            self.end_but(aborting, Signal::TERM);
        }
    }

    /// A rank failed: reports it and ends the job.
    pub(super) fn fail(&mut self, rank: u32, failure: Failure) {
        self.fail_with(Some(rank), failure);
    }

    pub(super) fn fail_with(&mut self, rank: Option<u32>, failure: Failure) {
        self.record(rank, failure);
        self.end(Signal::TERM);
    }

    /// Records and reports a failure, if it is the first.
    fn record(&mut self, rank: Option<u32>, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.held = None; // `failure` explains more, or is the held one
        let mut who = String::new();
        if let Some(rank) = rank {
            self.output.pump(&self.epoll, rank, Instant::now());
            who = self.named(rank);
        }
        if let Some(report) = failure.report() {
            self.output.show(&self.epoll, report);
        }
        if let Some(text) = failure.describe(&who) {
            self.output.say(&self.epoll, &text);
        }
        (self.failure, self.culprit) = (Some(failure), rank);
    }

    /// A rank, for messages.
    pub(super) fn named(&self, rank: u32) -> String {
        let pid = self.ranks[rank as usize].started_as;
        let pid = pid.map(|pid| format!(", pid {}", pid.as_raw_pid())).unwrap_or_default();
        format!("rank {rank} on {}{pid}", self.plan.host)
    }

    /// Asks all ranks to end, and kills what is left after the grace time.
    fn end(&mut self, signal: Signal) {
        self.end_but(None, signal);
    }

    /// Asks all ranks but `spared` to end, and kills what is left after the grace time.
    fn end_but(&mut self, spared: Option<u32>, signal: Signal) {
        if self.state != JobState::Running {
            return;
        }
        self.state = JobState::Ending(Instant::now() + self.plan.global.grace);
        for (rank, state) in (0..).zip(&self.ranks) {
            if let Some(pid) = state.pid.filter(|_| spared != Some(rank)) {
                let _ = kill_process_group(pid, signal);
                let _ = kill_process_group(pid, Signal::CONT);
            }
        }
    }

    pub(super) fn kill_all(&mut self) {
        if !matches!(self.state, JobState::Killing(_)) {
            self.state = JobState::Killing(Instant::now());
            self.name_leftovers();
            self.signal_ranks(Signal::KILL);
        }
        descendants::kill_below(getpid());
    }

    /// Sends a signal to the process groups of all ranks that have not ended.
    fn signal_ranks(&self, signal: Signal) {
        for pid in self.ranks.iter().filter_map(|rank| rank.pid) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Handles signals that the front relays, and the front's death.
    pub(super) fn control(&mut self) {
        let mut signals = [0; 64];
        let count = match rustix::io::read(&self.control, &mut signals) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            Ok(count @ 1..) => count,
            _ => 0,
        };
        if count == 0 {
            let _ = epoll::delete(&self.epoll, &self.control);
            self.failure.get_or_insert(Failure::Interrupted(libc::SIGKILL));
            self.drop_output = true;
            return self.kill_all();
        }
        for &number in &signals[..count] {
            self.forward(number.into());
        }
    }

    fn forward(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        match number {
            libc::SIGTSTP => {
                self.signal_ranks(Signal::STOP);
                let _ = rustix::net::send(&self.control, &[STOPPED], rustix::net::SendFlags::NOSIGNAL);
            }
            libc::SIGQUIT => self.report_states(),
            libc::SIGCONT | libc::SIGUSR1 | libc::SIGUSR2 => self.signal_ranks(signal),
            _ if self.state == JobState::Running => {
                self.record(None, Failure::Interrupted(number));
                self.end(signal);
            }
            _ => {
                self.failure.get_or_insert(Failure::Interrupted(number));
                self.drop_output = self.childless;
                self.kill_all();
            }
        }
    }
}
