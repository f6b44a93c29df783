//! Errors: the runtime's, and what a call does about one that it does not return.

use crate::instance;
pub use banyan_runtime::{Class as ErrorClass, Error, Result};

/// The value, or a panic with the error's sentence: for calls that do not return errors.
#[track_caller]
#[inline(always)]
pub(crate) fn expect<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(&error),
    }
}

#[cold]
#[track_caller]
fn fail(error: &Error) -> ! {
    instance::leave_if_ended();
    panic!("{error}")
}
