//! Gather: binomial tree for small blocks, linear for large ones and wherever not all ranks know the sizes. The same schedules
//! backwards are those of a scatter.

use super::WINDOW;
use crate::{Algorithm, Blocks, Buf, Case, Cost, Kind, Round, Shape, Span, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&BINOMIAL, &LINEAR, &LINEAR_V];

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Gather,
    name: "binomial",
    about: "binomial tree: small blocks, many ranks",
    temp: |shape| match shape.relative() {
        0 => u64::from(shape.ranks) * shape.len,
        me => u64::from(subtree(me, shape.ranks)) * shape.len,
    },
    rounds: |shape| log2_up(shape.ranks) + 2,
    round: binomial,
    cost: |case| Cost {
        copied: case.bytes * (1.0 + case.p() / 2.0),
        ..Cost::rounds(case.lg(), case.bytes * (case.p() - 1.0))
    },
    ..Algorithm::MESSAGES
};

pub(crate) const LINEAR: Algorithm = Algorithm {
    kind: Kind::Gather,
    name: "linear",
    about: "every rank sends to the root: large blocks, each moved once",
    rounds: linear_rounds,
    round: linear,
    cost: linear_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const LINEAR_V: Algorithm = Algorithm { kind: Kind::Gatherv, ..LINEAR };

/// The number of ranks in the binomial subtree of relative rank `me`, itself included; `me` is not the root.
fn subtree(me: u32, ranks: u32) -> u32 {
    (1 << me.trailing_zeros()).min(ranks - me)
}

/// Rounds of a linear algorithm: windows of messages.
pub(super) fn linear_rounds(shape: &Shape) -> u32 {
    (shape.ranks - 1).div_ceil(WINDOW).max(1)
}

pub(super) fn linear_cost(case: &Case) -> Cost {
    let windows = ((case.p() - 1.0) / f64::from(WINDOW)).ceil();
    let others = case.p() - 1.0;
    Cost {
        steps: windows,
        extra: others - windows,
        bytes: case.bytes * others,
        copied: case.bytes,
        waits: 1.0,
        ..Cost::default()
    }
}

/// The relative ranks that exchange data with the root in round `index` of a linear algorithm.
fn window(shape: &Shape, index: u32) -> std::ops::Range<u32> {
    let first = 1 + index * WINDOW;
    first..(first + WINDOW).min(shape.ranks)
}

fn linear(shape: &Shape, index: u32, round: &mut Round) {
    let me = shape.relative();
    if me == 0 {
        for from in window(shape, index).map(|distance| shape.after(shape.root, distance)) {
            round.recv(from, Span::new(Buf::Recv, blocks(shape).block(from)));
        }
        if index == 0 {
            own(shape, round);
        }
    } else if window(shape, index).contains(&me) {
        round.send(shape.root, shape.whole(Buf::Send));
    }
}

/// The blocks at the root: of what it gets, or, backwards, of what it gives.
fn blocks(shape: &Shape) -> &Blocks {
    match shape.kind {
        Kind::Scatter | Kind::Scatterv => &shape.sends,
        _ => &shape.recvs,
    }
}

/// Copies this rank's own block.
fn own(shape: &Shape, round: &mut Round) {
    round.copy(shape.whole(Buf::Send), Span::new(Buf::Recv, blocks(shape).block(shape.rank)));
}

/// Rounds: every rank copies its own block; then one for each level of the tree, from the leaves up; at last the root
/// brings the blocks of subtrees that wrap around the last rank into the order of ranks. Temp holds the blocks from
/// relative rank `me` on.
fn binomial(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks, len) = (shape.relative(), shape.ranks, shape.len);
    let temp =
        |from: u32, number: u32| Span::new(Buf::Temp, (u64::from(from - me) * len, u64::from(number) * len));
    let levels = log2_up(ranks);
    if index == 0 {
        match me {
            0 => own(shape, round),
            _ if subtree(me, ranks) > 1 => round.copy(shape.whole(Buf::Send), temp(me, 1)),
            _ => {}
        }
    } else if index <= levels {
        let edge = 1 << (index - 1);
        if me % (2 * edge) == edge {
            let number = subtree(me, ranks);
            let from = if number > 1 { temp(me, number) } else { shape.whole(Buf::Send) };
            round.send(shape.before(shape.rank, edge), from);
        } else if me % (2 * edge) == 0 && me + edge < ranks {
            let (child, number) = (me + edge, subtree(me + edge, ranks));
            let into = match (me, straight(shape, child, number)) {
                (0, Some((first, end))) => Span::new(Buf::Recv, blocks(shape).run(first, end)),
                _ => temp(child, number),
            };
            round.recv(shape.after(shape.rank, edge), into);
        }
    } else if me == 0 {
        let children = (0..levels).map(|level| 1 << level).filter(|&child| child < ranks);
        for child in children.filter(|&child| straight(shape, child, subtree(child, ranks)).is_none()) {
            let (number, before_end) = (subtree(child, ranks), ranks - shape.root - child);
            let tail = blocks(shape).run(shape.root + child, ranks);
            round.copy(temp(child, before_end), Span::new(Buf::Recv, tail));
            let head = blocks(shape).run(0, number - before_end);
            round.copy(temp(child + before_end, number - before_end), Span::new(Buf::Recv, head));
        }
    }
}

/// The ranks `first..end` of the `number` relative ranks from `child` on; `None` if they wrap around the last rank.
fn straight(shape: &Shape, child: u32, number: u32) -> Option<(u32, u32)> {
    let first = shape.after(shape.root, child);
    (first + number <= shape.ranks).then_some((first, first + number))
}
