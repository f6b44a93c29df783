//! Shared slots where not all ranks know all sizes: a rank's slot has a pocket for each rank that it gives something,
//! and a block that does not fit goes by message. Both ends of a pair know the size of their block, so each pair
//! decides for itself; a pair without data does nothing.

use std::ops::Range;

use super::gather::{linear_cost, linear_rounds};
use super::{WINDOW, alltoall, gather, no_chunks, no_temp, scatter};
use crate::{Algorithm, Buf, Case, Cost, Form, Kind, Needs, Pocket, Round, Shape, Span, Step};

pub(crate) const GATHERV: Algorithm = Algorithm {
    kind: Kind::Gatherv,
    name: "shared",
    about: "all publish, the root copies, large blocks go by message: one node",
    needs: Needs::Pockets,
    reorders: false,
    phases: |_| 1,
    chunks: no_chunks,
    temp: no_temp,
    rounds,
    round: gatherv,
    cost: |case: &Case| match Pocket::new(case.slot as u64, 0, 1).holds(case.bytes as u64) {
        true => Cost { copied: (case.p() + 1.0) * case.bytes, ..looks(case) },
        false => with_looks(case, linear_cost(case)),
    },
};

pub(crate) const SCATTERV: Algorithm = Algorithm {
    kind: Kind::Scatterv,
    about: "the root publishes all blocks, each copies its own, large ones go by message: one node",
    round: scatterv,
    cost: |case: &Case| match one_of_many(case).holds(case.bytes as u64) {
        true => Cost {
            hops: 1.0 + case.p() / 8.0,
            copied: (case.p() + 1.0) * case.bytes,
            waits: 1.0,
            ..Cost::default()
        },
        false => linear_cost(case),
    },
    ..GATHERV
};

pub(crate) const ALLTOALLV: Algorithm = Algorithm {
    kind: Kind::Alltoallv,
    about: "all publish all blocks, each copies its own, large ones go by message: one node",
    round: alltoallv,
    cost: |case: &Case| match one_of_many(case).holds(case.bytes as u64) {
        true => Cost { copied: 2.0 * case.p() * case.bytes, ..looks(case) },
        false => with_looks(case, (alltoall::SPREAD.cost)(case)),
    },
    ..GATHERV
};

pub(crate) const ALLTOALLW: Algorithm = Algorithm { kind: Kind::Alltoallw, ..ALLTOALLV };

fn looks(case: &Case) -> Cost {
    Cost { hops: case.p() - 1.0, waits: 1.0, ..Cost::default() }
}

/// Messages, with a look at each of the slots.
fn with_looks(case: &Case, messages: Cost) -> Cost {
    Cost { hops: case.p() - 1.0, ..messages }
}

fn one_of_many(case: &Case) -> Pocket {
    Pocket::new(case.slot as u64, 0, case.ranks - 1)
}

/// Lay, publish, then fetch while messages go in windows; the slots are released after the first window.
fn rounds(shape: &Shape) -> u32 {
    2 + linear_rounds(shape).max(2)
}

fn gatherv(shape: &Shape, index: u32, round: &mut Round) {
    let (me, root) = (shape.relative(), shape.root);
    if index == 0 && me == 0 {
        gather::own(shape, round);
    }
    let flow = Flow { pockets: 1, distances: if me == 0 { 1..shape.ranks } else { me..me + 1 } };
    let gives = |_| (me > 0).then(|| (root, shape.whole(Buf::Send)));
    let gets = |distance| {
        let from = shape.after(root, distance);
        (me == 0).then(|| (from, Span::new(Buf::Recv, shape.recvs.block(from))))
    };
    flow.round(shape, index, (gives, gets), round);
}

fn scatterv(shape: &Shape, index: u32, round: &mut Round) {
    let (me, root) = (shape.relative(), shape.root);
    if index == 0 && me == 0 {
        scatter::own(shape, round);
    }
    let distances = if me == 0 { 1..shape.ranks } else { me..me + 1 };
    let gives = |distance| {
        let to = shape.after(root, distance);
        (me == 0).then(|| (to, Span::new(Buf::Send, shape.sends.block(to))))
    };
    let gets = |_| (me > 0).then(|| (root, shape.whole(Buf::Recv)));
    Flow { pockets: shape.ranks - 1, distances }.round(shape, index, (gives, gets), round);
}

fn alltoallv(shape: &Shape, index: u32, round: &mut Round) {
    if index == 0 {
        alltoall::own(shape, round);
    }
    let gives = |distance| {
        let to = shape.after(shape.rank, distance);
        Some((to, Span::new(Buf::Send, shape.sends.block(to))))
    };
    let gets = |distance| {
        let from = shape.before(shape.rank, distance);
        Some((from, Span::new(Buf::Recv, shape.recvs.block(from))))
    };
    Flow { pockets: shape.ranks - 1, distances: 1..shape.ranks }.round(shape, index, (gives, gets), round);
}

/// What goes from rank to rank, by how far the receiver is behind the sender (or the other rank behind the root).
struct Flow {
    /// Of a slot.
    pockets: u32,
    /// Those that this rank has a part in.
    distances: Range<u32>,
}

impl Flow {
    fn round<E: Fn(u32) -> Option<(u32, Span)>, G: Fn(u32) -> Option<(u32, Span)>>(
        &self,
        shape: &Shape,
        index: u32,
        (gives, gets): (E, G),
        round: &mut Round,
    ) {
        let pocket = |distance: u32| Pocket::new(shape.slot, (distance - 1) % self.pockets, self.pockets);
        let some = |end: Option<(u32, Span)>| end.filter(|(_, span)| span.len > 0);
        let long = |end: Option<(u32, Span)>, distance| {
            some(end).filter(|(_, span)| !pocket(distance).holds(span.len))
        };
        match index {
            0 => {
                for distance in self.distances.clone() {
                    if let Some((_, from)) = some(gives(distance)) {
                        round.push(Step::Lay { from, phase: 0, pocket: pocket(distance) });
                    }
                }
            }
            1 if self.distances.clone().any(|distance| some(gives(distance)).is_some()) => {
                let from = Span::new(Buf::Send, (0, 0));
                round.push(Step::Publish { from, phase: 0, form: Form::Laid });
            }
            1 => {}
            _ => {
                let window = index - 2;
                for distance in self.distances.clone() {
                    if let Some((rank, into)) = some(gets(distance)).filter(|_| window == 0) {
                        round.push(Step::Fetch { rank, phase: 0, pocket: pocket(distance), into });
                    }
                    if (distance - 1) / WINDOW != window {
                        continue;
                    }
                    if let Some((from, into)) = long(gets(distance), distance) {
                        round.recv(from, into);
                    }
                    if let Some((to, from)) = long(gives(distance), distance) {
                        round.send(to, from);
                    }
                }
                if window == 1 {
                    round.push(Step::Release { phase: 0 });
                }
            }
        }
    }
}
