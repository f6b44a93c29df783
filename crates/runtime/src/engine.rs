//! [`Engine`]: the moving parts behind the engine lock: matching, fabrics, running collectives, and the connection to the
//! launcher.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use banyan_coll::{self as coll, Advance, Execution, Job};
use banyan_memory::Buffer;
use banyan_p2p as p2p;
use banyan_pmi::status::Item;
use banyan_pmi::{Client, Event};
use banyan_transport::{Head, Outcome, Peer, Sink, Token};

use crate::coll_state::{CollSequences, CollState};
use crate::error::Error;
use crate::messenger::{Messages, ReadyMessages};
use crate::notes::Inquiry;
use crate::ports::Ports;
use crate::slab;
use crate::slow::{self, Names};
use crate::wait::{FruitlessPolls, Policy, SpinBudget, Waker};

/// A running collective: its index in the engine, and a serial number that tells it from earlier ones at that index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CollId {
    index: u32,
    serial: u32,
}

/// Poll credit: so many collectives may end on the spot between two polls of all fabrics.
const POLL_CREDIT: u32 = 64;
/// With more ranks than cores one collective uses so much of the credit, as it lasts as long as so many elsewhere.
const CROWDED_COST: u32 = 8;

/// Polls of all fabrics, without a sleep, between two readings of the clock while a collective is under way.
const POLLS_PER_CLOCK: u32 = 4096;

/// The sooner of two moments.
pub(crate) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// The moving parts of the runtime. Reached only through the engine lock.
pub(crate) struct Engine {
    pub(crate) p2p: p2p::P2p,
    pub(crate) ports: Ports,
    pub(crate) boot: Option<Client>,
    pub(crate) policy: Policy,
    pub(crate) fruitless_polls: FruitlessPolls,
    /// A thread polls for all (MPI_THREAD_MULTIPLE); the others wait for word from it.
    pub(crate) has_poller: bool,
    /// Wakes the polling thread while it sleeps outside the engine lock, if another thread finds what it may wait for.
    pub(crate) poller_waker: Option<Arc<Waker>>,
    pub(crate) colls: Vec<Option<RunningColl>>,
    pub(crate) coll_sequences: CollSequences,
    serial: u32,
    pub(crate) active: usize,
    /// Polls of all fabrics so far while a collective was under way.
    coll_polls: u32,
    /// Poll credit that collectives have used since it was last renewed by a poll.
    used_poll_credit: u32,
    /// User reductions that a schedule waits for; they run without the engine lock.
    jobs: Vec<(CollId, Job)>,
    /// Business cards asked for and not yet received.
    lookups: usize,
    /// Buffered sends that are still on their way, and their bytes of attached buffer.
    pub(crate) bsends: Vec<(p2p::ReqId, Arc<crate::bsend::Attached>, usize)>,
    /// Messages of schedules that had arrived when their receives were posted.
    pub(crate) ready: ReadyMessages,
    pub(crate) names: Names,
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

impl Engine {
    pub(crate) fn new(p2p: p2p::P2p, ports: Ports, boot: Option<Client>, policy: Policy) -> Self {
        Self {
            p2p,
            ports,
            boot,
            policy,
            fruitless_polls: FruitlessPolls::default(),
            has_poller: false,
            poller_waker: None,
            colls: Vec::new(),
            coll_sequences: CollSequences::default(),
            serial: 0,
            active: 0,
            coll_polls: 0,
            used_poll_credit: 0,
            jobs: Vec::new(),
            lookups: 0,
            bsends: Vec::new(),
            ready: ReadyMessages::default(),
            names: Names::default(),
        }
    }

    /// Moves what can be moved without waiting. Returns how many things happened.
    #[inline(always)]
    pub(crate) fn progress(&mut self) -> usize {
        if self.nothing_to_poll() { 0 } else { self.progress_all() }
    }

    /// True if a poll would find nothing to move, as most polls do.
    #[inline(always)]
    fn nothing_to_poll(&self) -> bool {
        self.ports.nothing_to_poll()
            && !self.p2p.has_work()
            && self.active == 0
            && self.lookups == 0
            && self.bsends.is_empty()
    }

    #[inline(never)]
    fn progress_all(&mut self) -> usize {
        let mut events = self.ports.poll(&mut Arrivals(&mut self.p2p));
        events += self.p2p.progress(&mut self.ports);
        if self.active > 0 {
            events += self.advance_all();
            self.coll_polls = self.coll_polls.wrapping_add(1);
            if self.coll_polls.is_multiple_of(POLLS_PER_CLOCK) {
                self.inquire();
            }
        }
        if self.p2p.has_controls() {
            events += self.receive_notes();
        }
        if self.lookups > 0 || self.ports.needs_cards() {
            events += self.look_up_addresses();
        }
        if !self.bsends.is_empty() {
            self.reap_bsends();
        }
        if let Some(waker) = self.poller_waker.take_if(|_| events > 0) {
            waker.wake();
        }
        events
    }

    /// Sleeps until something arrives, unless something did already. Bounded (see `ports`).
    pub(crate) fn sleep(&mut self) {
        self.ports.arm(self.lookups > 0);
        if self.progress() == 0 && !self.has_jobs() {
            let asks = self.inquire();
            let launcher = self.boot.as_ref().filter(|_| self.lookups > 0);
            self.ports.sleep(asks, launcher.map(AsFd::as_fd));
        }
        self.ports.disarm();
    }

    /// The launcher's socket, if its answer is awaited, as a duplicate.
    pub(crate) fn launcher_socket(&self) -> Option<OwnedFd> {
        let launcher = self.boot.as_ref().filter(|_| self.lookups > 0);
        launcher.and_then(|launcher| launcher.as_fd().try_clone_to_owned().ok())
    }

    /// Counts a collective that ended without a poll of the fabrics. When the credit is used up the fabrics are polled, as
    /// other ranks may wait for this one to poll. Returns how many things happened.
    #[inline(always)]
    pub(crate) fn spend_poll_credit(&mut self) -> usize {
        self.used_poll_credit += if self.policy.spins_freely() { 1 } else { CROWDED_COST };
        if self.used_poll_credit < POLL_CREDIT {
            return 0;
        }
        self.used_poll_credit = 0;
        self.progress()
    }

    /// Starts a collective; `Ok(None)`: it is over already. `spins` are polls of the shared buffers before the first poll of
    /// all fabrics.
    pub(crate) fn start_coll(
        &mut self,
        coll_state: &Arc<CollState>,
        mut execution: Execution,
        spins: &mut SpinBudget,
    ) -> Result<Option<CollId>, Error> {
        let mut messages = Messages::new(&mut self.p2p, &mut self.ports, &mut self.ready, coll_state);
        let mut step = execution.advance(&mut messages);
        // Messages arrive by the polls of the fabrics that follow.
        while matches!(step, Advance::Pending) && execution.polls_shared() && spins.spend() {
            step = execution.advance(&mut messages);
        }
        let job = match step {
            Advance::Done(result) => {
                let number = execution.number();
                coll_state.recycle(execution, &mut self.coll_sequences);
                return result
                    .map(|()| None)
                    .map_err(|fault| self.fail_for_all(coll_state, Some(number), &fault));
            }
            Advance::Pending => None,
            Advance::UserOp(job) => Some(job),
        };
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let in_user_op = job.is_some();
        let running = RunningColl {
            serial,
            coll_state: coll_state.clone(),
            execution: Some(execution),
            outcome: None,
            inquiry: Inquiry::default(),
            detached: false,
            in_user_op,
        };
        let index = slab::keep(&mut self.colls, running) as u32;
        self.active += 1;
        let id = CollId { index, serial };
        self.jobs.extend(job.map(|job| (id, job)));
        Ok(Some(id))
    }

    /// The result of a collective, once it is over; then the id is gone.
    pub(crate) fn coll_done(&mut self, id: CollId) -> Option<Result<(), Error>> {
        let slot = self.colls.get_mut(id.index as usize)?;
        let running = slot.as_mut().filter(|running| running.serial == id.serial)?;
        let outcome = running.outcome.take()?;
        *slot = None;
        Some(outcome)
    }

    /// A collective as an item of a report on waits; `None` if it is gone.
    pub(crate) fn coll_item(&self, id: CollId) -> Option<Item> {
        let running =
            self.colls.get(id.index as usize)?.as_ref().filter(|running| running.serial == id.serial)?;
        Some(slow::collective(running.coll_state.contexts(), &running.coll_state.group))
    }

    /// Lets a collective go on without anybody waiting for it.
    pub(crate) fn detach_coll(&mut self, id: CollId) {
        let Some(slot) = self.colls.get_mut(id.index as usize) else { return };
        match slot {
            Some(running) if running.serial == id.serial && running.outcome.is_some() => *slot = None,
            Some(running) if running.serial == id.serial => running.detached = true,
            _ => {}
        }
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// A user reduction that is due, if any: run it without the engine lock, then give it back to [`Engine::job_done`].
    pub(crate) fn next_job(&mut self) -> Option<(CollId, Job)> {
        self.jobs.pop()
    }

    pub(crate) fn job_done(&mut self, id: CollId, job: Job) {
        let running = self.colls.get_mut(id.index as usize).and_then(Option::as_mut);
        if let Some(running) = running.filter(|running| running.serial == id.serial) {
            running.in_user_op = false;
            if let Some(execution) = &mut running.execution {
                execution.completed(job);
            }
            self.advance(id.index as usize);
        }
    }

    /// True if no operation of this process is under way.
    pub(crate) fn drained(&mut self) -> bool {
        self.p2p.idle() && !self.ports.unsent() && self.active == 0 && self.bsends.is_empty()
    }

    /// Tells the launcher that this process has finalized and may end now.
    pub(crate) fn leave(&mut self) {
        if let Some(boot) = &mut self.boot {
            // If the launcher is gone there is nobody to tell.
            let _ = boot.finalized();
        }
    }

    fn advance_all(&mut self) -> usize {
        (0..self.colls.len()).map(|index| self.advance(index)).sum()
    }

    /// Advances one collective; 1 if it is over or needs a user reduction.
    pub(crate) fn advance(&mut self, index: usize) -> usize {
        let Some(running) = self.colls[index].as_mut() else { return 0 };
        if running.outcome.is_some() || running.in_user_op {
            return 0;
        }
        let RunningColl { coll_state, execution: Some(execution), .. } = running else { return 0 };
        match execution.advance(&mut Messages::new(
            &mut self.p2p,
            &mut self.ports,
            &mut self.ready,
            coll_state,
        )) {
            Advance::Pending => return 0,
            Advance::UserOp(job) => {
                running.in_user_op = true;
                self.jobs.push((CollId { index: index as u32, serial: running.serial }, job));
            }
            Advance::Done(result) => {
                self.active -= 1;
                let number = running.execution.as_ref().map(Execution::number);
                if let Some(execution) = running.execution.take() {
                    running.coll_state.recycle(execution, &mut self.coll_sequences);
                }
                match result {
                    Ok(()) => running.outcome = Some(Ok(())),
                    Err(fault) => self.failed(index, number, &fault),
                }
                let running = self.colls[index].as_mut();
                if running.is_some_and(|running| running.detached) {
                    self.colls[index] = None;
                }
            }
        }
        1
    }

    #[cold]
    fn failed(&mut self, index: usize, number: Option<u64>, fault: &coll::Fault) {
        let Some(running) = &self.colls[index] else { return };
        let (coll_state, told) = (running.coll_state.clone(), running.inquiry.others_told);
        let error = if told {
            self.record_failure(&coll_state, number, fault).1
        } else {
            self.fail_for_all(&coll_state, number, fault)
        };
        if let Some(running) = &mut self.colls[index] {
            running.outcome = Some(Err(error));
        }
    }

    /// Asks the launcher for business cards that a fabric wants, and gives the fabric those that arrived.
    fn look_up_addresses(&mut self) -> usize {
        let Some(boot) = &mut self.boot else { return 0 };
        let mut events = 0;
        while let Some(peer) = self.ports.wanted() {
            // A broken connection shows when its next event is read.
            let _ = boot.lookup(peer.0);
            self.lookups += 1;
            events += 1;
        }
        if self.lookups == 0 {
            return events;
        }
        loop {
            match boot.try_event() {
                Ok(Some(Event::BusinessCard { rank, business_card })) => {
                    self.lookups = self.lookups.saturating_sub(1);
                    events += 1;
                    if let Err(cause) = self.ports.connect(Peer(rank), &business_card) {
                        self.p2p.peer_down(Peer(rank), &cause);
                    }
                }
                Ok(None) => return events,
                Err(cause) => {
                    // The launcher is gone: this process is about to be killed.
                    self.lookups = 0;
                    eprintln!("banyan: lost the launcher: {cause}");
                    return events;
                }
            }
        }
    }

    /// Forgets the buffered sends that are over, and frees their room in the attached buffers.
    fn reap_bsends(&mut self) {
        let Self { p2p, bsends, .. } = self;
        bsends.retain(|(id, attached, bytes)| match p2p.test(*id) {
            None => true,
            Some(_) => {
                attached.give_back(*bytes);
                false
            }
        });
    }
}

/// Gives arriving frames to p2p.
struct Arrivals<'a>(&'a mut p2p::P2p);

impl Sink for Arrivals<'_> {
    #[inline]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.0.frame(peer, head, body);
    }

    fn place(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.0.place(peer, head, len)
    }

    fn placed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.0.placed(peer, head, len);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.0.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.0.down(peer, cause);
    }
}
