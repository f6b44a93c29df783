//! How many rounds there are, and when time is up.

use std::time::{Duration, Instant};

/// Rounds that are measured however long they take.
pub(super) const LEAST: usize = 3;

/// The time of one bench.
pub(super) struct Budget {
    begun: Instant,
    limit: Duration,
}

impl Budget {
    /// Begins now.
    pub(super) fn new(limit: Duration) -> Budget {
        Budget { begun: Instant::now(), limit }
    }

    /// Whether one more start, of which `spent` says how long the longest took so far, may begin in this round
    /// (counted from 0).
    pub(super) fn allows(&self, round: usize, longest: Duration) -> bool {
        fits(round, self.begun.elapsed(), longest, self.limit)
    }

    /// The time so far.
    pub(super) fn spent(&self) -> Duration {
        self.begun.elapsed()
    }
}

fn fits(round: usize, elapsed: Duration, longest: Duration, limit: Duration) -> bool {
    round < LEAST || elapsed + longest <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_dropped_but_never_the_least() {
        let seconds = Duration::from_secs;
        assert!(fits(LEAST - 1, seconds(5000), seconds(60), seconds(2400)));
        assert!(fits(LEAST, seconds(2300), seconds(60), seconds(2400)));
        assert!(!fits(LEAST, seconds(2350), seconds(60), seconds(2400)));
        assert!(Budget::new(seconds(1)).allows(LEAST, Duration::ZERO));
    }
}
