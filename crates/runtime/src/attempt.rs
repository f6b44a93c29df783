//! Errors that unwind: how a face of the library whose calls return no errors gives them back ([`attempt`]). Devices that fail unwind by themselves.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use banyan_memory::DeviceFailure;

use crate::error::{Error, Result};

thread_local! {
    /// In how many attempts this thread is.
    static ATTEMPTS: Cell<usize> = const { Cell::new(0) };
    /// This thread unwinds with an error, up to the innermost attempt.
    static UNWINDS: Cell<bool> = const { Cell::new(false) };
}

/// What a thread unwinds with.
struct Failed(Error);

/// Calls the function; if it calls [`fail`], or a device fails, that ends it, and this gives the error. A panic goes on.
pub fn attempt<T>(function: impl FnOnce() -> T) -> Result<T> {
    let (outer, unwound) = (ATTEMPTS.get(), UNWINDS.get());
    ATTEMPTS.set(outer + 1);
    UNWINDS.set(false);
    let over = catch_unwind(AssertUnwindSafe(|| DeviceFailure::caught(function)));
    ATTEMPTS.set(outer);
    UNWINDS.set(unwound);
    match over {
        Ok(over) => over.map_err(|failure| Error::other(failure.what)),
        Err(panic) => match panic.downcast::<Failed>() {
            Ok(failed) => Err(failed.0),
            Err(panic) => resume_unwind(panic),
        },
    }
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
    let attempted = UNWINDS.get() || ATTEMPTS.get() > 0 && DeviceFailure::that_unwinds().is_some();
    std::thread::panicking() && !attempted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    /// Tells whether its thread panics when it is dropped.
    struct Dropped<'a>(&'a Cell<Option<bool>>);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            // What ends well in between, or fails by itself, changes nothing.
            assert_eq!(attempt(|| 7).unwrap(), 7);
            let failed = DeviceFailure { what: "another one".to_owned() };
            assert!(DeviceFailure::caught(|| failed.unwind()).is_err());
            self.0.set(Some(is_panicking()));
        }
    }

    fn fails() -> ! {
        DeviceFailure { what: "a copy has failed".to_owned() }.unwind()
    }

    #[test]
    fn a_device_that_fails_ends_an_attempt_with_an_error() {
        let panicking = Cell::new(None);
        let over = attempt(|| {
            let _dropped = Dropped(&panicking);
            attempt(|| fail(Error::other("the inner one"))).unwrap_or(());
            fails()
        });
        let error = over.unwrap_err();
        assert_eq!((error.class, error.what.as_str()), (Class::ERR_OTHER, "a copy has failed"));
        assert_eq!((panicking.get(), is_panicking()), (Some(false), false));
        assert_eq!(DeviceFailure::that_unwinds(), None);
        // Nobody attempts anything, or something else goes wrong: that is a panic.
        for failure in [fails as fn() -> !, || panic!("a bug")] {
            let over = catch_unwind(AssertUnwindSafe(|| {
                let _dropped = Dropped(&panicking);
                failure()
            }));
            assert!(over.is_err());
            assert_eq!(panicking.get(), Some(true));
        }
    }
}
