//! Business cards: the addresses at which a process listens, as its peers get them. Pure: bytes in, addresses out.

use std::net::{IpAddr, SocketAddr};

/// Version of the protocol that is spoken at these addresses: handshake and frames.
pub const VERSION: u8 = 2;

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

/// Writes a business card: version, number of addresses, and for each its family (4 or 6), address and port.
///
/// # Panics
/// With more than [`MAX_ADDRESSES`] addresses.
pub fn encode(addresses: &[SocketAddr]) -> Vec<u8> {
    assert!(addresses.len() <= MAX_ADDRESSES, "at most {MAX_ADDRESSES} addresses fit on a business card");
    let mut business_card = vec![VERSION, addresses.len() as u8];
    for address in addresses {
        match address.ip() {
            IpAddr::V4(ip) => {
                business_card.push(4);
                business_card.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                business_card.push(6);
                business_card.extend(ip.octets());
            }
        }
        business_card.extend(address.port().to_le_bytes());
    }
    business_card
}

/// Reads what [`encode`] wrote: at least one address.
pub fn decode(business_card: &[u8]) -> Result<Vec<SocketAddr>, BadBusinessCard> {
    let (&version, rest) = business_card.split_first().ok_or(BadBusinessCard::Damaged)?;
    if version != VERSION {
        return Err(BadBusinessCard::Version(version));
    }
    let (&count, mut rest) = rest.split_first().ok_or(BadBusinessCard::Damaged)?;
    if !(1..=MAX_ADDRESSES).contains(&count.into()) {
        return Err(BadBusinessCard::Damaged);
    }
    let addresses = (0..count).map(|_| address(&mut rest)).collect::<Option<Vec<_>>>();
    addresses.filter(|_| rest.is_empty()).ok_or(BadBusinessCard::Damaged)
}

fn address(rest: &mut &[u8]) -> Option<SocketAddr> {
    let ip: IpAddr = match chunk::<1>(rest)? {
        [4] => chunk::<4>(rest)?.into(),
        [6] => chunk::<16>(rest)?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes(chunk(rest)?)))
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
        fn a_card_is_read_as_it_was_written(all in proptest::collection::vec(any::<(IpAddr, u16)>(), 1..=16)) {
            let all: Vec<SocketAddr> = all.into_iter().map(SocketAddr::from).collect();
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
