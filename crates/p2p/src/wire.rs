//! The frames of point-to-point messages: their kinds, and the fixed bodies of the rendezvous.
//!
//! `aux` of every frame returns credit to its receiver, in units of [`crate::credit::UNIT`] bytes. Envelopes (the
//! first three kinds) are of class P2p (`a` tag, `b` rank of the sender) or Coll (`a`, `b` low and high half
//! of the key); all other frames but fragments are of class P2p. A body may be longer than its kind defines: the
//! rest is for later versions and is skipped.

use banyan_transport::{Class, Head};

use crate::misbehaved::Misbehaved;
use crate::request::Reply;
use crate::ways::Way;

/// What a frame is. *Sender* and *receiver* are those of the message, not of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Sender to receiver: a whole message. Body: payload. The receiver unpacks it into the posted receive that matches,
    /// or keeps it as unexpected.
    Eager = 0,
    /// Sender to receiver: a whole message whose send completes when it is matched. Body: id of the send, payload. The
    /// receiver treats it as [`Kind::Eager`], and sends [`Kind::Fin`] when it is matched.
    EagerSync = 1,
    /// Sender to receiver: request to send, the envelope of a message whose payload does not travel with it. Body: [`Rts`].
    /// The receiver matches it, or keeps it as unexpected; once it is matched, the receiver reads the sender's memory,
    /// sends [`Kind::Cts`], or lets the fragments come.
    Rts = 2,
    /// Receiver to sender: clear to send. `ctx` id of the send; body: [`Cts`], whose `from` is in `a` and `b`, or else whether the receiver's
    /// memory is a device's. The sender sends the bytes that are asked for as [`Kind::Data`] or [`Kind::Handed`], or writes them to the receiver's
    /// memory and sends [`Kind::Written`]. If that is not all of the message, another answer follows.
    Cts = 3,
    /// Sender to receiver: bytes that a CTS asked for. `ctx` id of the receive, `a` and `b` low and high half of the
    /// offset; body: payload. The receiver unpacks them.
    Data = 4,
    /// Receiver to sender: the message is received (an [`Kind::EagerSync`]: matched), or never will be. `ctx` id of the
    /// send, which is complete.
    Fin = 5,
    /// Sender to receiver: the send is to be cancelled. `ctx` context; body: id of the send. A receiver that has not matched
    /// the message drops it and sends [`Kind::Cancelled`]; otherwise the answer to the message itself is on its way.
    Cancel = 6,
    /// Receiver to sender: the message was dropped. `ctx` id of the send, which is complete as cancelled.
    Cancelled = 7,
    /// Either way: no body, carries returned credit in `aux`.
    Credit = 8,
    /// From a process that has no more credit to lend: its peer is to return what it has beyond the initial credit.
    RecallCredit = 9,
    /// Reply to [`Kind::RecallCredit`]: returns `a` credit units.
    ReturnCredit = 10,
    /// Sender to receiver: the next bytes of the message of the last RTS, sent without a CTS. Of the RTS's class; `ctx` id
    /// of the send, `a` and `b` low and high half of the offset; body: payload. The receiver unpacks them, or keeps them
    /// with the RTS.
    Fragment = 11,
    /// Receiver to sender: a receive or probe looks for a message that may be behind those announced. The sender announces
    /// another window of messages.
    AnnounceMore = 12,
    /// Sender to receiver: the bytes that a CTS granted memory for are written. `ctx` id of the receive, `a` and `b` low and
    /// high half of the offset of the first of them.
    Written = 13,
    /// Receiver to sender: which way long messages are to take from now on. `a` class of lengths, `b` number
    /// of the way, and whether each is to be announced; also, whether the receiver goes by it for what it sends itself: then it chooses for
    /// both as long as such messages go both ways.
    Prefer = 14,
    /// Sender to receiver: the bytes that a CTS asked for cannot be had from the sender's device. `ctx` id of the receive, which ends.
    Unsent = 15,
    /// Sender to receiver: bytes that a CTS asked for, in memory that both share. `ctx` id of the receive, `a` and `b` low and high half of the
    /// offset; body: [`banyan_transport::Handed`]. The receiver copies them from there.
    Handed = 16,
}

impl Kind {
    #[inline]
    pub(crate) fn from_u8(value: u8) -> Option<Kind> {
        use Kind::*;
        [
            Eager,
            EagerSync,
            Rts,
            Cts,
            Data,
            Fin,
            Cancel,
            Cancelled,
            Credit,
            RecallCredit,
            ReturnCredit,
            Fragment,
            AnnounceMore,
            Written,
            Prefer,
            Unsent,
            Handed,
        ]
        .get(value as usize)
        .copied()
    }
}

/// The longest message, bytes: what an address space can hold, so that sums of two do not overflow.
pub(crate) const LONGEST: u64 = 1 << 60;

/// The body of a request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rts {
    /// Bytes of the message.
    pub(crate) total: u64,
    /// Id of the send.
    pub(crate) id: u64,
    /// The message would have been eager, had there been credit.
    pub(crate) starved: bool,
    /// All of the message follows as fragments, and the sender awaits no reply.
    pub(crate) pushed: bool,
    /// The sender announces no message with a tag after this one until one is answered, or more are asked for.
    pub(crate) last: bool,
    /// How the bytes are to come. Unless in frames ([`Way::Ring`]) the receiver may read them from the sender's memory.
    pub(crate) way: Way,
    /// Whether the way may become another one.
    pub(crate) offer: Offer,
    /// How many RTSs with a choice the sender had received from the receiver, modulo 2^16.
    pub(crate) seen: u16,
    /// Where the sender exposes the bytes: address and key; zeros if it does not.
    pub(crate) exposed: (u64, u64),
    /// Not sent: which of the RTSs with a choice it is, as the receiver counts them, modulo 2^8.
    pub(crate) number: u8,
}

/// Why a message with a choice of ways is announced, and does not go whole in one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// It is too long for that, or there is another reason that has nothing to do with its way.
    Long,
    /// Its way may be a better one, or is to be measured.
    Way,
    /// It stands for [`SAMPLE`](crate::ways::SAMPLE) that go whole, so that the receiver hears of these now and then.
    Sample,
}

/// How firm the way of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// It is this one.
    Fixed,
    /// The sender takes another way if it is told to.
    Choice(Cause),
    /// It is this one: the bytes that the receiver may read are in memory of a device.
    Device,
}

const READABLE: u32 = 1;
const STARVED: u32 = 2;
const PUSHED: u32 = 4;
const LAST: u32 = 8;
const WRITTEN: u32 = 16;
const HALVES: u32 = 32;
const CHOICE: u32 = 64;
const DEVICE: u32 = 128;
const WHOLE: u32 = 256;
const SAMPLED: u32 = 512;
/// `seen` is in the upper half of the flags.
const SEEN: u32 = 16;
/// The flags of each way, by its number. How frames are copied out of the ring is their receiver's own affair.
const WAYS: [u32; Way::ALL.len()] = [0, READABLE, READABLE | WRITTEN, READABLE | HALVES, 0];

impl Rts {
    pub(crate) const MOST: usize = 36;

    /// Writes the body; gives its length in bytes.
    pub(crate) fn encode(&self, out: &mut [u8; Self::MOST]) -> usize {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = WAYS[self.way as usize]
            | flag(matches!(self.offer, Offer::Choice(_)), CHOICE)
            | flag(self.offer == Offer::Device, DEVICE)
            | flag(matches!(self.offer, Offer::Choice(Cause::Way | Cause::Sample)), WHOLE)
            | flag(self.offer == Offer::Choice(Cause::Sample), SAMPLED)
            | u32::from(self.seen) << SEEN
            | flag(self.starved, STARVED)
            | flag(self.pushed, PUSHED)
            | flag(self.last, LAST);
        out[..8].copy_from_slice(&self.total.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&flags.to_le_bytes());
        let Some((addr, key)) = self.region() else { return 20 };
        out[20..28].copy_from_slice(&addr.to_le_bytes());
        out[28..36].copy_from_slice(&key.to_le_bytes());
        36
    }

    /// Reads the body; flags that are not known are ignored.
    pub(crate) fn decode(body: &[u8]) -> Result<Rts, Misbehaved> {
        let rts = Self::fields(body).ok_or(Misbehaved::ShortBody)?;
        if rts.total > LONGEST { Err(Misbehaved::TooLong) } else { Ok(rts) }
    }

    fn fields(body: &[u8]) -> Option<Rts> {
        let (total, id) = (word(body, 0)?, word(body, 8)?);
        let flags = u32::from_le_bytes(*body.get(16..)?.first_chunk()?);
        let [choice, device, starved, pushed, last, whole, sampled] =
            [CHOICE, DEVICE, STARVED, PUSHED, LAST, WHOLE, SAMPLED].map(|flag| flags & flag != 0);
        let cause = match (whole, sampled) {
            (_, true) => Cause::Sample,
            (true, false) => Cause::Way,
            (false, false) => Cause::Long,
        };
        let offer = match (choice, device) {
            (_, true) => Offer::Device,
            (true, false) => Offer::Choice(cause),
            (false, false) => Offer::Fixed,
        };
        let of_way = flags & (READABLE | WRITTEN | HALVES);
        let way = Way::ALL.into_iter().find(|way| WAYS[*way as usize] == of_way).unwrap_or(Way::Ring);
        let exposed = if way == Way::Ring { (0, 0) } else { (word(body, 20)?, word(body, 28)?) };
        Some(Rts {
            total,
            id,
            starved,
            pushed,
            last,
            way,
            offer,
            seen: (flags >> SEEN) as u16,
            exposed,
            number: 0,
        })
    }

    /// Where the bytes can be read, if they can: address and key.
    pub(crate) fn region(&self) -> Option<(u64, u64)> {
        (self.way != Way::Ring).then_some(self.exposed)
    }
}

/// The body of a clear to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cts {
    /// Id of the receive.
    pub(crate) id: u64,
    /// Bytes to send, from the start of the message.
    pub(crate) room: u64,
    /// Where the sender may write those from byte `from` on.
    pub(crate) grant: Option<Grant>,
    /// They go to memory of a device. With a grant they do not.
    pub(crate) to_device: bool,
}

/// Memory of a receive that its sender may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// The first byte of the message that is written. Those before it the receiver reads, and then sends another answer.
    pub(crate) from: u64,
    /// Where that byte goes: address and key.
    pub(crate) exposed: (u64, u64),
}

impl Cts {
    pub(crate) const MOST: usize = 32;

    /// The frame, to send `id`.
    pub(crate) fn reply(&self, id: u64) -> Reply {
        let none = Grant { from: self.to_device.into(), exposed: (0, 0) };
        let Grant { from, exposed: (addr, key) } = self.grant.unwrap_or(none);
        let mut out = [0; Self::MOST];
        for (out, word) in out.chunks_exact_mut(8).zip([self.id, self.room, addr, key]) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        let len = if self.grant.is_some() { 32 } else { 16 };
        Reply::with(control(Kind::Cts, id, from), &out[..len])
    }

    /// Reads a frame.
    pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Cts, Misbehaved> {
        let grant = || Some(Grant { from: wide(head), exposed: (word(body, 16)?, word(body, 24)?) });
        let grant = grant();
        let to_device = grant.is_none() && wide(head) != 0;
        let fields = || Some(Cts { id: word(body, 0)?, room: word(body, 8)?, grant, to_device });
        fields().ok_or(Misbehaved::ShortBody)
    }
}

/// The id of a send at the start of a body.
pub(crate) fn id(body: &[u8]) -> Result<u64, Misbehaved> {
    word(body, 0).ok_or(Misbehaved::ShortBody)
}

/// The head of an envelope of a message with a tag.
#[inline]
pub(crate) fn tagged(kind: Kind, ctx: u64, tag: i32, src_rank: u32) -> Head {
    Head { class: Class::P2p, kind: kind as u8, aux: 0, a: tag as u32, b: src_rank, ctx }
}

/// The head of an envelope of a message with a key.
#[inline]
pub(crate) fn keyed(kind: Kind, ctx: u64, key: u64) -> Head {
    Head { class: Class::Coll, kind: kind as u8, aux: 0, a: key as u32, b: (key >> 32) as u32, ctx }
}

/// The head of a fragment of send `id`, from byte `at` of the message on.
#[inline]
pub(crate) fn fragment(class: Class, id: u64, at: u64) -> Head {
    Head { class, ..control(Kind::Fragment, id, at) }
}

/// Whether frames of this class are those of messages.
#[inline(always)]
pub(crate) fn is_of_messages(class: Class) -> bool {
    matches!(class, Class::P2p | Class::Coll)
}

/// The head of a frame of any other kind; `wide` goes to `a` and `b`.
#[inline]
pub(crate) fn control(kind: Kind, ctx: u64, wide: u64) -> Head {
    Head { class: Class::P2p, kind: kind as u8, aux: 0, a: wide as u32, b: (wide >> 32) as u32, ctx }
}

/// `a` and `b` as one word: `a` is the low half.
#[inline]
pub(crate) fn wide(head: &Head) -> u64 {
    u64::from(head.a) | u64::from(head.b) << 32
}

#[inline]
fn word(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_back_and_short_ones_are_refused() {
        for way in Way::ALL.into_iter().filter(|way| *way != Way::NonTemporal) {
            for bit in 0..8 {
                let [starved, pushed, last] = [1, 2, 3].map(|flag| bit == flag);
                let offer = match bit {
                    4 => Offer::Choice(Cause::Long),
                    6 => Offer::Choice(Cause::Way),
                    7 => Offer::Choice(Cause::Sample),
                    5 => Offer::Device,
                    _ => Offer::Fixed,
                };
                let id = 0x1234_5678_9abc_def0;
                let exposed = if way == Way::Ring { (0, 0) } else { (7, u64::MAX) };
                let rts = Rts {
                    total: 1 << 40,
                    id,
                    starved,
                    pushed,
                    last,
                    way,
                    offer,
                    seen: 0xfedc,
                    exposed,
                    number: 0,
                };
                let mut out = [0; Rts::MOST];
                let len = rts.encode(&mut out);
                assert_eq!(Rts::decode(&out[..len]), Ok(rts));
                assert!((0..len).all(|cut| Rts::decode(&out[..cut]) == Err(Misbehaved::ShortBody)));
            }
        }
        let mut out = [0; Rts::MOST];
        let rts = Rts { total: LONGEST, ..Rts::decode(&[0; 20]).unwrap() };
        rts.encode(&mut out);
        assert_eq!(Rts::decode(&out), Ok(rts));
        Rts { total: LONGEST + 1, ..rts }.encode(&mut out);
        assert_eq!(Rts::decode(&out), Err(Misbehaved::TooLong));
        let grant = Some(Grant { from: 1 << 40, exposed: (7, u64::MAX) });
        for (grant, to_device) in [(None, false), (None, true), (grant, false)] {
            let cts = Cts { id: 3, room: 9, grant, to_device };
            let reply = cts.reply(5);
            assert_eq!((reply.head.ctx, Cts::decode(&reply.head, reply.body())), (5, Ok(cts)));
            assert_eq!(Cts::decode(&reply.head, &reply.body()[..15]), Err(Misbehaved::ShortBody));
        }
    }

    #[test]
    fn kinds_are_dense() {
        assert!((0..17).all(|k| Kind::from_u8(k).is_some_and(|kind| kind as u8 == k)));
        assert_eq!(Kind::from_u8(17), None);
    }
}
