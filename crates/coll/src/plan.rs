//! [`PlanCache`]: what a communicator keeps between its collectives; [`start`] begins one.

use std::sync::Arc;

use banyan_memory::Address;

use crate::execute::SeqWindow;
use crate::execute::compiled::{CompiledPlan, PlanKey};
use crate::execute::contiguous::ContiguousCall;
use crate::execute::run::Cursor;
use crate::ledger::{About, Ledger, Used};
use crate::replay::ReplayCache;
use crate::sections::Sections;
use crate::view::View;
use crate::{
    Algorithm, Call, Case, Chunks, Execution, Fault, Kind, Lists, SharedBuffers, Signature, Tuning, between,
};

/// What all ranks of a communicator know of its ranks and their nodes: it must be equal at all of them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Topology {
    /// Ranks of the communicator.
    pub ranks: u32,
    /// All ranks are on one node.
    pub one_node: bool,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// The most ranks on one node.
    pub per_node: u32,
    /// The shared buffers of the ranks, if they have any.
    pub shared: Option<SharedCaps>,
}

/// What the shared buffers of a communicator can do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedCaps {
    /// Bytes that a publication can carry inline.
    pub inline: u64,
    /// Every rank can get exposed ranges of every other.
    pub single_copy: bool,
    /// Bytes of the shared scratch.
    pub scratch: u64,
}

/// What a communicator keeps between its collectives: one per communicator and rank.
#[derive(Debug)]
pub struct PlanCache {
    topology: Topology,
    /// [`Shape::split`](crate::Shape::split) of its calls.
    split: u32,
    epoch: EpochState,
    /// The last choice of an algorithm for each kind.
    choices: [Option<Choice>; Kind::ALL.len()],
    compiled: CompiledPlans,
    replays: ReplayCache,
    /// Executions that are done, and can be used again.
    idle: Vec<Execution>,
}

/// How far a communicator is: what its next collective starts from.
#[derive(Debug)]
struct EpochState {
    rank: u32,
    ranks: u32,
    /// The next sequence number of the shared buffers. All ranks start their collectives in one order and choose alike,
    /// so they count alike.
    seq: u64,
    sections: Sections,
    /// All ranks are known to have acknowledged the sequence numbers up to this one. (Kept apart from `seq`: both were written just
    /// now, and one wide load of the two would have to wait until the stores are done, behind those of the message.)
    floor: u64,
    ledger: Ledger,
}

impl EpochState {
    /// Begins the next collective, of so many phases, and chunks on the shared scratch. Returns its sequence numbers.
    #[inline(always)]
    fn next(&mut self, about: About, used: Used, phases: u32, chunks: Chunks) -> SeqWindow {
        let tag = self.ledger.enter(about, used);
        let allotment = self.sections.take(chunks, (self.seq, phases));
        let seqs = SeqWindow::new((self.rank, self.ranks), (self.seq, tag), self.floor, allotment);
        self.seq += u64::from(phases);
        seqs
    }

    /// Takes over what a collective has found out about the ranks' acknowledgements.
    #[inline]
    fn learn(&mut self, seqs: &SeqWindow) {
        self.floor = self.floor.max(seqs.floor);
    }
}

/// The last compiled plans: by kind, then by [`PlanKey::cache_index`]. The list of a kind is empty until there is a plan.
#[derive(Debug, Default)]
struct CompiledPlans {
    by_kind: [Vec<Option<Arc<CompiledPlan>>>; Kind::ALL.len()],
    /// How many plans were made; the generation of the last one.
    made: u64,
}

impl CompiledPlans {
    #[inline(always)]
    fn at(&self, (kind, index): (Kind, usize)) -> Option<&Arc<CompiledPlan>> {
        self.by_kind[kind as usize].get(index)?.as_ref()
    }

    fn keep(&mut self, (kind, index): (Kind, usize), mut plan: CompiledPlan) {
        self.made += 1;
        plan.generation = self.made;
        let entries = &mut self.by_kind[kind as usize];
        entries.resize(PlanKey::CACHED, None);
        entries[index] = Some(Arc::new(plan));
    }
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    case: Option<Case>,
    commutative: bool,
    algorithm: &'static Algorithm,
}

impl Topology {
    /// The topology that models and tests assume: `ranks` ranks on one node of `cores` cores, with CICO buffers about as the
    /// runtime makes them, or each on a node of its own.
    pub fn supposed(ranks: u32, one_node: bool, cores: u32) -> Topology {
        let shared = one_node.then_some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        Topology { ranks, one_node, cores, per_node: if one_node { ranks } else { 1 }, shared }
    }
}

impl PlanCache {
    /// For `rank` of a new communicator.
    pub fn new(rank: u32, topology: Topology) -> PlanCache {
        let ledger = Ledger::new(rank);
        let epoch = EpochState {
            rank,
            ranks: topology.ranks,
            seq: 1,
            floor: 0,
            sections: Sections::default(),
            ledger,
        };
        let (choices, replays) = ([None; Kind::ALL.len()], ReplayCache::default());
        PlanCache {
            topology,
            split: 0,
            epoch,
            choices,
            compiled: CompiledPlans::default(),
            replays,
            idle: vec![],
        }
    }

    /// For `rank` of a new intercommunicator. Its ranks are those of both groups: first the `split` ranks of the group whose first
    /// rank is the lower process, then the others. They need no CICO buffers.
    pub fn between(rank: u32, topology: Topology, split: u32) -> PlanCache {
        PlanCache { split, ..PlanCache::new(rank, Topology { shared: None, ..topology }) }
    }

    /// The communicator's topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Takes back an execution that is done: the next one uses what it has allocated.
    pub fn recycle(&mut self, mut execution: Execution) {
        self.epoch.learn(&execution.0.cursor.seqs);
        if self.idle.len() < 2 {
            execution.0.reset();
            self.idle.push(execution);
        }
    }

    /// The ledger of the communicator's calls.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.epoch.ledger
    }

    /// The ledger alone, closed, when there are no more calls: ranks that are still in one of them may ask.
    pub fn into_ledger(self) -> Ledger {
        self.epoch.ledger.close()
    }

    /// The cache entry of a call with these arguments, to be [replayed](replay); `None` if there is none. The arguments need no
    /// further check.
    #[inline(always)]
    pub fn replayable(&self, signature: Signature, lists: &impl Lists) -> Option<usize> {
        let (index, replay) = self.replays.find(signature, lists)?;
        let (plan, generation) = replay.plan;
        (self.compiled.at((signature.kind, plan))?.generation == generation).then_some(index)
    }

    /// Finds or makes the compiled plan for a call; false if the call cannot be carried out along one.
    #[inline(always)]
    fn has_plan(&mut self, kind: Kind, contiguous_call: &ContiguousCall<'_>, tuning: &Tuning) -> bool {
        let Some(shared) = self.topology.shared else { return false };
        if contiguous_call.largest() > shared.inline.max(shared.scratch)
            || self.topology.ranks > CompiledPlan::RANKS
        {
            return false;
        }
        let entry = (kind, contiguous_call.plan_key.cache_index());
        if self.compiled.at(entry).is_none_or(|plan| !contiguous_call.fits(plan)) {
            self.compile(kind, contiguous_call, tuning);
        }
        self.compiled.at(entry).is_some_and(|plan| contiguous_call.can_run(plan))
    }

    /// Makes the compiled plan for a call.
    #[cold]
    fn compile(&mut self, kind: Kind, contiguous_call: &ContiguousCall<'_>, tuning: &Tuning) {
        let shape = contiguous_call.shape(kind, self.epoch.rank, &self.topology);
        let algorithm = tuning.choose(kind, shape.case(kind, true), shape.commutative, &self.topology);
        self.compiled
            .keep((kind, contiguous_call.plan_key.cache_index()), contiguous_call.plan(algorithm, &shape));
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
        let algorithm = tuning.choose(kind, case, commutative, &self.topology);
        *kept = Some(Choice { case, commutative, algorithm });
        algorithm
    }
}

/// What became of an [`attempt`].
pub enum Attempt {
    /// The collective is over.
    Over(Result<(), Box<Fault>>),
    /// It has begun, and must wait now.
    Pending(Execution),
}

/// Carries a collective out at once, if its data are few bytes in one piece that go through shared buffers, and if the other
/// ranks get there while `keep_polling`, which may pause first, returns true. `None`: the call is of another sort, and must be
/// [started](start). A call with a `signature` may be [replayed](replay) later.
#[inline(always)]
pub fn attempt(
    call: &Call,
    signature: Option<(Signature, &dyn Lists)>,
    plans: &mut PlanCache,
    tuning: &Tuning,
    shared: &mut impl SharedBuffers,
    keep_polling: &mut impl FnMut() -> bool,
) -> Option<Attempt> {
    let contiguous_call = match call.kind.uneven() {
        // A call of its own, so that what uneven blocks need does not slow other calls down.
        true => ContiguousCall::uneven(call, plans.epoch.rank),
        false => ContiguousCall::even(call, (plans.epoch.rank, plans.topology.ranks)),
    }?;
    let made_before = plans.compiled.made;
    if !plans.has_plan(call.kind, &contiguous_call, tuning) {
        return None;
    }
    let index = contiguous_call.plan_key.cache_index();
    let plan = plans.compiled.at((call.kind, index))?;
    // A call whose plan was only just compiled may never come again: it is kept from the second time on.
    if let Some(signature) = signature.filter(|_| made_before == plans.compiled.made) {
        plans.replays.keep(signature, call, &contiguous_call, (index, plan.generation));
    }
    Some(run(&contiguous_call, plan, (&mut plans.epoch, &mut plans.idle), shared, keep_polling))
}

/// Does what [`attempt`] does, for a call with the [replayable](PlanCache::replayable) arguments of cache entry `index`, on
/// these buffers.
#[inline(always)]
pub fn replay(
    index: usize,
    [send, recv]: [Address; 2],
    plans: &mut PlanCache,
    shared: &mut impl SharedBuffers,
    keep_polling: &mut impl FnMut() -> bool,
) -> Option<Attempt> {
    let replay = plans.replays.at(index)?;
    let plan = plans.compiled.at((replay.kind, replay.plan.0))?;
    let (send, recv) = (replay.buffer(0, send), replay.buffer(1, recv));
    let contiguous_call = replay.contiguous(plan, [&send, &recv]);
    Some(run(&contiguous_call, plan, (&mut plans.epoch, &mut plans.idle), shared, keep_polling))
}

#[inline(always)]
fn run(
    contiguous_call: &ContiguousCall<'_>,
    plan: &Arc<CompiledPlan>,
    (epoch, idle): (&mut EpochState, &mut Vec<Execution>),
    shared: &mut impl SharedBuffers,
    keep_polling: &mut impl FnMut() -> bool,
) -> Attempt {
    let mut cursor =
        Cursor::new(epoch.next(contiguous_call.about(plan), plan.used, plan.phases, plan.chunks));
    match cursor.run(contiguous_call, plan, shared, keep_polling) {
        None => {
            Attempt::Pending(execution_of(idle, contiguous_call, plan.clone(), cursor, epoch.ledger.last()))
        }
        Some(result) => {
            epoch.learn(&cursor.seqs);
            Attempt::Over(result)
        }
    }
}

/// The execution of a call that has come as far along its compiled plan as `cursor` says.
#[cold]
fn execution_of(
    idle: &mut Vec<Execution>,
    contiguous_call: &ContiguousCall<'_>,
    plan: Arc<CompiledPlan>,
    cursor: Cursor,
    number: u64,
) -> Execution {
    let mut execution = ready(idle);
    execution.0.number = number;
    execution.0.adopt(contiguous_call, plan, cursor);
    execution
}

/// An unused execution.
fn ready(idle: &mut Vec<Execution>) -> Execution {
    idle.pop().unwrap_or_else(|| Execution(Box::default()))
}

/// Begins a collective. Nothing is sent before the first [`Execution::advance`].
pub fn start(call: Call, plans: &mut PlanCache, tuning: &Tuning) -> Execution {
    let kind = call.kind;
    let (rank, ranks) = (plans.epoch.rank, plans.topology.ranks);
    if plans.split == 0
        && let Some(contiguous_call) = ContiguousCall::of(&call, (rank, ranks))
        && plans.has_plan(kind, &contiguous_call, tuning)
        && let Some(plan) = plans.compiled.at((kind, contiguous_call.plan_key.cache_index()))
    {
        let cursor =
            Cursor::new(plans.epoch.next(contiguous_call.about(plan), plan.used, plan.phases, plan.chunks));
        return execution_of(
            &mut plans.idle,
            &contiguous_call,
            plan.clone(),
            cursor,
            plans.epoch.ledger.last(),
        );
    }
    let mut execution = ready(&mut plans.idle);
    let inner = &mut *execution.0;
    inner.shape.split = plans.split;
    inner.refused = inner.bind(call, rank, ranks).err();
    inner.shape.on(&plans.topology);
    let algorithm = match plans.split {
        0 => plans.choose(kind, inner.case(kind), inner.shape.commutative, tuning),
        _ => between(kind).expect("there are no scans between groups"),
    };
    inner.algorithm = algorithm;
    inner.rounds = (algorithm.rounds)(&inner.shape);
    let (temp, ty) = ((algorithm.temp)(&inner.shape), inner.op.as_ref().map(|(_, ty)| ty));
    if temp > 0 {
        inner.views[2] = View::private(temp, ty, &mut inner.work.spare);
    }
    let (chunks, phases) = ((algorithm.chunks)(&inner.shape), (algorithm.phases)(&inner.shape));
    let op = inner.op.as_ref().map(|(op, _)| op);
    let about = About::of(kind, &inner.shape).with_any(op, inner.shape.split > 0);
    let used = Used::of(about, phases, chunks.number);
    inner.cursor.seqs = plans.epoch.next(about, used, phases, chunks);
    (inner.phases, inner.number) = (phases, plans.epoch.ledger.last());
    execution
}
