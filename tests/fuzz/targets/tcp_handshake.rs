//! The proof of the job's secret: a peer that does not know it is never accepted by either side, whatever it sends.
#![no_main]

use banyan_tcp::handshake::{Answer, Features, Handshake, Heard, Hello, message_length};
use banyan_transport::Peer;
use libfuzzer_sys::fuzz_target;

const SECRET: [u8; 32] = [7; 32];

fuzz_target!(|bytes: &[u8]| {
    let mut accepting = Handshake::accept(&SECRET).expect("a handshake");
    let (from, to, answer, features) = (Peer(0), Peer(1), Answer::Accept, Features::RESUME);
    let hello = Hello { job: 1, from, to, stream: 0, attempt: 1, features, answer };
    let (mut connecting, _) = Handshake::connect(&SECRET, hello).expect("a handshake");
    let mut rest = bytes;
    while let Ok(Some(length)) = message_length(rest) {
        let Some(message) = rest.get(2..2 + length) else { break };
        rest = &rest[2 + length..];
        for side in [&mut accepting, &mut connecting] {
            match side.hear(message) {
                Ok(Heard::Proven(_) | Heard::Confirmed(_) | Heard::Accepted) => {
                    panic!("accepted without the secret")
                }
                Ok(Heard::Asked(_)) => {
                    let _ = side.answer(Answer::Accept, Features::NONE);
                }
                Ok(Heard::Refused) | Err(_) => {}
            }
        }
    }
});
