//! [`PlanCache`]: what a communicator keeps between its collectives; [`start`] begins one.

use crate::execute::{Running, flat};
use crate::place::Place;
use crate::{Algorithm, Call, Case, Execution, Kind, Needs, Tuning};

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
    /// The last choice of each kind.
    choices: [Option<Choice>; Kind::ALL.len()],
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
        let slots = shared.then_some(SlotFacts { inline: 4096, regions: true });
        Facts { ranks, shared, cores, per_node: if shared { ranks } else { 1 }, slots }
    }
}

impl PlanCache {
    /// For `rank` of a new communicator.
    pub fn new(rank: u32, facts: Facts) -> PlanCache {
        PlanCache { rank, facts, stamp: 1, floor: 0, choices: [None; Kind::ALL.len()], idle: vec![] }
    }

    /// What all ranks know.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Takes back what an execution that is done had allocated, for the next one.
    pub fn recycle(&mut self, mut execution: Execution) {
        self.floor = self.floor.max(execution.0.floor);
        if self.idle.len() < 2 {
            execution.0.reset();
            self.idle.push(execution);
        }
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

/// Begins a collective. `seq` must be the same at all ranks, and differ from those of the communicator's
/// other collectives under way. Nothing is sent before the first [`Execution::advance`].
pub fn start(call: Call, plans: &mut PlanCache, tuning: &Tuning, seq: u32) -> Execution {
    let mut execution = plans.idle.pop().unwrap_or_else(|| Execution(Box::default()));
    let (running, kind) = (&mut *execution.0, call.kind);
    let (rank, ranks) = (plans.rank, plans.facts.ranks);
    if let (Some(case), Some(_)) = (flat::case(&call, ranks), plans.facts.slots) {
        let commutative = call.op.as_ref().is_none_or(|op| op.commutative());
        let algorithm = plans.choose(kind, Some(case), commutative, tuning);
        if algorithm.needs == Needs::Inline {
            running.algorithm = algorithm;
            running.flatten(call, rank, ranks);
            running.rounds = (algorithm.rounds)(&running.shape);
            running.number(plans, seq);
            return execution;
        }
    }
    if let Err(fault) = running.arrange(call, rank, ranks) {
        running.over = Some(Err(fault));
    }
    let algorithm = plans.choose(kind, running.case(kind), running.shape.commutative, tuning);
    running.algorithm = algorithm;
    running.rounds = (algorithm.rounds)(&running.shape);
    let (temp, ty) = ((algorithm.temp)(&running.shape), running.op.as_ref().map(|(_, ty)| ty));
    if temp > 0 {
        running.places[2] = Place::scratch(temp, ty, &mut running.work.spare);
    }
    running.number(plans, seq);
    execution
}

impl Running {
    fn number(&mut self, plans: &mut PlanCache, seq: u32) {
        (self.seq, self.stamp, self.floor) = (seq, plans.stamp, plans.floor);
        plans.stamp += u64::from(self.algorithm.phases);
    }
}
