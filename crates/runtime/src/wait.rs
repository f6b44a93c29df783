//! How long to spin, when to give the core away, when to sleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::ports::Bells;

/// What to do after a fruitless poll, that is one that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backoff {
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
    /// Yields before the clock is read for the first time.
    yields: u32,
    /// More ranks than cores.
    crowded: bool,
}

/// How long a rank yields before it sleeps. Waking a sleeping core takes some tens of microseconds, and a rank that sleeps
/// makes the ranks that wait for it sleep, too; yields that find no other process on this core take next to no time.
const YIELDING: Duration = Duration::from_millis(1);
/// Fruitless polls of a follower (a thread that waits while another one polls for all), with a yield after each, before it
/// sleeps until the polling thread wakes it. Waking it takes some microseconds (two threads a rank, each in a ping-pong:
/// 9.5 us without these polls, 1 with them).
const FOLLOWER_POLLS: u32 = 200;
/// Polls of other ranks' CICO buffers before all fabrics are polled, by a rank that has a core to itself: some microseconds.
const SPINS: u32 = 1000;
/// Polls of other ranks' CICO buffers, with a yield before each, by a rank that shares its core.
const CROWDED_SPINS: u32 = 4;

impl Policy {
    /// The policy for `ranks` processes on `cores` cores. `by_kernel`: what comes from other nodes comes through the kernel.
    pub(crate) fn new((ranks, cores): (u32, u32), by_kernel: bool) -> Self {
        Policy::of(ranks > cores, by_kernel)
    }

    fn of(crowded: bool, by_kernel: bool) -> Self {
        // With a core for each rank no other rank needs this one's, and a yield to a stranger costs a time slice. But the kernel's work
        // may need this very core.
        let (spins, yields) = if crowded || by_kernel { (1, 16) } else { (5000, 0) };
        Self { spins, yields, crowded }
    }

    /// The policy of the same processes, where what comes from other nodes comes through the kernel, or does not.
    pub(crate) fn through_kernel(self, by_kernel: bool) -> Policy {
        Policy::of(self.crowded, by_kernel)
    }

    /// Nothing that this rank waits for wants its core.
    #[inline]
    pub(crate) fn spins_freely(&self) -> bool {
        self.yields == 0
    }

    /// This policy while several threads of the rank are busy. The thread that gets a yielded core may wait for the yielding
    /// one in a loop of the program's own, and keeps the core for a whole slice: that must not happen many times.
    #[inline]
    pub(crate) fn among_threads(self, busy: bool) -> Policy {
        Policy { yields: if busy { self.yields.min(1) } else { self.yields }, ..self }
    }

    /// The polls of other ranks' CICO buffers before all fabrics are polled; none unless this rank `waits` for the collective.
    /// If the process is `multithreaded`, no thread yields inside the engine lock.
    #[inline]
    pub(crate) fn spins(&self, waits: bool, multithreaded: bool) -> SpinBudget {
        let yields = !self.spins_freely();
        let left = match (waits, yields) {
            (false, _) => 0,
            (true, false) => SPINS,
            (true, true) if multithreaded => 0,
            (true, true) => CROWDED_SPINS,
        };
        SpinBudget { left, yields }
    }
}

/// Polls of the shared buffers that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpinBudget {
    left: u32,
    yields: bool,
}

impl SpinBudget {
    /// Takes one poll, after a pause of so long or a yield; false if none is left.
    #[inline]
    pub(crate) fn spend(&mut self, pause: Duration) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        match self.yields {
            true => std::thread::yield_now(),
            false if pause.is_zero() => std::hint::spin_loop(),
            false => self.pause(pause),
        }
        true
    }

    #[inline(never)]
    fn pause(&mut self, pause: Duration) {
        self.left = self.left.saturating_sub(LOOKS_IN_A_PAUSE - 1);
        let start = Instant::now();
        while start.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
}

/// As many looks take about the time of a pause, so that the fabrics are polled as often.
const LOOKS_IN_A_PAUSE: u32 = 16;

/// One wait: how many polls in a row were fruitless.
#[derive(Debug)]
pub(crate) struct Idle {
    polls: u32,
    /// When to sleep, once the clock has been asked.
    until: Option<Instant>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { polls: 0, until: None }
    }

    /// Something happened: start over.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// So many looks in place of polls were fruitless.
    #[inline]
    pub(crate) fn has_looked(&mut self, looks: u32) {
        self.polls = self.polls.saturating_add(looks);
    }

    /// What to do after one more fruitless poll; `now` reads the clock.
    pub(crate) fn after_poll(&mut self, policy: &Policy, now: impl FnOnce() -> Instant) -> Backoff {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= policy.spins {
            return Backoff::Spin;
        }
        if policy.spins_freely() {
            return Backoff::Sleep;
        }
        if self.polls <= policy.spins.saturating_add(policy.yields) {
            return Backoff::Yield;
        }
        let now = now();
        if now < *self.until.get_or_insert(now + YIELDING) { Backoff::Yield } else { Backoff::Sleep }
    }

    /// What a follower does after one more fruitless poll.
    pub(crate) fn after_poll_of_follower(&mut self, now: impl FnOnce() -> Instant) -> Backoff {
        let policy = Policy { spins: 0, yields: 1, crowded: true };
        match self.polls >= FOLLOWER_POLLS {
            true => Backoff::Sleep,
            false => self.after_poll(&policy, now),
        }
    }
}

/// How many polls in a row of a program that polls (MPI_Test, MPI_Iprobe and their kin) were fruitless, whatever other calls
/// came between them.
#[derive(Debug, Default)]
pub(crate) struct FruitlessPolls {
    in_a_row: u32,
}

/// Fruitless polls before the first one after which the core is yielded.
const FREE_POLLS: u32 = 3;

impl FruitlessPolls {
    /// Whether to yield the core after one more poll, where ranks share cores: the message comes from a rank that may need
    /// this very core. A program that polls is never put to sleep: it may have other work.
    pub(crate) fn must_yield(&mut self, policy: &Policy, fruitless: bool) -> bool {
        self.in_a_row = if fruitless { self.in_a_row.saturating_add(1) } else { 0 };
        self.in_a_row > FREE_POLLS && !policy.spins_freely()
    }
}

/// What ends a sleep outside the engine lock.
pub(crate) struct Sleep {
    /// What arrivals make readable.
    pub(crate) bells: Bells,
    /// What the launcher's answer makes readable, if one is awaited.
    pub(crate) launcher: Option<OwnedFd>,
    pub(crate) until: Instant,
}

/// Wakes a thread that sleeps outside the engine lock.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Ends the present sleep, or else the next one.
    pub(crate) fn wake(&self) {
        // The write is refused only if the counter is full: the thread will wake anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Sleeps until [`Waker::wake`], or what the sleep is to end by.
    pub(crate) fn sleep(&self, sleep: &Sleep) {
        let fds = sleep.bells.iter().chain(&sleep.launcher).chain([&self.0]);
        sleep_on(fds.map(AsFd::as_fd), sleep.until);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

/// Sleeps until there is input at one of `fds`, or the moment `until`; also returns for no reason.
pub(crate) fn sleep_on<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, until: Instant) {
    let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let left = until.saturating_duration_since(Instant::now());
    // Interrupted or refused: the caller polls and comes back.
    let _ = poll(&mut fds, left.try_into().ok().as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rank does in an endless wait in which a yield takes `yield_time`: up to its first sleep, and after it.
    fn wait((ranks, cores, nodes): (u32, u32, u32), yield_time: Duration) -> (Vec<Backoff>, Backoff) {
        let policy = Policy::new((ranks, cores), nodes > 1);
        let (mut idle, mut now, mut actions) = (Idle::new(), Instant::now(), vec![]);
        while actions.last() != Some(&Backoff::Sleep) {
            assert!(actions.len() < 100_000, "{ranks} ranks on {cores} cores never sleep");
            let action = idle.after_poll(&policy, || now);
            now += if action == Backoff::Yield { yield_time } else { Duration::from_nanos(50) };
            actions.push(action);
        }
        now += Duration::from_secs(1);
        let after = idle.after_poll(&policy, || now);
        idle.reset();
        assert_ne!(
            idle.after_poll(&policy, || now),
            Backoff::Sleep,
            "a rank that found something starts over"
        );
        (actions, after)
    }

    #[test]
    fn every_wait_ends_in_sleep() {
        for (ranks, cores, nodes) in [(1, 1, 1), (2, 2, 1), (2, 2, 3), (3, 2, 1), (16, 2, 3), (256, 2, 1)] {
            for turn in [300, 10_000, 4_000_000].map(Duration::from_nanos) {
                let (actions, after) = wait((ranks, cores, nodes), turn);
                assert_eq!(after, Backoff::Sleep);
                assert_eq!(
                    actions.contains(&Backoff::Yield),
                    ranks > cores || nodes > 1,
                    "a rank with a core to itself on the only node keeps it"
                );
            }
        }
    }

    #[test]
    fn a_rank_keeps_its_core_where_devices_bring_what_comes() {
        let (alone, crowded) = (Policy::new((2, 2), false), Policy::new((3, 2), false));
        assert_eq!(alone.through_kernel(true), Policy::new((2, 2), true));
        assert_eq!(Policy::new((2, 2), true).through_kernel(false), alone);
        assert!(alone.spins_freely() && !alone.through_kernel(true).spins_freely());
        assert_eq!(crowded.through_kernel(true).through_kernel(false), crowded);
        assert!(!crowded.spins_freely());
    }

    #[test]
    fn yields_go_on_for_a_while_however_short_they_are() {
        let yielded = |turn| {
            let yields = wait((16, 2, 1), turn).0.iter().filter(|&&action| action == Backoff::Yield).count();
            turn * yields as u32
        };
        for turn in [300, 10_000, 100_000].map(Duration::from_nanos) {
            assert!((YIELDING..YIELDING * 3).contains(&yielded(turn)), "{turn:?}: {:?}", yielded(turn));
        }
        // If another process keeps the core for long at each yield, the time is soon over.
        assert!(yielded(Duration::from_millis(4)) < Duration::from_millis(80));
    }

    #[test]
    fn busy_threads_give_few_whole_slices_away() {
        let slice = Duration::from_millis(4);
        let yields = |after_poll: &mut dyn FnMut(Instant) -> Backoff, yield_time| {
            let begin = Instant::now();
            (1..).find(|&many| after_poll(begin + yield_time * many) == Backoff::Sleep).unwrap_or(0)
        };
        let crowded = |busy| {
            let (mut idle, policy) = (Idle::new(), Policy::new((5, 2), false).among_threads(busy));
            yields(&mut |now| idle.after_poll(&policy, || now), slice)
        };
        assert!(crowded(true) < 5 && crowded(false) > 10);
        let follower = |yield_time| {
            let mut idle = Idle::new();
            yields(&mut |now| idle.after_poll_of_follower(|| now), yield_time)
        };
        assert!(follower(slice) < 5);
        assert_eq!(follower(Duration::from_nanos(300)), FOLLOWER_POLLS + 1);
        assert_eq!(Policy::new((2, 2), false).among_threads(true), Policy::new((2, 2), false));
    }

    #[test]
    fn fruitless_polls_yield_a_core_that_others_need() {
        let yields = |ranks, found_every: u32| {
            let (policy, mut polls) = (Policy::new((ranks, 2), false), FruitlessPolls::default());
            (1..=1000).filter(|poll| polls.must_yield(&policy, poll % found_every != 0)).count() as u32
        };
        assert_eq!(yields(4, 2000), 1000 - FREE_POLLS);
        assert_eq!(yields(4, 10), 100 * (9 - FREE_POLLS));
        assert_eq!(yields(4, 2), 0, "every other poll finds something");
        assert_eq!(yields(2, 2000), 0, "a rank with a core to itself keeps it");
    }

    #[test]
    fn spin_budgets_end() {
        for (ranks, waits, multithreaded, budget) in [
            (2, true, false, SPINS),
            (2, true, true, SPINS),
            (16, true, false, CROWDED_SPINS),
            (16, true, true, 0),
            (2, false, false, 0),
        ] {
            let spent = |pause| {
                let mut spins = Policy::new((ranks, 2), false).spins(waits, multithreaded);
                (0..10_000).take_while(|_| spins.spend(pause)).count() as u32
            };
            assert_eq!(spent(Duration::ZERO), budget);
            let looks = if ranks > 2 { 1 } else { LOOKS_IN_A_PAUSE };
            assert_eq!(spent(Duration::from_nanos(1)), budget.div_ceil(looks));
        }
    }
}
