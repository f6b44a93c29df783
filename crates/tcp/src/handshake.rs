//! The handshake: both sides prove that they know the job's secret, say who they are, and agree that this is
//! the connection to keep. Pure: messages in, messages out; no socket and no clock.
//!
//! Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s (revision 34 of the Noise protocol), the secret as pre-shared key:
//!
//! 1. *opening*, from the connecting side, with its [`Hello`];
//! 2. *answer*, with the [`Hello`] of the accepting side, which accepts or refuses;
//! 3. *proof*: an empty sealed message, so that a recorded opening, replayed, gets nowhere;
//! 4. *confirmation*: an empty sealed message; from now on frames may follow, in both directions.
//!
//! Each message follows its length (2 bytes, little-endian).

use banyan_transport::Peer;
use snow::{HandshakeState, TransportState};

/// Largest message, bytes.
pub const MAX_MESSAGE: usize = 128;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"banyan tcp 2";

/// Whether a connection is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Answer {
    /// Accepted. An opening carries this, too.
    Accept = 1,
    /// Refused: the two peers have, or will have, another connection.
    Duplicate = 2,
}

/// The sender, the receiver and the job of a handshake message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The job's number.
    pub job: u64,
    /// The peer that sends this hello.
    pub from: Peer,
    /// The peer that it is sent to.
    pub to: Peer,
    /// Which of the streams between the two peers the connection is, from 0.
    pub stream: u8,
    /// Whether the sender accepts the connection.
    pub answer: Answer,
}

impl Hello {
    /// Bytes of an encoded hello.
    pub const BYTES: usize = 18;

    /// Little-endian form: job, from, to, stream, answer.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.job.to_le_bytes());
        out[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        (out[16], out[17]) = (self.stream, self.answer as u8);
        out
    }

    /// Reads what [`Hello::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let (job, rest) = bytes.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (stream, answer) = match *rest {
            [stream, 1] => (stream, Answer::Accept),
            [stream, 2] => (stream, Answer::Duplicate),
            _ => return None,
        };
        let (from, to) = (Peer(u32::from_le_bytes(*from)), Peer(u32::from_le_bytes(*to)));
        Some(Hello { job: u64::from_le_bytes(*job), from, to, stream, answer })
    }
}

/// The length of the message that begins at the first byte; `None` if it is not there yet.
pub fn message_length(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    match usize::from(u16::from_le_bytes(*length)) {
        length @ 1..=MAX_MESSAGE => Ok(Some(length)),
        length => Err(Fault::Length(length)),
    }
}

/// Why a handshake failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The length of a message is not one of this protocol.
    #[error("it sent a handshake message of {0} bytes: it does not speak our protocol")]
    Length(usize),
    /// The other side does not know the secret, or a message was changed on the way.
    #[error("it did not prove to know the secret of this job")]
    Unproven,
    /// The other side knows the secret, but what it sent is no hello.
    #[error("it sent a malformed hello: it does not speak our version of the protocol")]
    Malformed,
    /// The other side knows the secret but is not the process that was expected.
    #[error("it is another process than expected")]
    WrongPeer,
    /// The cryptographic library failed on our side.
    #[error("the handshake could not be made: {0}")]
    Local(String),
}

/// One side of a handshake. Each state is named for the message that it awaits.
pub enum Handshake {
    /// Accepting side, nothing received yet.
    Opening(Box<HandshakeState>),
    /// Accepting side, opening received: [`Handshake::answer`] is to be called.
    Verdict(Box<HandshakeState>, Hello),
    /// Connecting side, opening sent: the hello that the answer must carry.
    Answer(Box<HandshakeState>, Hello),
    /// Accepting side, answer sent: the hello of the opening.
    Proof(Box<TransportState>, Hello),
    /// Connecting side, proof sent.
    Confirmation(Box<TransportState>),
    /// The handshake is over.
    Over,
}

/// What a received message means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Accepting side: a peer that knows the secret (or replays an opening) connects; [`Handshake::answer`] is to be called.
    Asked(Hello),
    /// Connecting side: accepted; send these bytes and wait for the confirmation.
    Accepted(Vec<u8>),
    /// Connecting side: refused, since there is another connection.
    Refused,
    /// Accepting side: the other side is proven to be what its hello says; send these bytes, then frames may follow.
    Proven(Hello, Vec<u8>),
    /// Connecting side: frames may follow.
    Confirmed,
}

impl Handshake {
    /// The connecting side, and the opening to send.
    pub fn connect(secret: &[u8; 32], hello: Hello) -> Result<(Handshake, Vec<u8>), Fault> {
        let mut state = builder(secret)?.build_initiator().map_err(local)?;
        let opening = sealed(|out| state.write_message(&hello.encode(), out))?;
        let expected = Hello { from: hello.to, to: hello.from, ..hello };
        Ok((Handshake::Answer(Box::new(state), expected), opening))
    }

    /// The accepting side.
    pub fn accept(secret: &[u8; 32]) -> Result<Handshake, Fault> {
        Ok(Handshake::Opening(Box::new(builder(secret)?.build_responder().map_err(local)?)))
    }

    /// Handles a received message (without its length). After an error the handshake is over.
    pub fn hear(&mut self, message: &[u8]) -> Result<Heard, Fault> {
        let mut payload = [0; MAX_MESSAGE];
        let unproven = |_| Fault::Unproven;
        match std::mem::replace(self, Handshake::Over) {
            Handshake::Opening(mut state) => {
                let len = state.read_message(message, &mut payload).map_err(unproven)?;
                let hello = Hello::decode(&payload[..len]).ok_or(Fault::Malformed)?;
                *self = Handshake::Verdict(state, hello);
                Ok(Heard::Asked(hello))
            }
            Handshake::Answer(mut state, expected) => {
                let len = state.read_message(message, &mut payload).map_err(unproven)?;
                let hello = Hello::decode(&payload[..len]).ok_or(Fault::Malformed)?;
                if (Hello { answer: expected.answer, ..hello }) != expected {
                    return Err(Fault::WrongPeer);
                }
                if hello.answer == Answer::Duplicate {
                    return Ok(Heard::Refused);
                }
                let mut state = state.into_transport_mode().map_err(local)?;
                let proof = sealed(|out| state.write_message(&[], out))?;
                *self = Handshake::Confirmation(Box::new(state));
                Ok(Heard::Accepted(proof))
            }
            Handshake::Proof(mut state, hello) => {
                state.read_message(message, &mut payload).map_err(unproven)?;
                Ok(Heard::Proven(hello, sealed(|out| state.write_message(&[], out))?))
            }
            Handshake::Confirmation(mut state) => {
                state.read_message(message, &mut payload).map_err(unproven)?;
                Ok(Heard::Confirmed)
            }
            Handshake::Verdict(..) | Handshake::Over => Err(Fault::Unproven),
        }
    }

    /// Answers the opening; gives the bytes to send. After a refusal, or if there was no opening, the handshake is over.
    pub fn answer(&mut self, answer: Answer) -> Result<Vec<u8>, Fault> {
        let Handshake::Verdict(mut state, opening) = std::mem::replace(self, Handshake::Over) else {
            return Err(Fault::Unproven);
        };
        let hello = Hello { from: opening.to, to: opening.from, answer, ..opening };
        let message = sealed(|out| state.write_message(&hello.encode(), out))?;
        if answer == Answer::Accept {
            *self = Handshake::Proof(Box::new(state.into_transport_mode().map_err(local)?), opening);
        }
        Ok(message)
    }
}

fn builder(secret: &[u8; 32]) -> Result<snow::Builder<'_>, Fault> {
    let pattern = PATTERN.parse().map_err(local)?;
    snow::Builder::new(pattern).prologue(PROLOGUE).and_then(|b| b.psk(0, secret)).map_err(local)
}

/// The message that `write` makes, with its length in front.
fn sealed(write: impl FnOnce(&mut [u8]) -> Result<usize, snow::Error>) -> Result<Vec<u8>, Fault> {
    let mut message = vec![0; 2 + MAX_MESSAGE];
    let len = write(&mut message[2..]).map_err(local)?;
    message[..2].copy_from_slice(&(len as u16).to_le_bytes());
    message.truncate(2 + len);
    Ok(message)
}

fn local(error: snow::Error) -> Fault {
    Fault::Local(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: [u8; 32] = [7; 32];
    const HELLO: Hello = Hello { job: 5, from: Peer(1), to: Peer(2), stream: 3, answer: Answer::Accept };

    fn inner(message: &[u8]) -> &[u8] {
        let len = message_length(message).unwrap().unwrap();
        assert_eq!(message.len(), 2 + len);
        &message[2..]
    }

    #[test]
    fn both_sides_end_up_proven() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        assert_eq!(b.hear(inner(&opening)), Ok(Heard::Asked(HELLO)));
        let answer = b.answer(Answer::Accept).unwrap();
        let Ok(Heard::Accepted(proof)) = a.hear(inner(&answer)) else { panic!() };
        let Ok(Heard::Proven(HELLO, confirmation)) = b.hear(inner(&proof)) else { panic!() };
        assert_eq!(a.hear(inner(&confirmation)), Ok(Heard::Confirmed));
        assert!(a.hear(inner(&confirmation)).is_err() && b.hear(inner(&proof)).is_err());
    }

    #[test]
    fn a_refusal_is_sealed_too() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        b.hear(inner(&opening)).unwrap();
        let answer = b.answer(Answer::Duplicate).unwrap();
        assert_eq!(a.hear(inner(&answer)), Ok(Heard::Refused));
    }

    #[test]
    fn another_secret_proves_nothing() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        assert_eq!(Handshake::accept(&[8; 32]).unwrap().hear(inner(&opening)), Err(Fault::Unproven));
        let (_, other) = Handshake::connect(&[8; 32], HELLO).unwrap();
        assert_eq!(a.hear(inner(&other)), Err(Fault::Unproven));
    }

    #[test]
    fn a_replayed_opening_gets_no_further() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        b.hear(inner(&opening)).unwrap();
        let answer = b.answer(Answer::Accept).unwrap();
        let Ok(Heard::Accepted(proof)) = a.hear(inner(&answer)) else { panic!() };
        let mut replayed = Handshake::accept(&SECRET).unwrap();
        replayed.hear(inner(&opening)).unwrap();
        replayed.answer(Answer::Accept).unwrap();
        assert_eq!(replayed.hear(inner(&proof)), Err(Fault::Unproven));
    }

    #[test]
    fn another_process_or_stream_than_expected_is_refused() {
        let expected = Hello { from: Peer(2), to: Peer(1), ..HELLO };
        for hello in [Hello { from: Peer(3), ..expected }, Hello { stream: 0, ..expected }] {
            let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
            let mut state = builder(&SECRET).unwrap().build_responder().unwrap();
            state.read_message(inner(&opening), &mut [0; MAX_MESSAGE]).unwrap();
            let answer = sealed(|out| state.write_message(&hello.encode(), out)).unwrap();
            assert_eq!(a.hear(inner(&answer)), Err(Fault::WrongPeer));
        }
    }

    proptest! {
        #[test]
        fn a_hello_is_read_as_it_was_written(job: u64, from: u32, to: u32, stream: u8, accept: bool) {
            let answer = if accept { Answer::Accept } else { Answer::Duplicate };
            let hello = Hello { job, from: Peer(from), to: Peer(to), stream, answer };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn any_bytes_are_a_hello_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Some(hello) = Hello::decode(&bytes) { prop_assert_eq!(&hello.encode()[..], bytes); }
        }

        #[test]
        fn any_message_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..=MAX_MESSAGE)) {
            prop_assert!(Handshake::accept(&SECRET).unwrap().hear(&bytes).is_err());
            prop_assert!(Handshake::connect(&SECRET, HELLO).unwrap().0.hear(&bytes).is_err());
            if let Ok(Some(len)) = message_length(&bytes) { prop_assert!((1..=MAX_MESSAGE).contains(&len)); }
        }
    }
}
