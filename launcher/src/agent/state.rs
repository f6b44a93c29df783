//! What the ranks do: the report on a job that hangs, and the message that one is deadlocked. Other hosts are asked for the
//! states of their ranks, and answer after a while.

use std::time::{Duration, Instant};

use banyan_pmi::status;

use super::{Agent, JobState};
use crate::frames::{ALL, Order};
use crate::report::{RankState, cycle, lines};

/// How often the job is checked for a deadlock.
pub(super) const DEADLOCK_CHECK: Duration = Duration::from_millis(500);

/// How long a deadlock must have lasted to be reported without being asked.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long other hosts may take to say what their ranks do.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// What the states of ranks are wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The user asks.
    Asked,
    /// The job has taken too long, and is ended when all have answered.
    Timeout,
    /// To look for a deadlock.
    Check,
}

/// States of ranks, as far as hosts have told them.
pub(super) struct Report {
    purpose: Purpose,
    /// When it is made of what is there.
    pub(super) until: Instant,
    /// Hosts that have not answered.
    missing: usize,
    states: Vec<RankState>,
    /// For each rank how far this host's clock is ahead of its own.
    ahead: Vec<u64>,
}

impl Agent {
    /// Writes the states of all ranks, when all hosts have told them.
    pub(super) fn report_states(&mut self, now: Instant) {
        if !self.say_who_is_missing() {
            self.ask(Purpose::Asked, now);
        }
    }

    /// Asks all hosts for the states of their ranks.
    fn ask(&mut self, purpose: Purpose, now: Instant) {
        if self.hosts.report.as_ref().is_some_and(|report| report.purpose != Purpose::Check) {
            return;
        }
        let size = self.ranks.len();
        let state = |rank: &super::Member| match rank.ended {
            Some(_) => RankState::Ended,
            None => RankState::Outside,
        };
        self.hosts.report = Some(Report {
            purpose,
            until: now + ANSWER_TIME,
            missing: self.hosts.living() + 1,
            states: self.ranks.iter().map(state).collect(),
            ahead: vec![0; size],
        });
        self.order(ALL, Order::States { stopped: purpose != Purpose::Check });
        self.dispatch();
    }

    /// A host has told the states of its ranks.
    pub(super) fn take_states(&mut self, agent: u32, now: u64, states: Vec<(u32, RankState)>) {
        let Some(report) = &mut self.hosts.report else { return };
        // Modulo 2^64, so that it works whichever of the clocks is ahead.
        let ahead = if agent == 0 { 0 } else { status::now().wrapping_sub(now) };
        for (rank, state) in states {
            report.states[rank as usize] = state;
            report.ahead[rank as usize] = ahead;
        }
        report.missing = report.missing.saturating_sub(1);
        if report.missing == 0 {
            self.finish_report();
        }
    }

    /// Makes a report of what is there, if hosts have had time enough.
    pub(super) fn check_report(&mut self, now: Instant) {
        if self.hosts.report.as_ref().is_some_and(|report| now >= report.until) {
            self.finish_report();
        }
    }

    fn finish_report(&mut self) {
        let Some(Report { purpose, missing, states, ahead, .. }) = self.hosts.report.take() else { return };
        let now = Instant::now();
        let idle = self.detector.observe(&states, now);
        let mut shown = states;
        for (state, ahead) in shown.iter_mut().zip(ahead) {
            if let RankState::Waits(line) = state {
                line.since = line.since.wrapping_add(ahead);
            }
        }
        if purpose != Purpose::Check {
            let time = (now - self.started).as_secs_f64();
            let missing = match missing {
                0 => String::new(),
                1 => " (a host does not answer)".to_owned(),
                more => format!(" ({more} hosts do not answer)"),
            };
            self.write_states(
                &format!("where the ranks are, {time:.1} s after the start{missing}"),
                &shown,
                idle,
            );
            self.timeout_reported |= purpose == Purpose::Timeout;
            return;
        }
        let idle = idle.filter(|&idle| idle >= PATIENCE && missing == 0);
        if idle.is_some() && !self.deadlock_reported {
            self.deadlock_reported = true;
            let title = "the job is deadlocked, and goes on until somebody ends it; the ranks are here";
            self.write_states(title, &shown, idle);
        }
    }

    /// Writes the states of the ranks, and the deadlock if there is one.
    fn write_states(&mut self, title: &str, states: &[RankState], idle: Option<Duration>) {
        let mut text = format!("mpirun: {title}:\n");
        for line in lines(states, status::now()) {
            text += &format!("  {line}\n");
        }
        if let Some(idle) = idle {
            let who = cycle(states).map(|cycle| format!(": {cycle}")).unwrap_or_default();
            let time = idle.as_secs_f64();
            text += &format!(
                "mpirun: deadlock: all ranks wait, and nothing was under way for {time:.1} s{who}\n"
            );
        }
        self.here.output.show(&self.here.epoll, &text);
    }

    /// Reports the states before a job that takes too long is ended; true if that has been done.
    pub(super) fn report_before_the_end(&mut self, now: Instant) -> bool {
        if !self.timeout_reported && !self.reports_before_the_end() {
            self.ask(Purpose::Timeout, now);
        }
        self.timeout_reported
    }

    /// True while hosts are asked for that report.
    pub(super) fn reports_before_the_end(&self) -> bool {
        self.hosts.report.as_ref().is_some_and(|report| report.purpose == Purpose::Timeout)
    }

    /// Checks for a deadlock if the time for that has come, and reports the first one found.
    pub(super) fn check_deadlock(&mut self, now: Instant) {
        if self.next_deadlock_check().is_none_or(|next| now < next) {
            return;
        }
        self.deadlock_checked = now;
        // Other hosts are asked only if all of their ranks wait.
        if self.hosts.report.is_none() && self.hosts.are_quiet() {
            self.ask(Purpose::Check, now);
        }
    }

    /// When [`Agent::check_deadlock`] is to be called.
    pub(super) fn next_deadlock_check(&self) -> Option<Instant> {
        let running = self.state == JobState::Running && self.ranks.iter().any(|rank| rank.phase.is_inside());
        running.then_some(self.deadlock_checked + DEADLOCK_CHECK)
    }
}
