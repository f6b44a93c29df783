//! Algorithms over CICO buffers (`cico`): ranks publish small data in their own, and read out of the others'. Vectors are combined by
//! every rank, in the order of ranks from the last down, so all get the same bits.

use super::own;
use crate::{Algorithm, Buf, Case, Cost, Form, Kind, Merge, Needs, Round, Shape, Side, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[
    &BARRIER,
    &BCAST,
    &GATHER,
    &SCATTER,
    &ALLGATHER,
    &ALLGATHERV,
    &ALLTOALL,
    &REDUCE,
    &ALLREDUCE,
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
        transfers: read_by_others(case),
        published: 2.0 * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..Algorithm::MESSAGES
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
    cost: combine_cost,
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
        let (published, reduced) = (case.bytes + part, case.bytes - part);
        Cost { transfers: case.p() - 1.0, published, reduced, waits: 1.0, ..Cost::default() }
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
        Cost { transfers: others, published: 2.0 * case.bytes, reduced, waits: 1.0, ..Cost::default() }
    },
    ..SCAN
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "cico",
    about: "all publish, all copy: small blocks on one node",
    needs: Needs::Inline,
    phases: |_| 1,
    rounds: |_| 3,
    round: |shape, index, round| move_blocks(shape, index, Form::Inline, round),
    cost: |case: &Case| {
        let published = (case.p() + 1.0) * case.bytes;
        Cost { transfers: case.p() - 1.0, published, waits: 1.0, ..Cost::default() }
    },
    ..Algorithm::MESSAGES
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all publish, the root copies: small blocks on one node",
    cost: |case: &Case| {
        let published = case.p() * case.bytes;
        Cost { transfers: case.p() - 1.0, published, waits: 1.0, ..Cost::default() }
    },
    ..ALLGATHER
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root publishes all blocks, each copies its own: small blocks on one node",
    needs: Needs::InlineBlocks,
    cost: |case: &Case| Cost {
        transfers: read_by_others(case),
        published: (case.p() + 1.0) * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..ALLGATHER
};

pub(crate) const ALLTOALL: Algorithm = Algorithm {
    kind: Kind::Alltoall,
    about: "all publish all blocks, each copies its own: small blocks on one node",
    needs: Needs::InlineBlocks,
    cost: |case: &Case| Cost {
        transfers: case.p() - 1.0,
        published: (2.0 * case.p() - 1.0) * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..ALLGATHER
};

/// Transfers of a line that all other ranks read: one after the other, but each takes little beside the first.
fn read_by_others(case: &Case) -> f64 {
    1.0 + (case.p() - 2.0).max(0.0) / 8.0
}

fn combine_cost(case: &Case) -> Cost {
    Cost {
        transfers: case.p() - 1.0,
        published: 2.0 * case.bytes,
        reduced: (case.p() - 1.0) * case.bytes,
        waits: 1.0,
        ..Cost::default()
    }
}

/// All ranks but this one, from the next one on, so that ranks do not all begin with the same one.
pub(super) fn others(shape: &Shape) -> impl Iterator<Item = u32> {
    (1..shape.ranks).map(|distance| shape.after(shape.rank, distance))
}

/// Waits until all other ranks have acknowledged a phase.
pub(super) fn wait_acks(shape: &Shape, phase: u32, round: &mut Round) {
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

pub(super) fn bcast(shape: &Shape, index: u32, form: Form, round: &mut Round) {
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

/// Rounds: publish what others get of this rank, if any, and copy the own block; get the blocks of others; acknowledge; what was
/// exposed goes back to the user only when nobody reads it any more.
pub(super) fn move_blocks(shape: &Shape, index: u32, form: Form, round: &mut Round) {
    use Kind::*;
    let &Shape { kind, rank: me, ranks, root, len, .. } = shape;
    let is_root = me == root;
    let (gives, gets) = match kind {
        Gather => (!is_root, is_root),
        Scatter => (is_root, !is_root),
        _ => (true, true),
    };
    // What a rank gives, and from which unit on another one's block for this rank lies in what that one gives.
    let (given, at) = match kind {
        Scatter | Alltoall => (shape.sends.start(ranks), u64::from(me) * len),
        _ => (len, 0),
    };
    match index {
        0 => {
            if gives {
                round.push(Step::Publish { from: Span::new(Buf::Send, (0, given)), phase: 0, form });
            }
            own(shape, round);
        }
        1 if gets => {
            for rank in others(shape).filter(|&rank| kind != Scatter || rank == root) {
                let block = if kind == Scatter { (0, len) } else { shape.recvs.block(rank) };
                round.push(Step::Get { rank, phase: 0, at, into: Span::new(Buf::Recv, block) });
            }
        }
        1 => {}
        2 => round.push(Step::Ack { phase: 0 }),
        _ if gives => wait_acks(shape, 0, round),
        _ => {}
    }
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
