//! Business cards and greetings. A card is where a process hears greetings; a greeting names the sender's end of one connection, and
//! proves by a keyed hash (HMAC-SHA-256 with the job's secret) that it is of the job. Pure: bytes in, values out.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::contact::{Said, Stage};

/// Version of the protocol: cards, greetings and frames.
pub const VERSION: u8 = 3;
const CARD: usize = 28;
const BODY: usize = 1 + 4 + 4 + 8 + 4 + 4 + 8 + CARD + 4 + 4 + 4 + 8 + 4;
const PROOF: usize = 32;

/// Bytes of a greeting.
pub const BYTES: usize = BODY + PROOF;

/// What packets travel on, and so how connections are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wire {
    /// InfiniBand: greetings are datagrams of the device's, and connections are made by what they say.
    InfiniBand = 0,
    /// RoCE: in the same way.
    Ethernet = 1,
    /// iWARP: greetings are datagrams of UDP, and rdma_cm makes the connections.
    Iwarp = 2,
}

impl Wire {
    fn from_u8(value: u8) -> Option<Wire> {
        [Wire::InfiniBand, Wire::Ethernet, Wire::Iwarp].into_iter().find(|&wire| wire as u8 == value)
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::InfiniBand => "InfiniBand",
            Wire::Ethernet => "RoCE",
            Wire::Iwarp => "iWARP",
        })
    }
}

/// Where a process hears greetings, and what its device can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Card {
    /// The port's address; on iWARP the host's, in the form of IPv6.
    pub gid: [u8; 16],
    /// The port's address within an InfiniBand subnet.
    pub lid: u16,
    /// Number of the queue pair that receives greetings; on iWARP the UDP port.
    pub datagrams: u32,
    /// On iWARP the port at which rdma_cm listens; else 0.
    pub listens: u16,
    /// The largest packet, as verbs number it (3: 1024 bytes).
    pub mtu: u8,
    /// Number of reads and atomics that it answers at a time.
    pub reads: u8,
    /// What its packets travel on.
    pub wire: Wire,
}

impl Card {
    /// On iWARP: where greetings go to, and where rdma_cm listens.
    pub fn sockets(&self) -> [SocketAddr; 2] {
        let ip = Ipv6Addr::from(self.gid);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        [self.datagrams as u16, self.listens].map(|port| SocketAddr::new(ip, port))
    }

    /// The card's bytes.
    pub fn encode(&self) -> [u8; CARD] {
        let mut out = [0; CARD];
        out[0] = VERSION;
        out[1..17].copy_from_slice(&self.gid);
        out[17..19].copy_from_slice(&self.lid.to_le_bytes());
        out[19..23].copy_from_slice(&self.datagrams.to_le_bytes());
        out[23..25].copy_from_slice(&self.listens.to_le_bytes());
        out[25..].copy_from_slice(&[self.mtu, self.reads, self.wire as u8]);
        out
    }

    /// Reads what [`Card::encode`] wrote; `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Card> {
        let (&version, rest) = bytes.split_first()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let (datagrams, rest) = rest.split_first_chunk()?;
        let (listens, rest) = rest.split_first_chunk()?;
        let &[mtu @ 1..=5, reads, wire] = rest else { return None };
        let (gid, lid, datagrams) = (*gid, u16::from_le_bytes(*lid), u32::from_le_bytes(*datagrams));
        if version != VERSION || datagrams >= 1 << 24 {
            return None;
        }
        Some(Card {
            gid,
            lid,
            datagrams,
            listens: u16::from_le_bytes(*listens),
            mtu,
            reads,
            wire: Wire::from_u8(wire)?,
        })
    }
}

/// What one process tells another about its end of their connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// How far the sender is, and by which of its ends.
    pub said: Said,
    /// The sender's number.
    pub from: u32,
    /// The receiver's number.
    pub to: u32,
    /// The job's number.
    pub job: u64,
    /// Number of frames that the sender has received from the receiver so far.
    pub received: u64,
    /// The sender's card.
    pub card: Card,
    /// Numbers of the sender's queue pairs for this connection: that of frames, and that of transfers.
    pub pairs: [u32; 2],
    /// The first packet's number on both.
    pub first: u32,
    /// On iWARP memory of the sender (address and key) that answers reads; else 0.
    pub mark: (u64, u32),
}

impl Greeting {
    /// The greeting's bytes, with the proof at the end.
    pub fn encode(&self, secret: &[u8; 32]) -> [u8; BYTES] {
        let mut out = Vec::with_capacity(BYTES);
        out.push(self.said.stage as u8);
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.job.to_le_bytes());
        out.extend(self.said.number.to_le_bytes());
        out.extend(self.said.to.to_le_bytes());
        out.extend(self.received.to_le_bytes());
        out.extend(self.card.encode());
        self.pairs.iter().for_each(|pair| out.extend(pair.to_le_bytes()));
        out.extend(self.first.to_le_bytes());
        out.extend(self.mark.0.to_le_bytes());
        out.extend(self.mark.1.to_le_bytes());
        let proof = keyed(secret, &out).finalize().into_bytes();
        out.extend(proof);
        out.try_into().expect("as many bytes")
    }

    /// Reads what [`Greeting::encode`] wrote; `None` if it is something else, or of somebody who does not know the secret.
    pub fn decode(bytes: &[u8], secret: &[u8; 32]) -> Option<Greeting> {
        let (body, proof) = bytes.split_at_checked(BODY)?;
        keyed(secret, body).verify_slice(proof).ok()?;
        let (&[stage], rest) = body.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (end, rest) = rest.split_first_chunk()?;
        let (bound, rest) = rest.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (card, rest) = rest.split_at_checked(CARD)?;
        let (frames, rest) = rest.split_first_chunk()?;
        let (transfers, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (addr, key) = rest.split_first_chunk()?;
        let number = |bytes: &[u8; 4]| Some(u32::from_le_bytes(*bytes));
        let in_24_bits = |bytes: &[u8; 4]| number(bytes).filter(|&value| value < 1 << 24);
        Some(Greeting {
            said: Said { stage: Stage::from_u8(stage)?, number: number(end)?, to: number(bound)? },
            from: number(from)?,
            to: number(to)?,
            job: u64::from_le_bytes(*job),
            received: u64::from_le_bytes(*received),
            card: Card::decode(card)?,
            pairs: [in_24_bits(frames)?, in_24_bits(transfers)?],
            first: in_24_bits(first)?,
            mark: (u64::from_le_bytes(*addr), number(key.try_into().ok()?)?),
        })
    }
}

/// What a process says that asks for a connection by rdma_cm, for one of the two queue pairs of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The sender's number.
    pub from: u32,
    /// The receiver's number.
    pub to: u32,
    /// The job's number.
    pub job: u64,
    /// The sender's queue pair, and the receiver's.
    pub pairs: [u32; 2],
}

const REQUEST: usize = 4 + 4 + 8 + 4 + 4;

impl Request {
    /// The request's bytes, with the proof at the end.
    pub fn encode(&self, secret: &[u8; 32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST + PROOF);
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.job.to_le_bytes());
        self.pairs.iter().for_each(|pair| out.extend(pair.to_le_bytes()));
        let proof = keyed(secret, &out).finalize().into_bytes();
        out.extend(proof);
        out
    }

    /// Reads what [`Request::encode`] wrote, with whatever follows; `None` if it is something else, or of somebody who does not know the
    /// secret.
    pub fn decode(bytes: &[u8], secret: &[u8; 32]) -> Option<Request> {
        let (body, proof) = bytes.get(..REQUEST + PROOF)?.split_at(REQUEST);
        keyed(secret, body).verify_slice(proof).ok()?;
        let number = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let job = u64::from_le_bytes(*body.get(8..)?.first_chunk()?);
        Some(Request { from: number(0)?, to: number(4)?, job, pairs: [number(16)?, number(20)?] })
    }
}

fn keyed(secret: &[u8; 32], body: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("keys of any length");
    mac.update(body);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn card() -> impl Strategy<Value = Card> {
        let ports = (0u32..1 << 24, any::<u16>());
        (any::<[u8; 16]>(), any::<u16>(), ports, 1u8..=5, any::<u8>(), 0u8..3).prop_map(
            |(gid, lid, (datagrams, listens), mtu, reads, wire)| {
                let wire = Wire::from_u8(wire).expect("one of three");
                Card { gid, lid, datagrams, listens, mtu, reads, wire }
            },
        )
    }

    fn greeting() -> impl Strategy<Value = Greeting> {
        let in_24_bits = 0u32..1 << 24;
        let pairs = [in_24_bits.clone(), in_24_bits.clone()];
        let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), pairs, in_24_bits);
        let said = (0u8..3, any::<u32>(), any::<u32>(), any::<u64>());
        (card(), numbers, said, any::<(u64, u32)>()).prop_map(
            |(card, (from, to, job, pairs, first), (stage, number, bound, received), mark)| {
                let said = Said { stage: Stage::from_u8(stage).expect("one of three"), number, to: bound };
                Greeting { said, from, to, job, received, card, pairs, first, mark }
            },
        )
    }

    proptest! {
        #[test]
        fn a_card_is_read_as_it_was_written(card in card()) {
            let bytes = card.encode();
            prop_assert_eq!(Card::decode(&bytes), Some(card));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Card::decode(&bytes[..cut]), None);
            }
            prop_assert_eq!(Card::decode(&[&bytes[..], &[0]].concat()), None);
        }

        #[test]
        fn a_greeting_is_read_as_it_was_written_and_only_with_its_proof(greeting in greeting(), at in 0..BYTES, bit in 0..8u8) {
            let mut bytes = greeting.encode(&[5; 32]);
            prop_assert_eq!(Greeting::decode(&bytes, &[5; 32]), Some(greeting));
            prop_assert_eq!(Greeting::decode(&bytes, &[6; 32]), None);
            prop_assert_eq!(Greeting::decode(&bytes[..BYTES - 1], &[5; 32]), None);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Greeting::decode(&bytes, &[5; 32]), None);
        }

        #[test]
        fn a_request_is_read_as_it_was_written_and_only_with_its_proof(
            numbers in any::<(u32, u32, u64, [u32; 2])>(),
            at in 0..REQUEST + PROOF,
            bit in 0..8u8,
        ) {
            let (from, to, job, pairs) = numbers;
            let request = Request { from, to, job, pairs };
            let mut bytes = request.encode(&[5; 32]);
            prop_assert_eq!(Request::decode(&[&bytes[..], &[0; 9]].concat(), &[5; 32]), Some(request));
            prop_assert_eq!(Request::decode(&bytes, &[6; 32]), None);
            prop_assert_eq!(Request::decode(&bytes[1..], &[5; 32]), None);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Request::decode(&bytes, &[5; 32]), None);
        }

        #[test]
        fn any_bytes_are_a_card_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(card) = Card::decode(&bytes) { prop_assert_eq!(&card.encode()[..], &bytes[..]); }
            prop_assert_eq!(Greeting::decode(&bytes, &[0; 32]), None);
        }
    }
}
