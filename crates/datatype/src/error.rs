//! What can be wrong with a datatype, or with an operation on one.

/// Why a datatype call was refused. The runtime maps each kind to an MPI error class.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A count or block length is negative (MPI_ERR_COUNT, or MPI_ERR_ARG for block lengths).
    #[error("{what} is {value}, but must not be negative")]
    Count {
        /// Which argument.
        what: &'static str,
        /// What was passed.
        value: i64,
    },
    /// An argument is outside what the call allows (MPI_ERR_ARG).
    #[error("{0}")]
    Arg(String),
    /// The datatype does not fit the call (MPI_ERR_TYPE).
    #[error("{0}")]
    Type(String),
    /// The operation is not defined for this datatype (MPI_ERR_OP).
    #[error("{op} is not defined for {ty}")]
    Op {
        /// The operation, for instance `MPI_BAND`.
        op: &'static str,
        /// The datatype, for instance `MPI_DOUBLE`.
        ty: String,
    },
    /// A size or displacement does not fit into 64 bits (MPI_ERR_ARG).
    #[error("{0} does not fit into 64 bits")]
    Overflow(&'static str),
    /// A value has no form in the other representation (MPI_ERR_CONVERSION).
    #[error("{0}")]
    Conversion(String),
    /// The bytes given are too few for what is to be read or written (MPI_ERR_TRUNCATE or MPI_ERR_BUFFER).
    #[error("{need} bytes are needed, but there are only {have}")]
    Space {
        /// Bytes needed.
        need: u64,
        /// Bytes there.
        have: u64,
    },
}
