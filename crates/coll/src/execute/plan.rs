//! [`Plan`]: what was worked out for a call, for the next one that is described alike: the algorithm and, if its operands lie in
//! memory as they are packed, all rounds of the schedule as one flat list of steps on bytes of the arguments.

use std::sync::Arc;

use banyan_memory::Bounds;

use super::contiguous::{Piece, Reduction};
use crate::ledger::{About, Used};
use crate::sections::Cut;
use crate::signature::Description;
use crate::{Algorithm, Buf, Chunks, Composition, Form, Merge, Needs, Round, Shape, Side, Span, Step};

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The calls that it is for.
    pub(crate) description: Description,
    /// The bounds of the arguments' buffers, from their addresses on.
    pub(crate) bounds: [Bounds; 2],
    /// What was chosen.
    pub(crate) algorithm: &'static Algorithm,
    /// What becomes of the stages, if that is a composition.
    pub(crate) composition: Option<Arc<Composition>>,
    /// `None` if it goes by rounds: see [`Compiled::new`].
    pub(crate) compiled: Option<Compiled>,
}

/// A schedule that is compiled.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) phases: u32,
    pub(crate) chunks: Chunks,
    /// What such calls are about.
    pub(crate) about: About,
    /// What they do to those after them.
    pub(crate) used: Used,
    /// The shared scratch, in bytes.
    pub(super) cut: Cut,
    pub(crate) with: Option<Reduction>,
    pub(super) steps: Vec<Step<Piece>>,
    /// A step touches the shared scratch.
    pub(crate) touches_scratch: bool,
}

/// Ranks up to which schedules are compiled: they are as long as there are ranks (256: some KiB each; by rounds a barrier of
/// 256 takes 4 ms, compiled 0.9).
const RANKS: u32 = 256;

/// Rounds up to which schedules are compiled: longer ones have more to do than to make their rounds.
const ROUNDS: u32 = 512;

impl Compiled {
    /// The schedule of an algorithm at a rank, with each of its ranges as a `piece`. `None` if it has too many rounds or ranks,
    /// or steps that cannot be over in the order in which they stand (messages), or that need memory of their own (temporaries,
    /// what others expose and this rank combines, operands on the left of what comes in).
    pub(crate) fn new(
        algorithm: &'static Algorithm,
        shape: &Shape,
        about: About,
        with: Option<Reduction>,
        mut piece: impl FnMut(Span) -> Option<Piece>,
    ) -> Option<Compiled> {
        let rounds = algorithm.rounds(shape);
        if algorithm.needs == Needs::Messages || shape.ranks > RANKS || rounds > ROUNDS {
            return None;
        }
        let (mut round, mut steps) = (Round::default(), vec![]);
        for index in 0..rounds {
            round.begin(index);
            (algorithm.round)(shape, index, &mut round);
            for step in &round.steps {
                steps.push(compile(step, shape.unit, &mut piece)?);
            }
        }
        let exposes = |step: &Step<Piece>| matches!(step, Step::Publish { form: Form::Exposed, .. });
        let combines = |step: &Step<Piece>| matches!(step, Step::GetReduce { .. });
        if steps.is_empty() || steps.iter().any(exposes) && steps.iter().any(combines) {
            return None;
        }
        let (phases, chunks) = ((algorithm.phases)(shape), (algorithm.chunks)(shape));
        let Cut { half, section, unit } = shape.cut();
        let cut = Cut { half: half * unit, section: section * unit, unit: 1 };
        let used = Used::of(about, phases, chunks.number);
        let on_scratch = |piece: Option<Piece>| piece.is_some_and(|piece| piece.buf == Buf::SharedScratch);
        let touches = |step: &Step<Piece>| step.reads().into_iter().chain([step.writes()]).any(on_scratch);
        let touches_scratch = steps.iter().any(touches);
        Some(Compiled { phases, chunks, about, used, cut, with, steps, touches_scratch })
    }
}

/// The short form of a step, if it has one.
fn compile(step: &Step, unit: u64, piece: &mut impl FnMut(Span) -> Option<Piece>) -> Option<Step<Piece>> {
    match step {
        Step::Send { .. } | Step::Recv { .. } | Step::RecvReduce { .. } => None,
        Step::GetReduce { merge: Merge { with, into, side }, .. } if with != into || *side == Side::Right => {
            None
        }
        _ => step.over(unit, piece),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Trial, shape};
    use crate::{Products, all};

    /// What a plan cannot hold: these algorithms go round by round, as do all that need messages alone. What they get from an
    /// exposed range and combine needs memory of its own, and so does a prefix that they combine for the next rank.
    const BY_ROUNDS: &[&str] = &["reduce=single_copy", "allreduce=single_copy", "exscan=single_copy"];

    #[test]
    fn all_schedules_through_shared_memory_are_compiled_but_those_that_are_listed() {
        let piece = |span: Span| {
            (span.buf != Buf::Temp).then_some(Piece {
                buf: span.buf,
                at: 0,
                len: span.len as u32,
                elements: 0,
            })
        };
        let compiles = |row: &'static Algorithm, ranks: u32, len: u64| {
            (0..ranks).all(|rank| {
                let trial = Trial {
                    ranks,
                    root: 0,
                    len,
                    unit: 8,
                    in_place: false,
                    even: false,
                    commutative: true,
                    seed: 1,
                    scratch: 1 << 20,
                    cells: 16,
                    cell_bytes: 1 << 16,
                    longest_copied: u64::MAX,
                    products: Products::UNCUT,
                    crowded: false,
                    ring: false,
                    nodes: 0,
                };
                let shape = shape(row.kind, rank, &trial);
                Compiled::new(row, &shape, About::default(), None, piece).is_some()
            })
        };
        let stays = |row: &&'static Algorithm| {
            row.needs != Needs::Messages
                && (2..=9).any(|ranks| [1, 100].iter().any(|&len| !compiles(row, ranks, len)))
        };
        let by_rounds: Vec<String> = all().filter(stays).map(|row| format!("{row:?}")).collect();
        assert_eq!(by_rounds, BY_ROUNDS);
    }
}
