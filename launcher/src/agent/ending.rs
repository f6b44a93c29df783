//! How a job ends: ends of processes, failures, signals, and killing what is left.

use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Agent, JobState, Member};
use crate::frames::{ALL, Ended, Order};
use crate::front::STOPPED;
use crate::verdict::{End, Failure, Phase};

/// How long the failure of a rank in MPI is held back for a better explanation: other ranks may notice that a peer is
/// being killed before the system reports its end.
const HOLD: Duration = Duration::from_millis(20);

/// Most time for which a failure is held back longer in a large job, so that ranks with the same failure are counted.
const HOLD_MOST: Duration = Duration::from_millis(200);

/// How long a failure is held back which says that a peer is gone, if that may be on another host: the end of its agent takes
/// some time to be known.
const HOLD_EFFECT: Duration = Duration::from_millis(700);

impl Agent {
    /// Processes of ranks have ended.
    pub(super) fn ended(&mut self, all: &[Ended]) {
        // A host that is lost may still tell of its ranks.
        let all: Vec<Ended> =
            all.iter().copied().filter(|ended| self.ranks[ended.rank as usize].ended.is_none()).collect();
        for ended in &all {
            self.ranks[ended.rank as usize].ended = Some(ended.end);
            self.alive = self.alive.saturating_sub(1);
        }
        for &ended in &all {
            self.judge(ended);
        }
        self.tell_of_ends();
    }

    /// A process has joined the job as a rank.
    pub(super) fn joined(&mut self, rank: u32) {
        let member = &mut self.ranks[rank as usize];
        (member.joined, member.phase) = (true, Phase::InInit);
        let left_without_init =
            |rank: &Member| rank.phase == Phase::Outside && rank.ended == Some(End::Code(0));
        let gone = self.ranks.iter().position(left_without_init).map(|gone| gone as u32);
        if let Some(gone) = gone.filter(|&gone| !self.goes_on_without(gone, &Failure::NoInit)) {
            self.fail(gone, Failure::NoInit);
        }
    }

    /// The process that joined is gone, and the one that was started for the rank, a wrapper, is not.
    pub(super) fn joined_gone(&mut self, rank: u32, pid: u32) {
        let member = &self.ranks[rank as usize];
        if !member.phase.is_inside() {
            return;
        }
        if self.plan.global.allow_missing_finalize {
            return self.count_as_finalized(rank);
        }
        let failure = Failure::JoinedGone { pid };
        if member.ended.is_none() && !self.goes_on_without(rank, &failure) {
            self.fail(rank, failure);
        }
    }

    fn judge(&mut self, Ended { rank, end, out_of_memory }: Ended) {
        let Member { phase, aborts, .. } = self.ranks[rank as usize];
        let others_inside = self.ranks.iter().any(|other| other.phase.is_inside() && other.ended.is_none());
        let Some(mut failure) = Failure::of(end, phase, others_inside) else { return };
        if failure == Failure::NoFinalize && self.plan.global.allow_missing_finalize {
            return self.count_as_finalized(rank);
        }
        if out_of_memory && self.state == JobState::Running {
            failure = Failure::OutOfMemory;
        }
        if aborts && matches!(failure, Failure::Code(_)) {
            return;
        }
        let killed = matches!(failure, Failure::Signal { .. } | Failure::OutOfMemory);
        if let Some((_, first, held)) = &self.held
            && (*first == rank || !(killed || held.is_effect()))
        {
            return; // the held failure came first
        }
        if phase != Phase::Finalized && self.goes_on_without(rank, &failure) {
            return;
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
            let others = match failure.is_effect() && self.plan.has_other_hosts() {
                true => HOLD_EFFECT,
                false => Duration::from_millis(self.ranks.len() as u64).min(HOLD_MOST),
            };
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
            self.here.output.pump(&self.here.epoll, rank, Instant::now());
            who = self.named(rank);
        }
        if let Some(report) = failure.report() {
            self.here.output.show(&self.here.epoll, report);
        }
        if let Some(text) = failure.describe(&who) {
            self.say(&text);
        }
        (self.failure, self.culprit) = (Some(failure), rank);
    }

    /// A rank, for messages.
    pub(super) fn named(&self, rank: u32) -> String {
        let pid = self.ranks[rank as usize].pid;
        let pid = pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        format!("rank {rank} on {}{pid}", self.plan.hosts[self.plan.agent_of(rank) as usize])
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
        self.order(ALL, Order::EndBut { spared, signal: signal.as_raw() });
    }

    pub(super) fn kill_all(&mut self) {
        if self.state != JobState::Killing {
            self.state = JobState::Killing;
            self.hosts.kill_from(Instant::now());
            // If no rank failed, what is left are programs that ranks left running.
            let tell = self.failure.is_none() && !self.plan.global.quiet;
            self.order(ALL, Order::Kill { tell });
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
            let _ = epoll::delete(&self.here.epoll, &self.control);
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
                self.order(ALL, Order::Signal(libc::SIGSTOP));
                let _ = rustix::net::send(&self.control, &[STOPPED], rustix::net::SendFlags::NOSIGNAL);
            }
            libc::SIGQUIT => self.report_states(Instant::now()),
            libc::SIGCONT | libc::SIGUSR1 | libc::SIGUSR2 => self.order(ALL, Order::Signal(number)),
            _ if self.state == JobState::Running => {
                self.record(None, Failure::Interrupted(number));
                self.end(signal);
            }
            _ => {
                self.failure.get_or_insert(Failure::Interrupted(number));
                self.drop_output = self.is_childless();
                self.kill_all();
            }
        }
    }
}
