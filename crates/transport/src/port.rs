//! [`Port`]: what a fabric does towards its peers, and the values that say what became of it.

use banyan_memory::{Buffer, MemoryKind};

#[cfg(doc)]
use crate::Sink;
use crate::{Head, Peer};

/// What a fabric can do towards one peer.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
pub struct Caps {
    /// Largest body of [`Port::send_short`], bytes.
    pub max_short: usize,
    /// Largest body of [`Port::send_bcopy`], bytes; at least 4096.
    pub max_bcopy: usize,
    /// Up to this many bytes a copy through the fabric is quicker than a rendezvous.
    pub eager: usize,
    /// Frames of long messages should be about so long, bytes: a longer message travels quicker in several frames, since
    /// both sides copy at the same time.
    pub piece: usize,
    /// Kinds of memory that [`Port::get`] fills from this peer, and that [`Port::register`] takes for its gets.
    pub get: Kinds,
    /// Kinds of local memory that [`Port::put`] writes to this peer.
    pub put: Kinds,
    /// Kinds of the peer's memory that [`Port::atomic`] works on.
    pub atomics: Kinds,
    /// Long messages are surely quickest where [`Port::get`] reads them, as a device does that while processes do other things.
    pub prefers_get: bool,
    /// Latency of a frame, seconds (alpha of the cost model).
    pub alpha: f64,
    /// Seconds a byte (beta of the cost model).
    pub beta: f64,
}

impl Caps {
    /// What can be done where there is no fabric.
    pub const NONE: Caps = Caps {
        max_short: 0,
        max_bcopy: 4096,
        eager: 0,
        piece: 4096,
        get: Kinds::NONE,
        put: Kinds::NONE,
        atomics: Kinds::NONE,
        prefers_get: false,
        alpha: 0.0,
        beta: 0.0,
    };

    /// The longest body that goes by [`Port::send_short`] and is no reason for several frames or a rendezvous, bytes.
    pub fn whole_short(&self) -> usize {
        self.max_short.min(self.max_bcopy).min(self.eager).min(self.piece)
    }
}

/// Why a fabric refused a send. The send had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// No room now, or not connected yet: poll, then try again.
    Busy,
    /// The peer is gone; [`Sink::down`] said why.
    Down,
}

/// What a peer may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Access {
    /// [`Port::get`].
    Read,
    /// [`Port::get`], [`Port::put`] and [`Port::atomic`]. The memory must be writable.
    ReadWrite,
}

/// Why memory cannot be registered. Messages still carry what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RegisterError {
    /// The fabric never lets that peer reach memory of this kind: see [`Caps::get`].
    Unsupported,
    /// The system or the device has no room for one more registration now.
    NoRoom,
}

/// A registered range: memory that a peer may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Remote {
    /// Address in the peer's address space.
    pub addr: u64,
    /// Length, bytes.
    pub len: u64,
    /// The fabric's key for the range (see [`Port::register`]).
    pub key: u64,
}

/// Names a one-sided transfer, or the frames of a send from memory, until the memory of this process is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Token(pub u64);

/// What became of the start of a one-sided transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Transfer {
    /// It is over: the bytes are where they should be, here or at the peer.
    Done,
    /// It is under way: [`Sink::completed`] will tell its outcome.
    Started,
    /// There is no room now, and it had no effect: poll, then try again.
    Busy,
    /// This fabric cannot do it (no permission, or no such mechanism): use messages instead. It may have written some of the
    /// bytes to the memory that they go to, all of which a later transfer writes again.
    Impossible,
}

/// Whether a fabric needs the memory that it sends from ([`Port::send_from`]) after the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Sent {
    /// It does not.
    Done,
    /// It does, until [`Sink::sent`], or [`Sink::down`] of the peer.
    Started,
}

/// Whether a frame keeps its place among the others of its peer and class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Order {
    /// It arrives after those sent before it, and before those sent after it.
    Ordered,
    /// It may overtake others, and be overtaken: bulk data.
    Unordered,
}

/// How a one-sided transfer ended that was [`Transfer::Started`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// As [`Transfer::Done`].
    Done,
    /// As [`Transfer::Impossible`].
    Impossible,
}

/// An operation on a word of 8 bytes in a peer's memory, aligned to 8 bytes, in the byte order of both processes. It gives
/// the value that the word had before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, u8)]
pub enum Atomic {
    /// Combines the word with an operand.
    Fetch(Fetch, u64),
    /// Writes `new` if the word is `old`.
    CompareSwap {
        /// The value to compare with.
        old: u64,
        /// The value to write.
        new: u64,
    },
}

/// How [`Atomic::Fetch`] combines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Fetch {
    /// The sum, modulo 2^64.
    Add,
    /// Bits in both.
    And,
    /// Bits in either.
    Or,
    /// Bits in one of the two.
    Xor,
    /// The operand.
    Swap,
}

impl Atomic {
    /// The value that the word has afterwards.
    pub fn apply(self, word: u64) -> u64 {
        match self {
            Atomic::Fetch(Fetch::Add, operand) => word.wrapping_add(operand),
            Atomic::Fetch(Fetch::And, operand) => word & operand,
            Atomic::Fetch(Fetch::Or, operand) => word | operand,
            Atomic::Fetch(Fetch::Xor, operand) => word ^ operand,
            Atomic::Fetch(Fetch::Swap, operand) => operand,
            Atomic::CompareSwap { old, new } => {
                if word == old {
                    new
                } else {
                    word
                }
            }
        }
    }
}

/// Memory of the host that a process fills for a peer of the same host, and that the peer empties: both have pinned it for their devices, so that no
/// processor copies.
#[derive(Debug)]
pub struct Handover {
    /// The memory. It is this process's as long as a buffer on it is there, and the peer's, too, once it was handed over.
    pub memory: Buffer,
    /// What the peer finds it by.
    pub number: u32,
    /// Less than half of what this process has of it is free.
    pub scarce: bool,
}

/// The body of a frame that hands memory over ([`Port::hand_over`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// [`Handover::number`].
    pub number: u32,
    /// Bytes that are there, from the first one on.
    pub len: u32,
}

impl Handed {
    /// Bytes of it.
    pub const BYTES: usize = 8;

    /// Little-endian: number, length.
    pub fn encode(self) -> [u8; Self::BYTES] {
        (u64::from(self.number) | u64::from(self.len) << 32).to_le_bytes()
    }

    /// Reads what [`Handed::encode`] wrote; `None` if the body is shorter.
    pub fn decode(body: &[u8]) -> Option<Handed> {
        let both = u64::from_le_bytes(*body.first_chunk()?);
        Some(Handed { number: both as u32, len: (both >> 32) as u32 })
    }
}

/// Who moves bytes from and to memory of devices, without a copy in the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DeviceMoves {
    /// Nobody.
    Never,
    /// The drivers of both sides: [`Port::register`] may take memory of a device, which the peer then reads by [`Port::get`], into memory of the host
    /// or of a device.
    ByDrivers,
    /// The network's device of each side, for its own memory: the fabric may register memory of a device, fill it and read it, and does not mind what the peer's
    /// memory is.
    ByNetwork,
}

/// Kinds of memory, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct Kinds(u8);

impl Kinds {
    /// No memory.
    pub const NONE: Kinds = Kinds(0);
    /// Memory of the host.
    pub const HOST: Kinds = Kinds::of(MemoryKind::Host);

    /// Memory of one kind.
    #[inline]
    pub const fn of(kind: MemoryKind) -> Kinds {
        Kinds(1 << kind as u8)
    }

    /// The kinds that are in both sets.
    #[inline]
    pub const fn and(self, kinds: Kinds) -> Kinds {
        Kinds(self.0 & kinds.0)
    }

    /// The kinds of `self`, if `condition` holds.
    #[inline]
    pub fn only_if(self, condition: bool) -> Kinds {
        if condition { self } else { Kinds::NONE }
    }

    /// True if all of `kinds` are in the set.
    #[inline]
    pub fn has(self, kinds: Kinds) -> bool {
        self.0 & kinds.0 == kinds.0
    }
}

/// Sends frames to peers, and reads and writes their memory. A single fabric is a port, and so is the runtime's list of all its fabrics,
/// which passes each call to the fabric that reaches the peer. See the [crate] for the invariants.
pub trait Port {
    /// What the fabric can do towards `peer` (also before a connection exists).
    fn caps(&self, peer: Peer) -> Caps;

    /// Bodies of up to so many bytes are [`Caps::whole_short`] towards every peer, so that nobody has to ask for its caps. 0 is always right.
    #[inline]
    fn whole_short(&self) -> usize {
        0
    }

    /// Sends `head` and a body of at most `caps.max_short` bytes.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        self.send_bcopy(peer, head, body.len(), &mut |out| out.copy_from_slice(body))
    }

    /// Sends `head` and a body of `len` bytes (at most `caps.max_bcopy`). If the send is not refused, `fill` is called once,
    /// before this returns, with a slice of `len` bytes that it writes the body to.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal>;

    /// Sends `head` and the `len` bytes (at most `caps.max_bcopy`) of `memory` at offset `at`. A fabric may send them without
    /// a copy. With a token it may need the memory after the call: it says so ([`Sent::Started`]), and [`Sink::sent`] tells when
    /// it needs it no more. Otherwise the memory is free once this returns. A frame that was accepted arrives either way.
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        (memory, at, len): (&Buffer, isize, usize),
        _token: Option<Token>,
        _order: Order,
    ) -> Result<Sent, Refusal> {
        self.send_bcopy(peer, head, len, &mut |body| memory.give(at, body)).map(|()| Sent::Done)
    }

    /// Registers memory of this process: `peer` may reach it in these ways, as far as [`Caps`] say that it can.
    ///
    /// # Errors
    /// [`RegisterError`]: the memory is not registered; messages can carry its bytes.
    fn register(&mut self, peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError>;

    /// Ends the registration of a range for `peer`, which does not need it any more.
    fn withdraw(&mut self, _peer: Peer, _remote: Remote) {}

    /// Ends the registration of a range that `peer` may be reading, because the memory is about to be used for something else:
    /// no [`Port::get`] that ends from now on is [`Transfer::Done`], also if it began before. Reads of other memory of this
    /// process that are under way may be refused with it. Nor is anything written there by a [`Port::put`]: one that is in the middle
    /// of its copy is waited for.
    fn revoke(&mut self, peer: Peer, remote: Remote) {
        self.withdraw(peer, remote);
    }

    /// Reads a registered range of `peer`, or a part of it, into `local`, whose buffers are filled one after the other and
    /// together have the same length.
    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer;

    /// Reads several ranges, each into the memory beside it, as [`Port::get`] would one after the other, where one call of the system does
    /// for all of them; gives how many, from the first one on, are there. 0: each is to be read by itself; a fabric without such a call asks for none.
    fn get_together(&mut self, _peer: Peer, _gets: &mut dyn Iterator<Item = (Remote, Buffer)>) -> usize {
        0
    }

    /// Whether [`Port::register`] may take memory of a device, and [`Port::get`] and [`Port::put`] may have to do with some. It is in [`Caps`] where
    /// a fabric does that for all devices; here it depends on the memory, so that each call may refuse.
    fn device_moves(&mut self, _peer: Peer) -> DeviceMoves {
        DeviceMoves::Never
    }

    /// Memory to fill for `peer` ([`banyan_memory::BOUNCE_BUFFER`] bytes) by copies from `near` and memory like it. `None`: there is none now, or its driver
    /// does not pin it.
    fn handover(&mut self, _peer: Peer, _near: &Buffer) -> Option<Handover> {
        None
    }

    /// Sends `head` and a [`Handed`], so that `peer` finds the first `len` bytes of such memory, which nobody writes to until it was
    /// [returned](Port::is_returned).
    ///
    /// # Errors
    /// [`Refusal`]: the frame was not sent.
    fn hand_over(
        &mut self,
        _peer: Peer,
        _head: &Head,
        _handover: &Handover,
        _len: usize,
    ) -> Result<(), Refusal> {
        Err(Refusal::Down)
    }

    /// True if `peer` has no more what was handed over to it under this number, of which this process keeps a buffer. When a peer returns some, this process is
    /// woken as by a frame.
    fn is_returned(&mut self, _peer: Peer, _number: u32) -> bool {
        true
    }

    /// The memory that `peer` has handed over, for copies to `near` and memory like it. It is returned when the last buffer on it goes. `None`: the peer
    /// has handed over nothing of that kind.
    fn handed(&mut self, _peer: Peer, _handed: Handed, _near: &Buffer) -> Option<Buffer> {
        None
    }

    /// Writes the bytes of `local`, one buffer after the other, to a registered range of `peer`, or a part of it, of the same
    /// length. They are needed until [`Sink::sent`] or [`Sink::completed`] (local completion). Once the put is over the bytes are
    /// at the peer (remote completion), and a frame that is sent then arrives after them.
    fn put(&mut self, _peer: Peer, _remote: Remote, _local: &[Buffer], _token: Token) -> Transfer {
        Transfer::Impossible
    }

    /// Changes a word of 8 bytes in a registered range of `peer`, and writes its old value to `result` (8 bytes). Atomic towards
    /// the operations of other processes by this fabric on the same word, not towards other accesses.
    fn atomic(
        &mut self,
        _peer: Peer,
        _word: Remote,
        _op: Atomic,
        _result: &Buffer,
        _token: Token,
    ) -> Transfer {
        Transfer::Impossible
    }

    /// Takes back the memory of this process that operations with this token use, towards `peer`, if they are not over: from now on it is neither
    /// read nor written, and the sink hears nothing more of the token. A get is cancelled; what a send has accepted leaves from a
    /// copy.
    fn reclaim(&mut self, _peer: Peer, _token: Token) {}
}
