//! Ring reductions on the shared scratch: a vector is cut into parts, and each part is combined by one rank after the
//! other. A part starts at one rank and goes around, so that every element is combined in one way only, and that each
//! rank adds its own vector, which no other rank reads, to what the rank before it has just written.

use super::{announce, area_for, await_announced, chunk, chunks_of, common, cut, half, longest};
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[&REDUCE, &ALLREDUCE, &REDUCE_SCATTER, &REDUCE_SCATTER_BLOCK];

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "scratch_ring",
    about: "all add their parts up in shared memory in turn, then copy the sum: large vectors on one node",
    needs: Needs::SharedScratch,
    reorders: true,
    phases: |shape| chunks(shape) * (shape.ranks + 1),
    chunks: scratch_chunks,
    rounds: |shape| chunks(shape) * chunk_rounds(shape),
    round: |shape, index, round| Ring { shape }.round(index, round),
    cost: |case: &Case| Cost {
        transfers: 1.0 + chunks_of(case.bytes, most_bytes(case.ranks)) * 2.0 * (case.p() - 1.0),
        copied: (1.0 + 1.0 / case.p()) * case.bytes,
        ..ring_cost(case)
    },
    ..Algorithm::MESSAGES
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all add their parts up in shared memory in turn, the root copies the sum: large vectors on one node",
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "all add the blocks up in shared memory in turn, each copies its own: large blocks on one node",
    cost: |case: &Case| Cost {
        transfers: 1.0 + chunks_of(case.bytes, most_bytes(case.ranks)) * (case.p() - 1.0),
        copied: 2.0 / case.p() * case.bytes,
        ..ring_cost(case)
    },
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER };

/// The most bytes of a chunk: 256 KiB for each rank, so that the part that a rank works on stays in its cache.
fn most_bytes(ranks: u32) -> u64 {
    u64::from(ranks) << 18
}

fn ring_cost(case: &Case) -> Cost {
    let share = (case.p() - 1.0) / case.p();
    Cost {
        reduced: share * case.bytes,
        waits: (case.p() + 1.0) * chunks_of(case.bytes, most_bytes(case.ranks)),
        ..Cost::default()
    }
}

/// Chunks of a vector, or of blocks, each of which has an area of the half.
fn chunks(shape: &Shape) -> u32 {
    let most = most_bytes(shape.ranks);
    match shape.kind.scatters_result() {
        true => longest(&shape.sends, shape.ranks).div_ceil(block_area(shape)) as u32,
        false => shape.len.div_ceil(chunk(shape, most)) as u32,
    }
}

/// Units of the area of a block.
fn block_area(shape: &Shape) -> u64 {
    area_for(shape, most_bytes(shape.ranks), shape.ranks, longest(&shape.sends, shape.ranks))
}

/// The chunks on the shared scratch.
fn scratch_chunks(shape: &Shape) -> Chunks {
    let units = match shape.kind.scatters_result() {
        true => u64::from(shape.ranks) * block_area(shape),
        false => shape.len,
    };
    Chunks::combined(shape, chunks(shape), units)
}

/// Rounds of one chunk: wait for reuse, two for each part, copy the own part, acknowledge and wait, copy the others, acknowledge.
fn chunk_rounds(shape: &Shape) -> u32 {
    2 * shape.ranks + 4
}

/// One collective by this algorithm: a vector, or blocks, combined on the shared scratch.
struct Ring<'a> {
    shape: &'a Shape,
}

impl Ring<'_> {
    /// Parts `first..end` of a chunk, in a buffer. If the parts are scattered it is one part, and Recv holds no other.
    fn parts(&self, chunk: u32, buf: Buf, (first, end): (u32, u32)) -> Span {
        let shape = self.shape;
        let half = half(shape, chunk);
        if self.shape.kind.scatters_result() {
            let area = block_area(shape);
            let (start, len) = shape.sends.block(first);
            let (at, len) = common((0, len), (u64::from(chunk) * area, area));
            return match buf {
                _ if len == 0 => Span::new(buf, (0, 0)),
                Buf::SharedScratch => Span::new(buf, (half + u64::from(first) * area, len)),
                Buf::Recv => Span::new(buf, (at, len)),
                _ => Span::new(buf, (start + at, len)),
            };
        }
        let edge = |chunk: u32| cut(chunk, chunks(shape), shape.len);
        let (start, len) = (edge(chunk), edge(chunk + 1) - edge(chunk));
        let [first, end] = [first, end].map(|part| cut(part, shape.ranks, len));
        Span::new(buf, (if buf == Buf::SharedScratch { half } else { start } + first, end - first))
    }

    /// The parts that a rank copies off the shared scratch.
    fn wanted(&self, rank: u32) -> (u32, u32) {
        let Shape { kind, root, ranks, .. } = *self.shape;
        match kind {
            Kind::Reduce if rank != root => (0, 0),
            _ if kind.scatters_result() => (rank, rank + 1),
            _ => (0, ranks),
        }
    }

    /// Whether a rank copies a part off the shared scratch.
    fn wants(&self, rank: u32, part: u32) -> bool {
        (self.wanted(rank).0..self.wanted(rank).1).contains(&part)
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let (me, ranks) = (shape.rank, shape.ranks);
        let (chunk, index) = (index / chunk_rounds(shape), index % chunk_rounds(shape));
        let phase = |step: u32| chunk * (ranks + 1) + step;
        let others = (1..ranks).map(|distance| shape.after(me, distance));
        let before = shape.before(me, 1);
        // In step s this rank works on the part that the rank before it worked on in step s - 1; in the last
        // step on its own part.
        let part = |buf: Buf, step: u32| {
            let part = shape.before(me, step + 1);
            self.parts(chunk, buf, (part, part + 1))
        };
        match index {
            0 if chunk < 2 => round.push(Step::WaitReuse { chunk }),
            // This rank writes over the part of the rank before it, so all ranks that read that part must have copied
            // it.
            0 => {
                let phase = (chunk - 2) * (ranks + 1) + ranks;
                let reads = |&rank: &u32| self.wants(rank, before);
                others.filter(reads).for_each(|rank| round.push(Step::WaitAck { rank, phase }));
            }
            1 => round.copy(part(Buf::Send, 0), part(Buf::SharedScratch, 0)),
            // Before others read this rank's part: what two cores copy at a time comes slowly to either, and on two ranks the one
            // that reads a part last is the one that writes there next, which is quick where a line is the writer's own.
            _ if index == 2 * ranks && self.wants(me, me) => {
                let [sum, into] =
                    [Buf::SharedScratch, Buf::Recv].map(|buf| self.parts(chunk, buf, (me, me + 1)));
                round.copy(sum, into);
            }
            _ if index == 2 * ranks => {}
            _ if index == 2 * ranks + 1 => {
                round.push(Step::Ack { phase: phase(ranks - 1) });
                if !self.shape.kind.scatters_result() && self.wanted(me) != (0, 0) {
                    others.for_each(|rank| round.push(Step::WaitAck { rank, phase: phase(ranks - 1) }));
                }
            }
            _ if index == 2 * ranks + 2 => {
                let (first, end) = self.wanted(me);
                let others = [(first, end.min(me)), (first.max(me + 1), end)];
                for others in others.into_iter().filter(|(first, end)| first < end) {
                    let [sums, into] =
                        [Buf::SharedScratch, Buf::Recv].map(|buf| self.parts(chunk, buf, others));
                    round.copy(sums, into);
                }
            }
            _ if index == 2 * ranks + 3 => round.push(Step::Ack { phase: phase(ranks) }),
            _ if index.is_multiple_of(2) => {
                let done = phase(index / 2 - 1);
                announce(done, round);
                await_announced(before, done, round);
            }
            _ => round.reduce(part(Buf::Send, index / 2), part(Buf::SharedScratch, index / 2)),
        }
    }
}
