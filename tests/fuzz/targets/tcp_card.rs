//! Address business cards, as other ranks publish them.
//!
//! Parser: crates/tcp/src/business_card.rs
#![no_main]

use banyan_tcp::business_card::{decode, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(addresses) = decode(bytes) {
        assert_eq!(decode(&encode(&addresses)).ok(), Some(addresses));
    }
});
