//! Which part of the shared scratch a collective's chunks go through, and when it is free.
//!
//! The shared scratch is a ring of sections. A collective takes the next ones: one, two, four ... sections if it has one
//! small chunk, else halves of the shared scratch alternately. So a rank may fill sections for the next collectives
//! while others still read those of earlier ones, and the fewer bytes a collective has, the further ahead a rank can
//! be. With a core for each rank nobody gets far ahead, but lines that come again soon are still in the other core's own
//! cache, and to write them takes several times as long as to write lines that have left it.

use std::ops::Range;

use crate::{Algorithm, Shape};

/// The part of the shared scratch that a collective uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Chunks {
    /// How many chunks there are. They use two places alternately: the third chunk goes where the first was, and so on.
    pub number: u32,
    /// Sections of each chunk.
    sections: u32,
}

impl Chunks {
    /// The collective does not use the shared scratch.
    pub const NONE: Chunks = Chunks { number: 0, sections: 0 };

    /// `number` chunks, each of which has a half of the shared scratch.
    pub(crate) fn halves(number: u32) -> Chunks {
        Chunks { number, sections: HALF }
    }

    /// `number` chunks of `units` units each. One that fits takes sections: on a crowded node no less than [`LEAST_CROWDED`], as a
    /// root that gets further ahead keeps others waiting until they sleep.
    pub(crate) fn new(shape: &Shape, number: u32, units: u64) -> Chunks {
        let least = if shape.crowded { LEAST_CROWDED } else { 1 };
        let mut smaller = std::iter::successors(Some(least), |sections| Some(2 * sections))
            .take_while(|&sections| sections < HALF);
        match smaller.find(|&sections| units <= u64::from(sections) * shape.section()) {
            Some(sections) if number == 1 => Chunks { number, sections },
            _ => Chunks::halves(number),
        }
    }

    /// The same for data that each rank combines with its own. On a crowded node they are halves, so that they stay in the caches
    /// of the cores that ranks share.
    pub(crate) fn combined(shape: &Shape, number: u32, units: u64) -> Chunks {
        if shape.crowded { Chunks::halves(number) } else { Chunks::new(shape, number, units) }
    }
}

/// What a collective, or a stage of a composition, uses of the shared buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedUse {
    /// Sequence numbers.
    pub(crate) phases: u32,
    pub(crate) chunks: Chunks,
    pub(crate) cut: Cut,
}

impl SharedUse {
    /// What an algorithm uses that is no composition.
    pub(crate) fn of(row: &Algorithm, shape: &Shape) -> SharedUse {
        SharedUse { phases: (row.phases)(shape), chunks: (row.chunks)(shape), cut: shape.cut() }
    }
}

/// Sections of half the shared scratch.
pub(crate) const HALF: u32 = 64;
/// The fewest sections that a chunk takes on a crowded node: an eighth of a half.
const LEAST_CROWDED: u32 = HALF / 8;
/// Sections of the whole shared scratch.
const NUMBER: u32 = 2 * HALF;

/// The state of the ring of sections between collectives. All ranks count alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sections {
    /// The next section to be taken.
    next: u32,
    /// By section: a rank that has acknowledged this sequence number is through with what was in this section, and in those before
    /// it since the ring last began, but for what went through whole halves. Sections are taken in their order, so that the last
    /// one of several tells of all of them; those that are passed over count as if they had been taken with the ones before.
    used: [u64; NUMBER as usize],
    /// By half: so for all of its sections.
    latest: [u64; 2],
    /// By half: so for what went through it as a whole.
    whole: [u64; 2],
}

/// Where the chunks of a collective go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Allotment {
    /// First section of chunk 0.
    first: u32,
    /// First section of chunk 1.
    second: u32,
    /// For chunk 0 and for chunk 1, the sequence number that all ranks must have acknowledged before its sections are
    /// written.
    used: [u64; 2],
}

impl Default for Sections {
    fn default() -> Sections {
        Sections { next: 0, used: [0; NUMBER as usize], latest: [0; 2], whole: [0; 2] }
    }
}

impl Sections {
    /// Takes sections for a collective whose sequence numbers (`seqs`: the first, and how many) are shared out evenly
    /// among its chunks.
    #[inline(always)]
    pub(crate) fn take(&mut self, chunks: Chunks, seqs: (u64, u32)) -> Allotment {
        match chunks {
            Chunks { number: 0, .. } => Allotment::default(),
            Chunks { number: 1, sections: HALF } if self.next.is_multiple_of(HALF) => self.take_half(seqs),
            _ => self.take_some(chunks, seqs),
        }
    }

    /// Takes the next half for a collective that has one chunk, as small ones have whose blocks may be long at other ranks.
    #[inline]
    fn take_half(&mut self, (first, phases): (u64, u32)) -> Allotment {
        let (this, other) = ((self.next / HALF) as usize % 2, (self.next / HALF + 1) as usize % 2);
        let used = [self.latest[this], self.latest[other]];
        let last = first + u64::from(phases) - 1;
        (self.latest[this], self.whole[this]) = (last, last);
        self.next = other as u32 * HALF;
        Allotment { first: this as u32 * HALF, second: self.next, used }
    }

    /// Takes sections for a collective that has chunks.
    fn take_some(&mut self, Chunks { number, sections }: Chunks, (first, phases): (u64, u32)) -> Allotment {
        let start = self.pass_over(sections);
        let of = |chunk: u32| (start + chunk * sections) % NUMBER;
        let used = [self.used(of(0), sections), self.used(of(1), sections)];
        let allotment = Allotment { first: of(0), second: of(1), used };
        for chunk in number.saturating_sub(2)..number {
            let last = first + u64::from(phases / number * (chunk + 1)) - 1;
            let (at, half) = (of(chunk), (of(chunk) / HALF) as usize);
            self.latest[half] = last;
            if sections == HALF {
                self.whole[half] = last;
            } else {
                self.used[range(at, sections)].fill(last);
            }
        }
        self.next = (start + number % 2 * sections) % NUMBER;
        allotment
    }

    /// Goes on to the next section that so many may start at, and returns it.
    fn pass_over(&mut self, sections: u32) -> u32 {
        let start = self.next.next_multiple_of(sections);
        if start > self.next {
            let half = (self.next / HALF) as usize;
            self.used[range(self.next, start - self.next)].fill(self.latest[half]);
        }
        start
    }

    /// A rank that has acknowledged this sequence number is through with these sections, which are in one half.
    fn used(&self, at: u32, sections: u32) -> u64 {
        let half = (at / HALF) as usize;
        match sections {
            HALF => self.latest[half],
            _ => self.used[(at + sections - 1) as usize].max(self.whole[half]),
        }
    }
}

/// The places of sections.
fn range(at: u32, sections: u32) -> Range<usize> {
    at as usize..(at + sections) as usize
}

impl Allotment {
    /// The sequence number that all ranks must have acknowledged before the sections of chunk 0 or 1 are written.
    pub(crate) fn used(&self, chunk: u32) -> u64 {
        self.used[chunk as usize]
    }

    /// Where unit `at` of [`Buf::SharedScratch`](crate::Buf::SharedScratch) really lies. A schedule counts from the
    /// start of chunk 0, and chunk 1 starts half a shared scratch behind it.
    #[inline]
    pub(crate) fn at(&self, at: u64, scratch: &Cut) -> u64 {
        let (section, at) =
            if at < scratch.half { (self.first, at) } else { (self.second, at - scratch.half) };
        u64::from(section / HALF) * scratch.half + u64::from(section % HALF) * scratch.section + at
    }
}

/// The sizes of half a shared scratch and of a section, in units or in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cut {
    pub(crate) half: u64,
    pub(crate) section: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { half: 100, section: 1 };

    #[test]
    fn halves_alternate_across_collectives() {
        let mut sections = Sections::default();
        // Three chunks of two sequence numbers: the last one is in the first half, which is free after sequence number
        // 6; the second half is free after 4.
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
    fn a_half_is_taken_as_chunks_of_any_number_are() {
        for next in [0, HALF] {
            let state = || Sections { next, latest: [3, 4], ..Sections::default() };
            let (mut short, mut long) = (state(), state());
            let chunks = Chunks::halves(1);
            assert_eq!(short.take_half((7, 2)), long.take_some(chunks, (7, 2)), "{next}");
            assert_eq!(format!("{short:?}"), format!("{long:?}"), "{next}");
        }
    }

    #[test]
    fn reuse_waits_for_the_last_use_of_each_section() {
        let mut random = 1u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let (mut sections, mut last, mut seq) = (Sections::default(), [0; 200], 1);
        for _ in 0..10_000 {
            let each = 1 << below(u64::from(HALF.ilog2()) + 1);
            let number = if each == HALF { below(4) as u32 + 1 } else { 1 };
            let chunks = Chunks { number, sections: each };
            let phases = number * (below(3) as u32 + 1);
            let allotment = sections.take(chunks, (seq, phases));
            let room = if each == HALF { CUT.half } else { u64::from(each) * CUT.section };
            for chunk in 0..number {
                let end = seq + u64::from(phases / number * (chunk + 1)) - 1;
                let at = allotment.at(u64::from(chunk % 2) * CUT.half, &CUT);
                for unit in &mut last[at as usize..(at + room) as usize] {
                    assert!(chunk >= 2 || *unit <= allotment.used(chunk), "{chunks:?}");
                    *unit = end;
                }
            }
            seq += u64::from(phases);
        }
    }
}
