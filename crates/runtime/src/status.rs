//! [`Status`] of a finished operation, and the limit of tags.

use banyan_p2p::Completion;

use crate::error::{Class, Error};

/// Largest tag (MPI_TAG_UB).
pub const TAG_UB: i32 = 0x3fff_ffff;

/// The process that a message comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The process of this rank: of the other group, if there are two.
    Rank(i32),
    /// Any process (MPI_ANY_SOURCE).
    Any,
    /// No process (MPI_PROC_NULL): a receive is over at once and moves nothing.
    ProcNull,
}

/// What became of a message (MPI 5.0, 3.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The sender; any in an empty status.
    pub source: Source,
    /// Tag of the message; `None` is any (MPI_ANY_TAG), where there was no message.
    pub tag: Option<i32>,
    /// Bytes of data received.
    pub bytes: u64,
    /// The operation was cancelled.
    pub cancelled: bool,
}

impl Status {
    /// The empty status (MPI 5.0, 3.7.3): what completing a null or inactive request gives.
    pub const EMPTY: Status = Status { source: Source::Any, tag: None, bytes: 0, cancelled: false };
    /// The status of a receive from MPI_PROC_NULL.
    pub const NO_PROC: Status = Status { source: Source::ProcNull, tag: None, bytes: 0, cancelled: false };
}

/// How an operation ended: its status, and the error if there was one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Valid also when there was an error (source and tag of a truncated message).
    pub status: Status,
    /// What went wrong.
    pub error: Option<Error>,
}

impl Outcome {
    /// An operation that went well.
    #[inline]
    pub fn ok(status: Status) -> Self {
        Self { status, error: None }
    }

    /// The outcome of a message; only that of a receive has a source and a tag.
    #[inline(always)]
    pub(crate) fn of(completion: &Completion, received: bool) -> Self {
        let Completion { source, tag, bytes, cancelled, ref fault } = *completion;
        let status = match received {
            true => Status { source: Source::Rank(source as i32), tag: Some(tag), bytes, cancelled },
            false => Status { bytes, cancelled, ..Status::EMPTY },
        };
        Self { status, error: fault.as_ref().map(Error::of_message) }
    }

    /// An operation that failed without a message to tell of.
    pub fn failed(error: Error) -> Self {
        Self { status: Status::EMPTY, error: Some(error) }
    }

    /// The status, or the error.
    pub fn into_result(self) -> Result<Status, Error> {
        match self.error {
            None => Ok(self.status),
            Some(error) => Err(error),
        }
    }

    /// Class of the error, or success.
    #[inline]
    pub fn class(&self) -> Class {
        self.error.as_ref().map_or(Class::SUCCESS, |error| error.class)
    }
}
