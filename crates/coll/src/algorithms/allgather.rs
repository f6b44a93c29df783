//! Allgather: each block straight to all others on few ranks, Bruck's algorithm for few bytes, a ring for many. All take blocks of
//! any lengths, which all ranks know.

use super::{others, spread_cost, spread_rounds};
use crate::{Algorithm, Buf, Cost, Kind, Round, Shape, Span, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&BRUCK, &RING, &SPREAD, &BRUCK_V, &RING_V, &SPREAD_V];

pub(crate) const BRUCK: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "bruck",
    about: "log2(p) rounds, each doubling what a rank has: few bytes (Bruck et al. 1997)",
    rotates: |shape| shape.recvs.are_even(shape.ranks),
    temp: |shape| shape.recvs.start(shape.ranks),
    rounds: |shape| log2_up(shape.ranks) + 2,
    round: bruck,
    cost: |case| Cost {
        copied: case.bytes * case.p(),
        ..Cost::rounds(case.lg(), case.bytes * (case.p() - 1.0))
    },
    ..Algorithm::MESSAGES
};

pub(crate) const RING: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "ring",
    about: "p - 1 rounds between neighbours, each block straight to where it belongs: many bytes",
    rotates: |shape| shape.ring.is_none() && (BRUCK.rotates)(shape),
    rounds: |shape| shape.ranks.max(2) - 1,
    round: ring,
    cost: |case| Cost { copied: case.bytes, ..Cost::around(case.p() - 1.0, case.bytes * (case.p() - 1.0)) },
    ..Algorithm::MESSAGES
};

pub(crate) const SPREAD: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "spread",
    about: "each rank sends its block to all others at once: few ranks",
    rotates: BRUCK.rotates,
    rounds: spread_rounds,
    round: spread,
    cost: |case| spread_cost(case, case.bytes),
    ..Algorithm::MESSAGES
};

pub(crate) const BRUCK_V: Algorithm = Algorithm { kind: Kind::Allgatherv, ..BRUCK };
pub(crate) const RING_V: Algorithm = Algorithm { kind: Kind::Allgatherv, ..RING };
pub(crate) const SPREAD_V: Algorithm = Algorithm { kind: Kind::Allgatherv, ..SPREAD };

/// Temp holds the blocks of the ranks from this one on, going on with rank 0 after the last.
fn bruck(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks) = (shape.rank, shape.ranks);
    let levels = log2_up(ranks);
    let around = |first: u32, number: u32| shape.recvs.around(first, number, ranks);
    if index == 0 {
        round.copy(shape.whole(Buf::Send), Span::new(Buf::Temp, (0, shape.len)));
    } else if index <= levels {
        let have = 1 << (index - 1);
        let number = have.min(ranks - have);
        let from = shape.after(me, have);
        round.recv(from, Span::new(Buf::Temp, (around(me, have), around(from, number))));
        round.send(shape.before(me, have), Span::new(Buf::Temp, (0, around(me, number))));
    } else {
        let (tail, head) = (shape.recvs.run(me, ranks), shape.recvs.run(0, me));
        round.copy(Span::new(Buf::Temp, (0, tail.1)), Span::new(Buf::Recv, tail));
        round.copy(Span::new(Buf::Temp, (tail.1, head.1)), Span::new(Buf::Recv, head));
    }
}

fn ring(shape: &Shape, index: u32, round: &mut Round) {
    let me = shape.rank;
    let block = |rank: u32| Span::new(Buf::Recv, shape.recvs.block(rank));
    if index == 0 {
        round.copy(shape.whole(Buf::Send), block(me));
    }
    if shape.ranks == 1 {
        return;
    }
    round.recv(shape.ring_before(me, 1), block(shape.ring_before(me, index + 1)));
    let from = if index == 0 { shape.whole(Buf::Send) } else { block(shape.ring_before(me, index)) };
    round.send(shape.ring_after(me, 1), from);
}

fn spread(shape: &Shape, index: u32, round: &mut Round) {
    let mine = shape.whole(Buf::Send);
    if index == 0 {
        round.copy(mine, Span::new(Buf::Recv, shape.recvs.block(shape.rank)));
    }
    for (to, from) in others(shape, index) {
        round.recv(from, Span::new(Buf::Recv, shape.recvs.block(from)));
        round.send(to, mine);
    }
}
