//! Scans on the board: a chain in which each rank lays its prefix down for the next one, in pieces.

use super::super::no_temp;
use super::{PIECE, PIECES, area, chunks_of, common, half, piece, pieces_of, seen, show};
use crate::{Algorithm, Buf, Case, Chunks, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const SCAN: Algorithm = Algorithm {
    kind: Kind::Scan,
    name: "board",
    about: "each rank lays its prefix into shared memory for the next, in pieces: larger vectors on one node",
    needs: Needs::Board,
    reorders: false,
    phases: |shape| Chain::new(shape, Kind::Scan).phases(),
    chunks: |shape| Chunks::halves(Chain::new(shape, Kind::Scan).chunks),
    temp: no_temp,
    rounds: |shape| Chain::new(shape, Kind::Scan).rounds(),
    round: |shape, index, round| Chain::new(shape, Kind::Scan).round(index, round),
    cost,
};

pub(crate) const EXSCAN: Algorithm = Algorithm {
    kind: Kind::Exscan,
    phases: |shape| Chain::new(shape, Kind::Exscan).phases(),
    chunks: |shape| Chunks::halves(Chain::new(shape, Kind::Exscan).chunks),
    rounds: |shape| Chain::new(shape, Kind::Exscan).rounds(),
    round: |shape, index, round| Chain::new(shape, Kind::Exscan).round(index, round),
    cost: |case: &Case| match case.ranks {
        // The first only writes, the last only reads.
        2 => {
            let pieces = pieces_of(case.bytes);
            let copied = case.bytes * (1.0 + 1.0 / pieces);
            Cost { hops: 1.0 + pieces, reduced: 0.0, copied, ..cost(case) }
        }
        _ => cost(case),
    },
    ..SCAN
};

/// The most bytes of a chunk, of all ranks together.
const MOST: u64 = 1 << 20;

fn cost(case: &Case) -> Cost {
    let others = case.p() - 1.0;
    // What a rank lays down in a chunk, and at a time: the longest piece goes through all of the chain.
    let area = case.bytes.min(MOST as f64 / others);
    let piece = area.min((area / PIECES as f64).max(PIECE as f64)).max(1.0);
    let moved = case.bytes + piece * (others - 1.0);
    Cost {
        hops: (case.bytes / piece).ceil() + others,
        copied: 2.0 * moved,
        reduced: moved,
        waits: chunks_of(case.bytes * others, MOST) + others,
        ..Cost::default()
    }
}

/// Rounds of a piece: what needs no wait, wait, combine, pass on, release.
const EACH: u32 = 5;

struct Chain<'a> {
    shape: &'a Shape,
    exclusive: bool,
    /// Units of a rank's area in either half.
    area: u64,
    /// The most units of a piece.
    piece: u64,
    /// Pieces of a chunk.
    pieces: u32,
    chunks: u32,
}

impl<'a> Chain<'a> {
    fn new(shape: &'a Shape, kind: Kind) -> Chain<'a> {
        let area = area(shape, MOST, (shape.ranks - 1).max(1));
        let (piece, pieces) = piece(shape, area.min(shape.len).max(1));
        let chunks = shape.len.div_ceil(area) as u32;
        Chain { shape, exclusive: kind == Kind::Exscan, area, piece, pieces, chunks }
    }

    /// Phases of a chunk: each piece is laid down, all have been read.
    fn phases_each(&self) -> u32 {
        self.pieces + 1
    }

    fn phases(&self) -> u32 {
        self.chunks * self.phases_each()
    }

    /// Rounds of a chunk: a guard, the pieces, a release.
    fn rounds_each(&self) -> u32 {
        EACH * self.pieces + 2
    }

    fn rounds(&self) -> u32 {
        self.chunks * self.rounds_each()
    }

    fn round(&self, index: u32, round: &mut Round) {
        let Shape { rank: me, ranks, .. } = *self.shape;
        let (chunk, index) = (index / self.rounds_each(), index % self.rounds_each());
        let phase = |chunk: u32, step: u32| chunk * self.phases_each() + step;
        let (first, last) = (me == 0, me + 1 == ranks);
        match index {
            // What was in this rank's area before has been read.
            0 if last => {}
            0 if chunk < 2 => round.push(Step::Settle { chunk }),
            0 => round.push(Step::Drain { rank: me + 1, phase: phase(chunk - 2, self.pieces) }),
            _ if index <= EACH * self.pieces => {
                let piece = (index - 1) / EACH;
                let phase = phase(chunk, piece);
                match (index - 1) % EACH {
                    1 if !first => seen(me - 1, phase, round),
                    4 if !last => show(phase, round),
                    step => self.combine(chunk, piece, step, (first, last), round),
                }
            }
            _ => round.push(Step::Release { phase: phase(chunk, self.pieces) }),
        }
    }

    fn combine(&self, chunk: u32, piece: u32, step: u32, (first, last): (bool, bool), round: &mut Round) {
        let at = u64::from(chunk) * self.area + u64::from(piece) * self.piece;
        let end = (u64::from(chunk) + 1) * self.area;
        let units = common((at, self.piece.min(end.saturating_sub(at))), (0, self.shape.len));
        let (send, recv) = (Span::new(Buf::Send, units), Span::new(Buf::Recv, units));
        let laid = |rank: u32| {
            let area = half(self.shape, chunk) + u64::from(rank) * self.area;
            Span::new(Buf::Board, (area + units.0 - u64::from(chunk) * self.area, units.1))
        };
        let (me, index) = (self.shape.rank, chunk + piece);
        match (step, self.exclusive) {
            _ if units.1 == 0 => {}
            (0, false) => round.copy(send, recv),
            // Nothing goes onto the board before it is known that the others have called the same.
            (0, true) if !last && (first || index > 0) => round.copy(send, laid(me)),
            (2, true) if !last && !first && index == 0 => round.copy(send, laid(me)),
            (3, true) if !last && !first && index == 0 => {
                round.copy(laid(me - 1), recv);
                round.push(Step::Reduce { from: laid(me - 1), into: laid(me) });
            }
            (2, false) if !first => round.reduce(laid(me - 1), recv),
            (2, true) if !first => {
                round.copy(laid(me - 1), recv);
                if !last {
                    round.push(Step::Reduce { from: laid(me - 1), into: laid(me) });
                }
            }
            (3, false) if !last => round.copy(recv, laid(me)),
            _ => {}
        }
    }
}
