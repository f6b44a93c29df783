//! Reduce over messages: binomial tree; Rabenseifner's reduce-scatter and gather.

use super::allreduce::{fold, halve};
use super::group::{Group, Role, half};
use crate::{Algorithm, Buf, Case, Cost, Kind, Merge, Round, Shape, Side, log2_up};

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Reduce,
    name: "binomial",
    about: "binomial tree: small vectors",
    temp: |shape| if shape.rank == shape.root { 0 } else { shape.len },
    rounds: |shape| 2 + log2_up(shape.ranks),
    round: binomial,
    cost: |case: &Case| Cost {
        steps: case.lg(),
        bytes: case.lg() * case.bytes,
        reduced: case.lg() * case.bytes,
        waits: case.lg(),
        ..Cost::default()
    },
    ..Algorithm::MESSAGES
};

pub(crate) const RABENSEIFNER: Algorithm = Algorithm {
    kind: Kind::Reduce,
    name: "rabenseifner",
    about: "recursive halving, then binomial gather: large vectors (Rabenseifner 2004)",
    temp: |shape| if shape.rank == shape.root { 0 } else { shape.len },
    rounds: |shape| 3 + 2 * Group::of(shape).levels,
    round: rabenseifner,
    cost: |case: &Case| {
        let (steps, share) =
            (2.0 * case.p().log2().floor() + 2.0 * case.folds(), (case.p() - 1.0) / case.p());
        Cost {
            steps,
            bytes: case.bytes * (2.0 * share + 2.0 * case.folds()),
            reduced: case.bytes * (share + case.folds()),
            waits: steps,
            ..Cost::default()
        }
    },
    ..Algorithm::MESSAGES
};

/// Where this rank keeps its partial result.
fn partial(shape: &Shape) -> Buf {
    if shape.rank == shape.root { Buf::Recv } else { Buf::Temp }
}

/// The top of the tree is the root if the operation commutes, else rank 0, which passes the result on to the root.
fn binomial(shape: &Shape, index: u32, round: &mut Round) {
    let top = if shape.commutative { shape.root } else { 0 };
    let (me, levels) = (shape.behind(shape.rank, top), log2_up(shape.ranks));
    let leaf = me % 2 == 1 || shape.ranks == me + 1 && me != 0;
    let mine = shape.whole(partial(shape));
    if index == 0 {
        if shape.ranks == 1 {
            round.copy(shape.whole(Buf::Send), mine);
        }
    } else if index <= levels {
        let edge = 1 << (index - 1);
        if me % (2 * edge) == edge {
            round.send(shape.before(shape.rank, edge), if leaf { shape.whole(Buf::Send) } else { mine });
        } else if me % (2 * edge) == 0 && me + edge < shape.ranks {
            let with = if edge == 1 { shape.whole(Buf::Send) } else { mine };
            let merge = Merge::new(with, mine, Side::Right.unless(shape.commutative));
            round.recv_reduce(shape.after(shape.rank, edge), merge);
        }
    } else if top != shape.root {
        if shape.rank == top {
            round.send(shape.root, mine);
        } else if shape.rank == shape.root {
            round.recv(top, mine);
        }
    }
}

/// Rounds: fold, halve, gather, and pass the result on to a root that is outside the group.
fn rabenseifner(shape: &Shape, index: u32, round: &mut Round) {
    let group = Group::of(shape);
    let data = shape.whole(partial(shape));
    let (halved, gathered) = (2 + group.levels, 2 + 2 * group.levels);
    let root_outside = matches!(group.role(shape.root), Role::Outside);
    let Role::Member { number, ward } = group.role(shape.rank) else {
        match index {
            1 => round.send(shape.rank + 1, shape.whole(Buf::Send)),
            _ if index == gathered && shape.rank == shape.root => round.recv(shape.rank + 1, data),
            _ => {}
        }
        return;
    };
    let top = group.acting(shape.root);
    if index < 2 {
        fold(shape, index, ward, data, round);
    } else if index < halved {
        halve(shape, group, (number, ward), index - 2, data.buf, round);
    } else if index < gathered {
        let level = group.levels - 1 - (index - halved);
        let partner = number ^ 1 << level;
        let part = |member: u32| crate::Span::new(data.buf, half(member, level + 1, shape.len));
        if (number ^ top) >> level == 1 {
            round.send(group.rank(partner), part(number));
        } else if (number ^ top) >> level == 0 {
            round.recv(group.rank(partner), part(partner));
        }
    } else if root_outside && ward == Some(shape.root) {
        round.send(shape.root, data);
    }
}
