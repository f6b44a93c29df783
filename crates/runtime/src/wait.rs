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
    /// Yields before the clock is asked how long it has been.
    yields: u32,
}

/// How long to go on yielding. To wake a core that sleeps takes some tens of microseconds, and a rank that sleeps makes
/// those sleep that wait for it; and yields that find nobody else on this core take next to no time.
const YIELDING: Duration = Duration::from_millis(1);
/// Polls in vain, with a yield after each, of a thread that waits beside the one that polls for all, before it sleeps until it
/// is told. To tell it takes some microseconds (two threads a rank, each in a ping-pong: 9.5 us without, 1 with).
const BESIDE: u32 = 200;
/// Looks at other ranks' slots before all fabrics are polled, by who has a core to itself: some microseconds.
const LOOKS: u32 = 1000;
/// The same, with a yield before each, where ranks take turns.
const TURNS: u32 = 4;

impl Policy {
    /// The policy for `ranks` processes on `cores` cores.
    pub(crate) fn new(ranks: u32, cores: u32) -> Self {
        // Who yields to a stranger loses a time slice; where each rank has a core no other rank needs it.
        let (spins, yields) = if ranks <= cores { (5000, 0) } else { (1, 16) };
        Self { spins, yields }
    }

    /// No other rank wants this rank's core.
    #[inline]
    pub(crate) fn spins_freely(&self) -> bool {
        self.yields == 0
    }

    /// The same where several threads of a rank are busy at once. Who gets the core that is given away may be one that waits
    /// for this one in a loop of the program's own, and keeps it for a whole slice: that must not happen many times.
    #[inline]
    pub(crate) fn among_threads(self, busy: bool) -> Policy {
        Policy { yields: if busy { self.yields.min(1) } else { self.yields }, ..self }
    }

    /// Looks at other ranks' slots before all fabrics are polled, by a rank that `waits` for them. If the gate is
    /// `shared`, nobody yields inside it.
    #[inline]
    pub(crate) fn looks(&self, waits: bool, shared: bool) -> Looks {
        let yields = !self.spins_freely();
        let left = match (waits, yields) {
            (false, _) => 0,
            (true, false) => LOOKS,
            (true, true) if shared => 0,
            (true, true) => TURNS,
        };
        Looks { left, yields }
    }
}

/// Looks that are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looks {
    left: u32,
    yields: bool,
}

impl Looks {
    /// Whether to look once more; if so, it is time now.
    #[inline]
    pub(crate) fn again(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        match self.yields {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
        true
    }
}

/// One wait: how many polls in a row found nothing.
#[derive(Debug)]
pub(crate) struct Idle {
    rounds: u32,
    /// When to sleep, once the clock has been asked.
    until: Option<Instant>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        Self { rounds: 0, until: None }
    }

    /// Something happened: start over.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// What to do after one more fruitless poll, `now`.
    pub(crate) fn rest(&mut self, policy: &Policy, now: impl FnOnce() -> Instant) -> Rest {
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds <= policy.spins {
            return Rest::Spin;
        }
        if policy.spins_freely() {
            return Rest::Sleep;
        }
        if self.rounds <= policy.spins.saturating_add(policy.yields) {
            return Rest::Yield;
        }
        let now = now();
        if now < *self.until.get_or_insert(now + YIELDING) { Rest::Yield } else { Rest::Sleep }
    }

    /// The same for a thread beside the one that polls for all.
    pub(crate) fn beside(&mut self, now: impl FnOnce() -> Instant) -> Rest {
        let policy = Policy { spins: 0, yields: 1 };
        if self.rounds >= BESIDE { Rest::Sleep } else { self.rest(&policy, now) }
    }
}

/// A program that polls (MPI_Test, MPI_Iprobe and their kin): how many looks in a row found nothing, whatever other calls came
/// between them.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    in_vain: u32,
}

/// Looks in vain before the first after which the core is given away.
const SPARED: u32 = 3;

impl Looked {
    /// Whether to give the core away after one more look, where ranks take turns: what is looked for comes from a rank that
    /// may need this very core. Who polls is never put to sleep: it may have other work.
    pub(crate) fn again(&mut self, policy: &Policy, in_vain: bool) -> bool {
        self.in_vain = if in_vain { self.in_vain.saturating_add(1) } else { 0 };
        self.in_vain > SPARED && !policy.spins_freely()
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

    /// What a rank does in a wait without end, where a yield takes so long: its rests up to the first sleep, and
    /// what it does after it.
    fn wait(ranks: u32, cores: u32, turn: Duration) -> (Vec<Rest>, Rest) {
        let policy = Policy::new(ranks, cores);
        let (mut idle, mut now, mut rests) = (Idle::new(), Instant::now(), vec![]);
        while rests.last() != Some(&Rest::Sleep) {
            assert!(rests.len() < 100_000, "{ranks} ranks on {cores} cores never sleep");
            let rest = idle.rest(&policy, || now);
            now += if rest == Rest::Yield { turn } else { Duration::from_nanos(50) };
            rests.push(rest);
        }
        let after = idle.rest(&policy, || now);
        idle.reset();
        assert_ne!(idle.rest(&policy, || now), Rest::Sleep, "who found something starts over");
        (rests, after)
    }

    #[test]
    fn every_wait_ends_in_sleep() {
        for (ranks, cores) in [(1, 1), (2, 2), (3, 2), (16, 2), (256, 2)] {
            for turn in [300, 10_000, 4_000_000].map(Duration::from_nanos) {
                let (rests, after) = wait(ranks, cores, turn);
                assert_eq!(after, Rest::Sleep);
                assert_eq!(rests.contains(&Rest::Yield), ranks > cores, "who has a core to itself keeps it");
            }
        }
    }

    #[test]
    fn yields_go_on_for_a_while_however_short_they_are() {
        let yielded = |turn| {
            let yields = wait(16, 2, turn).0.iter().filter(|&&rest| rest == Rest::Yield).count();
            turn * yields as u32
        };
        for turn in [300, 10_000, 100_000].map(Duration::from_nanos) {
            assert!((YIELDING..YIELDING * 3).contains(&yielded(turn)), "{turn:?}: {:?}", yielded(turn));
        }
        // Beside somebody who takes long turns the time is soon over.
        assert!(yielded(Duration::from_millis(4)) < Duration::from_millis(80));
    }

    #[test]
    fn busy_threads_give_few_whole_slices_away() {
        let slice = Duration::from_millis(4);
        let yields = |rest: &mut dyn FnMut(Instant) -> Rest, turn| {
            let begin = Instant::now();
            (1..).find(|&many| rest(begin + turn * many) == Rest::Sleep).unwrap_or(0)
        };
        let crowded = |busy| {
            let (mut idle, policy) = (Idle::new(), Policy::new(5, 2).among_threads(busy));
            yields(&mut |now| idle.rest(&policy, || now), slice)
        };
        assert!(crowded(true) < 5 && crowded(false) > 10);
        let beside = |turn| {
            let mut idle = Idle::new();
            yields(&mut |now| idle.beside(|| now), turn)
        };
        assert!(beside(slice) < 5);
        assert_eq!(beside(Duration::from_nanos(300)), BESIDE + 1);
        assert_eq!(Policy::new(2, 2).among_threads(true), Policy::new(2, 2));
    }

    #[test]
    fn who_polls_in_vain_gives_its_core_away_where_others_need_it() {
        let yields = |ranks, found_every: u32| {
            let (policy, mut looked) = (Policy::new(ranks, 2), Looked::default());
            (1..=1000).filter(|look| looked.again(&policy, look % found_every != 0)).count() as u32
        };
        assert_eq!(yields(4, 2000), 1000 - SPARED);
        assert_eq!(yields(4, 10), 100 * (9 - SPARED));
        assert_eq!(yields(4, 2), 0, "who finds something every other time is not in vain");
        assert_eq!(yields(2, 2000), 0, "who has a core to itself keeps it");
    }

    #[test]
    fn looks_end() {
        for (ranks, waits, shared, many) in [
            (2, true, false, LOOKS),
            (2, true, true, LOOKS),
            (16, true, false, TURNS),
            (16, true, true, 0),
            (2, false, false, 0),
        ] {
            let mut looks = Policy::new(ranks, 2).looks(waits, shared);
            let taken = (0..10_000).take_while(|_| looks.again()).count();
            assert_eq!(taken, many as usize);
        }
    }
}
