//! What frames of the engine look like: kinds, and the fixed bodies of the rendezvous.
//!
//! `aux` of every frame is credit that comes back, in units of [`crate::credit::UNIT`] bytes. Envelopes (the
//! first three kinds) are of class P2p (`a` tag, `b` rank of the sender) or Coll (`a`, `b` low and high half
//! of the key); all other frames are of class P2p. A body may be longer than what its kind defines: the
//! rest is for later versions (memory that both ends claim chunks of) and is skipped.

use banyan_transport::{Class, Head};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A whole message. Body: payload.
    Eager = 0,
    /// A whole message whose sender waits until it is matched. Body: id of the send, payload.
    EagerSync = 1,
    /// A message is ready to be fetched. Body: [`Rts`].
    Rts = 2,
    /// Send it in pieces. `ctx` id of the send; body: [`Cts`].
    Cts = 3,
    /// A piece. `ctx` id of the receive, `a` and `b` low and high half of the offset; body: payload.
    Data = 4,
    /// The message was taken, the sender is free. `ctx` id of the send.
    Taken = 5,
    /// Forget the message if it is not matched. `ctx` context; body: id of the send, [`crate::wire::id`].
    Cancel = 6,
    /// It is forgotten. `ctx` id of the send.
    Cancelled = 7,
    /// Only for `aux`.
    Credit = 8,
    /// Give back credit beyond the initial one.
    Recall = 9,
    /// Here it is: `a` units.
    Return = 10,
    /// The next bytes of what was offered last, unasked. Of the offer's class; `ctx` id of the send, `a` and `b` low
    /// and high half of the offset; body: payload.
    Early = 11,
    /// Somebody here looks for a message that may be behind those announced: announce more.
    More = 12,
}

impl Kind {
    #[inline]
    pub(crate) fn from_u8(value: u8) -> Option<Kind> {
        use Kind::*;
        [Eager, EagerSync, Rts, Cts, Data, Taken, Cancel, Cancelled, Credit, Recall, Return, Early, More]
            .get(value as usize)
            .copied()
    }
}

/// Longest message: what an address space can hold, with room for sums.
pub(crate) const LONGEST: u64 = 1 << 60;

/// The body of a request to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rts {
    /// Bytes of the message.
    pub(crate) total: u64,
    /// Id of the send.
    pub(crate) id: u64,
    /// It would have been eager, had there been credit.
    pub(crate) starved: bool,
    /// All of it follows unasked, and the sender awaits no answer.
    pub(crate) follows: bool,
    /// No message with a tag is announced after it until one is answered, or more are asked for.
    pub(crate) last: bool,
    /// The bytes can be read where they lie.
    pub(crate) readable: bool,
    /// Where that is: address and key.
    pub(crate) place: (u64, u64),
}

const HAS_REGION: u32 = 1;
const STARVED: u32 = 2;
const FOLLOWS: u32 = 4;
const LAST: u32 = 8;

impl Rts {
    pub(crate) const MOST: usize = 36;

    /// Writes the body; gives its length.
    pub(crate) fn encode(&self, out: &mut [u8; Self::MOST]) -> usize {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(self.readable, HAS_REGION)
            | flag(self.starved, STARVED)
            | flag(self.follows, FOLLOWS)
            | flag(self.last, LAST);
        out[..8].copy_from_slice(&self.total.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..20].copy_from_slice(&flags.to_le_bytes());
        let Some((addr, key)) = self.region() else { return 20 };
        out[20..28].copy_from_slice(&addr.to_le_bytes());
        out[28..36].copy_from_slice(&key.to_le_bytes());
        36
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Rts> {
        let (total, id) = (word(body, 0)?, word(body, 8)?);
        let flags = u32::from_le_bytes(*body.get(16..)?.first_chunk()?);
        let [readable, starved, follows, last] =
            [HAS_REGION, STARVED, FOLLOWS, LAST].map(|flag| flags & flag != 0);
        let place = if readable { (word(body, 20)?, word(body, 28)?) } else { (0, 0) };
        (total <= LONGEST).then_some(Rts { total, id, starved, follows, last, readable, place })
    }

    /// Where the bytes can be read, if they can.
    pub(crate) fn region(&self) -> Option<(u64, u64)> {
        self.readable.then_some(self.place)
    }
}

/// The body of a clearance to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cts {
    /// Id of the receive.
    pub(crate) id: u64,
    /// Send this many bytes, from the start.
    pub(crate) room: u64,
}

impl Cts {
    pub(crate) fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..].copy_from_slice(&self.room.to_le_bytes());
        out
    }

    pub(crate) fn decode(body: &[u8]) -> Option<Cts> {
        Some(Cts { id: word(body, 0)?, room: word(body, 8)? })
    }
}

/// An id at the start of a body.
pub(crate) fn id(body: &[u8]) -> Option<u64> {
    word(body, 0)
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

/// The head of bytes that follow the offer of send `id` unasked.
#[inline]
pub(crate) fn early(class: Class, id: u64, at: u64) -> Head {
    Head { class, ..control(Kind::Early, id, at) }
}

/// The head of everything else.
#[inline]
pub(crate) fn control(kind: Kind, ctx: u64, wide: u64) -> Head {
    Head { class: Class::P2p, kind: kind as u8, aux: 0, a: wide as u32, b: (wide >> 32) as u32, ctx }
}

/// The two halves of `a` and `b` as one word.
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
        for (readable, place) in [(false, (0, 0)), (true, (7, u64::MAX))] {
            for bit in 0..4 {
                let [starved, follows, last] = [1, 2, 3].map(|flag| bit == flag);
                let id = 0x1234_5678_9abc_def0;
                let rts = Rts { total: 1 << 40, id, starved, follows, last, readable, place };
                let mut out = [0; Rts::MOST];
                let len = rts.encode(&mut out);
                assert_eq!(Rts::decode(&out[..len]), Some(rts));
                assert!((0..len).all(|cut| Rts::decode(&out[..cut]).is_none()));
            }
        }
        let mut out = [0; Rts::MOST];
        let rts = Rts { total: LONGEST, ..Rts::decode(&[0; 20]).unwrap() };
        rts.encode(&mut out);
        assert_eq!(Rts::decode(&out), Some(rts));
        Rts { total: LONGEST + 1, ..rts }.encode(&mut out);
        assert_eq!(Rts::decode(&out), None);
        let cts = Cts { id: 3, room: 9 };
        assert_eq!(Cts::decode(&cts.encode()), Some(cts));
        assert_eq!(Cts::decode(&cts.encode()[..15]), None);
    }

    #[test]
    fn kinds_are_dense() {
        assert!((0..13).all(|k| Kind::from_u8(k).is_some_and(|kind| kind as u8 == k)));
        assert_eq!(Kind::from_u8(13), None);
    }
}
