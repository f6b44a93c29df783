//! The means that a schedule is carried out with: messages ([`Messenger`]) and shared memory ([`SharedBuffers`]). The
//! runtime implements both; this crate only drives them.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use thiserror::Error;

use crate::ledger::{AT_TAG, About, Said, differ};

/// Identifies an operation that was started on a [`Messenger`], until it is over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub u64);

/// Which message of which collective: both ends derive equal keys. The runtime adds the context id of the
/// communicator. Messages of one pair with equal keys match in the order in which they were started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Which collective on this communicator: the lower 16 bits of its number, and its tag.
    pub call: u32,
    /// Which message of the collective, between one sender and one receiver.
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
        /// The rank that is gone.
        rank: u32,
        /// What the fabric said.
        cause: String,
    },
    /// The kernel refused to copy out of memory that a rank exposed.
    #[error(
        "this rank could not read the memory that rank {rank} exposed for this collective: rank {rank} has given the \
         collective up after an error, or the system refuses process_vm_readv to this rank (a filter of system calls, \
         another user); in the latter case do not ask for an algorithm `single_copy` in BANYAN_COLL, but for others \
         (bcast=scratch_pipeline, allreduce=scratch_ring)"
    )]
    Unreadable {
        /// The rank that exposed it.
        rank: u32,
    },
    /// Data that this rank sends are not received (MPI_ERR_TRUNCATE).
    #[error(
        "rank {to} has finished this collective without receiving the {sent} bytes that this rank's arguments send to it"
    )]
    Unwanted {
        /// The receiver.
        to: u32,
        /// Bytes that this rank sends.
        sent: u64,
    },
    /// Two ranks made calls that do not go together.
    #[error("{}", differ(said))]
    Differ {
        /// What each of the two called, in the order of ranks.
        said: [Said; 2],
    },
    /// Two ranks make the same call, but made different ones before.
    #[error(
        "ranks {} and {} call the same now, but earlier collectives on this communicator were not the same on both, so that \
         they are out of step since",
        ranks[0], ranks[1]
    )]
    OutOfStep {
        /// The two, in the order of ranks.
        ranks: [u32; 2],
    },
    /// A rank gave up this collective, which this rank cannot complete alone.
    #[error(
        "rank {rank} takes no part in this collective any more, after an error of its own or because it has freed the \
         communicator, and this rank cannot complete the collective without it"
    )]
    Left {
        /// The rank that gave it up.
        rank: u32,
    },
    /// A device has not done its part for this rank.
    #[error("{} has failed at rank {}, where a device did not do its part: {what}", said.about, said.rank)]
    Device {
        /// This rank, and its call. A [`Messenger`] knows neither ([`Fault::device`]).
        said: Said,
        /// What the device has not done, why, and what to do.
        what: String,
    },
    /// Operator and datatype do not fit together (MPI_ERR_OP).
    #[error("{0}")]
    Operator(String),
}

impl Fault {
    /// A device has not done its part of a message.
    pub fn device(what: String) -> Fault {
        Fault::Device { said: Said { rank: u32::MAX, about: About::default() }, what }
    }

    /// The same fault, where what it says of other ranks is said of those that they are called.
    pub(crate) fn renamed(self, name: impl Fn(u32) -> u32) -> Fault {
        match self {
            Fault::Length { from, sent, room } => Fault::Length { from: name(from), sent, room },
            Fault::Unreadable { rank } => Fault::Unreadable { rank: name(rank) },
            other => other,
        }
    }
}

/// Point-to-point messages of collectives; ranks are those of the communicator.
pub trait Messenger {
    /// The shared buffers, where ranks have some.
    type Shared: SharedBuffers;

    /// True if a message of so many bytes to or from this rank had better be given memory of a device itself than the host's copy of it:
    /// devices copy between both processes, or a network's device goes to it.
    fn moves_devices(&mut self, _rank: u32, _bytes: u64) -> bool {
        false
    }

    /// Starts a send. `None`: it is complete already, the bytes are copied. Otherwise the memory behind `data` must
    /// stay, unchanged, until the operation is over. Where a device fails before there is an operation, this unwinds
    /// ([`banyan_memory::DeviceFailure`]).
    fn send(&mut self, to: u32, key: Key, data: &Data) -> Option<OpId>;

    /// Starts a receive into the memory behind `data`.
    fn recv(&mut self, from: u32, key: Key, data: &Data) -> OpId;

    /// `None`: the operation is still under way. `Some`: it is over, and this many bytes were moved; its id is invalid
    /// from then on. A [`Fault::Length`] need not name the right sender.
    fn poll(&mut self, op: OpId) -> Option<Result<u64, Fault>>;

    /// True if the peer of an operation under way has started its side of it.
    fn met(&mut self, op: OpId) -> bool;

    /// Gives an operation up: its id is invalid, and its memory is not touched any more. Called for every operation
    /// that is still under way when a collective fails.
    fn cancel(&mut self, op: OpId);

    /// The communicator's shared buffers, if its [`Topology`](crate::Topology) says that it has them.
    fn shared(&mut self) -> Option<&mut Self::Shared>;
}

/// A publication of a rank.
pub enum Published {
    /// The bytes, in shared memory, valid until this rank acknowledges the sequence number.
    Inline(Buffer),
    /// An exposed range of that many bytes in the publisher's memory, to be copied by [`SharedBuffers::get`].
    Exposed(u64),
}

/// A sequence number without its tag: the part that counts up.
#[inline(always)]
pub fn order_of(seq: u64) -> u64 {
    seq & ((1 << AT_TAG) - 1)
}

/// Shared memory of a communicator whose ranks all are on one node: a CICO buffer per rank with some
/// [cells](SharedBuffers::cells), used in turn by the sequence numbers.
///
/// A rank publishes under a sequence number whose upper 16 bits are the *call tag*, which tells calls apart that
/// all ranks must make alike. Wherever an order of sequence numbers is meant, it is that of the [lower bits](order_of).
/// Ranks acknowledge sequence numbers without tag.
///
/// Sequence numbers count the phases of those collectives of the communicator that use shared memory, from 1, alike at
/// all ranks. A rank publishes under sequence number `s` only after every rank has acknowledged `s - cells`
/// ([more](SharedBuffers::cells_for) for few bytes), and works on one collective at a time (it touches nothing before it has acknowledged all sequence numbers of the collective
/// before), so a rank that published under `s` has acknowledged all sequence numbers of earlier collectives. This crate
/// sees to both. The runtime must see to it that a rank which sleeps is woken when another one publishes or
/// acknowledges.
pub trait SharedBuffers {
    /// Cells of a CICO buffer: so many publications of a rank exist at a time, and by so many phases a rank that waits
    /// for nobody may be ahead.
    fn cells(&self) -> u64;

    /// The same for [publications](SharedBuffers::publish) of so many bytes: at least as many.
    fn cells_for(&self, bytes: u64) -> u64;

    /// Bytes of a cell: the most that a publication can carry inline.
    fn inline_bytes(&self) -> usize;

    /// Copies `len` bytes (at most [`SharedBuffers::inline_bytes`]) from offset `at` of `data` into this rank's cell of
    /// `seq`, then publishes the cell.
    fn publish(&mut self, seq: u64, data: &Buffer, at: isize, len: usize);

    /// This rank's cell of `seq`, to be filled before [`SharedBuffers::publish_cell`].
    fn cell(&mut self, seq: u64) -> Buffer;

    /// Publishes this rank's cell of `seq`, all of it, with what was put there.
    fn publish_cell(&mut self, seq: u64);

    /// Exposes `data`: publishes its address and length, for other ranks to [get](SharedBuffers::get) from.
    fn expose(&mut self, seq: u64, data: &Buffer);

    /// Takes back the ranges that this rank exposed or offered under `first` to `last`, although others may still use them: from
    /// now on a get or a put is refused, and nobody touches that memory any more.
    fn revoke_exposed(&mut self, first: u64, last: u64);

    /// What `rank` (maybe this rank itself) published under `seq`. `None` until it has, and if it published for another
    /// call: all bits of `seq` count, the tag's too. Unless it is to be seen `at_once`, once that rank has published, the first look may miss it. Called only
    /// for a sequence number under which that rank publishes, and before this rank acknowledges it.
    fn poll(&mut self, rank: u32, seq: u64, at_once: bool) -> Option<Published>;

    /// Copies `into.len()` bytes from offset `at` of the range that `rank` exposed under `seq`. `false`: refused.
    fn get(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool;

    /// Offers `range`: says from byte `at` of this rank's cell of `seq` on, in [so many bytes](crate::SubBuffer::OFFER), where it is, for
    /// one other rank to [take](SharedBuffers::take) it, or to [put](SharedBuffers::put) a block there, once the cell is published. The memory is
    /// that rank's until it acknowledges `seq`, or this rank [takes it back](SharedBuffers::revoke_exposed).
    fn offer(&mut self, seq: u64, at: u64, range: &Buffer);

    /// Copies the range that `rank` has offered by byte `at` of its cell of `seq`. `false`: refused, or not as long as `into`.
    fn take(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool;

    /// Copies `data` to the range that `rank` has offered by byte `at` of its cell of `seq`, then publishes nothing under `seq`.
    /// If it offers none, the system refuses or the lengths differ, this exposes a copy of `data` instead.
    fn put(&mut self, rank: u32, seq: u64, at: Option<u64>, data: &Buffer);

    /// Acknowledges: this rank is done with everything published up to and including `seq`.
    fn ack(&mut self, seq: u64);

    /// The last sequence number that `rank` (maybe this rank itself) has acknowledged; 0 at first.
    fn acked(&mut self, rank: u32) -> u64;

    /// Marks this rank's acknowledgements of `first` to `last` as void: this rank has given the collective up, and they
    /// do not say that it has done its work. To be called before [`SharedBuffers::ack`].
    fn void(&mut self, first: u64, last: u64);

    /// True if `rank` has acknowledged `seq`, and the acknowledgement is not [void](SharedBuffers::void).
    fn reached(&mut self, rank: u32, seq: u64) -> bool;

    /// The shared scratch: memory that all ranks of the communicator share besides the CICO buffers. Acknowledgements
    /// order their accesses.
    fn scratch(&mut self) -> Buffer;

    /// True if every rank can get exposed ranges of every other. All ranks have the same answer.
    fn single_copy(&self) -> bool;
}
