//! Why a segment cannot be used.

use std::io;

/// Why [`Shm::attach`](crate::Shm::attach) failed.
#[derive(Debug)]
pub enum Error {
    /// The memory is smaller than this number of ranks needs.
    TooSmall {
        /// Its size, bytes.
        size: usize,
        /// The least size, bytes.
        need: usize,
    },
    /// Another program, or another version of this one, uses the memory.
    Foreign {
        /// Its first word.
        found: u64,
    },
    /// Other processes use the memory for another number of ranks.
    Ranks {
        /// Their number of ranks.
        found: u32,
        /// This process's number of ranks.
        expected: u32,
    },
    /// The index is not below the number of ranks.
    Index {
        /// The index.
        me: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// A process is attached with this local index already.
    Occupied {
        /// The local index.
        me: u32,
        /// Its process id.
        pid: u32,
    },
    /// A system call failed.
    System {
        /// Name of the call.
        what: &'static str,
        /// Its error.
        cause: io::Error,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::TooSmall { size, need } => {
                write!(f, "the node's shared memory has {size} bytes and needs {need}")
            }
            Error::Foreign { found } => {
                write!(f, "the node's shared memory is in use by another version or program ({found:#x})")
            }
            Error::Ranks { found, expected } => {
                write!(f, "the node's shared memory is in use by {found} ranks, not {expected}")
            }
            Error::Index { me, ranks } => write!(f, "there is no local rank {me} among {ranks}"),
            Error::Occupied { me, pid } => write!(f, "process {pid} is already local rank {me}"),
            Error::System { what, cause } => write!(f, "{what} for the node's shared memory failed: {cause}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
