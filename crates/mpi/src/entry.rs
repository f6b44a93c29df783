//! What the attributes `mpi::main` and `mpi::test` write for functions that are run as ranks. Not for use by hand.

use std::process::{ExitCode, Termination};

use crate::environment::{Threading, Universe, initialize_with_threading};
use crate::topology::SimpleCommunicator;

#[cfg(feature = "test")]
pub use crate::test_job::Test;

/// The argument of a function that is run as a rank.
#[diagnostic::on_unimplemented(
    message = "a function that is run as a rank has an argument `&mut Universe`, `&Universe` or `SimpleCommunicator`, or none",
    label = "not a `{Self}`"
)]
pub trait Argument<'u> {
    /// What the rank is given.
    fn of(universe: &'u mut Universe) -> Self;
}

impl<'u> Argument<'u> for &'u mut Universe {
    fn of(universe: &'u mut Universe) -> Self {
        universe
    }
}

impl<'u> Argument<'u> for &'u Universe {
    fn of(universe: &'u mut Universe) -> Self {
        universe
    }
}

impl<'u> Argument<'u> for SimpleCommunicator {
    fn of(universe: &'u mut Universe) -> Self {
        universe.world()
    }
}

/// Is a rank: begins MPI, runs the function, and ends MPI. If the function fails, MPI is not ended: the others may wait for this
/// rank, and the launcher ends the job when this process has ended.
///
/// # Panics
/// If MPI has begun before, or the job cannot be joined.
pub fn main<R: Termination>(threading: Threading, function: impl FnOnce(&mut Universe) -> R) -> ExitCode {
    let (mut universe, _) =
        initialize_with_threading(threading).expect("MPI has begun before: mpi::main does that");
    let code = function(&mut universe).report();
    if code != ExitCode::SUCCESS {
        std::mem::forget(universe);
    }
    code
}
