//! Bytes as the short texts that a launcher's key-value store takes: base64 in chunks, the first of which begins with their
//! number, as in `2.AAEC...`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

/// Most chunks of a record; more are refused.
pub const MAX_CHUNKS: usize = 999;

/// Characters in front of the first chunk, at most.
const PREFIX: usize = "999.".len();

/// The chunks of `bytes`, each of at most `longest` characters; `None` if that would be too many.
pub fn split(bytes: &[u8], longest: usize) -> Option<Vec<String>> {
    let room = longest.checked_sub(PREFIX).filter(|&room| room > 0)?;
    let text = BASE64.encode(bytes);
    let count = text.len().div_ceil(room).max(1);
    if count > MAX_CHUNKS {
        return None;
    }
    // The text is ASCII, so that it can be cut anywhere.
    let chunk = |n: usize| &text[n * room..text.len().min((n + 1) * room)];
    Some(
        (0..count)
            .map(|n| if n == 0 { format!("{count}.{}", chunk(0)) } else { chunk(n).to_owned() })
            .collect(),
    )
}

/// The bytes whose first chunk is `first`; `more` gives those that follow, by number. `None` if they are not what
/// [`split`] made.
///
/// # Errors
/// Those of `more`.
pub fn join<E>(
    first: &str,
    mut more: impl FnMut(usize) -> Result<Option<String>, E>,
) -> Result<Option<Vec<u8>>, E> {
    let Some((count, start)) = first.split_once('.') else { return Ok(None) };
    let Some(count) = count.parse().ok().filter(|count| (1..=MAX_CHUNKS).contains(count)) else {
        return Ok(None);
    };
    let mut text = start.to_owned();
    for number in 1..count {
        match more(number)? {
            Some(chunk) => text.push_str(&chunk),
            None => return Ok(None),
        }
    }
    Ok(BASE64.decode(text).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(chunks: &[String]) -> Option<Vec<u8>> {
        join(&chunks[0], |n| Ok::<_, ()>(chunks.get(n).cloned())).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_split_is_joined(bytes in prop::collection::vec(any::<u8>(), 0..2000), longest in 10usize..600) {
            let chunks = split(&bytes, longest).unwrap();
            prop_assert!(chunks.iter().all(|chunk| chunk.len() <= longest && chunk.bytes().all(|b| b.is_ascii_graphic())));
            prop_assert_eq!(joined(&chunks), Some(bytes));
            if chunks.len() > 1 {
                prop_assert_eq!(joined(&chunks[..chunks.len() - 1]), None);
            }
        }

        #[test]
        fn any_text_is_joined_or_refused(first in "[0-9]{0,4}\\.?\\PC{0,20}", more in "\\PC{0,20}") {
            let _ = join(&first, |_| Ok::<_, ()>(Some(more.clone())));
        }
    }

    #[test]
    fn records_are_bounded() {
        assert_eq!(split(&[0; 10_000], 10), None);
        assert_eq!(split(b"x", 4), None);
        assert_eq!(joined(&["1000.AA".to_owned()]), None);
        assert_eq!(joined(&["0.".to_owned()]), None);
    }
}
