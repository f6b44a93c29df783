//! The handshake: both sides prove that they know the job's secret, say who they are, and agree that this is
//! the connection to keep. Pure: messages in, messages out; no socket and no clock.
//!
//! Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s (revision 34 of the Noise protocol), the secret as pre-shared key:
//!
//! 1. *opening*, from the connecting side, with its [`Hello`];
//! 2. *answer*, with the [`Hello`] of the accepting side, which accepts or refuses;
//! 3. *proof*: a sealed message, so that a recorded opening, replayed, gets nowhere; it says how many bytes of the stream the
//!    connecting side has received on connections before this one;
//! 4. *confirmation*: a sealed message that says the same of the accepting side, which from here on reads nothing more from a
//!    connection before; frames may follow, in both directions.
//!
//! Each message follows its length (2 bytes, little-endian).

use banyan_transport::Peer;
use snow::{HandshakeState, TransportState};

use crate::seal::{Cipher, Keys};

/// Largest message, bytes.
pub const MAX_MESSAGE: usize = 128;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"banyan tcp 3";

/// Whether a connection is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Answer {
    /// Accepted. An opening carries this, too.
    Accept = 1,
    /// Refused: the two peers have, or will have, another connection.
    Duplicate = 2,
}

/// What is done on a connection. In an opening: what the connecting side wants or can do; in an answer: what holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Features(u8);

impl Features {
    /// Nothing in particular.
    pub const NONE: Features = Features(0);
    /// The stream goes on with the next connection when this one breaks.
    pub const RESUME: Features = Features(1);
    /// All bytes after the handshake are encrypted.
    pub const ENCRYPT: Features = Features(2);
    /// This side does AES quicker than ChaCha; of an answer: what is encrypted is so by AES.
    pub const AES: Features = Features(4);
    /// These hold if one side wants them, others if both have them.
    const WANTED: u8 = 3;
    const ALL: u8 = 7;

    /// All of both.
    pub fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// True if all of `other` are among these.
    pub fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// What holds between two sides.
    fn agreed(self, other: Features) -> Features {
        Features((self.0 | other.0) & Self::WANTED | self.0 & other.0)
    }
}

/// What a handshake that is over has agreed upon.
pub struct Session {
    /// What holds on the connection.
    pub features: Features,
    /// How many bytes of the stream the peer has received before.
    pub received: u64,
    /// The keys for what follows, if it is encrypted.
    pub keys: Option<Box<Keys>>,
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
    /// Numbers the attempts to connect this stream, so that a later one is told from an earlier one.
    pub attempt: u32,
    /// What the connection is like.
    pub features: Features,
    /// Whether the sender accepts the connection.
    pub answer: Answer,
}

impl Hello {
    /// Bytes of an encoded hello.
    pub const BYTES: usize = 23;

    /// Little-endian form: job, from, to, attempt, stream, features, answer.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.job.to_le_bytes());
        out[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.attempt.to_le_bytes());
        (out[20], out[21], out[22]) = (self.stream, self.features.0, self.answer as u8);
        out
    }

    /// Reads what [`Hello::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Option<Hello> {
        let (job, rest) = bytes.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let (stream, features, answer) = match *rest {
            [stream, features @ 0..=Features::ALL, 1] => (stream, features, Answer::Accept),
            [stream, features @ 0..=Features::ALL, 2] => (stream, features, Answer::Duplicate),
            _ => return None,
        };
        let [from, to] = [from, to].map(|peer| Peer(u32::from_le_bytes(*peer)));
        let (job, attempt) = (u64::from_le_bytes(*job), u32::from_le_bytes(*attempt));
        Some(Hello { job, from, to, stream, attempt, features: Features(features), answer })
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

/// One side of a handshake. Each state is named for what it awaits.
pub enum Handshake {
    /// Accepting side, nothing received yet.
    Opening(Box<HandshakeState>),
    /// Accepting side, opening received: [`Handshake::answer`] is to be called.
    Verdict(Box<HandshakeState>, Hello),
    /// Connecting side, opening sent: the hello that the answer must carry, but for what holds.
    Answer(Box<HandshakeState>, Hello),
    /// Connecting side, answer received: [`Handshake::prove`] is to be called.
    Word(Secured),
    /// Accepting side, answer sent: the hello of the opening.
    Proof(Secured, Hello),
    /// Connecting side, proof sent.
    Confirmation(Secured),
    /// Accepting side, proof received: [`Handshake::confirm`] is to be called. The peer has received so many bytes before.
    Last(Secured, u64),
    /// The handshake is over.
    Over,
}

/// What both sides have after opening and answer.
pub struct Secured {
    transport: Box<TransportState>,
    features: Features,
    keys: Option<Box<Keys>>,
}

impl Secured {
    fn new(mut state: HandshakeState, features: Features) -> Result<Secured, Fault> {
        let keys = features.has(Features::ENCRYPT).then(|| {
            let cipher = Cipher::new(features.has(Features::AES));
            let (out, back) = state.dangerously_get_raw_split();
            Box::new(Keys::new(cipher, [&out, &back], state.get_handshake_hash(), state.is_initiator()))
        });
        let transport = Box::new(state.into_transport_mode().map_err(local)?);
        Ok(Secured { transport, features, keys })
    }

    /// The sealed message that says how many bytes were received before.
    fn say(&mut self, received: u64) -> Result<Vec<u8>, Fault> {
        sealed(|out| self.transport.write_message(&received.to_le_bytes(), out))
    }

    fn hear(&mut self, message: &[u8]) -> Result<u64, Fault> {
        let mut payload = [0; MAX_MESSAGE];
        let len = self.transport.read_message(message, &mut payload).map_err(|_| Fault::Unproven)?;
        Ok(u64::from_le_bytes(payload[..len].try_into().map_err(|_| Fault::Malformed)?))
    }

    fn session(self, received: u64) -> Session {
        Session { features: self.features, received, keys: self.keys }
    }
}

/// What a received message means.
pub enum Heard {
    /// Accepting side: a peer that knows the secret (or replays an opening) connects; [`Handshake::answer`] is to be called.
    Asked(Hello),
    /// Connecting side: accepted; [`Handshake::prove`] is to be called.
    Accepted,
    /// Connecting side: refused, since there is another connection.
    Refused,
    /// Accepting side: the other side is proven to be what its hello says; [`Handshake::confirm`] is to be called.
    Proven(Hello),
    /// Connecting side: frames may follow.
    Confirmed(Session),
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
        match std::mem::replace(self, Handshake::Over) {
            Handshake::Opening(mut state) => {
                let hello = read_hello(&mut state, message)?;
                *self = Handshake::Verdict(state, hello);
                Ok(Heard::Asked(hello))
            }
            Handshake::Answer(mut state, expected) => {
                let hello = read_hello(&mut state, message)?;
                let Hello { answer, features, .. } = hello;
                if (Hello { answer: expected.answer, features: expected.features, ..hello }) != expected {
                    return Err(Fault::WrongPeer);
                }
                if answer == Answer::Duplicate {
                    return Ok(Heard::Refused);
                }
                if features.agreed(expected.features) != features {
                    return Err(Fault::Malformed);
                }
                *self = Handshake::Word(Secured::new(*state, features)?);
                Ok(Heard::Accepted)
            }
            Handshake::Proof(mut secured, hello) => {
                let received = secured.hear(message)?;
                *self = Handshake::Last(secured, received);
                Ok(Heard::Proven(hello))
            }
            Handshake::Confirmation(mut secured) => {
                let received = secured.hear(message)?;
                Ok(Heard::Confirmed(secured.session(received)))
            }
            Handshake::Verdict(..) | Handshake::Word(_) | Handshake::Last(..) | Handshake::Over => {
                Err(Fault::Unproven)
            }
        }
    }

    /// Answers the opening, on the side that wants `features`; gives the bytes to send. After a refusal, or if there was no
    /// opening, the handshake is over.
    pub fn answer(&mut self, answer: Answer, features: Features) -> Result<Vec<u8>, Fault> {
        let Handshake::Verdict(mut state, opening) = std::mem::replace(self, Handshake::Over) else {
            return Err(Fault::Unproven);
        };
        let features = features.agreed(opening.features);
        let hello = Hello { from: opening.to, to: opening.from, features, answer, ..opening };
        let message = sealed(|out| state.write_message(&hello.encode(), out))?;
        if answer == Answer::Accept {
            *self = Handshake::Proof(Secured::new(*state, features)?, opening);
        }
        Ok(message)
    }

    /// The connecting side's proof, which has received so many bytes of the stream before.
    pub fn prove(&mut self, received: u64) -> Result<Vec<u8>, Fault> {
        let Handshake::Word(mut secured) = std::mem::replace(self, Handshake::Over) else {
            return Err(Fault::Unproven);
        };
        let proof = secured.say(received)?;
        *self = Handshake::Confirmation(secured);
        Ok(proof)
    }

    /// The accepting side's confirmation, which has received so many bytes of the stream before. The handshake is over.
    pub fn confirm(&mut self, received: u64) -> Result<(Vec<u8>, Session), Fault> {
        let Handshake::Last(mut secured, theirs) = std::mem::replace(self, Handshake::Over) else {
            return Err(Fault::Unproven);
        };
        Ok((secured.say(received)?, secured.session(theirs)))
    }
}

fn read_hello(state: &mut HandshakeState, message: &[u8]) -> Result<Hello, Fault> {
    let mut payload = [0; MAX_MESSAGE];
    let len = state.read_message(message, &mut payload).map_err(|_| Fault::Unproven)?;
    Hello::decode(&payload[..len]).ok_or(Fault::Malformed)
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
    const HELLO: Hello = Hello {
        job: 5,
        from: Peer(1),
        to: Peer(2),
        stream: 3,
        attempt: 9,
        features: Features::NONE,
        answer: Answer::Accept,
    };

    fn inner(message: &[u8]) -> &[u8] {
        let len = message_length(message).unwrap().unwrap();
        assert_eq!(message.len(), 2 + len);
        &message[2..]
    }

    fn asked(heard: Result<Heard, Fault>) -> Hello {
        let Ok(Heard::Asked(hello)) = heard else { panic!("no opening") };
        hello
    }

    /// Both sides after opening and answer.
    fn answered(hello: Hello, wants: Features) -> (Handshake, Handshake) {
        let (mut a, opening) = Handshake::connect(&SECRET, hello).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        assert_eq!(asked(b.hear(inner(&opening))), hello);
        let answer = b.answer(Answer::Accept, wants).unwrap();
        assert!(matches!(a.hear(inner(&answer)), Ok(Heard::Accepted)));
        (a, b)
    }

    #[test]
    fn both_sides_end_up_proven() {
        let (mut a, mut b) = answered(HELLO, Features::RESUME);
        let proof = a.prove(17).unwrap();
        assert!(matches!(b.hear(inner(&proof)), Ok(Heard::Proven(HELLO))));
        let (confirmation, of_b) = b.confirm(u64::MAX).unwrap();
        let Ok(Heard::Confirmed(of_a)) = a.hear(inner(&confirmation)) else { panic!() };
        assert_eq!((of_a.received, of_b.received), (u64::MAX, 17));
        assert_eq!((of_a.features, of_b.features), (Features::RESUME, Features::RESUME));
        assert!(a.hear(inner(&confirmation)).is_err() && b.hear(inner(&proof)).is_err());
        assert!(a.prove(0).is_err() && b.confirm(0).is_err());
    }

    #[test]
    fn one_side_that_wants_it_has_both_encrypt() {
        let aes = Features::AES;
        for (of_a, of_b, cipher) in [
            (Features::ENCRYPT.with(aes), aes, Some(aes)),
            (aes, Features::ENCRYPT.with(aes), Some(aes)),
            (aes, Features::ENCRYPT, Some(Features::NONE)),
            (Features::ENCRYPT.with(aes), Features::NONE, Some(Features::NONE)),
            (aes, aes, None),
        ] {
            let (mut a, mut b) = answered(Hello { features: of_a, ..HELLO }, of_b);
            let proof = a.prove(0).unwrap();
            b.hear(inner(&proof)).unwrap();
            let (confirmation, mut of_b) = b.confirm(0).unwrap();
            let Ok(Heard::Confirmed(mut of_a)) = a.hear(inner(&confirmation)) else { panic!() };
            let expected = cipher.map_or(aes, |cipher| cipher.with(Features::ENCRYPT));
            assert_eq!((of_a.features, of_b.features), (expected, expected));
            assert_eq!(of_a.keys.is_some(), cipher.is_some());
            for (from, to) in [of_a.keys.as_mut().zip(of_b.keys.as_mut())].into_iter().flatten() {
                let mut record = vec![0; crate::seal::MAX_RECORD];
                let size = from.seal.seal(&mut record, |out| {
                    out[0] = 7;
                    1
                });
                assert_eq!(to.open.open(&mut record), Ok(Some((&[7][..], size))));
            }
        }
    }

    #[test]
    fn a_refusal_is_sealed_too() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        asked(b.hear(inner(&opening)));
        let answer = b.answer(Answer::Duplicate, Features::NONE).unwrap();
        assert!(matches!(a.hear(inner(&answer)), Ok(Heard::Refused)));
    }

    #[test]
    fn another_secret_proves_nothing() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        assert!(matches!(Handshake::accept(&[8; 32]).unwrap().hear(inner(&opening)), Err(Fault::Unproven)));
        let (_, other) = Handshake::connect(&[8; 32], HELLO).unwrap();
        assert!(matches!(a.hear(inner(&other)), Err(Fault::Unproven)));
    }

    #[test]
    fn a_replayed_opening_gets_no_further() {
        let (mut a, opening) = Handshake::connect(&SECRET, HELLO).unwrap();
        let mut b = Handshake::accept(&SECRET).unwrap();
        asked(b.hear(inner(&opening)));
        let answer = b.answer(Answer::Accept, Features::NONE).unwrap();
        assert!(matches!(a.hear(inner(&answer)), Ok(Heard::Accepted)));
        let proof = a.prove(0).unwrap();
        let mut replayed = Handshake::accept(&SECRET).unwrap();
        asked(replayed.hear(inner(&opening)));
        replayed.answer(Answer::Accept, Features::NONE).unwrap();
        assert!(matches!(replayed.hear(inner(&proof)), Err(Fault::Unproven)));
    }

    #[test]
    fn another_process_or_stream_than_expected_is_refused() {
        let wants = Hello { features: Features::RESUME, ..HELLO };
        let expected = Hello { from: Peer(2), to: Peer(1), ..wants };
        for (hello, fault) in [
            (Hello { from: Peer(3), ..expected }, Fault::WrongPeer),
            (Hello { stream: 0, ..expected }, Fault::WrongPeer),
            (Hello { attempt: 1, ..expected }, Fault::WrongPeer),
            (Hello { features: Features::NONE, ..expected }, Fault::Malformed),
        ] {
            let (mut a, opening) = Handshake::connect(&SECRET, wants).unwrap();
            let mut state = builder(&SECRET).unwrap().build_responder().unwrap();
            state.read_message(inner(&opening), &mut [0; MAX_MESSAGE]).unwrap();
            let answer = sealed(|out| state.write_message(&hello.encode(), out)).unwrap();
            assert_eq!(a.hear(inner(&answer)).err(), Some(fault));
        }
    }

    proptest! {
        #[test]
        fn a_hello_is_read_as_it_was_written(
            job: u64, from: u32, to: u32, stream: u8, attempt: u32, features in 0..=Features::ALL, accept: bool
        ) {
            let answer = if accept { Answer::Accept } else { Answer::Duplicate };
            let (from, to, features) = (Peer(from), Peer(to), Features(features));
            let hello = Hello { job, from, to, stream, attempt, features, answer };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn any_bytes_are_a_hello_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..25)) {
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
