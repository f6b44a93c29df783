//! Ranks that end while others run: what a job with `--keep-going` does without them, and who is told that they have ended.

use banyan_pmi::Reply;

use super::{Agent, JobState};
use crate::frames::{ALL, Order};
use crate::trouble::listed;
use crate::verdict::{End, Failure, killed_by};

/// Most questions after ranks that have not ended that are kept.
const MOST_ASKED: usize = 100_000;

impl Agent {
    /// A rank has failed, or fails now: true if the job goes on without it, whose ranks are told.
    pub(super) fn goes_on_without(&mut self, rank: u32, failure: &Failure) -> bool {
        if self.failed.iter().any(|(other, _)| *other == rank) {
            return true;
        }
        let others = self.ranks.iter().any(|other| other.ended.is_none() && other.pid.is_some());
        if !self.plan.global.keep_going || self.state != JobState::Running || !others {
            return false;
        }
        self.here.output.pump(&self.here.epoll, rank, std::time::Instant::now());
        let who = self.named(rank);
        if let Some(text) = failure.describe(&who) {
            self.say(&format!("{text}; the job goes on without it (--keep-going)"));
        }
        self.note_failed(rank, failure.clone());
        true
    }

    /// The job goes on without a rank.
    pub(super) fn note_failed(&mut self, rank: u32, failure: Failure) {
        self.held.take_if(|(_, of, _)| *of == rank);
        let cause = self.cause(rank, &failure);
        self.failed.push((rank, failure));
        self.order(ALL, Order::Failed { rank, cause });
    }

    /// Why a rank has ended, as other ranks are told.
    fn cause(&self, rank: u32, failure: &Failure) -> String {
        let host = &self.plan.hosts[self.plan.agent_of(rank) as usize];
        failure.describe("it").unwrap_or_else(|| format!("it has ended on {host}"))
    }

    /// A rank does not reach another one: it is told when that one has ended.
    pub(super) fn note_unreached(&mut self, by: u32, missed: u32) {
        if self.unreached.len() < MOST_ASKED && !self.unreached.contains(&(by, missed)) {
            self.unreached.push((by, missed));
        }
        self.tell_of_ends();
    }

    /// Tells those that have asked of ranks that have ended.
    pub(super) fn tell_of_ends(&mut self) {
        let ranks = &self.ranks;
        let has_ended = |&(_, missed): &(u32, u32)| ranks[missed as usize].ended.is_some();
        let (due, open): (Vec<_>, Vec<_>) = self.unreached.drain(..).partition(has_ended);
        self.unreached = open;
        for (by, missed) in due {
            let cause = match self.ranks[missed as usize].ended {
                Some(End::Signal { number, .. }) => format!("it was {}", killed_by(number)),
                Some(End::Code(code)) => format!("its process has ended with status {code}"),
                None => continue,
            };
            let reply = Reply::Gone { rank: missed, cause, failed: false };
            self.order(self.plan.agent_of(by), Order::Reply { rank: by, reply });
        }
    }

    /// Says how many ranks the job went on without.
    pub(super) fn summarize_failed(&mut self) {
        if self.failed.is_empty() {
            return;
        }
        const MOST: usize = 8;
        let (count, all) = (self.failed.len(), self.ranks.len());
        let ranks = listed(self.failed.iter().map(|(rank, _)| rank), MOST);
        self.say(&format!("{count} of {all} ranks failed, and the job went on: {ranks}"));
    }
}
