//! Forms over the board, memory that the ranks of a node share.
//!
//! Vectors are combined there part by part, each by one rank after the other: a part starts at one rank and goes
//! around, so that every element is combined in one way only, and ranks that take turns on few cores get far in
//! each turn. Other data stream through: each writer has an area, which the readers copy its pieces out of.
//!
//! Long data go in chunks, through the two halves of the board in turn, so that one half is filled while the
//! other is read.

use super::no_temp;
use crate::{Algorithm, Blocks, Buf, Case, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "board",
    about: "all add their parts up in shared memory in turn, then copy the sum: large vectors on one node",
    needs: Needs::Board,
    reorders: true,
    phases: |shape| turn_chunks(shape) * (shape.ranks + 1),
    temp: no_temp,
    rounds: |shape| turn_chunks(shape) * turn_rounds(shape),
    round: |shape, index, round| Turns::new(shape, Kind::Allreduce).round(index, round),
    cost: |case: &Case| Cost {
        hops: 1.0 + chunks_of(Kind::Allreduce, case, case.bytes) * 2.0 * (case.p() - 1.0),
        copied: (1.0 + 1.0 / case.p()) * case.bytes,
        ..turns_cost(case)
    },
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all add their parts up in shared memory in turn, the root copies the sum: large vectors on one node",
    round: |shape, index, round| Turns::new(shape, Kind::Reduce).round(index, round),
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "all add the blocks up in shared memory in turn, each copies its own: large blocks on one node",
    phases: |shape| block_chunks(shape) * (shape.ranks + 1),
    rounds: |shape| block_chunks(shape) * turn_rounds(shape),
    round: |shape, index, round| Turns::new(shape, Kind::ReduceScatter).round(index, round),
    cost: |case: &Case| Cost {
        hops: 1.0 + chunks_of(Kind::Allreduce, case, case.bytes) * (case.p() - 1.0),
        copied: 2.0 / case.p() * case.bytes,
        ..turns_cost(case)
    },
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER };

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "board",
    about: "the root copies into shared memory, all others out of it: large messages on one node",
    needs: Needs::Board,
    reorders: false,
    phases: |shape| 2 * Streams::new(shape, Kind::Bcast).chunks,
    temp: no_temp,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Bcast).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Bcast).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(Kind::Bcast, case, case.bytes);
        Cost {
            hops: 2.0 + (chunks - 2.0).max(0.0) * (case.p() - 1.0),
            copied: case.bytes * (1.0 + 1.0 / chunks),
            waits: 1.0 + chunks,
            ..Cost::default()
        }
    },
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root copies all blocks into shared memory, each rank its own out of it: large blocks on one node",
    phases: |shape| 2 * Streams::new(shape, Kind::Scatter).chunks,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Scatter).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Scatter).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(Kind::Scatter, case, case.bytes * (case.p() - 1.0));
        Cost { hops: 2.0, copied: case.bytes * case.p(), waits: 1.0 + chunks, ..Cost::default() }
    },
    ..BCAST
};

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all copy their blocks into shared memory, the root copies them out: large blocks on one node",
    phases: |shape| 2 * Streams::new(shape, Kind::Gather).chunks,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Gather).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Gather).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(Kind::Allgather, case, case.bytes * case.p());
        Cost {
            hops: 1.0 + chunks * (case.p() - 1.0),
            copied: case.bytes * case.p(),
            waits: 1.0 + chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    about: "all copy their blocks into shared memory, and all out of it: large blocks on one node",
    phases: |shape| 2 * Streams::new(shape, Kind::Allgather).chunks,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Allgather).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Allgather).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(Kind::Allgather, case, case.bytes * case.p());
        Cost {
            hops: 1.0 + (2.0 * chunks - 2.0).max(1.0) * (case.p() - 1.0),
            copied: case.bytes * (case.p() + 1.0),
            waits: 1.0 + chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm {
    kind: Kind::Allgatherv,
    phases: |shape| 2 * Streams::new(shape, Kind::Allgatherv).chunks,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Allgatherv).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Allgatherv).round(index, round),
    ..ALLGATHER
};

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    about: "all copy all blocks into shared memory, each rank its own out of it: middle-sized blocks on one node",
    phases: |shape| 2 * Streams::new(shape, Kind::Alltoall).chunks,
    rounds: |shape| STREAM_ROUNDS * Streams::new(shape, Kind::Alltoall).chunks,
    round: |shape, index, round| Streams::new(shape, Kind::Alltoall).round(index, round),
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        let chunks = chunks_of(Kind::Alltoall, case, case.bytes * case.p() * others);
        Cost {
            // In each chunk a rank meets those whose blocks are in it.
            hops: 1.0 + others + 2.0 * (chunks - 1.0),
            copied: case.bytes * (2.0 * others + 1.0),
            waits: 1.0 + chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

/// The most bytes of a chunk, if the board is large enough. What a rank combines, or one rank writes for all, should
/// stay in the caches of the cores; where all write and read at once, fewer chunks are better.
fn most_bytes(kind: Kind, ranks: u32) -> u64 {
    let ranks = u64::from(ranks);
    match kind {
        _ if kind.reduces() => ranks << 18,
        Kind::Bcast | Kind::Scatter => (ranks << 17).min(1 << 19),
        _ => u64::MAX,
    }
}

/// The most units of a chunk.
fn most_units(shape: &Shape, kind: Kind) -> u64 {
    (shape.board / 2).min(most_bytes(kind, shape.ranks) / shape.unit.max(1)).max(1)
}

/// How many chunks so many bytes take, with the usual board.
fn chunks_of(kind: Kind, case: &Case, bytes: f64) -> f64 {
    const HALF: u64 = 2 << 20;
    (bytes / most_bytes(kind, case.ranks).min(HALF) as f64).ceil().max(1.0)
}

fn turns_cost(case: &Case) -> Cost {
    let share = (case.p() - 1.0) / case.p();
    Cost {
        reduced: share * case.bytes,
        waits: 3.0 * chunks_of(Kind::Allreduce, case, case.bytes),
        ..Cost::default()
    }
}

fn turn_chunks(shape: &Shape) -> u32 {
    shape.len.div_ceil(most_units(shape, Kind::Allreduce)) as u32
}

/// The same for blocks, of which each has a part of the half.
fn block_chunks(shape: &Shape) -> u32 {
    longest(&shape.sends, shape.ranks).div_ceil(area(shape, Kind::ReduceScatter, shape.ranks)) as u32
}

/// Rounds of one chunk: a guard, two for each part, copy, release.
fn turn_rounds(shape: &Shape) -> u32 {
    2 * shape.ranks + 3
}

/// The most units that each of `number` has of a chunk.
fn area(shape: &Shape, kind: Kind, number: u32) -> u64 {
    let units = most_units(shape, kind) / u64::from(number);
    // Areas begin with cache lines.
    let line = (64 / shape.unit).max(1);
    if units < line { units.max(1) } else { units - units % line }
}

fn longest(blocks: &Blocks, ranks: u32) -> u64 {
    match blocks {
        Blocks::Even(len) => *len,
        Blocks::Starts(_) => (0..ranks).map(|rank| blocks.block(rank).1).max().unwrap_or(0),
    }
}

/// What two ranges have in common: start and length.
fn common((a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> (u64, u64) {
    let start = a.max(b);
    (start, (a + a_len).min(b + b_len).saturating_sub(start))
}

/// A vector, or blocks, combined on the board.
struct Turns<'a> {
    shape: &'a Shape,
    kind: Kind,
}

impl<'a> Turns<'a> {
    fn new(shape: &'a Shape, kind: Kind) -> Turns<'a> {
        Turns { shape, kind }
    }

    /// True if each rank gets one part.
    fn scatters(&self) -> bool {
        self.kind == Kind::ReduceScatter
    }

    /// Parts `first..end` of a chunk, in a buffer. Of Recv, if the parts are scattered, it has only one.
    fn parts(&self, chunk: u32, buf: Buf, (first, end): (u32, u32)) -> Span {
        let shape = self.shape;
        let half = u64::from(chunk % 2) * (shape.board / 2);
        if self.scatters() {
            let area = area(shape, self.kind, shape.ranks);
            let (start, len) = shape.sends.block(first);
            let (at, len) = common((0, len), (u64::from(chunk) * area, area));
            return match buf {
                _ if len == 0 => Span::new(buf, (0, 0)),
                Buf::Board => Span::new(buf, (half + u64::from(first) * area, len)),
                Buf::Recv => Span::new(buf, (at, len)),
                _ => Span::new(buf, (start + at, len)),
            };
        }
        let cut = |i: u32, n: u32, len: u64| (u128::from(len) * u128::from(i) / u128::from(n)) as u64;
        let edge = |chunk: u32| cut(chunk, turn_chunks(shape), shape.len);
        let (start, len) = (edge(chunk), edge(chunk + 1) - edge(chunk));
        let [first, end] = [first, end].map(|part| cut(part, shape.ranks, len));
        Span::new(buf, (if buf == Buf::Board { half } else { start } + first, end - first))
    }

    /// The parts that a rank copies out.
    fn wanted(&self, rank: u32) -> (u32, u32) {
        match self.kind {
            Kind::Reduce if rank != self.shape.root => (0, 0),
            Kind::ReduceScatter => (rank, rank + 1),
            _ => (0, self.shape.ranks),
        }
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let (me, ranks) = (shape.rank, shape.ranks);
        let (chunk, index) = (index / turn_rounds(shape), index % turn_rounds(shape));
        let phase = |step: u32| chunk * (ranks + 1) + step;
        let others = (1..ranks).map(|distance| shape.after(me, distance));
        let behind = shape.before(me, 1);
        // In step s this rank works on the part that the one before it worked on in step s - 1; in the last
        // one on its own.
        let part = |buf: Buf, step: u32| {
            let part = shape.before(me, step + 1);
            self.parts(chunk, buf, (part, part + 1))
        };
        match index {
            0 if chunk == 0 => round.push(Step::Settle),
            // What this rank is about to write over, the part of the one behind it, has been copied out.
            0 => {
                if let Some(before) = chunk.checked_sub(2) {
                    let phase = before * (ranks + 1) + ranks;
                    let reads = |&rank: &u32| (self.wanted(rank).0..self.wanted(rank).1).contains(&behind);
                    others.filter(reads).for_each(|rank| round.push(Step::Drain { rank, phase }));
                }
            }
            1 => round.copy(part(Buf::Send, 0), part(Buf::Board, 0)),
            _ if index == 2 * ranks => {
                round.push(Step::Release { phase: phase(ranks - 1) });
                if !self.scatters() && self.wanted(me) != (0, 0) {
                    others.for_each(|rank| round.push(Step::Drain { rank, phase: phase(ranks - 1) }));
                }
            }
            _ if index == 2 * ranks + 1 => {
                let wanted = self.wanted(me);
                round.copy(self.parts(chunk, Buf::Board, wanted), self.parts(chunk, Buf::Recv, wanted));
            }
            _ if index == 2 * ranks + 2 => round.push(Step::Release { phase: phase(ranks) }),
            _ if index.is_multiple_of(2) => {
                let done = phase(index / 2 - 1);
                round.push(Step::Release { phase: done });
                round.push(Step::Drain { rank: behind, phase: done });
            }
            _ => round.reduce(part(Buf::Send, index / 2), part(Buf::Board, index / 2)),
        }
    }
}

/// Rounds of one chunk: guard, write, wait, read, release.
const STREAM_ROUNDS: u32 = 5;

/// Data that pass through the board: each writer has a stream for its readers, of which a piece is in its area of
/// either half.
struct Streams<'a> {
    shape: &'a Shape,
    kind: Kind,
    /// Units of an area.
    area: u64,
    chunks: u32,
}

impl<'a> Streams<'a> {
    fn new(shape: &'a Shape, kind: Kind) -> Streams<'a> {
        let others = u64::from(shape.ranks - 1);
        let (writers, longest) = match kind {
            Kind::Bcast => (1, shape.len),
            Kind::Scatter => (1, others * shape.len),
            Kind::Allgatherv => (shape.ranks, longest(&shape.recvs, shape.ranks)),
            Kind::Alltoall => (shape.ranks, others * shape.len),
            _ => (shape.ranks, shape.len),
        };
        let most = area(shape, kind, writers);
        let chunks = longest.max(shape.len).div_ceil(most) as u32;
        Streams { shape, kind, area: most.min(longest.next_multiple_of(64)), chunks }
    }

    /// To every reader something else: blocks in the order of ranks behind the writer.
    fn separate(&self) -> bool {
        matches!(self.kind, Kind::Scatter | Kind::Alltoall)
    }

    /// The units of a writer's stream that a reader takes.
    fn part(&self, writer: u32, reader: u32) -> (u64, u64) {
        let shape = self.shape;
        let writes = match self.kind {
            Kind::Bcast | Kind::Scatter => writer == shape.root,
            Kind::Gather => reader == shape.root,
            _ => true,
        };
        match self.kind {
            _ if !writes || writer == reader => (0, 0),
            Kind::Allgatherv => (0, shape.recvs.block(writer).1),
            _ if self.separate() => (u64::from(shape.behind(reader, writer) - 1) * shape.len, shape.len),
            _ => (0, shape.len),
        }
    }

    /// Where a chunk's piece lies in a stream.
    fn piece(&self, chunk: u32) -> (u64, u64) {
        (u64::from(chunk) * self.area, self.area)
    }

    /// Where a unit of a writer's stream is on the board.
    fn on_board(&self, writer: u32, chunk: u32, unit: u64) -> u64 {
        let half = u64::from(chunk % 2) * (self.shape.board / 2);
        let area = match self.kind {
            Kind::Bcast | Kind::Scatter => 0,
            _ => u64::from(writer) * self.area,
        };
        half + area + unit - self.piece(chunk).0
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let me = shape.rank;
        let (chunk, index) = (index / STREAM_ROUNDS, index % STREAM_ROUNDS);
        let others = (1..shape.ranks).map(|distance| shape.after(me, distance));
        let reads =
            |writer: u32, reader: u32, chunk: u32| common(self.part(writer, reader), self.piece(chunk)).1 > 0;
        match index {
            0 if chunk == 0 => round.push(Step::Settle),
            // What was in the area before has been copied out.
            0 => {
                if let Some(before) = chunk.checked_sub(2) {
                    let readers = others.filter(|&rank| reads(me, rank, before));
                    readers.for_each(|rank| round.push(Step::Drain { rank, phase: 2 * before + 1 }));
                }
            }
            1 => self.write(chunk, round),
            2 => {
                round.push(Step::Release { phase: 2 * chunk });
                if chunk == 0 {
                    self.own(round);
                }
                let writers = others.filter(|&rank| reads(rank, me, chunk));
                writers.for_each(|rank| round.push(Step::Drain { rank, phase: 2 * chunk }));
            }
            3 => others.for_each(|rank| self.read(rank, chunk, round)),
            _ => round.push(Step::Release { phase: 2 * chunk + 1 }),
        }
    }

    /// This rank's piece goes onto the board.
    fn write(&self, chunk: u32, round: &mut Round) {
        let shape = self.shape;
        let mut put = |from: Buf, at: u64, stream: u64, units: (u64, u64)| {
            let (start, len) = common(units, self.piece(chunk));
            if len > 0 {
                let into = Span::new(Buf::Board, (self.on_board(shape.rank, chunk, start), len));
                round.copy(Span::new(from, (at + start - stream, len)), into);
            }
        };
        match (1..shape.ranks).map(|distance| self.part(shape.rank, shape.after(shape.rank, distance))) {
            // Behind the last rank comes the first.
            parts if self.separate() => {
                let len = parts.map(|(_, len)| len).sum::<u64>();
                let wrap = u64::from(shape.ranks - 1 - shape.rank) * shape.len;
                let first = u64::from(shape.rank + 1) * shape.len;
                put(Buf::Send, first, 0, (0, wrap.min(len)));
                put(Buf::Send, 0, wrap, (wrap, len.saturating_sub(wrap)));
            }
            mut parts => {
                let part = parts.find(|part| part.1 > 0).unwrap_or((0, 0));
                put(if self.kind == Kind::Bcast { Buf::Recv } else { Buf::Send }, 0, 0, part);
            }
        }
    }

    /// What this rank takes of a writer's piece.
    fn read(&self, writer: u32, chunk: u32, round: &mut Round) {
        let part = self.part(writer, self.shape.rank);
        let (start, len) = common(part, self.piece(chunk));
        if len > 0 {
            let block = match self.kind {
                Kind::Bcast | Kind::Scatter => 0,
                _ => self.shape.recvs.start(writer),
            };
            let from = Span::new(Buf::Board, (self.on_board(writer, chunk, start), len));
            round.copy(from, Span::new(Buf::Recv, (block + start - part.0, len)));
        }
    }

    /// A rank's data for itself.
    fn own(&self, round: &mut Round) {
        let shape = self.shape;
        let own = |blocks: &Blocks, buf| Span::new(buf, blocks.block(shape.rank));
        match self.kind {
            Kind::Bcast => {}
            Kind::Scatter | Kind::Gather if shape.rank != shape.root => {}
            Kind::Scatter => round.copy(own(&shape.sends, Buf::Send), shape.whole(Buf::Recv)),
            Kind::Alltoall => round.copy(own(&shape.sends, Buf::Send), own(&shape.recvs, Buf::Recv)),
            _ => round.copy(shape.whole(Buf::Send), own(&shape.recvs, Buf::Recv)),
        }
    }
}
