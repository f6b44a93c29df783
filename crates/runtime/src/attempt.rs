//! Errors that unwind: how a face of the library whose calls return no errors gives them back ([`attempt`]).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::error::{Error, Result};

thread_local! {
    /// In how many attempts this thread is.
    static ATTEMPTS: Cell<usize> = const { Cell::new(0) };
    /// This thread unwinds with an error, up to the innermost attempt.
    static UNWINDS: Cell<bool> = const { Cell::new(false) };
}

/// What a thread unwinds with.
struct Failed(Error);

/// Calls the function; if it calls [`fail`], that ends it, and this gives the error. A panic goes on.
pub fn attempt<T>(function: impl FnOnce() -> T) -> Result<T> {
    let (outer, unwound) = (ATTEMPTS.get(), UNWINDS.get());
    ATTEMPTS.set(outer + 1);
    UNWINDS.set(false);
    let over = catch_unwind(AssertUnwindSafe(function));
    ATTEMPTS.set(outer);
    UNWINDS.set(unwound);
    over.or_else(|panic| match panic.downcast::<Failed>() {
        Ok(failed) => Err(failed.0),
        Err(panic) => resume_unwind(panic),
    })
}

/// Ends the innermost [`attempt`] of this thread with an error. Without one it panics with the error's sentence.
#[cold]
#[track_caller]
pub fn fail(error: Error) -> ! {
    if ATTEMPTS.get() == 0 {
        panic!("{error}");
    }
    UNWINDS.set(true);
    resume_unwind(Box::new(Failed(error)))
}

/// Whether this thread panics. With an error that unwinds it does not: then nobody is inside the engine, and requests that are dropped
/// are taken back.
pub fn is_panicking() -> bool {
    std::thread::panicking() && !UNWINDS.get()
}
