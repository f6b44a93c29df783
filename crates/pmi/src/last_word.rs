//! [`LastWord`]: ends the job where a rank may touch nothing else, as in a signal handler.

use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use serde::Serialize;

use crate::codec::PREFIX;
use crate::frame::{MAX_TEXT, cut};

/// Room for a frame (its length, the variant, the code, the length of the text and the text), or a line.
const ROOM: usize = PREFIX + 32 + MAX_TEXT;

/// How long a rank waits until PMIx has passed on that the job ends, in seconds.
const PMIX_SECONDS: i64 = 2;

/// A rank's connection to its launcher, for one message that is written before all queued ones, without memory from the
/// allocator and without a lock.
#[derive(Clone, Debug)]
pub struct LastWord(To);

/// Who is told, and how.
#[derive(Clone, Debug)]
enum To {
    /// Our agent, by a frame.
    Agent(Arc<OwnedFd>),
    /// A server of PMI-1, by a line.
    Pmi1 { rank: u32, socket: Arc<OwnedFd> },
    /// The thread that calls PMIx: it reads the code from the pipe and closes the other one when that is done.
    Pmix { rank: u32, code: Arc<OwnedFd>, done: Arc<OwnedFd> },
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
    pub(crate) fn to_agent(socket: Arc<OwnedFd>) -> LastWord {
        LastWord(To::Agent(socket))
    }

    pub(crate) fn by_pmi1(rank: u32, socket: Arc<OwnedFd>) -> LastWord {
        LastWord(To::Pmi1 { rank, socket })
    }

    pub(crate) fn by_pmix(rank: u32, code: Arc<OwnedFd>, done: Arc<OwnedFd>) -> LastWord {
        LastWord(To::Pmix { rank, code, done })
    }

    /// Ends the job with MPI_Abort's `code`. The request is on its way when this returns, unless the launcher is
    /// gone (then the job ends anyway); the caller flushes its output and exits. Our launcher shows the message (cut to
    /// [`MAX_TEXT`] bytes); under another one it goes to standard error.
    pub fn abort(&self, code: i32, message: &str) {
        let mut room = [0; ROOM];
        match &self.0 {
            To::Agent(socket) => send_all(socket, frame(code, message, &mut room)),
            To::Pmi1 { rank, socket } => {
                say(*rank, message, &mut room);
                send_all(socket, line(code, &mut room));
            }
            To::Pmix { rank, code: pipe, done } => {
                say(*rank, message, &mut room);
                if rustix::io::write(pipe, &code.to_ne_bytes()).is_ok() {
                    let limit = Timespec { tv_sec: PMIX_SECONDS, tv_nsec: 0 };
                    let _ = poll(&mut [PollFd::new(done, PollFlags::IN)], Some(&limit));
                }
            }
        }
    }
}

/// Writes to standard error, without its lock and by one call, as other ranks may write, too.
fn say(rank: u32, message: &str, room: &mut [u8; ROOM]) {
    if message.is_empty() {
        return;
    }
    let end = if message.ends_with('\n') { "" } else { "\n" };
    let text = fill(room, format_args!("banyan: rank {rank}: {}{end}", cut(message).trim_start()));
    let _ = rustix::io::write(rustix::stdio::stderr(), text);
}

/// Writes text into the room, as far as it goes.
fn fill<'a>(room: &'a mut [u8; ROOM], text: std::fmt::Arguments<'_>) -> &'a [u8] {
    let mut rest = &mut room[..];
    let _ = rest.write_fmt(text);
    let left = rest.len();
    &room[..ROOM - left]
}

fn send_all(socket: impl AsFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match send(&socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

fn frame<'a>(code: i32, message: &str, room: &'a mut [u8; ROOM]) -> &'a [u8] {
    let (prefix, body) = room.split_at_mut(PREFIX);
    let request = Frame::Abort { code, message: cut(message) };
    let length = postcard::to_slice(&request, body).map_or(0, |body| body.len());
    prefix.copy_from_slice(&(length as u32).to_le_bytes());
    &room[..PREFIX + length]
}

/// The request of PMI-1, which has no answer.
fn line(code: i32, room: &mut [u8; ROOM]) -> &[u8] {
    fill(room, format_args!("cmd=abort exitcode={code}\n"))
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
            let frame = frame(code, message, &mut room);
            let expected = Request::Abort { code, message: cut(message).to_owned() };
            assert_eq!(decode_request(frame), Ok(Some((expected, frame.len()))));
        }
        let text = crate::pmi1::Line::new("abort").with("exitcode", -7).encode().unwrap();
        assert_eq!(line(-7, &mut [0; ROOM]), text.as_bytes());
    }
}
