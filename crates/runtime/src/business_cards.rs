//! The business card of a process: for each of its fabrics that needs one the name of the fabric, and its addresses in the
//! form of that fabric.

/// Writes a business card: of each fabric the length of its name (1 byte), the name, the length of its addresses
/// (2 bytes, little-endian), the addresses.
///
/// # Errors
/// If a name is longer than 255 bytes, or addresses than 65,535.
pub(crate) fn encode<'a>(cards: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for (name, addresses) in cards {
        let too_long = || format!("the addresses of the {name} fabric take {} bytes", addresses.len());
        out.push(u8::try_from(name.len()).map_err(|_| too_long())?);
        out.extend(name.as_bytes());
        out.extend(u16::try_from(addresses.len()).map_err(|_| too_long())?.to_le_bytes());
        out.extend(addresses);
    }
    Ok(out)
}

/// Reads what [`encode`] wrote. Names of fabrics that this process does not know are no error.
///
/// # Errors
/// If the card ends inside an entry, or a name is no text.
pub(crate) fn decode(mut card: &[u8]) -> Result<Vec<(&str, &[u8])>, String> {
    let mut entries = Vec::new();
    while let [len, rest @ ..] = card {
        let entry = rest.split_at_checked(usize::from(*len)).and_then(|(name, rest)| {
            let (len, rest) = rest.split_first_chunk()?;
            let (addresses, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
            Some((std::str::from_utf8(name).ok()?, addresses, rest))
        });
        let Some((name, addresses, rest)) = entry else { return Err("a business card is cut short".into()) };
        entries.push((name, addresses));
        card = rest;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            cards in proptest::collection::vec(("[a-z]{0,8}", proptest::collection::vec(any::<u8>(), 0..300)), 0..4),
        ) {
            let cards: Vec<(&str, &[u8])> = cards.iter().map(|(name, addresses)| (&**name, &**addresses)).collect();
            let card = encode(cards.iter().copied()).unwrap();
            prop_assert_eq!(&decode(&card).unwrap(), &cards);
            // A card that is cut off is one of fewer fabrics, or no card.
            for len in 0..card.len() {
                if let Ok(entries) = decode(&card[..len]) {
                    prop_assert!(entries.len() < cards.len());
                }
            }
        }

        #[test]
        fn no_bytes_are_too_bad(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn what_is_too_long_is_refused() {
        assert!(encode([("tcp", &[0; 65_536][..])]).is_err());
        assert!(encode([(&*"x".repeat(256), &[][..])]).is_err());
    }
}
