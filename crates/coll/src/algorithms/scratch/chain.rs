//! Scans, and reductions to a root, on the shared scratch: a chain in which each rank puts what it has combined there for the next
//! rank, in pieces. The root is the last one.

use super::{announce, area_for, await_announced, chunks_of, common, half, piece, pieces_of};
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[&SCAN, &EXSCAN, &REDUCE];

pub(crate) const SCAN: Algorithm = Algorithm {
    kind: Kind::Scan,
    name: "scratch_chain",
    about: "each rank copies its prefix into shared memory for the next, in pieces: larger vectors on one node",
    needs: Needs::SharedScratch,
    phases: |shape| Chain::new(shape).phases(),
    chunks: |shape| Chain::new(shape).scratch_chunks(),
    rounds: |shape| Chain::new(shape).rounds(),
    round: |shape, index, round| Chain::new(shape).round(index, round),
    cost,
    ..Algorithm::MESSAGES
};

pub(crate) const EXSCAN: Algorithm = Algorithm {
    kind: Kind::Exscan,
    cost: |case: &Case| match case.ranks {
        // The first rank only writes, the last one only reads.
        2 => {
            let (pieces, first) = pieces_of_two(case);
            Cost {
                transfers: 1.0 + pieces,
                reduced: 0.0,
                copied: 0.0,
                streamed: case.bytes + first,
                ..cost(case)
            }
        }
        _ => cost(case),
    },
    ..SCAN
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "each rank adds its vector to those before it, in shared memory and in pieces, the root last: large vectors on one node",
    reorders: true,
    cost: |case: &Case| match case.ranks {
        // The root adds up while the other rank writes. What it copies of its own lies in its own cache, and it does so before the other one's
        // piece is there: that counts a quarter (of 256 KiB 22.9 us by `skylake`, where 22 to 23 were measured; of 32 KiB 3.9, and 3.2 to 4.2).
        2 => {
            let (pieces, first) = pieces_of_two(case);
            Cost {
                transfers: 1.0 + pieces,
                copied: case.bytes / 4.0,
                reduced: case.bytes,
                streamed: first,
                ..cost(case)
            }
        }
        _ => {
            let scan = cost(case);
            Cost { copied: scan.copied / 2.0, ..scan }
        }
    },
    ..SCAN
};

/// The most bytes of a chunk, of all ranks together.
const MOST_BYTES: u64 = 1 << 20;

fn cost(case: &Case) -> Cost {
    let others = case.p() - 1.0;
    // Bytes that a rank puts there in a chunk (area) and at a time (piece): one piece goes through all of the chain.
    let area = case.bytes.min(MOST_BYTES as f64 / others);
    let piece = (area / f64::from(pieces_of(area as u64, &case.products, case.ranks))).max(1.0);
    let moved = case.bytes + piece * (others - 1.0);
    Cost {
        transfers: (case.bytes / piece).ceil() + others,
        copied: 2.0 * moved,
        reduced: moved,
        waits: chunks_of(case.bytes * others, MOST_BYTES) + others,
        ..Cost::default()
    }
}

/// How many pieces a vector of two ranks goes in, and the bytes of the first one, for which the last rank waits.
fn pieces_of_two(case: &Case) -> (f64, f64) {
    let pieces = f64::from(pieces_of(case.bytes as u64, &case.products, 2));
    (pieces, case.bytes / pieces)
}

/// Rounds of a piece: copy what needs no wait, wait, combine, pass on, announce.
const ROUNDS_PER_PIECE: u32 = 5;

/// Bytes that stay in the first cache of a core while others are copied.
const SHORT: u64 = 16 << 10;

struct Chain<'a> {
    shape: &'a Shape,
    /// Units of a rank's area in either half.
    area: u64,
    /// The most units of a piece.
    piece: u64,
    /// Pieces of a chunk.
    pieces: u32,
    chunks: u32,
}

impl<'a> Chain<'a> {
    fn new(shape: &'a Shape) -> Chain<'a> {
        let area = area_for(shape, MOST_BYTES, (shape.ranks - 1).max(1), shape.len);
        let (piece, pieces) = piece(shape, area.min(shape.len).max(1), shape.ranks);
        let chunks = shape.len.div_ceil(area) as u32;
        Chain { shape, area, piece, pieces, chunks }
    }

    /// The chunks on the shared scratch.
    fn scratch_chunks(&self) -> Chunks {
        let chunks = Chunks::combined(self.shape, self.chunks, u64::from(self.shape.ranks - 1) * self.area);
        if self.shape.kind == Kind::Reduce { chunks.rooted(self.shape, false) } else { chunks }
    }

    /// The place of a rank in the chain.
    fn place(&self, rank: u32) -> u32 {
        let Shape { kind, root, .. } = *self.shape;
        if kind == Kind::Reduce { self.shape.behind(rank, self.shape.after(root, 1)) } else { rank }
    }

    /// Phases of a chunk: one for each piece that is announced, and one when all have been read.
    fn phases_each(&self) -> u32 {
        self.pieces + 1
    }

    fn phases(&self) -> u32 {
        self.chunks * self.phases_each()
    }

    /// Rounds of a chunk: wait for reuse, the pieces, acknowledge.
    fn rounds_each(&self) -> u32 {
        ROUNDS_PER_PIECE * self.pieces + 2
    }

    fn rounds(&self) -> u32 {
        self.chunks * self.rounds_each()
    }

    fn round(&self, index: u32, round: &mut Round) {
        let Shape { rank: me, ranks, .. } = *self.shape;
        let (chunk, index) = (index / self.rounds_each(), index % self.rounds_each());
        let phase = |chunk: u32, step: u32| chunk * self.phases_each() + step;
        let (first, last) = (self.place(me) == 0, self.place(me) + 1 == ranks);
        let (before, after) = (self.shape.before(me, 1), self.shape.after(me, 1));
        match index {
            // This rank's area is free when what it held before has been read.
            0 if last => {}
            0 if chunk < 2 => round.push(Step::WaitReuse { chunk }),
            0 => round.push(Step::WaitAck { rank: after, phase: phase(chunk - 2, self.pieces) }),
            _ if index <= ROUNDS_PER_PIECE * self.pieces => {
                let piece = (index - 1) / ROUNDS_PER_PIECE;
                let phase = phase(chunk, piece);
                match (index - 1) % ROUNDS_PER_PIECE {
                    1 if !first => {
                        await_announced(before, phase, round);
                        self.combine(chunk, piece, 1, (first, last), round);
                    }
                    4 if !last => announce(phase, round),
                    step => self.combine(chunk, piece, step, (first, last), round),
                }
            }
            _ => round.push(Step::Ack { phase: phase(chunk, self.pieces) }),
        }
    }

    fn combine(&self, chunk: u32, piece: u32, step: u32, (first, last): (bool, bool), round: &mut Round) {
        let at = u64::from(chunk) * self.area + u64::from(piece) * self.piece;
        let end = (u64::from(chunk) + 1) * self.area;
        let units = common((at, self.piece.min(end.saturating_sub(at))), (0, self.shape.len));
        let (send, recv) = (Span::new(Buf::Send, units), Span::new(Buf::Recv, units));
        let packed = |rank: u32| {
            let area = half(self.shape, chunk) + u64::from(self.place(rank)) * self.area;
            Span::new(Buf::SharedScratch, (area + units.0 - u64::from(chunk) * self.area, units.1))
        };
        let me = self.shape.rank;
        let (mine, before) = (packed(me), packed(self.shape.before(me, 1)));
        // A rank writes to the shared scratch only when it knows that the rank before it has made the same call. The first rank waits
        // for nobody.
        let late = !first && !last && chunk + piece == 0;
        // What is added to is copied just before, so that it is in the nearest cache: but short pieces, which stay there, and the first one
        // while nothing else is to be done.
        let early = first || chunk + piece == 0 || units.1 * self.shape.unit <= SHORT;
        let own = if early { 0 } else { 1 };
        match (step, self.shape.kind) {
            _ if units.1 == 0 => {}
            (step, Kind::Scan) if step == own => round.copy(send, recv),
            (2, Kind::Scan) if !first => round.reduce(before, recv),
            (3, Kind::Scan) if !last => round.copy(recv, mine),
            (_, Kind::Scan) => {}
            (step, Kind::Reduce) if last && step == own => round.copy(send, recv),
            (2, _) if first => {}
            (2, Kind::Reduce) if last => round.reduce(before, recv),
            (0, _) if !last && !late => round.copy(send, mine),
            (2, _) if late => round.copy(send, mine),
            (3, _) if late => self.pass_on(before, recv, mine, round),
            (2, _) if last => round.copy(before, recv),
            (2, _) => self.pass_on(before, recv, mine, round),
            _ => {}
        }
    }

    /// A rank in the middle adds its vector to what the ranks before it have combined, which it keeps if that is its result.
    fn pass_on(&self, before: Span, recv: Span, mine: Span, round: &mut Round) {
        if self.shape.kind == Kind::Exscan {
            round.copy(before, recv);
        }
        round.reduce(before, mine);
    }
}
