//! Scatter: binomial tree for small blocks, linear for large ones and wherever not all ranks know the sizes.

use super::gather::{linear_cost, linear_rounds, straight, subtree, window};
use crate::{Algorithm, Buf, Case, Cost, Kind, Round, Shape, Span, log2_up};

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Scatter,
    name: "binomial",
    about: "binomial tree: small blocks, many ranks",
    temp: |shape| match shape.relative() {
        0 => u64::from(shape.ranks) * shape.len,
        me => u64::from(subtree(me, shape.ranks)) * shape.len,
    },
    rounds: |shape| log2_up(shape.ranks) + 2,
    round: binomial,
    cost: |case: &Case| Cost {
        steps: case.lg(),
        bytes: case.bytes * (case.p() - 1.0),
        copied: case.bytes * case.p() / 2.0,
        waits: case.lg(),
        ..Cost::default()
    },
    ..Algorithm::MESSAGES
};

pub(crate) const LINEAR: Algorithm = Algorithm {
    kind: Kind::Scatter,
    name: "linear",
    about: "the root sends to every rank: large blocks, each moved once",
    rounds: linear_rounds,
    round: linear,
    cost: linear_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const LINEAR_V: Algorithm = Algorithm { kind: Kind::Scatterv, ..LINEAR };

fn linear(shape: &Shape, index: u32, round: &mut Round) {
    let me = shape.relative();
    if me == 0 {
        for to in window(shape, index).map(|distance| shape.after(shape.root, distance)) {
            round.send(to, Span::new(Buf::Send, shape.sends.block(to)));
        }
        if index == 0 {
            own(shape, round);
        }
    } else if window(shape, index).contains(&me) {
        round.recv(shape.root, shape.whole(Buf::Recv));
    }
}

/// Copies the root's own block.
pub(super) fn own(shape: &Shape, round: &mut Round) {
    round.copy(Span::new(Buf::Send, shape.sends.block(shape.rank)), shape.whole(Buf::Recv));
}

/// Rounds: the root packs the blocks of subtrees that wrap around the last rank in the order of relative ranks; then
/// one for each level of the tree, the longest edges first; at last every rank copies its own block. Temp holds the
/// blocks from relative rank `me` on.
fn binomial(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks, len) = (shape.relative(), shape.ranks, shape.len);
    let temp =
        |from: u32, number: u32| Span::new(Buf::Temp, (u64::from(from - me) * len, u64::from(number) * len));
    let levels = log2_up(ranks);
    if index == 0 {
        if me == 0 {
            own(shape, round);
            pack_wrapped(shape, levels, temp, round);
        }
    } else if index <= levels {
        let edge = 1 << (levels - index);
        if me % (2 * edge) == edge {
            let number = subtree(me, ranks);
            let into = if number > 1 { temp(me, number) } else { shape.whole(Buf::Recv) };
            round.recv(shape.before(shape.rank, edge), into);
        } else if me % (2 * edge) == 0 && me + edge < ranks {
            let (child, number) = (me + edge, subtree(me + edge, ranks));
            let from = match (me, straight(shape, child, number)) {
                (0, Some((first, end))) => Span::new(Buf::Send, shape.sends.run(first, end)),
                _ => temp(child, number),
            };
            round.send(shape.after(shape.rank, edge), from);
        }
    } else if me != 0 && subtree(me, ranks) > 1 {
        round.copy(temp(me, 1), shape.whole(Buf::Recv));
    }
}

/// Packs the blocks of those subtrees whose ranks wrap around the last one.
fn pack_wrapped(shape: &Shape, levels: u32, temp: impl Fn(u32, u32) -> Span, round: &mut Round) {
    let children = (0..levels).map(|level| 1 << level).filter(|&child| child < shape.ranks);
    for child in children {
        let number = subtree(child, shape.ranks);
        if straight(shape, child, number).is_some() {
            continue;
        }
        let before_end = shape.ranks - shape.root - child;
        let tail = shape.sends.run(shape.root + child, shape.ranks);
        round.copy(Span::new(Buf::Send, tail), temp(child, before_end));
        let head = shape.sends.run(0, number - before_end);
        round.copy(Span::new(Buf::Send, head), temp(child + before_end, number - before_end));
    }
}
