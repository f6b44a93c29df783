//! Errors: the runtime's, and what a call does about one that it does not return.

use crate::instance;
pub use banyan_runtime::{Class as ErrorClass, Error, Result};

/// Calls the function, and gives what it gives; or the error of the first MPI call in it that fails, which ends it there.
///
/// So all calls return their errors, also those that have no form `try_...`. Without it they panic. What the function was in the middle of
/// is left as by an early `return`: its values are dropped, requests are taken back. A panic that is no error of MPI goes on. The
/// [`crate::environment::Universe`] is to live longer than the function: if an error drops it, the job ends. Of attempts within each other
/// the innermost one gets the error. Where a panic ends the process (`panic = "abort"`), so does an error.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let error = mpi::attempt(|| {
///     let row = world.create_cartesian_communicator(&[-1], &[true], false).unwrap();
///     row.process_at_rank(0).send(&7);
/// })
/// .unwrap_err();
/// assert_eq!(error.class, mpi::ErrorClass::ERR_DIMS);
/// ```
///
/// # Errors
/// That of the first call which fails.
pub fn attempt<T>(function: impl FnOnce() -> T) -> Result<T> {
    banyan_runtime::attempt(function)
}

/// What a form `try_...` does: an [`attempt`] at a call that returns most of its errors. So a device that fails in it is an error, too.
pub(crate) fn tried<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    attempt(call)?
}

/// The value, or what [`fail`] does: for calls that do not return errors.
#[track_caller]
#[inline(always)]
pub(crate) fn expect<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(error),
    }
}

/// Ends the attempt that this thread is in, or panics.
#[cold]
#[track_caller]
pub(crate) fn fail(error: Error) -> ! {
    instance::leave_if_ended();
    banyan_runtime::fail(error)
}

/// Fails with an error of this class and sentence.
macro_rules! raise {
    ($class:ident, $($message:tt)*) => {
        $crate::error::fail($crate::Error::new($crate::ErrorClass::$class, format!($($message)*)))
    };
}
