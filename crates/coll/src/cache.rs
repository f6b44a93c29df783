//! [`PlanCache`]: what a communicator keeps between its collectives. [`begin`] begins one, [`replay`] one whose arguments are
//! known.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use banyan_memory::{Bounds, Buffer};

use crate::execute::plan::{Compiled, Plan};
use crate::execute::{Cursor, ExecutionState, SeqWindow};
use crate::ledger::{Ledger, Used};
use crate::looks::{Due, Found, Looked, Looks};
use crate::sections::{Cut, Sections, SharedUse};
use crate::signature::{CallLists, Description, Key, lasts};
use crate::view::View;
use crate::{
    Algorithm, Call, Chunks, Composition, Execution, Fault, Lists, Nodes, Operand, SharedBuffers, SharedCaps,
    Signature, Topology, Tuning,
};

/// What a communicator keeps between its collectives: one per communicator and rank.
#[derive(Debug)]
pub struct PlanCache {
    rank: u32,
    topology: Topology,
    /// Who is where, and what is known of the ranks of this one's group, if there are several groups with several ranks.
    levels: Option<(Arc<Nodes>, Topology)>,
    /// As in [`Shape`](crate::Shape).
    split: u32,
    epoch: EpochState,
    /// By [`Key::place`]; none until there is one.
    plans: Vec<Option<Arc<Plan>>>,
    /// Plans of calls that went by other algorithms before, or will in the next look.
    others: VecDeque<Arc<Plan>>,
    /// By which algorithms calls go, if all ranks wait for all of them.
    looks: Option<Looks>,
    /// Ready for the next executions.
    idle: Vec<Execution>,
}

/// Where the ranks that share buffers are in the order of sequence numbers: `rank` is one of `ranks` of them.
#[derive(Debug)]
struct EpochState {
    rank: u32,
    ranks: u32,
    /// The next sequence number of the shared buffers. All ranks start their collectives in one order and choose alike,
    /// so they count alike.
    seq: u64,
    sections: Sections,
    /// All ranks have acknowledged the sequence numbers up to this one, as far as is known here. (Not beside `seq`: both were
    /// written just now, and to be read as one they would first have to leave, behind the message.)
    floor: u64,
    ledger: Ledger,
}

impl EpochState {
    /// The sequence numbers of the next collective, or of the next part of one, which has that tag and so many phases, and where its chunks go.
    /// All ranks of a node that start their collectives in one order count alike.
    // The allotment is made where it stays: a copy of what was just stored in parts waits until all earlier stores have left. So it is not handed to
    // `Cursor::new`, either, with which two such loads come back to a gatherv.
    #[inline(always)]
    fn take(&mut self, tag: u64, phases: u32, chunks: &Chunks) -> Cursor {
        let seqs = SeqWindow::new((self.rank, self.ranks), (self.seq, tag), self.floor);
        let mut cursor = Cursor::new(seqs);
        if chunks.number > 0 {
            cursor.allotment = self.sections.take(*chunks, (self.seq, phases));
        }
        self.seq += u64::from(phases);
        cursor
    }

    /// Those of the next collective, if that is its plan.
    #[inline(always)]
    fn next(&mut self, Compiled { about, used, phases, chunks, .. }: &Compiled) -> Cursor {
        let tag = self.ledger.enter(*about, *used);
        self.take(tag, *phases, chunks)
    }

    /// What a collective has found out.
    #[inline]
    fn learn(&mut self, seqs: &SeqWindow) {
        self.floor = self.floor.max(seqs.floor);
    }
}

impl PlanCache {
    /// Places for plans: programs go around some roots and sizes.
    const PLACES: usize = 64;
    /// How many plans by other algorithms are kept.
    const OTHERS: usize = 48;

    /// For `rank` of a new communicator.
    pub fn new(rank: u32, topology: Topology) -> PlanCache {
        let (ranks, ledger) = (topology.ranks, Ledger::new(rank));
        let epoch = EpochState { rank, ranks, seq: 1, floor: 0, sections: Sections::default(), ledger };
        let (plans, others, idle) = (vec![], VecDeque::new(), vec![]);
        PlanCache { rank, topology, levels: None, split: 0, epoch, plans, others, looks: None, idle }
    }

    /// The same, where each call is over before this rank begins the next one, and all ranks wait for it: what calls take decides how later ones go,
    /// and an attempt may be [`Attempt::Due`].
    pub fn measured(mut self) -> PlanCache {
        self.looks = (self.split == 0).then(Looks::default);
        self
    }

    /// The sums over all ranks of what was due.
    pub fn agreed(&mut self, due: Due, sums: &[u64]) {
        if let Some(looks) = &mut self.looks {
            looks.agreed(due, sums);
        }
    }

    /// The same for an intercommunicator: its ranks are those of both groups, with the `split` ranks of the one whose
    /// first rank is the lower process before the others. They need no shared buffers.
    pub fn between(rank: u32, topology: Topology, split: u32) -> PlanCache {
        PlanCache { split, ..PlanCache::new(rank, Topology { shared: None, ..topology }) }
    }

    /// The same, where it is known that the ranks are on these nodes. All members must say so, or none. Those on this node
    /// share buffers, or not, on so many cores: that they know alike.
    pub fn on(mut self, nodes: Nodes, shared: Option<SharedCaps>, cores: u32) -> PlanCache {
        if self.topology.has_levels() {
            let here = nodes.ranks(nodes.of(self.rank)).count();
            (self.epoch.rank, self.epoch.ranks) = (nodes.index(self.rank), here);
            let nodes = Arc::new(nodes).apart();
            let here = self.topology.within(&nodes, self.rank);
            let here = if self.topology.one_node() { here } else { Topology { shared, cores, ..here } };
            self.levels = Some((nodes, here));
        }
        self
    }

    /// By which algorithms calls go, where they are [measured](PlanCache::measured).
    pub fn found(&self) -> Vec<Found> {
        self.looks.as_ref().map_or(vec![], Looks::found)
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// What all ranks know.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Takes back what an execution that is done had allocated, for the next one.
    pub fn recycle(&mut self, mut execution: Execution) {
        self.epoch.learn(&execution.0.cursor.seqs);
        if let Some(looks) = &mut self.looks {
            looks.end();
        }
        if self.idle.len() < 2 {
            execution.0.reset();
            self.idle.push(execution);
        }
    }

    /// What is known of the communicator's calls.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.epoch.ledger
    }

    /// The same, when there are no more calls: ranks that are still in one of them may ask.
    pub fn into_ledger(self) -> Ledger {
        self.epoch.ledger.close()
    }

    /// Where the compiled plan for these arguments is kept, for [`replay`], and the bounds of the buffers that go with it: those
    /// of a call with equal arguments, so that nothing needs to be checked again. An argument without data has none.
    #[inline(always)]
    pub fn replayable(&self, signature: Signature, lists: &impl Lists) -> Option<(usize, [Bounds; 2])> {
        let key = signature.key();
        let plan = self.find(key, lists).filter(|plan| plan.compiled.is_some() && self.is_current(plan))?;
        Some((key.place(Self::PLACES), plan.bounds))
    }

    /// Where the compiled plan for a call is kept that was begun without a signature. It stays there while nothing else is begun.
    pub fn place_of(&self, call: &Call) -> Option<usize> {
        let key = Key::of(call)?;
        self.find(key, &CallLists(call))?.compiled.as_ref()?;
        Some(key.place(Self::PLACES))
    }

    #[inline(always)]
    fn find(&self, key: Key, lists: &(impl Lists + ?Sized)) -> Option<&Arc<Plan>> {
        let plan = self.plans.get(key.place(Self::PLACES))?.as_ref()?;
        plan.description.is_of(key, lists).then_some(plan)
    }

    /// True if such a call is to go by the algorithm of this plan now.
    #[inline(always)]
    fn is_current(&self, plan: &Plan) -> bool {
        let current = |call| self.looks.as_ref().is_some_and(|looks| looks.are_current(call, plan.wanted));
        plan.looked.is_none_or(current)
    }

    fn wanted(&self, call: Looked) -> Option<&'static Algorithm> {
        self.looks.as_ref()?.algorithm(call)
    }

    /// The plan for these arguments that is current. If calls went by another algorithm, it takes the place of the one before.
    fn find_current(&mut self, key: Key, lists: &dyn Lists) -> Option<Arc<Plan>> {
        if let Some(plan) = self.find(key, lists).filter(|plan| self.is_current(plan)) {
            return Some(plan.clone());
        }
        let fits = |plan: &Arc<Plan>| plan.description.is_of(key, lists) && self.is_current(plan);
        let at = self.others.iter().position(fits)?;
        let plan = self.others.remove(at)?;
        self.keep(key, plan.clone());
        Some(plan)
    }

    /// Keeps a plan for the next call with these arguments.
    fn keep(&mut self, key: Key, plan: Arc<Plan>) {
        self.plans.resize(Self::PLACES, None);
        if let Some(before) = self.plans[key.place(Self::PLACES)].replace(plan)
            && before.looked.is_some()
        {
            self.others.truncate(Self::OTHERS - 1);
            self.others.push_front(before);
        }
    }
}

/// What became of the [beginning](begin) of a collective.
pub enum Attempt {
    /// It is over.
    Over(Result<(), Box<Fault>>),
    /// It has begun, and would have to wait now.
    Pending(Execution),
    /// It has not begun: all ranks have to agree before it.
    Due(Box<Postponed>),
}

/// A call before which all ranks add up what they have measured, by a collective that they wait for, and hand the sums to
/// [`PlanCache::agreed`]. Then it is to be begun again.
#[derive(Debug)]
pub struct Postponed {
    /// The call.
    pub call: Call,
    /// What this rank has measured.
    pub times: Vec<u64>,
    /// To hand on.
    pub due: Due,
}

/// Begins a collective; `asked` are the arguments that its call was made of. If its plan is compiled it goes as far as the other
/// ranks have come while this one polls on while `keep_polling` says so, which is told how long to pause first.
pub fn begin(
    call: Call,
    asked: Option<(Signature, &dyn Lists)>,
    plans: &mut PlanCache,
    tuning: &Tuning,
    shared: Option<&mut impl SharedBuffers>,
    keep_polling: &mut impl FnMut(Duration) -> bool,
) -> Attempt {
    let mut execution = match prepare(call, asked, plans, tuning) {
        Ok(execution) => execution,
        Err(postponed) => return Attempt::Due(postponed),
    };
    match shared.and_then(|shared| execution.0.run(shared, keep_polling)) {
        None => Attempt::Pending(execution),
        Some(result) => {
            plans.recycle(execution);
            Attempt::Over(result)
        }
    }
}

/// As [`begin`], but nothing is sent or looked at before the first [`Execution::advance`].
///
/// # Panics
/// If calls are [measured](PlanCache::measured): they are to be begun.
pub fn start(call: Call, plans: &mut PlanCache, tuning: &Tuning) -> Execution {
    assert!(plans.looks.is_none(), "a call that is measured is begun");
    prepare(call, None, plans, tuning).unwrap_or_else(|_| unreachable!("nothing is due without looks"))
}

/// Gets a call ready, unless ranks must agree before it.
fn prepare(
    call: Call,
    asked: Option<(Signature, &dyn Lists)>,
    plans: &mut PlanCache,
    tuning: &Tuning,
) -> Result<Execution, Box<Postponed>> {
    let of_call = CallLists(&call);
    let described = match asked.filter(|_| lasts(&call)) {
        _ if plans.split > 0 => None,
        Some((signature, lists)) => Some((signature.key(), lists)),
        None => Key::of(&call).map(|key| (key, &of_call as &dyn Lists)),
    };
    let mut execution = ready(&mut plans.idle);
    let mut plan = described.and_then(|(key, lists)| plans.find_current(key, lists));
    if plan.as_ref().is_none_or(|plan| plan.compiled.is_none()) {
        execution.0.bind(&call, plans.rank, plans.split, (&plans.topology, &tuning.model));
        execution.0.shape.ring = tuning.ring.clone().filter(|_| plans.split == 0);
        if call.kind.known_by_pairs() {
            let longest = tuning.model.longest_copied(call.kind, &plans.topology);
            execution.0.shape.longest_copied = longest as u64;
        }
    }
    let looked = match &plan {
        Some(plan) => plan.looked,
        None => plans.looked(&execution.0, tuning),
    };
    if looked.is_some()
        && let Some((times, due)) = plans.looks.as_mut().and_then(Looks::due)
    {
        execution.0.reset();
        plans.idle.push(execution);
        return Err(Box::new(Postponed { call, times, due }));
    }
    if let (None, Some((key, _)), None) = (&plan, described, &execution.0.refused) {
        plan = Some(plans.work_out(key, (&call, looked), &execution.0, tuning));
    }
    match plan {
        Some(plan) if plan.compiled.is_some() => {
            plans.along(&mut execution.0, plan, call.buffers());
        }
        plan => plans.by_rounds(&mut execution.0, (plan.as_deref(), looked), tuning),
    }
    execution.0.number = plans.epoch.ledger.last();
    if let (Some(looks), Some(call)) = (&mut plans.looks, looked) {
        looks.begin(call);
    }
    Ok(execution)
}

/// Begins a collective whose plan is [known](PlanCache::replayable) to be at that place, on buffers of the bounds that are kept
/// with it.
#[inline(always)]
pub fn replay(
    place: usize,
    buffers: &[Buffer; 2],
    plans: &mut PlanCache,
    shared: &mut impl SharedBuffers,
    keep_polling: &mut impl FnMut(Duration) -> bool,
) -> Option<Attempt> {
    let PlanCache { plans, epoch, idle, looks, .. } = plans;
    let plan = plans.get(place)?.as_ref()?;
    let compiled = plan.compiled.as_ref()?;
    let mut cursor = epoch.next(compiled);
    let mut looked = looks.as_mut().zip(plan.looked);
    if let Some((looks, call)) = &mut looked {
        looks.begin(*call);
    }
    Some(match cursor.run(plan, compiled, (&buffers[0], &buffers[1]), shared, keep_polling) {
        Some(result) => {
            epoch.learn(&cursor.seqs);
            if let Some((looks, _)) = looked {
                looks.end();
            }
            Attempt::Over(result)
        }
        None => Attempt::Pending(follow(idle, plan, buffers.clone(), cursor, epoch.ledger.last())),
    })
}

/// An execution of a call that has come so far.
#[cold]
fn follow(
    idle: &mut Vec<Execution>,
    plan: &Arc<Plan>,
    buffers: [Buffer; 2],
    cursor: Cursor,
    number: u64,
) -> Execution {
    let mut execution = ready(idle);
    execution.0.adopt(plan.clone(), buffers);
    (execution.0.cursor, execution.0.number) = (cursor, number);
    execution
}

/// An execution that is ready to be used.
fn ready(idle: &mut Vec<Execution>) -> Execution {
    idle.pop().unwrap_or_else(|| Execution(Box::default()))
}

impl PlanCache {
    /// Chooses how to carry out such calls, and keeps it. `bound` is one of them.
    #[cold]
    fn work_out(
        &mut self,
        key: Key,
        (call, looked): (&Call, Option<Looked>),
        bound: &ExecutionState,
        tuning: &Tuning,
    ) -> Arc<Plan> {
        let wanted = looked.and_then(|call| self.wanted(call));
        let (algorithm, composition) = self.choose(bound, tuning, wanted);
        let bases = [&call.send, &call.recv].map(Operand::base);
        // Types that are not dense have one description if they have one size: what it says is not where their bytes are.
        let dense = call.send.is_dense() && call.recv.is_dense();
        // Nor do the steps of a compiled plan touch memory of a device.
        let host = bases.iter().flatten().all(|base| base.kind().is_host_accessible());
        let mut compiled = if dense && host { bound.compile(algorithm, &bases) } else { None };
        if let Some(compiled) = &mut compiled {
            compiled.used = compiled.used.looked(looked);
        }
        let bounds = bases.map(|base| base.unwrap_or_else(Buffer::empty).bounds());
        let description = Description::new(key, call);
        let plan = Arc::new(Plan { description, bounds, looked, wanted, algorithm, composition, compiled });
        self.keep(key, plan.clone());
        plan
    }

    /// What such a call is known by where calls are measured.
    fn looked(&mut self, bound: &ExecutionState, tuning: &Tuning) -> Option<Looked> {
        let shape = &bound.shape;
        let call = (shape.kind, shape.root);
        self.looks.as_mut()?.of(call, bound.case(), shape.commutative, (tuning, &self.topology))
    }

    /// How to carry out such a call.
    fn choose(
        &self,
        bound: &ExecutionState,
        tuning: &Tuning,
        wanted: Option<&'static Algorithm>,
    ) -> (&'static Algorithm, Option<Arc<Composition>>) {
        let (shape, case) = (&bound.shape, bound.case());
        let row = tuning.choose_if(wanted, (shape.kind, case, shape.commutative), &self.topology);
        let levels = self.levels.as_ref().filter(|_| !row.stages.is_empty());
        let composition = levels.map(|(nodes, here)| {
            let (chunks, levels) = (tuning.chunks(row, case, &self.topology), (nodes, &self.topology, here));
            Arc::new(tuning.compose((row, chunks), shape, bound.is_plain(), levels))
        });
        (row, composition)
    }

    /// Gets a call ready to go along its plan.
    fn along(&mut self, state: &mut ExecutionState, plan: Arc<Plan>, buffers: [Buffer; 2]) {
        if let Some(compiled) = &plan.compiled {
            state.cursor = self.epoch.next(compiled);
        }
        state.adopt(plan, buffers);
    }

    /// Gets a call that is bound ready to go round by round.
    fn by_rounds(
        &mut self,
        state: &mut ExecutionState,
        (plan, looked): (Option<&Plan>, Option<Looked>),
        tuning: &Tuning,
    ) {
        state.mirror();
        state.detach();
        let (algorithm, composition) = match (self.split, plan) {
            (0, Some(plan)) => (plan.algorithm, plan.composition.clone()),
            (0, None) => self.choose(state, tuning, looked.and_then(|call| self.wanted(call))),
            _ => (tuning.choose_between(state.shape.kind, state.case(), &self.topology), None),
        };
        (state.algorithm, state.shape.composition) = (algorithm, composition);
        state.rounds = algorithm.rounds(&state.shape);
        let (temp, ty) = (algorithm.temp(&state.shape), state.op.as_ref().map(|(_, ty)| ty));
        if temp > 0 {
            state.views[2] = View::private(temp, ty, &mut state.work.spare);
        }
        let about = state.about();
        let used = match state.shape.composition {
            None => {
                Used::of(about, (algorithm.phases)(&state.shape), (algorithm.chunks)(&state.shape).number)
            }
            Some(_) => Used::of_stages(about),
        };
        let tag = self.epoch.ledger.enter(about, used.looked(looked));
        algorithm.shared_uses(&state.shape, |SharedUse { phases, chunks, cut }| {
            state.windows.push((self.epoch.take(tag, phases, &chunks), cut));
            state.phases += phases;
        });
        if state.windows.is_empty() {
            state.windows.push((self.epoch.take(tag, 0, &Chunks::NONE), Cut::default()));
        }
        (state.cursor, state.cut) = state.windows[0];
    }
}
