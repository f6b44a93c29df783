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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// Fruitless polls before the first yield.
    spins: u32,
    /// Yields before sleeping.
    yields: u32,
    /// So many waits to come rest by sleeping: a yield gave the core to somebody who kept it. A sleeper gets
    /// the core back when it is woken; who yields waits for the others' time slices to end.
    crowd: u32,
}

/// A yield that takes longer than this met somebody who works, and not other ranks that wait as well.
const LONG_YIELD: Duration = Duration::from_millis(1);
/// Waits that rest by sleeping after a long yield.
const CROWD: u32 = 50;
/// Polls before a sleep while others want the cores.
const CROWD_SPINS: u32 = 100;

impl Policy {
    /// The policy for `ranks` processes on `cores` cores.
    pub(crate) fn new(ranks: u32, cores: u32) -> Self {
        match ranks <= cores {
            // Who yields to a stranger loses a time slice; other ranks do not need the core.
            true => Self { spins: 5000, yields: 0, crowd: 0 },
            false => Self { spins: 1, yields: 16, crowd: 0 },
        }
    }

    /// Nobody else wants this rank's core, as far as is known.
    pub(crate) fn spins_freely(&self) -> bool {
        self.spins > 1 && self.crowd == 0
    }

    /// Gives the core away once, and notes if somebody kept it.
    pub(crate) fn yield_now(&mut self) {
        let before = Instant::now();
        std::thread::yield_now();
        if before.elapsed() > LONG_YIELD {
            self.crowd = CROWD;
        }
    }
}

/// One wait: how many polls in a row found nothing.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
}

impl Idle {
    pub(crate) fn new(policy: &mut Policy) -> Self {
        policy.crowd = policy.crowd.saturating_sub(1);
        Self { rounds: 0 }
    }

    /// Something happened: start over.
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// What to do after one more fruitless poll.
    pub(crate) fn rest(&mut self, policy: &Policy) -> Rest {
        let (spins, yields) = match policy.crowd {
            0 => (policy.spins, policy.yields),
            _ => (policy.spins.min(CROWD_SPINS), 0),
        };
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= spins {
            Rest::Spin
        } else if self.rounds <= spins.saturating_add(yields) {
            Rest::Yield
        } else {
            Rest::Sleep
        }
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
        for (ranks, cores, crowd) in [(1, 1, 0), (2, 2, 0), (16, 2, 0), (2, 2, 5), (16, 2, 2)] {
            let mut policy = Policy { crowd, ..Policy::new(ranks, cores) };
            let mut idle = Idle::new(&mut policy);
            let rounds = (0..10_000).position(|_| idle.rest(&policy) == Rest::Sleep);
            assert!(rounds.is_some(), "{ranks} ranks on {cores} cores never sleep");
            idle.reset();
            assert_ne!(idle.rest(&policy), Rest::Sleep);
        }
    }
}
