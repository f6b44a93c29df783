//! The proof of the job's secret: a peer that does not know it is never accepted by either side, whatever it sends.
//!
//! Parser: crates/tcp/src/handshake.rs
#![no_main]

use banyan_tcp::handshake::{Answer, Features, Handshake, Heard, Hello, message_length};
use banyan_transport::Peer;
use libfuzzer_sys::fuzz_target;

const SECRET: [u8; 32] = [7; 32];

/// A handshake of two sides that know the secret, of whose four messages one is changed on the way: neither side is content then.
fn changed(bytes: &[u8], hello: Hello) {
    let [which, at, by, ..] = *bytes else { return };
    let mut number = 0;
    let mut pass = |mut message: Vec<u8>| {
        let end = message.len() - 2;
        message[2 + usize::from(at) % end] ^= if number == which % 4 { by } else { 0 };
        number += 1;
        message.split_off(2)
    };
    let (mut connecting, opening) = Handshake::connect(&SECRET, hello).expect("a handshake");
    let mut accepting = Handshake::accept(&SECRET).expect("a handshake");
    let asked = accepting.hear(&pass(opening));
    if asked.is_err() {
        return assert!(by != 0);
    }
    let answer = accepting.answer(Answer::Accept, Features::ENCRYPT).expect("it is asked");
    if connecting.hear(&pass(answer)).is_err() {
        return assert!(by != 0);
    }
    let proof = connecting.prove(bytes.len() as u64).expect("it is answered");
    if accepting.hear(&pass(proof)).is_err() {
        return assert!(by != 0);
    }
    let (confirmation, session) = accepting.confirm(5).expect("it is proven");
    assert!(session.keys.is_some() && session.received == bytes.len() as u64);
    let confirmed = connecting.hear(&pass(confirmation));
    assert!(confirmed.is_ok() == (by == 0), "a changed message is not noticed");
}

fuzz_target!(|bytes: &[u8]| {
    let mut accepting = Handshake::accept(&SECRET).expect("a handshake");
    let (from, to, answer, features) = (Peer(0), Peer(1), Answer::Accept, Features::RESUME);
    let hello = Hello { job: 1, from, to, stream: 0, attempt: 1, features, answer };
    let (mut connecting, _) = Handshake::connect(&SECRET, hello).expect("a handshake");
    changed(bytes, hello);
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(&hello.encode()[..], bytes);
    }
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
