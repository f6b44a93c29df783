//! [`Engine`]: what moves. Matching, fabrics, running collectives, and the line to the launcher, behind the gate.

use std::sync::Arc;
use std::time::Instant;

use banyan_coll::{self as coll, Advance, Execution, Job};
use banyan_datatype::Data;
use banyan_memory::{Buffer, Scratch};
use banyan_p2p as p2p;
use banyan_pmi::status::Item;
use banyan_pmi::{Client, Event};
use banyan_transport::{Get, Head, Peer, Sink, Token};

use crate::error::{Class, Error};
use crate::messenger::{Early, Messages};
use crate::notes::Patience;
use crate::places;
use crate::ports::Ports;
use crate::slow::{self, Names};
use crate::team::{Sequences, Team};
use crate::wait::{Kick, Looked, Looks, Policy};

/// A running collective, by its place in the engine and a number that is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CollId {
    index: u32,
    serial: u32,
}

/// Collectives that may be over on the spot between two polls of all fabrics.
const GLANCES: u32 = 64;
/// Where ranks take turns on the cores, one lasts as long as so many elsewhere.
const TURN: u32 = 8;

/// Rounds without a sleep between two looks at the clock, where a collective is under way.
const BETWEEN_CLOCKS: u32 = 4096;

/// The sooner of two moments.
pub(crate) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

/// The moving parts of the runtime. Reached only through the gate.
pub(crate) struct Engine {
    pub(crate) p2p: p2p::Engine,
    pub(crate) ports: Ports,
    pub(crate) boot: Option<Client>,
    pub(crate) policy: Policy,
    pub(crate) looked: Looked,
    /// A thread is polling (THREAD_MULTIPLE): others wait for it to tell them.
    pub(crate) polled: bool,
    /// That thread sleeps outside the gate, and is woken by this if others find what it waits for.
    pub(crate) resting: Option<Arc<Kick>>,
    pub(crate) colls: Vec<Option<Running>>,
    pub(crate) sequences: Sequences,
    serial: u32,
    pub(crate) active: usize,
    /// Rounds so far.
    rounds: u32,
    /// Collectives that were over on the spot since the last poll for their sake.
    glances: u32,
    /// User reductions that a schedule waits for; they run without the gate.
    jobs: Vec<(CollId, Job)>,
    /// Cards asked for and not arrived.
    lookups: usize,
    /// Buffered sends that are still on their way, and their bytes of attached buffer.
    pub(crate) bsends: Vec<(p2p::ReqId, Arc<crate::bsend::Attached>, usize)>,
    /// Messages of schedules that were there when they were asked for.
    pub(crate) early: Early,
    pub(crate) names: Names,
}

pub(crate) struct Running {
    serial: u32,
    pub(crate) team: Arc<Team>,
    /// Gone when it is over.
    pub(crate) execution: Option<Execution>,
    outcome: Option<Result<(), Error>>,
    /// How long it has not been over.
    pub(crate) patience: Patience,
    orphan: bool,
    /// A user reduction of it is out of the gate.
    pub(crate) away: bool,
}

impl Engine {
    pub(crate) fn new(p2p: p2p::Engine, ports: Ports, boot: Option<Client>, policy: Policy) -> Self {
        Self {
            p2p,
            ports,
            boot,
            policy,
            looked: Looked::default(),
            polled: false,
            resting: None,
            colls: Vec::new(),
            sequences: Sequences::default(),
            serial: 0,
            active: 0,
            rounds: 0,
            glances: 0,
            jobs: Vec::new(),
            lookups: 0,
            bsends: Vec::new(),
            early: Early::default(),
            names: Names::default(),
        }
    }

    /// One round: moves what can be moved without waiting. Returns how many things happened.
    #[inline(always)]
    pub(crate) fn progress(&mut self) -> usize {
        if self.is_quiet() { 0 } else { self.round() }
    }

    /// There is nothing to move: what most looks find.
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        self.ports.is_quiet()
            && !self.p2p.has_work()
            && self.active == 0
            && self.lookups == 0
            && self.bsends.is_empty()
    }

    #[inline(never)]
    fn round(&mut self) -> usize {
        let mut events = self.ports.poll(&mut Arrivals(&mut self.p2p));
        events += self.p2p.progress(&mut self.ports);
        if self.active > 0 {
            events += self.advance_all();
            self.rounds = self.rounds.wrapping_add(1);
            if self.rounds.is_multiple_of(BETWEEN_CLOCKS) {
                self.inquire();
            }
        }
        if self.p2p.has_controls() {
            events += self.listen();
        }
        if self.lookups > 0 || self.ports.tcp.is_some() {
            events += self.addresses();
        }
        if !self.bsends.is_empty() {
            self.sweep();
        }
        if let Some(kick) = self.resting.take_if(|_| events > 0) {
            kick.wake();
        }
        events
    }

    /// Sleeps until something arrives, unless something did already. Bounded (see `ports`).
    pub(crate) fn sleep(&mut self) {
        self.ports.arm();
        if self.progress() == 0 && !self.has_jobs() {
            let asks = self.inquire();
            self.ports.sleep(sooner(self.ports.next_deadline(), asks));
        }
        self.ports.disarm();
    }

    /// A collective was over without a poll of the fabrics. Others may wait for this rank to poll all the same.
    /// Returns how many things happened.
    #[inline(always)]
    pub(crate) fn glance(&mut self) -> usize {
        self.glances += if self.policy.spins_freely() { 1 } else { TURN };
        if self.glances < GLANCES {
            return 0;
        }
        self.glances = 0;
        self.progress()
    }

    /// Starts a collective: `Ok(None)` if it is over already. `looks` come before the first poll of all fabrics.
    pub(crate) fn start_coll(
        &mut self,
        team: &Arc<Team>,
        mut execution: Execution,
        looks: &mut Looks,
    ) -> Result<Option<CollId>, Error> {
        let mut messages = Messages::new(&mut self.p2p, &mut self.ports, &mut self.early, team);
        let mut step = execution.advance(&mut messages);
        // A message comes by the polls that follow.
        while matches!(step, Advance::Pending) && execution.looks_at_slots() && looks.again() {
            step = execution.advance(&mut messages);
        }
        let job = match step {
            Advance::Done(result) => {
                let number = execution.number();
                team.recycle(execution, &mut self.sequences);
                return result.map(|()| None).map_err(|fault| self.gave_up(team, Some(number), &fault));
            }
            Advance::Pending => None,
            Advance::UserOp(job) => Some(job),
        };
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let away = job.is_some();
        let running = Running {
            serial,
            team: team.clone(),
            execution: Some(execution),
            outcome: None,
            patience: Patience::default(),
            orphan: false,
            away,
        };
        let index = places::keep(&mut self.colls, running) as u32;
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

    /// What a collective waits for, for people; `None` if it is not known any more.
    pub(crate) fn coll_item(&self, id: CollId) -> Option<Item> {
        let running =
            self.colls.get(id.index as usize)?.as_ref().filter(|running| running.serial == id.serial)?;
        Some(slow::collective(running.team.contexts(), &running.team.group))
    }

    /// Lets a collective go on without anybody waiting for it.
    pub(crate) fn coll_orphan(&mut self, id: CollId) {
        let Some(slot) = self.colls.get_mut(id.index as usize) else { return };
        match slot {
            Some(running) if running.serial == id.serial && running.outcome.is_some() => *slot = None,
            Some(running) if running.serial == id.serial => running.orphan = true,
            _ => {}
        }
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// A user reduction that is due, if any: run it without the gate, then give it back to [`Engine::job_done`].
    pub(crate) fn next_job(&mut self) -> Option<(CollId, Job)> {
        self.jobs.pop()
    }

    pub(crate) fn job_done(&mut self, id: CollId, job: Job) {
        let running = self.colls.get_mut(id.index as usize).and_then(Option::as_mut);
        if let Some(running) = running.filter(|running| running.serial == id.serial) {
            running.away = false;
            if let Some(execution) = &mut running.execution {
                execution.completed(job);
            }
            self.advance(id.index as usize);
        }
    }

    /// Nothing of ours is on its way any more.
    pub(crate) fn quiet(&self) -> bool {
        self.p2p.idle() && !self.ports.unsent() && self.active == 0 && self.bsends.is_empty()
    }

    /// Says goodbye to the launcher: this process may end now.
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
        if running.outcome.is_some() || running.away {
            return 0;
        }
        let Running { team, execution: Some(execution), .. } = running else { return 0 };
        match execution.advance(&mut Messages::new(&mut self.p2p, &mut self.ports, &mut self.early, team)) {
            Advance::Pending => return 0,
            Advance::UserOp(job) => {
                running.away = true;
                self.jobs.push((CollId { index: index as u32, serial: running.serial }, job));
            }
            Advance::Done(result) => {
                self.active -= 1;
                let number = running.execution.as_ref().map(Execution::number);
                if let Some(execution) = running.execution.take() {
                    running.team.recycle(execution, &mut self.sequences);
                }
                match result {
                    Ok(()) => running.outcome = Some(Ok(())),
                    Err(fault) => self.failed(index, number, &fault),
                }
                let running = self.colls[index].as_mut();
                if running.is_some_and(|running| running.orphan) {
                    self.colls[index] = None;
                }
            }
        }
        1
    }

    #[cold]
    fn failed(&mut self, index: usize, number: Option<u64>, fault: &coll::Fault) {
        let Some(running) = &self.colls[index] else { return };
        let (team, told) = (running.team.clone(), running.patience.told);
        let error =
            if told { self.noted(&team, number, fault).1 } else { self.gave_up(&team, number, fault) };
        if let Some(running) = &mut self.colls[index] {
            running.outcome = Some(Err(error));
        }
    }

    /// Asks the launcher for addresses that a fabric wants, and hands on those that came.
    fn addresses(&mut self) -> usize {
        let Some(boot) = &mut self.boot else { return 0 };
        let mut events = 0;
        while let Some(peer) = self.ports.wanted() {
            // A line that broke shows when its next event is asked for.
            let _ = boot.lookup(peer.0);
            self.lookups += 1;
            events += 1;
        }
        if self.lookups == 0 {
            return events;
        }
        loop {
            match boot.try_event() {
                Ok(Some(Event::Card { rank, card })) => {
                    self.lookups = self.lookups.saturating_sub(1);
                    events += 1;
                    if let Err(cause) = self.ports.connect(Peer(rank), &card) {
                        self.p2p.peer_down(Peer(rank), &cause);
                    }
                }
                Ok(None) => return events,
                Err(cause) => {
                    // The launcher is gone: it takes us with it in a moment.
                    self.lookups = 0;
                    eprintln!("banyan: lost the launcher: {cause}");
                    return events;
                }
            }
        }
    }

    fn sweep(&mut self) {
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

/// Hands frames to whom they belong.
struct Arrivals<'a>(&'a mut p2p::Engine);

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

    fn got(&mut self, token: Token, outcome: Get) {
        self.0.got(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.0.down(peer, cause);
    }
}

/// The MPI error for what went wrong with a message.
pub(crate) fn fault_error(fault: &p2p::Fault) -> Error {
    match fault {
        p2p::Fault::Truncated { sent, room } => Error::new(
            Class::ERR_TRUNCATE,
            format!(
                "the message has {sent} bytes, the receive buffer only {room}; receive with at least the sender's count"
            ),
        ),
        p2p::Fault::PeerDown { peer, cause } => {
            Error::new(Class::ERR_PROC_ABORTED, format!("rank {} of MPI_COMM_WORLD is gone: {cause}", peer.0))
        }
    }
}

/// A scratch copy of a message, so that the user's buffer is free at once.
///
/// # Errors
/// MPI_ERR_NO_MEM if there is no memory for it.
pub fn packed(data: &Data) -> Result<Buffer, Error> {
    let Some(copy) = Scratch::try_zeroed(data.len() as usize) else {
        let what = format!("there is no memory for a copy of the message of {} bytes", data.len());
        return Err(Error::new(Class::ERR_NO_MEM, what));
    };
    Data::bytes(copy.clone()).copy_from(data);
    Ok(copy)
}
