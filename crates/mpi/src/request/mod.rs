//! Requests: operations that go on while the program does something else.
//!
//! A request borrows its buffers for the lifetime of a [`Scope`]. A [`scope()`] ends only when no request of it is under way. So a
//! request that is leaked cannot leave the library with memory that is gone: then the process is ended. With [`StaticScope`]
//! buffers are borrowed for good.
//!
//! A request that is dropped is taken back: a send goes on from a copy, a receive is withdrawn, and a collective is waited for.
//!
//! ```
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let world = universe.world();
//! let (given, mut got) = (7.5, 0.0);
//! mpi::request::scope(|scope| {
//!     let send = world.this_process().immediate_send(scope, &given);
//!     let receive = world.any_process().immediate_receive_into(scope, &mut got);
//!     receive.wait();
//!     send.wait();
//! });
//! assert_eq!(got, 7.5);
//! ```
//!
//! What misuses a buffer meanwhile does not compile: one that is dropped, moved, written, or read while it is received into.

mod collection;
mod future;
mod guard;
mod persistent;
mod scope;

pub use collection::{RequestCollection, multiple_scope, wait_any};
pub use future::ReceiveFuture;
pub use guard::{CancelGuard, WaitGuard};
pub use persistent::PersistentRequest;
pub use scope::{LocalScope, Scope, StaticScope, scope};

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use banyan_runtime as rt;

use crate::error::{Result, expect, tried};
use crate::instance;
use crate::point_to_point::Status;
use crate::simulated;

/// An operation that is under way, or over and not completed.
///
/// It borrows its buffers for `'a`, and belongs to a scope of that lifetime.
///
/// ```
/// use mpi::request::Request;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let (me, any) = (world.this_process(), world.any_process());
/// let (given, mut got) = ([1, 2, 3], [0; 3]);
/// mpi::request::scope(|outer| {
///     let send: Request<'_, [i32; 3], _> = me.immediate_send(outer, &given);
///     assert_eq!(*any.immediate_receive_into(outer, &mut got).wait_for_data(), given);
///     send.try_wait().unwrap();
///
///     // A request of one scope may be completed in another one, which ends earlier.
///     let send = me.immediate_send(outer, &given[..2]);
///     mpi::request::scope(|inner| send.shrink_scope_to(inner).wait_without_status());
///     assert_eq!(any.receive_vec::<i32>().0, [1, 2]);
/// });
///
/// // What is not over is given back by a test.
/// mpi::request::scope(|scope| {
///     let receive = any.immediate_receive_into(scope, &mut got[..1]);
///     let receive = receive.test().unwrap_err();
///     me.send(&7);
///     let mut next = Err(receive);
///     while let Err(receive) = next {
///         next = receive.test_with_data();
///     }
///     assert_eq!(next.unwrap().1, [7]);
/// });
///
/// // Nobody sends any more.
/// mpi::request::scope(|scope| {
///     let receive = any.immediate_receive_into(scope, &mut got[1..]);
///     receive.cancel();
///     assert!(receive.wait().is_cancelled());
/// });
/// ```
#[must_use = "a request that is dropped is taken back"]
pub struct Request<'a, D: ?Sized, S: Scope<'a> = StaticScope> {
    /// `None` once the operation is completed.
    request: Option<rt::Request>,
    data: *const D,
    scope: S,
    borrowed: PhantomData<Cell<&'a D>>,
}

impl<'a, D: ?Sized, S: Scope<'a>> fmt::Debug for Request<'a, D, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Request")
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> Request<'a, D, S> {
    /// A request of an operation on the memory of `data`.
    ///
    /// # Safety
    /// All buffers of the operation are borrowed for `'a`, those that it writes mutably.
    pub(crate) unsafe fn new(request: rt::Request, data: *const D, scope: S) -> Self {
        scope.register();
        Request { request: Some(request), data, scope, borrowed: PhantomData }
    }

    fn request(&self) -> &rt::Request {
        instance::enter();
        self.request.as_ref().expect("a request is gone once it is completed")
    }

    /// The operation is over, and its outcome taken.
    fn completed(mut self) -> &'a D {
        self.request = None;
        // SAFETY: the data are borrowed for 'a, and nothing writes them any more.
        unsafe { &*self.data }
    }

    /// What became of the operation, once it is over.
    fn outcome(self) -> Result<Status> {
        let outcome = self.request().wait();
        self.completed();
        outcome.into_result().map(Status)
    }

    /// The operation, which from now on belongs to no scope.
    ///
    /// # Safety
    /// The caller has it ended before `'a` does.
    unsafe fn into_parts(mut self) -> (rt::Request, *const D) {
        let request = self.request.take().expect("a request is gone once it is completed");
        (request, self.data)
    }

    /// Waits until the operation is over.
    ///
    /// # Errors
    /// That of the operation.
    pub fn try_wait(self) -> Result<Status> {
        tried(|| self.outcome())
    }

    /// Waits until the operation is over.
    #[track_caller]
    pub fn wait(self) -> Status {
        expect(self.outcome())
    }

    /// Waits until the operation is over.
    #[track_caller]
    pub fn wait_without_status(self) {
        self.wait();
    }

    /// Waits until the operation is over, and gives the data back.
    #[track_caller]
    pub fn wait_for_data(self) -> &'a D {
        let outcome = self.request().wait();
        let data = self.completed();
        expect(outcome.into_result());
        data
    }

    /// The status, if the operation is over.
    ///
    /// # Errors
    /// This request, if it is not.
    #[track_caller]
    pub fn test(self) -> Result<Status, Self> {
        self.test_with_data().map(|(status, _)| status)
    }

    /// The status and the data, if the operation is over.
    ///
    /// # Errors
    /// This request, if it is not.
    #[track_caller]
    pub fn test_with_data(self) -> Result<(Status, &'a D), Self> {
        let Some(outcome) = self.request().test() else { return Err(self) };
        let data = self.completed();
        Ok((Status(expect(outcome.into_result())), data))
    }

    /// Asks to cancel the operation, which is to be completed nevertheless.
    #[track_caller]
    pub fn cancel(&self) {
        expect(self.request().cancel());
    }

    /// This request as one of another scope, which ends earlier.
    pub fn shrink_scope_to<'b, S2: Scope<'b>>(self, scope: S2) -> Request<'b, D, S2>
    where
        'a: 'b,
    {
        // SAFETY: the operation belongs to the other scope at once, and its buffers are borrowed for longer than that needs.
        unsafe {
            let (request, data) = self.into_parts();
            Request::new(request, data, scope)
        }
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> Drop for Request<'a, D, S> {
    fn drop(&mut self) {
        if self.request.take().is_some_and(|request| !given_up(request)) {
            // It stays in its scope, which ends the process rather than let the memory go.
            return;
        }
        // SAFETY: the operation is over, taken back, or belongs to somebody else.
        unsafe { self.scope.unregister() }
    }
}

/// Takes an operation back, so that nothing touches its memory any more; false if that cannot be done now.
fn given_up(request: rt::Request) -> bool {
    match simulated::here() {
        // Then it waits for nobody.
        Some(rank) if rt::is_panicking() => rank.end(),
        None if rt::is_panicking() || !instance::is_allowed() => {
            std::mem::forget(request);
            return false;
        }
        _ => {}
    }
    drop(request);
    true
}
