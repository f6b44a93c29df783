//! Reduce_scatter: recursive doubling of the whole vector for few bytes, pairwise exchange for many. Both take
//! blocks of any lengths, which all ranks know, and keep the order of operands.

use super::allreduce::{DoublingBuffers, doubling, doubling_cost, doubling_rounds};
use crate::{Algorithm, Buf, Case, Cost, Kind, Merge, Round, Shape, Side, Span};

pub(crate) const ROWS: &[&Algorithm] = &[&DOUBLING, &PAIRWISE, &DOUBLING_BLOCK, &PAIRWISE_BLOCK];

pub(crate) const DOUBLING: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    name: "doubling",
    about: "allreduce by recursive doubling, each rank keeps its block of the result: few bytes",
    temp: |shape| 2 * shape.sends.start(shape.ranks),
    rounds: |shape| doubling_rounds(shape) + 1,
    round: by_doubling,
    cost: doubling_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const PAIRWISE: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    name: "pairwise",
    about: "p - 1 rounds, each rank gets its block of one other: many bytes",
    temp: |shape| 2 * shape.len,
    rounds: |shape| shape.ranks + 2,
    round: pairwise,
    cost: |case: &Case| {
        let share = (case.p() - 1.0) / case.p();
        let (reduced, copied) = (case.bytes * share, 2.0 * case.bytes / case.p());
        Cost { reduced, copied, ..Cost::rounds(case.p() - 1.0, case.bytes * share) }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const DOUBLING_BLOCK: Algorithm = Algorithm { kind: Kind::ReduceScatterBlock, ..DOUBLING };
pub(crate) const PAIRWISE_BLOCK: Algorithm = Algorithm { kind: Kind::ReduceScatterBlock, ..PAIRWISE };

fn by_doubling(shape: &Shape, index: u32, round: &mut Round) {
    let total = shape.sends.start(shape.ranks);
    let buffers = DoublingBuffers {
        mine: Span::new(Buf::Temp, (0, total)),
        other: Span::new(Buf::Temp, (total, total)),
    };
    if let Some(result) = doubling(shape, index, buffers, round) {
        let (start, len) = shape.sends.block(shape.rank);
        round.copy(Span { at: result.at + start, len, ..result }, shape.whole(Buf::Recv));
    }
}

/// Temp holds this rank's block combined over the ranks from itself down to 0 (`low`), then its block combined over the
/// ranks from the last one down to the next one (`high`). The messages come in the order me - 1, me - 2, ... 0, p - 1,
/// ... me + 1. At last both are combined.
fn pairwise(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks) = (shape.rank, shape.ranks);
    let (low, high) = (Span::new(Buf::Temp, (0, shape.len)), Span::new(Buf::Temp, (shape.len, shape.len)));
    let last = me + 1 == ranks;
    let own = Span::new(Buf::Send, shape.sends.block(me));
    if index == 0 {
        if ranks == 1 {
            round.copy(own, low);
        }
    } else if index < ranks {
        let (to, from) = (shape.after(me, index), shape.before(me, index));
        let side = Side::Left.unless(shape.commutative);
        if from < me {
            round.recv_reduce(from, Merge::new(if index == 1 { own } else { low }, low, side));
        } else if from + 1 == ranks {
            round.recv(from, high);
        } else {
            round.recv_reduce(from, Merge::onto(high, side));
        }
        round.send(to, Span::new(Buf::Send, shape.sends.block(to)));
    } else if index == ranks {
        if !last {
            round.reduce(if me == 0 { own } else { low }, high);
        }
    } else {
        round.copy(if last { low } else { high }, shape.whole(Buf::Recv));
    }
}
