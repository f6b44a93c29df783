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
///
/// Two words without a gap: a status is copied from hand to hand, and copies of what was just written in parts wait for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    source: i32,
    tag: i32,
    /// Bytes of data, and [`CANCELLED`].
    bytes: u64,
}

/// The operation was cancelled.
const CANCELLED: u64 = 1 << 63;

/// Any source, or any tag.
const ANY: i32 = i32::MIN;
/// No process.
const NO_PROC: i32 = i32::MIN + 1;

impl Status {
    /// The empty status (MPI 5.0, 3.7.3): what completing a null or inactive request gives.
    pub const EMPTY: Status = Status::new(Source::Any, None, 0, false);
    /// The status of a receive from MPI_PROC_NULL.
    pub const NO_PROC: Status = Status::new(Source::ProcNull, None, 0, false);

    /// Where there was no message the source is any, and there is no tag.
    #[inline(always)]
    pub const fn new(source: Source, tag: Option<i32>, bytes: u64, cancelled: bool) -> Status {
        let source = match source {
            Source::Rank(rank) => rank,
            Source::Any => ANY,
            Source::ProcNull => NO_PROC,
        };
        let tag = match tag {
            Some(tag) => tag,
            None => ANY,
        };
        Status::packed(source, tag, bytes, cancelled)
    }

    #[inline(always)]
    const fn packed(source: i32, tag: i32, bytes: u64, cancelled: bool) -> Status {
        Status { source, tag, bytes: if cancelled { bytes | CANCELLED } else { bytes } }
    }

    /// The sender; any in an empty status.
    #[inline(always)]
    pub fn source(&self) -> Source {
        match self.source {
            ANY => Source::Any,
            NO_PROC => Source::ProcNull,
            rank => Source::Rank(rank),
        }
    }

    /// Tag of the message; `None` is any (MPI_ANY_TAG), where there was no message.
    #[inline(always)]
    pub fn tag(&self) -> Option<i32> {
        (self.tag != ANY).then_some(self.tag)
    }

    /// Bytes of data received.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        self.bytes & !CANCELLED
    }

    /// True if the operation was cancelled.
    #[inline(always)]
    pub fn is_cancelled(&self) -> bool {
        self.bytes & CANCELLED != 0
    }
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
    pub(crate) fn of(completion: Completion, received: bool) -> Self {
        let Completion { source, tag, bytes, cancelled, fault } = completion;
        let (source, tag) = if received { (source as i32, tag) } else { (ANY, ANY) };
        let status = Status::packed(source, tag, bytes, cancelled);
        Self { status, error: fault.map(|fault| Error::of_message(&fault)) }
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
