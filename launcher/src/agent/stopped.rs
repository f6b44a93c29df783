//! Ranks that a signal has stopped (SIGSTOP, or a terminal's). As long as others run, which wait for them sooner or later, the job
//! does not get on: the user is told, and after the patience the job is ended. A job whose ranks are all stopped was suspended,
//! by Ctrl-Z or by a batch system, and waits. A rank that a debugger holds is not stopped in this sense.

use std::time::{Duration, Instant};

use super::{Agent, JobState};
use crate::frames::Order;
use crate::verdict::Failure;

/// How long a rank is stopped before the user is told: a job that is suspended, or goes on, does so rank by rank.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// A rank that is stopped.
#[derive(Clone, Copy)]
pub(super) struct Stopped {
    rank: u32,
    /// Since when it is, and others are not.
    since: Instant,
    told: bool,
}

impl Agent {
    /// A rank was stopped, or goes on.
    pub(super) fn note_stopped(&mut self, rank: u32, stopped: bool) {
        self.stopped.retain(|other| other.rank != rank);
        if stopped {
            self.stopped.push(Stopped { rank, since: Instant::now(), told: false });
        }
    }

    /// Tells of ranks that are stopped while others run, and ends the job if that lasts.
    pub(super) fn check_stopped(&mut self, now: Instant) {
        if self.stopped.is_empty() || self.state != JobState::Running {
            return;
        }
        let ranks = &self.ranks;
        let runs = |rank: u32| ranks[rank as usize].phase.is_inside() && ranks[rank as usize].ended.is_none();
        self.stopped.retain(|stopped| runs(stopped.rank));
        if (0..ranks.len() as u32).filter(|&rank| runs(rank)).count() == self.stopped.len() {
            self.stopped.iter_mut().for_each(|stopped| stopped.since = now);
            return;
        }
        let patience = self.plan.global.patience;
        for at in 0..self.stopped.len() {
            let Stopped { rank, since, told } = self.stopped[at];
            if now >= since + patience {
                return self.end_stopped(rank, Failure::Stopped(patience));
            }
            if !told && now >= since + TELL_AFTER {
                self.stopped[at].told = true;
                let (who, seconds) = (self.named(rank), patience.as_secs_f64());
                self.say(&format!(
                    "{who} was stopped by a signal, and others run: the job is ended if that lasts {seconds} s (--patience); \
                     `kill -CONT` lets it go on"
                ));
            }
        }
    }

    /// A rank has been stopped for too long.
    fn end_stopped(&mut self, rank: u32, failure: Failure) {
        match self.goes_on_without(rank, &failure) {
            true => self.order(self.plan.agent_of(rank), Order::KillRank { rank }),
            false => self.fail(rank, failure),
        }
    }

    /// When [`Agent::check_stopped`] is to be called.
    pub(super) fn next_stop_check(&self) -> Option<Instant> {
        let patience = self.plan.global.patience;
        let next = |stopped: &Stopped| {
            stopped.since + if stopped.told { patience } else { TELL_AFTER.min(patience) }
        };
        self.stopped.iter().map(next).min().filter(|_| self.state == JobState::Running)
    }
}
