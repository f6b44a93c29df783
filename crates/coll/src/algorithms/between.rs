//! Collectives between the two groups of an intercommunicator (MPI 5.0, 6.2.2), made of those of one group: what one
//! group reduces, or gives, goes to the other one's leader, its first rank, and from there to all of that group.
//!
//! Where the rows of one group do as they are, because the blocks of a rank's own group are empty (gather, scatter,
//! alltoall) or because nothing moves (barrier), [`BETWEEN`](crate::BETWEEN) has those.

use std::ops::Range;

use super::{WINDOW, bcast, no_chunks, no_temp, reduce};
use crate::{Algorithm, Buf, Case, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "between",
    about: "binomial tree below the root, of all ranks of the other group",
    needs: Needs::Messages,
    reorders: false,
    phases: |_| 0,
    chunks: no_chunks,
    temp: no_temp,
    rounds: |shape| Among::below_root(shape).rounds(&bcast::BINOMIAL, shape),
    round: |shape, index, round| {
        Among::below_root(shape).round(&bcast::BINOMIAL, (shape, shape.len), index, Buf::Recv, round);
    },
    cost,
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "binomial tree to the leader of the other group, who passes the result on to the root",
    temp: |shape| if shape.group_across(shape.root).contains(&shape.rank) { shape.len } else { 0 },
    rounds: |shape| Among::across_root(shape).rounds(&reduce::BINOMIAL, shape) + 1,
    round: |shape, index, round| {
        let givers = Among::across_root(shape);
        let passed = givers.rounds(&reduce::BINOMIAL, shape);
        if index < passed {
            givers.round(&reduce::BINOMIAL, (shape, shape.len), index, Buf::Temp, round);
        } else if shape.rank == givers.rank(0) {
            round.send(shape.root, shape.whole(Buf::Temp));
        } else if shape.rank == shape.root {
            round.recv(givers.rank(0), shape.whole(Buf::Recv));
        }
    },
    ..BCAST
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    about: "each group reduces to its leader, the leaders swap the results and broadcast them",
    temp: |shape| shape.len,
    rounds: |shape| reducing(shape) + 1 + spreading(shape),
    round: |shape, index, round| {
        let (own, swap) = (Among::own(shape), reducing(shape));
        if index < swap {
            own.round(&reduce::BINOMIAL, (shape, shape.len), index, Buf::Temp, round);
        } else if index == swap {
            swapped(shape, shape.whole(Buf::Temp), shape.whole(Buf::Recv), round);
        } else {
            own.round(&bcast::BINOMIAL, (shape, shape.len), index - swap - 1, Buf::Recv, round);
        }
    },
    ..BCAST
};

pub(crate) const REDUCE_SCATTER: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "each group reduces to its leader, the leaders swap the results and scatter them",
    temp: |shape| shape.sends.start(shape.ranks) * if Among::own(shape).leads(shape) { 2 } else { 1 },
    rounds: |shape| reducing(shape) + 1 + windows(shape),
    round: reduce_scatter,
    ..BCAST
};

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER };

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    about: "every rank sends to the leader of the other group, who broadcasts what came",
    rounds: |shape| windows(shape) + spreading(shape),
    round: allgather,
    ..BCAST
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

/// Nothing is chosen by it: there is one way for each collective.
fn cost(case: &Case) -> Cost {
    Cost { steps: case.lg(), bytes: case.lg() * case.bytes, waits: case.lg(), ..Cost::default() }
}

/// Some ranks that work together as if they were alone: maybe one of the other group, then all of one group.
struct Among {
    head: Option<u32>,
    group: Range<u32>,
}

impl Among {
    /// This rank's group.
    fn own(shape: &Shape) -> Among {
        Among { head: None, group: shape.group_of(shape.rank) }
    }

    /// The group that the root is not in.
    fn across_root(shape: &Shape) -> Among {
        Among { head: None, group: shape.group_across(shape.root) }
    }

    /// The same, behind the root.
    fn below_root(shape: &Shape) -> Among {
        Among { head: Some(shape.root), ..Among::across_root(shape) }
    }

    fn size(&self) -> u32 {
        u32::from(self.head.is_some()) + self.group.len() as u32
    }

    /// The rank of one of them.
    fn rank(&self, number: u32) -> u32 {
        match self.head {
            Some(head) if number == 0 => head,
            Some(_) => self.group.start + number - 1,
            None => self.group.start + number,
        }
    }

    /// Which of them a rank is.
    fn number(&self, rank: u32) -> Option<u32> {
        match self.head {
            Some(head) if head == rank => Some(0),
            head => self.group.contains(&rank).then(|| rank - self.group.start + u32::from(head.is_some())),
        }
    }

    /// True if this rank is the first of them.
    fn leads(&self, shape: &Shape) -> bool {
        self.rank(0) == shape.rank
    }

    /// What they have in common, with the first of them as root.
    fn shape(&self, outer: &Shape, number: u32, len: u64) -> Shape {
        Shape { rank: number, ranks: self.size(), split: 0, root: 0, len, ..outer.clone() }
    }

    fn rounds(&self, row: &Algorithm, shape: &Shape) -> u32 {
        (row.rounds)(&self.shape(shape, 0, shape.len))
    }

    /// A round of an algorithm for one group on `len` units, rooted at the first of them, whose Recv is `result`; nothing
    /// where this rank is none of them, or the algorithm is over.
    fn round(
        &self,
        row: &Algorithm,
        (outer, len): (&Shape, u64),
        index: u32,
        result: Buf,
        round: &mut Round,
    ) {
        let Some(number) = self.number(outer.rank).filter(|_| index < self.rounds(row, outer)) else {
            return;
        };
        let before = round.steps.len();
        (row.round)(&self.shape(outer, number, len), index, round);
        let place = |span: &mut Span| {
            if span.buf == Buf::Recv {
                span.buf = result;
            }
        };
        for step in &mut round.steps[before..] {
            match step {
                Step::Send { to, from, .. } => {
                    *to = self.rank(*to);
                    place(from);
                }
                Step::Recv { from, into, .. } => {
                    *from = self.rank(*from);
                    place(into);
                }
                Step::RecvReduce { from, merge, .. } => {
                    *from = self.rank(*from);
                    place(&mut merge.with);
                    place(&mut merge.into);
                }
                Step::Reduce { from, into } | Step::Copy { from, into } => {
                    place(from);
                    place(into);
                }
                _ => unreachable!("an algorithm that needs messages alone"),
            }
        }
    }
}

/// Something alike for both groups, each of which has its own number of rounds for it: the larger number.
fn longer(shape: &Shape, rounds: impl Fn(Among) -> u32) -> u32 {
    let group = |rank: u32| rounds(Among { head: None, group: shape.group_of(rank) });
    group(0).max(group(shape.split))
}

/// Rounds until both leaders have their group's result.
fn reducing(shape: &Shape) -> u32 {
    longer(shape, |group| group.rounds(&reduce::BINOMIAL, shape))
}

/// Rounds until all have what the leaders had.
fn spreading(shape: &Shape) -> u32 {
    longer(shape, |group| group.rounds(&bcast::BINOMIAL, shape))
}

/// Rounds in which a leader meets all ranks of a group.
fn windows(shape: &Shape) -> u32 {
    longer(shape, |group| group.size().div_ceil(WINDOW))
}

/// The ranks of a group that its leader, or the other one, meets in a round.
fn window(group: &Range<u32>, index: u32) -> Range<u32> {
    let first = group.start + index * WINDOW;
    first.min(group.end)..(first + WINDOW).min(group.end)
}

/// The leaders give each other what they have.
fn swapped(shape: &Shape, mine: Span, theirs: Span, round: &mut Round) {
    if Among::own(shape).leads(shape) {
        let other = shape.group_across(shape.rank).start;
        round.recv(other, theirs);
        round.send(other, mine);
    }
}

fn reduce_scatter(shape: &Shape, index: u32, round: &mut Round) {
    let (own, swap, all) = (Among::own(shape), reducing(shape), shape.sends.start(shape.ranks));
    // Behind this group's result there is that of the other one.
    let temp = |(at, len): (u64, u64)| Span::new(Buf::Temp, (all + at, len));
    if index < swap {
        own.round(&reduce::BINOMIAL, (shape, all), index, Buf::Temp, round);
    } else if index == swap {
        swapped(shape, Span::new(Buf::Temp, (0, all)), temp((0, all)), round);
    } else if own.leads(shape) {
        for to in window(&own.group, index - swap - 1) {
            match to == shape.rank {
                true => round.copy(temp(shape.sends.block(to)), shape.whole(Buf::Recv)),
                false => round.send(to, temp(shape.sends.block(to))),
            }
        }
    } else if window(&own.group, index - swap - 1).contains(&shape.rank) {
        round.recv(own.rank(0), shape.whole(Buf::Recv));
    }
}

fn allgather(shape: &Shape, index: u32, round: &mut Round) {
    let (own, across, gathered) = (Among::own(shape), shape.group_across(shape.rank), windows(shape));
    if index >= gathered {
        let len = shape.recvs.start(shape.ranks);
        return own.round(&bcast::BINOMIAL, (shape, len), index - gathered, Buf::Recv, round);
    }
    if own.leads(shape) {
        for from in window(&across, index) {
            round.recv(from, Span::new(Buf::Recv, shape.recvs.block(from)));
        }
    }
    if window(&own.group, index).contains(&shape.rank) {
        round.send(across.start, shape.whole(Buf::Send));
    }
}
