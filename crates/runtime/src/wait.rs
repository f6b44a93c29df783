//! How long to spin, when to give the core away, when to sleep.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

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
}

impl Policy {
    /// The policy for `ranks` processes on `cores` cores.
    pub(crate) fn new(ranks: u32, cores: u32) -> Self {
        // Who yields to a stranger loses a time slice; where each rank has a core no other rank needs it.
        let (spins, yields) = if ranks <= cores { (5000, 0) } else { (1, 16) };
        Self { spins, yields }
    }

    /// No other rank wants this rank's core.
    pub(crate) fn spins_freely(&self) -> bool {
        self.yields == 0
    }
}

/// One wait: how many polls in a row found nothing.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { rounds: 0 }
    }

    /// Something happened: start over.
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// What to do after one more fruitless poll.
    pub(crate) fn rest(&mut self, policy: &Policy) -> Rest {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= policy.spins {
            Rest::Spin
        } else if self.rounds <= policy.spins.saturating_add(policy.yields) {
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
        for (ranks, cores) in [(1, 1), (2, 2), (3, 2), (16, 2), (256, 2)] {
            let policy = Policy::new(ranks, cores);
            let mut idle = Idle::new();
            let rests: Vec<Rest> = (0..10_000).map(|_| idle.rest(&policy)).collect();
            let sleep = rests.iter().position(|&rest| rest == Rest::Sleep);
            let sleep = sleep.unwrap_or_else(|| panic!("{ranks} ranks on {cores} cores never sleep"));
            assert!(rests[sleep..].iter().all(|&rest| rest == Rest::Sleep));
            assert_eq!(rests.contains(&Rest::Yield), ranks > cores, "who has a core to itself keeps it");
            idle.reset();
            assert_ne!(idle.rest(&policy), Rest::Sleep);
        }
    }
}
