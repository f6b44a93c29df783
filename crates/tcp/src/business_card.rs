//! Business cards: the addresses at which a process listens, as its peers get them. Pure: bytes in, addresses out.

use std::net::{IpAddr, SocketAddr};

/// Version of the protocol that is spoken at these addresses: handshake and frames.
pub const VERSION: u8 = 3;

/// Most addresses on a business card.
pub const MAX_ADDRESSES: usize = 16;

/// Why bytes are not a business card.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadBusinessCard {
    /// The peer speaks another protocol.
    #[error(
        "its tcp protocol is version {0}, ours is {VERSION}: both sides need the same release of Banyan MPI"
    )]
    Version(u8),
    /// Cut off, too long, or not made by [`encode`].
    #[error("its tcp business card is damaged")]
    Damaged,
}

/// An address at which a process listens, and what helps its peers to choose among several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Address and port.
    pub address: SocketAddr,
    /// Length of the prefix of its subnet, bits.
    pub prefix: u8,
    /// Number of its network interface among those on the card.
    pub nic: u8,
    /// To be tried after all others: see [`banyan_topo::NicAddress::secondary`].
    pub secondary: bool,
    /// Of the interface, Mbit/s; 0 if not known.
    pub speed: u32,
}

/// Writes a business card: version, number of candidates, and for each its family (4 or 6), address, port, prefix, interface,
/// secondary (0 or 1) and speed.
///
/// # Panics
/// With more than [`MAX_ADDRESSES`] candidates.
pub fn encode(candidates: &[Candidate]) -> Vec<u8> {
    assert!(candidates.len() <= MAX_ADDRESSES, "at most {MAX_ADDRESSES} addresses fit on a business card");
    let mut business_card = vec![VERSION, candidates.len() as u8];
    for candidate in candidates {
        match candidate.address.ip() {
            IpAddr::V4(ip) => {
                business_card.push(4);
                business_card.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                business_card.push(6);
                business_card.extend(ip.octets());
            }
        }
        business_card.extend(candidate.address.port().to_le_bytes());
        business_card.extend([candidate.prefix, candidate.nic, candidate.secondary.into()]);
        business_card.extend(candidate.speed.to_le_bytes());
    }
    business_card
}

/// Reads what [`encode`] wrote: at least one candidate.
pub fn decode(business_card: &[u8]) -> Result<Vec<Candidate>, BadBusinessCard> {
    let (&version, rest) = business_card.split_first().ok_or(BadBusinessCard::Damaged)?;
    if version != VERSION {
        return Err(BadBusinessCard::Version(version));
    }
    let (&count, mut rest) = rest.split_first().ok_or(BadBusinessCard::Damaged)?;
    if !(1..=MAX_ADDRESSES).contains(&count.into()) {
        return Err(BadBusinessCard::Damaged);
    }
    let candidates = (0..count).map(|_| candidate(&mut rest)).collect::<Option<Vec<_>>>();
    candidates.filter(|_| rest.is_empty()).ok_or(BadBusinessCard::Damaged)
}

fn candidate(rest: &mut &[u8]) -> Option<Candidate> {
    let ip: IpAddr = match chunk::<1>(rest)? {
        [4] => chunk::<4>(rest)?.into(),
        [6] => chunk::<16>(rest)?.into(),
        _ => return None,
    };
    let address = SocketAddr::new(ip, u16::from_le_bytes(chunk(rest)?));
    let [prefix, nic, secondary @ 0..=1] = chunk(rest)? else { return None };
    let speed = u32::from_le_bytes(chunk(rest)?);
    Some(Candidate { address, prefix, nic, secondary: secondary == 1, speed })
}

fn chunk<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (chunk, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_card_is_read_as_it_was_written(
            all in proptest::collection::vec(any::<((IpAddr, u16), u8, u8, bool, u32)>(), 1..=16),
        ) {
            let candidate = |(address, prefix, nic, secondary, speed): ((IpAddr, u16), _, _, _, _)| {
                Candidate { address: address.into(), prefix, nic, secondary, speed }
            };
            let all: Vec<Candidate> = all.into_iter().map(candidate).collect();
            let business_card = encode(&all);
            prop_assert_eq!(decode(&business_card), Ok(all));
            for cut in 0..business_card.len() {
                prop_assert!(decode(&business_card[..cut]).is_err());
            }
            prop_assert!(decode(&[&business_card[..], &[0]].concat()).is_err());
        }

        #[test]
        fn any_bytes_are_a_card_or_refused(mut bytes: Vec<u8>) {
            let _ = decode(&bytes);
            bytes.splice(0..0, [VERSION, 2, 4]);
            if let Ok(all) = decode(&bytes) { prop_assert_eq!(encode(&all), bytes); }
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(decode(&[7, 1, 4, 1, 2, 3, 4, 5, 6]), Err(BadBusinessCard::Version(7)));
        assert_eq!(decode(&[VERSION, 0]), Err(BadBusinessCard::Damaged));
    }
}
