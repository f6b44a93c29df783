//! [`PlanCache`]: what a communicator keeps between its collectives; [`start`] begins one.

use std::sync::Arc;

use crate::execute::Stamps;
use crate::execute::flat::{Begun, Flat};
use crate::execute::line::{Line, Outline};
use crate::halves::Halves;
use crate::place::Place;
use crate::{Algorithm, Call, Case, Execution, Fault, Kind, Slots, Tuning};

/// What is known of a communicator's ranks. All of them must have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Facts {
    /// How many they are.
    pub ranks: u32,
    /// They are all on one node.
    pub shared: bool,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// The most ranks on one node.
    pub per_node: u32,
    /// They have shared slots.
    pub slots: Option<SlotFacts>,
}

/// What all ranks know of their shared slots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotFacts {
    /// Bytes that a publication can carry inline.
    pub inline: u64,
    /// Every rank can pull regions of every other.
    pub regions: bool,
    /// Bytes of the board.
    pub board: u64,
}

/// What a communicator keeps between its collectives: one per communicator and rank.
#[derive(Debug)]
pub struct PlanCache {
    rank: u32,
    facts: Facts,
    /// The next stamp of the shared slots. All ranks start their collectives in one order and choose alike,
    /// so they count alike.
    stamp: u64,
    /// All ranks have released the stamps up to this one, as far as is known here.
    floor: u64,
    halves: Halves,
    /// The last choice of each kind.
    choices: [Option<Choice>; Kind::ALL.len()],
    /// The last lines of each kind, by [`Outline::place`]; none until there is one.
    lines: [Vec<Option<Arc<Line>>>; Kind::ALL.len()],
    /// Ready for the next executions.
    idle: Vec<Execution>,
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    case: Option<Case>,
    commutative: bool,
    algorithm: &'static Algorithm,
}

impl Facts {
    /// Of `ranks` ranks on one node of `cores` cores with slots as the runtime makes them, or on nodes of
    /// their own: what `mpirun --explain` assumes of a communicator that is not there.
    pub fn supposed(ranks: u32, shared: bool, cores: u32) -> Facts {
        let slots = shared.then_some(SlotFacts { inline: 4096, regions: true, board: 4 << 20 });
        Facts { ranks, shared, cores, per_node: if shared { ranks } else { 1 }, slots }
    }
}

impl PlanCache {
    /// For `rank` of a new communicator.
    pub fn new(rank: u32, facts: Facts) -> PlanCache {
        let lines = [const { vec![] }; Kind::ALL.len()];
        let (choices, halves) = ([None; Kind::ALL.len()], Halves::default());
        PlanCache { rank, facts, stamp: 1, floor: 0, halves, choices, lines, idle: vec![] }
    }

    /// What all ranks know.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Takes back what an execution that is done had allocated, for the next one.
    pub fn recycle(&mut self, mut execution: Execution) {
        self.floor = self.floor.max(execution.0.stamps.floor);
        if self.idle.len() < 2 {
            execution.0.reset();
            self.idle.push(execution);
        }
    }

    /// The line for a call, and its start, if it can be carried out along one.
    #[inline(always)]
    fn line(&mut self, kind: Kind, flat: &Flat<'_>, tuning: &Tuning) -> Option<(&Arc<Line>, Begun)> {
        let slots = self.facts.slots?;
        // Where sizes are unknown, what does not fit into slots goes by message.
        let most = if kind.size_unknown() { slots.inline } else { slots.inline.max(slots.board) };
        if flat.largest() > most || self.facts.ranks > Line::RANKS {
            return None;
        }
        if self.kept(kind, flat).is_none_or(|line| !flat.is_on(line)) {
            self.draw(kind, flat, tuning);
        }
        let place = flat.outline.place();
        let line = self.lines[kind as usize].get(place)?.as_ref().filter(|line| flat.can_walk(line))?;
        let halves = self.halves.take(line.chunks, (self.stamp, line.phases));
        let stamps = Stamps::new((self.rank, self.facts.ranks), self.stamp, self.floor, halves);
        self.stamp += u64::from(line.phases);
        Some((line, Begun::new(stamps)))
    }

    /// The line at the place where a call's is kept.
    #[inline(always)]
    fn kept(&self, kind: Kind, flat: &Flat<'_>) -> Option<&Arc<Line>> {
        self.lines[kind as usize].get(flat.outline.place())?.as_ref()
    }

    /// Makes the line for a call.
    #[cold]
    fn draw(&mut self, kind: Kind, flat: &Flat<'_>, tuning: &Tuning) {
        let shape = flat.shape(kind, self.rank, &self.facts);
        let algorithm = tuning.choose(kind, shape.case(kind, true), shape.commutative, &self.facts);
        let lines = &mut self.lines[kind as usize];
        lines.resize(Outline::PLACES, None);
        lines[flat.outline.place()] = Some(Arc::new(flat.line(algorithm, &shape)));
    }

    fn choose(
        &mut self,
        kind: Kind,
        case: Option<Case>,
        commutative: bool,
        tuning: &Tuning,
    ) -> &'static Algorithm {
        let kept = &mut self.choices[kind as usize];
        if let Some(kept) = kept
            && (kept.case, kept.commutative) == (case, commutative)
        {
            return kept.algorithm;
        }
        let algorithm = tuning.choose(kind, case, commutative, &self.facts);
        *kept = Some(Choice { case, commutative, algorithm });
        algorithm
    }
}

/// What became of an [`attempt`].
pub enum Attempt {
    /// The collective is over.
    Over(Result<(), Fault>),
    /// It has begun, and would have to wait now: [`start`] it from here.
    Begun(Begun),
    /// It is none that can be carried out on the spot: [`start`] it.
    Other,
}

/// Carries a collective out on the spot, if it is of few bytes in one piece that go through shared slots, and the
/// other ranks are there while it looks `again`, which may take a rest first.
#[inline(always)]
pub fn attempt(
    call: &Call,
    plans: &mut PlanCache,
    tuning: &Tuning,
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Attempt {
    match call.kind.uneven() {
        // Apart, so that what is to be known of blocks that differ is not in the way of the others.
        true => attempt_uneven(call, plans, tuning, slots, again),
        false => {
            walk(call.kind, Flat::even(call, (plans.rank, plans.facts.ranks)), plans, tuning, slots, again)
        }
    }
}

#[inline(never)]
fn attempt_uneven(
    call: &Call,
    plans: &mut PlanCache,
    tuning: &Tuning,
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Attempt {
    walk(call.kind, Flat::uneven(call, plans.rank), plans, tuning, slots, again)
}

#[inline(always)]
fn walk(
    kind: Kind,
    flat: Option<Flat<'_>>,
    plans: &mut PlanCache,
    tuning: &Tuning,
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Attempt {
    let Some(flat) = flat else { return Attempt::Other };
    let Some((line, mut begun)) = plans.line(kind, &flat, tuning) else { return Attempt::Other };
    match begun.walk(&flat, line, slots, again) {
        None => Attempt::Begun(begun),
        Some(result) => {
            plans.floor = plans.floor.max(begun.stamps.floor);
            Attempt::Over(result)
        }
    }
}

/// Begins a collective, or goes on with one that an [`attempt`] has begun. `seq` must be the same at all ranks,
/// and differ from those of the communicator's other collectives under way. Nothing is sent before the first
/// [`Execution::advance`].
pub fn start(
    call: Call,
    begun: Option<Begun>,
    plans: &mut PlanCache,
    tuning: &Tuning,
    seq: u32,
) -> Execution {
    let mut execution = plans.idle.pop().unwrap_or_else(|| Execution(Box::default()));
    let (running, kind) = (&mut *execution.0, call.kind);
    if let Some(flat) = Flat::of(&call, (plans.rank, plans.facts.ranks)) {
        let start = flat.start();
        let line = match begun {
            None => plans.line(kind, &flat, tuning),
            Some(begun) => plans.kept(kind, &flat).map(|line| (line, begun)),
        };
        if let Some((line, begun)) = line {
            let line = line.clone();
            running.flatten(call, start, line, begun);
            return execution;
        }
    }
    let (rank, ranks) = (plans.rank, plans.facts.ranks);
    running.refused = running.arrange(call, rank, ranks).err();
    running.shape.on(&plans.facts);
    let algorithm = plans.choose(kind, running.case(kind), running.shape.commutative, tuning);
    running.algorithm = algorithm;
    running.rounds = (algorithm.rounds)(&running.shape);
    let (temp, ty) = ((algorithm.temp)(&running.shape), running.op.as_ref().map(|(_, ty)| ty));
    if temp > 0 {
        running.places[2] = Place::scratch(temp, ty, &mut running.work.spare);
    }
    running.seq = seq;
    let (chunks, phases) = ((algorithm.chunks)(&running.shape), (algorithm.phases)(&running.shape));
    let halves = plans.halves.take(chunks, (plans.stamp, phases));
    running.stamps = Stamps::new((rank, ranks), plans.stamp, plans.floor, halves);
    plans.stamp += u64::from(phases);
    execution
}
