//! Scan and exscan: recursive doubling for small vectors, a pipelined chain for large ones.

use super::{pipelined, segments};
use crate::{Algorithm, Buf, Case, Cost, Kind, Merge, Round, Shape, Side, Span, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&DOUBLING, &CHAIN, &EXCLUSIVE_DOUBLING, &EXCLUSIVE_CHAIN];

pub(crate) const DOUBLING: Algorithm = Algorithm {
    kind: Kind::Scan,
    name: "doubling",
    about: "log2(p) exchanges of partial results: small vectors",
    temp: |shape| 2 * shape.len,
    rounds: |shape| 1 + 2 * log2_up(shape.ranks),
    round: |shape, index, round| doubling(shape, index, true, round),
    cost: |case| Cost {
        reduced: 2.0 * case.lg() * case.bytes,
        copied: 2.0 * case.bytes,
        ..Cost::rounds(case.lg(), case.lg() * case.bytes)
    },
    ..Algorithm::MESSAGES
};

pub(crate) const CHAIN: Algorithm = Algorithm {
    kind: Kind::Scan,
    name: "chain",
    about: "each rank passes its prefix on, in segments: large vectors, few ranks",
    rounds: |shape| 2 + cut(shape).1,
    round: chain,
    cost: |case: &Case| chain_cost(Kind::Scan, case),
    ..Algorithm::MESSAGES
};

pub(crate) const EXCLUSIVE_DOUBLING: Algorithm = Algorithm {
    kind: Kind::Exscan,
    round: |shape, index, round| doubling(shape, index, false, round),
    ..DOUBLING
};

pub(crate) const EXCLUSIVE_CHAIN: Algorithm = Algorithm {
    kind: Kind::Exscan,
    temp: |shape| if shape.passes_on() { shape.len } else { 0 },
    rounds: |shape| 3 + cut(shape).1,
    round: exclusive_chain,
    cost: |case: &Case| chain_cost(Kind::Exscan, case),
    ..CHAIN
};

/// How many messages a segment goes through, or waits for: in an exclusive scan a rank passes a segment on when the one behind the next one is
/// there.
fn stages(kind: Kind, ranks: u32) -> u32 {
    let hops = ranks.saturating_sub(1);
    if kind == Kind::Exscan { (2 * hops).saturating_sub(1) } else { hops }
}

/// Units of a segment, and the number of segments.
fn cut(shape: &Shape) -> (u64, u32) {
    segments(shape, stages(shape.kind, shape.ranks))
}

fn chain_cost(kind: Kind, case: &Case) -> Cost {
    let (rounds, bytes) = pipelined(case, stages(kind, case.ranks), case.ranks.saturating_sub(1));
    let reduced = if kind.combines(case.ranks) { bytes } else { 0.0 };
    Cost { reduced, ..Cost::rounds(rounds, bytes) }
}

/// Temp holds the combination of all ranks met so far (the partial result), and room for what comes in; combining as
/// the lower partner makes the two change roles. Recv holds the combination of those ranks met that are below this one.
fn doubling(shape: &Shape, index: u32, inclusive: bool, round: &mut Round) {
    let (me, result) = (shape.rank, shape.whole(Buf::Recv));
    let halves = [Span::new(Buf::Temp, (0, shape.len)), Span::new(Buf::Temp, (shape.len, shape.len))];
    if index == 0 {
        round.copy(shape.whole(Buf::Send), halves[0]);
        if inclusive {
            round.copy(shape.whole(Buf::Send), result);
        }
        return;
    }
    let level = (index - 1) / 2;
    let partner = |level: u32| me ^ 1 << level;
    if partner(level) >= shape.ranks {
        return;
    }
    let flips = (0..level).filter(|&l| partner(l) > me && partner(l) < shape.ranks).count() % 2;
    let (partial, incoming) = (halves[flips], halves[1 - flips]);
    let partner = partner(level);
    if (index - 1).is_multiple_of(2) {
        round.recv(partner, incoming);
        round.send(partner, partial);
    } else if partner > me {
        round.reduce(partial, incoming);
    } else {
        round.reduce(incoming, partial);
        let first = me & ((1 << level) - 1) == 0;
        if first && !inclusive {
            round.copy(incoming, result);
        } else {
            round.reduce(incoming, result);
        }
    }
}

fn segment(shape: &Shape, buf: Buf, index: u32) -> Span {
    let size = cut(shape).0;
    let at = u64::from(index) * size;
    Span::new(buf, (at, size.min(shape.len.saturating_sub(at))))
}

/// Segment i arrives and is combined in round i + 1, and is passed on in round i + 2.
fn chain(shape: &Shape, index: u32, round: &mut Round) {
    let (me, number) = (shape.rank, cut(shape).1);
    if index == 0 {
        if me == 0 {
            round.copy(shape.whole(Buf::Send), shape.whole(Buf::Recv));
        }
        return;
    }
    if me > 0 && index <= number {
        let i = index - 1;
        // One rank alone computes each prefix and passes it on, so all ranks that use it have the same bits.
        let side = Side::Left.unless(shape.commutative);
        let merge = Merge::new(segment(shape, Buf::Send, i), segment(shape, Buf::Recv, i), side);
        round.keyed(i).recv_reduce(me - 1, merge);
    }
    if me + 1 < shape.ranks && index >= 2 {
        let i = index - 2;
        round.keyed(i).send(me + 1, segment(shape, Buf::Recv, i));
    }
}

/// Segment i arrives in round i + 1, is combined into Temp in round i + 2, and is passed on in round i + 3. The first rank passes its vector
/// on as it is.
fn exclusive_chain(shape: &Shape, index: u32, round: &mut Round) {
    let (me, number) = (shape.rank, cut(shape).1);
    let last = me + 1 == shape.ranks;
    if index == 0 {
        if shape.passes_on() {
            round.copy(shape.whole(Buf::Send), shape.whole(Buf::Temp));
        }
        return;
    }
    if me > 0 && index <= number {
        round.keyed(index - 1).recv(me - 1, segment(shape, Buf::Recv, index - 1));
    }
    if shape.passes_on() && (2..2 + number).contains(&index) {
        round.reduce(segment(shape, Buf::Recv, index - 2), segment(shape, Buf::Temp, index - 2));
    }
    if !last && index >= 3 {
        let from = if me == 0 { Buf::Send } else { Buf::Temp };
        round.keyed(index - 3).send(me + 1, segment(shape, from, index - 3));
    }
}
