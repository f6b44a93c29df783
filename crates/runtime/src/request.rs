//! [`Request`]: an operation that was started, or that can be started again and again (MPI 5.0, 3.7 and 3.9).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use banyan_coll::Call;
use banyan_datatype::Data;
use banyan_p2p::ReqId;

use crate::bail;
use crate::coll::Team;
use crate::comm::{Comm, Posted, lock, outcome};
use crate::engine::{CollId, Engine};
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::status::{Outcome, Status};

/// When a send is complete (MPI 5.0, 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendMode {
    /// When the buffer may be used again.
    Standard,
    /// When the receiver has begun to receive.
    Sync,
    /// As standard, with the promise that the receive is posted.
    Ready,
    /// At once, by a copy in the attached buffer.
    Buffered,
}

/// How to start a persistent request.
pub(crate) enum Recipe {
    Send { data: Data, dest: i32, tag: i32, mode: SendMode },
    Recv { data: Data, source: i32, tag: i32 },
    Coll { call: Box<Call>, team: Arc<Team> },
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

/// A request. Shared by handle and waiters; the MPI standard forbids two threads to wait for the same one.
pub struct Request {
    rt: Arc<Runtime>,
    comm: Option<Arc<Comm>>,
    recipe: Option<Recipe>,
    general: Option<Box<dyn Generalized>>,
    finished: AtomicBool,
    state: Mutex<State>,
}

enum State {
    /// Null, or persistent and not started.
    Inactive,
    Message {
        id: ReqId,
        received: bool,
    },
    Coll(CollId),
    /// Generalized, running until told otherwise.
    General,
    Over(Outcome),
}

impl Request {
    fn new(comm: &Arc<Comm>, recipe: Option<Recipe>, state: State) -> Request {
        Request {
            rt: comm.runtime().clone(),
            comm: Some(comm.clone()),
            recipe,
            general: None,
            finished: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn posted(comm: &Arc<Comm>, posted: Posted, received: bool) -> Request {
        Self::new(comm, None, state_of(posted, received))
    }

    /// A request that is over already.
    pub fn over(comm: &Arc<Comm>, outcome: Outcome) -> Request {
        Self::new(comm, None, State::Over(outcome))
    }

    pub(crate) fn coll(comm: &Arc<Comm>, id: Option<CollId>) -> Request {
        Self::new(comm, None, id.map_or(State::Over(Outcome::ok(Status::EMPTY)), State::Coll))
    }

    pub(crate) fn persistent(comm: &Arc<Comm>, recipe: Recipe) -> Request {
        Self::new(comm, Some(recipe), State::Inactive)
    }

    /// A generalized request (MPI_Grequest_start).
    pub fn general(rt: &Arc<Runtime>, functions: Box<dyn Generalized>) -> Request {
        Request {
            rt: rt.clone(),
            comm: None,
            recipe: None,
            general: Some(functions),
            finished: AtomicBool::new(false),
            state: Mutex::new(State::General),
        }
    }

    /// The communicator that errors are reported to; none for generalized requests.
    pub fn comm(&self) -> Option<&Arc<Comm>> {
        self.comm.as_ref()
    }

    /// True if it can be started again.
    pub fn is_persistent(&self) -> bool {
        self.recipe.is_some()
    }

    /// True if something was started and its end was not taken yet.
    pub fn is_active(&self) -> bool {
        !matches!(*lock(&self.state), State::Inactive)
    }

    /// Starts a persistent request (MPI_Start).
    pub fn start(&self) -> Result<()> {
        let (Some(recipe), Some(comm)) = (&self.recipe, &self.comm) else {
            bail!(ERR_REQUEST, "only a persistent request can be started")
        };
        if self.is_active() {
            bail!(ERR_REQUEST, "the persistent request is active: complete it before it is started again");
        }
        let next = match recipe {
            Recipe::Coll { call, team } => match team.launch((**call).clone(), false)? {
                None => State::Over(Outcome::ok(Status::EMPTY)),
                Some(id) => State::Coll(id),
            },
            message => {
                let (posted, received) = comm.post(&mut self.rt.gate.enter(), message)?;
                state_of(posted, received)
            }
        };
        *lock(&self.state) = next;
        Ok(())
    }

    /// Waits for the end and takes it (MPI_Wait). An inactive request is over at once, with the empty status.
    pub fn wait(&self) -> Outcome {
        self.rt.wait(self.rt.gate.enter(), |engine| self.settle(engine).then_some(()));
        self.take()
    }

    /// Takes the end if there is one (MPI_Test).
    pub fn test(&self) -> Option<Outcome> {
        self.look().then(|| self.take())
    }

    /// The outcome if it is over, left in place (MPI_Request_get_status).
    pub fn status(&self) -> Option<Outcome> {
        if !self.look() {
            return None;
        }
        let mut state = lock(&self.state);
        match &*state {
            State::Over(outcome) => Some(outcome.clone()),
            State::General => {
                drop(state);
                let outcome =
                    self.general.as_ref().map_or(Outcome::ok(Status::EMPTY), |general| general.query());
                Some(outcome)
            }
            _ => {
                *state = State::Inactive;
                Some(Outcome::ok(Status::EMPTY))
            }
        }
    }

    /// Asks for the operation not to happen (MPI_Cancel). It must still be completed.
    pub fn cancel(&self) -> Result<()> {
        if let Some(general) = &self.general {
            return general.cancel(self.finished.load(Ordering::Acquire));
        }
        let mut engine = self.rt.gate.enter();
        match &*lock(&self.state) {
            State::Message { id, .. } => engine.p2p.cancel(*id),
            State::Coll(_) => bail!(ERR_REQUEST, "a collective operation cannot be cancelled"),
            _ => {}
        }
        Ok(())
    }

    /// Lets go of it; what is under way goes on (MPI_Request_free).
    pub fn free(&self) -> Result<()> {
        let state = std::mem::replace(&mut *lock(&self.state), State::Inactive);
        match state {
            State::Message { id, .. } => self.rt.gate.enter().p2p.detach(id),
            State::Coll(id) => self.rt.gate.enter().coll_orphan(id),
            State::General => {
                if let Some(general) = &self.general {
                    return general.free();
                }
            }
            State::Inactive | State::Over(_) => {}
        }
        Ok(())
    }

    /// Says that a generalized request is over (MPI_Grequest_complete).
    pub fn complete(&self) -> Result<()> {
        if self.general.is_none() {
            bail!(ERR_REQUEST, "only a generalized request can be completed by the user");
        }
        self.finished.store(true, Ordering::Release);
        self.rt.nudge();
        Ok(())
    }

    /// Lets messages move once, then says whether it is over.
    fn look(&self) -> bool {
        self.rt.check_jobs(self.rt.gate.enter(), |engine| {
            self.settle(engine) || {
                engine.progress();
                self.settle(engine)
            }
        })
    }

    /// True if it is over or inactive. Inside the gate.
    fn settle(&self, engine: &mut Engine) -> bool {
        let mut state = lock(&self.state);
        let over = match &*state {
            State::Inactive | State::Over(_) => return true,
            State::General => return self.finished.load(Ordering::Acquire),
            State::Message { id, received } => engine.p2p.test(*id).map(|c| outcome(c, *received)),
            State::Coll(id) => engine.coll_done(*id).map(ended),
        };
        match over {
            None => false,
            Some(outcome) => {
                *state = State::Over(outcome);
                true
            }
        }
    }

    /// Takes the outcome of a settled request, outside the gate (a generalized one calls the user).
    fn take(&self) -> Outcome {
        let state = std::mem::replace(&mut *lock(&self.state), State::Inactive);
        match (state, &self.general) {
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

impl Runtime {
    /// Waits for all (MPI_Waitall); the outcomes in the same order.
    pub fn wait_all(&self, requests: &[Arc<Request>]) -> Vec<Outcome> {
        let mut first = 0;
        self.wait(self.gate.enter(), |engine| {
            while first < requests.len() && requests[first].settle(engine) {
                first += 1;
            }
            (first == requests.len()).then_some(())
        });
        requests.iter().map(|request| request.take()).collect()
    }

    /// The outcomes if all are over, otherwise nothing changes (MPI_Testall).
    pub fn test_all(&self, requests: &[Arc<Request>]) -> Option<Vec<Outcome>> {
        let over = self.check_jobs(self.gate.enter(), |engine| {
            engine.progress();
            requests.iter().filter(|request| !request.settle(engine)).count() == 0
        });
        over.then(|| requests.iter().map(|request| request.take()).collect())
    }

    /// Waits until at least one of the active ones is over and takes it (MPI_Waitany); `None` if none is active.
    pub fn wait_any(&self, requests: &[(usize, Arc<Request>)]) -> Option<(usize, Outcome)> {
        if requests.iter().all(|(_, request)| !request.is_active()) {
            return None;
        }
        let ready = self.wait(self.gate.enter(), |engine| ready(requests, engine));
        Some((requests[ready].0, requests[ready].1.take()))
    }

    /// Takes one that is over, if any is (MPI_Testany). `Err(())` if none is active.
    #[allow(clippy::result_unit_err, reason = "there is nothing more to say than that none is active")]
    pub fn test_any(&self, requests: &[(usize, Arc<Request>)]) -> Result<Option<(usize, Outcome)>, ()> {
        if requests.iter().all(|(_, request)| !request.is_active()) {
            return Err(());
        }
        let found = self.check_jobs(self.gate.enter(), |engine| {
            engine.progress();
            ready(requests, engine)
        });
        Ok(found.map(|i| (requests[i].0, requests[i].1.take())))
    }

    /// Takes all that are over, after waiting for at least one if `block` (MPI_Waitsome, MPI_Testsome).
    /// `None` if none is active.
    pub fn some(&self, requests: &[(usize, Arc<Request>)], block: bool) -> Option<Vec<(usize, Outcome)>> {
        let active: Vec<_> = requests.iter().filter(|(_, request)| request.is_active()).collect();
        if active.is_empty() {
            return None;
        }
        let over = |engine: &mut Engine| -> Vec<usize> {
            (0..active.len()).filter(|&i| active[i].1.settle(engine)).collect()
        };
        let found = match block {
            true => {
                self.wait(self.gate.enter(), |engine| Some(over(engine)).filter(|found| !found.is_empty()))
            }
            false => self.check_jobs(self.gate.enter(), |engine| {
                engine.progress();
                over(engine)
            }),
        };
        Some(found.into_iter().map(|i| (active[i].0, active[i].1.take())).collect())
    }
}

/// The first active one that is over.
fn ready(requests: &[(usize, Arc<Request>)], engine: &mut Engine) -> Option<usize> {
    requests.iter().position(|(_, request)| request.is_active() && request.settle(engine))
}

fn state_of(posted: Posted, received: bool) -> State {
    match posted {
        Posted::Over(outcome) => State::Over(outcome),
        Posted::Active(id) => State::Message { id, received },
    }
}

fn ended(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::ok(Status::EMPTY),
        Err(error) => Outcome::failed(error),
    }
}
