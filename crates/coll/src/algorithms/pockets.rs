//! Shared slots where not all ranks know all sizes: a rank's slot has a pocket for each rank that it gives something,
//! and a block that does not fit goes by message. Each pair has also room on the board, through which goes as
//! much of such a block as fits. Both ends of a pair know the size of their block, so each pair decides for itself; a pair
//! without data does nothing.

use std::ops::Range;

use super::gather::{linear_cost, linear_rounds};
use super::{WINDOW, alltoall, gather, no_temp, scatter};
use crate::schedule::PAGE;
use crate::{Algorithm, Buf, Case, Chunks, Cost, Form, Kind, Needs, Pocket, Round, Shape, Span, Step};

pub(crate) const GATHERV: Algorithm = Algorithm {
    kind: Kind::Gatherv,
    name: "shared",
    about: "all publish, the root copies, of large blocks first from the board, then by message: one node",
    needs: Needs::Pockets,
    reorders: false,
    phases: |_| 1,
    chunks: |shape| match area(shape) {
        0 => Chunks::NONE,
        _ => Chunks::new(shape, 1, room(shape)),
    },
    temp: no_temp,
    rounds,
    round: gatherv,
    cost: |case: &Case| rooted_cost(case, Pocket::new(case.slot as u64, 0, 1), case.p() - 1.0),
};

pub(crate) const SCATTERV: Algorithm = Algorithm {
    kind: Kind::Scatterv,
    about: "the root publishes all blocks, each copies its own, of large ones first from the board, then by message: \
            one node",
    round: scatterv,
    cost: |case: &Case| rooted_cost(case, one_of_many(case), 1.0 + case.p() / 8.0),
    ..GATHERV
};

pub(crate) const ALLTOALLV: Algorithm = Algorithm {
    kind: Kind::Alltoallv,
    about: "all publish all blocks, each copies its own, of large ones first from the board, then by message: one node",
    chunks: |shape| Chunks::halves(u32::from(pair_area(shape) > 0)),
    round: alltoallv,
    cost: |case: &Case| match one_of_many(case).holds(case.bytes as u64) {
        true => Cost { copied: 2.0 * case.p() * case.bytes, ..looks(case) },
        false => with_looks(case, (alltoall::SPREAD.cost)(case)),
    },
    ..GATHERV
};

pub(crate) const ALLTOALLW: Algorithm = Algorithm { kind: Kind::Alltoallw, ..ALLTOALLV };

/// What neither a pocket nor the board holds goes by message.
fn rooted_cost(case: &Case, pocket: Pocket, hops: f64) -> Cost {
    let area = (ROOM / (case.p() - 1.0)).min(MOST as f64);
    let rest = if pocket.holds(case.bytes as u64) { 0.0 } else { (case.bytes - area).max(0.0) };
    let messages = if rest > 0.0 { linear_cost(&Case { bytes: rest, ..*case }) } else { Cost::default() };
    Cost { hops, copied: (case.p() + 1.0) * (case.bytes - rest), waits: 1.0, ..messages }
}

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

/// Settle, lay, publish, then fetch, copy from the board and release, while messages go in windows.
fn rounds(shape: &Shape) -> u32 {
    3 + linear_rounds(shape).max(3)
}

/// Units of the board for each pair with the root. Of those that have a core each the two copies come one after the
/// other, so that of more than some a message is quicker, which goes in pieces.
fn area(shape: &Shape) -> u64 {
    let each = room(shape) / u64::from(shape.ranks - 1).max(1);
    shape.grained(if shape.crowded { each } else { each.min(MOST) })
}

const MOST: u64 = 1 << 18;
/// About the bytes of [`room`].
const ROOM: f64 = (2 << 20) as f64;

/// Units of the board for each pair of an exchange: an odd number of pages, as areas a power of two apart would share few
/// sets of a cache. Ranks that have a core each send messages.
fn pair_area(shape: &Shape) -> u64 {
    let pairs = u64::from(shape.ranks) * u64::from(shape.ranks - 1);
    let area = shape.grained(shape.half() / pairs.max(1));
    match shape.crowded {
        false => 0,
        true if area > PAGE && area.is_multiple_of(2 * PAGE) => area - PAGE,
        true => area,
    }
}

/// Sections of the board.
const PART: u64 = 4;

/// Units of the board for all of them: not half of it, so that a root which waits for nobody may be some calls ahead.
fn room(shape: &Shape) -> u64 {
    match PART * shape.section() {
        0 => shape.half(),
        some => some,
    }
}

fn gatherv(shape: &Shape, index: u32, round: &mut Round) {
    let (me, root) = (shape.relative(), shape.root);
    if index == 0 && me == 0 {
        gather::own(shape, round);
    }
    let flow = Flow {
        pockets: 1,
        area: area(shape),
        apart: 0,
        distances: if me == 0 { 1..shape.ranks } else { me..me + 1 },
    };
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
    let flow = Flow { pockets: shape.ranks - 1, area: area(shape), apart: 0, distances };
    flow.round(shape, index, (gives, gets), round);
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
    let (area, others) = (pair_area(shape), shape.ranks - 1);
    let flow = Flow { pockets: others, area, apart: area * u64::from(others), distances: 1..shape.ranks };
    flow.round(shape, index, (gives, gets), round);
}

/// What goes from rank to rank, by how far the receiver is behind the sender (or the other rank behind the root).
struct Flow {
    /// Of a slot.
    pockets: u32,
    /// Units of the board for each distance.
    area: u64,
    /// Units from one writer's areas to the next one's; none where one rank of each pair is the root.
    apart: u64,
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
        let gives = |distance| gives(distance).filter(|(_, span)| span.len > 0);
        let gets = |distance| gets(distance).filter(|(_, span)| span.len > 0);
        let distances = self.distances.clone();
        match index {
            0 if distances
                .clone()
                .any(|distance| self.parts(gives(distance), pocket(distance))[0].is_some()) =>
            {
                round.push(Step::Settle { chunk: 0 });
            }
            0 => {}
            1 => {
                for distance in distances {
                    let Some((_, from)) = gives(distance) else { continue };
                    round.push(Step::Lay { from, phase: 0, pocket: pocket(distance) });
                    if let Some((_, from)) = self.parts(gives(distance), pocket(distance))[0] {
                        round.copy(from, self.on_board(shape.rank, distance, from.len));
                    }
                }
            }
            2 if distances.clone().any(|distance| gives(distance).is_some()) => {
                let from = Span::new(Buf::Send, (0, 0));
                round.push(Step::Publish { from, phase: 0, form: Form::Laid });
            }
            2 => {}
            _ => {
                let window = index - 3;
                for distance in distances {
                    let [board, message] = self.parts(gets(distance), pocket(distance));
                    match (window, gets(distance), board) {
                        (0, Some((rank, into)), _) => {
                            round.push(Step::Fetch { rank, phase: 0, pocket: pocket(distance), into });
                        }
                        (1, _, Some((rank, into))) => {
                            round.copy(self.on_board(rank, distance, into.len), into)
                        }
                        _ => {}
                    }
                    if (distance - 1) / WINDOW != window {
                        continue;
                    }
                    if let Some((from, into)) = message {
                        round.recv(from, into);
                    }
                    if let Some((to, from)) = self.parts(gives(distance), pocket(distance))[1] {
                        round.send(to, from);
                    }
                }
                if window == 2 {
                    round.push(Step::Release { phase: 0 });
                }
            }
        }
    }

    /// Of a block that its pocket does not hold: what goes over the board, and what by message.
    fn parts(&self, end: Option<(u32, Span)>, pocket: Pocket) -> [Option<(u32, Span)>; 2] {
        let Some((rank, block)) = end.filter(|(_, block)| !pocket.holds(block.len)) else { return [None; 2] };
        let first = block.len.min(self.area);
        let part = |at: u64, len: u64| (len > 0).then_some((rank, Span { at: block.at + at, len, ..block }));
        [part(0, first), part(first, block.len - first)]
    }

    fn on_board(&self, writer: u32, distance: u32, len: u64) -> Span {
        Span::new(Buf::Board, (u64::from(writer) * self.apart + u64::from(distance - 1) * self.area, len))
    }
}
