//! Scopes: how long the buffers of requests are borrowed.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::instance;

/// How long the buffers of a request are borrowed: for `'a`.
///
/// ```
/// use mpi::request::{Request, Scope};
/// use mpi::traits::*;
///
/// fn send<'a, S: Scope<'a>>(to: &impl Destination, scope: S, text: &'a str) -> Request<'a, [u8], S> {
///     to.immediate_send(scope, text.as_bytes())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// mpi::request::scope(|scope| send(&world.this_process(), scope, "hello").wait());
/// assert_eq!(world.any_process().receive_vec::<u8>().0, b"hello");
/// ```
///
/// # Safety
/// No program implements it: what uses requests relies on what the scopes of this crate do.
pub unsafe trait Scope<'a> {
    /// A request belongs to the scope.
    #[doc(hidden)]
    fn register(&self);

    /// A request does not belong to the scope any more.
    ///
    /// # Safety
    /// It did, and nothing touches its buffers any more, or somebody else answers for them.
    #[doc(hidden)]
    unsafe fn unregister(&self);
}

/// The whole program: buffers are borrowed for good.
///
/// ```
/// use mpi::request::StaticScope;
/// use mpi::traits::*;
///
/// static GREETING: [u8; 5] = *b"hello";
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let send = world.this_process().immediate_send(StaticScope, &GREETING);
/// assert_eq!(world.any_process().receive_vec::<u8>().0, GREETING);
/// send.wait();
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StaticScope;

// SAFETY: static buffers outlive all requests.
unsafe impl Scope<'static> for StaticScope {
    fn register(&self) {}

    unsafe fn unregister(&self) {}
}

/// A part of the program, made by [`scope()`].
///
/// ```
/// use mpi::request::LocalScope;
/// use mpi::traits::*;
///
/// /// Sends some numbers, and receives as many.
/// fn exchange<'a>(scope: &LocalScope<'a>, me: &(impl Destination + Source), given: &'a [i32], got: &'a mut [i32]) {
///     let receive = me.immediate_receive_into(scope, got);
///     me.immediate_send(scope, given).wait();
///     receive.wait();
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut got = [0; 2];
/// mpi::request::scope(|scope| exchange(scope, &world.this_process(), &[1, 2], &mut got));
/// assert_eq!(got, [1, 2]);
/// ```
#[derive(Debug)]
pub struct LocalScope<'a> {
    requests: Cell<usize>,
    // The lifetime must not be shortened.
    borrowed: PhantomData<Cell<&'a ()>>,
}

impl LocalScope<'_> {
    pub(super) fn new() -> Self {
        LocalScope { requests: Cell::new(0), borrowed: PhantomData }
    }
}

impl Drop for LocalScope<'_> {
    fn drop(&mut self) {
        if self.requests.get() != 0 {
            instance::abort(
                "a scope ends while a request of it is under way, which was leaked, or dropped in a panic: its buffers must \
                 not go before it is over",
            );
        }
    }
}

// SAFETY: what makes a `LocalScope` keeps it until it has no requests, or ends the process; 'a is longer than that.
unsafe impl<'a> Scope<'a> for &LocalScope<'a> {
    fn register(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    unsafe fn unregister(&self) {
        self.requests.set(self.requests.get() - 1);
    }
}

/// Calls the function with a scope for requests, whose buffers live longer than the call.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let given = 7;
/// let got = mpi::request::scope(|scope| {
///     let send = world.this_process().immediate_send(scope, &given);
///     let (got, _) = world.any_process().receive::<i32>();
///     send.wait();
///     got
/// });
/// assert_eq!(got, 7);
/// ```
pub fn scope<'a, F, R>(f: F) -> R
where
    F: FnOnce(&LocalScope<'a>) -> R,
{
    f(&LocalScope::new())
}
