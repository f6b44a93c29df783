//! Collectives of a communicator: from a checked call to a running schedule (MPI 5.0, chapter 6).

use std::sync::{Arc, OnceLock};

use banyan_coll::{self as coll, Asked, Attempt, Call, Execution, Kind, Lists, Memory, OpId, PlanCache};
use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::{Address, Buffer, GateGuard};
use banyan_p2p::{self as p2p, Started};
use banyan_shm::{Arena, Published};

use crate::comm::Comm;
use crate::engine::{CollId, Engine};
use crate::error::{Class, Error, Result};
use crate::group::Group;
use crate::places;
use crate::ports::Ports;
use crate::request::{Recipe, Request};
use crate::runtime::{Retired, Runtime};
use crate::wait::Looks;

/// What the schedules of a communicator are carried out with.
pub(crate) struct Team {
    rt: Arc<Runtime>,
    ctx: u64,
    group: Group,
    /// Where its [`Sequence`] is, from the first collective on.
    place: OnceLock<u32>,
    slots: OnceLock<Option<TeamSlots>>,
}

/// Tells the contexts of persistent collectives from those of communicators.
const PERSISTENT: u64 = 0x9e25 << 32;

/// Where a communicator is in its sequence of collectives.
pub(crate) struct Sequence {
    seq: u32,
    plans: PlanCache,
}

/// The sequences of all communicators that had a collective. The engine keeps them, behind the gate: a lock of
/// their own would cost as much as the rest of a small collective.
#[derive(Default)]
pub(crate) struct Sequences(Vec<Option<Sequence>>);

impl Sequences {
    fn enter(&mut self, sequence: Sequence) -> u32 {
        places::keep(&mut self.0, sequence) as u32
    }

    #[inline]
    fn at(&mut self, place: u32) -> &mut Sequence {
        self.0[place as usize].as_mut().expect("a communicator keeps its place until it is gone")
    }

    /// Its communicator is gone.
    pub(crate) fn leave(&mut self, place: u32) {
        self.0[place as usize] = None;
    }
}

impl Team {
    pub(crate) fn new(rt: &Arc<Runtime>, ctx: u64, group: Group) -> Self {
        Self { rt: rt.clone(), ctx, group, place: OnceLock::new(), slots: OnceLock::new() }
    }

    /// Starts a collective; `None`: it is over already. If the caller `waits` for it anyway, a few looks
    /// at the other ranks' slots come before the first poll of all fabrics. What was `asked` is kept for [`Team::repeat`].
    #[inline(never)]
    pub(crate) fn launch(
        self: &Arc<Self>,
        call: Call,
        asked: Option<(Asked, &dyn Lists)>,
        waits: bool,
    ) -> Result<Option<CollId>> {
        let mut engine = self.rt.gate.enter();
        let mut looks = engine.policy.looks(waits, self.rt.gate.is_shared());
        let place = match self.place.get() {
            Some(&place) => place,
            None => self.enter(&mut engine),
        };
        let Sequence { seq, plans } = engine.sequences.at(place);
        *seq = seq.wrapping_add(1);
        let attempt = self.slots().and_then(|mut slots| {
            coll::attempt(&call, asked, plans, &self.rt.tuning, &mut slots, &mut || looks.again())
        });
        match attempt {
            Some(attempt) => self.attempted(&mut engine, attempt, &mut looks),
            None => self.begin(engine, place, call, looks),
        }
    }

    /// Starts a collective that was carried out before, with the same arguments, by a caller that waits for it; `None`: it
    /// was not.
    #[inline(always)]
    pub(crate) fn repeat(
        self: &Arc<Self>,
        asked: Asked,
        lists: &impl Lists,
    ) -> Option<Result<Option<CollId>>> {
        let place = *self.place.get()?;
        let mut engine = self.rt.gate.enter();
        let known = engine.sequences.at(place).plans.known(asked, lists)?;
        Some(self.follow(&mut engine, place, known, asked.buffers.map(|buffer| buffer.0)))
    }

    /// The part of it that is the same for all collectives.
    #[inline(never)]
    fn follow(
        self: &Arc<Self>,
        engine: &mut Engine,
        place: u32,
        known: usize,
        buffers: [Address; 2],
    ) -> Result<Option<CollId>> {
        let mut looks = engine.policy.looks(true, self.rt.gate.is_shared());
        let Sequence { seq, plans } = engine.sequences.at(place);
        *seq = seq.wrapping_add(1);
        let slots = self.slots();
        let attempt = slots
            .and_then(|mut slots| coll::repeat(known, buffers, plans, &mut slots, &mut || looks.again()));
        match attempt {
            Some(attempt) => self.attempted(engine, attempt, &mut looks),
            None => unreachable!("it was done before"),
        }
    }

    /// What became of an attempt.
    #[inline(always)]
    fn attempted(
        self: &Arc<Self>,
        engine: &mut Engine,
        attempt: Attempt,
        looks: &mut Looks,
    ) -> Result<Option<CollId>> {
        match attempt {
            Attempt::Over(Ok(())) => {
                if engine.glance() > 0 {
                    self.rt.gate.notify();
                }
                Ok(None)
            }
            Attempt::Over(Err(fault)) => Err(self.error(&fault)),
            Attempt::Begun(execution) => engine.start_coll(self, execution, looks),
        }
    }

    /// What cannot be done on the spot becomes an execution.
    #[inline(never)]
    fn begin(
        self: &Arc<Self>,
        mut engine: GateGuard<'_, Engine>,
        place: u32,
        call: Call,
        mut looks: Looks,
    ) -> Result<Option<CollId>> {
        let Sequence { seq, plans } = engine.sequences.at(place);
        let execution = coll::start(call, plans, &self.rt.tuning, *seq);
        engine.start_coll(self, execution, &mut looks)
    }

    #[cold]
    fn enter(&self, engine: &mut Engine) -> u32 {
        let first = self.first(engine);
        let place = engine.sequences.enter(first);
        *self.place.get_or_init(|| place)
    }

    #[inline]
    fn slots(&self) -> Option<&TeamSlots> {
        self.slots.get().and_then(Option::as_ref)
    }

    /// What the first collective finds out: only what all ranks find out alike.
    fn first(&self, engine: &Engine) -> Sequence {
        let slots = self.slots.get_or_init(|| self.share(engine));
        let (ranks, known) = (self.group.size(), self.rt.facts());
        let facts = coll::Facts {
            ranks,
            shared: known.one_node,
            cores: known.cores,
            per_node: ranks,
            slots: slots.as_ref().map(|slots| coll::SlotFacts {
                inline: slots.arena.inline_bytes() as u64,
                regions: slots.regions,
                board: slots.arena.board_bytes() as u64,
            }),
        };
        Sequence { seq: 0, plans: PlanCache::new(self.group.rank().unwrap_or(0), facts) }
    }

    /// The communicator's slots in shared memory, if its ranks share some and there is room.
    fn share(&self, engine: &Engine) -> Option<TeamSlots> {
        let ranks = self.group.size();
        let shm = engine.ports.shm.as_ref().filter(|_| ranks > 1 && self.rt.facts().one_node)?;
        let offset = shm.arena_join(self.ctx, ranks)?;
        // On one host the local index of a process is its rank in MPI_COMM_WORLD.
        let peers: Vec<u32> = self.group.peers().map(|peer| peer.0).collect();
        let arena = shm.arena(offset, self.group.rank()?, ranks, &peers);
        Some(TeamSlots { arena, regions: self.rt.facts().single_copy })
    }

    /// Takes back what a finished collective had allocated.
    pub(crate) fn recycle(&self, execution: Execution, sequences: &mut Sequences) {
        if let Some(&place) = self.place.get() {
            sequences.at(place).plans.recycle(execution);
        }
    }

    /// The MPI error for a collective that failed.
    #[cold]
    pub(crate) fn error(&self, fault: &coll::Fault) -> Error {
        let class = match fault {
            coll::Fault::Length { .. } => Class::ERR_TRUNCATE,
            coll::Fault::Gone { .. } => Class::ERR_PROC_ABORTED,
            coll::Fault::Unreadable { .. } => Class::ERR_INTERN,
            coll::Fault::Operator(_) => Class::ERR_OP,
        };
        Error::new(class, fault.to_string())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Also who heard that there is no room has asked.
        let asked = self.slots.take().is_some();
        let (slots, sequence) = (asked.then(|| self.group.size()), self.place.take());
        self.rt.retire(Retired { ctx: self.ctx, slots, sequence });
    }
}

/// A communicator's slots in the memory of its host.
struct TeamSlots {
    arena: Arena,
    regions: bool,
}

impl coll::Slots for &TeamSlots {
    #[inline(always)]
    fn banks(&self) -> u64 {
        Arena::BANKS
    }

    #[inline(always)]
    fn inline_bytes(&self) -> usize {
        self.arena.inline_bytes()
    }

    #[inline(always)]
    fn publish(&mut self, stamp: u64, data: &Buffer, at: isize, len: usize) {
        self.arena.publish_part(stamp, data, at, len);
    }

    #[inline]
    fn bank(&mut self, stamp: u64) -> Buffer {
        self.arena.bank(stamp)
    }

    #[inline]
    fn publish_bank(&mut self, stamp: u64) {
        self.arena.publish_bank(stamp);
    }

    #[inline(always)]
    fn publish_region(&mut self, stamp: u64, data: &Buffer) {
        self.arena.publish_region(stamp, data);
    }

    #[inline(always)]
    fn look(&mut self, rank: u32, stamp: u64) -> Option<coll::Published> {
        self.arena.look(rank, stamp).map(|published| match published {
            Published::Inline(bytes) => coll::Published::Inline(bytes),
            Published::Region(len) => coll::Published::Region(len),
        })
    }

    #[inline(always)]
    fn pull(&mut self, rank: u32, stamp: u64, at: u64, into: &Buffer) -> bool {
        self.arena.pull(rank, stamp, at, into)
    }

    #[inline(always)]
    fn release(&mut self, stamp: u64) {
        self.arena.release(stamp);
    }

    #[inline(always)]
    fn released(&mut self, rank: u32) -> u64 {
        self.arena.released(rank)
    }

    fn board(&mut self) -> Buffer {
        self.arena.board()
    }

    #[inline(always)]
    fn can_pull_regions(&self) -> bool {
        self.regions
    }
}

/// The engine's messages and shared slots, as schedules use them.
pub(crate) struct Messages<'a> {
    p2p: &'a mut p2p::Engine,
    ports: &'a mut Ports,
    early: &'a mut Early,
    team: &'a Team,
    slots: Option<&'a TeamSlots>,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(
        p2p: &'a mut p2p::Engine,
        ports: &'a mut Ports,
        early: &'a mut Early,
        team: &'a Team,
    ) -> Self {
        Self { p2p, ports, early, team, slots: team.slots() }
    }
}

/// Receives of schedules that were over when they were posted, until the schedule asks.
#[derive(Default)]
pub(crate) struct Early(Vec<Option<p2p::Completion>>);

/// Marks the id of an early receive.
const EARLY: u64 = 1 << 63;

impl Early {
    fn keep(&mut self, completion: p2p::Completion) -> OpId {
        OpId(EARLY | places::keep(&mut self.0, completion) as u64)
    }

    fn take(&mut self, op: OpId) -> Option<p2p::Completion> {
        self.0.get_mut((op.0 & !EARLY) as usize)?.take()
    }
}

impl Messages<'_> {
    fn fault(&self, fault: p2p::Fault) -> coll::Fault {
        let rank_of = |peer| self.team.group.rank_of(peer).unwrap_or(u32::MAX);
        match fault {
            p2p::Fault::Truncated { sent, room } => coll::Fault::Length { from: u32::MAX, sent, room },
            p2p::Fault::PeerDown { peer, cause } => {
                coll::Fault::Gone { rank: rank_of(peer), cause: cause.to_string() }
            }
        }
    }
}

impl coll::Messenger for Messages<'_> {
    fn send(&mut self, to: u32, key: coll::Key, data: &Data) -> Option<OpId> {
        let peer = self.team.group.peer(to)?;
        match self.p2p.send_keyed(self.ports, peer, self.team.ctx, word(key), data) {
            Started::Done(_) => None,
            Started::Pending(id) => Some(OpId(id.0)),
        }
    }

    fn recv(&mut self, from: u32, key: coll::Key, data: &Data) -> OpId {
        let peer = self.team.group.peer(from).expect("schedules name ranks of the communicator");
        match self.p2p.recv_keyed(self.ports, peer, self.team.ctx, word(key), data) {
            Started::Done(completion) => self.early.keep(completion),
            Started::Pending(id) => OpId(id.0),
        }
    }

    fn poll(&mut self, op: OpId) -> Option<Result<u64, coll::Fault>> {
        let completion = match op.0 & EARLY {
            0 => self.p2p.test(p2p::ReqId(op.0))?,
            _ => self.early.take(op)?,
        };
        Some(match completion.fault {
            None => Ok(completion.bytes),
            Some(fault) => Err(self.fault(fault)),
        })
    }

    fn cancel(&mut self, op: OpId) {
        match op.0 & EARLY {
            0 => {
                self.p2p.cancel(p2p::ReqId(op.0));
                self.p2p.detach(p2p::ReqId(op.0));
            }
            _ => drop(self.early.take(op)),
        }
    }

    fn slots(&mut self) -> Option<&mut dyn coll::Slots> {
        self.slots.as_mut().map(|slots| slots as &mut dyn coll::Slots)
    }
}

fn word(key: coll::Key) -> u64 {
    u64::from(key.seq) << 32 | u64::from(key.step)
}

impl Comm {
    /// MPI_Barrier.
    pub fn barrier(&self) -> Result<Call> {
        Ok(Call::barrier())
    }

    /// Checks the root of a collective on one group.
    #[inline(always)]
    pub fn root(&self, root: i32) -> Result<u32> {
        match u32::try_from(root).ok().filter(|&root| root < self.size()) {
            Some(root) => Ok(root),
            None => Err(self.no_root(root)),
        }
    }

    #[cold]
    fn no_root(&self, root: i32) -> Error {
        let (name, last) = (self.name_or_kind(), self.size() - 1);
        Error::new(Class::ERR_ROOT, format!("root is {root}, but {name} has ranks 0 to {last}"))
    }

    /// Runs a collective to its end.
    #[inline(always)]
    pub fn run(&self, call: Call) -> Result<()> {
        self.one_group()?;
        self.await_launched(self.team().launch(call, None, true)?)
    }

    /// Runs a collective of one group to its end: what was `asked`, which makes a call.
    #[inline(always)]
    pub fn run_asked(
        &self,
        asked: Asked,
        lists: &impl Lists,
        call: impl FnOnce() -> Result<Call>,
    ) -> Result<()> {
        let launched = match self.team().repeat(asked, lists) {
            Some(launched) => launched?,
            None => self.team().launch(call()?, Some((asked, lists)), true)?,
        };
        self.await_launched(launched)
    }

    #[inline(always)]
    fn await_launched(&self, launched: Option<CollId>) -> Result<()> {
        match launched {
            None => Ok(()),
            Some(id) => self.await_coll(id),
        }
    }

    #[inline(never)]
    fn await_coll(&self, id: CollId) -> Result<()> {
        let rt = self.runtime();
        rt.wait(rt.gate.enter(), |engine| engine.coll_done(id))
    }

    /// Starts a collective.
    #[inline(never)]
    pub fn start(self: &Arc<Self>, call: Call) -> Result<Request> {
        self.one_group()?;
        Ok(Request::coll(self, self.team().launch(call, None, false)?))
    }

    /// A persistent collective. It gets a context of its own: all ranks make their persistent collectives in
    /// one order, but may start them in any (MPI 5.0, 6.13).
    pub fn persist(self: &Arc<Self>, call: Call) -> Result<Request> {
        self.one_group()?;
        let ctx = self.child_context(PERSISTENT);
        self.runtime().open_context(ctx);
        let team = Arc::new(Team::new(self.runtime(), ctx, self.group().clone()));
        Ok(Request::persistent(self, Recipe::Coll { call: Box::new(call), team }))
    }

    #[inline(always)]
    fn one_group(&self) -> Result<()> {
        if self.is_inter() { Err(not_built()) } else { Ok(()) }
    }

    /// The same number of bytes from every rank, in rank order: for the making of communicators.
    pub(crate) fn allgather_bytes(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let send = banyan_memory::Scratch::copy_of(mine);
        let recv = banyan_memory::Scratch::zeroed(mine.len() * self.size() as usize);
        let count = mine.len() as u64;
        self.run(Call::moving(
            Kind::Allgather,
            Memory::Uniform { base: send, count, ty: byte() },
            Memory::Uniform { base: recv.clone(), count, ty: byte() },
            0,
        ))?;
        Ok(bytes_of(&recv))
    }

    /// Bytes from `root` to all; `mine` matters at the root, its length everywhere.
    pub(crate) fn bcast_bytes(&self, mine: &[u8], root: u32) -> Result<Vec<u8>> {
        let data = banyan_memory::Scratch::copy_of(mine);
        self.run(Call::bcast(
            Memory::Uniform { base: data.clone(), count: mine.len() as u64, ty: byte() },
            root,
        ))?;
        Ok(bytes_of(&data))
    }
}

#[cold]
fn not_built() -> Error {
    let what = "collectives on intercommunicators are not built yet";
    Error::new(Class::ERR_UNSUPPORTED_OPERATION, what)
}

fn byte() -> TypeArc {
    /// MPI_BYTE in the ABI.
    const MPI_BYTE: u16 = 0x247;
    TypeArc::Predefined(Datatype::builtin(MPI_BYTE).expect("MPI_BYTE is built in"))
}

fn bytes_of(buffer: &banyan_memory::Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out);
    out
}
