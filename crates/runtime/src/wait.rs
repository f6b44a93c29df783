//! How long to spin, when to give the core away, when to sleep.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// What to do after a poll that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Poll again at once.
    Spin,
    /// Let others run, then poll again.
    Yield,
    /// Sleep on the doorbell.
    Sleep,
}

/// Spin while cores are free, yield, then sleep (see `docs/architecture.md`, "Waiting").
///
/// A yield that takes long met somebody who works: a rank whose turn it is, which is well, or a stranger who keeps
/// the core for a time slice. A sleeper gets the core back when it is woken; who yields waits for slices to
/// end. Which of the two it is, the clock tells: some waits rest by sleeping, and go on so if they were the quicker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// Fruitless polls before the first yield.
    spins: u32,
    /// Yields before sleeping.
    yields: u32,
    /// Waits rest by sleeping for a while.
    stint: Option<Stint>,
    /// So many waits to come take no notice of a long yield.
    calm: u32,
    /// What waits that yield take.
    usual: Duration,
}

/// Some waits that rest by sleeping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stint {
    left: u32,
    /// What they took so far, while it is not known whether they are the quicker.
    trial: Option<Duration>,
}

/// A yield that takes longer than this met somebody who works.
const LONG_YIELD: Duration = Duration::from_millis(1);
/// What a wait counts at most.
const LONG_WAIT: Duration = Duration::from_millis(3);
/// Waits of a trial.
const TRIAL: u32 = 8;
/// Waits that sleep after a trial that was a success; then yields get another chance.
const STINT: u32 = 50;
/// Waits until the next trial after one that was none.
const CALM: u32 = 400;
/// Polls before a sleep while others want the cores.
const CROWD_SPINS: u32 = 100;

impl Policy {
    /// The policy for `ranks` processes on `cores` cores.
    pub(crate) fn new(ranks: u32, cores: u32) -> Self {
        // Who yields to a stranger loses a time slice; where each rank has a core no other rank needs it.
        let (spins, yields) = if ranks <= cores { (5000, 0) } else { (1, 16) };
        Self { spins, yields, stint: None, calm: 0, usual: Duration::ZERO }
    }

    /// Nobody else wants this rank's core, as far as is known.
    pub(crate) fn spins_freely(&self) -> bool {
        self.spins > 1 && self.stint.is_none()
    }

    /// Gives the core away once, and notes if somebody kept it.
    pub(crate) fn yield_now(&mut self) {
        let before = Instant::now();
        std::thread::yield_now();
        if before.elapsed() > LONG_YIELD && self.calm == 0 && self.stint.is_none() {
            self.stint = Some(Stint { left: TRIAL, trial: Some(Duration::ZERO) });
        }
    }

    /// A wait that rested took so long.
    fn learn(&mut self, took: Duration) {
        // Longer ones wait for the program, not for the core.
        let took = took.min(LONG_WAIT);
        let Some(stint) = &mut self.stint else {
            self.calm = self.calm.saturating_sub(1);
            self.usual = (self.usual * 3 + took) / 4;
            return;
        };
        if let Some(all) = &mut stint.trial {
            *all += took;
        }
        stint.left = stint.left.saturating_sub(1);
        if stint.left > 0 {
            return;
        }
        self.stint = match stint.trial {
            // Beside a long wait the waking costs little, and one rank that sleeps among others that yield learns
            // nothing.
            Some(all) if all / TRIAL < self.usual || self.usual > LONG_YIELD => {
                Some(Stint { left: STINT, trial: None })
            }
            Some(_) => {
                self.calm = CALM;
                None
            }
            None => None,
        };
    }
}

/// One wait: how many polls in a row found nothing.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
    /// Since when it rests, where rests are learnt from.
    since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { rounds: 0, since: None }
    }

    /// Something happened: start over.
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// The wait is over.
    pub(crate) fn end(&self, policy: &mut Policy) {
        if let Some(since) = self.since {
            policy.learn(since.elapsed());
        }
    }

    /// What to do after one more fruitless poll.
    pub(crate) fn rest(&mut self, policy: &Policy) -> Rest {
        let (spins, yields) = match policy.stint {
            None => (policy.spins, policy.yields),
            Some(_) => (policy.spins.min(CROWD_SPINS), 0),
        };
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= spins {
            return Rest::Spin;
        }
        if policy.yields > 0 && self.since.is_none() {
            self.since = Some(Instant::now());
        }
        if self.rounds <= spins.saturating_add(yields) { Rest::Yield } else { Rest::Sleep }
    }
}

/// Wakes a thread that sleeps outside the gate.
#[derive(Debug)]
pub(crate) struct Kick(OwnedFd);

impl Kick {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the sleep that is, or the next one.
    pub(crate) fn wake(&self) {
        // It can only be refused because it is as awake as can be.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Sleeps until kicked, or a bell rings, or the time has come.
    pub(crate) fn sleep(&self, bells: &[OwnedFd], until: Instant) {
        let mut fds: Vec<PollFd<'_>> = bells
            .iter()
            .chain([&self.0])
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        let left = until.saturating_duration_since(Instant::now());
        // Interrupted or refused: the caller looks around and comes back.
        let _ = poll(&mut fds, left.try_into().ok().as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_ends_in_sleep() {
        let stint = Some(Stint { left: 5, trial: None });
        for (ranks, cores, stint) in [(1, 1, None), (2, 2, None), (16, 2, None), (16, 2, stint)] {
            let policy = Policy { stint, ..Policy::new(ranks, cores) };
            let mut idle = Idle::new();
            let rounds = (0..10_000).position(|_| idle.rest(&policy) == Rest::Sleep);
            assert!(rounds.is_some(), "{ranks} ranks on {cores} cores never sleep");
            idle.reset();
            assert_ne!(idle.rest(&policy), Rest::Sleep);
        }
    }

    #[test]
    fn waits_go_on_sleeping_only_if_that_is_the_quicker() {
        for (yields, sleeps, quicker) in [(900, 200, true), (200, 3000, false), (1500, 3000, true)] {
            let mut policy = Policy::new(16, 2);
            (0..50).for_each(|_| policy.learn(Duration::from_micros(yields)));
            policy.stint = Some(Stint { left: TRIAL, trial: Some(Duration::ZERO) });
            (0..TRIAL).for_each(|_| policy.learn(Duration::from_micros(sleeps)));
            assert_eq!(policy.stint.is_some(), quicker);
            assert_eq!(policy.calm > 0, !quicker);
            (0..STINT).for_each(|_| policy.learn(Duration::from_micros(sleeps)));
            assert_eq!(policy.stint, None, "yields get another chance");
        }
    }
}
