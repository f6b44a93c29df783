//! [`LastWord`]: ends the job where a rank may touch nothing else, as in a signal handler.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::Serialize;

use crate::codec::PREFIX;
use crate::frame::{MAX_TEXT, cut};

/// Room for a frame: its length, the variant, the code, the length of the text and the text.
const ROOM: usize = PREFIX + 16 + MAX_TEXT;

/// A rank's connection to its agent, for one frame that is written before all queued ones, without memory from the
/// allocator and without a lock.
#[derive(Clone, Debug)]
pub struct LastWord {
    socket: Arc<OwnedFd>,
}

/// The variants of [`Request`](crate::Request) up to `Abort`, encoded to equal bytes.
#[derive(Serialize)]
#[allow(dead_code, reason = "the position of a variant is its code on the wire")]
enum Frame<'a> {
    Hello,
    Publish,
    Lookup,
    Ready,
    Finalized,
    Abort { code: i32, message: &'a str },
}

impl LastWord {
    pub(crate) fn new(socket: Arc<OwnedFd>) -> LastWord {
        LastWord { socket }
    }

    /// Ends the job with MPI_Abort's `code`. The request is in the agent's socket when this returns, unless the agent is
    /// gone (then the job ends anyway); the caller flushes its output and exits. The message is cut to [`MAX_TEXT`] bytes.
    pub fn abort(&self, code: i32, message: &str) {
        let mut room = [0; ROOM];
        let mut frame = encode(code, message, &mut room);
        while !frame.is_empty() {
            match send(&*self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => frame = &frame[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&*self.socket, PollFlags::OUT)], None);
                }
                Err(_) => return,
            }
        }
    }
}

fn encode<'a>(code: i32, message: &str, room: &'a mut [u8; ROOM]) -> &'a [u8] {
    let (prefix, body) = room.split_at_mut(PREFIX);
    let request = Frame::Abort { code, message: cut(message) };
    let length = postcard::to_slice(&request, body).map_or(0, |body| body.len());
    prefix.copy_from_slice(&(length as u32).to_le_bytes());
    &room[..PREFIX + length]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::codec::decode_request;

    #[test]
    fn it_is_a_request_like_any_other() {
        for (code, message) in [(7, "a reason"), (-1, ""), (i32::MIN, &*"é".repeat(3000))] {
            let mut room = [0; ROOM];
            let frame = encode(code, message, &mut room);
            let expected = Request::Abort { code, message: cut(message).to_owned() };
            assert_eq!(decode_request(frame), Ok(Some((expected, frame.len()))));
        }
    }
}
