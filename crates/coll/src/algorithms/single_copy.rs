//! Algorithms for large data on one node (`single_copy`): ranks expose their memory by way of the CICO buffers, and get out of that of
//! others, or put into it. Of a vector that is reduced each rank combines a part.

use super::cico::{self, bcast, move_blocks, others, wait_acks};
use super::own;
use super::sub_buffers::one_for_each;
use crate::{Algorithm, Buf, Case, Cost, Form, Kind, Merge, Needs, Round, Shape, Side, Span, Step};

pub(crate) const ROWS: &[&Algorithm] =
    &[&BCAST, &GATHER, &SCATTER, &ALLGATHER, &ALLGATHERV, &ALLTOALL, &REDUCE, &ALLREDUCE, &EXSCAN];

pub(crate) const BCAST: Algorithm = Algorithm {
    name: "single_copy",
    about: "all others get it out of the root's memory: large messages on one node",
    needs: Needs::SingleCopy,
    rounds: |_| 3,
    round: |shape, index, round| bcast(shape, index, Form::Exposed, round),
    cost: |case: &Case| Cost {
        transfers: 1.0 + case.p(),
        gets: 1.0,
        got_bytes: case.bytes,
        shared_bytes: if case.ranks > 2 { case.bytes } else { 0.0 },
        waits: 2.0,
        ..Cost::default()
    },
    ..cico::BCAST
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    name: "single_copy",
    about: "all get the blocks out of the others' memory: large blocks on one node",
    needs: Needs::SingleCopy,
    rounds: |_| 4,
    round: |shape, index, round| move_blocks(shape, index, Form::Exposed, round),
    cost: |case: &Case| {
        let shared_bytes = if case.ranks > 2 { (case.p() - 1.0) * case.bytes } else { 0.0 };
        Cost { shared_bytes, ..(ALLTOALL.cost)(case) }
    },
    ..cico::ALLGATHER
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        Cost {
            transfers: 2.0 * others,
            copied: case.bytes,
            gets: others,
            got_bytes: others * case.bytes,
            waits: 2.0,
            ..Cost::default()
        }
    },
    ..ALLGATHER
};

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    name: "single_copy",
    about: "each puts its block into the root's memory, all at a time: large blocks on one node",
    needs: Needs::Offers,
    phases: |_| 1,
    rounds: |_| 5,
    round: gather,
    cost: |case: &Case| Cost {
        transfers: case.p(),
        copied: case.bytes,
        puts: 1.0,
        put_bytes: case.bytes,
        waits: 2.0,
        ..Cost::default()
    },
    ..Algorithm::MESSAGES
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "each gets its block out of the root's memory: large blocks on one node",
    cost: |case: &Case| Cost { shared_bytes: 0.0, ..(BCAST.cost)(case) },
    ..ALLGATHER
};

pub(crate) const EXSCAN: Algorithm = Algorithm {
    kind: Kind::Exscan,
    name: "single_copy",
    about: "each rank gets the prefix out of the memory of the one before it: two ranks on one node",
    needs: Needs::SingleCopy,
    phases: |_| 1,
    temp: |shape| if shape.passes_on() { shape.len } else { 0 },
    rounds: |_| 6,
    round: exclusive_chain,
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        let combined = (others - 1.0).max(0.0) * case.bytes;
        Cost {
            transfers: 2.0 * others,
            gets: others,
            got_bytes: others * case.bytes,
            fresh_bytes: combined,
            reduced: combined,
            copied: combined,
            waits: 1.0 + others,
            ..Cost::default()
        }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "single_copy",
    about: "each rank combines a part of all vectors, all get the parts: large vectors on one node",
    needs: Needs::SingleCopy,
    phases: |_| 2,
    temp: |shape| part_temp(shape, true),
    rounds: |shape| shape.ranks + 5,
    round: |shape, index, round| combine_parts(shape, index, true, round),
    cost: combine_parts_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "each rank combines a part of all vectors, the root gets the parts: large vectors on one node",
    temp: |shape| part_temp(shape, shape.rank == shape.root),
    round: |shape, index, round| combine_parts(shape, index, shape.rank == shape.root, round),
    cost: |case: &Case| {
        let cost = combine_parts_cost(case);
        // What the others combine in memory of their own is in no cache of the root.
        Cost { copied: cost.reduced, ..cost }
    },
    ..ALLREDUCE
};

fn combine_parts_cost(case: &Case) -> Cost {
    let others = case.p() - 1.0;
    let share = others / case.p();
    Cost {
        transfers: 3.0 * others,
        reduced: share * case.bytes,
        gets: 2.0 * others,
        got_bytes: 2.0 * share * case.bytes,
        fresh_bytes: share * case.bytes,
        waits: 3.0,
        ..Cost::default()
    }
}

/// Rounds: offer the root's memory, a block to each; publish that; put the own block there, or copy it; wait for the blocks of all
/// others, or acknowledge; acknowledge at the root.
fn gather(shape: &Shape, index: u32, round: &mut Round) {
    let (me, root, phase) = (shape.relative(), shape.root, 0);
    let sub_buffer = |distance: u32| one_for_each(shape, distance);
    let blocks = (1..shape.ranks).map(|distance| {
        let rank = shape.after(root, distance);
        (distance, rank, Span::new(Buf::Recv, shape.recvs.block(rank)))
    });
    match (index, me) {
        (0, 0) => {
            for (distance, _, into) in blocks {
                round.push(Step::Offer {
                    range: into,
                    gives: false,
                    phase,
                    sub_buffer: sub_buffer(distance),
                });
            }
        }
        (1, 0) if shape.ranks > 1 => {
            let from = Span::new(Buf::Send, (0, 0));
            round.push(Step::Publish { from, phase, form: Form::Packed });
        }
        (2, 0) => own(shape, round),
        (2, _) => {
            let from = shape.whole(Buf::Send);
            round.push(Step::Put { rank: root, phase, sub_buffer: sub_buffer(me), from });
        }
        (3, 0) => blocks.for_each(|(_, rank, into)| round.push(Step::AwaitPut { rank, phase, into })),
        (3, _) | (4, 0) => round.push(Step::Ack { phase }),
        _ => {}
    }
}

/// Rounds: copy the own vector, in place of which the prefix may come; get the prefix; combine both; expose them for the next rank;
/// acknowledge; wait until all have acknowledged. The first rank exposes its vector as it is.
fn exclusive_chain(shape: &Shape, index: u32, round: &mut Round) {
    let (rank, first, last) = (shape.rank, shape.rank == 0, shape.rank + 1 == shape.ranks);
    let [own, prefix, both] = [Buf::Send, Buf::Recv, Buf::Temp].map(|buf| shape.whole(buf));
    match index {
        0 if shape.passes_on() => round.copy(own, both),
        1 if !first => round.push(Step::Get { rank: rank - 1, phase: 0, at: 0, into: prefix }),
        2 if shape.passes_on() => round.reduce(prefix, both),
        3 if !last => {
            let from = if first { own } else { both };
            round.push(Step::Publish { from, phase: 0, form: Form::Exposed });
        }
        4 => round.push(Step::Ack { phase: 0 }),
        5 if !last => wait_acks(shape, 0, round),
        _ => {}
    }
}

/// Where a rank combines its part of a large vector. If the operation commutes it starts from its own units, also where
/// they are in place. Otherwise it keeps the order of ranks, so it needs its own units until their turn comes, and
/// combines in Temp.
fn part(shape: &Shape, gets_result: bool) -> Span {
    let part = shape.part(shape.rank);
    match gets_result && shape.commutative {
        true => Span::new(Buf::Recv, part),
        false => Span::new(Buf::Temp, (0, part.1)),
    }
}

/// Units of Temp for [`part`].
fn part_temp(shape: &Shape, gets_result: bool) -> u64 {
    let part = part(shape, gets_result);
    if part.buf == Buf::Temp { part.len } else { 0 }
}

/// Rounds: expose the vector, combine this rank's part of all vectors, expose that part, get the parts of the others
/// (if this rank `gets_result`), acknowledge, and wait until all others have acknowledged.
fn combine_parts(shape: &Shape, index: u32, gets_result: bool, round: &mut Round) {
    let (me, ranks, form) = (shape.rank, shape.ranks, Form::Exposed);
    let part = part(shape, gets_result);
    if index == 0 {
        round.push(Step::Publish { from: shape.whole(Buf::Send), phase: 0, form });
    } else if index <= ranks {
        combine_part(shape, index, part, round);
    } else if index == ranks + 1 {
        round.push(Step::Ack { phase: 0 });
        round.push(Step::Publish { from: part, phase: 1, form });
    } else if index == ranks + 2 {
        for rank in others(shape).filter(|_| gets_result) {
            let into = Span::new(Buf::Recv, shape.part(rank));
            round.push(Step::Get { rank, phase: 1, at: 0, into });
        }
        if gets_result && part.buf == Buf::Temp {
            round.copy(part, Span::new(Buf::Recv, shape.part(me)));
        }
    } else if index == ranks + 3 {
        round.push(Step::Ack { phase: 1 });
    } else {
        wait_acks(shape, 1, round);
    }
}

/// Combines the vector of one rank in round `index`, from 1 on: of the ranks after this one in turn, or, where the
/// order counts, of all ranks from the last one down.
fn combine_part(shape: &Shape, index: u32, part: Span, round: &mut Round) {
    let (me, ranks, phase) = (shape.rank, shape.ranks, 0);
    let (at, len) = shape.part(me);
    let own = Span::new(Buf::Send, (at, len));
    if shape.commutative {
        if ranks == 1 {
            round.copy(own, part);
        } else if index < ranks {
            let merge = Merge::new(if index == 1 { own } else { part }, part, Side::Any);
            round.push(Step::GetReduce { rank: shape.after(me, index), phase, at, merge });
        }
        return;
    }
    let rank = ranks - index;
    match (rank == me, rank + 1 == ranks) {
        (true, true) => round.copy(own, part),
        (true, false) => round.reduce(own, part),
        (false, true) => round.push(Step::Get { rank, phase, at, into: part }),
        (false, false) => {
            round.push(Step::GetReduce { rank, phase, at, merge: Merge::onto(part, Side::Left) });
        }
    }
}
