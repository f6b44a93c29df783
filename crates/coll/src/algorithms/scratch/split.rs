//! Split reductions and scans on the shared scratch: all ranks copy their vectors there, and each rank combines one part of all
//! of them. More bytes are copied than by a ring reduction, but ranks wait for each other only two or three times. What fits into one
//! chunk of a reduction goes in cells, one for each two ranks, which they change with each other from call to call.

use super::{announce, area_for, await_announced, chunks_of, common, cut, half, longest};
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[
    &REDUCE_SPLIT,
    &ALLREDUCE_SPLIT,
    &REDUCE_SCATTER_SPLIT,
    &REDUCE_SCATTER_BLOCK_SPLIT,
    &SCAN_SPLIT,
    &EXSCAN_SPLIT,
];

pub(crate) const ALLREDUCE_SPLIT: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "scratch_split",
    about: "all copy their vectors into shared memory, add up a part, copy the sum: middle-sized vectors on one node",
    needs: Needs::SharedScratch,
    reorders: true,
    phases: |shape| 3 * Split::new(shape).chunks(),
    chunks: |shape| Split::new(shape).scratch_chunks(),
    rounds: |shape| rounds(shape) * Split::new(shape).chunks(),
    round: |shape, index, round| Split::new(shape).round(index, round),
    cost: |case: &Case| Cost {
        transfers: 1.0 + chunks(case) * 2.0 * (case.p() - 1.0),
        copied: 2.0 * case.bytes,
        waits: 4.0 * chunks(case),
        ..cost(case)
    },
    ..Algorithm::MESSAGES
};

pub(crate) const REDUCE_SPLIT: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all copy their vectors into shared memory and add up a part, the root copies the sum: middle-sized \
            vectors on one node",
    ..ALLREDUCE_SPLIT
};

pub(crate) const REDUCE_SCATTER_SPLIT: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "all copy their vectors into shared memory, each adds up its block: middle-sized blocks on one node",
    cost: |case: &Case| {
        let share = (case.p() - 1.0) / case.p();
        Cost {
            // Each of several chunks has the blocks of few ranks, so few ranks reduce at a time.
            reduced: share * case.bytes * chunks(case).min(case.p()),
            transfers: 1.0 + chunks(case) * (case.p() - 1.0),
            copied: (1.0 + 1.0 / case.p()) * case.bytes,
            waits: 3.0 * chunks(case),
            ..Cost::default()
        }
    },
    ..ALLREDUCE_SPLIT
};

pub(crate) const REDUCE_SCATTER_BLOCK_SPLIT: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER_SPLIT };

pub(crate) const SCAN_SPLIT: Algorithm = Algorithm {
    kind: Kind::Scan,
    about: "all copy their vectors into shared memory and compute all prefixes of a part, each copies its own: more ranks than cores",
    // A part has the vectors of all ranks in their order.
    reorders: false,
    ..ALLREDUCE_SPLIT
};

pub(crate) const EXSCAN_SPLIT: Algorithm = Algorithm {
    kind: Kind::Exscan,
    cost: |case: &Case| match case.ranks {
        // The first rank only writes, the last one only reads: a chunk while the next one is written.
        2 => Cost { reduced: 0.0, copied: case.bytes + case.bytes / chunks(case), ..(SCAN_SPLIT.cost)(case) },
        _ => (SCAN_SPLIT.cost)(case),
    },
    ..SCAN_SPLIT
};

/// The most bytes of a chunk, of all ranks together: they stay in the caches.
const MOST_BYTES: u64 = 1 << 20;

fn chunks(case: &Case) -> f64 {
    chunks_of(case.bytes * case.p(), MOST_BYTES)
}

fn cost(case: &Case) -> Cost {
    Cost { reduced: (case.p() - 1.0) / case.p() * case.bytes, ..Cost::default() }
}

/// Rounds of one chunk: wait for reuse, copy in, wait, one for the vector of each other rank, wait, copy out,
/// acknowledge.
fn rounds(shape: &Shape) -> u32 {
    shape.ranks + 5
}

/// One collective by this algorithm.
struct Split<'a> {
    shape: &'a Shape,
    /// Units of the vector.
    len: u64,
    /// The most units of the vector that a chunk has: an area holds as many.
    area: u64,
    /// If there is one chunk that has room for it: units of a cell, which holds the part of one rank's vector that another one combines.
    cell: Option<u64>,
}

impl<'a> Split<'a> {
    fn new(shape: &'a Shape) -> Split<'a> {
        let len = if shape.kind.scatters_result() { shape.sends.start(shape.ranks) } else { shape.len };
        let split = Split { shape, len, area: area_for(shape, MOST_BYTES, shape.ranks, len), cell: None };
        let longest = match shape.kind.scatters_result() {
            true => longest(&shape.sends, shape.ranks),
            false => len.div_ceil(shape.ranks.into()),
        };
        let cell = longest.next_multiple_of(64).max(64);
        let fits = split.chunks() == 1 && Chunks::all_to_all(shape, cell, true).is_some();
        // In a scan a rank reads what others have written over what it gave them.
        Split { cell: (fits && !split.scans()).then_some(cell), ..split }
    }

    /// Each rank gets what those before it have combined.
    fn scans(&self) -> bool {
        matches!(self.shape.kind, Kind::Scan | Kind::Exscan)
    }

    /// The rank in whose area what this one gets has been combined, if it gets anything that it does not have.
    fn result(&self) -> Option<u32> {
        let Shape { kind, rank: me, root, .. } = *self.shape;
        match kind {
            Kind::Reduce => (me == root).then_some(me),
            Kind::Scan => (me > 0).then_some(me),
            Kind::Exscan => me.checked_sub(1),
            _ => Some(me),
        }
    }

    fn chunks(&self) -> u32 {
        self.len.div_ceil(self.area) as u32
    }

    /// The chunks on the shared scratch.
    fn scratch_chunks(&self) -> Chunks {
        let cells = self.cell.and_then(|cell| Chunks::all_to_all(self.shape, cell, true));
        let units = u64::from(self.shape.ranks) * self.area;
        cells.unwrap_or_else(|| Chunks::combined(self.shape, self.chunks(), units))
    }

    /// The units of a chunk: start and length.
    fn units(&self, chunk: u32) -> (u64, u64) {
        common((0, self.len), (u64::from(chunk) * self.area, self.area))
    }

    /// The units of a chunk that a rank combines.
    fn part(&self, chunk: u32, rank: u32) -> (u64, u64) {
        let (start, len) = self.units(chunk);
        if self.shape.kind.scatters_result() {
            return common(self.shape.sends.block(rank), (start, len));
        }
        let [first, end] = [rank, rank + 1].map(|part| cut(part, self.shape.ranks, len));
        (start + first, end - first)
    }

    /// Where the part of a chunk that rank `combiner` combines and another one has copied in lies on the shared scratch.
    fn contribution(&self, chunk: u32, rank: u32, combiner: u32) -> Span {
        let (at, len) = self.part(chunk, combiner);
        if let Some(cell) = self.cell {
            let place = u64::from(rank) * u64::from(self.shape.ranks) + u64::from(combiner);
            return Span::new(Buf::SharedScratch, (place * cell, len));
        }
        let area = half(self.shape, chunk) + u64::from(rank) * self.area;
        let skip = at.saturating_sub(self.units(chunk).0);
        Span::new(Buf::SharedScratch, (area + skip, len))
    }

    /// All parts of a chunk in the area of a rank.
    fn whole(&self, chunk: u32, rank: u32) -> Span {
        Span { len: self.units(chunk).1, ..self.contribution(chunk, rank, 0) }
    }

    /// This rank copies its vector in.
    fn copy_in(&self, chunk: u32, round: &mut Round) {
        let me = self.shape.rank;
        if self.cell.is_none() {
            let own = Span::new(Buf::Send, self.units(chunk));
            match self.shape.kind {
                // Nobody gets anything of the last vector.
                Kind::Exscan if me + 1 == self.shape.ranks => return,
                Kind::Scan if me == 0 => round.copy(own, Span { buf: Buf::Recv, ..own }),
                _ => {}
            }
            return round.copy(own, self.whole(chunk, me));
        }
        for combiner in 0..self.shape.ranks {
            let part = self.part(chunk, combiner);
            round.copy(Span::new(Buf::Send, part), self.contribution(chunk, me, combiner));
        }
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let (me, ranks) = (shape.rank, shape.ranks);
        let (chunk, index) = (index / rounds(shape), index % rounds(shape));
        let others = (1..ranks).map(|distance| shape.after(me, distance));
        let await_others = |phase: u32, round: &mut Round| {
            others.for_each(|rank| await_announced(rank, phase, round));
        };
        let result = self.result();
        let part = self.part(chunk, me);
        match index {
            // The half is free when all ranks have read what it held before.
            0 if chunk < 2 => round.push(Step::WaitReuse { chunk }),
            0 => await_others(3 * (chunk - 2) + 2, round),
            1 => self.copy_in(chunk, round),
            2 => {
                announce(3 * chunk, round);
                await_others(3 * chunk, round);
            }
            _ if index == ranks + 1 && shape.kind == Kind::Exscan => {}
            _ if index < ranks + 2 && self.scans() => {
                let [before, this] = [index - 3, index - 2].map(|rank| self.contribution(chunk, rank, me));
                round.reduce(before, this);
            }
            // No other rank reads this rank's part of this rank's own area, so the sum can go there.
            _ if index < ranks + 2 => {
                let from = shape.after(me, index - 2);
                round.reduce(self.contribution(chunk, from, me), self.contribution(chunk, me, me));
            }
            _ if index == ranks + 2 => {
                round.push(Step::Ack { phase: 3 * chunk + 1 });
                if result.is_some() && !self.shape.kind.scatters_result() {
                    await_others(3 * chunk + 1, round);
                }
            }
            _ if index == ranks + 3 && self.shape.kind.scatters_result() => {
                let into = part.0.saturating_sub(shape.sends.start(me));
                round.copy(self.contribution(chunk, me, me), Span::new(Buf::Recv, (into, part.1)));
            }
            _ if index == ranks + 3 && self.scans() => {
                if let Some(result) = result {
                    round.copy(self.whole(chunk, result), Span::new(Buf::Recv, self.units(chunk)));
                }
            }
            _ if index == ranks + 3 => {
                for rank in (0..ranks).filter(|_| result.is_some()) {
                    let part = self.part(chunk, rank);
                    round.copy(self.contribution(chunk, rank, rank), Span::new(Buf::Recv, part));
                }
            }
            _ => round.push(Step::Ack { phase: 3 * chunk + 2 }),
        }
    }
}
