//! [`Request`]: an operation that was started, or that can be started again and again (MPI 5.0, 3.7 and 3.9).

use std::borrow::Borrow;
use std::sync::Arc;
use std::task::{Poll, Waker};

use banyan_p2p::{self as p2p, ReqId};
use banyan_pmi::status::Item;

use crate::attempt::is_panicking;
use crate::bail;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::Result;
use crate::running::CollId;
use crate::runtime::Runtime;
use crate::slow;
use crate::stateful::{Generalized, Origin, Persistent, State, Stateful};
use crate::status::{Outcome, Source, Status};

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
    /// A receive.
    #[inline(always)]
    pub(crate) fn received(started: p2p::Started) -> Self {
        match started {
            p2p::Started::Done(completion) => Started::Done(Outcome::of(completion, true)),
            p2p::Started::Pending(id) => Started::Pending(Posted { id, direction: Direction::In }),
        }
    }

    /// A send of so many bytes, which is complete if it has no request.
    #[inline(always)]
    pub(crate) fn sent(request: Option<ReqId>, bytes: u64) -> Self {
        match request {
            None => Started::Done(Outcome::ok(Status::new(Source::Any, None, bytes, false))),
            Some(id) => Started::Pending(Posted { id, direction: Direction::Out }),
        }
    }

    /// The message, if it is under way.
    pub(crate) fn pending(&self) -> Option<Posted> {
        match self {
            Started::Done(_) => None,
            Started::Pending(posted) => Some(*posted),
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

impl<R: Borrow<Arc<Runtime>>> Started<Request<R>> {
    /// The outcome, once it is over.
    #[inline(always)]
    pub fn wait(self) -> Outcome {
        match self {
            Started::Done(outcome) => outcome,
            Started::Pending(request) => request.wait(),
        }
    }
}

impl Started<Request<&Arc<Runtime>>> {
    /// A request that holds the runtime, also of an operation that is over.
    pub fn hold(self, rt: &Arc<Runtime>) -> Request {
        match self {
            Started::Done(outcome) => Operation::over(rt, outcome).held_by(rt),
            Started::Pending(request) => request.hold(),
        }
    }
}

/// A message under way. The engine forgets it when its outcome is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) id: ReqId,
    direction: Direction,
}

/// Whether a message is sent or received. A whole word, so that no copy of a [`Posted`] is made in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
enum Direction {
    Out,
    In,
}

/// All that takes the engine is inside the engine lock.
impl Posted {
    #[inline(always)]
    pub(crate) fn outcome(self, completion: p2p::Completion) -> Outcome {
        Outcome::of(completion, self.direction == Direction::In)
    }

    /// The outcome, if it is over.
    #[inline(always)]
    pub(crate) fn settled(self, engine: &mut Engine) -> Option<Outcome> {
        match engine.p2p.test(self.id) {
            Some(completion) => Some(self.outcome(completion)),
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
/// from a copy, a receive is taken back, and a collective is waited for, because the other ranks count on it. A persistent one is
/// inactive then. It holds the runtime, or borrows it ([`crate::Borrowed`]).
pub struct Request<R: Borrow<Arc<Runtime>> = Arc<Runtime>> {
    rt: R,
    operation: Operation,
}

impl<R: Borrow<Arc<Runtime>>> Request<R> {
    /// Waits for the operation and takes its outcome (MPI_Wait). A later call gives the empty status.
    pub fn wait(&self) -> Outcome {
        self.operation.wait(self.rt.borrow())
    }

    /// Takes the outcome if the operation is over (MPI_Test). A later call gives the empty status.
    pub fn test(&self) -> Option<Outcome> {
        self.operation.test(self.rt.borrow())
    }

    /// As [`Request::test`]; if the operation is not over, `task` is woken when it may be. The task is to poll again then: nobody else
    /// does. Once is not enough: it may be woken for no reason.
    pub fn poll(&self, task: &Waker) -> Poll<Outcome> {
        self.rt.borrow().await_outcome(&self.operation, task).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<'a> Request<&'a Arc<Runtime>> {
    pub(crate) fn of(rt: &'a Arc<Runtime>, operation: Operation) -> Self {
        Self { rt, operation }
    }

    /// A request that holds the runtime.
    pub fn hold(self) -> Request {
        Request { rt: self.rt.clone(), operation: self.into_operation() }
    }

    /// The operation without an owner, for a caller that answers for its memory until it is over: the user of a handle does.
    #[inline(always)]
    pub fn into_operation(mut self) -> Operation {
        std::mem::replace(&mut self.operation, Operation::done(Status::EMPTY))
    }
}

impl Request {
    /// Asks to cancel the operation (MPI_Cancel). It must still be completed.
    pub fn cancel(&self) -> Result<()> {
        self.operation.cancel(&self.rt)
    }
}

impl<R: Borrow<Arc<Runtime>>> AsRef<Operation> for Request<R> {
    fn as_ref(&self) -> &Operation {
        &self.operation
    }
}

impl<R: Borrow<Arc<Runtime>>> Drop for Request<R> {
    fn drop(&mut self) {
        match &self.operation.0 {
            Form::Message(posted) => self.rt.borrow().take_back(*posted),
            // It may have another name, by which it is started again.
            Form::Stateful(stateful) if stateful.is_persistent() => stateful.take_back(),
            _ => {}
        }
    }
}

/// The name of an operation: cheap to copy, because most are a message and nothing more. The MPI standard forbids two threads
/// to wait for the same one. A message does not hold on to its communicator: a context closes when nothing in it is under way
/// any more (`Runtime::open_context`). What is dropped with a name of a message is the name; [`Request`] owns the message.
#[derive(Clone)]
pub struct Operation(pub(crate) Form);

#[derive(Clone)]
pub(crate) enum Form {
    /// An operation that ended well before it was named.
    Over(Status),
    Message(Posted),
    /// An operation with a state of its own.
    Stateful(Arc<Stateful>),
}

impl Operation {
    fn stateful(rt: &Arc<Runtime>, origin: Origin, state: State) -> Operation {
        Operation(Form::Stateful(Arc::new(Stateful::new(rt, origin, state))))
    }

    /// A request of an operation that is over already.
    pub fn over(rt: &Arc<Runtime>, outcome: Outcome) -> Operation {
        match outcome.error {
            None => Self::done(outcome.status),
            Some(_) => Self::stateful(rt, Origin::Call, State::Over(outcome)),
        }
    }

    /// A request of an operation that ended well already.
    #[inline(always)]
    pub fn done(status: Status) -> Operation {
        Operation(Form::Over(status))
    }

    pub(crate) fn coll(rt: &Arc<Runtime>, id: Option<CollId>) -> Operation {
        match id {
            None => Self::done(Status::EMPTY),
            Some(id) => Self::stateful(rt, Origin::Call, State::Coll(id)),
        }
    }

    /// A send and a receive under one name.
    #[cold]
    pub(crate) fn exchange(rt: &Arc<Runtime>, sent: Posted, received: Started<Posted>) -> Operation {
        Self::stateful(rt, Origin::Call, State::Exchange([Started::Pending(sent), received]))
    }

    pub(crate) fn persistent(comm: &Arc<Comm>, what: Persistent) -> Operation {
        Self::stateful(comm.runtime(), Origin::Persistent(what), State::Inactive)
    }

    /// A generalized request (MPI_Grequest_start).
    pub fn general(rt: &Arc<Runtime>, functions: Box<dyn Generalized>) -> Operation {
        Self::stateful(rt, Origin::User(functions), State::General)
    }

    /// A request that owns the operation, and holds the runtime.
    pub fn held_by(self, rt: &Arc<Runtime>) -> Request {
        Request { rt: rt.clone(), operation: self }
    }

    /// True if it can be started again.
    #[inline]
    pub fn is_persistent(&self) -> bool {
        matches!(&self.0, Form::Stateful(stateful) if stateful.is_persistent())
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
        let outcome = rt.poll_for(|engine| self.settled(engine))?;
        Some(self.completed(outcome))
    }

    /// The outcome of a request that is over, left in place (MPI_Request_get_status). [`Runtime::over`] tells whether it is.
    pub fn status(&self, rt: &Runtime) -> Outcome {
        match &self.0 {
            Form::Over(status) => Outcome::ok(*status),
            Form::Message(posted) => {
                let engine = rt.engine_lock.enter();
                let completion = engine.p2p.peek(posted.id).cloned();
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
    pub(crate) fn item(&self, engine: &Engine) -> Option<Item> {
        match &self.0 {
            Form::Over(_) => None,
            Form::Message(posted) => posted.item(engine),
            Form::Stateful(stateful) => stateful.item(engine),
        }
    }

    /// True if it is over or inactive. Inside the engine lock.
    pub(crate) fn is_over(&self, engine: &mut Engine) -> bool {
        match &self.0 {
            Form::Over(_) => true,
            Form::Message(posted) => !engine.p2p.is_pending(posted.id),
            Form::Stateful(stateful) => stateful.settle(engine),
        }
    }

    /// The outcome, if it is over or inactive. Inside the engine lock. [`Operation::completed`] then gives the final
    /// outcome.
    #[inline(always)]
    pub(crate) fn settled(&self, engine: &mut Engine) -> Option<Outcome> {
        match &self.0 {
            Form::Over(status) => Some(Outcome::ok(*status)),
            Form::Message(posted) => posted.settled(engine),
            Form::Stateful(stateful) => stateful.settle(engine).then(|| Outcome::ok(Status::EMPTY)),
        }
    }

    /// The final outcome of a settled request, outside the engine lock (a generalized one calls the user).
    #[inline]
    pub(crate) fn completed(&self, settled: Outcome) -> Outcome {
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

impl Runtime {
    /// Whether a request that is dropped may enter the engine: not in a child after `fork`, nor after a panic.
    pub(crate) fn is_usable(&self) -> bool {
        !banyan_memory::forked() && !is_panicking()
    }

    /// Takes the memory of a message back from the engine.
    pub(crate) fn take_back(&self, posted: Posted) {
        if self.is_usable() {
            let engine = &mut *self.engine_lock.enter();
            engine.p2p.disown(&mut engine.ports, posted.id);
        }
    }
}
