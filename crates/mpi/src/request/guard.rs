//! Guards: requests that are completed when they are dropped.

use super::{Request, Scope, StaticScope};

/// A request that is waited for when this is dropped.
///
/// ```
/// use mpi::request::WaitGuard;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut got = 0;
/// mpi::request::scope(|scope| {
///     let _receive: WaitGuard<'_, _, _> = world.any_process().immediate_receive_into(scope, &mut got).into();
///     world.this_process().send(&7);
/// });
/// assert_eq!(got, 7);
/// ```
#[derive(Debug)]
pub struct WaitGuard<'a, D: ?Sized, S: Scope<'a> = StaticScope>(Option<Request<'a, D, S>>);

impl<'a, D: ?Sized, S: Scope<'a>> Drop for WaitGuard<'a, D, S> {
    fn drop(&mut self) {
        // In a panic the peer may never do its part: then the request's own end decides.
        if let Some(request) = self.0.take().filter(|_| !std::thread::panicking()) {
            request.wait();
        }
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> From<WaitGuard<'a, D, S>> for Request<'a, D, S> {
    fn from(mut guard: WaitGuard<'a, D, S>) -> Self {
        guard.0.take().expect("a guard has its request until it is dropped")
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> From<Request<'a, D, S>> for WaitGuard<'a, D, S> {
    fn from(request: Request<'a, D, S>) -> Self {
        WaitGuard(Some(request))
    }
}

/// A request that is cancelled and waited for when this is dropped.
///
/// ```
/// use mpi::request::CancelGuard;
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut got = 0;
/// mpi::request::scope(|scope| {
///     // Nobody sends.
///     let _receive = CancelGuard::from(world.any_process().immediate_receive_into(scope, &mut got));
/// });
/// assert_eq!(got, 0);
/// ```
#[derive(Debug)]
pub struct CancelGuard<'a, D: ?Sized, S: Scope<'a> = StaticScope>(Option<WaitGuard<'a, D, S>>);

impl<'a, D: ?Sized, S: Scope<'a>> Drop for CancelGuard<'a, D, S> {
    fn drop(&mut self) {
        if let Some(request) = self.0.as_ref().and_then(|guard| guard.0.as_ref())
            && !std::thread::panicking()
        {
            request.cancel();
        }
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> From<CancelGuard<'a, D, S>> for WaitGuard<'a, D, S> {
    fn from(mut guard: CancelGuard<'a, D, S>) -> Self {
        guard.0.take().expect("a guard has its request until it is dropped")
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> From<WaitGuard<'a, D, S>> for CancelGuard<'a, D, S> {
    fn from(guard: WaitGuard<'a, D, S>) -> Self {
        CancelGuard(Some(guard))
    }
}

impl<'a, D: ?Sized, S: Scope<'a>> From<Request<'a, D, S>> for CancelGuard<'a, D, S> {
    fn from(request: Request<'a, D, S>) -> Self {
        WaitGuard::from(request).into()
    }
}
