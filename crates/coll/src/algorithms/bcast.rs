//! Broadcast over messages: binomial tree; scatter and ring (van de Geijn); pipelined chain.

use super::{pipelined, segments};
use crate::{Algorithm, Buf, Cost, Kind, Round, Shape, Span, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&BINOMIAL, &SCATTER_RING, &CHAIN];

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "binomial",
    about: "binomial tree, log2(p) messages deep: small messages and few ranks",
    rounds: |shape| log2_up(shape.ranks),
    round: binomial,
    cost: |case| Cost::rounds(case.lg(), case.lg() * case.bytes),
    ..Algorithm::MESSAGES
};

pub(crate) const SCATTER_RING: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "scatter_ring",
    about: "binomial scatter, then ring allgather: large messages (Barnett, van de Geijn 1994)",
    rounds: |shape| log2_up(shape.ranks) + shape.ranks - 1,
    round: scatter_ring,
    cost: |case| Cost::rounds(case.lg() + case.p() - 1.0, 2.0 * case.bytes * (case.p() - 1.0) / case.p()),
    ..Algorithm::MESSAGES
};

pub(crate) const CHAIN: Algorithm = Algorithm {
    kind: Kind::Bcast,
    name: "chain",
    about: "pipelined chain in segments: large messages, few ranks",
    rounds: |shape| segments(shape, stages(shape.ranks)).1 + shape.ranks.saturating_sub(2),
    round: chain,
    cost: |case| {
        let (rounds, bytes) = pipelined(case, stages(case.ranks), stages(case.ranks));
        Cost::around(rounds, bytes)
    },
    ..Algorithm::MESSAGES
};

/// One level of a binomial tree over ranks by how far they are behind the root on the ring, the longest edges first.
fn binomial(shape: &Shape, index: u32, round: &mut Round) {
    let edge = 1 << (log2_up(shape.ranks) - 1 - index);
    let (me, data) = (shape.ring_behind(shape.rank, shape.root), shape.whole(Buf::Recv));
    if me % (2 * edge) == edge {
        round.recv(shape.ring_before(shape.rank, edge), data);
    } else if me % (2 * edge) == 0 && me + edge < shape.ranks {
        round.send(shape.ring_after(shape.rank, edge), data);
    }
}

fn scatter_ring(shape: &Shape, index: u32, round: &mut Round) {
    let levels = log2_up(shape.ranks);
    let (me, ranks) = (shape.ring_behind(shape.rank, shape.root), shape.ranks);
    if index < levels {
        let edge = 1 << (levels - 1 - index);
        let below = |top: u32| Span::new(Buf::Recv, shape.parts(top, (top + edge).min(ranks)));
        if me % (2 * edge) == edge {
            round.recv(shape.ring_before(shape.rank, edge), below(me));
        } else if me % (2 * edge) == 0 && me + edge < ranks {
            round.send(shape.ring_after(shape.rank, edge), below(me + edge));
        }
        return;
    }
    let done = index - levels;
    let part = |distance: u32| Span::new(Buf::Recv, shape.part(shape.before(me, distance)));
    // The root has all parts, so nobody sends it one.
    if me != 0 {
        round.recv(shape.ring_before(shape.rank, 1), part(done + 1));
    }
    if me + 1 != ranks {
        round.send(shape.ring_after(shape.rank, 1), part(done));
    }
}

/// How many messages a segment goes through in a chain of so many ranks.
fn stages(ranks: u32) -> u32 {
    ranks.saturating_sub(1)
}

fn chain(shape: &Shape, index: u32, round: &mut Round) {
    let (size, number) = segments(shape, stages(shape.ranks));
    let me = shape.ring_behind(shape.rank, shape.root);
    let segment = |i: u32| {
        let at = u64::from(i) * size;
        Span::new(Buf::Recv, (at, size.min(shape.len - at)))
    };
    // Segment i reaches the rank that is v behind the root in round v - 1 + i, and leaves it in the next.
    if me > 0 && index + 1 >= me && index + 1 - me < number {
        let i = index + 1 - me;
        round.keyed(i).recv(shape.ring_before(shape.rank, 1), segment(i));
    }
    if me + 1 < shape.ranks && index >= me && index - me < number {
        let i = index - me;
        round.keyed(i).send(shape.ring_after(shape.rank, 1), segment(i));
    }
}
