//! Which part of the shared scratch a collective's chunks go through, and when it is free.
//!
//! The shared scratch is a ring of sections. A collective takes the next ones: one, two, four ... sections if it has one
//! small chunk, else halves of the shared scratch alternately. So a rank may fill sections for the next collectives
//! while others still read those of earlier ones, and the fewer bytes a collective has, the further ahead a rank can
//! be. With a core for each rank nobody gets far ahead, but lines that come again soon are still in the other core's own
//! cache, and to write them takes several times as long as to write lines that have left it. What this core itself has just
//! read is written quickest: so where two ranks take turns to write, each takes the sections that it has read last. On more ranks
//! each pair has areas of its own, through which blocks go to and fro, where roots go around, and where all give something to all.

use std::ops::Range;

use crate::{Algorithm, Shape};

/// The part of the shared scratch that a collective uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Chunks {
    /// How many chunks there are. They use two places alternately: the third chunk goes where the first was, and so on.
    pub number: u32,
    /// Sections of each chunk.
    sections: u32,
    /// Who writes them.
    writers: Writers,
}

/// Who writes the chunks of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Writers {
    /// Any ranks.
    #[default]
    Any,
    /// This one of two ranks, and the other one reads.
    One(u32),
    /// Of two ranks each one of two chunks, and the other one reads it.
    Each,
    /// Each block has one writer and one reader.
    Blocks(Areas),
}

/// Where the blocks of a collective of one chunk lie, if each pair of ranks has areas of its own: whoever is to write one is the last that has
/// read it, so that no rank waits for another one, and lines go back the way that they have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Areas {
    flow: Flow,
    ranks: u32,
    /// Bytes of an area.
    bytes: u64,
    /// Sections that hold the areas of all pairs.
    sections: u32,
    /// Blocks may be empty, so that nothing is written or read in an area.
    gaps: bool,
}

/// Who gives blocks to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    /// All others to this root, in the order of ranks behind it.
    To(u32),
    /// This root to all others, in the same order.
    From(u32),
    /// Each rank, in the order of ranks, to each rank: what it gives to itself all read. In every other call pairs change their areas.
    All { swapped: bool },
}

impl Areas {
    /// So many areas of so many units; `None` if half the shared scratch does not hold them.
    fn new(shape: &Shape, flow: Flow, (area, number): (u64, u64)) -> Option<Areas> {
        let units = area.checked_mul(number).filter(|&units| units <= shape.half())?;
        let Chunks { sections, .. } = Chunks::new(shape, 1, units);
        let (bytes, gaps) = (area * shape.unit.max(1), shape.kind.known_by_pairs());
        Some(Areas { flow, ranks: shape.ranks, bytes, sections, gaps })
    }

    /// After how many calls the same rank writes an area again.
    fn turns(&self) -> u32 {
        match self.flow {
            Flow::To(_) | Flow::From(_) => self.ranks,
            Flow::All { .. } => 2,
        }
    }

    /// Whether the areas can stay where they are after `last`, as who writes one has read it: the root is the next rank, or all give to all.
    fn follow(&self, last: &Areas) -> bool {
        let next = |root: u32| (root + 1) % self.ranks;
        let flows = match (last.flow, self.flow) {
            (Flow::To(last), Flow::To(root)) | (Flow::From(last), Flow::From(root)) => next(last) == root,
            (last, flow) => (last, flow) == (Flow::All { swapped: false }, Flow::All { swapped: false }),
        };
        flows && Areas { flow: self.flow, ..*last } == *self
    }

    /// Where a unit of the blocks lies among the areas, in units of so many bytes.
    fn at(&self, at: u64, unit: u64) -> u64 {
        let (area, ranks) = (self.bytes / unit, u64::from(self.ranks));
        let (block, at) = (at / area, at % area);
        let place = match self.flow {
            Flow::To(root) | Flow::From(root) => {
                let root = u64::from(root);
                let other = (root + block + 1) % ranks;
                pairs(root.max(other)) + root.min(other)
            }
            Flow::All { swapped } => match (block / ranks, block % ranks) {
                (from, to) if from == to => 2 * pairs(ranks) + u64::from(swapped) * ranks + from,
                (from, to) => 2 * (pairs(from.max(to)) + from.min(to)) + u64::from(swapped != (from > to)),
            },
        };
        place * area + at
    }
}

/// How many pairs so many ranks make.
fn pairs(ranks: u64) -> u64 {
    ranks * ranks.saturating_sub(1) / 2
}

impl Chunks {
    /// The collective does not use the shared scratch.
    pub const NONE: Chunks = Chunks { number: 0, sections: 0, writers: Writers::Any };

    /// `number` chunks, each of which has a half of the shared scratch.
    pub(crate) fn halves(number: u32) -> Chunks {
        Chunks { number, sections: HALF, writers: Writers::Any }
    }

    /// `number` chunks of `units` units each. One that fits takes sections: on a crowded node no less than [`LEAST_CROWDED`], as a
    /// root that gets further ahead keeps others waiting until they sleep.
    pub(crate) fn new(shape: &Shape, number: u32, units: u64) -> Chunks {
        let least = if shape.crowded { LEAST_CROWDED } else { 1 };
        let mut smaller = std::iter::successors(Some(least), |sections| Some(2 * sections))
            .take_while(|&sections| sections < HALF);
        match smaller.find(|&sections| units <= u64::from(sections) * shape.section()) {
            Some(sections) if number == 1 => Chunks { number, sections, writers: Writers::Any },
            _ => Chunks::halves(number),
        }
    }

    /// The same for data that each rank combines with its own. On a crowded node they are halves, so that they stay in the caches
    /// of the cores that ranks share.
    pub(crate) fn combined(shape: &Shape, number: u32, units: u64) -> Chunks {
        if shape.crowded { Chunks::halves(number) } else { Chunks::new(shape, number, units) }
    }

    /// The same, all written by the root or all read by it. Of more than two ranks that says nothing of who has read what was there.
    pub(crate) fn rooted(self, shape: &Shape, root_writes: bool) -> Chunks {
        let writer = if root_writes { shape.root } else { shape.after(shape.root, 1) };
        match Chunks::ranks_tell(shape) {
            true => Chunks { writers: Writers::One(writer), ..self },
            false => self,
        }
    }

    /// The same for blocks of all ranks but the root, each in an area of so many units, in the order of ranks behind the root.
    pub(crate) fn rooted_blocks(self, shape: &Shape, root_writes: bool, area: u64) -> Chunks {
        if Chunks::ranks_tell(shape) || self.number != 1 {
            return self.rooted(shape, root_writes);
        }
        let flow = if root_writes { Flow::From(shape.root) } else { Flow::To(shape.root) };
        let areas = Areas::new(shape, flow, (area, pairs(shape.ranks.into())));
        areas.map_or(self, |areas| Chunks { writers: Writers::Blocks(areas), ..self })
    }

    /// One chunk in which each rank has an area of so many units for each other rank, and if they `keep` something one for itself, which all
    /// read; `None` if that is too much.
    pub(crate) fn all_to_all(shape: &Shape, area: u64, keep: bool) -> Option<Chunks> {
        let ranks = u64::from(shape.ranks);
        // What all read has two areas: nobody waits until all have read it in the call before.
        let number = 2 * (pairs(ranks) + if keep { ranks } else { 0 });
        let areas = Areas::new(shape, Flow::All { swapped: false }, (area, number))?;
        Some(Chunks { number: 1, sections: areas.sections, writers: Writers::Blocks(areas) })
    }

    /// Two chunks of so many units, of which each of two ranks writes one.
    pub(crate) fn exchanged(shape: &Shape, units: u64) -> Chunks {
        Chunks { number: 2, writers: Writers::Each, ..Chunks::new(shape, 1, units) }
    }

    /// Whether it follows from who has written who has read. With more ranks than cores a rank had better not wait for the call before.
    pub(crate) fn ranks_tell(shape: &Shape) -> bool {
        shape.ranks == 2 && !shape.crowded
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
    /// What was taken last, where it starts, and whether its second chunk is there, or its pairs have changed their areas.
    last: (Chunks, u32, bool),
    /// If each pair of ranks has areas there, the sequence number that all ranks must have acknowledged before any of them is written.
    free: Option<u64>,
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
    /// Each pair of ranks has areas of its own in the sections of chunk 0.
    areas: Option<Areas>,
}

impl Default for Sections {
    fn default() -> Sections {
        Sections {
            next: 0,
            used: [0; NUMBER as usize],
            latest: [0; 2],
            whole: [0; 2],
            last: (Chunks::NONE, 0, false),
            free: None,
        }
    }
}

impl Sections {
    /// Takes sections for a collective whose sequence numbers (`seqs`: the first, and how many) are shared out evenly
    /// among its chunks.
    #[inline(never)]
    pub(crate) fn take(&mut self, chunks: Chunks, seqs: (u64, u32)) -> Allotment {
        if chunks.number == 0 {
            return Allotment::default();
        }
        if let Writers::Blocks(areas) = chunks.writers {
            let follows = matches!(self.last.0.writers, Writers::Blocks(last) if areas.follow(&last));
            self.free = self.free.filter(|_| follows);
            if follows || matches!(areas.flow, Flow::All { .. }) {
                return self.take_areas(chunks, areas, seqs);
            }
        }
        self.free = None;
        let again = chunks.writers != Writers::Any && self.was_read_by_writers(chunks);
        if again {
            self.next = self.last.1;
        }
        let Allotment { first, second, used: [one, other], .. } = match chunks {
            Chunks { number: 1, sections: HALF, .. } if self.next.is_multiple_of(HALF) => {
                self.take_half(seqs)
            }
            Chunks { sections: HALF, writers: Writers::Each, .. } if again => self.take_both(seqs),
            _ => self.take_some(chunks, seqs),
        };
        let swapped = again && chunks.writers == Writers::Each && !self.last.2;
        self.last = (chunks, first, swapped);
        match swapped {
            true => Allotment { first: second, second: first, used: [other, one], areas: None },
            false => Allotment { first, second, used: [one, other], areas: None },
        }
    }

    /// Whether each rank that writes these chunks is one that has read some of the last ones, which took as many sections.
    fn was_read_by_writers(&self, Chunks { writers, sections, .. }: Chunks) -> bool {
        let last = self.last.0;
        last.sections == sections
            && match (last.writers, writers) {
                (Writers::One(last), Writers::One(next)) => last != next,
                (last, next) => (last, next) == (Writers::Each, Writers::Each),
            }
    }

    /// Takes areas for all pairs of ranks, the same ones for as long as calls follow each other: then each rank writes what it has read
    /// itself, or what nobody has written since the areas were taken. What all have read in the call before lies elsewhere, and of the
    /// call before that nobody reads any more who has begun the last one. Where blocks may be empty a rank may have read nothing there since it
    /// wrote there last, and then only the other one knows whether it has read that.
    fn take_areas(&mut self, chunks: Chunks, areas: Areas, seqs: (u64, u32)) -> Allotment {
        let (_, start, swapped) = self.last;
        let again = self.free.is_some();
        if again {
            self.next = start;
        }
        let Allotment { first, second, used, .. } =
            self.take_some(Chunks { sections: areas.sections, ..chunks }, seqs);
        let free = *self.free.get_or_insert(used[0]);
        // Calls that follow each other have as many sequence numbers each; others may have had some in between.
        let since = u64::from(seqs.1) * u64::from(areas.turns() - 1) + 1;
        let free = if areas.gaps { free.max(seqs.0.saturating_sub(since)) } else { free };
        let swapped = again && !swapped;
        self.last = (chunks, first, swapped);
        let flow = match areas.flow {
            Flow::All { .. } => Flow::All { swapped },
            rooted => rooted,
        };
        Allotment { first, second, used: [free, used[1]], areas: Some(Areas { flow, ..areas }) }
    }

    /// Takes the next half for a collective that has one chunk, as small ones have whose blocks may be long at other ranks.
    #[inline]
    fn take_half(&mut self, (first, phases): (u64, u32)) -> Allotment {
        let (this, other) = ((self.next / HALF) as usize % 2, (self.next / HALF + 1) as usize % 2);
        let used = [self.latest[this], self.latest[other]];
        let last = first + u64::from(phases) - 1;
        (self.latest[this], self.whole[this]) = (last, last);
        self.next = other as u32 * HALF;
        Allotment { first: this as u32 * HALF, second: self.next, used, areas: None }
    }

    /// Takes both halves again for two ranks that exchange.
    #[inline]
    fn take_both(&mut self, (first, phases): (u64, u32)) -> Allotment {
        let (start, second) = (self.next, (self.next + HALF) % NUMBER);
        let used = [start, second].map(|at| self.latest[(at / HALF) as usize]);
        let last = first + u64::from(phases) - 1;
        (self.latest, self.whole) = ([last; 2], [last; 2]);
        Allotment { first: start, second, used, areas: None }
    }

    /// Takes sections for a collective that has chunks.
    fn take_some(
        &mut self,
        Chunks { number, sections, writers }: Chunks,
        (first, phases): (u64, u32),
    ) -> Allotment {
        let start = self.pass_over(sections);
        let of = |chunk: u32| (start + chunk * sections) % NUMBER;
        let used = [self.used(of(0), sections), self.used(of(1), sections)];
        let allotment = Allotment { first: of(0), second: of(1), used, areas: None };
        let at_once = writers == Writers::Each;
        for chunk in number.saturating_sub(2)..number {
            let phase = if at_once { phases } else { phases / number * (chunk + 1) };
            let last = first + u64::from(phase) - 1;
            let (at, half) = (of(chunk), (of(chunk) / HALF) as usize);
            self.latest[half] = last;
            if sections == HALF {
                self.whole[half] = last;
            } else {
                self.used[range(at, sections)].fill(last);
            }
        }
        self.next = of(if at_once { number } else { number % 2 });
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
        let at = self.areas.as_ref().map_or(at, |areas| areas.at(at, scratch.unit));
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
    /// Bytes of these units.
    pub(crate) unit: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Kind;

    const CUT: Cut = Cut { half: 100, section: 1, unit: 1 };

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
    fn who_has_read_writes_there_next() {
        let mut sections = Sections::default();
        let mut first = |writers| sections.take(Chunks { number: 1, sections: 2, writers }, (1, 1)).first;
        let [zero, one] = [0, 1].map(Writers::One);
        assert_eq!([zero, zero, one, zero, zero, Writers::Any, one].map(&mut first), [0, 2, 2, 2, 4, 6, 8]);
        assert_eq!(sections.take(Chunks { number: 1, sections: 1, writers: zero }, (8, 1)).first, 10);
    }

    #[test]
    fn two_ranks_swap_what_they_write() {
        let mut sections = Sections::default();
        let mut places = |sections_each, seq| {
            let chunks = Chunks { number: 2, sections: sections_each, writers: Writers::Each };
            let taken = sections.take(chunks, (seq, 2));
            (taken.first, taken.second, taken.used)
        };
        assert_eq!(places(4, 1), (0, 4, [0, 0]));
        assert_eq!(places(4, 3), (4, 0, [2, 2]));
        assert_eq!(places(4, 5), (0, 4, [4, 4]));
        assert_eq!(places(2, 7), (8, 10, [0, 0]));
    }

    /// Roots go around, stay, and change their ways: whoever writes a unit comes after all that others did there, by what it has done
    /// itself or waits for, and where roots go around it is the last one that has read it.
    #[test]
    fn where_roots_go_around_each_pair_has_an_area() {
        const AREA: u64 = 3;
        let shape = |ranks, root| Shape {
            ranks,
            root,
            scratch: 2 * 64 * u64::from(HALF),
            crowded: true,
            ..Shape::NOTHING
        };
        for ranks in 2..=9 {
            let cut = shape(ranks, 0).cut();
            let (mut sections, mut seq) = (Sections::default(), 1);
            // By unit: who has read it last, and under which sequence number.
            let mut read = vec![(u32::MAX, 0); 2 * cut.half as usize];
            let (mut root, mut around) = (0, 0);
            for call in 0..200u32 {
                // Every now and then a root comes again, or is passed over, and once they scatter.
                let step = if call % 37 == 5 { call % 3 } else { 1 };
                (root, around) =
                    ((root + step) % ranks, if step % ranks == 1 % ranks { around + 1 } else { 0 });
                let (shape, scatters) = (shape(ranks, root), call / 50 == 2);
                around = if call % 50 == 0 { 0 } else { around };
                let chunks = Chunks::new(&shape, 1, AREA * u64::from(ranks - 1));
                let taken = sections.take(chunks.rooted_blocks(&shape, scatters, AREA), (seq, 2));
                for distance in 1..ranks {
                    let other = shape.after(root, distance);
                    let (writer, reader) = if scatters { (root, other) } else { (other, root) };
                    for unit in 0..AREA {
                        let at = taken.at(u64::from(distance - 1) * AREA + unit, &cut);
                        let last = &mut read[at as usize];
                        assert!(last.0 == writer || last.1 <= taken.used(0), "{ranks} ranks, call {call}");
                        assert!(last.0 == writer || around <= ranks, "{ranks} ranks, call {call}");
                        *last = (reader, seq + 1);
                    }
                }
                seq += 2;
            }
        }
    }

    /// All kinds of calls by areas, in which some blocks are empty where that may be: whoever writes a unit comes after all that has read it, by
    /// what it has done itself, what it waits for, or, where all give something to all, what it has heard of the call before.
    #[test]
    fn what_is_written_has_been_read() {
        const AREA: u64 = 3;
        let mut random = 7u64;
        let mut below = |most: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % most
        };
        let kinds = [Kind::Alltoall, Kind::Alltoallv, Kind::Scatterv, Kind::Gatherv];
        for (kind, ranks) in kinds.into_iter().flat_map(|kind| (3..=9).map(move |ranks| (kind, ranks))) {
            let (mut sections, mut seq, mut ends, mut root) = (Sections::default(), 1, [0; 2], 0);
            // By unit: who has read it last, and under which sequence number.
            let mut read = HashMap::<u64, (u32, u64)>::new();
            for call in 0..300 {
                root = (root + if below(20) == 0 { below(3) as u32 } else { 1 }) % ranks;
                let scratch = 2 * 64 * u64::from(HALF);
                let shape = Shape { kind, ranks, root, scratch, crowded: true, ..Shape::NOTHING };
                let one = Chunks::new(&shape, 1, AREA * u64::from(ranks));
                let chunks = match kind {
                    Kind::Alltoall | Kind::Alltoallv => Chunks::all_to_all(&shape, AREA, false).unwrap(),
                    kind => one.rooted_blocks(&shape, kind == Kind::Scatterv, AREA),
                };
                assert!(matches!(chunks.writers, Writers::Blocks(_)));
                let taken = sections.take(chunks, (seq, 2));
                // Writer, number and reader of each block.
                let blocks: Vec<(u32, u32, u32)> = match kind {
                    Kind::Alltoall | Kind::Alltoallv => {
                        let to = |from| (0..ranks).map(move |to| (from, from * ranks + to, to));
                        (0..ranks).flat_map(to).filter(|(from, _, to)| from != to).collect()
                    }
                    _ => (1..ranks)
                        .map(|distance| (distance, shape.after(root, distance)))
                        .map(|(distance, other)| {
                            let (writer, reader) =
                                if kind == Kind::Scatterv { (root, other) } else { (other, root) };
                            (writer, distance - 1, reader)
                        })
                        .collect(),
                };
                let heard = if kind == Kind::Alltoall { ends[0] } else { 0 };
                for (writer, block, reader) in blocks {
                    if kind != Kind::Alltoall && below(3) == 0 {
                        continue;
                    }
                    for at in (0..AREA).map(|unit| taken.at(u64::from(block) * AREA + unit, &shape.cut())) {
                        let (last, end) = read.insert(at, (reader, seq + 1)).unwrap_or((writer, 0));
                        let known = taken.used(0).max(heard);
                        assert!(last == writer || end <= known, "{kind:?}, {ranks} ranks, call {call}");
                    }
                }
                ends = [ends[1], seq + 1];
                seq += 2;
            }
        }
    }

    #[test]
    fn both_halves_are_taken_as_chunks_of_any_number_are() {
        let state = || Sections { next: HALF, latest: [3, 4], ..Sections::default() };
        let (mut short, mut long) = (state(), state());
        let chunks = Chunks { writers: Writers::Each, ..Chunks::halves(2) };
        assert_eq!(short.take_both((7, 2)), long.take_some(chunks, (7, 2)));
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
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
            let writers = [Writers::Any, Writers::One(0), Writers::One(1), Writers::Each][below(4) as usize];
            let number = if writers == Writers::Each { 2 } else { number };
            let chunks = Chunks { number, sections: each, writers };
            let phases = number * (below(3) as u32 + 1);
            let allotment = sections.take(chunks, (seq, phases));
            let room = if each == HALF { CUT.half } else { u64::from(each) * CUT.section };
            for chunk in 0..number {
                let phase = if writers == Writers::Each { phases } else { phases / number * (chunk + 1) };
                let end = seq + u64::from(phase) - 1;
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
