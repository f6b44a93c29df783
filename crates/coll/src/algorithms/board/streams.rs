//! Data that pass through the board as they are: each writer has an area, which the readers copy its pieces out of.

use super::super::no_temp;
use super::{area, chunks_of, common, half, longest, piece, seen, show};
use crate::{Algorithm, Blocks, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "board",
    about: "the root copies into shared memory, all others out of it: large messages on one node",
    needs: Needs::Board,
    reorders: false,
    phases: |shape| Streams::new(shape, Kind::Bcast).phases(),
    chunks: |shape| Streams::new(shape, Kind::Bcast).on_board(),
    temp: no_temp,
    rounds: |shape| Streams::new(shape, Kind::Bcast).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Bcast).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes, most(Kind::Bcast, false));
        Cost {
            hops: 2.0 + (chunks - 2.0).max(0.0) * (case.p() - 1.0),
            copied: case.bytes * (1.0 + 1.0 / chunks),
            waits: chunks,
            ..Cost::default()
        }
    },
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root copies all blocks into shared memory, each rank its own out of it: large blocks on one node",
    phases: |shape| Streams::new(shape, Kind::Scatter).phases(),
    chunks: |shape| Streams::new(shape, Kind::Scatter).on_board(),
    rounds: |shape| Streams::new(shape, Kind::Scatter).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Scatter).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes * (case.p() - 1.0), most(Kind::Scatter, false));
        Cost { hops: 2.0, copied: case.bytes * case.p(), waits: chunks, ..Cost::default() }
    },
    ..BCAST
};

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all copy their blocks into shared memory, the root copies them out: large blocks on one node",
    phases: |shape| Streams::new(shape, Kind::Gather).phases(),
    chunks: |shape| Streams::new(shape, Kind::Gather).on_board(),
    rounds: |shape| Streams::new(shape, Kind::Gather).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Gather).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes * case.p(), most(Kind::Allgather, false));
        Cost {
            hops: 1.0 + chunks * (case.p() - 1.0),
            copied: case.bytes * case.p(),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    about: "all copy their blocks into shared memory, and all out of it: large blocks on one node",
    phases: |shape| Streams::new(shape, Kind::Allgather).phases(),
    chunks: |shape| Streams::new(shape, Kind::Allgather).on_board(),
    rounds: |shape| Streams::new(shape, Kind::Allgather).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Allgather).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes * case.p(), most(Kind::Allgather, false));
        Cost {
            hops: 1.0 + (2.0 * chunks - 2.0).max(1.0) * (case.p() - 1.0),
            copied: case.bytes * (case.p() + 1.0),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm {
    kind: Kind::Allgatherv,
    phases: |shape| Streams::new(shape, Kind::Allgatherv).phases(),
    chunks: |shape| Streams::new(shape, Kind::Allgatherv).on_board(),
    rounds: |shape| Streams::new(shape, Kind::Allgatherv).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Allgatherv).round(index, round),
    ..ALLGATHER
};

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    about: "all copy all blocks into shared memory, each rank its own out of it: middle-sized blocks on one node",
    phases: |shape| Streams::new(shape, Kind::Alltoall).phases(),
    chunks: |shape| Streams::new(shape, Kind::Alltoall).on_board(),
    rounds: |shape| Streams::new(shape, Kind::Alltoall).rounds(),
    round: |shape, index, round| Streams::new(shape, Kind::Alltoall).round(index, round),
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        let chunks = chunks_of(case.bytes * case.p() * others, most(Kind::Alltoall, false));
        Cost {
            // In each chunk a rank meets those whose blocks are in it.
            hops: 1.0 + others + 2.0 * (chunks - 1.0),
            copied: case.bytes * (2.0 * others + 1.0),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

/// The most bytes of a chunk. Where one rank writes for all, they read one piece while it writes the next, in caches;
/// where all write and then read, or each of many ranks reads something else in its turn, fewer chunks are better.
fn most(kind: Kind, crowded: bool) -> u64 {
    match kind {
        // As much as a core's own cache holds.
        Kind::Scatter if crowded => 1 << 20,
        Kind::Bcast | Kind::Scatter => 1 << 19,
        _ => 1 << 21,
    }
}

/// Data that pass through the board: each writer has a stream for its readers (of a scatter, one for each, so that each
/// has something to do in each chunk), of which a chunk is in its area of either half. A chunk goes in pieces, so that it
/// is read while it is written.
struct Streams<'a> {
    shape: &'a Shape,
    kind: Kind,
    /// How many there are, each with an area.
    streams: u32,
    /// Units of an area.
    area: u64,
    /// The most units of a piece.
    piece: u64,
    /// Pieces of a chunk.
    pieces: u32,
    chunks: u32,
}

impl<'a> Streams<'a> {
    fn new(shape: &'a Shape, kind: Kind) -> Streams<'a> {
        let others = u64::from(shape.ranks - 1);
        let (streams, longest) = match kind {
            Kind::Bcast => (1, shape.len),
            Kind::Scatter | Kind::Gather => (shape.ranks.max(2) - 1, shape.len),
            Kind::Allgatherv => (shape.ranks, longest(&shape.recvs, shape.ranks)),
            Kind::Alltoall => (shape.ranks, others * shape.len),
            _ => (shape.ranks, shape.len),
        };
        let room = area(shape, most(kind, shape.crowded), streams);
        let chunks = longest.max(shape.len).div_ceil(room) as u32;
        let area = room.min(longest.next_multiple_of(64)).max(1);
        // Where all write before they read, there is nothing to be read meanwhile.
        let rooted = matches!(kind, Kind::Bcast | Kind::Scatter | Kind::Gather);
        let (piece, pieces) = if rooted { piece(shape, area) } else { (area, 1) };
        Streams { shape, kind, streams, area, piece, pieces, chunks }
    }

    fn on_board(&self) -> Chunks {
        Chunks::new(self.shape, self.chunks, u64::from(self.streams) * self.area)
    }

    /// Phases of one chunk: a piece is written, all have been read.
    fn phases_each(&self) -> u32 {
        self.pieces + 1
    }

    fn phases(&self) -> u32 {
        self.chunks * self.phases_each()
    }

    /// Rounds of one chunk: guard, two for each piece that is written, own data, those of the pieces that are read, release.
    fn rounds_each(&self) -> u32 {
        (2 + self.readings()) * self.pieces + 3
    }

    /// Rounds of a piece that is read: what each other rank has written is copied as soon as it is there, as a root may
    /// wait long for the last one, the root of the call before.
    fn readings(&self) -> u32 {
        match self.kind {
            Kind::Bcast | Kind::Scatter => 2,
            _ => self.shape.ranks,
        }
    }

    /// Who is read from next to `index` others.
    fn source(&self, index: u32) -> Option<u32> {
        let Shape { rank, ranks, root, .. } = *self.shape;
        match self.kind {
            Kind::Bcast | Kind::Scatter => (index == 0).then_some(root),
            _ => (index + 1 < ranks).then(|| self.shape.after(rank, index + 1)),
        }
    }

    fn rounds(&self) -> u32 {
        self.chunks * self.rounds_each()
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
            // Blocks in the order of ranks behind the writer.
            Kind::Alltoall => (u64::from(shape.behind(reader, writer) - 1) * shape.len, shape.len),
            _ => (0, shape.len),
        }
    }

    /// The units of a stream that are in a chunk.
    fn chunk(&self, chunk: u32) -> (u64, u64) {
        (u64::from(chunk) * self.area, self.area)
    }

    /// The same of a piece.
    fn piece(&self, chunk: u32, piece: u32) -> (u64, u64) {
        let (start, len) = self.chunk(chunk);
        common((start + u64::from(piece) * self.piece, self.piece), (start, len))
    }

    /// Where a unit of a writer's stream for a reader is on the board.
    fn place(&self, (writer, reader): (u32, u32), chunk: u32, unit: u64) -> u64 {
        let shape = self.shape;
        let stream = match self.kind {
            Kind::Bcast => 0,
            Kind::Scatter => shape.behind(reader, shape.root) - 1,
            Kind::Gather => shape.behind(writer, shape.root) - 1,
            _ => writer,
        };
        half(shape, chunk) + u64::from(stream) * self.area + unit - self.chunk(chunk).0
    }

    fn round(&self, index: u32, round: &mut Round) {
        let shape = self.shape;
        let (me, pieces) = (shape.rank, self.pieces);
        let (chunk, index) = (index / self.rounds_each(), index % self.rounds_each());
        let phase = |chunk: u32, step: u32| chunk * self.phases_each() + step;
        let others = (1..shape.ranks).map(|distance| shape.after(me, distance));
        let reads = |writer: u32, reader: u32, units| common(self.part(writer, reader), units).1 > 0;
        let read = |units| others.clone().filter(move |&rank| reads(me, rank, units));
        match index {
            // What was in the area before has been copied out.
            0 if chunk >= 2 => {
                let phase = phase(chunk - 2, pieces);
                read(self.chunk(chunk - 2)).for_each(|rank| round.push(Step::Drain { rank, phase }));
            }
            0 if read(self.chunk(chunk)).next().is_some() => round.push(Step::Settle { chunk }),
            0 => {}
            _ if index <= 2 * pieces => {
                let (step, units) = ((index - 1) / 2, self.piece(chunk, (index - 1) / 2));
                match index % 2 {
                    1 => self.write(chunk, units, round),
                    _ if read(units).next().is_some() => show(phase(chunk, step), round),
                    _ => {}
                }
            }
            _ if index == 2 * pieces + 1 => self.own(chunk, round),
            _ if index < self.rounds_each() - 1 => {
                let (index, each) = (index - 2 * pieces - 2, self.readings());
                let (step, reading) = (index / each, index % each);
                let units = self.piece(chunk, step);
                if let Some(rank) = reading.checked_sub(1).and_then(|before| self.source(before)) {
                    self.read(rank, chunk, units, round);
                }
                // In the first chunk each learns what each writer's call is about, also if its own block comes later.
                let meets = |&rank: &u32| {
                    reads(rank, me, units) || self.kind == Kind::Alltoall && (chunk, step) == (0, 0)
                };
                if let Some(rank) = self.source(reading).filter(meets) {
                    seen(rank, phase(chunk, step), round);
                }
            }
            _ => round.push(Step::Release { phase: phase(chunk, pieces) }),
        }
    }

    /// A piece of this rank's goes onto the board.
    fn write(&self, chunk: u32, piece: (u64, u64), round: &mut Round) {
        let shape = self.shape;
        let mut put = |from: Buf, at: u64, reader: u32, stream: u64, units: (u64, u64)| {
            let (start, len) = common(units, piece);
            if len > 0 {
                let into = Span::new(Buf::Board, (self.place((shape.rank, reader), chunk, start), len));
                round.copy(Span::new(from, (at + start - stream, len)), into);
            }
        };
        let mut parts = (1..shape.ranks).map(|distance| {
            let reader = shape.after(shape.rank, distance);
            (reader, self.part(shape.rank, reader))
        });
        match self.kind {
            Kind::Scatter => {
                parts.for_each(|(reader, part)| put(Buf::Send, shape.sends.start(reader), reader, 0, part));
            }
            // Behind the last rank comes the first.
            Kind::Alltoall => {
                let len = parts.map(|(_, (_, len))| len).sum::<u64>();
                let wrap = u64::from(shape.ranks - 1 - shape.rank) * shape.len;
                let first = u64::from(shape.rank + 1) * shape.len;
                put(Buf::Send, first, shape.rank, 0, (0, wrap.min(len)));
                put(Buf::Send, 0, shape.rank, wrap, (wrap, len.saturating_sub(wrap)));
            }
            kind => {
                let from = if kind == Kind::Bcast { Buf::Recv } else { Buf::Send };
                if let Some((reader, part)) = parts.find(|(_, part)| part.1 > 0) {
                    put(from, 0, reader, 0, part);
                }
            }
        }
    }

    /// What this rank takes of a writer's piece.
    fn read(&self, writer: u32, chunk: u32, piece: (u64, u64), round: &mut Round) {
        let part = self.part(writer, self.shape.rank);
        let (start, len) = common(part, piece);
        if len > 0 {
            let block = match self.kind {
                Kind::Bcast | Kind::Scatter => 0,
                _ => self.shape.recvs.start(writer),
            };
            let from = Span::new(Buf::Board, (self.place((writer, self.shape.rank), chunk, start), len));
            round.copy(from, Span::new(Buf::Recv, (block + start - part.0, len)));
        }
    }

    /// A rank's data for itself.
    fn own(&self, chunk: u32, round: &mut Round) {
        let shape = self.shape;
        let own = |blocks: &Blocks, buf| Span::new(buf, blocks.block(shape.rank));
        match self.kind {
            _ if chunk > 0 => {}
            Kind::Bcast => {}
            Kind::Scatter | Kind::Gather if shape.rank != shape.root => {}
            Kind::Scatter => round.copy(own(&shape.sends, Buf::Send), shape.whole(Buf::Recv)),
            Kind::Alltoall => round.copy(own(&shape.sends, Buf::Send), own(&shape.recvs, Buf::Recv)),
            _ => round.copy(shape.whole(Buf::Send), own(&shape.recvs, Buf::Recv)),
        }
    }
}
