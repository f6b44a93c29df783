//! Allreduce over messages: recursive doubling, Rabenseifner's reduce-scatter and allgather, ring, all to all. In each,
//! every element is combined in one way only, so all ranks get the same bits.

use super::group::{Group, Role, half, joins_as_lower};
use super::{others, spread_cost, spread_rounds};
use crate::{Algorithm, Buf, Case, Cost, Kind, Merge, Round, Shape, Side, Span};

pub(crate) const ROWS: &[&Algorithm] = &[&DOUBLING, &RABENSEIFNER, &RING, &SPREAD];

pub(crate) const DOUBLING: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "doubling",
    about: "recursive doubling, log2(p) exchanges of the whole vector: tiny vectors",
    temp: |shape| shape.len,
    rounds: |shape| doubling_rounds(shape) + 1,
    round: |shape, index, round| {
        let buffers = DoublingBuffers { mine: shape.whole(Buf::Recv), other: shape.whole(Buf::Temp) };
        if let Some(result) = doubling(shape, index, buffers, round)
            && result.buf != Buf::Recv
        {
            round.copy(result, buffers.mine);
        }
    },
    cost: doubling_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const RABENSEIFNER: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "rabenseifner",
    about: "recursive halving, then doubling: middle and large vectors (Rabenseifner 2004)",
    rounds: |shape| 3 + 2 * Group::of(shape).levels,
    round: |shape, index, round| rabenseifner(shape, index, (Buf::Recv, None), round),
    cost: |case: &Case| {
        let (steps, share) = (2.0 * (case.doublings() + case.folds()), (case.p() - 1.0) / case.p());
        let bytes = case.bytes * (share + case.folds());
        Cost { reduced: bytes, ..Cost::rounds(steps, 2.0 * bytes) }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const RING: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "ring",
    about: "reduce-scatter and allgather around a ring: huge vectors, few ranks, neighbour links",
    reorders: true,
    rotates: |shape| shape.ring.is_none() && shape.len.is_multiple_of(shape.ranks.into()),
    rounds: |shape| 2 * shape.ranks.max(2) - 2,
    round: ring,
    cost: |case: &Case| {
        let (steps, share) = (2.0 * (case.p() - 1.0), (case.p() - 1.0) / case.p());
        Cost { reduced: case.bytes * share, ..Cost::around(steps, case.bytes * 2.0 * share) }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const SPREAD: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "spread",
    about: "each rank sends its vector to all others at once, and adds up: tiny vectors, few ranks",
    temp: |shape| shape.len * u64::from(shape.ranks),
    rounds: |shape| spread_rounds(shape) + shape.ranks,
    round: spread,
    cost: |case: &Case| {
        let reduced = case.bytes * (case.p() - 1.0);
        Cost { reduced, copied: 2.0 * case.bytes, ..spread_cost(case, case.bytes) }
    },
    ..Algorithm::MESSAGES
};

/// Where recursive doubling keeps its two vectors.
#[derive(Clone, Copy)]
pub(super) struct DoublingBuffers {
    /// The partial result, at first.
    pub(super) mine: Span,
    /// Room for what comes in, at first.
    pub(super) other: Span,
}

impl DoublingBuffers {
    /// The partial result and the room for what comes in, after that many joins as the lower partner: each of them
    /// computes `other = mine op other`, which makes `other` the partial result.
    fn after(self, joins_as_lower: u32) -> (Span, Span) {
        if joins_as_lower.is_multiple_of(2) { (self.mine, self.other) } else { (self.other, self.mine) }
    }
}

pub(super) fn doubling_rounds(shape: &Shape) -> u32 {
    // Copy, fold (send, reduce), levels (exchange, reduce), unfold.
    4 + 2 * Group::of(shape).levels
}

pub(super) fn doubling_cost(case: &Case) -> Cost {
    let levels = case.doublings();
    let steps = levels + 2.0 * case.folds();
    Cost {
        reduced: (levels + case.folds()) * case.bytes,
        copied: case.bytes,
        ..Cost::rounds(steps, steps * case.bytes)
    }
}

/// One round of recursive doubling over the whole of [`Buf::Send`]; in the round after the last it returns where the
/// result is.
pub(super) fn doubling(
    shape: &Shape,
    index: u32,
    buffers: DoublingBuffers,
    round: &mut Round,
) -> Option<Span> {
    let group = Group::of(shape);
    let (role, last) = (group.role(shape.rank), 3 + 2 * group.levels);
    let input = Span { buf: Buf::Send, ..buffers.mine };
    if index == 0 {
        round.copy(Span { at: 0, ..input }, buffers.mine);
        return None;
    }
    let Role::Member { number, ward } = role else {
        match index {
            1 => round.send(shape.rank + 1, buffers.mine),
            _ if index == last => round.recv(shape.rank + 1, buffers.mine),
            _ => {}
        }
        return (index > last).then_some(buffers.mine);
    };
    let levels_done = (index.max(3) - 3).div_ceil(2).min(group.levels);
    let (mine, other) = buffers.after(joins_as_lower(number, levels_done));
    match (index, ward) {
        (1, Some(ward)) => round.recv(ward, other),
        (2, Some(_)) => round.reduce(other, mine),
        (1 | 2, None) => {}
        _ if index < last => {
            let level = (index - 3) / 2;
            let (mine, other) = buffers.after(joins_as_lower(number, level));
            let partner = group.rank(number ^ 1 << level);
            match (index - 3) % 2 {
                0 => {
                    round.recv(partner, other);
                    round.send(partner, mine);
                }
                _ if number >> level & 1 == 0 => round.reduce(mine, other),
                _ => round.reduce(other, mine),
            }
        }
        (_, Some(ward)) if index == last => round.send(ward, mine),
        _ if index == last => {}
        _ => return Some(mine),
    }
    None
}

/// Rounds: fold, halve, put together, unfold. The result comes to be in `buf` at all ranks, or at the root, if there is one.
pub(super) fn rabenseifner(shape: &Shape, index: u32, (buf, root): (Buf, Option<u32>), round: &mut Round) {
    let group = Group::of(shape);
    let data = shape.whole(buf);
    let gets = |rank: u32| root.is_none_or(|root| root == rank);
    let (halved, whole) = (2 + group.levels, 2 + 2 * group.levels);
    let Role::Member { number, ward } = group.role(shape.rank) else {
        match index {
            1 => round.send(shape.rank + 1, shape.whole(Buf::Send)),
            _ if index == whole && gets(shape.rank) => round.recv(shape.rank + 1, data),
            _ => {}
        }
        return;
    };
    if index < 2 {
        fold(shape, index, ward, data, round);
    } else if index < halved {
        halve(shape, group, (number, ward), index - 2, buf, round);
    } else if index < whole {
        let level = group.levels - 1 - (index - halved);
        let partner = number ^ 1 << level;
        let part = |member: u32| Span::new(buf, half(member, level + 1, shape.len));
        // On the way to a root one of the two partners gives what it has to the other one, which is nearer.
        let apart = root.map(|root| (number ^ group.acting(root)) >> level);
        if let None | Some(0) = apart {
            round.recv(group.rank(partner), part(partner));
        }
        if let None | Some(1) = apart {
            round.send(group.rank(partner), part(number));
        }
    } else {
        ward.filter(|&ward| gets(ward)).into_iter().for_each(|ward| round.send(ward, data));
    }
}

/// The two rounds before halving: a single rank copies, and a member combines its vector with that of its ward, the
/// rank that it acts for.
fn fold(shape: &Shape, index: u32, ward: Option<u32>, data: Span, round: &mut Round) {
    if index == 0 && shape.ranks == 1 {
        round.copy(shape.whole(Buf::Send), data);
    } else if let (1, Some(ward)) = (index, ward) {
        let side = Side::Left.unless(shape.commutative);
        round.recv_reduce(ward, Merge::new(shape.whole(Buf::Send), data, side));
    }
}

/// Level `level` of recursive halving in `buf`: each of two partners gets and combines one half of the units that both
/// have. A member's own operand is in Send at level 0, unless it has combined that of its ward before.
fn halve(
    shape: &Shape,
    group: Group,
    (number, ward): (u32, Option<u32>),
    level: u32,
    buf: Buf,
    round: &mut Round,
) {
    let partner = number ^ 1 << level;
    let part = |buf: Buf, member: u32| Span::new(buf, half(member, level + 1, shape.len));
    let side = if partner < number { Side::Left } else { Side::Right };
    let source = if level == 0 && ward.is_none() { Buf::Send } else { buf };
    let merge = Merge::new(part(source, number), part(buf, number), side.unless(shape.commutative));
    round.recv_reduce(group.rank(partner), merge);
    round.send(group.rank(partner), part(source, partner));
}

/// Temp holds the vectors of all ranks, each of which is combined with the one after it.
fn spread(shape: &Shape, index: u32, round: &mut Round) {
    let vector = |rank: u32| Span::new(Buf::Temp, (u64::from(rank) * shape.len, shape.len));
    if index == 0 {
        round.copy(shape.whole(Buf::Send), vector(shape.rank));
    }
    match index.checked_sub(spread_rounds(shape)) {
        None => {
            for (to, from) in others(shape, index) {
                round.recv(from, vector(from));
                round.send(to, shape.whole(Buf::Send));
            }
        }
        Some(rank) if rank + 1 < shape.ranks => round.reduce(vector(rank), vector(rank + 1)),
        Some(last) => round.copy(vector(last), shape.whole(Buf::Recv)),
    }
}

fn ring(shape: &Shape, index: u32, round: &mut Round) {
    if shape.ranks == 1 {
        round.copy(shape.whole(Buf::Send), shape.whole(Buf::Recv));
        return;
    }
    let (me, rounds) = (shape.rank, shape.ranks - 1);
    let (to, from) = (shape.ring_after(me, 1), shape.ring_before(me, 1));
    let part_of = |buf: Buf, distance: u32| Span::new(buf, shape.part(shape.ring_before(me, distance)));
    let part = |distance: u32| part_of(Buf::Recv, distance);
    let done = index;
    if done < rounds {
        round.recv_reduce(from, Merge::new(part_of(Buf::Send, done + 1), part(done + 1), Side::Any));
        round.send(to, if done == 0 { part_of(Buf::Send, 0) } else { part(done) });
    } else {
        // At this point the part of the next rank (distance p - 1) is complete here.
        let done = done - rounds;
        round.recv(from, part(done));
        round.send(to, part((done + rounds) % shape.ranks));
    }
}
