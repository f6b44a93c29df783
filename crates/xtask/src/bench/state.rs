//! In which state the machine is: a host moves the processors of a virtual machine, so that two of them share a cache in one moment, and not in the
//! next. What a cache line takes from one to the other tells.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Handovers there and back in one look, of which there are so many. The quickest one counts.
const ROUNDS: u32 = 500;
const LOOKS: u32 = 4;
/// A line that takes so many times as long as the quickest one that the bench has seen is slow.
const SLOW: f64 = 2.0;

/// What a cache line took from core to core before a start, and after it: microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Lines {
    pub(super) before: f64,
    pub(super) after: f64,
}

/// What a start met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nobody has looked.
    Unknown,
    Quick,
    Slow,
    /// Quick before and slow after, or the other way round.
    Changed,
}

impl Lines {
    /// The state, where the quickest line took `least`.
    pub(super) fn state(self, least: f64) -> State {
        match [self.before, self.after].map(|line| line > SLOW * least) {
            [false, false] => State::Quick,
            [true, true] => State::Slow,
            _ => State::Changed,
        }
    }
}

impl State {
    /// Whether figures of two starts compare.
    pub(super) fn compares(self, other: State) -> bool {
        self == other && self != State::Changed
    }
}

/// What a cache line takes now between the first two processors that this process may use, in microseconds; `None` where it has one alone.
pub(super) fn line() -> Option<f64> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    let cores = [cores.next()?, cores.next()?];
    let looks = (0..LOOKS).map(|_| handed(cores));
    looks.min_by(f64::total_cmp)
}

/// The time of one way, over [`ROUNDS`] there and back.
fn handed([one, other]: [usize; 2]) -> f64 {
    let (there, back) = (AtomicU32::new(0), AtomicU32::new(0));
    let until = |word: &AtomicU32, value| {
        while word.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let on = |core| {
        let mut only = CpuSet::new();
        only.set(core);
        // Refused: the kernel's choice will do.
        let _ = sched_setaffinity(None, &only);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            on(other);
            for round in 1..=ROUNDS {
                until(&there, round);
                back.store(round, Ordering::Release);
            }
        });
        let first = scope.spawn(|| {
            on(one);
            let mut start = Instant::now();
            for round in 1..=ROUNDS {
                if round == ROUNDS / 10 {
                    start = Instant::now();
                }
                there.store(round, Ordering::Release);
                until(&back, round);
            }
            start.elapsed()
        });
        let took = first.join().expect("a thread that counts does not panic");
        took.as_secs_f64() * 1e6 / f64::from(2 * (ROUNDS - ROUNDS / 10))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_the_state() {
        let state = |before, after| Lines { before, after }.state(0.06);
        assert_eq!((state(0.06, 0.11), state(0.2, 0.13)), (State::Quick, State::Slow));
        assert_eq!((state(0.06, 0.2), state(0.2, 0.06)), (State::Changed, State::Changed));
        assert!(State::Unknown.compares(State::Unknown) && State::Slow.compares(State::Slow));
        assert!(!State::Slow.compares(State::Quick) && !State::Changed.compares(State::Changed));
    }

    #[test]
    fn a_line_takes_some_time() {
        assert!(line().is_none_or(|line| line > 0.0));
    }
}
