//! Scopes: how long the buffers of requests are borrowed.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::instance;

/// How long the buffers of a request are borrowed: for `'a`.
///
/// # Safety
/// No program implements it: what uses requests relies on what the scopes of this crate do.
pub unsafe trait Scope<'a> {
    /// A request belongs to the scope.
    fn register(&self);

    /// A request does not belong to the scope any more.
    ///
    /// # Safety
    /// It did, and nothing touches its buffers any more, or somebody else answers for them.
    unsafe fn unregister(&self);
}

/// The whole program: buffers are borrowed for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StaticScope;

// SAFETY: static buffers outlive all requests.
unsafe impl Scope<'static> for StaticScope {
    fn register(&self) {}

    unsafe fn unregister(&self) {}
}

/// A part of the program, made by [`scope()`].
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
pub fn scope<'a, F, R>(f: F) -> R
where
    F: FnOnce(&LocalScope<'a>) -> R,
{
    f(&LocalScope::new())
}
