//! Reduce over messages: binomial tree; Rabenseifner's reduce-scatter and gather.

use super::allreduce::{self, rabenseifner};
use crate::{Algorithm, Buf, Cost, Kind, Merge, Round, Shape, Side, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&BINOMIAL, &RABENSEIFNER];

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Reduce,
    name: "binomial",
    about: "binomial tree: small vectors",
    temp: |shape| if shape.rank == shape.root { 0 } else { shape.len },
    rounds: |shape| 2 + log2_up(shape.ranks),
    round: binomial,
    cost: |case| Cost { reduced: case.lg() * case.bytes, ..Cost::rounds(case.lg(), case.lg() * case.bytes) },
    ..Algorithm::MESSAGES
};

pub(crate) const RABENSEIFNER: Algorithm = Algorithm {
    kind: Kind::Reduce,
    about: "recursive halving, then binomial gather: large vectors (Rabenseifner 2004)",
    temp: BINOMIAL.temp,
    round: |shape, index, round| rabenseifner(shape, index, (partial(shape), Some(shape.root)), round),
    ..allreduce::RABENSEIFNER
};

/// Where this rank keeps its partial result.
fn partial(shape: &Shape) -> Buf {
    if shape.rank == shape.root { Buf::Recv } else { Buf::Temp }
}

/// The top of the tree is the root if the operation commutes, and ranks are in the order of the ring; else it is rank 0, which passes the result
/// on to the root.
fn binomial(shape: &Shape, index: u32, round: &mut Round) {
    let top = if shape.commutative { shape.root } else { 0 };
    let any = shape.commutative;
    let me = if any { shape.ring_behind(shape.rank, top) } else { shape.rank };
    let after = |edge: u32| match any {
        true => shape.ring_after(shape.rank, edge),
        false => shape.after(shape.rank, edge),
    };
    let levels = log2_up(shape.ranks);
    let leaf = me % 2 == 1 || shape.ranks == me + 1 && me != 0;
    let mine = shape.whole(partial(shape));
    if index == 0 {
        if shape.ranks == 1 {
            round.copy(shape.whole(Buf::Send), mine);
        }
    } else if index <= levels {
        let edge = 1 << (index - 1);
        if me % (2 * edge) == edge {
            round.send(after(shape.ranks - edge), if leaf { shape.whole(Buf::Send) } else { mine });
        } else if me % (2 * edge) == 0 && me + edge < shape.ranks {
            let with = if edge == 1 { shape.whole(Buf::Send) } else { mine };
            let merge = Merge::new(with, mine, Side::Right.unless(shape.commutative));
            round.recv_reduce(after(edge), merge);
        }
    } else if top != shape.root {
        if shape.rank == top {
            round.send(shape.root, mine);
        } else if shape.rank == shape.root {
            round.recv(top, mine);
        }
    }
}
