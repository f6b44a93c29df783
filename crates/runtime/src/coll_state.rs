//! [`CollState`]: what a communicator keeps between its collectives, and the short way of a call from its arguments to the
//! shared buffers of the communicator.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use banyan_coll::{
    self as coll, Attempt, Call, Difference, Execution, Kind, Ledger, Lists, Op, Operand, PlanCache,
    Postponed, Signature,
};
use banyan_datatype::op::Builtin;
use banyan_memory::{Bounds, Buffer, HeapBuffer};
use banyan_pmi::Home;
use banyan_shm::{Arena, Published};
use banyan_transport::Peer;

use crate::coll::{builtin, bytes_of};
use crate::context::Retired;
use crate::engine::Engine;
use crate::error::{Class, Error, Result};
use crate::gpu::ToldGpus;
use crate::group::Group;
use crate::running::CollId;
use crate::runtime::Runtime;
use crate::slab;
use crate::wait::SpinBudget;

/// A collective that was started; `None`: it is over already. The error is in a box, so that this is returned in registers.
type Launched = Result<Option<CollId>, Box<Error>>;

/// What a communicator runs its collectives with: its ranks, their shared buffers, and where it is in its sequence of calls.
pub(crate) struct CollState {
    rt: Arc<Runtime>,
    /// The context of the communicator.
    comm: u64,
    /// The context of its collectives that are numbered here.
    pub(crate) ctx: u64,
    /// All its ranks, as schedules number them.
    pub(crate) group: Group,
    /// Ranks in the first of the two groups of an intercommunicator; 0: there is one group.
    split: u32,
    /// Each of its collectives is waited for before the next one.
    waited: bool,
    /// Index of its [`CollSequence`] in the engine, from the first collective on.
    sequence: OnceLock<u32>,
    /// The shared buffers, looked for by the first collective; `None` inside: the communicator has none.
    shared: OnceLock<Option<CommBuffers>>,
    /// Where the ranks' GPUs are, if all buffers are on these.
    gpus: OnceLock<Arc<ToldGpus>>,
}

/// What algorithms are chosen by where all buffers are memory of GPUs.
pub(crate) struct OnGpus {
    pub(crate) tuning: coll::Tuning,
    /// By rank.
    pub(crate) locations: Vec<coll::Location>,
}

/// A persistent collective: its call, in a context of its own, and the plan of that call.
pub(crate) struct PersistentCall {
    call: Call,
    buffers: [Buffer; 2],
    coll_state: Arc<CollState>,
    /// Where the sequence and the plan are, from the first start on; `None` inside: the plan is not compiled.
    plan: OnceLock<Option<(u32, usize)>>,
}

impl PersistentCall {
    pub(crate) fn new(call: Call, coll_state: Arc<CollState>) -> Self {
        Self { buffers: call.buffers(), call, coll_state, plan: OnceLock::new() }
    }

    /// Starts it: along its plan, once that is known.
    pub(crate) fn start(&self) -> Result<Option<CollId>> {
        let Self { buffers, coll_state, plan, .. } = self;
        match plan.get() {
            Some(&Some((index, plan))) => {
                let engine = &mut coll_state.rt.engine_lock.enter();
                coll_state.replay_plan::<false>(engine, index, plan, buffers).map_err(|error| *error)
            }
            _ => self.start_first(),
        }
    }

    #[cold]
    fn start_first(&self) -> Result<Option<CollId>> {
        let Self { call, coll_state, plan, .. } = self;
        let launched = coll_state.launch(call.clone(), None, false);
        plan.get_or_init(|| {
            let index = *coll_state.sequence.get()?;
            let mut engine = coll_state.rt.engine_lock.enter();
            let place = engine.colls.sequences.at(index).plans.place_of(call)?;
            Some((index, place))
        });
        launched
    }
}

/// The ranks of a communicator as its schedules number them. Of an intercommunicator the group whose first rank is the
/// lower process comes first, so that both groups number the ranks alike.
pub(crate) struct ScheduleRanks {
    group: Group,
    split: u32,
}

impl ScheduleRanks {
    pub(crate) fn of(local: &Group, remote: Option<&Group>) -> ScheduleRanks {
        let Some(remote) = remote else { return ScheduleRanks { group: local.clone(), split: 0 } };
        let first = local.peer(0) < remote.peer(0);
        let (one, other) = if first { (local, remote) } else { (remote, local) };
        let peers = one.peers().chain(other.peers()).collect();
        let myself = local.rank().and_then(|rank| local.peer(rank)).unwrap_or(Peer(u32::MAX));
        ScheduleRanks { group: Group::new(peers, myself), split: one.size() }
    }
}

/// Where a communicator is in its sequence of collectives, and the plans that it keeps.
pub(crate) struct CollSequence {
    ctx: u64,
    plans: PlanCache,
}

/// The sequences of all communicators that had a collective. The engine keeps them, behind the engine lock: a lock of
/// their own would cost as much as the rest of a small collective.
#[derive(Default)]
pub(crate) struct CollSequences {
    slab: Vec<Option<CollSequence>>,
    /// The ledgers of communicators that are gone here: other ranks may still be in one of the calls.
    gone: VecDeque<(u64, Ledger)>,
}

impl CollSequences {
    /// Ledgers that are kept of communicators that are gone.
    const GONE: usize = 64;

    fn enter(&mut self, sequence: CollSequence) -> u32 {
        slab::keep(&mut self.slab, sequence) as u32
    }

    #[inline]
    fn at(&mut self, index: u32) -> &mut CollSequence {
        self.slab[index as usize].as_mut().expect("a communicator keeps its index until it is gone")
    }

    /// The ledger of the calls in a context.
    pub(crate) fn ledger(&mut self, ctx: u64) -> Option<&mut Ledger> {
        let mut here = self.slab.iter_mut().flatten();
        match here.find(|sequence| sequence.ctx == ctx) {
            Some(sequence) => Some(sequence.plans.ledger()),
            None => self.gone.iter_mut().find(|gone| gone.0 == ctx).map(|gone| &mut gone.1),
        }
    }

    /// What this rank has measured, where it is the first one of its communicator.
    pub(crate) fn found(&self) -> impl Iterator<Item = coll::Found> + '_ {
        let first = self.slab.iter().flatten().filter(|sequence| sequence.plans.rank() == 0);
        first.flat_map(|sequence| sequence.plans.found())
    }

    /// The communicator of this sequence is gone.
    pub(crate) fn leave(&mut self, index: u32) {
        let Some(CollSequence { ctx, plans }) = self.slab[index as usize].take() else { return };
        self.gone.truncate(CollSequences::GONE - 1);
        self.gone.push_front((ctx, plans.into_ledger()));
    }
}

impl CollState {
    pub(crate) fn new(rt: &Arc<Runtime>, ctx: u64, ranks: ScheduleRanks) -> Self {
        let (rt, ScheduleRanks { group, split }) = (rt.clone(), ranks);
        let (sequence, shared, gpus) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { rt, comm: ctx, ctx, group, split, waited: true, sequence, shared, gpus }
    }

    /// The state of other collectives of the same communicator, in a context of their own: these are started, and may be waited for later.
    pub(crate) fn in_context(&self, ctx: u64) -> Self {
        let ranks = ScheduleRanks { group: self.group.clone(), split: self.split };
        let mut state = Self::new(&self.rt, ctx, ranks);
        (state.comm, state.waited) = (self.comm, false);
        state.gpus = self.gpus.clone();
        state
    }

    /// What algorithms are chosen by where all buffers are on GPUs, if they are.
    fn on_gpus(&self) -> Option<&OnGpus> {
        self.gpus.get()?.found(&self.rt, &self.group)
    }

    /// Algorithms are chosen as for buffers on GPUs, if all ranks tell where theirs are and none has run a collective here. The first such
    /// word counts.
    pub(crate) fn expect_gpus(&self, gpus: ToldGpus) {
        let _ = self.gpus.set(Arc::new(gpus));
    }

    /// True once there was a collective.
    pub(crate) fn has_begun(&self) -> bool {
        self.sequence.get().is_some()
    }

    /// What algorithms are chosen by.
    pub(crate) fn tuning(&self) -> &coll::Tuning {
        self.on_gpus().map_or(&self.rt.tuning, |on_gpus| &on_gpus.tuning)
    }

    /// The context of the communicator, and that of its collectives here.
    pub(crate) fn contexts(&self) -> (u64, u64) {
        (self.comm, self.ctx)
    }

    /// The number that schedules give to a rank of this process's `own` group, or of the other group.
    pub(crate) fn schedule_rank(&self, rank: u32, own: bool) -> u32 {
        let first = self.group.rank() < Some(self.split);
        if own == first || self.split == 0 { rank } else { self.split + rank }
    }

    /// Starts a collective; `None`: it is over already. If the caller `waits` for it anyway, the other ranks' CICO buffers are
    /// polled a few times before the first poll of all fabrics. The plan is kept under `signature` for [`CollState::replay`].
    #[inline(never)]
    pub(crate) fn launch(
        self: &Arc<Self>,
        call: Call,
        signature: Option<(Signature, &dyn Lists)>,
        waits: bool,
    ) -> Result<Option<CollId>> {
        let mut engine = self.rt.engine_lock.enter();
        let mut spins = engine.policy.spins(waits, self.rt.engine_lock.is_multi_threaded());
        let index = match self.sequence.get() {
            Some(&index) => index,
            None => self.enter(&mut engine),
        };
        let CollSequence { plans, .. } = engine.colls.sequences.at(index);
        let mut shared = self.shared();
        let attempt = coll::begin(call, signature, plans, self.tuning(), shared.as_mut(), &mut |pause| {
            spins.spend(pause)
        });
        if let Attempt::Due(postponed) = attempt {
            drop(engine);
            let Postponed { call, times, due } = *postponed;
            let sums = self.sums(&times)?;
            self.rt.engine_lock.enter().colls.sequences.at(index).plans.agreed(due, &sums);
            return self.launch(call, signature, waits);
        }
        self.attempted(&mut engine, attempt, &mut spins).map_err(|error| *error)
    }

    /// Sums over all ranks: a collective of its own.
    #[cold]
    fn sums(self: &Arc<Self>, mine: &[u64]) -> Result<Vec<u64>> {
        /// MPI_UINT64_T in the ABI.
        const MPI_UINT64_T: u16 = 0x259;
        let memory = HeapBuffer::copy_of(&mine.iter().flat_map(|one| one.to_ne_bytes()).collect::<Vec<u8>>());
        let all = Operand::uniform(mine.len() as u64, builtin(MPI_UINT64_T)).at(memory.clone());
        let call = Call::reduction(Kind::Allreduce, Operand::InPlace, all, Op::Builtin(Builtin::Sum), 0);
        if let Some(id) = self.launch(call, None, true)? {
            self.rt.wait_for_coll(id)?;
        }
        let sums = bytes_of(&memory);
        Ok(sums.chunks_exact(8).map(|one| u64::from_ne_bytes(one.try_into().expect("8 bytes"))).collect())
    }

    /// Starts a collective by the plan of an earlier call with this signature, or else as `call` says, for a caller that `WAITS`
    /// for it or not.
    #[inline(always)]
    pub(crate) fn launch_signed<const WAITS: bool>(
        self: &Arc<Self>,
        signature: Signature,
        lists: &impl Lists,
        buffers: impl FnOnce([Bounds; 2]) -> [Buffer; 2],
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<Option<CollId>> {
        match self.replay::<WAITS>(signature, lists, buffers) {
            Some(launched) => launched.map_err(|error| *error),
            None => self.launch(call()?, Some((signature, lists)), WAITS),
        }
    }

    /// Starts a collective by the plan of an earlier call with the same arguments; `None`: there is no such plan.
    #[inline(always)]
    fn replay<const WAITS: bool>(
        self: &Arc<Self>,
        signature: Signature,
        lists: &impl Lists,
        buffers: impl FnOnce([Bounds; 2]) -> [Buffer; 2],
    ) -> Option<Launched> {
        let index = *self.sequence.get()?;
        let mut engine = self.rt.engine_lock.enter();
        let (plan, bounds) = engine.colls.sequences.at(index).plans.replayable(signature, lists)?;
        Some(self.replay_plan::<WAITS>(&mut engine, index, plan, &buffers(bounds)))
    }

    /// The part of [`CollState::replay`] that does not depend on the types of the arguments.
    #[inline(never)]
    fn replay_plan<const WAITS: bool>(
        self: &Arc<Self>,
        engine: &mut Engine,
        index: u32,
        plan: usize,
        buffers: &[Buffer; 2],
    ) -> Launched {
        let mut spins = engine.policy.spins(WAITS, self.rt.engine_lock.is_multi_threaded());
        let CollSequence { plans, .. } = engine.colls.sequences.at(index);
        let shared = self.shared();
        let attempt = shared.and_then(|mut shared| {
            coll::replay(plan, buffers, plans, &mut shared, &mut |pause| spins.spend(pause))
        });
        match attempt {
            Some(attempt) => self.attempted(engine, attempt, &mut spins),
            None => unreachable!("the first call had shared buffers"),
        }
    }

    /// Goes on after an attempt: ends the collective, or hands it to the engine.
    #[inline(always)]
    fn attempted(
        self: &Arc<Self>,
        engine: &mut Engine,
        attempt: Attempt,
        spins: &mut SpinBudget,
    ) -> Launched {
        match attempt {
            Attempt::Over(Ok(())) => {
                if engine.spend_poll_credit() > 0 {
                    self.rt.engine_lock.notify();
                }
                Ok(None)
            }
            Attempt::Over(Err(fault)) => {
                let (colls, net) = engine.colls();
                Err(Box::new(colls.fail_for_all(self, None, &fault, net.ports)))
            }
            Attempt::Pending(execution) => {
                let (colls, net) = engine.colls();
                colls.start(self, execution, spins, net).map_err(Box::new)
            }
            Attempt::Due(_) => unreachable!("a call is due to begin before it is attempted"),
        }
    }

    #[cold]
    fn enter(&self, engine: &mut Engine) -> u32 {
        let sequence = self.new_sequence(engine);
        let index = engine.colls.sequences.enter(sequence);
        *self.sequence.get_or_init(|| index)
    }

    #[inline]
    pub(crate) fn shared(&self) -> Option<&CommBuffers> {
        self.shared.get().and_then(Option::as_ref)
    }

    /// The sequence, made by the first collective from what all ranks find out alike.
    fn new_sequence(&self, engine: &Engine) -> CollSequence {
        let shared = self.shared.get_or_init(|| self.join_arena(engine));
        let (ranks, job) = (self.group.size(), self.rt.job());
        let home = |peer: Peer| job.places.home(peer.0);
        let nodes = match self.on_gpus() {
            Some(on_gpus) => coll::Nodes::new(on_gpus.locations.iter().copied()),
            None => coll::Nodes::new(self.group.peers().map(|peer| {
                let Home { node, socket, cache, .. } = home(peer);
                coll::Location([node, socket, cache])
            })),
        };
        let here = shared.as_ref().map(CommBuffers::caps);
        // What other nodes have is not known: that they have what is usual must do for choices that all make alike.
        let usual = || {
            let (inline, scratch) = Arena::sizes(nodes.largest());
            coll::SharedCaps { inline: inline as u64, single_copy: false, scratch: scratch as u64 }
        };
        let topology = coll::Topology {
            ranks,
            levels: nodes.levels(),
            cores: self.group.peers().map(|peer| home(peer).cores).min().unwrap_or(1),
            shared: if nodes.number() == 1 { here } else { self.rt.shares_memory.then(usual) },
        };
        let rank = self.group.rank().unwrap_or(0);
        let plans = match self.split {
            0 => {
                let plans = PlanCache::new(rank, topology).on(nodes, here, job.cores());
                if self.waited { plans.measured() } else { plans }
            }
            split => PlanCache::between(rank, topology, split),
        };
        CollSequence { ctx: self.ctx, plans }
    }

    /// The processes of one group that are on this process's node.
    fn on_node(&self) -> impl Iterator<Item = Peer> {
        let job = self.rt.job();
        let here = job.node_of(job.rank);
        self.group.peers().filter(move |peer| self.split == 0 && job.node_of(peer.0) == here)
    }

    /// The CICO buffers in shared memory of the ranks on this node, if there are several and there is room.
    fn join_arena(&self, engine: &Engine) -> Option<CommBuffers> {
        let shm = engine.ports.shm.as_ref()?;
        let ranks = self.on_node().count() as u32;
        let me = self.on_node().position(|peer| peer.0 == self.rt.job().rank)?;
        let offset = (ranks > 1).then(|| shm.arena_join(self.ctx, ranks))??;
        let local = self.on_node().map(|peer| shm.local_index(peer)).collect::<Option<Vec<u32>>>()?;
        let arena = shm.arena(offset, me as u32, ranks, &local);
        Some(CommBuffers { arena, single_copy: self.rt.job().single_copy })
    }

    /// Takes back what a finished collective had allocated.
    pub(crate) fn recycle(&self, execution: Execution, coll_sequences: &mut CollSequences) {
        if let Some(&index) = self.sequence.get() {
            coll_sequences.at(index).plans.recycle(execution);
        }
    }

    /// The MPI error for a collective that failed.
    #[cold]
    pub(crate) fn error(&self, fault: &coll::Fault) -> Error {
        let class = match fault {
            coll::Fault::Length { .. } | coll::Fault::Unwanted { .. } => Class::ERR_TRUNCATE,
            coll::Fault::Differ { said } => match coll::difference(said) {
                Difference::Kind => Class::ERR_OTHER,
                Difference::Root => Class::ERR_ROOT,
                Difference::Operation => Class::ERR_OP,
                Difference::Count => Class::ERR_TRUNCATE,
            },
            coll::Fault::OutOfStep { .. } | coll::Fault::Left { .. } => Class::ERR_OTHER,
            coll::Fault::Gone { .. } => Class::ERR_PROC_ABORTED,
            coll::Fault::Unreadable { .. } | coll::Fault::Device { .. } => Class::ERR_OTHER,
            coll::Fault::Operator(_) => Class::ERR_OP,
        };
        Error::new(class, format!("{fault}{}", self.numbering()))
    }

    /// A note on how errors of an intercommunicator number the ranks.
    fn numbering(&self) -> String {
        if self.split == 0 {
            return String::new();
        }
        let [own, other] = [true, false].map(|own| self.schedule_rank(0, own));
        format!(
            " (ranks here count through both groups of the intercommunicator: those of this group from {own}, those of the \
             other group from {other})"
        )
    }
}

impl Drop for CollState {
    fn drop(&mut self) {
        // A rank that was told "no room" has joined, too, and must leave.
        let ranks = self.shared.take().map(|_| self.on_node().count() as u32);
        let (arena_ranks, sequence) = (ranks.filter(|&ranks| ranks > 1), self.sequence.take());
        self.rt.retire(Retired { ctx: self.ctx, arena_ranks, sequence });
    }
}

/// The CICO buffers of those ranks of a communicator that are on this node.
pub(crate) struct CommBuffers {
    arena: Arena,
    single_copy: bool,
}

impl CommBuffers {
    fn caps(&self) -> coll::SharedCaps {
        coll::SharedCaps {
            inline: self.arena.inline_bytes() as u64,
            single_copy: self.single_copy,
            scratch: self.arena.scratch_bytes() as u64,
        }
    }
}

/// Hands calls on to the arena.
macro_rules! by_arena {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(&mut self, $($arg: $type),*) $(-> $result)? {
            self.arena.$name($($arg),*)
        }
    )*};
}

impl coll::SharedBuffers for &CommBuffers {
    by_arena! {
        fn cell(seq: u64) -> Buffer;
        fn publish_cell(seq: u64);
        fn expose(seq: u64, data: &Buffer);
        fn revoke_exposed(first: u64, last: u64);
        fn get(rank: u32, seq: u64, at: u64, into: &Buffer) -> bool;
        fn offer(seq: u64, at: u64, range: &Buffer);
        fn take(rank: u32, seq: u64, at: u64, into: &Buffer) -> bool;
        fn put(rank: u32, seq: u64, at: Option<u64>, data: &Buffer);
        fn ack(seq: u64);
        fn acked(rank: u32) -> u64;
        fn void(first: u64, last: u64);
        fn reached(rank: u32, seq: u64) -> bool;
        fn scratch() -> Buffer;
    }

    #[inline(always)]
    fn cells(&self) -> u64 {
        Arena::CELLS
    }

    #[inline(always)]
    fn cells_for(&self, bytes: u64) -> u64 {
        Arena::cells_for(bytes)
    }

    #[inline(always)]
    fn inline_bytes(&self) -> usize {
        self.arena.inline_bytes()
    }

    #[inline(always)]
    fn publish(&mut self, seq: u64, data: &Buffer, at: isize, len: usize) {
        self.arena.publish_part(seq, data, at, len);
    }

    #[inline(always)]
    fn poll(&mut self, rank: u32, seq: u64, at_once: bool) -> Option<coll::Published> {
        self.arena.poll(rank, seq, at_once).map(|published| match published {
            Published::Inline(bytes) => coll::Published::Inline(bytes),
            Published::Exposed(len) => coll::Published::Exposed(len),
        })
    }

    #[inline(always)]
    fn single_copy(&self) -> bool {
        self.single_copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_shm::{Options, Shm};

    #[test]
    fn arenas_keep_what_shared_buffers_promise() {
        for single_copy in [true, false] {
            coll::conformance::shared_buffers(|ranks| {
                let memory = Shm::memory(ranks, None).expect("memory");
                let (peers, locals): (Vec<Peer>, Vec<u32>) =
                    (0..ranks).map(|rank| (Peer(rank), rank)).unzip();
                let attach = |me: &u32| {
                    let memory = memory.try_clone().expect("a descriptor");
                    Shm::attach(memory, *me, &peers, Options::default()).expect("attached")
                };
                let all: Vec<Shm> = locals.iter().map(attach).collect();
                let at = all[0].arena_alloc(ranks).expect("room");
                let buffers = |(me, shm): (u32, &Shm)| {
                    let arena = shm.arena(at, me, ranks, &locals);
                    // Whether the others can be read is found out before the first collective.
                    assert!(locals.iter().all(|&other| arena.can_get(other) == Some(true)));
                    CommBuffers { arena, single_copy }
                };
                let buffers: Vec<CommBuffers> = (0..).zip(&all).map(buffers).collect();
                Box::new(move |rank, f| {
                    assert_eq!(all.len(), buffers.len(), "nobody has left");
                    f(&mut &buffers[rank as usize]);
                })
            });
        }
    }
}
