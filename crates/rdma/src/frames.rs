//! What stands before a frame's body on the wire, and what completions of work say which work it was.

use std::num::NonZeroU32;

use banyan_transport::Head;

/// Bytes before a body: credits, what it is, and the head.
pub(crate) const HEADER: usize = 4 + Head::BYTES;
/// Bytes of a buffer that a frame arrives in.
pub(crate) const SLOT: usize = 8192;
/// Longest body, bytes.
pub(crate) const BODY: usize = SLOT - HEADER;

const CREDITS: u8 = 1;
const REST: u8 = 3;

/// What has come. With a number of its own, which the head's class would else be: each look would have to work it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum What {
    /// A frame for a sink.
    Frame(Head),
    /// Nothing but the credits that it carries.
    Credits,
    /// The last that comes by this connection.
    Farewell,
    /// The last that comes by this connection, until one of the two needs it again.
    Rest,
}

impl What {
    /// The bytes before the body.
    #[inline]
    pub(crate) fn encode(&self, credits: u16) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..2].copy_from_slice(&credits.to_le_bytes());
        match self {
            What::Frame(head) => out[4..].copy_from_slice(&head.encode()),
            What::Credits => out[2] = CREDITS,
            What::Farewell => out[2] = 2,
            What::Rest => out[2] = REST,
        }
        out
    }

    /// Reads what [`What::encode`] wrote, with the body after it; `None` if it is something else.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<(What, u16, &[u8])> {
        let (header, body) = bytes.split_first_chunk::<HEADER>()?;
        let [c0, c1, what, _, head @ ..] = header;
        let what = match *what {
            0 => What::Frame(Head::decode(head)?),
            CREDITS => What::Credits,
            2 => What::Farewell,
            REST => What::Rest,
            _ => return None,
        };
        Some((what, u16::from_le_bytes([*c0, *c1]), body))
    }
}

/// Makes a frame fit to be sent by a connection that was made anew: the account of credits has begun again, and it does not rest any more.
pub(crate) fn sent_again(header: &mut [u8]) {
    header[..2].fill(0);
    if header[2] == REST {
        header[2] = CREDITS;
    }
}

/// Work that is under way. A number of 64 bits says it, which comes back when it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Id {
    /// A receive buffer, by its number.
    Receive(u32),
    /// A buffer for a datagram, and in which life of their queue pair.
    Datagram(u32),
    /// A send from this slot.
    Send(u32),
    /// A datagram that leaves, in the same way.
    Greeting(u32),
    /// A one-sided transfer, whose number is not 0.
    Transfer(u32),
    /// What another work stands behind that tells of both. It is told of by itself only if it fails; of which transfer it is, if of one.
    Ahead(Option<NonZeroU32>),
}

impl Id {
    /// What work is posted as that another one stands behind, which is told of as `id`.
    pub(crate) fn ahead_of(id: u64) -> Id {
        match Id::from(id) {
            Id::Transfer(number) => Id::Ahead(NonZeroU32::new(number)),
            _ => Id::Ahead(None),
        }
    }
}

impl From<Id> for u64 {
    #[inline]
    fn from(id: Id) -> u64 {
        let (kind, number) = match id {
            Id::Receive(number) => (0, number),
            Id::Datagram(number) => (1, number),
            Id::Send(number) => (2, number),
            Id::Greeting(number) => (3, number),
            Id::Transfer(number) => (4, number),
            Id::Ahead(transfer) => (5, transfer.map_or(0, NonZeroU32::get)),
        };
        kind << 32 | u64::from(number)
    }
}

impl From<u64> for Id {
    #[inline]
    fn from(value: u64) -> Id {
        let number = value as u32;
        match value >> 32 {
            0 => Id::Receive(number),
            1 => Id::Datagram(number),
            2 => Id::Send(number),
            3 => Id::Greeting(number),
            4 => Id::Transfer(number),
            _ => Id::Ahead(NonZeroU32::new(number)),
        }
    }
}
