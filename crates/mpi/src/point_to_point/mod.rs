//! Messages from one process to another.
//!
//! ```
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let world = universe.world();
//! mpi::request::scope(|scope| {
//!     let send = world.this_process().immediate_send_with_tag(scope, &[1u8, 2, 3], 5);
//!     let (bytes, status) = world.any_process().receive_vec::<u8>();
//!     assert_eq!((&bytes[..], status.tag()), (&[1, 2, 3][..], 5));
//!     send.wait();
//! });
//! ```

mod destination;
mod exchange;
mod message;
mod source;

pub use crate::request::ReceiveFuture;
pub use destination::Destination;
pub use exchange::{
    send_receive, send_receive_into, send_receive_into_with_tags, send_receive_replace_into,
    send_receive_replace_into_with_tags, send_receive_with_tags,
};
pub use message::{MatchedReceiveVec, Message};
pub use source::Source;

use std::fmt;
use std::mem::MaybeUninit;

use banyan_datatype::Data;
use banyan_runtime::{self as rt, Outcome, bail};

use crate::datatype::{AsObject, Datatype, Equivalence, uninitialized};
use crate::error::Result;
use crate::topology::{ANY_SOURCE, PROC_NULL, Rank};
use crate::{Count, Tag};

/// The traits of messages.
pub mod traits {
    pub use super::{Destination, MatchedReceiveVec, Source};
}

/// What names any tag (MPI_ANY_TAG).
pub(crate) const ANY_TAG: Tag = -2;
/// No number of elements (MPI_UNDEFINED).
const UNDEFINED: Count = -32766;

/// What became of a message.
///
/// ```
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let me = world.this_process();
/// me.send_with_tag(&[1.0f32, 2.0], 5);
/// let status: mpi::point_to_point::Status = me.probe();
/// assert_eq!((status.source_rank(), status.tag(), status.is_cancelled()), (0, 5, false));
/// assert_eq!(status.count(f32::equivalent_datatype()), 2);
/// assert_eq!(status.elements(u64::equivalent_datatype()), Some(1));
/// # me.receive_vec::<f32>();
/// ```
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct Status(pub(crate) rt::Status);

impl Status {
    /// Who has sent it.
    pub fn source_rank(&self) -> Rank {
        match self.0.source() {
            rt::Source::Rank(rank) => rank,
            rt::Source::Any => ANY_SOURCE,
            rt::Source::ProcNull => PROC_NULL,
        }
    }

    /// Its tag.
    pub fn tag(&self) -> Tag {
        self.0.tag().unwrap_or(ANY_TAG)
    }

    /// How many elements it has; negative (MPI_UNDEFINED) if its end is within one, or a [`Count`] cannot tell.
    pub fn count<D: Datatype>(&self, d: D) -> Count {
        self.elements(d).and_then(|elements| elements.try_into().ok()).unwrap_or(UNDEFINED)
    }

    /// How many elements it has; `None` if its end is within one.
    pub fn elements<D: Datatype>(&self, d: D) -> Option<u64> {
        match (self.0.bytes(), d.object().size()) {
            (_, 0) => Some(0),
            (bytes, size) => (bytes % size == 0).then_some(bytes / size),
        }
    }

    /// Whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Refuses a message that is not one value of the type.
    pub(crate) fn is_one<T: Equivalence>(&self) -> Result<()> {
        let (bytes, size) = (self.0.bytes(), T::equivalent_datatype().object().size());
        if bytes != size {
            bail!(ERR_TRUNCATE, "the message has {bytes} bytes, but a value that is received has {size}");
        }
        Ok(())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source_rank, tag) = (self.source_rank(), self.tag());
        f.debug_struct("Status").field("source_rank", &source_rank).field("tag", &tag).finish()
    }
}

fn source_of(rank: Rank) -> rt::Source {
    match rank {
        ANY_SOURCE => rt::Source::Any,
        PROC_NULL => rt::Source::ProcNull,
        rank => rt::Source::Rank(rank),
    }
}

fn dest_of(rank: Rank) -> rt::Dest {
    if rank == PROC_NULL { rt::Dest::ProcNull } else { rt::Dest::Rank(rank) }
}

fn tag_of(tag: Tag) -> Option<i32> {
    (tag != ANY_TAG).then_some(tag)
}

/// Receives one value.
fn one<T: Equivalence>(receive: impl FnOnce(&Data) -> Outcome) -> Result<(T, Status)> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the receive is over when it returns.
    let status = Status(receive(&unsafe { uninitialized(value.as_mut_ptr(), 1) }).into_result()?);
    status.is_one::<T>()?;
    // SAFETY: all of the value was received.
    Ok((unsafe { value.assume_init() }, status))
}

/// Receives a message that was probed, of any number of values.
fn several<T: Equivalence>(
    probed: Status,
    receive: impl FnOnce(&Data) -> Outcome,
) -> Result<(Vec<T>, Status)> {
    let Some(count) = probed.elements(T::equivalent_datatype()) else {
        let size = T::equivalent_datatype().object().size();
        bail!(
            ERR_TRUNCATE,
            "the message has {} bytes, no multiple of {size}: its values are not of this type",
            probed.0.bytes()
        )
    };
    let mut values = Vec::<T>::with_capacity(count as usize);
    // SAFETY: there is room for so many, and the receive is over when it returns.
    let status = Status(receive(&unsafe { uninitialized(values.as_mut_ptr(), count) }).into_result()?);
    // SAFETY: the probe told how many there are, and all of them were received.
    unsafe { values.set_len(count as usize) };
    Ok((values, status))
}
