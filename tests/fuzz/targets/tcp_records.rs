//! Records of an encrypted connection: bytes that the peer did not seal never open.
#![no_main]

use banyan_tcp::seal::{Cipher, Keys};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for cipher in [Cipher::Aes, Cipher::ChaCha] {
        let mut keys = Keys::new(cipher, [&[1; 32], &[2; 32]], &[3; 32], false);
        let mut input = bytes.to_vec();
        if let Ok(Some(_)) = keys.open.open(&mut input) {
            panic!("opened without the key");
        }
    }
});
