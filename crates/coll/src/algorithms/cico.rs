//! Algorithms over CICO buffers: ranks publish in their own, and read out of the others'. Small data are copied into
//! the CICO buffer (`cico`); large data are exposed, and got by single copy (`single_copy`).
//!
//! Small vectors are combined by every rank, in the order of ranks from the last down, so all get the same bits;
//! of large vectors each rank combines a part.

use super::own;
use crate::{Algorithm, Buf, Case, Cost, Form, Kind, Merge, Needs, Round, Shape, Side, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[
    &BARRIER,
    &BCAST,
    &BCAST_SINGLE_COPY,
    &GATHER,
    &SCATTER,
    &ALLGATHER,
    &ALLGATHERV,
    &ALLTOALL,
    &REDUCE,
    &REDUCE_SINGLE_COPY,
    &ALLREDUCE,
    &ALLREDUCE_SINGLE_COPY,
    &REDUCE_SCATTER,
    &REDUCE_SCATTER_BLOCK,
    &SCAN,
    &EXSCAN,
];

pub(crate) const BARRIER: Algorithm = Algorithm {
    kind: Kind::Barrier,
    name: "cico",
    about: "every rank raises its flag and looks at all others",
    needs: Needs::Inline,
    phases: |_| 1,
    rounds: |_| 3,
    round: barrier,
    cost: |case: &Case| Cost { transfers: case.p() - 1.0, waits: 1.0, ..Cost::default() },
    ..Algorithm::MESSAGES
};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "cico",
    about: "the root publishes, all others copy: small messages on one node",
    needs: Needs::Inline,
    phases: |_| 1,
    rounds: |_| 2,
    round: |shape, index, round| bcast(shape, index, Form::Inline, round),
    cost: |case: &Case| Cost {
        transfers: 1.0 + case.p() / 8.0,
        copied: 2.0 * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..Algorithm::MESSAGES
};

pub(crate) const BCAST_SINGLE_COPY: Algorithm = Algorithm {
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
    ..BCAST
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "cico",
    about: "all publish, all combine: small vectors on one node",
    needs: Needs::Inline,
    phases: |_| 1,
    rounds: |shape| shape.ranks + 2,
    round: |shape, index, round| combine(shape, index, (shape.len, 0), true, round),
    cost: combine_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all publish, the root combines: small vectors on one node",
    round: |shape, index, round| match shape.commutative {
        true => reduce_to_root(shape, index, round),
        false => combine(shape, index, (shape.len, 0), shape.rank == shape.root, round),
    },
    cost: |case: &Case| Cost { transfers: case.p() - 1.0, ..combine_cost(case) },
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm = Algorithm {
    kind: Kind::ReduceScatterBlock,
    about: "all publish, each combines its own block: small vectors on one node",
    round: |shape, index, round| {
        let (all, own) = (shape.sends.start(shape.ranks), shape.sends.start(shape.rank));
        combine(shape, index, (all, own), true, round);
    },
    cost: |case: &Case| {
        let part = case.bytes / case.p();
        let (copied, reduced) = (case.bytes + part, case.bytes - part);
        Cost { transfers: case.p(), copied, reduced, waits: 1.0, ..Cost::default() }
    },
    ..ALLREDUCE
};

pub(crate) const REDUCE_SCATTER: Algorithm = Algorithm { kind: Kind::ReduceScatter, ..REDUCE_SCATTER_BLOCK };

pub(crate) const SCAN: Algorithm = Algorithm {
    kind: Kind::Scan,
    about: "all publish, each combines what those before it did: small vectors on one node",
    round: |shape, index, round| scan(shape, index, shape.rank + 1, round),
    cost: REDUCE.cost,
    ..ALLREDUCE
};

pub(crate) const EXSCAN: Algorithm = Algorithm {
    kind: Kind::Exscan,
    round: |shape, index, round| scan(shape, index, shape.rank, round),
    cost: |case: &Case| {
        let others = case.p() - 1.0;
        let reduced = (others - 1.0).max(0.0) * case.bytes;
        Cost { transfers: others, copied: 2.0 * case.bytes, reduced, waits: 1.0, ..Cost::default() }
    },
    ..SCAN
};

pub(crate) const ALLREDUCE_SINGLE_COPY: Algorithm = Algorithm {
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

pub(crate) const REDUCE_SINGLE_COPY: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "each rank combines a part of all vectors, the root gets the parts: large vectors on one node",
    temp: |shape| part_temp(shape, shape.rank == shape.root),
    round: |shape, index, round| combine_parts(shape, index, shape.rank == shape.root, round),
    cost: |case: &Case| {
        let cost = combine_parts_cost(case);
        // What the others combine in memory of their own is in no cache of the root.
        Cost { copied: cost.reduced, ..cost }
    },
    ..ALLREDUCE_SINGLE_COPY
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "cico",
    about: "all publish, all copy: small blocks on one node",
    needs: Needs::Inline,
    phases: |_| 1,
    rounds: |_| 3,
    round: |shape, index, round| {
        move_blocks(shape, index, Some(shape.len), from_others(shape, 0), round);
    },
    cost: gather_cost,
    ..Algorithm::MESSAGES
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all publish, the root copies: small blocks on one node",
    round: |shape, index, round| {
        let is_root = shape.rank == shape.root;
        let got = from_others(shape, 0).filter(|_| is_root);
        move_blocks(shape, index, (!is_root).then_some(shape.len), got, round);
    },
    ..ALLGATHER
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root publishes all blocks, each copies its own: small blocks on one node",
    needs: Needs::InlineBlocks,
    round: |shape, index, round| {
        let is_root = shape.rank == shape.root;
        let (given, at) = (shape.sends.start(shape.ranks), u64::from(shape.rank) * shape.len);
        let got = (!is_root).then_some((shape.root, at, shape.whole(Buf::Recv)));
        move_blocks(shape, index, is_root.then_some(given), got.into_iter(), round);
    },
    cost: |case: &Case| Cost {
        transfers: 1.0 + case.p() / 8.0,
        copied: (case.p() + 1.0) * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..ALLGATHER
};

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    about: "all publish all blocks, each copies its own: small blocks on one node",
    needs: Needs::InlineBlocks,
    round: |shape, index, round| {
        let got = from_others(shape, shape.sends.start(shape.rank));
        move_blocks(shape, index, Some(shape.sends.start(shape.ranks)), got, round);
    },
    cost: |case: &Case| Cost {
        transfers: case.p() - 1.0,
        copied: 2.0 * case.p() * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..ALLGATHER
};

fn gather_cost(case: &Case) -> Cost {
    Cost { transfers: case.p() - 1.0, copied: (case.p() + 1.0) * case.bytes, waits: 1.0, ..Cost::default() }
}

fn combine_cost(case: &Case) -> Cost {
    Cost {
        transfers: case.p(),
        copied: 2.0 * case.bytes,
        reduced: (case.p() - 1.0) * case.bytes,
        waits: 1.0,
        ..Cost::default()
    }
}

fn combine_parts_cost(case: &Case) -> Cost {
    let others = case.p() - 1.0;
    let share = others / case.p();
    Cost {
        transfers: 3.0 * others,
        reduced: share * case.bytes,
        gets: 2.0 * others,
        got_bytes: 2.0 * share * case.bytes,
        waits: 3.0,
        ..Cost::default()
    }
}

/// All ranks but this one, from the next one on, so that ranks do not all begin with the same one.
fn others(shape: &Shape) -> impl Iterator<Item = u32> {
    (1..shape.ranks).map(|distance| shape.after(shape.rank, distance))
}

/// Waits until all other ranks have acknowledged a phase.
fn wait_acks(shape: &Shape, phase: u32, round: &mut Round) {
    others(shape).for_each(|rank| round.push(Step::WaitAck { rank, phase }));
}

fn barrier(shape: &Shape, index: u32, round: &mut Round) {
    let nothing = Span::new(Buf::Send, (0, 0));
    match index {
        0 => round.push(Step::Publish { from: nothing, phase: 0, form: Form::Inline }),
        1 => others(shape).for_each(|rank| round.push(Step::Await { rank, phase: 0 })),
        _ => round.push(Step::Ack { phase: 0 }),
    }
}

fn bcast(shape: &Shape, index: u32, form: Form, round: &mut Round) {
    let (root, data) = (shape.root, shape.whole(Buf::Recv));
    match index {
        0 if shape.rank == root => round.push(Step::Publish { from: data, phase: 0, form }),
        0 => round.push(Step::Get { rank: root, phase: 0, at: 0, into: data }),
        1 => round.push(Step::Ack { phase: 0 }),
        // The root's buffer goes back to the user only when nobody reads it any more.
        _ if shape.rank == root => wait_acks(shape, 0, round),
        _ => {}
    }
}

/// Publishes the first `len` units of this rank's send buffer.
fn publish_send(len: u64, round: &mut Round) {
    let from = Span::new(Buf::Send, (0, len));
    round.push(Step::Publish { from, phase: 0, form: Form::Inline });
}

/// Rounds: publish the first `given` units, if any, and copy the own block; get what others published: of which rank, from
/// which unit on, whereto; acknowledge.
fn move_blocks(
    shape: &Shape,
    index: u32,
    given: Option<u64>,
    got: impl Iterator<Item = (u32, u64, Span)>,
    round: &mut Round,
) {
    match index {
        0 => {
            given.into_iter().for_each(|len| publish_send(len, round));
            own(shape, round);
        }
        1 => got.for_each(|(rank, at, into)| round.push(Step::Get { rank, phase: 0, at, into })),
        _ => round.push(Step::Ack { phase: 0 }),
    }
}

/// What a rank gets of all others: a block from each one's unit `at` on.
fn from_others(shape: &Shape, at: u64) -> impl Iterator<Item = (u32, u64, Span)> {
    others(shape).map(move |rank| (rank, at, Span::new(Buf::Recv, shape.recvs.block(rank))))
}

/// All but the root publish; the root combines their vectors with its own, in any order of ranks.
fn reduce_to_root(shape: &Shape, index: u32, round: &mut Round) {
    let (is_root, into) = (shape.rank == shape.root, shape.whole(Buf::Recv));
    if index == 0 {
        match is_root {
            true => round.copy(shape.whole(Buf::Send), into),
            false => publish_send(shape.len, round),
        }
    } else if index > shape.ranks {
        round.push(Step::Ack { phase: 0 });
    } else if is_root && index < shape.ranks {
        let (rank, merge) = (shape.after(shape.root, index), Merge::onto(into, Side::Left));
        round.push(Step::GetReduce { rank, phase: 0, at: 0, merge });
    }
}

/// Rounds: publish the first `all` units; if this rank `gets_result`, combine what the ranks published from
/// unit `own` on, the last rank's first; acknowledge.
fn combine(shape: &Shape, index: u32, (all, own): (u64, u64), gets_result: bool, round: &mut Round) {
    if index == 0 {
        publish_send(all, round);
    } else if index > shape.ranks {
        round.push(Step::Ack { phase: 0 });
    } else if gets_result {
        combine_next(shape.ranks - index, shape.ranks, own, shape.whole(Buf::Recv), round);
    }
}

/// `into = data op into` with the data that `rank` published, from its unit `at` on; those of the last of `ranks` are
/// copied, as they come first.
fn combine_next(rank: u32, ranks: u32, at: u64, into: Span, round: &mut Round) {
    match rank + 1 == ranks {
        true => round.push(Step::Get { rank, phase: 0, at, into }),
        false => {
            let merge = Merge::onto(into, Side::Left);
            round.push(Step::GetReduce { rank, phase: 0, at, merge });
        }
    }
}

/// Rounds: publish, unless this rank is the last; combine the vectors of the first `ranks` ranks; acknowledge.
fn scan(shape: &Shape, index: u32, ranks: u32, round: &mut Round) {
    let into = shape.whole(Buf::Recv);
    if index == 0 {
        if shape.rank + 1 < shape.ranks {
            publish_send(shape.len, round);
        }
        if ranks > shape.rank {
            round.copy(shape.whole(Buf::Send), into);
        }
    } else if index > shape.ranks {
        round.push(Step::Ack { phase: 0 });
    } else if index <= ranks && ranks - index != shape.rank {
        combine_next(ranks - index, ranks, 0, into, round);
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
