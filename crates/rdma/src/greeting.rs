//! Business cards and greetings. A card is where a process hears greetings; a greeting names the sender's end of one connection, and
//! proves by a keyed hash (HMAC-SHA-256 with the job's secret) that it is of the job. Pure: bytes in, values out.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::contact::{Said, Stage};
use crate::gid::{self, Address, Kind};
use crate::settings::RAILS;

/// Version of the protocol: cards, greetings and frames.
pub const VERSION: u8 = 5;
/// Bytes of an address, and of a card without any.
const ADDRESS: usize = 16 + 1 + 1;
const CARD: usize = 13;
/// Bytes of a greeting before the card.
const BODY: usize = 1 + 4 + 4 + 8 + 4 + 4 + 8 + 4 + 4 + 4 + 8 + 4;
const PROOF: usize = 32;
const LONGEST_CARD: usize = CARD + gid::MOST * ADDRESS;

/// Bytes of the longest greeting.
pub const LONGEST: usize = BODY + 1 + (RAILS - 1) * (4 + 1 + LONGEST_CARD) + LONGEST_CARD + PROOF;

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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// The port's addresses at which peers may reach it, at most [`gid::MOST`]; on iWARP the host's.
    pub addresses: Vec<Address>,
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
    /// The card's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.lid.to_le_bytes());
        out.extend(self.datagrams.to_le_bytes());
        out.extend(self.listens.to_le_bytes());
        out.extend([self.mtu, self.reads, self.wire as u8, self.addresses.len() as u8]);
        for address in &self.addresses {
            out.extend(address.gid.octets());
            out.extend([address.prefix, address.kind as u8]);
        }
        out
    }

    /// Reads what [`Card::encode`] wrote; `None` if it is something else.
    pub fn decode(bytes: &[u8]) -> Option<Card> {
        let (&version, rest) = bytes.split_first()?;
        let (lid, rest) = rest.split_first_chunk()?;
        let (datagrams, rest) = rest.split_first_chunk()?;
        let (listens, rest) = rest.split_first_chunk()?;
        let (&[mtu @ 1..=5, reads, wire, number], rest) = rest.split_first_chunk()? else { return None };
        let (addresses, rest) = rest.as_chunks::<ADDRESS>();
        let (lid, datagrams) = (u16::from_le_bytes(*lid), u32::from_le_bytes(*datagrams));
        let fits = addresses.len() == number.into() && addresses.len() <= gid::MOST && rest.is_empty();
        if version != VERSION || datagrams >= 1 << 24 || !fits {
            return None;
        }
        let addresses = addresses.iter().map(address).collect::<Option<_>>()?;
        let (listens, wire) = (u16::from_le_bytes(*listens), Wire::from_u8(wire)?);
        Some(Card { addresses, lid, datagrams, listens, mtu, reads, wire })
    }

    /// The best path to this process from one that has these addresses, each with its place among all that it had at first.
    ///
    /// # Errors
    /// If there is none: a sentence that names the addresses of both.
    pub fn path(&self, ours: &[(u8, Address)]) -> Result<Path, String> {
        let &Card { lid, datagrams, listens, mtu, reads, .. } = self;
        let present: Vec<Address> = ours.iter().map(|(_, address)| *address).collect();
        let (at, to) = gid::pair(&present, &self.addresses).ok_or_else(|| {
            let list = |all: &[Address]| all.iter().map(Address::to_string).collect::<Vec<_>>().join(", ");
            let (ours, theirs) = (list(&present), list(&self.addresses));
            format!("no address of this side's port ({ours}) reaches one of the peer's ({theirs})")
        })?;
        Ok(Path { from: ours[at].0, to: self.addresses[to].gid, lid, datagrams, listens, mtu, reads })
    }
}

/// An address on the wire.
fn address(bytes: &[u8; ADDRESS]) -> Option<Address> {
    let (gid, &[prefix @ 0..=128, kind]) = bytes.split_first_chunk::<16>()? else { return None };
    let kind = [Kind::RoceV2, Kind::Native].into_iter().find(|&of| of as u8 == kind)?;
    Some(Address { gid: Ipv6Addr::from(*gid), prefix, kind })
}

/// The way from this process to another one: which addresses packets go between, and what else its card says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// This side's address, by its place among all that the port had at first.
    pub from: u8,
    /// The peer's address.
    pub to: Ipv6Addr,
    /// As on its [`Card`].
    pub lid: u16,
    /// As on its [`Card`].
    pub datagrams: u32,
    /// As on its [`Card`].
    pub listens: u16,
    /// As on its [`Card`].
    pub mtu: u8,
    /// As on its [`Card`].
    pub reads: u8,
}

impl Path {
    /// On iWARP: where greetings go to, and where rdma_cm listens.
    pub fn sockets(&self) -> [SocketAddr; 2] {
        [self.datagrams as u16, self.listens].map(|port| SocketAddr::new(self.to.to_canonical(), port))
    }
}

/// A further port of a process, and its queue pair there for a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Further {
    /// The queue pair's number.
    pub pair: u32,
    /// The port's card. Greetings do not go there.
    pub card: Card,
}

/// What one process tells another about its end of their connection.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    /// The further rails by which it can move long transfers, in the order in which they are used.
    pub further: Vec<Further>,
    /// On iWARP memory of the sender (address and key) that answers reads; else 0.
    pub mark: (u64, u32),
}

impl Greeting {
    /// The greeting's bytes, with the proof at the end.
    pub fn encode(&self, secret: &[u8; 32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(LONGEST);
        out.push(self.said.stage as u8);
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.job.to_le_bytes());
        out.extend(self.said.number.to_le_bytes());
        out.extend(self.said.to.to_le_bytes());
        out.extend(self.received.to_le_bytes());
        self.pairs.iter().for_each(|pair| out.extend(pair.to_le_bytes()));
        out.extend(self.first.to_le_bytes());
        out.extend(self.mark.0.to_le_bytes());
        out.extend(self.mark.1.to_le_bytes());
        out.push(self.further.len() as u8);
        for Further { pair, card } in &self.further {
            let card = card.encode();
            out.extend(pair.to_le_bytes());
            out.push(card.len() as u8);
            out.extend(card);
        }
        out.extend(self.card.encode());
        let proof = keyed(secret, &out).finalize().into_bytes();
        out.extend(proof);
        out
    }

    /// Reads what [`Greeting::encode`] wrote; `None` if it is something else, or of somebody who does not know the secret.
    pub fn decode(bytes: &[u8], secret: &[u8; 32]) -> Option<Greeting> {
        let (body, proof) = bytes.split_at_checked(bytes.len().checked_sub(PROOF)?)?;
        keyed(secret, body).verify_slice(proof).ok()?;
        let (&[stage], rest) = body.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (end, rest) = rest.split_first_chunk()?;
        let (bound, rest) = rest.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let (frames, rest) = rest.split_first_chunk()?;
        let (transfers, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let (addr, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (further, card) = further(rest)?;
        let number = |bytes: &[u8; 4]| Some(u32::from_le_bytes(*bytes));
        let in_24_bits = |bytes: &[u8; 4]| number(bytes).filter(|&value| value < 1 << 24);
        Some(Greeting {
            said: Said { stage: Stage::from_u8(stage)?, number: number(end)?, to: number(bound)? },
            from: number(from)?,
            to: number(to)?,
            job: u64::from_le_bytes(*job),
            received: u64::from_le_bytes(*received),
            card: Card::decode(card)?,
            further,
            pairs: [in_24_bits(frames)?, in_24_bits(transfers)?],
            first: in_24_bits(first)?,
            mark: (u64::from_le_bytes(*addr), number(key)?),
        })
    }
}

/// The further rails that a greeting names, and what stands behind them.
fn further(bytes: &[u8]) -> Option<(Vec<Further>, &[u8])> {
    let (&number, mut rest) = bytes.split_first()?;
    let mut all = Vec::new();
    for _ in 0..Some(usize::from(number)).filter(|&number| number < RAILS)? {
        let (pair, after) = rest.split_first_chunk()?;
        let (&len, after) = after.split_first()?;
        let (card, after) = after.split_at_checked(len.into())?;
        let pair = Some(u32::from_le_bytes(*pair)).filter(|&pair| pair < 1 << 24)?;
        all.push(Further { pair, card: Card::decode(card)? });
        rest = after;
    }
    Some((all, rest))
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
    /// Numbers of the sender's end, and of the receiver's.
    pub ends: [u32; 2],
    /// The sender's queue pair, and the receiver's. Later ends may have pairs of the same numbers.
    pub pairs: [u32; 2],
}

const REQUEST: usize = 4 + 4 + 8 + 4 * 4;

impl Request {
    /// The request's bytes, with the proof at the end.
    pub fn encode(&self, secret: &[u8; 32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(REQUEST + PROOF);
        out.extend(self.from.to_le_bytes());
        out.extend(self.to.to_le_bytes());
        out.extend(self.job.to_le_bytes());
        self.ends.iter().chain(&self.pairs).for_each(|number| out.extend(number.to_le_bytes()));
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
        let (ends, pairs) = ([number(16)?, number(20)?], [number(24)?, number(28)?]);
        Some(Request { from: number(0)?, to: number(4)?, job, ends, pairs })
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
        let address = (any::<[u8; 16]>(), 0u8..=128, any::<bool>()).prop_map(|(gid, prefix, v2)| {
            let kind = if v2 { Kind::RoceV2 } else { Kind::Native };
            Address { gid: gid.into(), prefix, kind }
        });
        let addresses = proptest::collection::vec(address, 0..=gid::MOST);
        (addresses, any::<u16>(), ports, 1u8..=5, any::<u8>(), 0u8..3).prop_map(
            |(addresses, lid, (datagrams, listens), mtu, reads, wire)| {
                let wire = Wire::from_u8(wire).expect("one of three");
                Card { addresses, lid, datagrams, listens, mtu, reads, wire }
            },
        )
    }

    fn greeting() -> impl Strategy<Value = Greeting> {
        let in_24_bits = 0u32..1 << 24;
        let pairs = [in_24_bits.clone(), in_24_bits.clone()];
        let numbers = (any::<u32>(), any::<u32>(), any::<u64>(), pairs, in_24_bits);
        let said = (0u8..3, any::<u32>(), any::<u32>(), any::<u64>());
        let further = (0u32..1 << 24, card()).prop_map(|(pair, card)| Further { pair, card });
        let further = proptest::collection::vec(further, 0..RAILS);
        (card(), numbers, said, any::<(u64, u32)>(), further).prop_map(
            |(card, (from, to, job, pairs, first), (stage, number, bound, received), mark, further)| {
                let said = Said { stage: Stage::from_u8(stage).expect("one of three"), number, to: bound };
                Greeting { said, from, to, job, received, card, pairs, first, further, mark }
            },
        )
    }

    #[test]
    fn a_path_is_between_addresses_that_reach_each_other() {
        let address = |ip: &str| Address::of_ip(ip.parse().expect("an address"), 24, Kind::RoceV2);
        let addresses = vec![address("10.1.0.2"), address("10.2.0.2")];
        let card =
            Card { addresses, lid: 1, datagrams: 2, listens: 3, mtu: 4, reads: 5, wire: Wire::Ethernet };
        let path = card.path(&[(3, address("10.9.0.1")), (5, address("10.2.0.1"))]).expect("a path");
        assert_eq!((path.from, path.to, path.lid, path.mtu), (5, card.addresses[1].gid, 1, 4));
        assert_eq!(path.sockets(), ["10.2.0.2:2", "10.2.0.2:3"].map(|at| at.parse().expect("an address")));
        assert_eq!(
            card.path(&[(0, address("2001:db8::1"))]),
            Err("no address of this side's port (2001:db8::1/24) reaches one of the peer's (10.1.0.2/24, 10.2.0.2/24)".into())
        );
    }

    proptest! {
        #[test]
        fn a_card_is_read_as_it_was_written(card in card()) {
            let bytes = card.encode();
            prop_assert_eq!(Card::decode(&bytes), Some(card));
            prop_assert!(bytes.len() <= LONGEST_CARD);
            for cut in 0..bytes.len() {
                prop_assert_eq!(Card::decode(&bytes[..cut]), None);
            }
            prop_assert_eq!(Card::decode(&[&bytes[..], &[0]].concat()), None);
        }

        #[test]
        fn a_greeting_is_read_as_it_was_written_and_only_with_its_proof(
            greeting in greeting(),
            at: proptest::sample::Index,
            bit in 0..8u8,
        ) {
            let mut bytes = greeting.encode(&[5; 32]);
            prop_assert!(bytes.len() <= LONGEST);
            prop_assert_eq!(Greeting::decode(&bytes, &[5; 32]), Some(greeting));
            prop_assert_eq!(Greeting::decode(&bytes, &[6; 32]), None);
            prop_assert_eq!(Greeting::decode(&bytes[..bytes.len() - 1], &[5; 32]), None);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Greeting::decode(&bytes, &[5; 32]), None);
        }

        #[test]
        fn a_request_is_read_as_it_was_written_and_only_with_its_proof(
            numbers in any::<(u32, u32, u64, [u32; 2], [u32; 2])>(),
            at in 0..REQUEST + PROOF,
            bit in 0..8u8,
        ) {
            let (from, to, job, ends, pairs) = numbers;
            let request = Request { from, to, job, ends, pairs };
            let mut bytes = request.encode(&[5; 32]);
            prop_assert_eq!(Request::decode(&[&bytes[..], &[0; 9]].concat(), &[5; 32]), Some(request));
            prop_assert_eq!(Request::decode(&bytes, &[6; 32]), None);
            prop_assert_eq!(Request::decode(&bytes[1..], &[5; 32]), None);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Request::decode(&bytes, &[5; 32]), None);
        }

        #[test]
        fn any_bytes_are_a_card_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Some(card) = Card::decode(&bytes) { prop_assert_eq!(&card.encode()[..], &bytes[..]); }
            prop_assert_eq!(Greeting::decode(&bytes, &[0; 32]), None);
        }
    }
}
