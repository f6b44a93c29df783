//! Data that pass through the board as they are: each writer has an area, which the readers copy its pieces out of.

use super::super::no_temp;
use super::{area, chunks_of, common, half, longest};
use crate::{Algorithm, Blocks, Buf, Case, Cost, Kind, Needs, Round, Shape, Span, Step};

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
        let chunks = chunks_of(case.bytes, most(Kind::Bcast, case.ranks));
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
        let chunks = chunks_of(case.bytes * (case.p() - 1.0), most(Kind::Scatter, case.ranks));
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
        let chunks = chunks_of(case.bytes * case.p(), most(Kind::Allgather, case.ranks));
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
        let chunks = chunks_of(case.bytes * case.p(), most(Kind::Allgather, case.ranks));
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
        let chunks = chunks_of(case.bytes * case.p() * others, most(Kind::Alltoall, case.ranks));
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

/// The most bytes of a chunk. Where one rank writes for all, they read one piece while it writes the next, in caches;
/// where all write and then read, fewer chunks are better.
fn most(kind: Kind, ranks: u32) -> u64 {
    match kind {
        Kind::Bcast | Kind::Scatter => (u64::from(ranks) << 17).min(1 << 19),
        _ => u64::MAX,
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
        let room = area(shape, most(kind, shape.ranks), writers);
        let chunks = longest.max(shape.len).div_ceil(room) as u32;
        Streams { shape, kind, area: room.min(longest.next_multiple_of(64)), chunks }
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
        let area = match self.kind {
            Kind::Bcast | Kind::Scatter => 0,
            _ => u64::from(writer) * self.area,
        };
        half(self.shape, chunk) + area + unit - self.piece(chunk).0
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
