//! Collectives between the two groups of an intercommunicator (MPI 5.0, 6.2.2), made of algorithms for one group: what
//! one group reduces, or gives, goes to the leader of the other group, its first rank, and from there to all of that
//! group.
//!
//! Some algorithms for one group need no change, because the blocks of a rank's own group are empty (gather, scatter,
//! alltoall), or because no data move (barrier); [`BETWEEN`](crate::BETWEEN) lists them as they are.

use std::ops::Range;

use super::{WINDOW, bcast, reduce};
use crate::{Algorithm, Buf, Case, Cost, Kind, Round, Shape, Span};

/// The algorithms that the ranks of one group use among themselves. Their rounds do not depend on the length.
trait Inner {
    const BCAST: &'static Algorithm;
    const REDUCE: &'static Algorithm;
}

/// For few bytes.
struct Short;

impl Inner for Short {
    const BCAST: &'static Algorithm = &bcast::BINOMIAL;
    const REDUCE: &'static Algorithm = &reduce::BINOMIAL;
}

/// For many bytes.
struct Long;

impl Inner for Long {
    const BCAST: &'static Algorithm = &bcast::SCATTER_RING;
    const REDUCE: &'static Algorithm = &reduce::RABENSEIFNER;
}

pub(crate) const BCAST: Algorithm = broadcast::<Short>();
pub(crate) const BCAST_LONG: Algorithm = broadcast::<Long>();

const fn broadcast<I: Inner>() -> Algorithm {
    Algorithm {
        kind: Kind::Bcast,
        name: I::BCAST.name,
        about: "from the root to all ranks of the other group",
        rounds: |shape| Members::below_root(shape).rounds(I::BCAST, shape),
        round: |shape, index, round| {
            Members::below_root(shape).round(I::BCAST, (shape, shape.len), index, Buf::Recv, round);
        },
        cost: |case| (I::BCAST.cost)(&one_group(case)),
        ..Algorithm::MESSAGES
    }
}

pub(crate) const REDUCE: Algorithm = reduction::<Short>();
pub(crate) const REDUCE_LONG: Algorithm = reduction::<Long>();

const fn reduction<I: Inner>() -> Algorithm {
    Algorithm {
        kind: Kind::Reduce,
        name: I::REDUCE.name,
        about: "within the other group to its leader, which sends the result to the root",
        temp: |shape| if shape.group_across(shape.root).contains(&shape.rank) { shape.len } else { 0 },
        rounds: |shape| Members::across_root(shape).rounds(I::REDUCE, shape) + 1,
        round: |shape, index, round| {
            let group = Members::across_root(shape);
            let passed = group.rounds(I::REDUCE, shape);
            if index < passed {
                group.round(I::REDUCE, (shape, shape.len), index, Buf::Temp, round);
            } else if shape.rank == group.rank(0) {
                round.send(shape.root, shape.whole(Buf::Temp));
            } else if shape.rank == shape.root {
                round.recv(group.rank(0), shape.whole(Buf::Recv));
            }
        },
        cost: |case| passed_on((I::REDUCE.cost)(&one_group(case)), case.bytes),
        ..Algorithm::MESSAGES
    }
}

pub(crate) const ALLREDUCE: Algorithm = reduction_to_all::<Short>();
pub(crate) const ALLREDUCE_LONG: Algorithm = reduction_to_all::<Long>();

const fn reduction_to_all<I: Inner>() -> Algorithm {
    Algorithm {
        kind: Kind::Allreduce,
        name: I::REDUCE.name,
        about: "within each group to its leader; the leaders swap the results and broadcast them",
        temp: |shape| shape.len,
        rounds: |shape| most_rounds(I::REDUCE, shape) + 1 + most_rounds(I::BCAST, shape),
        round: |shape, index, round| {
            let (own, swap) = (Members::own(shape), most_rounds(I::REDUCE, shape));
            if index < swap {
                own.round(I::REDUCE, (shape, shape.len), index, Buf::Temp, round);
            } else if index == swap {
                swap_results(shape, shape.whole(Buf::Temp), shape.whole(Buf::Recv), round);
            } else {
                own.round(I::BCAST, (shape, shape.len), index - swap - 1, Buf::Recv, round);
            }
        },
        cost: |case| {
            let group = one_group(case);
            sum(passed_on((I::REDUCE.cost)(&group), case.bytes), (I::BCAST.cost)(&group))
        },
        ..Algorithm::MESSAGES
    }
}

pub(crate) const REDUCE_SCATTER: Algorithm = reduction_scattered::<Short>();
pub(crate) const REDUCE_SCATTER_LONG: Algorithm = reduction_scattered::<Long>();

pub(crate) const REDUCE_SCATTER_BLOCK: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER };

pub(crate) const REDUCE_SCATTER_BLOCK_LONG: Algorithm =
    Algorithm { kind: Kind::ReduceScatterBlock, ..REDUCE_SCATTER_LONG };

const fn reduction_scattered<I: Inner>() -> Algorithm {
    Algorithm {
        kind: Kind::ReduceScatter,
        name: I::REDUCE.name,
        about: "within each group to its leader; the leaders swap the results and scatter them",
        temp: |shape| shape.sends.start(shape.ranks) * if Members::own(shape).leads(shape) { 2 } else { 1 },
        rounds: |shape| most_rounds(I::REDUCE, shape) + 1 + leader_rounds(shape),
        round: reduce_scatter::<I>,
        cost: |case| {
            let group = one_group(case);
            let scattered = Cost { extra: group.p(), ..Cost::rounds(1.0, case.bytes) };
            sum(passed_on((I::REDUCE.cost)(&group), case.bytes), scattered)
        },
        ..Algorithm::MESSAGES
    }
}

pub(crate) const ALLGATHER: Algorithm = gathering::<Short>();
pub(crate) const ALLGATHER_LONG: Algorithm = gathering::<Long>();

pub(crate) const ALLGATHERV: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER };

pub(crate) const ALLGATHERV_LONG: Algorithm = Algorithm { kind: Kind::Allgatherv, ..ALLGATHER_LONG };

/// A group may choose another one of these than the other group, whose blocks may have other lengths: the first rounds are
/// the same, and no message goes across in the others.
const fn gathering<I: Inner>() -> Algorithm {
    Algorithm {
        kind: Kind::Allgather,
        name: I::BCAST.name,
        about: "every rank sends to the leader of the other group, which broadcasts all blocks",
        rounds: |shape| leader_rounds(shape) + most_rounds(I::BCAST, shape),
        round: allgather::<I>,
        cost: |case| {
            let group = one_group(case);
            let all = Case { bytes: group.p() * case.bytes, ..group };
            let gathered = Cost { extra: group.p(), ..Cost::rounds(1.0, all.bytes) };
            sum(gathered, (I::BCAST.cost)(&all))
        },
        ..Algorithm::MESSAGES
    }
}

/// The case among the ranks of one group, as far as both groups can say alike: a half of all ranks, and one more.
fn one_group(case: &Case) -> Case {
    Case { ranks: case.ranks / 2 + 1, ..*case }
}

/// A cost, and then a message of so many bytes from leader to leader.
fn passed_on(cost: Cost, bytes: f64) -> Cost {
    sum(cost, Cost::rounds(1.0, bytes))
}

/// The cost of two things of messages alone, one after the other.
fn sum(one: Cost, other: Cost) -> Cost {
    Cost {
        steps: one.steps + other.steps,
        extra: one.extra + other.extra,
        bytes: one.bytes + other.bytes,
        reduced: one.reduced + other.reduced,
        waits: one.waits + other.waits,
        ..Cost::ZERO
    }
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

/// Rounds of an algorithm in each group, until it is over in both.
fn most_rounds(row: &Algorithm, shape: &Shape) -> u32 {
    longer(shape, |group| group.rounds(row, shape))
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

fn reduce_scatter<I: Inner>(shape: &Shape, index: u32, round: &mut Round) {
    let (own, swap) = (Members::own(shape), most_rounds(I::REDUCE, shape));
    let all = shape.sends.start(shape.ranks);
    // In Temp the result of the other group lies behind that of this one.
    let temp = |(at, len): (u64, u64)| Span::new(Buf::Temp, (all + at, len));
    if index < swap {
        own.round(I::REDUCE, (shape, all), index, Buf::Temp, round);
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

fn allgather<I: Inner>(shape: &Shape, index: u32, round: &mut Round) {
    let (own, across, gathered) = (Members::own(shape), shape.group_across(shape.rank), leader_rounds(shape));
    if index >= gathered {
        let len = shape.recvs.start(shape.ranks);
        return own.round(I::BCAST, (shape, len), index - gathered, Buf::Recv, round);
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
