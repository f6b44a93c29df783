//! Scatter: a gather backwards. What a rank gets in a round of a gather it gives in a scatter, in the opposite order of rounds.

use super::gather;
use crate::{Algorithm, Buf, Kind, Round, Shape, Span, Step};

pub(crate) const ROWS: &[&Algorithm] = &[&BINOMIAL, &LINEAR, &LINEAR_V];

pub(crate) const BINOMIAL: Algorithm = Algorithm {
    kind: Kind::Scatter,
    round: |shape, index, round| backwards(&gather::BINOMIAL, shape, index, round),
    ..gather::BINOMIAL
};

pub(crate) const LINEAR: Algorithm = Algorithm {
    kind: Kind::Scatter,
    about: "the root sends to every rank: large blocks, each moved once",
    round: |shape, index, round| backwards(&gather::LINEAR, shape, index, round),
    ..gather::LINEAR
};

pub(crate) const LINEAR_V: Algorithm = Algorithm { kind: Kind::Scatterv, ..LINEAR };

/// Round `index` of a gather, counted from its end, with the senders as receivers.
fn backwards(row: &Algorithm, shape: &Shape, index: u32, round: &mut Round) {
    let before = round.steps.len();
    (row.round)(shape, (row.rounds)(shape) - 1 - index, round);
    let turned = |span: Span| match span.buf {
        Buf::Send => Span { buf: Buf::Recv, ..span },
        Buf::Recv => Span { buf: Buf::Send, ..span },
        _ => span,
    };
    for step in &mut round.steps[before..] {
        *step = match *step {
            Step::Send { to, from, key } => Step::Recv { from: to, into: turned(from), key },
            Step::Recv { from, into, key } => Step::Send { to: from, from: turned(into), key },
            Step::Copy { from, into } => Step::Copy { from: turned(into), into: turned(from) },
            _ => unreachable!("a gather by messages has no other steps"),
        };
    }
}
