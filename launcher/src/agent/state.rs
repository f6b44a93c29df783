//! What the ranks do: the report on a job that hangs, and the message that one is deadlocked.

use std::time::{Duration, Instant};

use banyan_pmi::status;
use rustix::process::Pid;

use super::{Agent, JobState};
use crate::descendants;
use crate::report::{RankState, cycle, lines};
use crate::verdict::Phase;

/// How often the job is checked for a deadlock.
pub(super) const DEADLOCK_CHECK: Duration = Duration::from_millis(500);

/// How long a deadlock must have lasted to be reported without being asked.
const PATIENCE: Duration = Duration::from_secs(10);

impl Agent {
    /// The states of all ranks. With `stopped`, `/proc` is read for each rank to find those that are stopped.
    fn rank_states(&self, stopped: bool) -> Vec<RankState> {
        let ranks = self.ranks.len() as u32;
        let read = |file| status::read(file, ranks);
        let mut waits = self.common.status.as_ref().map(read).unwrap_or_default();
        waits.resize(self.ranks.len(), None);
        let state = |(rank, line): (&crate::ranks::Rank, Option<status::StatusLine>)| {
            let joined = rank.joined.as_ref().and_then(|joined| Pid::from_raw(joined.0.cast_signed()));
            let process = joined.or(rank.pid).filter(|_| stopped).and_then(descendants::state);
            match (rank.phase, line) {
                _ if rank.ended.is_some() => RankState::Ended,
                _ if matches!(process, Some('T' | 't')) => RankState::Stopped,
                (Phase::Outside, _) => RankState::Outside,
                (Phase::Finalized, _) => RankState::Finalized,
                (_, Some(line)) => RankState::Waits(line),
                (Phase::InInit, None) => RankState::InInit,
                (Phase::Running, None) => RankState::Busy,
            }
        };
        self.ranks.iter().zip(waits).map(state).collect()
    }

    /// Writes the states of all ranks.
    pub(super) fn report_states(&mut self) {
        let now = Instant::now();
        let states = self.rank_states(true);
        let idle = self.detector.observe(&states, now);
        let time = (now - self.started).as_secs_f64();
        self.write_states(&format!("where the ranks are, {time:.1} s after the start"), &states, idle);
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
        self.output.show(&self.epoll, &text);
    }

    /// Checks for a deadlock if the time for that has come, and reports the first one found.
    pub(super) fn check_deadlock(&mut self, now: Instant) {
        if self.next_deadlock_check().is_none_or(|next| now < next) {
            return;
        }
        self.deadlock_checked = now;
        let states = self.rank_states(false);
        let idle = self.detector.observe(&states, now).filter(|&idle| idle >= PATIENCE);
        if idle.is_some() && !self.deadlock_reported {
            self.deadlock_reported = true;
            let title = "the job is deadlocked, and goes on until somebody ends it; the ranks are here";
            self.write_states(title, &states, idle);
        }
    }

    /// When [`Agent::check_deadlock`] is to be called.
    pub(super) fn next_deadlock_check(&self) -> Option<Instant> {
        let running = self.state == JobState::Running && self.ranks.iter().any(|rank| rank.phase.is_inside());
        running.then_some(self.deadlock_checked + DEADLOCK_CHECK)
    }
}
