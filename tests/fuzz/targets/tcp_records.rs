//! Records of an encrypted connection: bytes that the peer did not seal never open, and no record opens that was changed on the way.
//!
//! Parser: crates/tcp/src/seal.rs
#![no_main]

use banyan_tcp::seal::{Cipher, Keys, MAX_RECORD};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for cipher in [true, false].map(Cipher::new) {
        let mut keys = Keys::new(cipher, [&[1; 32], &[2; 32]], &[3; 32], false);
        let mut input = bytes.to_vec();
        if let Ok(Some(_)) = keys.open.open(&mut input) {
            panic!("opened without the key");
        }
        let [first, second, by, rest @ ..] = bytes else { continue };
        let mut of_peer = Keys::new(cipher, [&[1; 32], &[2; 32]], &[3; 32], true);
        let mut keys = Keys::new(cipher, [&[1; 32], &[2; 32]], &[3; 32], false);
        let mut record = vec![0; MAX_RECORD];
        let size = of_peer.seal.seal(&mut record, |out| {
            out[..rest.len()].copy_from_slice(rest);
            rest.len()
        });
        record.truncate(size);
        record[usize::from(u16::from_le_bytes([*first, *second])) % size] ^= by;
        match keys.open.open(&mut record) {
            Ok(Some((text, used))) => {
                assert!(*by == 0 && text == rest && used == size, "a change is not noticed")
            }
            // A changed length may ask for more.
            Ok(None) | Err(_) => assert!(*by != 0),
        }
    }
});
