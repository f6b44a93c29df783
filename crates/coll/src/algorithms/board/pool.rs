//! Sums on the board from a pool: all lay their vectors there, and each combines one part of all of them. More bytes
//! are copied than by turns, but ranks wait for each other only two or three times.

use super::super::no_temp;
use super::{area, chunks_of, common, cut, half, seen, show};
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ALLREDUCE_POOL: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "pool",
    about: "all copy their vectors into shared memory, add up a part, copy the sum: middle-sized vectors on one node",
    needs: Needs::Board,
    reorders: true,
    phases: |shape| 3 * Pool::new(shape, Kind::Allreduce).chunks(),
    chunks: |shape| Chunks::halves(Pool::new(shape, Kind::Allreduce).chunks()),
    temp: no_temp,
    rounds: |shape| rounds(shape) * Pool::new(shape, Kind::Allreduce).chunks(),
    round: |shape, index, round| Pool::new(shape, Kind::Allreduce).round(index, round),
    cost: |case: &Case| Cost {
        hops: 1.0 + chunks(case) * 2.0 * (case.p() - 1.0),
        copied: 2.0 * case.bytes,
        waits: 4.0 * chunks(case),
        ..cost(case)
    },
};

pub(crate) const REDUCE_POOL: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all copy their vectors into shared memory and add up a part, the root copies the sum: middle-sized \
            vectors on one node",
    round: |shape, index, round| Pool::new(shape, Kind::Reduce).round(index, round),
    ..ALLREDUCE_POOL
};

pub(crate) const REDUCE_SCATTER_POOL: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "all copy their vectors into shared memory, each adds up its block: middle-sized blocks on one node",
    phases: |shape| 3 * Pool::new(shape, Kind::ReduceScatter).chunks(),
    chunks: |shape| Chunks::halves(Pool::new(shape, Kind::ReduceScatter).chunks()),
    rounds: |shape| rounds(shape) * Pool::new(shape, Kind::ReduceScatter).chunks(),
    round: |shape, index, round| Pool::new(shape, Kind::ReduceScatter).round(index, round),
    cost: |case: &Case| {
        let share = (case.p() - 1.0) / case.p();
        Cost {
            // In one of several chunks there are the blocks of few ranks.
            reduced: share * case.bytes * chunks(case).min(case.p()),
            hops: 1.0 + chunks(case) * (case.p() - 1.0),
            copied: (1.0 + 1.0 / case.p()) * case.bytes,
            waits: 3.0 * chunks(case),
            ..Cost::default()
        }
    },
    ..ALLREDUCE_POOL
};

pub(crate) const REDUCE_SCATTER_BLOCK_POOL: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER_POOL };

/// The most bytes of a chunk, of all ranks together: they stay in the caches.
const MOST: u64 = 1 << 20;

fn chunks(case: &Case) -> f64 {
    chunks_of(case.bytes * case.p(), MOST)
}

fn cost(case: &Case) -> Cost {
    Cost { reduced: (case.p() - 1.0) / case.p() * case.bytes, ..Cost::default() }
}

/// Rounds of one chunk: guard, lay, wait, one for each other's part, wait, copy, release.
fn rounds(shape: &Shape) -> u32 {
    shape.ranks + 5
}

struct Pool<'a> {
    shape: &'a Shape,
    kind: Kind,
    /// Units of the vector.
    len: u64,
    /// The most units of a chunk of it.
    area: u64,
}

impl<'a> Pool<'a> {
    fn new(shape: &'a Shape, kind: Kind) -> Pool<'a> {
        let len = if kind == Kind::ReduceScatter { shape.sends.start(shape.ranks) } else { shape.len };
        Pool { shape, kind, len, area: area(shape, MOST, shape.ranks) }
    }

    fn chunks(&self) -> u32 {
        self.len.div_ceil(self.area) as u32
    }

    fn scatters(&self) -> bool {
        self.kind == Kind::ReduceScatter
    }

    /// The units of a chunk: start and length.
    fn units(&self, chunk: u32) -> (u64, u64) {
        common((0, self.len), (u64::from(chunk) * self.area, self.area))
    }

    /// The units of a chunk that a rank combines.
    fn part(&self, chunk: u32, rank: u32) -> (u64, u64) {
        let (start, len) = self.units(chunk);
        if self.scatters() {
            return common(self.shape.sends.block(rank), (start, len));
        }
        let [first, end] = [rank, rank + 1].map(|part| cut(part, self.shape.ranks, len));
        (start + first, end - first)
    }

    /// Units of a chunk where a rank has laid them.
    fn laid(&self, chunk: u32, rank: u32, (at, len): (u64, u64)) -> Span {
        let area = half(self.shape, chunk) + u64::from(rank) * self.area;
        let skip = at.saturating_sub(self.units(chunk).0);
        Span::new(Buf::Board, (area + skip, len))
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let (me, ranks) = (shape.rank, shape.ranks);
        let (chunk, index) = (index / rounds(shape), index % rounds(shape));
        let others = (1..ranks).map(|distance| shape.after(me, distance));
        let drain = |phase: u32, round: &mut Round| {
            others.for_each(|rank| seen(rank, phase, round));
        };
        let wanted = self.kind != Kind::Reduce || me == shape.root;
        let (all, part) = (self.units(chunk), self.part(chunk, me));
        match index {
            // What was in the half before has been read.
            0 if chunk < 2 => round.push(Step::Settle { chunk }),
            0 => drain(3 * (chunk - 2) + 2, round),
            1 => round.copy(Span::new(Buf::Send, all), self.laid(chunk, me, all)),
            2 => {
                show(3 * chunk, round);
                drain(3 * chunk, round);
            }
            // Nobody else reads this rank's part where this rank has laid it.
            _ if index < ranks + 2 => {
                let from = shape.after(me, index - 2);
                round.reduce(self.laid(chunk, from, part), self.laid(chunk, me, part));
            }
            _ if index == ranks + 2 => {
                round.push(Step::Release { phase: 3 * chunk + 1 });
                if wanted && !self.scatters() {
                    drain(3 * chunk + 1, round);
                }
            }
            _ if index == ranks + 3 && self.scatters() => {
                let into = part.0.saturating_sub(shape.sends.start(me));
                round.copy(self.laid(chunk, me, part), Span::new(Buf::Recv, (into, part.1)));
            }
            _ if index == ranks + 3 => {
                for rank in (0..ranks).filter(|_| wanted) {
                    let part = self.part(chunk, rank);
                    round.copy(self.laid(chunk, rank, part), Span::new(Buf::Recv, part));
                }
            }
            _ => round.push(Step::Release { phase: 3 * chunk + 2 }),
        }
    }
}
