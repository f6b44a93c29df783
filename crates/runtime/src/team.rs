//! What the members of a communicator keep between their collectives, and the short way of a call from its arguments to their
//! shared slots.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use banyan_coll::{self as coll, Asked, Attempt, Call, Difference, Execution, Ledger, Lists, PlanCache};
use banyan_memory::{Address, Buffer, GateGuard};
use banyan_shm::{Arena, Published};
use banyan_transport::Peer;

use crate::engine::{CollId, Engine};
use crate::error::{Class, Error, Result};
use crate::group::Group;
use crate::places;
use crate::runtime::{Retired, Runtime};
use crate::wait::Looks;

/// What the schedules of a communicator are carried out with.
pub(crate) struct Team {
    rt: Arc<Runtime>,
    /// The context of the communicator.
    comm: u64,
    /// That of the collectives here.
    pub(crate) ctx: u64,
    /// All its ranks.
    pub(crate) group: Group,
    /// How many of them are in the first of two groups; 0: there is one.
    split: u32,
    /// Where its [`Sequence`] is, from the first collective on.
    place: OnceLock<u32>,
    slots: OnceLock<Option<TeamSlots>>,
}

/// The ranks of a communicator as its schedules number them. Of an intercommunicator the group whose first rank is the
/// lower process comes first: so both sides come to the same.
pub(crate) struct Row {
    group: Group,
    split: u32,
}

impl Row {
    pub(crate) fn of(local: &Group, remote: Option<&Group>) -> Row {
        let Some(remote) = remote else { return Row { group: local.clone(), split: 0 } };
        let first = local.peer(0) < remote.peer(0);
        let (one, other) = if first { (local, remote) } else { (remote, local) };
        let peers = one.peers().chain(other.peers()).collect();
        let myself = local.rank().and_then(|rank| local.peer(rank)).unwrap_or(Peer(u32::MAX));
        Row { group: Group::new(peers, myself), split: one.size() }
    }
}

/// Where a communicator is in its sequence of collectives.
pub(crate) struct Sequence {
    ctx: u64,
    plans: PlanCache,
}

/// The sequences of all communicators that had a collective. The engine keeps them, behind the gate: a lock of
/// their own would cost as much as the rest of a small collective.
#[derive(Default)]
pub(crate) struct Sequences {
    places: Vec<Option<Sequence>>,
    /// What is known of calls on communicators that are gone: others may still be in one of them.
    gone: VecDeque<(u64, Ledger)>,
}

impl Sequences {
    /// Communicators that are gone and not forgotten.
    const GONE: usize = 64;

    fn enter(&mut self, sequence: Sequence) -> u32 {
        places::keep(&mut self.places, sequence) as u32
    }

    #[inline]
    fn at(&mut self, place: u32) -> &mut Sequence {
        self.places[place as usize].as_mut().expect("a communicator keeps its place until it is gone")
    }

    /// What is known of the calls in a context.
    pub(crate) fn ledger(&mut self, ctx: u64) -> Option<&mut Ledger> {
        let mut here = self.places.iter_mut().flatten();
        match here.find(|sequence| sequence.ctx == ctx) {
            Some(sequence) => Some(sequence.plans.ledger()),
            None => self.gone.iter_mut().find(|gone| gone.0 == ctx).map(|gone| &mut gone.1),
        }
    }

    /// Its communicator is gone.
    pub(crate) fn leave(&mut self, place: u32) {
        let Some(Sequence { ctx, plans }) = self.places[place as usize].take() else { return };
        self.gone.truncate(Sequences::GONE - 1);
        self.gone.push_front((ctx, plans.into_ledger()));
    }
}

impl Team {
    pub(crate) fn new(rt: &Arc<Runtime>, ctx: u64, row: Row) -> Self {
        Self::with(rt, (ctx, ctx), row)
    }

    fn with(rt: &Arc<Runtime>, (comm, ctx): (u64, u64), Row { group, split }: Row) -> Self {
        Self { rt: rt.clone(), comm, ctx, group, split, place: OnceLock::new(), slots: OnceLock::new() }
    }

    /// The same ranks, for other collectives of the communicator, in another context.
    pub(crate) fn again(&self, ctx: u64) -> Self {
        let row = Row { group: self.group.clone(), split: self.split };
        Self::with(&self.rt, (self.comm, ctx), row)
    }

    /// Of the communicator, and of its collectives here.
    pub(crate) fn contexts(&self) -> (u64, u64) {
        (self.comm, self.ctx)
    }

    /// The rank here of one of this process's own group, or of the other one.
    pub(crate) fn number(&self, rank: u32, own: bool) -> u32 {
        let first = self.group.rank() < Some(self.split);
        if own == first || self.split == 0 { rank } else { self.split + rank }
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
        let Sequence { plans, .. } = engine.sequences.at(place);
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
        let Sequence { plans, .. } = engine.sequences.at(place);
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
            Attempt::Over(Err(fault)) => Err(engine.gave_up(self, None, &fault)),
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
        let Sequence { plans, .. } = engine.sequences.at(place);
        let execution = coll::start(call, plans, &self.rt.tuning);
        engine.start_coll(self, execution, &mut looks)
    }

    #[cold]
    fn enter(&self, engine: &mut Engine) -> u32 {
        let first = self.first(engine);
        let place = engine.sequences.enter(first);
        *self.place.get_or_init(|| place)
    }

    #[inline]
    pub(crate) fn slots(&self) -> Option<&TeamSlots> {
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
        let rank = self.group.rank().unwrap_or(0);
        let plans = match self.split {
            0 => PlanCache::new(rank, facts),
            split => PlanCache::between(rank, facts, split),
        };
        Sequence { ctx: self.ctx, plans }
    }

    /// The communicator's slots in shared memory, if its ranks share some and there is room.
    fn share(&self, engine: &Engine) -> Option<TeamSlots> {
        let ranks = self.group.size();
        let shm =
            engine.ports.shm.as_ref().filter(|_| self.split == 0 && ranks > 1 && self.rt.facts().one_node)?;
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
            coll::Fault::Length { .. } | coll::Fault::Unwanted { .. } => Class::ERR_TRUNCATE,
            coll::Fault::Differ { said } => match coll::difference(said) {
                Difference::Kind => Class::ERR_OTHER,
                Difference::Root => Class::ERR_ROOT,
                Difference::Operation => Class::ERR_OP,
                Difference::Count => Class::ERR_TRUNCATE,
            },
            coll::Fault::OutOfStep { .. } | coll::Fault::Left { .. } => Class::ERR_OTHER,
            coll::Fault::Gone { .. } => Class::ERR_PROC_ABORTED,
            coll::Fault::Unreadable { .. } => Class::ERR_OTHER,
            coll::Fault::Operator(_) => Class::ERR_OP,
        };
        Error::new(class, format!("{fault}{}", self.numbering()))
    }

    /// Whose ranks errors speak of, where that may be mistaken.
    fn numbering(&self) -> String {
        let (split, ranks) = (self.split, self.group.size());
        if split == 0 {
            return String::new();
        }
        let (one, other) = if self.number(0, true) == 0 {
            ("of this group", "of the other group")
        } else {
            ("of the other group", "of this group")
        };
        let second =
            if ranks - split == 1 { format!("{split} is") } else { format!("{split} to {} are", ranks - 1) };
        let first = if split == 1 { "0 is".to_string() } else { format!("0 to {} are", split - 1) };
        format!(
            " (ranks here are those of both groups of the intercommunicator in a row: {first} {one}, {second} {other})"
        )
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Also who heard that there is no room has asked.
        let asked = self.slots.take().is_some();
        let asked = asked && self.split == 0;
        let (slots, sequence) = (asked.then(|| self.group.size()), self.place.take());
        self.rt.retire(Retired { ctx: self.ctx, slots, sequence });
    }
}

/// A communicator's slots in the memory of its host.
pub(crate) struct TeamSlots {
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

    fn revoke_regions(&mut self, first: u64, last: u64) {
        self.arena.revoke_regions(first, last);
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

    fn void(&mut self, first: u64, last: u64) {
        self.arena.void(first, last);
    }

    #[inline]
    fn reached(&mut self, rank: u32, stamp: u64) -> bool {
        self.arena.reached(rank, stamp)
    }

    fn board(&mut self) -> Buffer {
        self.arena.board()
    }

    #[inline(always)]
    fn can_pull_regions(&self) -> bool {
        self.regions
    }
}
