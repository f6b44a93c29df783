//! Collectives between the two groups of an intercommunicator (MPI 5.0, 6.2.2), made of algorithms for one group: what
//! one group reduces, or gives, goes to the leader of the other group, its first rank, and from there to all of that
//! group.
//!
//! Some algorithms for one group need no change, because the blocks of a rank's own group are empty (gather, scatter,
//! alltoall), or because no data move (barrier); [`BETWEEN`](crate::BETWEEN) lists them as they are.

use std::ops::Range;

use super::{WINDOW, bcast, reduce};
use crate::{Algorithm, Buf, Case, Cost, Kind, Round, Shape, Span};

pub(crate) const BCAST: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "between",
    about: "binomial tree from the root to all ranks of the other group",
    rounds: |shape| Members::below_root(shape).rounds(&bcast::BINOMIAL, shape),
    round: |shape, index, round| {
        Members::below_root(shape).round(&bcast::BINOMIAL, (shape, shape.len), index, Buf::Recv, round);
    },
    cost,
    ..Algorithm::MESSAGES
};

pub(crate) const REDUCE: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "the other group reduces to its leader, which sends the result to the root",
    temp: |shape| if shape.group_across(shape.root).contains(&shape.rank) { shape.len } else { 0 },
    rounds: |shape| Members::across_root(shape).rounds(&reduce::BINOMIAL, shape) + 1,
    round: |shape, index, round| {
        let group = Members::across_root(shape);
        let passed = group.rounds(&reduce::BINOMIAL, shape);
        if index < passed {
            group.round(&reduce::BINOMIAL, (shape, shape.len), index, Buf::Temp, round);
        } else if shape.rank == group.rank(0) {
            round.send(shape.root, shape.whole(Buf::Temp));
        } else if shape.rank == shape.root {
            round.recv(group.rank(0), shape.whole(Buf::Recv));
        }
    },
    ..BCAST
};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    about: "each group reduces to its leader, the leaders swap the results and broadcast them",
    temp: |shape| shape.len,
    rounds: |shape| reduce_rounds(shape) + 1 + bcast_rounds(shape),
    round: |shape, index, round| {
        let (own, swap) = (Members::own(shape), reduce_rounds(shape));
        if index < swap {
            own.round(&reduce::BINOMIAL, (shape, shape.len), index, Buf::Temp, round);
        } else if index == swap {
            swap_results(shape, shape.whole(Buf::Temp), shape.whole(Buf::Recv), round);
        } else {
            own.round(&bcast::BINOMIAL, (shape, shape.len), index - swap - 1, Buf::Recv, round);
        }
    },
    ..BCAST
};

pub(crate) const REDUCE_SCATTER: Algorithm = Algorithm {
    kind: Kind::ReduceScatter,
    about: "each group reduces to its leader, the leaders swap the results and scatter them",
    temp: |shape| shape.sends.start(shape.ranks) * if Members::own(shape).leads(shape) { 2 } else { 1 },
    rounds: |shape| reduce_rounds(shape) + 1 + leader_rounds(shape),
    round: reduce_scatter,
    ..BCAST
};

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER };

pub(crate) const ALLGATHER: Algorithm = Algorithm {
    kind: Kind::Allgather,
    about: "every rank sends to the leader of the other group, which broadcasts all blocks",
    rounds: |shape| leader_rounds(shape) + bcast_rounds(shape),
    round: allgather,
    ..BCAST
};

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

/// A rough cost, which decides nothing: there is one algorithm for each collective.
fn cost(case: &Case) -> Cost {
    Cost { steps: case.lg(), bytes: case.lg() * case.bytes, waits: case.lg(), ..Cost::default() }
}

/// Ranks that run an algorithm for one group among themselves: all ranks of one group, behind one rank of the other
/// group if there is a head. A member's number is its rank in that algorithm.
struct Members {
    head: Option<u32>,
    group: Range<u32>,
}

impl Members {
    /// All ranks of this rank's group.
    fn own(shape: &Shape) -> Members {
        Members { head: None, group: shape.group_of(shape.rank) }
    }

    /// All ranks of the group that the root is not in.
    fn across_root(shape: &Shape) -> Members {
        Members { head: None, group: shape.group_across(shape.root) }
    }

    /// The root, and behind it all ranks of the group that it is not in.
    fn below_root(shape: &Shape) -> Members {
        Members { head: Some(shape.root), ..Members::across_root(shape) }
    }

    fn size(&self) -> u32 {
        u32::from(self.head.is_some()) + self.group.len() as u32
    }

    /// The rank of a member.
    fn rank(&self, number: u32) -> u32 {
        match self.head {
            Some(head) if number == 0 => head,
            Some(_) => self.group.start + number - 1,
            None => self.group.start + number,
        }
    }

    /// The number of the member that a rank is; `None` if it is no member.
    fn number(&self, rank: u32) -> Option<u32> {
        match self.head {
            Some(head) if head == rank => Some(0),
            head => self.group.contains(&rank).then(|| rank - self.group.start + u32::from(head.is_some())),
        }
    }

    /// True if this rank is the first member.
    fn leads(&self, shape: &Shape) -> bool {
        self.rank(0) == shape.rank
    }

    /// The shape of member `number` in a collective of the members alone, rooted at the first one.
    fn shape(&self, kind: Kind, outer: &Shape, number: u32, len: u64) -> Shape {
        Shape { kind, rank: number, ranks: self.size(), split: 0, root: 0, len, ..outer.clone() }
    }

    fn rounds(&self, row: &Algorithm, shape: &Shape) -> u32 {
        (row.rounds)(&self.shape(row.kind, shape, 0, shape.len))
    }

    /// Adds a round of an algorithm for one group on `len` units, rooted at the first member, with the buffer `result`
    /// in place of its Recv. Adds nothing if this rank is no member, or the algorithm is over.
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
        let inner = self.shape(row.kind, outer, number, len);
        let redirected = |span: Span| if span.buf == Buf::Recv { Span { buf: result, ..span } } else { span };
        round.add_inner((row, &inner), (index, 0), |member| self.rank(member), redirected);
    }
}

/// The larger of the two groups' numbers of rounds.
fn longer(shape: &Shape, rounds: impl Fn(Members) -> u32) -> u32 {
    let group = |rank: u32| rounds(Members { head: None, group: shape.group_of(rank) });
    group(0).max(group(shape.split))
}

/// Rounds of a reduction in each group, until both leaders have their group's result.
fn reduce_rounds(shape: &Shape) -> u32 {
    longer(shape, |group| group.rounds(&reduce::BINOMIAL, shape))
}

/// Rounds of a broadcast in each group, until all ranks have what their leader had.
fn bcast_rounds(shape: &Shape) -> u32 {
    longer(shape, |group| group.rounds(&bcast::BINOMIAL, shape))
}

/// Rounds in which a leader exchanges messages with all ranks of a group, [`WINDOW`] of them in each.
fn leader_rounds(shape: &Shape) -> u32 {
    longer(shape, |group| group.size().div_ceil(WINDOW))
}

/// The ranks of a group that exchange messages with a leader in round `index`.
fn window(group: &Range<u32>, index: u32) -> Range<u32> {
    let first = group.start + index * WINDOW;
    first.min(group.end)..(first + WINDOW).min(group.end)
}

/// The leaders exchange their groups' results.
fn swap_results(shape: &Shape, mine: Span, theirs: Span, round: &mut Round) {
    if Members::own(shape).leads(shape) {
        let other = shape.group_across(shape.rank).start;
        round.recv(other, theirs);
        round.send(other, mine);
    }
}

fn reduce_scatter(shape: &Shape, index: u32, round: &mut Round) {
    let (own, swap, all) = (Members::own(shape), reduce_rounds(shape), shape.sends.start(shape.ranks));
    // In Temp the result of the other group lies behind that of this one.
    let temp = |(at, len): (u64, u64)| Span::new(Buf::Temp, (all + at, len));
    if index < swap {
        own.round(&reduce::BINOMIAL, (shape, all), index, Buf::Temp, round);
    } else if index == swap {
        swap_results(shape, Span::new(Buf::Temp, (0, all)), temp((0, all)), round);
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
    let (own, across, gathered) = (Members::own(shape), shape.group_across(shape.rank), leader_rounds(shape));
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
