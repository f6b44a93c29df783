//! The host part's processes: what `wait` says of them, what they do, signals, and killing what is left.

use std::time::Instant;

use banyan_pmi::status;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, wait};

use super::host::{HostPart, Progress};
use crate::frames::{Ended, Event};
use crate::ranks::Rank;
use crate::report::RankState;
use crate::verdict::{End, Phase};
use crate::{descendants, oom};

impl HostPart {
    pub(super) fn reap(&mut self) {
        let mut ended = Vec::new();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let end = End::of(status);
                    if !self.links.ended(pid, end) {
                        ended.extend(self.ended(pid, end));
                    }
                }
                Ok(None) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.childless = self.progress != Progress::Waiting;
                    break;
                }
            }
        }
        if self.alive == 0 && self.progress != Progress::Waiting && !self.childless && !self.links.is_empty()
        {
            self.childless = descendants::below(getpid(), &self.links.pids()).is_empty();
        }
        if !ended.is_empty() {
            // The cause before its consequences: ranks that were killed by a signal come first.
            ended.sort_by_key(|&(_, Ended { end, .. })| matches!(end, End::Code(_)));
            self.read_start_errors();
            for &(at, _) in &ended {
                self.read_requests(at);
                self.read_pmi(at);
            }
            let (first, all) = (ended[0].0, ended.iter().map(|ended| ended.1).collect());
            self.tell(first, Event::Ended(all));
        }
        if let Progress::Killing(_) = self.progress {
            descendants::kill_below(getpid(), &self.links.pids());
        }
    }

    fn ended(&mut self, pid: Pid, end: End) -> Option<(usize, Ended)> {
        let at = self.by_pid.remove(&pid.as_raw_pid())?;
        let state = &mut self.ranks[at];
        (state.pid, state.ended) = (None, Some(end));
        self.alive -= 1;
        let out_of_memory = matches!(end, End::Signal { number: libc::SIGKILL, .. })
            && self.progress == Progress::Running
            && self.oom.as_ref().is_some_and(oom::Watch::has_killed);
        Some((at, Ended { rank: self.plan.ranks[at], end, out_of_memory }))
    }

    pub(super) fn kill_all(&mut self, tell: bool) {
        if !matches!(self.progress, Progress::Killing(_)) {
            self.progress = Progress::Killing(Instant::now());
            if tell {
                self.name_leftovers();
            }
            self.signal_ranks(Signal::KILL);
        }
        descendants::kill_below(getpid(), &self.links.pids());
        self.reap();
    }

    /// Names the processes that are about to be killed.
    fn name_leftovers(&mut self) {
        let living = |pid: &Pid| descendants::state(*pid).is_some_and(|state| state != 'Z');
        let below = descendants::below(getpid(), &self.links.pids());
        let named =
            |pid: Pid| format!("{} (pid {})", descendants::name(pid).unwrap_or_default(), pid.as_raw_pid());
        let left: Vec<String> = below.into_iter().filter(living).map(named).collect();
        if !left.is_empty() {
            self.events.push_back(Event::Left(left));
        }
    }

    /// Sends a signal to the process groups of all ranks that have not ended.
    pub(super) fn signal_ranks(&self, signal: Signal) {
        for pid in self.ranks.iter().filter_map(|rank| rank.pid) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// What this host's ranks do. With `stopped`, `/proc` is read for each rank to find those that are stopped.
    pub(super) fn states(&self, stopped: bool) -> Vec<RankState> {
        let read = |file| status::read(file, self.ranks.len() as u32);
        let mut waits = self.common.status.as_ref().map(read).unwrap_or_default();
        waits.resize(self.ranks.len(), None);
        let state = |(rank, line): (&Rank, Option<status::StatusLine>)| {
            let process = rank.process().filter(|_| stopped).and_then(descendants::state);
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

    /// Tells of ranks in MPI that a signal has stopped, and of those that go on.
    pub(super) fn look_for_stopped(&mut self) {
        for (rank, state) in self.plan.ranks.iter().zip(&mut self.ranks) {
            let process = state.process().filter(|_| state.phase.is_inside() && state.ended.is_none());
            let stopped = process.and_then(descendants::state) == Some('T');
            if std::mem::replace(&mut state.stopped, stopped) != stopped {
                self.events.push_back(Event::Stopped { rank: *rank, stopped });
            }
        }
    }
}
