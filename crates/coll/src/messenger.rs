//! What a schedule is carried out with: messages ([`Messenger`]) and shared memory ([`Slots`]). The runtime
//! implements both; this crate only drives them.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use thiserror::Error;

use crate::ledger::{AT_TAG, Said, differ};

/// Names an operation that was started on a [`Messenger`] until it is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub u64);

/// Which message of which collective: both sides derive the same key. The context id of the communicator is
/// added by the runtime. Messages of one pair with equal keys match in the order they were started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// The collective on this communicator: the lower half of its number, and the tag of what it is about.
    pub seq: u32,
    /// The message within the collective, between one sender and one receiver.
    pub step: u32,
}

/// Why a collective, or one message of it, failed. Ranks are those of the communicator.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A message is not as long as the receiver's arguments say (MPI_ERR_TRUNCATE).
    #[error("rank {from} sent {sent} bytes where this rank's arguments say {room}")]
    Length {
        /// The sender.
        from: u32,
        /// Bytes that came.
        sent: u64,
        /// Bytes expected.
        room: u64,
    },
    /// A rank that takes part is gone.
    #[error("rank {rank} is gone: {cause}")]
    Gone {
        /// Who.
        rank: u32,
        /// What the fabric said.
        cause: String,
    },
    /// The kernel refused to copy out of memory that a rank published.
    #[error(
        "this rank could not read the memory that rank {rank} lent it for this collective: rank {rank} has given the \
         collective up after an error, or the system refuses process_vm_readv to this rank (a filter of system calls, \
         another user); in the latter case name no algorithm `pull` in BANYAN_COLL, but others (bcast=board, allreduce=board)"
    )]
    Unreadable {
        /// Who published it.
        rank: u32,
    },
    /// What this rank gives another one, nobody takes (MPI_ERR_TRUNCATE).
    #[error(
        "rank {to} is through with this collective, and takes nothing of the {sent} bytes that this rank's arguments give it"
    )]
    Unwanted {
        /// The receiver.
        to: u32,
        /// Bytes given.
        sent: u64,
    },
    /// Two ranks called what does not go together.
    #[error("{}", differ(said))]
    Differ {
        /// The two, in the order of ranks.
        said: [Said; 2],
    },
    /// Two ranks call alike, but did not before.
    #[error(
        "ranks {} and {} call the same now, but collectives on this communicator before this one were not the same on \
         both, so that they are out of step since",
        ranks[0], ranks[1]
    )]
    OutOfStep {
        /// The two, in the order of ranks.
        ranks: [u32; 2],
    },
    /// A rank gave this collective up.
    #[error(
        "rank {rank} takes no part in this collective any more, after an error of its own or as it has freed the \
         communicator, and this rank needs it"
    )]
    Left {
        /// Who.
        rank: u32,
    },
    /// Operator and datatype do not fit together (MPI_ERR_OP).
    #[error("{0}")]
    Operator(String),
}

/// Point-to-point messages of collectives; ranks are those of the communicator.
pub trait Messenger {
    /// Starts a send. `None`: complete already, the bytes are copied. Otherwise the memory behind `data` must
    /// stay, unchanged, until the operation is over.
    fn send(&mut self, to: u32, key: Key, data: &Data) -> Option<OpId>;

    /// Starts a receive into the memory behind `data`.
    fn recv(&mut self, from: u32, key: Key, data: &Data) -> OpId;

    /// `None`: still under way. `Some`: over, with the bytes moved; the id is gone then. From whom a message of a wrong
    /// length came need not be said.
    fn poll(&mut self, op: OpId) -> Option<Result<u64, Fault>>;

    /// True if the other side of an operation under way has come to it.
    fn met(&mut self, op: OpId) -> bool;

    /// Gives an operation up: the id is gone, and its memory is not touched any more. Called for what is
    /// still under way when a collective fails.
    fn cancel(&mut self, op: OpId);

    /// The communicator's shared slots, if its [`Facts`](crate::Facts) say that it has them.
    fn slots(&mut self) -> Option<&mut dyn Slots>;
}

/// What a rank published.
pub enum Published {
    /// The bytes, in shared memory, valid until this rank releases the stamp.
    Inline(Buffer),
    /// That many bytes somewhere in the publisher's memory, to be [pulled](Slots::pull).
    Region(u64),
}

/// The part of a stamp that counts.
#[inline(always)]
pub fn order_of(stamp: u64) -> u64 {
    stamp & ((1 << AT_TAG) - 1)
}

/// Shared memory of a communicator whose ranks all are on one node: a slot per rank with some [banks](Slots::banks), used in
/// turn by the stamps.
///
/// The upper 16 bits of a stamp that something is published under tell calls apart that all must make alike; what is said of
/// order is about the [rest](order_of). Stamps that are released have no such bits.
///
/// Stamps count the phases of the communicator's collectives in shared form from 1, the same at all ranks.
/// A rank publishes stamp `s` only after every rank released `s - banks`, and works on one collective at a time
/// (it touches nothing before it released all stamps of the one before), so a rank that published `s` has
/// released all stamps of earlier collectives. This crate sees to both; the runtime need not. What it must see
/// to: who sleeps until a rank publishes or releases is woken by that.
pub trait Slots {
    /// How many publications of a rank may be there at a time: by so many a rank that waits for nobody may be ahead.
    fn banks(&self) -> u64;

    /// How many bytes a publication can carry inline.
    fn inline_bytes(&self) -> usize;

    /// Copies `len` bytes (at most [`Slots::inline_bytes`]) from offset `at` of `data` into my slot's bank of `stamp`, then
    /// stamps it.
    fn publish(&mut self, stamp: u64, data: &Buffer, at: isize, len: usize);

    /// My slot's bank of `stamp`, to be filled before [`Slots::publish_bank`].
    fn bank(&mut self, stamp: u64) -> Buffer;

    /// Stamps my slot's bank of `stamp`, all of it, with what was put there.
    fn publish_bank(&mut self, stamp: u64);

    /// Publishes address and length of `data`, for others to pull.
    fn publish_region(&mut self, stamp: u64, data: &Buffer);

    /// Takes back the regions that I published under `first` to `last`, although others may still pull them: from now on
    /// that is refused, and nothing reads their memory for what was published.
    fn revoke_regions(&mut self, first: u64, last: u64);

    /// What `rank` (maybe myself) published under `stamp`; `None` until it has, and if that was for another call: all bits
    /// count. It is only asked for after the rank has published under that stamp, or will, and before it is released.
    fn look(&mut self, rank: u32, stamp: u64) -> Option<Published>;

    /// Copies `into.len()` bytes from offset `at` of the region that `rank` published. `false`: refused.
    fn pull(&mut self, rank: u32, stamp: u64, at: u64, into: &Buffer) -> bool;

    /// I am done with everything published up to and including `stamp`.
    fn release(&mut self, stamp: u64);

    /// Up to which stamp `rank` (maybe myself) has released; 0 at first.
    fn released(&mut self, rank: u32) -> u64;

    /// What I release from `first` to `last` does not say that I have got there: I have given up. Before the release.
    fn void(&mut self, first: u64, last: u64);

    /// True if `rank` has released `stamp` because it got there.
    fn reached(&mut self, rank: u32, stamp: u64) -> bool;

    /// Memory that all ranks of the communicator share besides the slots; their releases tell whose turn it is.
    fn board(&mut self) -> Buffer;

    /// True if every rank can pull regions of every other: all ranks agree on it.
    fn can_pull_regions(&self) -> bool;
}
