//! Frames that leave: what the socket does not take is queued, or stays in the user's memory until it has room.

use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;

use banyan_memory::Buffer;
use banyan_transport::{Head, Refusal, Sent, Token};
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::Stream;
use crate::frame::{self, OVERHEAD};
use crate::pool::{Pool, Queue};

/// Bytes of the largest frame that is assembled on the stack and written by one plain write.
const SMALL: usize = 512;

/// Bytes of the largest body that is copied to a queue that is not empty; a larger one is refused until the queue is empty.
const MAX_QUEUED: usize = 64 * 1024;

/// The rest of a frame that lies in memory which is the user's again after it has left.
pub(super) struct Lent {
    memory: Buffer,
    at: isize,
    len: usize,
    token: Token,
}

impl Lent {
    /// The bytes join the queue as a copy.
    fn copy_to(&self, queue: &mut Queue, pool: &mut Pool) {
        self.memory.read(self.at, queue.add(self.len, pool));
    }
}

impl Stream {
    /// Bytes accepted but not taken by the socket.
    pub(crate) fn unsent(&self) -> usize {
        self.queue.len() + self.lent.as_ref().map_or(0, |lent| lent.len)
    }

    /// Sends a frame: writes it to the socket unless others are queued, and queues the rest, up to `limit` queued
    /// bytes. `round` is the number of polls so far.
    #[inline]
    pub(crate) fn send(
        &mut self,
        head: &Head,
        body: &[u8],
        round: u32,
        limit: usize,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let size = OVERHEAD + body.len();
        self.check(size, limit)?;
        let prefix = self.prefix(head, body.len(), round);
        if !self.queue.is_empty() {
            self.queue.append(&prefix, pool);
            self.queue.append(body, pool);
            return self.queued(pool);
        }
        let written = if size <= SMALL {
            let mut whole = [0; SMALL];
            whole[..OVERHEAD].copy_from_slice(&prefix);
            whole[OVERHEAD..size].copy_from_slice(body);
            uninterrupted(|| self.socket.write(&whole[..size]))
        } else {
            write(&self.socket, &[IoSlice::new(&prefix), IoSlice::new(body)])
        };
        let written = self.judge(written)?;
        if written == size {
            return Ok(());
        }
        self.queue.append(&prefix[written.min(OVERHEAD)..], pool);
        self.queue.append(&body[written.saturating_sub(OVERHEAD)..], pool);
        self.queued(pool)
    }

    /// Sends a frame like [`Stream::send`], with a body of `len` bytes that `fill` writes.
    pub(crate) fn send_filled(
        &mut self,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        round: u32,
        limit: usize,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        self.check(OVERHEAD + len, limit)?;
        let prefix = self.prefix(head, len, round);
        let out = self.queue.add(OVERHEAD + len, pool);
        out[..OVERHEAD].copy_from_slice(&prefix);
        fill(&mut out[OVERHEAD..]);
        self.queued(pool)
    }

    /// Sends a frame like [`Stream::send`], with a body of `len` bytes from offset `at` of a user's memory: the system
    /// copies them from there. With a token what the socket does not take stays there until it has room.
    pub(crate) fn send_from(
        &mut self,
        head: &Head,
        (memory, at, len): (&Buffer, isize, usize),
        token: Option<Token>,
        (round, limit): (u32, usize),
        pool: &mut Pool,
    ) -> Result<Sent, Refusal> {
        let size = OVERHEAD + len;
        if size <= SMALL {
            let mut body = [0; SMALL];
            memory.read(at, &mut body[..len]);
            return self.send(head, &body[..len], round, limit, pool).map(|()| Sent::Done);
        }
        if !self.queue.is_empty() {
            let fill = &mut |body: &mut [u8]| memory.read(at, body);
            return if len > MAX_QUEUED {
                Err(Refusal::Busy)
            } else {
                self.send_filled(head, len, fill, round, limit, pool).map(|()| Sent::Done)
            };
        }
        self.check(size, limit)?;
        let prefix = self.prefix(head, len, round);
        let written = uninterrupted(|| memory.send(self.socket.as_fd(), &prefix, at, len));
        let written = self.judge(written)?;
        if written == size {
            return Ok(Sent::Done);
        }
        let body = written.saturating_sub(OVERHEAD);
        let lent = Lent { memory: memory.clone(), at: at + body as isize, len: len - body, token: Token(0) };
        self.queue.append(&prefix[written.min(OVERHEAD)..], pool);
        let Some(token) = token else {
            lent.copy_to(&mut self.queue, pool);
            self.queued(pool)?;
            return Ok(Sent::Done);
        };
        self.lent = Some(Lent { token, ..lent });
        Ok(if self.flush(pool).is_some() { Sent::Done } else { Sent::Started })
    }

    /// What is lent under this token is the user's again: the rest leaves from a copy.
    pub(crate) fn reclaim(&mut self, token: Token, pool: &mut Pool) {
        if let Some(lent) = self.lent.take_if(|lent| lent.token == token) {
            lent.copy_to(&mut self.queue, pool);
        }
    }

    #[inline]
    fn prefix(&mut self, head: &Head, len: usize, round: u32) -> [u8; OVERHEAD] {
        let mut prefix = frame::prefix(head, len);
        if self.burst.next(OVERHEAD + len, round, &self.socket) {
            frame::request_ack(&mut prefix);
        }
        prefix
    }

    /// Queues bytes that are no frame (the last message of a handshake, the farewell).
    pub(crate) fn send_raw(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.queue.append(bytes, pool);
        self.flush(pool);
    }

    /// Writes what is queued or lent, as far as the socket takes it; gives the token of what was lent, once all of it is written.
    pub(crate) fn flush(&mut self, pool: &mut Pool) -> Option<Token> {
        while !self.queue.is_empty() && !self.blocked {
            let written = self.queue.write(pool, |pieces| write(&self.socket, pieces));
            self.judge_flush(written, pool)?;
        }
        while let Some(Lent { memory, at, len, token }) = &self.lent
            && !self.blocked
        {
            let (token, written) =
                (*token, uninterrupted(|| memory.send(self.socket.as_fd(), &[], *at, *len)));
            let written = self.judge_flush(written, pool)?;
            if let Some(lent) = &mut self.lent {
                (lent.at, lent.len) = (lent.at + written as isize, lent.len - written);
                if lent.len == 0 {
                    self.lent = None;
                    return Some(token);
                }
            }
        }
        None
    }

    /// The number of bytes that a flush has written; with 0 the socket is full. `None`: it is broken, and nothing is kept.
    fn judge_flush(&mut self, written: io::Result<usize>, pool: &mut Pool) -> Option<usize> {
        let written = self.judge(written).ok();
        match written {
            Some(0) => self.blocked = true,
            Some(_) => {}
            None => {
                self.queue.clear(pool);
                self.lent = None;
            }
        }
        written
    }

    fn check(&mut self, size: usize, limit: usize) -> Result<(), Refusal> {
        let full = self.lent.is_some() || (!self.queue.is_empty() && self.queue.len() + size > limit);
        if full || self.broken.is_some() { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Writes what was queued just now, unless the socket is known to be full.
    fn queued(&mut self, pool: &mut Pool) -> Result<(), Refusal> {
        // If writing fails, the frame is lost with the peer, which the next poll reports.
        self.flush(pool);
        Ok(())
    }

    /// The number of bytes written; 0 if the socket is full. A failure is kept for the next poll.
    fn judge(&mut self, written: io::Result<usize>) -> Result<usize, Refusal> {
        match written {
            Ok(written) => Ok(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => {
                self.broken = Some(format!("{}: {error}", self.remote));
                Err(Refusal::Busy)
            }
        }
    }
}

/// Writes several pieces. No SIGPIPE is raised if the peer is gone (`writev` would raise it).
fn write(socket: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    uninterrupted(|| Ok(sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags)?))
}

fn uninterrupted(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
