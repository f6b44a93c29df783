//! [`Errhandler`]: what is done about the errors of an object (MPI 5.0, 9.3).

use std::any::Any;
use std::sync::Arc;

/// An error handler. The runtime only keeps it; the language binding that the user calls acts on it.
#[derive(Clone, Default, Debug)]
pub enum Errhandler {
    /// MPI_ERRORS_ARE_FATAL: end the whole job.
    #[default]
    Fatal,
    /// MPI_ERRORS_ABORT: end the processes of the communicator.
    Abort,
    /// MPI_ERRORS_RETURN: return the code.
    Return,
    /// A function of the user, in the form of the language binding that made it.
    User(Arc<dyn Any + Send + Sync>),
}
