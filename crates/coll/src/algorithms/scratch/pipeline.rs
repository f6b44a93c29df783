//! Pipelines through the shared scratch, for collectives that only move data: each writer copies its data into an area
//! of its own in pieces, and readers copy each piece out while the next one is written.

use super::{announce, area, area_for, await_announced, chunks_of, common, half, longest, piece};
use crate::algorithms::own;
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[&BCAST, &GATHER, &SCATTER, &ALLGATHER, &ALLGATHERV, &ALLTOALL];

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "scratch_pipeline",
    about: "the root copies into shared memory, all others out of it: large messages on one node",
    needs: Needs::SharedScratch,
    phases: |shape| Pipeline::new(shape).phases(),
    chunks: |shape| Pipeline::new(shape).scratch_chunks(),
    rounds: |shape| Pipeline::new(shape).rounds(),
    round: |shape, index, round| Pipeline::new(shape).round(index, round),
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes, most_bytes(Kind::Bcast, false));
        Cost {
            transfers: 2.0 + (chunks - 2.0).max(0.0) * (case.p() - 1.0),
            copied: case.bytes * (1.0 + 1.0 / chunks),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root copies all blocks into shared memory, each rank its own out of it: large blocks on one node",
    cost: |case: &Case| {
        let given = case.bytes * (case.p() - 1.0);
        let chunks = chunks_of(given, most_bytes(Kind::Scatter, false));
        let most = most_bytes(Kind::Scatter, true) as f64;
        let rewritten = given * part_rewritten(given / most, given <= most);
        Cost { transfers: 2.0, copied: case.bytes * case.p(), rewritten, waits: chunks, ..Cost::default() }
    },
    ..BCAST
};

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all copy their blocks into shared memory, the root copies them out: large blocks on one node",
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes * case.p(), most_bytes(Kind::Allgather, false));
        Cost {
            transfers: 1.0 + chunks * (case.p() - 1.0),
            copied: case.bytes * (case.p() - 1.0),
            copied_by_each: case.bytes,
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    about: "all copy their blocks into shared memory, and all out of it: large blocks on one node",
    cost: |case: &Case| {
        let chunks = chunks_of(case.bytes * case.p(), most_bytes(Kind::Allgather, false));
        Cost {
            transfers: 1.0 + (2.0 * chunks - 2.0).max(1.0) * (case.p() - 1.0),
            copied: case.bytes * (case.p() + 1.0),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    about: "all copy all blocks into shared memory, each rank its own out of it: middle-sized blocks on one node",
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        let given = case.bytes * others;
        let chunks = match given * case.p() <= case.half {
            true => 1.0,
            false => chunks_of(given * case.p(), most_bytes(Kind::Alltoall, false)),
        };
        let most = most_bytes(Kind::Alltoall, false) as f64;
        Cost {
            rewritten: given * part_rewritten(given * case.p() / most, chunks == 1.0),
            // In each chunk a rank waits for those ranks whose blocks are in it.
            transfers: 1.0 + others + 2.0 * (chunks - 1.0),
            copied: case.bytes * (2.0 * others + 1.0),
            waits: chunks,
            ..Cost::default()
        }
    },
    ..BCAST
};

/// Which part of what is written lies over what ranks on other cores have read last, where all of it is so many times what the caches keep. Of
/// several chunks that is all. One goes by areas in which each rank writes what it has read itself; but the longer it is, the less of it is
/// still in its cache, which comes to the same in part: 4 and 8 ranks took 118 and 850 us for an alltoall of 256 KiB, for which the copies
/// alone make 98 and 400.
fn part_rewritten(times: f64, one_chunk: bool) -> f64 {
    if one_chunk { (times / 4.0).min(0.75) } else { 1.0 }
}

/// The most bytes of a chunk. Where one rank writes for all, the others read one piece while it writes the next, and
/// the data stay in caches. Where all ranks write and then read, or ranks share cores and each reads another block,
/// fewer chunks are better.
fn most_bytes(kind: Kind, crowded: bool) -> u64 {
    match kind {
        // About as much as a core's own cache holds.
        Kind::Scatter if crowded => 1 << 20,
        Kind::Bcast | Kind::Scatter => 1 << 19,
        _ => 1 << 21,
    }
}

/// One collective by this algorithm. The data that a writer has for its readers are a *stream*; in a scatter the root
/// has a stream for each reader, so that each reader has something to do in each chunk. Each stream has an area in
/// either half of the shared scratch, which holds one chunk of it. A chunk goes in pieces, so that it is read while it
/// is written.
struct Pipeline<'a> {
    shape: &'a Shape,
    /// The number of streams.
    streams: u32,
    /// Units of an area.
    area: u64,
    /// The most units of a piece.
    piece: u64,
    /// Pieces of a chunk.
    pieces: u32,
    chunks: u32,
    /// Of one chunk in which all give to all: units of the area that a writer has for each reader, which they change with each other from call
    /// to call.
    cell: Option<u64>,
}

impl<'a> Pipeline<'a> {
    fn new(shape: &'a Shape) -> Pipeline<'a> {
        let kind = shape.kind;
        let others = u64::from(shape.ranks - 1);
        let (streams, longest) = match kind {
            Kind::Bcast => (1, shape.len),
            Kind::Scatter | Kind::Gather => (shape.ranks.max(2) - 1, shape.len),
            Kind::Allgatherv => (shape.ranks, longest(&shape.recvs, shape.ranks)),
            Kind::Alltoall => (shape.ranks, others * shape.len),
            _ => (shape.ranks, shape.len),
        };
        let cell = shape.len.next_multiple_of(64);
        if kind == Kind::Alltoall
            && longest > 0
            && !Chunks::ranks_tell(shape)
            && Chunks::all_to_all(shape, cell, false).is_some()
        {
            let (area, piece, cell) = (longest, longest, Some(cell));
            return Pipeline { shape, streams, area, piece, pieces: 1, chunks: 1, cell };
        }
        let room = area(shape, most_bytes(kind, shape.crowded), streams);
        let chunks = longest.max(shape.len).div_ceil(room) as u32;
        let area = area_for(shape, most_bytes(kind, shape.crowded), streams, longest);
        // Where all ranks write before they read, nobody reads one piece while another is written.
        let rooted = matches!(kind, Kind::Bcast | Kind::Scatter | Kind::Gather);
        let (piece, pieces) = if rooted { piece(shape, area, 2) } else { (area, 1) };
        Pipeline { shape, streams, area, piece, pieces, chunks, cell: None }
    }

    /// The chunks on the shared scratch.
    fn scratch_chunks(&self) -> Chunks {
        if self.is_exchange() {
            return Chunks::exchanged(self.shape, self.area);
        }
        if let Some(cells) = self.cell.and_then(|cell| Chunks::all_to_all(self.shape, cell, false)) {
            return cells;
        }
        let chunks = Chunks::new(self.shape, self.chunks, u64::from(self.streams) * self.area);
        match self.shape.kind {
            Kind::Bcast => chunks.rooted(self.shape, true),
            kind @ (Kind::Scatter | Kind::Gather) => {
                chunks.rooted_blocks(self.shape, kind == Kind::Scatter, self.area)
            }
            _ => chunks,
        }
    }

    /// Whether two ranks each write once, and read what the other one has written.
    fn is_exchange(&self) -> bool {
        let exchanges = matches!(self.shape.kind, Kind::Allgather | Kind::Allgatherv | Kind::Alltoall);
        exchanges && self.chunks == 1 && Chunks::ranks_tell(self.shape)
    }

    /// Phases of one chunk: one for each piece that is announced, and one when all have been read.
    fn phases_each(&self) -> u32 {
        self.pieces + 1
    }

    fn phases(&self) -> u32 {
        self.chunks * self.phases_each()
    }

    /// Rounds of one chunk: wait for reuse, two for each piece that is written, the copy of this rank's own data, the
    /// rounds of the pieces that are read, acknowledge.
    fn rounds_each(&self) -> u32 {
        (2 + self.read_rounds()) * self.pieces + 3
    }

    /// Rounds of a piece that is read. What each other rank has written is copied as soon as it is there, in rounds of
    /// its own: a root may wait long for the last rank, which was the root of the call before.
    fn read_rounds(&self) -> u32 {
        match self.shape.kind {
            Kind::Bcast | Kind::Scatter => 2,
            _ => self.shape.ranks,
        }
    }

    /// The rank that is read from after `index` other ones.
    fn source(&self, index: u32) -> Option<u32> {
        let Shape { rank, ranks, root, .. } = *self.shape;
        match self.shape.kind {
            Kind::Bcast | Kind::Scatter => (index == 0).then_some(root),
            _ => (index + 1 < ranks).then(|| self.shape.after(rank, index + 1)),
        }
    }

    fn rounds(&self) -> u32 {
        self.chunks * self.rounds_each()
    }

    /// Start and length of the units of a writer's stream that are for a reader.
    fn part(&self, writer: u32, reader: u32) -> (u64, u64) {
        let shape = self.shape;
        let writes = match self.shape.kind {
            Kind::Bcast | Kind::Scatter => writer == shape.root,
            Kind::Gather => reader == shape.root,
            _ => true,
        };
        match self.shape.kind {
            _ if !writes || writer == reader => (0, 0),
            Kind::Allgatherv => (0, shape.recvs.block(writer).1),
            // Blocks in the order of ranks behind the writer.
            Kind::Alltoall => (u64::from(shape.behind(reader, writer) - 1) * shape.len, shape.len),
            _ => (0, shape.len),
        }
    }

    /// Start and length of the units of a stream that are in a chunk.
    fn chunk(&self, chunk: u32) -> (u64, u64) {
        (u64::from(chunk) * self.area, self.area)
    }

    /// Start and length of the units of a stream that are in a piece of a chunk.
    fn piece(&self, chunk: u32, piece: u32) -> (u64, u64) {
        let (start, len) = self.chunk(chunk);
        common((start + u64::from(piece) * self.piece, self.piece), (start, len))
    }

    /// Where a unit of a writer's stream for a reader lies on the shared scratch.
    fn scratch_at(&self, (writer, reader): (u32, u32), chunk: u32, unit: u64) -> u64 {
        let shape = self.shape;
        if let Some(cell) = self.cell {
            let place = u64::from(writer) * u64::from(shape.ranks) + u64::from(reader);
            return place * cell + unit - self.part(writer, reader).0;
        }
        let stream = match self.shape.kind {
            Kind::Bcast => 0,
            Kind::Scatter => shape.behind(reader, shape.root) - 1,
            Kind::Gather => shape.behind(writer, shape.root) - 1,
            _ => writer,
        };
        let (place, area) = if self.is_exchange() { (stream, 0) } else { (chunk, stream) };
        half(shape, place) + u64::from(area) * self.area + unit - self.chunk(chunk).0
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
            // The areas that this rank writes are free when the readers have copied what they held before.
            0 if chunk >= 2 => {
                let phase = phase(chunk - 2, pieces);
                read(self.chunk(chunk - 2)).for_each(|rank| round.push(Step::WaitAck { rank, phase }));
            }
            0 if read(self.chunk(chunk)).next().is_some() => {
                round.push(Step::WaitReuse { chunk: if self.is_exchange() { me } else { chunk } });
            }
            0 => {}
            _ if index <= 2 * pieces => {
                let (step, units) = ((index - 1) / 2, self.piece(chunk, (index - 1) / 2));
                match index % 2 {
                    1 => self.write(chunk, units, round),
                    _ if read(units).next().is_some() => announce(phase(chunk, step), round),
                    _ => {}
                }
            }
            _ if index == 2 * pieces + 1 && (chunk > 0 || shape.kind == Kind::Bcast) => {}
            _ if index == 2 * pieces + 1 => own(shape, round),
            _ if index < self.rounds_each() - 1 => {
                let (index, each) = (index - 2 * pieces - 2, self.read_rounds());
                let (step, nth) = (index / each, index % each);
                let units = self.piece(chunk, step);
                if let Some(rank) = nth.checked_sub(1).and_then(|before| self.source(before)) {
                    self.read(rank, chunk, units, round);
                }
                // In the first chunk each rank waits for the publication of each writer, also if its own block comes
                // later: the publication says whether the writer made the same call.
                let awaits = |&rank: &u32| {
                    reads(rank, me, units) || self.shape.kind == Kind::Alltoall && (chunk, step) == (0, 0)
                };
                if let Some(rank) = self.source(nth).filter(awaits) {
                    await_announced(rank, phase(chunk, step), round);
                }
            }
            _ => round.push(Step::Ack { phase: phase(chunk, pieces) }),
        }
    }

    /// Copies a piece of this rank's streams onto the shared scratch.
    fn write(&self, chunk: u32, piece: (u64, u64), round: &mut Round) {
        let shape = self.shape;
        let mut put = |from: Buf, at: u64, reader: u32, stream: u64, units: (u64, u64)| {
            let (start, len) = common(units, piece);
            if len > 0 {
                let into =
                    Span::new(Buf::SharedScratch, (self.scratch_at((shape.rank, reader), chunk, start), len));
                round.copy(Span::new(from, (at + start - stream, len)), into);
            }
        };
        let mut parts = (1..shape.ranks).map(|distance| {
            let reader = shape.after(shape.rank, distance);
            (reader, self.part(shape.rank, reader))
        });
        match self.shape.kind {
            Kind::Scatter => {
                parts.for_each(|(reader, part)| put(Buf::Send, shape.sends.start(reader), reader, 0, part));
            }
            Kind::Alltoall if self.cell.is_some() => parts.for_each(|(reader, part)| {
                put(Buf::Send, shape.sends.start(reader), reader, part.0, part);
            }),
            // The blocks in the order of ranks behind this one: those up to the last rank, then those from rank 0 on.
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

    /// Copies this rank's units of a writer's piece off the shared scratch.
    fn read(&self, writer: u32, chunk: u32, piece: (u64, u64), round: &mut Round) {
        let part = self.part(writer, self.shape.rank);
        let (start, len) = common(part, piece);
        if len > 0 {
            let block = match self.shape.kind {
                Kind::Bcast | Kind::Scatter => 0,
                _ => self.shape.recvs.start(writer),
            };
            let from = Span::new(
                Buf::SharedScratch,
                (self.scratch_at((writer, self.shape.rank), chunk, start), len),
            );
            round.copy(from, Span::new(Buf::Recv, (block + start - part.0, len)));
        }
    }
}
