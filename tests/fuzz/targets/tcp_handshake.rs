//! The proof of the job's secret: a peer that does not know it is never accepted by either side, whatever it sends.
#![no_main]

use banyan_tcp::handshake::{Answer, Handshake, Heard, Hello, message_length};
use banyan_transport::Peer;
use libfuzzer_sys::fuzz_target;

const SECRET: [u8; 32] = [7; 32];

fuzz_target!(|bytes: &[u8]| {
    let mut accepting = Handshake::accept(&SECRET).expect("a handshake");
    let hello = Hello { job: 1, from: Peer(0), to: Peer(1), stream: 0, answer: Answer::Accept };
    let (mut connecting, _) = Handshake::connect(&SECRET, hello).expect("a handshake");
    let mut rest = bytes;
    while let Ok(Some(length)) = message_length(rest) {
        let Some(message) = rest.get(2..2 + length) else { break };
        rest = &rest[2 + length..];
        for side in [&mut accepting, &mut connecting] {
            match side.hear(message) {
                Ok(Heard::Proven(..) | Heard::Confirmed | Heard::Accepted(_)) => {
                    panic!("accepted without the secret")
                }
                Ok(Heard::Asked(_)) => {
                    let _ = side.answer(Answer::Accept);
                }
                Ok(Heard::Refused) | Err(_) => {}
            }
        }
    }
});
