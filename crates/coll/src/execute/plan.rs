//! [`Plan`]: what was worked out for a call, for the next one that is described alike: the algorithm and, if its operands lie in
//! memory as they are packed, all rounds of the schedule as one flat list of steps on bytes of the arguments.

use std::sync::Arc;

use banyan_memory::Bounds;

use super::contiguous::{Piece, Reduction};
use crate::ledger::{About, Used};
use crate::looks::Looked;
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
    /// What such calls are known by where they are measured.
    pub(crate) looked: Option<Looked>,
    /// By which algorithm they were to go when this was worked out, if it fits; `None`: as the model says.
    pub(crate) wanted: Option<&'static Algorithm>,
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
    /// A step offers a range.
    pub(crate) offers: bool,
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
        let (mut round, mut spans) = (Round::default(), vec![]);
        for index in 0..rounds {
            round.begin(index);
            (algorithm.round)(shape, index, &mut round);
            spans.extend_from_slice(&round.steps);
        }
        let strips = in_strips(&spans, shape.unit);
        let mut steps: Vec<_> =
            strips.iter().map(|step| compile(step, shape.unit, &mut piece)).collect::<Option<_>>()?;
        let exposes = |step: &Step<Piece>| matches!(step, Step::Publish { form: Form::Exposed, .. });
        let combines = |step: &Step<Piece>| matches!(step, Step::GetReduce { .. });
        if steps.is_empty() || steps.iter().any(exposes) && steps.iter().any(combines) {
            return None;
        }
        copy_past_caches(&mut steps, shape);
        let (phases, chunks) = ((algorithm.phases)(shape), (algorithm.chunks)(shape));
        let Cut { half, section, unit } = shape.cut();
        let cut = Cut { half: half * unit, section: section * unit, unit: 1 };
        let used = Used::of(about, phases, chunks.number);
        let on_scratch = |piece: Option<Piece>| piece.is_some_and(|piece| piece.buf == Buf::SharedScratch);
        let touches = |step: &Step<Piece>| step.reads().into_iter().chain([step.writes()]).any(on_scratch);
        let touches_scratch = steps.iter().any(touches);
        let offers = steps.iter().any(|step| matches!(step, Step::Offer { .. }));
        Some(Compiled { phases, chunks, about, used, cut, with, steps, touches_scratch, offers })
    }
}

/// Where all ranks' buffers together are more than the caches hold, copies into Recv go past them, of what no step of this rank reads again, or adds to.
fn copy_past_caches(steps: &mut [Step<Piece>], shape: &Shape) {
    let pieces = steps.iter().flat_map(|step| step.reads().into_iter().flatten().chain(step.writes()));
    let of_user = pieces.filter(|piece| matches!(piece.buf, Buf::Send | Buf::Recv));
    let touched: u64 = of_user.map(|piece| u64::from(piece.len)).sum();
    // What the root of such a collective has is about half of what all have together.
    let rooted = shape.kind.gathers_or_scatters();
    let touched = match rooted && shape.rank == shape.root {
        true => 2 * touched / u64::from(shape.ranks),
        false if rooted => 2 * touched,
        false => touched,
    };
    if touched < shape.past {
        return;
    }
    let ends = |piece: &Piece| (i64::from(piece.at), i64::from(piece.at) + i64::from(piece.len));
    let mut read: Vec<(i64, i64)> = steps
        .iter()
        .flat_map(|step| {
            let adds = !matches!(step, Step::Copy { .. });
            step.reads().into_iter().flatten().chain(step.writes().filter(|_| adds))
        })
        .filter(|piece| piece.buf == Buf::Recv && piece.len > 0)
        .map(|piece| ends(&piece))
        .collect();
    read.sort_unstable();
    // Each with the last end of those up to it.
    let mut last = i64::MIN;
    for (_, end) in &mut read {
        last = last.max(*end);
        *end = last;
    }
    for step in steps {
        if let Step::Copy { into, .. } = step
            && into.buf == Buf::Recv
        {
            let (start, end) = ends(into);
            let before = &read[..read.partition_point(|&(at, _)| at < end)];
            into.past = before.last().is_none_or(|&(_, last)| last <= start);
        }
    }
}

/// Bytes that copies and sums which follow each other work on at a time: they stay in the first cache of a core meanwhile.
const STRIP: u64 = 8 << 10;

/// The same steps, but copies and sums that work on the same data one after the other do so strip by strip.
fn in_strips(steps: &[Step], unit: u64) -> Vec<Step> {
    let most = (STRIP / unit.max(1)).max(1);
    let mut strips = Vec::with_capacity(steps.len());
    for group in steps.chunk_by(goes_on) {
        let len = operands(&group[0]).map_or(0, |[from, _]| from.len);
        if group.len() == 1 || !group.iter().all(|step| group.iter().all(|other| keeps_pace(step, other))) {
            strips.extend_from_slice(group);
            continue;
        }
        for at in (0..len).step_by(most as usize) {
            let strip = |span: Span| Some(Span { at: span.at + at, len: most.min(len - at), ..span });
            strips.extend(group.iter().filter_map(|step| step.over(1, strip)));
        }
    }
    strips
}

/// What a copy or a sum reads, and where it writes.
fn operands(step: &Step) -> Option<[Span; 2]> {
    match *step {
        Step::Copy { from, into } | Step::Reduce { from, into } => Some([from, into]),
        _ => None,
    }
}

/// Whether a step reads or adds to what the one before it wrote.
fn goes_on(before: &Step, step: &Step) -> bool {
    operands(before)
        .zip(operands(step))
        .is_some_and(|([_, written], [from, into])| from == written || into == written)
}

/// Whether two copies or sums may go strip by strip: what both touch is at the same place of either. In place, Send is a part of Recv.
fn keeps_pace(step: &Step, other: &Step) -> bool {
    let Some((these, those)) = operands(step).zip(operands(other)) else { return false };
    let memory = |span: Span| Span { buf: if span.buf == Buf::Send { Buf::Recv } else { span.buf }, ..span };
    let apart = |a: Span, b: Span| memory(a) == memory(b) || !memory(a).overlaps(&memory(b));
    these[0].len == those[0].len && these.iter().all(|&a| those.iter().all(|&b| apart(a, b)))
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
    use banyan_transport::random::Random;

    use super::*;
    use crate::verify::{Trial, shape};
    use crate::{Kind, Products, all};

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
                past: false,
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
                    single_copy: false,
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

    /// Only what is copied into Recv and not touched again there, and only where all buffers together are more than the caches hold.
    #[test]
    fn copies_go_past_the_caches_where_nothing_reads_them_again() {
        let piece = |buf, at: i32, len: u32| Piece { buf, at, len, elements: 0, past: false };
        let steps = [
            Step::Copy { from: piece(Buf::Send, 0, 100), into: piece(Buf::Recv, 0, 100) },
            Step::Copy { from: piece(Buf::SharedScratch, 0, 100), into: piece(Buf::Recv, 100, 100) },
            Step::Copy { from: piece(Buf::SharedScratch, 0, 100), into: piece(Buf::Recv, 200, 100) },
            Step::Copy { from: piece(Buf::Recv, 250, 10), into: piece(Buf::SharedScratch, 100, 10) },
            Step::Copy { from: piece(Buf::SharedScratch, 0, 100), into: piece(Buf::Recv, 300, 100) },
            Step::Reduce { from: piece(Buf::SharedScratch, 0, 1), into: piece(Buf::Recv, 399, 1) },
            Step::Copy { from: piece(Buf::Send, 0, 100), into: piece(Buf::SharedScratch, 200, 100) },
        ];
        let past = |kind, rank, past| {
            let shape = Shape { kind, rank, ranks: 4, past, ..Shape::NOTHING };
            let mut steps = steps;
            copy_past_caches(&mut steps, &shape);
            steps.map(|step| step.writes().is_some_and(|into| into.past))
        };
        let some = [true, true, false, false, false, false, false];
        // Of the user's 100 + 400 + 10 + 1 + 1 + 100 bytes are touched.
        assert_eq!(past(Kind::Alltoall, 1, 612), some);
        assert_eq!(past(Kind::Alltoall, 1, 613), [false; 7]);
        // A root has half of all, and the others half of that together.
        assert_eq!([306, 307].map(|bytes| past(Kind::Gather, 0, bytes) == some), [true, false]);
        assert_eq!([1224, 1225].map(|bytes| past(Kind::Scatter, 1, bytes) == some), [true, false]);
    }

    /// Copies and sums give the same by strips, also in place, where Send and Recv are the same memory. Most lists of steps that go on
    /// with the same data become longer.
    #[test]
    fn strips_change_no_result() {
        let carry_out = |steps: &[Step]| {
            let mut memory: [Vec<u64>; 2] = [0, 100].map(|first| (first..first + 32).collect());
            for step in steps {
                let place = |span: Span, at: u64| {
                    (usize::from(span.buf == Buf::SharedScratch), (span.at + at) as usize)
                };
                let Some([from, into]) = operands(step) else { continue };
                for at in 0..into.len {
                    let ((of, from), (to, into)) = (place(from, at), place(into, at));
                    let sum = if matches!(step, Step::Reduce { .. }) { memory[to][into] } else { 0 };
                    memory[to][into] = memory[of][from].wrapping_mul(3).wrapping_add(sum);
                }
            }
            memory
        };
        let mut random = Random::new(17);
        let (mut longer, mut related) = (0, 0);
        for round in 0..20_000 {
            let len = 1 + random.below(10) as u64;
            let mut last = None;
            let span = |random: &mut Random| {
                let buf = [Buf::Send, Buf::Recv, Buf::SharedScratch][random.below(3)];
                Span::new(buf, (random.below(4) as u64 * 5, len))
            };
            let steps: Vec<Step> = (0..2 + random.below(4))
                .map(|_| {
                    let [any, other] = [span(&mut random), span(&mut random)];
                    let goes_on = last.filter(|_| random.below(4) > 0).unwrap_or(any);
                    let [from, into] = if random.below(2) == 0 { [goes_on, other] } else { [other, goes_on] };
                    last = Some(into);
                    let adds = random.below(2) == 0 && from != into;
                    if adds { Step::Reduce { from, into } } else { Step::Copy { from, into } }
                })
                .collect();
            let strips = in_strips(&steps, STRIP / 3);
            assert_eq!(carry_out(&strips), carry_out(&steps), "round {round}: {steps:?} by {strips:?}");
            related += u32::from(steps.windows(2).any(|pair| goes_on(&pair[0], &pair[1])));
            longer += u32::from(strips.len() > steps.len());
        }
        assert!(longer > 2_000 && related > longer, "{longer} of {related}");
    }
}
