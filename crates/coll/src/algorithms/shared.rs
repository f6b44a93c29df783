//! Shared-memory forms: ranks publish in slots, and read out of each other's. Small data go inline; of large
//! data the address is published, and pulled by single copy.
//!
//! Small vectors are combined by every rank, in the order of ranks from the last down, so all get the same bits;
//! of large ones each rank combines a part.

use super::{alltoall, gather, no_chunks, no_temp, scatter};
use crate::{Algorithm, Buf, Case, Cost, Form, Kind, Merge, Needs, Round, Shape, Side, Span, Step};

pub(crate) const BARRIER: Algorithm = Algorithm {
    kind: Kind::Barrier,
    name: "shared",
    about: "every rank raises its flag and looks at all others",
    needs: Needs::Inline,
    reorders: false,
    phases: |_| 1,
    chunks: no_chunks,
    temp: no_temp,
    rounds: |_| 3,
    round: barrier,
    cost: |case: &Case| Cost { hops: case.p() - 1.0, waits: 1.0, ..Cost::default() },
};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "shared",
    about: "the root publishes, all others copy: small messages on one node",
    needs: Needs::Inline,
    reorders: false,
    phases: |_| 1,
    chunks: no_chunks,
    temp: no_temp,
    rounds: |_| 2,
    round: |shape, index, round| bcast(shape, index, Form::Inline, round),
    cost: |case: &Case| Cost {
        hops: 1.0 + case.p() / 8.0,
        copied: 2.0 * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
};

pub(crate) const BCAST_PULL: Algorithm = Algorithm {
    name: "pull",
    about: "all others pull out of the root's buffer: large messages on one node",
    needs: Needs::Regions,
    rounds: |_| 3,
    round: |shape, index, round| bcast(shape, index, Form::Region, round),
    cost: |case: &Case| Cost {
        hops: 1.0 + case.p(),
        pulls: 1.0,
        pulled: case.bytes,
        waits: 2.0,
        ..Cost::default()
    },
    ..BCAST
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "shared",
    about: "all publish, all combine: small vectors on one node",
    needs: Needs::Inline,
    reorders: false,
    phases: |_| 1,
    chunks: no_chunks,
    temp: no_temp,
    rounds: |shape| shape.ranks + 2,
    round: |shape, index, round| combine(shape, index, (shape.len, 0), true, round),
    cost: combine_cost,
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "all publish, the root combines: small vectors on one node",
    round: |shape, index, round| match shape.commutative {
        true => collect(shape, index, round),
        false => combine(shape, index, (shape.len, 0), shape.rank == shape.root, round),
    },
    cost: |case: &Case| Cost { hops: case.p() - 1.0, ..combine_cost(case) },
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
        Cost { hops: case.p(), copied, reduced, waits: 1.0, ..Cost::default() }
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
        Cost { hops: others, copied: 2.0 * case.bytes, reduced, waits: 1.0, ..Cost::default() }
    },
    ..SCAN
};

pub(crate) const ALLREDUCE_PULL: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "pull",
    about: "each rank combines a part of all buffers, all pull the parts: large vectors on one node",
    needs: Needs::Regions,
    reorders: false,
    phases: |_| 2,
    chunks: no_chunks,
    temp: |shape| part_temp(shape, true),
    rounds: |shape| shape.ranks + 5,
    round: |shape, index, round| combine_parts(shape, index, true, round),
    cost: combine_parts_cost,
};

pub(crate) const REDUCE_PULL: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "each rank combines a part of all buffers, the root pulls the parts: large vectors on one node",
    temp: |shape| part_temp(shape, shape.rank == shape.root),
    round: |shape, index, round| combine_parts(shape, index, shape.rank == shape.root, round),
    ..ALLREDUCE_PULL
};

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    name: "shared",
    about: "all publish, all copy: small blocks on one node",
    needs: Needs::Inline,
    reorders: false,
    phases: |_| 1,
    chunks: no_chunks,
    temp: no_temp,
    rounds: |_| 3,
    round: |shape, index, round| all_gather(shape, index, (true, true), round),
    cost: gather_cost,
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const GATHER: Algorithm = Algorithm {
    kind: Kind::Gather,
    about: "all publish, the root copies: small blocks on one node",
    round: |shape, index, round| {
        let is_root = shape.rank == shape.root;
        all_gather(shape, index, (!is_root, is_root), round);
    },
    ..ALLGATHER
};

pub(crate) const SCATTER: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root publishes all blocks, each copies its own: small blocks on one node",
    needs: Needs::InlineBlocks,
    round: from_root,
    cost: |case: &Case| Cost {
        hops: 1.0 + case.p() / 8.0,
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
    round: all_to_all,
    cost: |case: &Case| Cost {
        hops: case.p() - 1.0,
        copied: 2.0 * case.p() * case.bytes,
        waits: 1.0,
        ..Cost::default()
    },
    ..ALLGATHER
};

fn gather_cost(case: &Case) -> Cost {
    Cost { hops: case.p() - 1.0, copied: (case.p() + 1.0) * case.bytes, waits: 1.0, ..Cost::default() }
}

fn combine_cost(case: &Case) -> Cost {
    Cost {
        hops: case.p(),
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
        hops: 3.0 * others,
        reduced: share * case.bytes,
        pulls: 2.0 * others,
        pulled: 2.0 * share * case.bytes,
        waits: 3.0,
        ..Cost::default()
    }
}

/// All ranks but this one, those behind it first, so that not all look at the same rank.
fn others(shape: &Shape) -> impl Iterator<Item = u32> {
    (1..shape.ranks).map(|distance| shape.after(shape.rank, distance))
}

fn drain(shape: &Shape, phase: u32, round: &mut Round) {
    others(shape).for_each(|rank| round.push(Step::Drain { rank, phase }));
}

fn barrier(shape: &Shape, index: u32, round: &mut Round) {
    let nothing = Span::new(Buf::Send, (0, 0));
    match index {
        0 => round.push(Step::Publish { from: nothing, phase: 0, form: Form::Inline }),
        1 => others(shape).for_each(|rank| round.push(Step::Await { rank, phase: 0 })),
        _ => round.push(Step::Release { phase: 0 }),
    }
}

fn bcast(shape: &Shape, index: u32, form: Form, round: &mut Round) {
    let (root, data) = (shape.root, shape.whole(Buf::Recv));
    match index {
        0 if shape.rank == root => round.push(Step::Publish { from: data, phase: 0, form }),
        0 => round.push(Step::Pull { rank: root, phase: 0, at: 0, into: data }),
        1 => round.push(Step::Release { phase: 0 }),
        // The root's buffer is the user's again only when nobody reads it any more.
        _ if shape.rank == root => drain(shape, 0, round),
        _ => {}
    }
}

/// What a rank gives, for all to see.
fn show(len: u64, round: &mut Round) {
    let from = Span::new(Buf::Send, (0, len));
    round.push(Step::Publish { from, phase: 0, form: Form::Inline });
}

/// Publish if this rank `gives` something to others, copy its own block and what all others published if it `gets` all, release.
fn all_gather(shape: &Shape, index: u32, (gives, gets): (bool, bool), round: &mut Round) {
    match index {
        0 => {
            if gives {
                show(shape.len, round);
            }
            if gets {
                gather::own(shape, round);
            }
        }
        1 if gets => {
            for rank in others(shape) {
                let into = Span::new(Buf::Recv, shape.recvs.block(rank));
                round.push(Step::Pull { rank, phase: 0, at: 0, into });
            }
        }
        1 => {}
        _ => round.push(Step::Release { phase: 0 }),
    }
}

fn from_root(shape: &Shape, index: u32, round: &mut Round) {
    let (rank, is_root) = (shape.root, shape.rank == shape.root);
    match index {
        0 if is_root => {
            show(shape.sends.start(shape.ranks), round);
            scatter::own(shape, round);
        }
        1 if !is_root => {
            let at = u64::from(shape.rank) * shape.len;
            round.push(Step::Pull { rank, phase: 0, at, into: shape.whole(Buf::Recv) });
        }
        0 | 1 => {}
        _ => round.push(Step::Release { phase: 0 }),
    }
}

fn all_to_all(shape: &Shape, index: u32, round: &mut Round) {
    match index {
        0 => {
            show(shape.sends.start(shape.ranks), round);
            alltoall::own(shape, round);
        }
        1 => {
            for rank in others(shape) {
                let into = Span::new(Buf::Recv, shape.recvs.block(rank));
                round.push(Step::Pull { rank, phase: 0, at: shape.sends.start(shape.rank), into });
            }
        }
        _ => round.push(Step::Release { phase: 0 }),
    }
}

/// All but the root publish; the root combines that with its own, in any order.
fn collect(shape: &Shape, index: u32, round: &mut Round) {
    let (is_root, into) = (shape.rank == shape.root, shape.whole(Buf::Recv));
    if index == 0 {
        match is_root {
            true => round.copy(shape.whole(Buf::Send), into),
            false => show(shape.len, round),
        }
    } else if index > shape.ranks {
        round.push(Step::Release { phase: 0 });
    } else if is_root && index < shape.ranks {
        let (rank, merge) = (shape.after(shape.root, index), Merge::onto(into, Side::Left));
        round.push(Step::PullReduce { rank, phase: 0, at: 0, merge });
    }
}

/// Publish so many units, combine those from `own` on of what all published (if this rank wants it), release.
fn combine(shape: &Shape, index: u32, (all, own): (u64, u64), wanted: bool, round: &mut Round) {
    if index == 0 {
        show(all, round);
    } else if index > shape.ranks {
        round.push(Step::Release { phase: 0 });
    } else if wanted {
        combine_from(shape.ranks - index, shape.ranks, own, shape.whole(Buf::Recv), round);
    }
}

/// `into = what rank published op into`, where that of the last of `ranks` is what the others are combined with.
fn combine_from(rank: u32, ranks: u32, at: u64, into: Span, round: &mut Round) {
    match rank + 1 == ranks {
        true => round.push(Step::Pull { rank, phase: 0, at, into }),
        false => {
            let merge = Merge::onto(into, Side::Left);
            round.push(Step::PullReduce { rank, phase: 0, at, merge });
        }
    }
}

/// Publish, unless nobody is behind this rank; combine what the first `ranks` gave, release.
fn scan(shape: &Shape, index: u32, ranks: u32, round: &mut Round) {
    let into = shape.whole(Buf::Recv);
    if index == 0 {
        if shape.rank + 1 < shape.ranks {
            show(shape.len, round);
        }
        if ranks > shape.rank {
            round.copy(shape.whole(Buf::Send), into);
        }
    } else if index > shape.ranks {
        round.push(Step::Release { phase: 0 });
    } else if index <= ranks && ranks - index != shape.rank {
        combine_from(ranks - index, ranks, 0, into, round);
    }
}

/// Where a rank combines its part of a large vector. If the operation commutes it starts from its own, in
/// place too; else it keeps the order of ranks, and needs its own until its turn comes.
fn part(shape: &Shape, wanted: bool) -> Span {
    let part = shape.part(shape.rank);
    match wanted && shape.commutative {
        true => Span::new(Buf::Recv, part),
        false => Span::new(Buf::Temp, (0, part.1)),
    }
}

fn part_temp(shape: &Shape, wanted: bool) -> u64 {
    let part = part(shape, wanted);
    if part.buf == Buf::Temp { part.len } else { 0 }
}

/// Publish all, combine this rank's part, publish that, pull the parts of the others (if this rank wants them).
fn combine_parts(shape: &Shape, index: u32, wanted: bool, round: &mut Round) {
    let (me, ranks, form) = (shape.rank, shape.ranks, Form::Region);
    let part = part(shape, wanted);
    if index == 0 {
        round.push(Step::Publish { from: shape.whole(Buf::Send), phase: 0, form });
    } else if index <= ranks {
        combine_part(shape, index, part, round);
    } else if index == ranks + 1 {
        round.push(Step::Release { phase: 0 });
        round.push(Step::Publish { from: part, phase: 1, form });
    } else if index == ranks + 2 {
        for rank in others(shape).filter(|_| wanted) {
            let into = Span::new(Buf::Recv, shape.part(rank));
            round.push(Step::Pull { rank, phase: 1, at: 0, into });
        }
        if wanted && part.buf == Buf::Temp {
            round.copy(part, Span::new(Buf::Recv, shape.part(me)));
        }
    } else if index == ranks + 3 {
        round.push(Step::Release { phase: 1 });
    } else {
        drain(shape, 1, round);
    }
}

/// The operand of round `index` from 1 on: the ranks behind this one, or all from the last one down.
fn combine_part(shape: &Shape, index: u32, part: Span, round: &mut Round) {
    let (me, ranks, phase) = (shape.rank, shape.ranks, 0);
    let (at, len) = shape.part(me);
    let own = Span::new(Buf::Send, (at, len));
    if shape.commutative {
        if ranks == 1 {
            round.copy(own, part);
        } else if index < ranks {
            let merge = Merge::new(if index == 1 { own } else { part }, part, Side::Any);
            round.push(Step::PullReduce { rank: shape.after(me, index), phase, at, merge });
        }
        return;
    }
    let rank = ranks - index;
    match (rank == me, rank + 1 == ranks) {
        (true, true) => round.copy(own, part),
        (true, false) => round.reduce(own, part),
        (false, true) => round.push(Step::Pull { rank, phase, at, into: part }),
        (false, false) => {
            round.push(Step::PullReduce { rank, phase, at, merge: Merge::onto(part, Side::Left) });
        }
    }
}
