//! [`RunningColls`]: the collectives that are under way, as a subsystem of the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_coll::{self as coll, Advance, Execution, UserReduction};
use banyan_p2p::P2p;
use banyan_pmi::status::Item;
use banyan_transport::{Head, Peer};

use crate::coll_state::{CollSequences, CollState};
use crate::error::Error;
use crate::failures::Failures;
use crate::messenger::{Messages, ReadyMessages};
use crate::notes::{Inbox, Inquiry};
use crate::slab;
use crate::slow;
use crate::subsystem::{Messaging, Subsystem};
use crate::wait::SpinBudget;

/// Polls of all fabrics, without a sleep, between two readings of the clock while a collective is under way.
const POLLS_PER_CLOCK: u32 = 4096;

/// A running collective: its index in the slab, and a serial number that tells it from earlier ones at that index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CollId {
    index: u32,
    serial: u32,
}

/// The collectives under way in this process, and where each communicator is in its sequence of them.
#[derive(Default)]
pub(crate) struct RunningColls {
    pub(super) all: Vec<Option<RunningColl>>,
    pub(crate) sequences: CollSequences,
    serial: u32,
    /// Those that are not over.
    pub(super) active: usize,
    /// Polls of all fabrics so far while a collective was under way.
    polls: u32,
    /// User reductions that a schedule waits for; they run without the engine lock.
    user_reductions: Vec<(CollId, UserReduction)>,
    /// Messages of schedules that had arrived when their receives were posted.
    pub(super) ready: ReadyMessages,
    /// Notes that have come and were not read.
    pub(super) inbox: Inbox,
    pub(crate) failures: Failures,
}

pub(crate) struct RunningColl {
    serial: u32,
    pub(crate) coll_state: Arc<CollState>,
    /// `None` once it is over.
    pub(crate) execution: Option<Execution>,
    outcome: Option<Result<(), Error>>,
    /// When it asks the ranks that it waits for.
    pub(crate) inquiry: Inquiry,
    /// Nobody waits for it: it is dropped once it is over.
    detached: bool,
    /// A user reduction of it runs outside the engine lock.
    pub(crate) in_user_op: bool,
}

impl Subsystem for RunningColls {
    type Below<'a> = Messaging<'a>;

    #[inline(always)]
    fn has_work(&self) -> bool {
        self.active + self.inbox.len() > 0
    }

    fn idle(&self) -> bool {
        self.active == 0
    }

    fn progress(&mut self, mut net: Messaging<'_>) -> usize {
        let mut events = 0;
        if self.active > 0 {
            events += (0..self.all.len()).map(|index| self.advance(index, &mut net)).sum::<usize>();
            self.polls = self.polls.wrapping_add(1);
            if self.polls.is_multiple_of(POLLS_PER_CLOCK) {
                self.inquire(net.ports);
            }
        }
        if self.inbox.len() > 0 {
            events += self.read_notes(&mut net);
        }
        events
    }

    /// A note.
    #[cold]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.inbox.keep(peer, head, body);
    }

    fn before_sleep(&mut self, net: Messaging<'_>) -> Option<Instant> {
        self.inquire(net.ports)
    }
}

impl RunningColls {
    /// Starts a collective; `Ok(None)`: it is over already. `spins` are polls of the shared buffers before the first poll of
    /// all fabrics.
    pub(crate) fn start(
        &mut self,
        coll_state: &Arc<CollState>,
        mut execution: Execution,
        spins: &mut SpinBudget,
        mut net: Messaging<'_>,
    ) -> Result<Option<CollId>, Error> {
        let failed = self.failures.fault_among(&coll_state.group);
        let others_told = failed.is_some();
        failed.into_iter().for_each(|fault| execution.refuse(fault));
        let mut messages = Messages::new(&mut net, &mut self.ready, coll_state);
        let mut step = execution.advance(&mut messages);
        // Messages arrive by the polls of the fabrics that follow.
        while matches!(step, Advance::Pending) && execution.polls_shared() && spins.spend(Duration::ZERO) {
            step = execution.advance(&mut messages);
        }
        let reduction = match step {
            Advance::Done(result) => {
                let number = execution.number();
                coll_state.recycle(execution, &mut self.sequences);
                let failed = |fault| self.fail(coll_state, Some(number), &fault, others_told, net.ports);
                return result.map(|()| None).map_err(failed);
            }
            Advance::Pending => None,
            Advance::UserOp(reduction) => Some(reduction),
        };
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let running = RunningColl {
            serial,
            coll_state: coll_state.clone(),
            execution: Some(execution),
            outcome: None,
            inquiry: Inquiry::of(others_told),
            detached: false,
            in_user_op: reduction.is_some(),
        };
        let index = slab::keep(&mut self.all, running) as u32;
        self.active += 1;
        let id = CollId { index, serial };
        self.user_reductions.extend(reduction.map(|reduction| (id, reduction)));
        Ok(Some(id))
    }

    /// The place of a collective in the slab; `None` if it is gone.
    fn slot(&mut self, id: CollId) -> Option<&mut Option<RunningColl>> {
        let slot = self.all.get_mut(id.index as usize)?;
        slot.as_ref().is_some_and(|running| running.serial == id.serial).then_some(slot)
    }

    /// The result of a collective, once it is over; then the id is gone.
    pub(crate) fn take_outcome(&mut self, id: CollId) -> Option<Result<(), Error>> {
        let slot = self.slot(id)?;
        let outcome = slot.as_mut()?.outcome.take()?;
        *slot = None;
        Some(outcome)
    }

    /// A collective as an item of a report on waits; `None` if it is gone.
    pub(crate) fn item(&self, id: CollId) -> Option<Item> {
        let running = self.all.get(id.index as usize)?.as_ref();
        let coll_state = &running.filter(|running| running.serial == id.serial)?.coll_state;
        Some(slow::collective(coll_state.contexts(), &coll_state.group))
    }

    /// Lets a collective go on without anybody waiting for it.
    pub(crate) fn detach(&mut self, id: CollId) {
        let Some(slot) = self.slot(id) else { return };
        match slot {
            Some(running) if running.outcome.is_none() => running.detached = true,
            _ => *slot = None,
        }
    }

    pub(crate) fn has_user_reductions(&self) -> bool {
        !self.user_reductions.is_empty()
    }

    /// A user reduction that is due, if any: run it without the engine lock, then give it back to [`RunningColls::user_reduction_done`].
    pub(crate) fn next_user_reduction(&mut self) -> Option<(CollId, UserReduction)> {
        self.user_reductions.pop()
    }

    pub(crate) fn user_reduction_done(
        &mut self,
        id: CollId,
        reduction: UserReduction,
        mut net: Messaging<'_>,
    ) {
        let Some(Some(running)) = self.slot(id) else { return };
        running.in_user_op = false;
        if let Some(execution) = &mut running.execution {
            execution.completed(reduction);
        }
        self.advance(id.index as usize, &mut net);
    }

    /// A process has failed, as the launcher tells all ranks: the collectives that it takes part in fail.
    pub(crate) fn process_failed(&mut self, peer: Peer, cause: &str, p2p: &mut P2p) {
        if !self.failures.note(peer, cause, p2p) {
            return;
        }
        for running in self.all.iter_mut().flatten() {
            if let (Some(fault), Some(execution)) =
                (self.failures.fault_among(&running.coll_state.group), &mut running.execution)
            {
                execution.refuse(fault);
                running.inquiry.others_told = true;
            }
        }
    }

    /// Advances one collective; 1 if it is over or needs a user reduction.
    pub(super) fn advance(&mut self, index: usize, net: &mut Messaging<'_>) -> usize {
        let Some(running) = self.all[index].as_mut() else { return 0 };
        if running.outcome.is_some() || running.in_user_op {
            return 0;
        }
        let RunningColl { coll_state, execution: Some(execution), .. } = running else { return 0 };
        match execution.advance(&mut Messages::new(net, &mut self.ready, coll_state)) {
            // Nobody wakes a rank that sleeps when a device has copied, or has a part of its own to copy: it polls on.
            Advance::Pending => return usize::from(execution.awaits_copies()),
            Advance::UserOp(reduction) => {
                running.in_user_op = true;
                self.user_reductions
                    .push((CollId { index: index as u32, serial: running.serial }, reduction));
            }
            Advance::Done(result) => self.ended(index, result, net),
        }
        1
    }

    /// Keeps the result of a collective that is over, or drops the collective if nobody asks for it.
    fn ended(&mut self, index: usize, result: Result<(), coll::Fault>, net: &mut Messaging<'_>) {
        let Some(running) = self.all[index].as_mut() else { return };
        self.active -= 1;
        let number = running.execution.as_ref().map(Execution::number);
        if let Some(execution) = running.execution.take() {
            running.coll_state.recycle(execution, &mut self.sequences);
        }
        let (coll_state, others_told, detached) =
            (running.coll_state.clone(), running.inquiry.others_told, running.detached);
        let outcome = result.map_err(|fault| self.fail(&coll_state, number, &fault, others_told, net.ports));
        match &mut self.all[index] {
            Some(running) if !detached => running.outcome = Some(outcome),
            slot => *slot = None,
        }
    }
}
