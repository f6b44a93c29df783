//! Frames that leave: what the socket does not take is queued, or stays in the user's memory until it has room.

use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;

use banyan_memory::Buffer;
use banyan_transport::{Head, Refusal, Sent, Token};
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::Stream;
use crate::frame::{self, OVERHEAD};
use crate::pool::Pool;
use crate::queue::{MAX_COPIED, Next};

/// Bytes of the largest frame that is assembled on the stack and written by one plain write.
const SMALL: usize = 512;

/// Most bytes of a resumable stream that are kept, bytes: beyond that sends wait for acknowledgements.
const WINDOW: usize = 8 << 20;

impl Stream {
    /// Bytes accepted but not taken by the socket.
    pub(crate) fn unsent(&self) -> usize {
        self.queue.unwritten() + self.sealing.as_ref().map_or(0, |sealing| sealing.unwritten())
    }

    /// Frames have not been taken by the socket, or by the peer if the stream is resumable.
    pub(crate) fn awaits_ack(&self) -> bool {
        self.queue.awaits_ack()
    }

    /// Bytes go straight from the caller to the socket: nothing is in front of them, and none need be kept.
    #[inline]
    fn direct(&self) -> bool {
        self.queue.len() == 0 && !self.keeps()
    }

    /// Bytes are kept after a write, or written in another form.
    fn keeps(&self) -> bool {
        self.resumable || self.sealing.is_some()
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
        let prefix = self.prefix(head, body.len(), round, pool);
        if !self.direct() {
            let out = self.queue.add(size, pool);
            out[..OVERHEAD].copy_from_slice(&prefix);
            out[OVERHEAD..].copy_from_slice(body);
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
        let prefix = self.prefix(head, len, round, pool);
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
        if !self.direct() {
            let long = len > MAX_COPIED;
            let (true, Some(token)) = (long && self.keeps(), token) else {
                let fill = &mut |body: &mut [u8]| memory.read(at, body);
                return match long && !self.keeps() {
                    true => Err(Refusal::Busy),
                    false => self.send_filled(head, len, fill, round, limit, pool).map(|()| Sent::Done),
                };
            };
            self.check(size, limit)?;
            let prefix = self.prefix(head, len, round, pool);
            self.queue.append(&prefix, pool);
            return Ok(self.lend(memory, at, len, token, pool));
        }
        self.check(size, limit)?;
        let prefix = self.prefix(head, len, round, pool);
        let written = uninterrupted(|| memory.send(self.socket.as_fd(), &prefix, at, len));
        let written = self.judge(written)?;
        if written == size {
            return Ok(Sent::Done);
        }
        self.queue.append(&prefix[written.min(OVERHEAD)..], pool);
        let body = written.saturating_sub(OVERHEAD);
        let (at, len) = (at + body as isize, len - body);
        let Some(token) = token else {
            memory.read(at, self.queue.add(len, pool));
            self.queued(pool)?;
            return Ok(Sent::Done);
        };
        Ok(self.lend(memory, at, len, token, pool))
    }

    /// Queues memory that stays the fabric's until it has left, or is acknowledged.
    fn lend(&mut self, memory: &Buffer, at: isize, len: usize, token: Token, pool: &mut Pool) -> Sent {
        self.queue.lend(memory.clone(), at, len, token);
        if self.flush(pool).is_some() { Sent::Done } else { Sent::Started }
    }

    /// What is lent under this token is the user's again: the rest leaves from a copy.
    pub(crate) fn reclaim(&mut self, token: Token, pool: &mut Pool) {
        self.queue.reclaim(token, pool);
    }

    /// Length and head of a frame. In front of it the queue gets the acknowledgement of what has come since the last one.
    #[inline]
    fn prefix(&mut self, head: &Head, len: usize, round: u32, pool: &mut Pool) -> [u8; OVERHEAD] {
        if self.resumable && self.arrivals.has_news() {
            self.queue.append_ack(&self.arrivals.acknowledge(), pool);
            self.untold = None;
        }
        let mut prefix = frame::prefix(head, len);
        if self.burst.next(OVERHEAD + len, round, &self.socket) {
            frame::request_ack(&mut prefix);
        }
        prefix
    }

    /// Queues bytes that are no frame (the farewell).
    pub(crate) fn send_raw(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.queue.append(bytes, pool);
        self.flush(pool);
    }

    /// Writes what is queued, as far as the socket takes it; gives the token of what was lent, once all of it is written and need
    /// not be kept.
    pub(crate) fn flush(&mut self, pool: &mut Pool) -> Option<Token> {
        if self.sealing.is_some() {
            return self.flush_sealed(pool);
        }
        let mut over = None;
        while !self.blocked
            && self.broken.is_none()
            && let Some(next) = self.queue.next()
        {
            let written = match next {
                Next::Copied(pieces, count) => write(&self.socket, &pieces[..count]),
                Next::Lent(before, memory, at, len) => {
                    uninterrupted(|| memory.send(self.socket.as_fd(), before, at, len))
                }
            };
            match self.judge(written) {
                Ok(0) => self.blocked = true,
                Ok(written) => {
                    self.queue.advance(written);
                    if !self.resumable {
                        over = over.or(self.queue.forget_written(pool));
                    }
                }
                Err(_) if self.resumable => {}
                Err(_) => self.queue.clear(),
            }
        }
        over
    }

    fn check(&mut self, size: usize, limit: usize) -> Result<(), Refusal> {
        let unwritten = self.queue.unwritten();
        let full = unwritten > 0 && (unwritten + size > limit || self.queue.has_lent_to_write());
        let full = full || self.queue.len() > WINDOW;
        if full || self.broken.is_some() { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// Writes what was queued just now, unless the socket is known to be full.
    fn queued(&mut self, pool: &mut Pool) -> Result<(), Refusal> {
        // If writing fails, the frame is lost with the peer, which the next poll reports.
        self.flush(pool);
        Ok(())
    }

    /// The number of bytes written; 0 if the socket is full. A failure is kept for the next poll.
    pub(super) fn judge(&mut self, written: io::Result<usize>) -> Result<usize, Refusal> {
        match written {
            Ok(written) => Ok(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => {
                self.broken = Some(self.breaks(&error));
                Err(Refusal::Busy)
            }
        }
    }
}

/// Writes several pieces. No SIGPIPE is raised if the peer is gone (`writev` would raise it).
pub(super) fn write(socket: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
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
