//! Frames as bytes: a length (u32, little-endian) and a postcard body. Pure; no input is trusted.

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::frame::{Reply, Request};

/// Bytes of the length in front of every body.
pub const PREFIX: usize = 4;

/// Most bytes of a body.
pub const MAX_BODY: usize = 256 << 10;

/// Why bytes are not a frame. The rest of the stream cannot be trusted either.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CodecError {
    /// The length is larger than [`MAX_BODY`].
    #[error("a bootstrap frame of {0} bytes (at most {MAX_BODY} are allowed)")]
    TooLong(usize),
    /// The body is no frame of this protocol, or bytes are left over.
    #[error("bytes on the bootstrap socket that are no frame of this protocol")]
    Malformed,
}

/// Appends `frame` to `out`.
///
/// # Errors
/// [`CodecError::TooLong`] if the body is longer than [`MAX_BODY`]; `out` is unchanged then.
pub fn encode<T: Serialize>(frame: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let body = postcard::to_allocvec(frame).map_err(|_| CodecError::Malformed)?;
    let length = u32::try_from(body.len()).ok().filter(|&n| n as usize <= MAX_BODY);
    let length = length.ok_or(CodecError::TooLong(body.len()))?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&body);
    Ok(())
}

/// The first frame of `bytes` and its length in bytes, prefix included; `None` if it is not complete yet.
///
/// # Errors
/// If the bytes can never become a frame.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(T, usize)>, CodecError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > MAX_BODY {
        return Err(CodecError::TooLong(length));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    match postcard::take_from_bytes(body) {
        Ok((frame, [])) => Ok(Some((frame, PREFIX + length))),
        _ => Err(CodecError::Malformed),
    }
}

/// [`decode`] for the agent, which receives requests.
pub fn decode_request(bytes: &[u8]) -> Result<Option<(Request, usize)>, CodecError> {
    decode(bytes)
}

/// [`decode`] for a rank, which receives replies.
pub fn decode_reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, CodecError> {
    decode(bytes)
}
