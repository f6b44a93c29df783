//! [`Misbehaved`]: what a peer can do that no correct peer does. The peer is down from then on, with this as the cause.

/// What a peer did wrong. Frames are read in the hot path: a cause is made only where one is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misbehaved {
    /// The kind of a frame is not in [`crate::wire::Kind`].
    UnknownKind,
    /// A frame came in a class that it does not belong to, such as one of point-to-point messages in that of collectives.
    WrongClass,
    /// A body is shorter than its kind defines.
    ShortBody,
    /// An RTS announces more than [`crate::wire::LONGEST`] bytes.
    TooLong,
    /// A message or a fragment costs more credit than the peer had.
    CreditOverrun,
    /// The peer lent this process more credit than any process lends.
    CreditFlood,
    /// The peer returned credit that it did not have.
    CreditNotLent,
    /// A fragment names another send than the peer's last RTS.
    StrayFragment,
    /// A fragment does not begin where the one before it ended.
    FragmentOrder,
    /// A fragment came for a message that this process reads from the peer's memory.
    FragmentOfRead,
    /// A fragment goes beyond the end that the RTS named.
    BeyondEnd,
    /// DATA, or word of bytes that were written, came for a receive that has asked for none.
    DataUnasked,
    /// DATA came for a receive that is matched with another process.
    ForeignReceive,
    /// More came for a receive than it still awaits.
    DataOverrun,
    /// A body is said to be in memory that was not named for it.
    NotLanded,
    /// Memory is said to have bytes of a message, and was not handed over.
    NotHanded,
    /// A reply names a send to another process.
    ForeignSend,
    /// A reply names a send that awaits none.
    ReplyUnasked,
    /// A CTS asks for more bytes than the message has.
    GrantTooLong,
    /// The peer prefers a way, or that of a class of lengths, that is not known.
    UnknownWay,
}

impl Misbehaved {
    /// What the peer did, for people; the subject is the peer.
    #[cold]
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::UnknownKind => "it sent a frame of an unknown kind",
            Self::WrongClass => "it sent a frame in a class that this kind of frame does not belong to",
            Self::ShortBody => "it sent a frame whose body is too short for its kind",
            Self::TooLong => "it announced a message that is longer than memory can be",
            Self::CreditOverrun => "it sent a message for which it had no credit",
            Self::CreditFlood => "it lent more credit than any process lends",
            Self::CreditNotLent => "it returned credit that it did not have",
            Self::StrayFragment => "it sent a fragment of a message that it had not announced last",
            Self::FragmentOrder => "it sent the fragments of a message out of order",
            Self::FragmentOfRead => "it sent a fragment of a message that is read from its memory",
            Self::BeyondEnd => "it sent data beyond the end of a message",
            Self::DataUnasked => "it sent data to a receive that has asked for none",
            Self::ForeignReceive => "it sent data to a receive that is matched with another process",
            Self::DataOverrun => "it sent more data than the receive awaited",
            Self::NotLanded => "its data were written to memory that was not named for them",
            Self::NotHanded => "it sent data in memory that it has not handed over",
            Self::ForeignSend => "it answered a message that was sent to another process",
            Self::ReplyUnasked => "it answered a message that awaits no answer",
            Self::GrantTooLong => "it asked for more bytes than the message has",
            Self::UnknownWay => "it prefers a way of messages that is not known",
        }
    }
}
