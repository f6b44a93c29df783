//! Notices of ranks, what mpirun says at the end of a job besides why it failed, and how long it waits for a reader.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use super::Agent;
use crate::default_variables::SEARCH_PATH;
use crate::executable::Foreign;
use crate::trouble::listed;
use crate::verdict::{Failure, Phase};

/// Most ranks or processes that a line names.
const MOST: usize = 8;

/// Most different notices of ranks that are shown: more than MPI has functions.
const MAX_NOTICES: usize = 1000;

impl Agent {
    /// `--allow-missing-finalize`: treats the rank's end as one after MPI_Finalize.
    pub(super) fn count_as_finalized(&mut self, rank: u32) {
        self.ranks[rank as usize].phase = Phase::Finalized;
        self.unfinalized.push(rank);
    }

    /// Shows a rank's notice, once; further ranks with an equal notice are counted.
    pub(super) fn notice(&mut self, rank: u32, text: String) {
        if let Some((_, others)) = self.notices.iter_mut().find(|(shown, _)| *shown == text) {
            *others += 1;
        } else if self.notices.len() < MAX_NOTICES {
            self.here.output.pump(&self.here.epoll, rank, Instant::now());
            let line = format!("{}: {text} (said once)", self.named(rank));
            self.say(&line);
            self.notices.push((text, 0));
        }
    }

    /// Writes the messages that need all processes to be gone.
    pub(super) fn summarize(&mut self) {
        self.summarize_failed();
        if self.same_failure > 0 {
            self.say(&format!(
                "{} {} failed with the same error",
                self.same_failure,
                counted(self.same_failure)
            ));
        }
        for (text, others) in std::mem::take(&mut self.notices).into_iter().filter(|notice| notice.1 > 0) {
            let (ranks, what) = (counted(others), text.split(": ").next().unwrap_or_default());
            self.say(&format!("{others} {ranks} said the same: {what}"));
        }
        if !self.unfinalized.is_empty() {
            let (count, list) = (self.unfinalized.len(), listed(self.unfinalized.iter(), MOST));
            let text = format!("{count} of {} ranks ended without MPI_Finalize: {list}", self.ranks.len());
            self.say(&text);
        }
        // 127 is the loader's status where a library is missing.
        let not_loaded = self.failure == Some(Failure::Code(127));
        if (self.failure.is_none() || not_loaded)
            && self.ranks.len() > 1
            && self.ranks.iter().all(|rank| !rank.joined)
        {
            for at in 0..self.here.plan.apps.len() {
                let app = &self.here.plan.apps[at];
                let search = app.variable(SEARCH_PATH).unwrap_or(OsStr::new(""));
                let foreign = Foreign::of(&app.file(), search);
                if let Some(foreign) = foreign.filter(|foreign| foreign.is_missing() == not_loaded) {
                    self.say(&foreign.describe(&app.command.clone()));
                }
            }
        }
    }

    pub(super) fn say(&mut self, text: &str) {
        self.here.output.say(&self.here.epoll, text);
    }

    /// Says what the agent of a host says.
    pub(super) fn say_of(&mut self, agent: u32, text: &str) {
        match agent {
            0 => self.say(text),
            _ => self.say(&format!("host {}: {text}", self.plan.hosts[agent as usize])),
        }
    }

    /// Names the processes that a host is about to kill.
    pub(super) fn name_leftovers(&mut self, agent: u32, list: &[String]) {
        let list = listed(list.iter(), MOST);
        self.say_of(agent, &format!("killed what ranks had left running: {list} (--grace gives more time)"));
    }

    /// True if all output is written, or the job failed and nobody has read output for too long.
    pub(super) fn is_written(&mut self, now: Instant) -> bool {
        let here = &mut self.here;
        if self.drop_output || here.output.drain(&here.epoll, now) && self.hosts.have_written() {
            return true;
        }
        let Some(patience) = self.patience() else { return false };
        let written = self.here.output.written();
        let (before, since) = *self.unread.get_or_insert((written, now));
        if before != written {
            self.unread = Some((written, now));
        } else if now >= since + patience {
            self.drop_output = true;
            self.say("output is lost: nobody reads what the ranks have written");
        }
        self.drop_output
    }

    /// When [`Agent::is_written`] is to be called again, if nothing else happens.
    pub(super) fn unread_until(&self) -> Option<Instant> {
        Some(self.unread?.1 + self.patience()?)
    }

    /// How long a job that failed waits for a reader of its output. It waits longer after a rank's failure, which the output
    /// may explain, than where a signal or --timeout ends the job.
    fn patience(&self) -> Option<Duration> {
        let grace = self.plan.global.grace;
        Some(match self.failure.as_ref()? {
            Failure::Timeout(_) | Failure::Interrupted(_) => grace,
            _ => grace * 5,
        })
    }
}

/// The noun for this number of other ranks.
fn counted(others: u32) -> &'static str {
    if others == 1 { "other rank" } else { "other ranks" }
}
