//! Random numbers with a seed that is printed.

use std::cell::Cell;

/// A small multiplicative generator; good enough to mix bits.
pub(crate) struct Random(Cell<u64>);

impl Random {
    /// With the seed in `BANYAN_SEED`, or one from the clock.
    pub(crate) fn new(what: &str) -> Random {
        let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
        let seed = std::env::var("BANYAN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        eprintln!("{what}: BANYAN_SEED={seed}");
        Random(Cell::new(seed | 1))
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        let mixed = self.0.get() ^ self.0.get() >> 29;
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mixed >> 32
    }

    pub(crate) fn below(&self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub(crate) fn bytes(&self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 32) as u8).collect()
    }

    pub(crate) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
