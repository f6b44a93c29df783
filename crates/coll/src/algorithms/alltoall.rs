//! Alltoall: Bruck's algorithm for small blocks; pairwise exchange and its windowed form for large ones, and
//! wherever a rank does not know the sizes of others.

use super::{others, own, spread_cost, spread_rounds};
use crate::{Algorithm, Buf, Case, Cost, Kind, Round, Shape, Span, log2_up};

pub(crate) const ROWS: &[&Algorithm] =
    &[&BRUCK, &PAIRWISE, &SPREAD, &PAIRWISE_V, &SPREAD_V, &PAIRWISE_W, &SPREAD_W];

pub(crate) const BRUCK: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    name: "bruck",
    about: "log2(p) rounds of p/2 blocks each: small blocks (Bruck et al. 1997)",
    rotates: |shape| shape.sends.are_even(shape.ranks) && shape.recvs.are_even(shape.ranks),
    temp: |shape| (u64::from(shape.ranks) + 2 * u64::from(shape.ranks.div_ceil(2))) * shape.len,
    rounds: |shape| 2 + 3 * log2_up(shape.ranks),
    round: bruck,
    cost: |case: &Case| {
        let moved = case.bytes * case.p() / 2.0 * case.lg();
        Cost { copied: 2.0 * moved + 2.0 * case.bytes * case.p(), ..Cost::rounds(case.lg(), moved) }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const PAIRWISE: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    name: "pairwise",
    about: "p - 1 rounds, one partner each: large blocks, many ranks",
    rotates: BRUCK.rotates,
    rounds: |shape| shape.ranks,
    round: pairwise,
    cost: |case| Cost { copied: case.bytes, ..Cost::rounds(case.p() - 1.0, case.bytes * (case.p() - 1.0)) },
    ..Algorithm::MESSAGES
};

pub(crate) const SPREAD: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    name: "spread",
    about: "many partners at once, each rank starting with the next one: few ranks",
    rotates: BRUCK.rotates,
    rounds: spread_rounds,
    round: spread,
    cost: |case| spread_cost(case, case.bytes),
    ..Algorithm::MESSAGES
};

pub(crate) const PAIRWISE_V: Algorithm = Algorithm { kind: Kind::Alltoallv, ..PAIRWISE };
pub(crate) const SPREAD_V: Algorithm = Algorithm { kind: Kind::Alltoallv, ..SPREAD };
pub(crate) const PAIRWISE_W: Algorithm = Algorithm { kind: Kind::Alltoallw, ..PAIRWISE };
pub(crate) const SPREAD_W: Algorithm = Algorithm { kind: Kind::Alltoallw, ..SPREAD };

/// Sends to one rank, and receives from another one.
fn exchange(shape: &Shape, (to, from): (u32, u32), round: &mut Round) {
    round.recv(from, Span::new(Buf::Recv, shape.recvs.block(from)));
    round.send(to, Span::new(Buf::Send, shape.sends.block(to)));
}

fn pairwise(shape: &Shape, index: u32, round: &mut Round) {
    match index {
        0 => own(shape, round),
        _ => exchange(shape, (shape.after(shape.rank, index), shape.before(shape.rank, index)), round),
    }
}

fn spread(shape: &Shape, index: u32, round: &mut Round) {
    others(shape, index).for_each(|partners| exchange(shape, partners, round));
    if index == 0 {
        own(shape, round);
    }
}

/// Temp holds the blocks by the distance to their receiver, then room to pack those that move in a round, then room to
/// receive as many.
fn bruck(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks, len) = (shape.rank, shape.ranks, shape.len);
    let block = |i: u32| Span::new(Buf::Temp, (u64::from(i) * len, len));
    if index == 0 {
        for distance in 0..ranks {
            let to = shape.after(me, distance);
            round.copy(Span::new(Buf::Send, shape.sends.block(to)), block(distance));
        }
        return;
    }
    let (level, stage) = ((index - 1) / 3, (index - 1) % 3);
    if level == log2_up(ranks) {
        for distance in 0..ranks {
            let from = shape.before(me, distance);
            round.copy(block(distance), Span::new(Buf::Recv, shape.recvs.block(from)));
        }
        return;
    }
    let stride = 1 << level;
    let moving = || (0..ranks).filter(|distance| distance & stride != 0);
    let (packed, arriving) = (ranks, ranks + ranks.div_ceil(2));
    match stage {
        0 => moving().zip(packed..).for_each(|(distance, to)| round.copy(block(distance), block(to))),
        1 => {
            let all =
                |first: u32| Span::new(Buf::Temp, (u64::from(first) * len, moving().count() as u64 * len));
            round.recv(shape.before(me, stride), all(arriving));
            round.send(shape.after(me, stride), all(packed));
        }
        _ => moving().zip(arriving..).for_each(|(distance, from)| round.copy(block(from), block(distance))),
    }
}
