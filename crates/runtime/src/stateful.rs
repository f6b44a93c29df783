//! Requests with a state of their own: persistent and generalized ones, and those of collectives (MPI 5.0, 3.9, 6 and 13.2).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use banyan_datatype::Data;
use banyan_pmi::status::Item;
use banyan_transport::Peer;

use crate::coll_state::PersistentCall;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::p2p::{SendMode, Sender};
use crate::request::{Posted, Started};
use crate::running::CollId;
use crate::runtime::Runtime;
use crate::status::{Outcome, Status};
use crate::{bail, lock};

/// What a persistent request starts each time.
pub(crate) enum Persistent {
    Message(Arc<Comm>, PersistentMessage),
    Coll(Box<PersistentCall>),
}

pub(crate) enum PersistentMessage {
    Send { data: Data, dest: Option<Peer>, tag: i32, mode: SendMode },
    Recv { data: Data, sender: Sender, tag: Option<i32> },
}

/// Where the operations of a request come from.
pub(crate) enum Origin {
    /// From the call that made the request.
    Call,
    /// From each start.
    Persistent(Persistent),
    /// From the user (MPI_Grequest_start).
    User(Box<dyn Generalized>),
}

/// The functions of a generalized request (MPI 5.0, 13.2). Called without any lock.
pub trait Generalized: Send + Sync {
    /// Fills in the status of a finished operation.
    fn query(&self) -> Outcome;
    /// The request is freed.
    fn free(&self) -> Result<()>;
    /// MPI_Cancel was called; `complete` says whether the operation is over.
    fn cancel(&self, complete: bool) -> Result<()>;
}

/// A request that is persistent, or is no message, or failed at once.
pub(crate) struct Stateful {
    rt: Arc<Runtime>,
    origin: Origin,
    finished: AtomicBool,
    state: Mutex<State>,
}

pub(crate) enum State {
    /// Null, or persistent and not started.
    Inactive,
    Message(Posted),
    /// A send and a receive (MPI_Isendrecv): over when both are.
    Exchange([Started<Posted>; 2]),
    Coll(CollId),
    /// Generalized, running until MPI_Grequest_complete.
    General,
    /// Generalized and running, freed by the user already: it is gone when it is complete.
    Freed,
    Over(Outcome),
}

impl Stateful {
    pub(crate) fn new(rt: &Arc<Runtime>, origin: Origin, state: State) -> Self {
        Self { rt: rt.clone(), origin, finished: AtomicBool::new(false), state: Mutex::new(state) }
    }

    pub(crate) fn is_persistent(&self) -> bool {
        matches!(self.origin, Origin::Persistent(_))
    }

    /// The functions of a generalized request.
    fn functions(&self) -> Option<&dyn Generalized> {
        match &self.origin {
            Origin::User(functions) => Some(&**functions),
            _ => None,
        }
    }

    /// What it waits for; `None` if it is over or inactive. Inside the engine lock.
    pub(crate) fn item(&self, engine: &Engine) -> Option<Item> {
        match &*lock(&self.state) {
            State::Message(posted) => posted.item(engine),
            State::Exchange(both) => {
                both.iter().filter_map(Started::pending).find_map(|half| half.item(engine))
            }
            State::Coll(id) => engine.colls.item(*id),
            State::General => Some(Item::Program("a generalized request".to_owned())),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        !matches!(*lock(&self.state), State::Inactive)
    }

    pub(crate) fn start(&self) -> Result<()> {
        let Origin::Persistent(what) = &self.origin else {
            bail!(ERR_REQUEST, "only a persistent request can be started")
        };
        if self.is_active() {
            bail!(ERR_REQUEST, "the persistent request is active: complete it before it is started again");
        }
        let next = match what {
            Persistent::Coll(call) => match call.start()? {
                None => State::Over(Outcome::ok(Status::EMPTY)),
                Some(id) => State::Coll(id),
            },
            Persistent::Message(comm, message) => match comm.start_message(message)? {
                Started::Done(outcome) => State::Over(outcome),
                Started::Pending(posted) => State::Message(posted),
            },
        };
        *lock(&self.state) = next;
        Ok(())
    }

    /// The outcome of a settled request, left in place.
    pub(crate) fn status(&self) -> Outcome {
        let mut state = lock(&self.state);
        match &*state {
            State::Over(outcome) => outcome.clone(),
            State::General => {
                drop(state);
                self.functions().map_or(Outcome::ok(Status::EMPTY), |general| general.query())
            }
            _ => {
                *state = State::Inactive;
                Outcome::ok(Status::EMPTY)
            }
        }
    }

    pub(crate) fn cancel(&self) -> Result<()> {
        if let Some(general) = self.functions() {
            return general.cancel(self.finished.load(Ordering::Acquire));
        }
        let mut engine = self.rt.engine_lock.enter();
        match &*lock(&self.state) {
            State::Message(posted) | State::Exchange([_, Started::Pending(posted)]) => {
                engine.p2p.cancel(posted.id)
            }
            State::Coll(_) => bail!(ERR_REQUEST, "a collective operation cannot be cancelled"),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn free(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        if matches!(*state, State::General | State::Freed) && !self.finished.load(Ordering::Acquire) {
            *state = State::Freed;
            return Ok(true);
        }
        let old = std::mem::replace(&mut *state, State::Inactive);
        drop(state);
        match old {
            State::Message(posted) => posted.detach(&mut self.rt.engine_lock.enter()),
            State::Exchange(both) => {
                let engine = &mut self.rt.engine_lock.enter();
                both.iter().filter_map(Started::pending).for_each(|half| half.detach(engine));
            }
            State::Coll(id) => self.rt.engine_lock.enter().colls.detach(id),
            State::General | State::Freed => self.functions().map_or(Ok(()), |general| general.free())?,
            State::Inactive | State::Over(_) => {}
        }
        Ok(false)
    }

    pub(crate) fn complete(&self) -> Result<bool> {
        if self.functions().is_none() {
            bail!(ERR_REQUEST, "only a generalized request can be completed by the user");
        }
        let state = lock(&self.state);
        self.finished.store(true, Ordering::Release);
        let freed = matches!(*state, State::Freed);
        drop(state);
        self.rt.wake_poller();
        Ok(freed)
    }

    /// True if it is over or inactive. Inside the engine lock.
    pub(crate) fn settle(&self, engine: &mut Engine) -> bool {
        let mut state = lock(&self.state);
        let over = match &mut *state {
            State::Inactive | State::Over(_) | State::Freed => return true,
            State::General => return self.finished.load(Ordering::Acquire),
            State::Message(posted) => posted.settled(engine),
            State::Exchange(both) => exchanged(both, engine),
            State::Coll(id) => engine.colls.take_outcome(*id).map(ended),
        };
        match over {
            None => false,
            Some(outcome) => {
                *state = State::Over(outcome);
                true
            }
        }
    }

    /// Gives up what is under way: from now on nothing touches its memory.
    pub(crate) fn take_back(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), State::Inactive);
        match state {
            State::Message(posted) => self.rt.take_back(posted),
            State::Exchange(both) => {
                both.iter().filter_map(Started::pending).for_each(|half| self.rt.take_back(half));
            }
            State::Coll(id) if self.rt.is_usable() => drop(self.rt.wait_for_coll(id)),
            _ => {}
        }
    }

    /// Takes the outcome of a settled request, outside the engine lock (a generalized one calls the user).
    pub(crate) fn take(&self) -> Outcome {
        let state = std::mem::replace(&mut *lock(&self.state), State::Inactive);
        match (state, self.functions()) {
            (State::Over(outcome), _) => outcome,
            (State::General, Some(general)) => {
                let outcome = general.query();
                match general.free() {
                    Ok(()) => outcome,
                    Err(error) => Outcome { error: Some(error), ..outcome },
                }
            }
            _ => Outcome::ok(Status::EMPTY),
        }
    }
}

impl Drop for Stateful {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// The outcome of a send and a receive, once both are over: the receive's, with the first error of the two. A send that fails
/// ends both: what was to be received may never come.
fn exchanged(both: &mut [Started<Posted>; 2], engine: &mut Engine) -> Option<Outcome> {
    for half in both.iter_mut() {
        if let Some(outcome) = half.pending().and_then(|posted| posted.settled(engine)) {
            *half = Started::Done(outcome);
        }
    }
    let [Started::Done(sent), received] = both else { return None };
    match (sent.error.take(), received) {
        (error, Started::Done(received)) => {
            Some(Outcome { status: received.status, error: error.or(received.error.take()) })
        }
        (Some(error), Started::Pending(received)) => {
            received.abandon(engine);
            Some(Outcome::failed(error))
        }
        (None, Started::Pending(_)) => None,
    }
}

fn ended(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::ok(Status::EMPTY),
        Err(error) => Outcome::failed(error),
    }
}
