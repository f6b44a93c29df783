//! Which part of the board a collective's chunks go through, and when it is free.
//!
//! The board is a ring of sections. A collective takes the next ones: one, two or four if it is of one small chunk, else
//! halves of the board in turn. So a rank may fill sections for the next collectives while others still read those before,
//! and gets the further ahead the fewer bytes there are.

use std::ops::Range;

use crate::Shape;

/// What a collective takes of the board.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Chunks {
    /// How many chunks there are. The third takes the place of the first, and so on.
    pub number: u32,
    /// Sections that each takes.
    sections: u32,
}

impl Chunks {
    /// It does without.
    pub const NONE: Chunks = Chunks { number: 0, sections: 0 };

    /// So many chunks, of a half of the board each.
    pub(crate) fn halves(number: u32) -> Chunks {
        Chunks { number, sections: HALF }
    }

    /// So many chunks of that many units. With a core for each rank nobody is far ahead, and the same two places over and
    /// over stay in the caches.
    pub(crate) fn new(shape: &Shape, number: u32, units: u64) -> Chunks {
        let fits = |&sections: &u32| units <= u64::from(sections) * shape.section();
        match [1, 2, 4].iter().find(|sections| fits(sections)) {
            Some(&sections) if number == 1 && shape.crowded => Chunks { number, sections },
            _ => Chunks::halves(number),
        }
    }
}

/// Sections of half the board.
pub(crate) const HALF: u32 = 8;
const NUMBER: u32 = 2 * HALF;

/// The sections between collectives. All ranks count them alike.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sections {
    /// The next one.
    next: u32,
    /// The stamp that a rank has released when it is through with what went through a section before.
    used: [u64; NUMBER as usize],
}

/// Where the chunks of a collective go.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Taken {
    /// The sections of the first chunk start here,
    first: u32,
    /// and those of the second there.
    second: u32,
    /// What all ranks must have released before anything is written to the first, or the second.
    used: [u64; 2],
}

impl Sections {
    /// For a collective whose stamps (so many from the first) are shared out evenly among its chunks.
    #[inline(always)]
    pub(crate) fn take(&mut self, chunks: Chunks, stamps: (u64, u32)) -> Taken {
        if chunks.number == 0 { Taken::default() } else { self.take_some(chunks, stamps) }
    }

    fn take_some(&mut self, Chunks { number, sections }: Chunks, (first, phases): (u64, u32)) -> Taken {
        let start = self.next.next_multiple_of(sections);
        let of = |chunk: u32| -> Range<usize> {
            let first = ((start + chunk * sections) % NUMBER) as usize;
            first..first + sections as usize
        };
        let before = |chunk: u32| self.used[of(chunk)].iter().max().copied().unwrap_or(0);
        let taken =
            Taken { first: of(0).start as u32, second: of(1).start as u32, used: [before(0), before(1)] };
        for chunk in number.saturating_sub(2)..number {
            let end = u64::from(phases / number * (chunk + 1));
            self.used[of(chunk)].fill(first + end - 1);
        }
        self.next = (start + number % 2 * sections) % NUMBER;
        taken
    }
}

impl Taken {
    /// What all ranks must have released before anything is written to the place of a chunk, the first or the second.
    pub(crate) fn used(&self, chunk: u32) -> u64 {
        self.used[chunk as usize]
    }

    /// Where something is whose place is counted from the first chunk's, with the second half a board behind it.
    #[inline]
    pub(crate) fn at(&self, at: u64, board: &Cut) -> u64 {
        let (section, at) = if at < board.half { (self.first, at) } else { (self.second, at - board.half) };
        u64::from(section / HALF) * board.half + u64::from(section % HALF) * board.section + at
    }
}

/// How a board is cut, in units or in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) half: u64,
    pub(crate) section: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { half: 100, section: 12 };

    #[test]
    fn halves_alternate_across_collectives() {
        let mut sections = Sections::default();
        // Three chunks of two stamps: the last in the first half, which is free after stamp 6, the other after 4.
        let first = sections.take(Chunks::halves(3), (1, 6));
        assert_eq!((first.used(0), first.used(1), first.at(8, &CUT)), (0, 0, 8));
        let second = sections.take(Chunks::halves(1), (7, 2));
        assert_eq!((second.used(0), second.used(1)), (4, 6));
        assert_eq!((second.at(3, &CUT), second.at(103, &CUT)), (103, 3));
        let third = sections.take(Chunks::halves(2), (9, 6));
        assert_eq!((third.used(0), third.used(1), third.at(3, &CUT)), (6, 8, 3));
        assert_eq!(sections.take(Chunks::NONE, (15, 0)).used(0), 0);
        assert_eq!(sections.take(Chunks::halves(1), (15, 1)).used(0), 11);
    }

    #[test]
    fn who_takes_what_others_had_knows_of_the_last_of_them() {
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let (mut sections, mut last, mut stamp) = (Sections::default(), [0; 200], 1);
        for _ in 0..10_000 {
            let each = 1 << below(4);
            let number = if each == HALF { below(4) as u32 + 1 } else { 1 };
            let chunks = Chunks { number, sections: each };
            let phases = number * (below(3) as u32 + 1);
            let taken = sections.take(chunks, (stamp, phases));
            let room = if each == HALF { CUT.half } else { u64::from(each) * CUT.section };
            for chunk in 0..number {
                let end = stamp + u64::from(phases / number * (chunk + 1)) - 1;
                let at = taken.at(u64::from(chunk % 2) * CUT.half, &CUT);
                for unit in &mut last[at as usize..(at + room) as usize] {
                    assert!(chunk >= 2 || *unit <= taken.used(chunk), "{chunks:?}");
                    *unit = end;
                }
            }
            stamp += u64::from(phases);
        }
    }
}
