//! Frames on the wire: a length, the head, the body. Pure: bytes in, frames out.
//!
//! The length (4 bytes, little-endian) counts head and body; its highest bit asks the system for an acknowledgement of the packet
//! at once ([`request_ack`]). A length of 0 is the farewell that a peer says before it closes. A length of 1 is an acknowledgement
//! of the stream ([`ack`]): 8 bytes follow, the number of bytes that the sender has received.

use banyan_transport::Head;

/// Payload bytes in a packet of the loopback device, less the headers of IP and of TCP with its timestamps.
const PACKET: usize = 65535 - 20 - 32;

/// Body of the frames of long messages, bytes: the frame fills its packets, as a packet for a few bytes costs as much as a
/// full one.
pub const PIECE: usize = 5 * PACKET - OVERHEAD;

/// Largest body, bytes.
pub const MAX_BODY: usize = PIECE + 4096;

/// Bytes of the length.
pub const PREFIX: usize = 4;

/// Bytes in front of the body.
pub const OVERHEAD: usize = PREFIX + Head::BYTES;

/// Largest frame, bytes.
pub const MAX_FRAME: usize = OVERHEAD + MAX_BODY;

/// The farewell.
pub const BYE: [u8; PREFIX] = [0; PREFIX];

/// Bytes of an acknowledgement.
pub const ACK: usize = PREFIX + 8;

/// The length that an acknowledgement begins with.
const ACK_LENGTH: u32 = 1;

/// The bit of the length that asks the receiver for an acknowledgement.
const ACK_REQUESTED: u32 = 1 << 31;

/// What begins at the first byte of some input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// A whole frame of `OVERHEAD + body.len()` bytes.
    Frame(Head, &'a [u8]),
    /// The peer leaves.
    Bye,
    /// The peer has received this many bytes of the stream. It takes [`ACK`] bytes.
    Ack(u64),
    /// The frame is not complete: this many bytes in all are needed to know more (at most [`MAX_FRAME`]).
    Need(usize),
}

/// Why input cannot be a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The length is impossible.
    #[error("a frame of {0} bytes (from {min} to {max} are possible)", min = Head::BYTES, max = Head::BYTES + MAX_BODY)]
    Length(u32),
    /// There is no such class.
    #[error("a frame of unknown class {0}")]
    Class(u8),
    /// An acknowledgement of bytes that were never sent.
    #[error("an acknowledgement of bytes that it cannot have received")]
    Ack,
}

/// Reads the frame that begins at the first byte.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, Malformed> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(Decoded::Need(PREFIX));
    };
    let length = u32::from_le_bytes(*prefix);
    if length == 0 {
        return Ok(Decoded::Bye);
    }
    if length == ACK_LENGTH {
        let bytes = rest.first_chunk().copied().map(u64::from_le_bytes);
        return Ok(bytes.map_or(Decoded::Need(ACK), Decoded::Ack));
    }
    let size = (length & !ACK_REQUESTED) as usize;
    if !(Head::BYTES..=Head::BYTES + MAX_BODY).contains(&size) {
        return Err(Malformed::Length(length));
    }
    let Some(frame) = rest.get(..size) else {
        return Ok(Decoded::Need(PREFIX + size));
    };
    let (head, body) = frame.split_first_chunk().expect("a frame is no shorter than its head");
    match Head::decode(head) {
        Some(head) => Ok(Decoded::Frame(head, body)),
        None => Err(Malformed::Class(head[0])),
    }
}

/// The head of the frame that begins at the first byte, and the part of its body that is there. `None` if the head is
/// incomplete or of an unknown class.
pub fn head(bytes: &[u8]) -> Option<(Head, &[u8])> {
    let (front, body) = bytes.split_at_checked(OVERHEAD)?;
    Some((Head::decode(front.last_chunk()?)?, body))
}

/// Length and head of a frame, to be sent before its body of `len` bytes.
#[inline]
pub fn prefix(head: &Head, len: usize) -> [u8; OVERHEAD] {
    let mut out = [0; OVERHEAD];
    out[..PREFIX].copy_from_slice(&((Head::BYTES + len) as u32).to_le_bytes());
    out[PREFIX..].copy_from_slice(&head.encode());
    out
}

/// An acknowledgement of the first `bytes` bytes of a stream.
pub fn ack(bytes: u64) -> [u8; ACK] {
    let mut out = [0; ACK];
    out[..PREFIX].copy_from_slice(&ACK_LENGTH.to_le_bytes());
    out[PREFIX..].copy_from_slice(&bytes.to_le_bytes());
    out
}

/// Has the frame ask its receiver to acknowledge it at once: the frames after it wait for that (see `burst`).
#[inline]
pub fn request_ack(prefix: &mut [u8; OVERHEAD]) {
    prefix[PREFIX - 1] |= (ACK_REQUESTED >> 24) as u8;
}

/// True if the whole frame that begins at the first byte asks for an acknowledgement.
#[inline]
pub fn requests_ack(frame: &[u8]) -> bool {
    frame[PREFIX - 1] & (ACK_REQUESTED >> 24) as u8 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_transport::Class;
    use proptest::prelude::*;

    fn head() -> impl Strategy<Value = Head> {
        (0u8..4, any::<(u8, u16, u32, u32, u64)>()).prop_map(|(class, (kind, aux, a, b, ctx))| Head {
            class: Class::from_u8(class).unwrap(),
            kind,
            aux: aux.into(),
            a,
            b,
            ctx,
        })
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(head in head(), body: Vec<u8>, after: Vec<u8>, requested: bool) {
            let mut prefix = prefix(&head, body.len());
            if requested {
                request_ack(&mut prefix);
            }
            prop_assert_eq!(requests_ack(&prefix), requested);
            let mut bytes = prefix.to_vec();
            bytes.extend(&body);
            for cut in 0..bytes.len() {
                let need = if cut < PREFIX { PREFIX } else { bytes.len() };
                prop_assert_eq!(decode(&bytes[..cut]), Ok(Decoded::Need(need)));
            }
            bytes.extend(&after);
            prop_assert_eq!(decode(&bytes), Ok(Decoded::Frame(head, &body)));
        }

        #[test]
        fn any_bytes_are_a_frame_or_refused(bytes: Vec<u8>) {
            match decode(&bytes) {
                Ok(Decoded::Frame(_, body)) => prop_assert!(OVERHEAD + body.len() <= bytes.len()),
                Ok(Decoded::Need(n)) => prop_assert!(n > bytes.len() && n <= MAX_FRAME),
                Ok(Decoded::Ack(of)) => prop_assert_eq!(&ack(of)[..], &bytes[..ACK]),
                Ok(Decoded::Bye) | Err(_) => {}
            }
        }
    }

    #[test]
    fn impossible_lengths_and_classes_are_refused() {
        for length in [2, 19, (20 + MAX_BODY + 1) as u32, u32::MAX, ACK_REQUESTED, ACK_REQUESTED | 19] {
            assert_eq!(decode(&length.to_le_bytes()), Err(Malformed::Length(length)));
        }
        let mut bytes = [0; OVERHEAD];
        bytes[..4].copy_from_slice(&20u32.to_le_bytes());
        bytes[4] = 9;
        assert_eq!(decode(&bytes), Err(Malformed::Class(9)));
        assert_eq!(decode(&BYE), Ok(Decoded::Bye));
        assert_eq!(decode(&ack(u64::MAX)[..ACK - 1]), Ok(Decoded::Need(ACK)));
        assert_eq!(decode(&ack(u64::MAX)), Ok(Decoded::Ack(u64::MAX)));
    }
}
