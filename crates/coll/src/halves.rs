//! Which half of the board a collective's chunks go through, and when it is free.
//!
//! Chunks alternate between the halves from one collective to the next, so that a rank may fill one half for the next
//! collective while others still read the other.

/// The halves as a collective finds them. All ranks count them alike.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Halves {
    /// The half that the first chunk goes through.
    first: usize,
    /// By half: the stamp that a rank has released when it is through with what went through there before.
    used: [u64; 2],
}

impl Halves {
    /// For a collective of so many chunks, whose stamps (so many from the first) are shared out evenly among them.
    pub(crate) fn take(&mut self, chunks: u32, (first, phases): (u64, u32)) -> Halves {
        let found = *self;
        for chunk in chunks.saturating_sub(2)..chunks {
            let end = u64::from(phases / chunks * (chunk + 1));
            self.used[found.place(chunk % 2)] = first + end - 1;
        }
        self.first ^= chunks as usize % 2;
        found
    }

    /// What all ranks must have released before anything is written to a half, counted from that of the first chunk.
    pub(crate) fn used(&self, half: u32) -> u64 {
        self.used[self.place(half)]
    }

    /// Where something is whose place on the board is counted from the half of the first chunk.
    #[inline]
    pub(crate) fn at(&self, at: u64, half: u64) -> u64 {
        match (self.first, at < half) {
            (0, _) => at,
            (_, true) => at + half,
            (_, false) => at - half,
        }
    }

    fn place(&self, half: u32) -> usize {
        self.first ^ half as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_alternate_across_collectives() {
        let mut halves = Halves::default();
        // Three chunks of two stamps: the last in the first half, which is free after stamp 6, the other after 4.
        let first = halves.take(3, (1, 6));
        assert_eq!((first.used(0), first.used(1), first.at(0, 8)), (0, 0, 0));
        let second = halves.take(1, (7, 2));
        assert_eq!((second.used(0), second.used(1)), (4, 6));
        assert_eq!((second.at(3, 8), second.at(11, 8)), (11, 3));
        let third = halves.take(2, (9, 6));
        assert_eq!((third.used(0), third.used(1), third.at(3, 8)), (6, 8, 3));
        let fourth = halves.take(0, (15, 0));
        assert_eq!((fourth.used(0), fourth.used(1)), (11, 14));
    }
}
