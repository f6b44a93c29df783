//! Barrier over messages. By dissemination, after round k each rank has heard, directly or through others, of 2^(k+1) ranks
//! (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988); or each tells each other one.

use super::{others, spread_cost, spread_rounds};
use crate::{Algorithm, Cost, Kind, Round, Shape, log2_up};

pub(crate) const ROWS: &[&Algorithm] = &[&DISSEMINATION, &SPREAD];

pub(crate) const DISSEMINATION: Algorithm = Algorithm {
    kind: Kind::Barrier,
    name: "dissemination",
    about: "log2(p) rounds of empty messages (Hensgen, Finkel, Manber 1988)",
    rotates: |_| true,
    rounds: |shape| log2_up(shape.ranks),
    round,
    cost: |case| Cost::rounds(case.lg(), 0.0),
    ..Algorithm::MESSAGES
};

pub(crate) const SPREAD: Algorithm = Algorithm {
    name: "spread",
    about: "each rank tells all others at once: few ranks",
    rounds: spread_rounds,
    round: |shape, index, round| others(shape, index).for_each(|(to, from)| round.signal(to, from)),
    cost: |case| spread_cost(case, 0.0),
    ..DISSEMINATION
};

fn round(shape: &Shape, index: u32, round: &mut Round) {
    let distance = 1 << index;
    round.signal(shape.after(shape.rank, distance), shape.before(shape.rank, distance));
}
