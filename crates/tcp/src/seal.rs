//! Encryption of a connection: [`Keys`], and the [`Sealer`] and [`Opener`] of the records that carry its bytes. Pure: bytes in, bytes
//! out.
//!
//! Each direction of each connection has a key of its own, derived from the secrets of its handshake (HKDF-SHA256). A record is a
//! length (4 bytes, little-endian), as many bytes of the stream, encrypted, and a tag of 16 bytes, which covers the length, too. The
//! nonce is the number of the record on the connection, so records that are left out, repeated, exchanged or changed do not open.

use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

/// Most bytes of the stream in a record.
pub const MAX_PLAIN: usize = 64 * 1024;

/// Bytes of the length in front of a record.
pub const LENGTH: usize = 4;

/// Bytes of the tag behind it.
pub const TAG: usize = 16;

/// Largest record, bytes.
pub const MAX_RECORD: usize = LENGTH + MAX_PLAIN + TAG;

/// How records are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// AES-256-GCM.
    Aes,
    /// ChaCha20-Poly1305.
    ChaCha,
}

impl Cipher {
    /// The one that this processor does quicker: AES where it has instructions for it.
    pub fn quicker() -> Cipher {
        #[cfg(target_arch = "x86_64")]
        let aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let aes = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let aes = false;
        if aes { Cipher::Aes } else { Cipher::ChaCha }
    }

    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes => &AES_256_GCM,
            Cipher::ChaCha => &CHACHA20_POLY1305,
        }
    }
}

/// A record that is not the one that the peer has sent next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what came was not sealed by the peer: it was changed on the way, or inserted")]
pub struct Forged;

/// The keys of a connection.
pub struct Keys {
    /// For what this side sends.
    pub seal: Sealer,
    /// For what it receives.
    pub open: Opener,
}

impl Keys {
    /// The keys that follow from what both sides, and nobody else, have after a handshake: a secret for each direction (the
    /// connecting side's first), and the hash of all that was said.
    pub fn new(cipher: Cipher, secrets: [&[u8; 32]; 2], hash: &[u8], connecting: bool) -> Keys {
        let key = |secret: &[u8; 32]| {
            let derived = Salt::new(HKDF_SHA256, hash).extract(secret);
            let derived =
                derived.expand(&[b"banyan tcp 3 frames"], Bits256).expect("a length that is allowed");
            let mut bytes = [0; 32];
            derived.fill(&mut bytes).expect("the same length");
            let key = UnboundKey::new(cipher.algorithm(), &bytes).expect("a key of the right length");
            Counted { key: LessSafeKey::new(key), records: 0 }
        };
        let [mut out, mut back] = secrets;
        if !connecting {
            std::mem::swap(&mut out, &mut back);
        }
        Keys { seal: Sealer(key(out)), open: Opener(key(back)) }
    }
}

/// The length of a derived key.
struct Bits256;

impl KeyType for Bits256 {
    fn len(&self) -> usize {
        32
    }
}

/// A key, and the number of records that it was used for.
struct Counted {
    key: LessSafeKey,
    records: u64,
}

impl Counted {
    /// A nonce that was never used with this key.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        // At a record every nanosecond 2^64 of them take 500 years.
        self.records += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Makes records.
pub struct Sealer(Counted);

impl Sealer {
    /// Makes a record in `out`, which has room for [`MAX_RECORD`] bytes, of those at most [`MAX_PLAIN`] that `fill` writes to the memory
    /// that it gets; it gives their number. Gives the size of the record.
    pub fn seal(&mut self, out: &mut [u8], fill: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let len = fill(&mut out[LENGTH..LENGTH + MAX_PLAIN]);
        let length = (len as u32).to_le_bytes();
        out[..LENGTH].copy_from_slice(&length);
        let (nonce, end) = (self.0.nonce(), LENGTH + len);
        let tag = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(length), &mut out[LENGTH..end]);
        out[end..end + TAG].copy_from_slice(tag.expect("a length that is allowed").as_ref());
        end + TAG
    }
}

/// Opens records.
pub struct Opener(Counted);

impl Opener {
    /// Opens the record that `bytes` begin with, in place: gives its bytes of the stream, and the size of the record; `None` if not
    /// all of it is there.
    pub fn open<'a>(&mut self, bytes: &'a mut [u8]) -> Result<Option<(&'a [u8], usize)>, Forged> {
        let Some(&length) = bytes.first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(length) as usize;
        if len > MAX_PLAIN {
            return Err(Forged);
        }
        let size = LENGTH + len + TAG;
        let Some(sealed) = bytes.get_mut(LENGTH..size) else { return Ok(None) };
        let nonce = self.0.nonce();
        let plain = self.0.key.open_in_place(nonce, Aad::from(length), sealed).map_err(|_| Forged)?;
        Ok(Some((plain, size)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn both(cipher: Cipher) -> [Keys; 2] {
        [true, false].map(|connecting| Keys::new(cipher, [&[1; 32], &[2; 32]], &[3; 32], connecting))
    }

    fn sealed(keys: &mut Keys, plain: &[u8]) -> Vec<u8> {
        let mut record = vec![0; MAX_RECORD];
        let size = keys.seal.seal(&mut record, |out| {
            out[..plain.len()].copy_from_slice(plain);
            plain.len()
        });
        record.truncate(size);
        record
    }

    proptest! {
        #[test]
        fn records_are_opened_as_they_were_sealed(plain: Vec<Vec<u8>>, aes: bool) {
            let [mut a, mut b] = both(if aes { Cipher::Aes } else { Cipher::ChaCha });
            for bytes in &plain {
                for turn in 0..2 {
                    let (from, to) = if turn == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                    let mut record = sealed(from, bytes);
                    let size = record.len();
                    prop_assert_eq!(size, LENGTH + bytes.len() + TAG);
                    prop_assert_eq!(to.open.open(&mut record[..size - 1]), Ok(None));
                    record.extend(b"what follows");
                    prop_assert_eq!(to.open.open(&mut record), Ok(Some((&bytes[..], size))));
                }
            }
        }

        #[test]
        fn a_record_that_is_changed_does_not_open(bytes: Vec<u8>, at: prop::sample::Index, bit in 0..8, aes: bool) {
            let [mut a, mut b] = both(if aes { Cipher::Aes } else { Cipher::ChaCha });
            let mut record = sealed(&mut a, &bytes);
            let at = at.index(record.len());
            record[at] ^= 1u8 << bit;
            // A length that grew asks for bytes that are not there.
            prop_assert!(matches!(b.open.open(&mut record), Err(Forged) | Ok(None)));
        }

        #[test]
        fn any_bytes_do_not_open(mut bytes: Vec<u8>) {
            let [_, mut b] = both(Cipher::Aes);
            prop_assert!(matches!(b.open.open(&mut bytes), Err(Forged) | Ok(None)));
        }
    }

    #[test]
    fn records_out_of_turn_do_not_open() {
        for cipher in [Cipher::Aes, Cipher::ChaCha] {
            let [mut a, mut b] = both(cipher);
            let [first, second] = [b"one", b"two"].map(|plain| sealed(&mut a, plain));
            assert_eq!(b.open.open(&mut second.clone()), Err(Forged), "the first one is missing");
            let [mut a, mut b] = both(cipher);
            assert_eq!(sealed(&mut a, b"one"), first, "the keys follow from the handshake");
            assert!(b.open.open(&mut first.clone()).is_ok());
            assert_eq!(b.open.open(&mut first.clone()), Err(Forged), "it came before");
            let [_, mut b] = both(cipher);
            let mut back = sealed(&mut b, b"one");
            assert_eq!(b.open.open(&mut back), Err(Forged), "it is this side's own");
            let [mut other, _] =
                [true, false].map(|of| Keys::new(cipher, [&[1; 32], &[2; 32]], &[4; 32], of));
            let [_, mut b] = both(cipher);
            assert_eq!(b.open.open(&mut sealed(&mut other, b"one")), Err(Forged), "of another connection");
        }
    }

    #[test]
    fn a_length_that_is_impossible_is_refused_at_once() {
        let [_, mut b] = both(Cipher::Aes);
        let length = (MAX_PLAIN as u32 + 1).to_le_bytes();
        assert_eq!(b.open.open(&mut length.clone()), Err(Forged));
    }
}
