//! Frames on a TCP connection: any stream of bytes is read to its end or to its first fault.
//!
//! Parser: crates/tcp/src/frame.rs
#![no_main]

use banyan_tcp::frame::{ACK, Decoded, decode};
use banyan_transport::Head;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(decoded) = decode(rest) {
        match decoded {
            Decoded::Frame(_, body) => {
                let used = 4 + Head::BYTES + body.len();
                rest = &rest[used..];
            }
            Decoded::Need(total) => {
                assert!(total > rest.len());
                return;
            }
            Decoded::Ack(_) => rest = &rest[ACK..],
            Decoded::Bye => return,
        }
    }
});
