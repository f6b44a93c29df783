//! Frames between launcher and rank: any bytes are a frame, an error, or wait for more.
//!
//! Parser: crates/pmi/src/codec.rs crates/pmi/src/frame.rs
#![no_main]

use banyan_pmi::codec::{decode_reply, decode_request, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((frame, used))) = decode_request(bytes) {
        assert!(used <= bytes.len());
        let mut again = Vec::new();
        encode(&frame, &mut again).expect("what was read can be written");
    }
    if let Ok(Some((frame, used))) = decode_reply(bytes) {
        assert!(used <= bytes.len());
        let mut again = Vec::new();
        encode(&frame, &mut again).expect("what was read can be written");
    }
});
