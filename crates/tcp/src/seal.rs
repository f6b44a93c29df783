//! Encryption of a connection: [`Keys`], and the [`Sealer`] and [`Opener`] of the records that carry its bytes. Pure: bytes in, bytes
//! out.
//!
//! Each direction of each connection has a key of its own, derived from the secrets of its handshake (HKDF-SHA256). A record is a
//! length (4 bytes, little-endian), as many bytes of the stream, encrypted, and a tag of 16 bytes, which covers the length, too. The
//! nonce is the number of the record on the connection, so records that are left out, repeated, exchanged or changed do not open.

use chacha20poly1305::{AeadInPlace, ChaCha20Poly1305, KeyInit};
use hkdf::Hkdf;
#[cfg(feature = "aes")]
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use sha2::Sha256;

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
    #[cfg(feature = "aes")]
    Aes,
    /// ChaCha20-Poly1305.
    ChaCha,
}

impl Cipher {
    /// AES, where it is built in, or ChaCha20.
    pub fn new(aes: bool) -> Cipher {
        match aes {
            #[cfg(feature = "aes")]
            true => Cipher::Aes,
            _ => Cipher::ChaCha,
        }
    }

    /// True if AES is the quicker one here: it is built in, and this processor has instructions for it.
    pub fn is_aes_quicker() -> bool {
        #[cfg(target_arch = "x86_64")]
        let aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let aes = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let aes = false;
        aes && cfg!(feature = "aes")
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
            let mut bytes = [0; 32];
            let derived = Hkdf::<Sha256>::new(Some(hash), secret).expand(b"banyan tcp 3 frames", &mut bytes);
            derived.expect("a length that is allowed");
            Counted { key: Key::new(cipher, &bytes), records: 0 }
        };
        let [mut out, mut back] = secrets;
        if !connecting {
            std::mem::swap(&mut out, &mut back);
        }
        Keys { seal: Sealer(key(out)), open: Opener(key(back)) }
    }
}

/// The key of a direction.
enum Key {
    #[cfg(feature = "aes")]
    Aes(Box<LessSafeKey>),
    ChaCha(ChaCha20Poly1305),
}

impl Key {
    fn new(cipher: Cipher, bytes: &[u8; 32]) -> Key {
        match cipher {
            #[cfg(feature = "aes")]
            Cipher::Aes => {
                let key = UnboundKey::new(&AES_256_GCM, bytes).expect("a key of the right length");
                Key::Aes(Box::new(LessSafeKey::new(key)))
            }
            Cipher::ChaCha => Key::ChaCha(ChaCha20Poly1305::new(bytes.into())),
        }
    }

    /// Encrypts the bytes in place; gives the tag, which covers the length, too.
    fn seal(&self, nonce: [u8; 12], length: [u8; LENGTH], bytes: &mut [u8]) -> [u8; TAG] {
        match self {
            #[cfg(feature = "aes")]
            Key::Aes(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(length), bytes);
                tag.expect("a length that is allowed").as_ref().try_into().expect("a tag's length")
            }
            Key::ChaCha(key) => {
                let tag = key.encrypt_in_place_detached(&nonce.into(), &length, bytes);
                tag.expect("a length that is allowed").into()
            }
        }
    }

    /// Decrypts bytes in place that their tag follows.
    fn open(&self, nonce: [u8; 12], length: [u8; LENGTH], sealed: &mut [u8]) -> Result<(), Forged> {
        match self {
            #[cfg(feature = "aes")]
            Key::Aes(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place(nonce, Aad::from(length), sealed).map(drop).map_err(|_| Forged)
            }
            Key::ChaCha(key) => {
                let (bytes, tag) = sealed.split_last_chunk_mut::<TAG>().ok_or(Forged)?;
                let opened = key.decrypt_in_place_detached(&nonce.into(), &length, bytes, (&*tag).into());
                opened.map_err(|_| Forged)
            }
        }
    }
}

/// A key, and the number of records that it was used for.
struct Counted {
    key: Key,
    records: u64,
}

impl Counted {
    /// A nonce that was never used with this key.
    fn nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        // At a record every nanosecond 2^64 of them take 500 years.
        self.records += 1;
        nonce
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
        let tag = self.0.key.seal(nonce, length, &mut out[LENGTH..end]);
        out[end..end + TAG].copy_from_slice(&tag);
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
        self.0.key.open(nonce, length, sealed)?;
        Ok(Some((&sealed[..len], size)))
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
            let [mut a, mut b] = both(Cipher::new(aes));
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
            let [mut a, mut b] = both(Cipher::new(aes));
            let mut record = sealed(&mut a, &bytes);
            let at = at.index(record.len());
            record[at] ^= 1u8 << bit;
            // A length that grew asks for bytes that are not there.
            prop_assert!(matches!(b.open.open(&mut record), Err(Forged) | Ok(None)));
        }

        #[test]
        fn any_bytes_do_not_open(mut bytes: Vec<u8>) {
            let [_, mut b] = both(Cipher::new(true));
            prop_assert!(matches!(b.open.open(&mut bytes), Err(Forged) | Ok(None)));
        }
    }

    #[test]
    fn records_out_of_turn_do_not_open() {
        for cipher in [true, false].map(Cipher::new) {
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
        let [_, mut b] = both(Cipher::new(true));
        let length = (MAX_PLAIN as u32 + 1).to_le_bytes();
        assert_eq!(b.open.open(&mut length.clone()), Err(Forged));
    }
}
