//! [`Request`]: an operation that was started, or that can be started again and again (MPI 5.0, 3.7 and 3.9).

use std::borrow::Borrow;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use banyan_coll::Call;
use banyan_datatype::Data;
use banyan_p2p::{self as p2p, ReqId};
use banyan_pmi::status::Item;
use banyan_transport::Peer;

use crate::coll_state::CollState;
use crate::comm::Comm;
use crate::engine::{CollId, Engine};
use crate::error::{Error, Result};
use crate::p2p::{SendMode, Sender};
use crate::runtime::Runtime;
use crate::slow;
use crate::status::{Outcome, Status};
use crate::{bail, lock};

/// What a persistent request starts each time.
pub(crate) enum PersistentArgs {
    Send { data: Data, dest: Option<Peer>, tag: i32, mode: SendMode },
    Recv { data: Data, sender: Sender, tag: Option<i32> },
    Coll { call: Box<Call>, coll_state: Arc<CollState> },
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

/// Whether an operation is over when the call that starts it returns.
#[derive(Debug)]
#[must_use]
pub enum Started<T> {
    /// It is over, and has no request.
    Done(Outcome),
    /// It is under way.
    Pending(T),
}

impl Started<Posted> {
    #[inline(always)]
    pub(crate) fn of(started: p2p::Started, received: bool) -> Self {
        match started {
            p2p::Started::Done(completion) => Started::Done(Outcome::of(&completion, received)),
            p2p::Started::Pending(id) => Started::Pending(Posted { id, received }),
        }
    }

    #[inline(always)]
    pub(crate) fn owned_by(self, rt: &Arc<Runtime>) -> Started<Request<&Arc<Runtime>>> {
        match self {
            Started::Done(outcome) => Started::Done(outcome),
            Started::Pending(posted) => {
                Started::Pending(Request { rt, operation: Operation(Form::Message(posted)) })
            }
        }
    }
}

/// A message under way. The engine forgets it when its outcome is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) id: ReqId,
    received: bool,
}

/// All that takes the engine is inside the engine lock.
impl Posted {
    #[inline(always)]
    pub(crate) fn outcome(self, completion: &p2p::Completion) -> Outcome {
        Outcome::of(completion, self.received)
    }

    /// The outcome, if it is over.
    #[inline(always)]
    pub(crate) fn settled(self, engine: &mut Engine) -> Option<Outcome> {
        match engine.p2p.test(self.id) {
            Some(completion) => Some(self.outcome(&completion)),
            None if engine.p2p.is_pending(self.id) => None,
            None => Some(Outcome::ok(Status::EMPTY)),
        }
    }

    /// What it waits for; `None` if it is over.
    pub(crate) fn item(self, engine: &Engine) -> Option<Item> {
        engine.p2p.wait_of(self.id).map(slow::message)
    }

    /// Lets it go on without anybody waiting for it. The user leaves its memory alone until it is over.
    pub(crate) fn detach(self, engine: &mut Engine) {
        engine.p2p.detach(self.id);
    }

    /// Gives it up after a failure: from now on nothing touches its memory.
    pub(crate) fn abandon(self, engine: &mut Engine) {
        engine.p2p.abandon(&mut engine.ports, self.id);
    }
}

/// A request that owns its operation: when it is dropped, the user has their memory back. A message to send then goes on
/// from a copy, a receive is taken back, and a collective is waited for, because the other ranks count on it. It holds the
/// runtime, or borrows it ([`crate::Borrowed`]).
pub struct Request<R: Borrow<Arc<Runtime>> = Arc<Runtime>> {
    rt: R,
    operation: Operation,
}

impl<R: Borrow<Arc<Runtime>>> Request<R> {
    /// Waits for the operation and takes its outcome (MPI_Wait).
    pub fn wait(self) -> Outcome {
        self.operation.wait(self.rt.borrow())
    }

    /// Takes the outcome if the operation is over (MPI_Test). A later call gives the empty status.
    pub fn test(&self) -> Option<Outcome> {
        self.operation.test(self.rt.borrow())
    }
}

impl Request<&Arc<Runtime>> {
    /// A request that holds the runtime.
    pub fn hold(self) -> Request {
        Request { rt: self.rt.clone(), operation: self.into_operation() }
    }

    /// The operation without an owner, for a caller that answers for its memory until it is over: the user of a handle does.
    #[inline(always)]
    pub fn into_operation(self) -> Operation {
        ManuallyDrop::new(self).operation.clone()
    }
}

impl<R: Borrow<Arc<Runtime>>> AsRef<Operation> for Request<R> {
    fn as_ref(&self) -> &Operation {
        &self.operation
    }
}

impl<R: Borrow<Arc<Runtime>>> Drop for Request<R> {
    fn drop(&mut self) {
        if let Form::Message(posted) = self.operation.0 {
            self.rt.borrow().take_back(posted);
        }
    }
}

/// The name of an operation: cheap to copy, because most are a message and nothing more. The MPI standard forbids two threads
/// to wait for the same one. A message does not hold on to its communicator: a context closes when nothing in it is under way
/// any more (`Runtime::open_context`). What is dropped with a name of a message is the name; [`Request`] owns the message.
#[derive(Clone)]
pub struct Operation(Form);

#[derive(Clone)]
enum Form {
    /// An operation that ended well before it was named.
    Over(Status),
    Message(Posted),
    /// An operation with a state of its own.
    Stateful(Arc<Stateful>),
}

/// A request that is persistent, or is no message, or failed at once.
struct Stateful {
    rt: Arc<Runtime>,
    comm: Option<Arc<Comm>>,
    args: Option<PersistentArgs>,
    general: Option<Box<dyn Generalized>>,
    finished: AtomicBool,
    state: Mutex<State>,
}

enum State {
    /// Null, or persistent and not started.
    Inactive,
    Message(Posted),
    Coll(CollId),
    /// Generalized, running until MPI_Grequest_complete.
    General,
    /// Generalized and running, freed by the user already: it is gone when it is complete.
    Freed,
    Over(Outcome),
}

impl Operation {
    fn stateful(comm: &Arc<Comm>, args: Option<PersistentArgs>, state: State) -> Operation {
        Operation(Form::Stateful(Arc::new(Stateful {
            rt: comm.runtime().clone(),
            comm: Some(comm.clone()),
            args,
            general: None,
            finished: AtomicBool::new(false),
            state: Mutex::new(state),
        })))
    }

    /// A request of an operation that is over already.
    pub fn over(comm: &Arc<Comm>, outcome: Outcome) -> Operation {
        match outcome.error {
            None => Self::done(outcome.status),
            Some(_) => Self::stateful(comm, None, State::Over(outcome)),
        }
    }

    /// A request of an operation that ended well already.
    #[inline(always)]
    pub fn done(status: Status) -> Operation {
        Operation(Form::Over(status))
    }

    pub(crate) fn coll(comm: &Arc<Comm>, id: Option<CollId>) -> Operation {
        match id {
            None => Self::done(Status::EMPTY),
            Some(id) => Self::stateful(comm, None, State::Coll(id)),
        }
    }

    pub(crate) fn persistent(comm: &Arc<Comm>, args: PersistentArgs) -> Operation {
        Self::stateful(comm, Some(args), State::Inactive)
    }

    /// A generalized request (MPI_Grequest_start).
    pub fn general(rt: &Arc<Runtime>, functions: Box<dyn Generalized>) -> Operation {
        Operation(Form::Stateful(Arc::new(Stateful {
            rt: rt.clone(),
            comm: None,
            args: None,
            general: Some(functions),
            finished: AtomicBool::new(false),
            state: Mutex::new(State::General),
        })))
    }

    /// True if it can be started again.
    #[inline]
    pub fn is_persistent(&self) -> bool {
        matches!(&self.0, Form::Stateful(stateful) if stateful.args.is_some())
    }

    /// The status of an operation that ended well before its request was made.
    #[inline(always)]
    pub fn over_status(&self) -> Option<Status> {
        match &self.0 {
            Form::Over(status) => Some(*status),
            _ => None,
        }
    }

    /// True if an operation was started and its outcome was not taken yet.
    pub fn is_active(&self) -> bool {
        match &self.0 {
            Form::Over(_) | Form::Message(_) => true,
            Form::Stateful(stateful) => stateful.is_active(),
        }
    }

    /// Starts a persistent request (MPI_Start).
    pub fn start(&self) -> Result<()> {
        match &self.0 {
            Form::Stateful(stateful) => stateful.start(),
            _ => bail!(ERR_REQUEST, "only a persistent request can be started"),
        }
    }

    /// Waits for the operation and takes its outcome (MPI_Wait). An inactive request is over at once, with the empty status.
    pub fn wait(&self, rt: &Runtime) -> Outcome {
        match &self.0 {
            Form::Over(status) => Outcome::ok(*status),
            _ => {
                let what = |engine: &Engine| slow::first(self.item(engine).into_iter());
                let outcome = rt.wait_for(rt.engine_lock.enter(), |engine| self.settled(engine), &what);
                self.completed(outcome)
            }
        }
    }

    /// Takes the outcome if the operation is over (MPI_Test).
    pub fn test(&self, rt: &Runtime) -> Option<Outcome> {
        let poll = |engine: &mut Engine| {
            self.settled(engine).or_else(|| {
                engine.progress();
                self.settled(engine)
            })
        };
        let outcome = rt.poll_once(poll)?;
        Some(self.completed(outcome))
    }

    /// The outcome of a request that is over, left in place (MPI_Request_get_status). [`Runtime::over`] tells whether it is.
    pub fn status(&self, rt: &Runtime) -> Outcome {
        match &self.0 {
            Form::Over(status) => Outcome::ok(*status),
            Form::Message(posted) => {
                let engine = rt.engine_lock.enter();
                let completion = engine.p2p.peek(posted.id);
                completion.map_or(Outcome::ok(Status::EMPTY), |completion| posted.outcome(completion))
            }
            Form::Stateful(stateful) => stateful.status(),
        }
    }

    /// Asks to cancel the operation (MPI_Cancel). It must still be completed.
    pub fn cancel(&self, rt: &Runtime) -> Result<()> {
        match &self.0 {
            Form::Over(_) => {}
            Form::Message(posted) => rt.engine_lock.enter().p2p.cancel(posted.id),
            Form::Stateful(stateful) => stateful.cancel()?,
        }
        Ok(())
    }

    /// Frees it; an operation under way goes on (MPI_Request_free). Gives whether the request lives on until
    /// [`Operation::complete`], and is to be freed then: a generalized one that is not over (MPI 5.0, 13.2).
    pub fn free(&self, rt: &Runtime) -> Result<bool> {
        match &self.0 {
            Form::Over(_) => {}
            Form::Message(posted) => posted.detach(&mut rt.engine_lock.enter()),
            Form::Stateful(stateful) => return stateful.free(),
        }
        Ok(false)
    }

    /// Says that a generalized request is over (MPI_Grequest_complete). Gives whether it was freed before.
    pub fn complete(&self) -> Result<bool> {
        match &self.0 {
            Form::Stateful(stateful) => stateful.complete(),
            _ => bail!(ERR_REQUEST, "only a generalized request can be completed by the user"),
        }
    }

    /// What it waits for; `None` if it is over or inactive. Inside the engine lock.
    fn item(&self, engine: &Engine) -> Option<Item> {
        match &self.0 {
            Form::Over(_) => None,
            Form::Message(posted) => posted.item(engine),
            Form::Stateful(stateful) => match &*lock(&stateful.state) {
                State::Message(posted) => posted.item(engine),
                State::Coll(id) => engine.coll_item(*id),
                State::General => Some(Item::Program("a generalized request".to_owned())),
                _ => None,
            },
        }
    }

    /// True if it is over or inactive. Inside the engine lock.
    fn is_over(&self, engine: &mut Engine) -> bool {
        match &self.0 {
            Form::Over(_) => true,
            Form::Message(posted) => !engine.p2p.is_pending(posted.id),
            Form::Stateful(stateful) => stateful.settle(engine),
        }
    }

    /// The outcome, if it is over or inactive. Inside the engine lock. [`Operation::completed`] then gives the final
    /// outcome.
    #[inline(always)]
    fn settled(&self, engine: &mut Engine) -> Option<Outcome> {
        match &self.0 {
            Form::Over(status) => Some(Outcome::ok(*status)),
            Form::Message(posted) => posted.settled(engine),
            Form::Stateful(stateful) => stateful.settle(engine).then(|| Outcome::ok(Status::EMPTY)),
        }
    }

    /// The final outcome of a settled request, outside the engine lock (a generalized one calls the user).
    #[inline]
    fn completed(&self, settled: Outcome) -> Outcome {
        match &self.0 {
            Form::Stateful(stateful) => stateful.take(),
            _ => settled,
        }
    }
}

impl AsRef<Operation> for Operation {
    fn as_ref(&self) -> &Operation {
        self
    }
}

impl Stateful {
    fn is_active(&self) -> bool {
        !matches!(*lock(&self.state), State::Inactive)
    }

    fn start(&self) -> Result<()> {
        let (Some(args), Some(comm)) = (&self.args, &self.comm) else {
            bail!(ERR_REQUEST, "only a persistent request can be started")
        };
        if self.is_active() {
            bail!(ERR_REQUEST, "the persistent request is active: complete it before it is started again");
        }
        let next = match args {
            PersistentArgs::Coll { call, coll_state } => {
                match coll_state.launch((**call).clone(), None, false)? {
                    None => State::Over(Outcome::ok(Status::EMPTY)),
                    Some(id) => State::Coll(id),
                }
            }
            message => match comm.start_message(message)? {
                Started::Done(outcome) => State::Over(outcome),
                Started::Pending(posted) => State::Message(posted),
            },
        };
        *lock(&self.state) = next;
        Ok(())
    }

    /// The outcome of a settled request, left in place.
    fn status(&self) -> Outcome {
        let mut state = lock(&self.state);
        match &*state {
            State::Over(outcome) => outcome.clone(),
            State::General => {
                drop(state);
                self.general.as_ref().map_or(Outcome::ok(Status::EMPTY), |general| general.query())
            }
            _ => {
                *state = State::Inactive;
                Outcome::ok(Status::EMPTY)
            }
        }
    }

    fn cancel(&self) -> Result<()> {
        if let Some(general) = &self.general {
            return general.cancel(self.finished.load(Ordering::Acquire));
        }
        let mut engine = self.rt.engine_lock.enter();
        match &*lock(&self.state) {
            State::Message(posted) => engine.p2p.cancel(posted.id),
            State::Coll(_) => bail!(ERR_REQUEST, "a collective operation cannot be cancelled"),
            _ => {}
        }
        Ok(())
    }

    fn free(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        if matches!(*state, State::General | State::Freed) && !self.finished.load(Ordering::Acquire) {
            *state = State::Freed;
            return Ok(true);
        }
        let old = std::mem::replace(&mut *state, State::Inactive);
        drop(state);
        match old {
            State::Message(posted) => posted.detach(&mut self.rt.engine_lock.enter()),
            State::Coll(id) => self.rt.engine_lock.enter().detach_coll(id),
            State::General | State::Freed => {
                self.general.as_ref().map_or(Ok(()), |general| general.free())?
            }
            State::Inactive | State::Over(_) => {}
        }
        Ok(false)
    }

    fn complete(&self) -> Result<bool> {
        if self.general.is_none() {
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
    fn settle(&self, engine: &mut Engine) -> bool {
        let mut state = lock(&self.state);
        let over = match &*state {
            State::Inactive | State::Over(_) | State::Freed => return true,
            State::General => return self.finished.load(Ordering::Acquire),
            State::Message(posted) => posted.settled(engine),
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

    /// Takes the outcome of a settled request, outside the engine lock (a generalized one calls the user).
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

impl Drop for Stateful {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|poison| poison.into_inner());
        match *state {
            State::Message(posted) => self.rt.take_back(posted),
            State::Coll(id) if self.rt.is_usable() => drop(self.rt.wait_for_coll(id)),
            _ => {}
        }
    }
}

impl Runtime {
    /// Whether a request that is dropped may enter the engine: not in a child after `fork`, nor after a panic.
    fn is_usable(&self) -> bool {
        !banyan_memory::forked() && !std::thread::panicking()
    }

    /// Takes the memory of a message back from the engine.
    fn take_back(&self, posted: Posted) {
        if self.is_usable() {
            let engine = &mut *self.engine_lock.enter();
            engine.p2p.disown(&mut engine.ports, posted.id);
        }
    }

    /// Waits for all requests (MPI_Waitall). `each` gets the index and outcome of each, and must not call MPI.
    #[inline]
    pub fn wait_all(&self, requests: &[impl AsRef<Operation>], mut each: impl FnMut(usize, Outcome)) {
        let (mut next, mut any_stateful) = (0, false);
        let done = |engine: &mut Engine| {
            while let Some(request) = requests.get(next) {
                let outcome = request.as_ref().settled(engine)?;
                match &request.as_ref().0 {
                    Form::Stateful(_) => any_stateful = true,
                    _ => each(next, outcome),
                }
                next += 1;
            }
            Some(())
        };
        self.wait_for(self.engine_lock.enter(), done, &|engine| items(requests, engine));
        if !any_stateful {
            return;
        }
        for (at, request) in requests.iter().enumerate() {
            if let Form::Stateful(stateful) = &request.as_ref().0 {
                each(at, stateful.take());
            }
        }
    }

    /// Does what [`Runtime::wait_all`] does if all requests are over; otherwise nothing changes (MPI_Testall). Gives whether
    /// they are.
    pub fn test_all(&self, requests: &[impl AsRef<Operation>], each: impl FnMut(usize, Outcome)) -> bool {
        let over = self.poll_once(|engine| {
            engine.progress();
            requests.iter().all(|request| request.as_ref().is_over(engine)).then_some(())
        });
        if over.is_some() {
            self.wait_all(requests, each);
        }
        over.is_some()
    }

    /// The indices of the requests that are over or inactive, after one poll of the fabrics; none if `all` of them should be
    /// and are not (MPI_Request_get_status_all and its kin).
    pub fn over(&self, requests: &[impl AsRef<Operation>], all: bool) -> Vec<usize> {
        let found = self.poll_once(|engine| {
            engine.progress();
            let indices = 0..requests.len();
            let over: Vec<usize> = indices.filter(|&at| requests[at].as_ref().is_over(engine)).collect();
            Some(over).filter(|over| if all { over.len() == requests.len() } else { !over.is_empty() })
        });
        found.unwrap_or_default()
    }

    /// Waits until at least one of the active requests is over and takes its outcome (MPI_Waitany); `None` if none is active.
    pub fn wait_any(&self, requests: &[impl AsRef<Operation>]) -> Option<(usize, Outcome)> {
        if requests.iter().all(|request| !request.as_ref().is_active()) {
            return None;
        }
        let what = |engine: &Engine| items(requests, engine);
        let (at, outcome) = self.wait_for(self.engine_lock.enter(), |engine| ready(requests, engine), &what);
        Some((at, requests[at].as_ref().completed(outcome)))
    }

    /// Takes the outcome of one request that is over, if any is (MPI_Testany). `Err(())` if none is active.
    #[allow(clippy::result_unit_err, reason = "there is nothing more to say than that none is active")]
    pub fn test_any(&self, requests: &[impl AsRef<Operation>]) -> Result<Option<(usize, Outcome)>, ()> {
        if requests.iter().all(|request| !request.as_ref().is_active()) {
            return Err(());
        }
        let found = self.poll_once(|engine| {
            engine.progress();
            ready(requests, engine)
        });
        Ok(found.map(|(at, outcome)| (at, requests[at].as_ref().completed(outcome))))
    }

    /// Whether all requests that a program tests are under way, as `f` says after one poll of the fabrics; if not, the caller
    /// polls for them next. `f` must not call MPI.
    #[inline]
    pub fn all_under_way(&self, f: impl FnOnce(UnderWay<'_>) -> bool) -> bool {
        let mut engine = self.engine_lock.enter();
        engine.progress();
        let all = f(UnderWay(&engine.p2p));
        self.end_poll(engine, all.then_some(true));
        all
    }

    /// Takes the outcomes of all requests that are over, after waiting for at least one if `block` (MPI_Waitsome, MPI_Testsome).
    /// `None` if none is active.
    pub fn some(&self, requests: &[impl AsRef<Operation>], block: bool) -> Option<Vec<(usize, Outcome)>> {
        let active = |at: &usize| requests[*at].as_ref().is_active();
        let active: Vec<usize> = (0..requests.len()).filter(active).collect();
        if active.is_empty() {
            return None;
        }
        let over = |engine: &mut Engine| -> Option<Vec<(usize, Outcome)>> {
            let settled = |&at: &usize| Some((at, requests[at].as_ref().settled(engine)?));
            Some(active.iter().filter_map(settled).collect()).filter(|found: &Vec<_>| !found.is_empty())
        };
        let found = match block {
            true => self.wait_for(self.engine_lock.enter(), over, &|engine| items(requests, engine)),
            false => self
                .poll_once(|engine| {
                    engine.progress();
                    over(engine)
                })
                .unwrap_or_default(),
        };
        let completed = |(at, outcome): (usize, Outcome)| (at, requests[at].as_ref().completed(outcome));
        Some(found.into_iter().map(completed).collect())
    }
}

/// The messages that are under way, inside the engine lock.
pub struct UnderWay<'a>(&'a banyan_p2p::P2p);

impl UnderWay<'_> {
    /// Whether the request is a message that is under way.
    #[inline(always)]
    pub fn has(&self, request: &Operation) -> bool {
        matches!(&request.0, Form::Message(posted) if self.0.is_pending(posted.id))
    }
}

/// The index and outcome of the first active request that is over.
fn ready(requests: &[impl AsRef<Operation>], engine: &mut Engine) -> Option<(usize, Outcome)> {
    let mut active = requests.iter().enumerate().filter(|(_, request)| request.as_ref().is_active());
    active.find_map(|(at, request)| Some((at, request.as_ref().settled(engine)?)))
}

/// What the active requests wait for.
fn items(requests: &[impl AsRef<Operation>], engine: &Engine) -> (Vec<Item>, usize) {
    slow::first(requests.iter().filter_map(|request| request.as_ref().item(engine)))
}

fn ended(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::ok(Status::EMPTY),
        Err(error) => Outcome::failed(error),
    }
}
