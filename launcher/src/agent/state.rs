//! Where the ranks are: the report on a job that hangs, and the notice on one that is deadlocked.

use std::time::{Duration, Instant};

use banyan_pmi::status;
use rustix::process::Pid;

use super::{Agent, Course};
use crate::descendants;
use crate::report::{Place, cycle, lines};
use crate::verdict::Phase;

/// How often it is looked whether the job is deadlocked.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// A deadlock is told without being asked when it has lasted so long.
const PATIENCE: Duration = Duration::from_secs(10);

impl Agent {
    /// Where all ranks are. Whether they are stopped costs a look at each process.
    fn places(&self, stopped: bool) -> Vec<Place> {
        let ranks = self.ranks.len() as u32;
        let read = |file| status::read(file, ranks);
        let mut waits = self.common.status.as_ref().map(read).unwrap_or_default();
        waits.resize(self.ranks.len(), None);
        let place = |(rank, line): (&crate::ranks::Rank, Option<status::Line>)| {
            let joined = rank.joined.as_ref().and_then(|joined| Pid::from_raw(joined.0.cast_signed()));
            let state = joined.or(rank.pid).filter(|_| stopped).and_then(descendants::state);
            match (rank.phase, line) {
                _ if rank.ended.is_some() => Place::Ended,
                _ if matches!(state, Some('T' | 't')) => Place::Stopped,
                (Phase::Outside, _) => Place::Outside,
                (Phase::Finalized, _) => Place::Finalized,
                (_, Some(line)) => Place::Waits(line),
                (Phase::InInit, None) => Place::InInit,
                (Phase::Running, None) => Place::Busy,
            }
        };
        self.ranks.iter().zip(waits).map(place).collect()
    }

    /// Says where all ranks are.
    pub(super) fn report(&mut self) {
        let now = Instant::now();
        let places = self.places(true);
        let idle = self.watch.look(&places, now);
        let time = (now - self.started).as_secs_f64();
        self.tell(&format!("where the ranks are, {time:.1} s after the start"), &places, idle);
    }

    /// Several lines, and the deadlock if there is one.
    fn tell(&mut self, title: &str, places: &[Place], idle: Option<Duration>) {
        let mut text = format!("mpirun: {title}:\n");
        for line in lines(places, status::now()) {
            text += &format!("  {line}\n");
        }
        if let Some(idle) = idle {
            let who = cycle(places).map(|cycle| format!(": {cycle}")).unwrap_or_default();
            let time = idle.as_secs_f64();
            text += &format!(
                "mpirun: deadlock: all ranks wait, and nothing was under way for {time:.1} s{who}\n"
            );
        }
        self.output.show(&self.epoll, &text);
    }

    /// Looks, now and then, whether the job is deadlocked, and says so once.
    pub(super) fn look_around(&mut self, now: Instant) {
        if self.next_look().is_none_or(|next| now < next) {
            return;
        }
        self.looked = now;
        let places = self.places(false);
        let idle = self.watch.look(&places, now).filter(|&idle| idle >= PATIENCE);
        if idle.is_some() && !self.warned {
            self.warned = true;
            let title = "the job is deadlocked, and goes on until somebody ends it; the ranks are here";
            self.tell(title, &places, idle);
        }
    }

    /// When [`Agent::look_around`] is to be called.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let running = self.course == Course::Running && self.ranks.iter().any(|rank| rank.phase.is_inside());
        running.then_some(self.looked + LOOK)
    }
}
