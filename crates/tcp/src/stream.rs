//! [`Stream`]: a proven connection that carries frames.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use banyan_transport::{Head, Peer, Refusal, Sink};
use mio::net::TcpStream;
use rustix::net::sockopt;

use crate::burst::{Answer, Burst};
use crate::frame::{self, Decoded, OVERHEAD};
use crate::pool::{Chunk, Pool, Queue};

/// A whole frame up to this size is put together on the stack and written by one plain write.
const SMALL: usize = 512;

/// A proven connection.
pub(crate) struct Stream {
    socket: TcpStream,
    remote: SocketAddr,
    queue: Queue,
    /// The beginning of a frame whose rest has not come yet.
    partial: Option<Chunk>,
    /// The socket took less than it was offered: wait until it says that it is writable.
    blocked: bool,
    burst: Burst,
    answer: Answer,
    /// Writing failed; what the peer sent before is still read.
    broken: Option<String>,
    /// The peer said farewell.
    bye: bool,
}

/// What a look at the socket gave.
pub(crate) enum Received {
    /// There was nothing.
    Nothing,
    /// Bytes came that made this many frames; there may be more.
    Frames(usize),
    /// The connection is over; why.
    Over(String),
}

impl Stream {
    /// How often what comes in is read, and thrown away, at the close.
    const DRAINED: usize = 64;

    pub(crate) fn new(socket: TcpStream, remote: SocketAddr) -> Stream {
        Stream {
            socket,
            remote,
            queue: Queue::default(),
            partial: None,
            blocked: false,
            burst: Burst::default(),
            answer: Answer::default(),
            broken: None,
            bye: false,
        }
    }

    /// Bytes accepted but not taken by the socket.
    pub(crate) fn unsent(&self) -> usize {
        self.queue.len()
    }

    /// The socket is full.
    pub(crate) fn blocked(&self) -> bool {
        self.blocked
    }

    /// Writing failed: a look at what comes in will tell.
    pub(crate) fn broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The socket can take bytes again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Small frames wait in the system until [`Stream::end_burst`], or for the peer to acknowledge others.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.burst.gathers()
    }

    /// Has the system send what waits.
    pub(crate) fn end_burst(&mut self) {
        self.burst.end(&self.socket);
    }

    /// The peer waits for an acknowledgement of what was read.
    #[inline]
    pub(crate) fn owes_answer(&self) -> bool {
        self.answer.is_owed()
    }

    /// Acknowledges what was read; false if it is too early for that, and there is no `hurry`.
    pub(crate) fn acknowledge(&mut self, now: Instant, hurry: bool) -> bool {
        self.answer.give(&self.socket, now, hurry)
    }

    /// Hands a frame to the system, as far as nothing waits before it and it has room. `round` counts polls.
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
            let pieces = [IoSlice::new(&prefix), IoSlice::new(body)];
            uninterrupted(|| self.socket.write_vectored(&pieces))
        };
        let written = self.judge(written)?;
        if written == size {
            return Ok(());
        }
        self.queue.append(&prefix[written.min(OVERHEAD)..], pool);
        self.queue.append(&body[written.saturating_sub(OVERHEAD)..], pool);
        self.queued(pool)
    }

    /// As [`Stream::send`], for a body of `len` bytes that `fill` writes.
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

    #[inline]
    fn prefix(&mut self, head: &Head, len: usize, round: u32) -> [u8; OVERHEAD] {
        let mut prefix = frame::prefix(head, len);
        if self.burst.next(OVERHEAD + len, round, &self.socket) {
            frame::press(&mut prefix);
        }
        prefix
    }

    /// Queues bytes that are no frame (the last message of a handshake, the farewell).
    pub(crate) fn send_raw(&mut self, bytes: &[u8], pool: &mut Pool) {
        self.queue.append(bytes, pool);
        self.flush(pool);
    }

    /// Writes what is queued, as far as the socket takes it.
    pub(crate) fn flush(&mut self, pool: &mut Pool) {
        while !self.queue.is_empty() && !self.blocked {
            let socket = &mut self.socket;
            let written = self.queue.write(pool, |pieces| uninterrupted(|| socket.write_vectored(pieces)));
            match self.judge(written) {
                Ok(0) => self.blocked = true,
                Ok(_) => {}
                Err(_) => self.queue.clear(pool),
            }
        }
    }

    fn check(&mut self, size: usize, limit: usize) -> Result<(), Refusal> {
        let full = !self.queue.is_empty() && self.queue.len() + size > limit;
        if full || self.broken.is_some() { Err(Refusal::Busy) } else { Ok(()) }
    }

    /// A frame was queued: write now unless the socket is known to be full.
    fn queued(&mut self, pool: &mut Pool) -> Result<(), Refusal> {
        // Should writing fail, the frame is lost with the peer: that is told by the next poll.
        self.flush(pool);
        Ok(())
    }

    /// Bytes written; a full socket counts as 0. A failure is kept for the next poll.
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

    /// Reads once what is there, and hands all whole frames to `sink`.
    pub(crate) fn receive(
        &mut self,
        peer: Peer,
        scratch: &mut [u8],
        pool: &mut Pool,
        sink: &mut impl Sink,
    ) -> Received {
        let missing = self.partial.as_ref().map_or(0, missing);
        let read = match &mut self.partial {
            None => self.socket.read(scratch),
            Some(partial) => {
                let rest = IoSliceMut::new(partial.offer(missing));
                self.socket.read_vectored(&mut [rest, IoSliceMut::new(scratch)])
            }
        };
        let read = match read {
            Ok(0) => return Received::Over(self.farewell()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.nothing(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Received::Frames(0),
            Err(error) => return Received::Over(format!("{}: {error}", self.remote)),
        };
        if let Some(partial) = &mut self.partial {
            partial.add(missing.min(read));
        }
        match self.deliver(peer, &scratch[..read.saturating_sub(missing)], pool, sink) {
            Ok(frames) => Received::Frames(frames),
            Err(malformed) => Received::Over(format!("{} sent {malformed}", self.remote)),
        }
    }

    fn deliver(
        &mut self,
        peer: Peer,
        mut input: &[u8],
        pool: &mut Pool,
        sink: &mut impl Sink,
    ) -> Result<usize, frame::Malformed> {
        let mut frames = 0;
        while let Some(partial) = &mut self.partial {
            match frame::decode(partial.used())? {
                Decoded::Need(needed) => {
                    let (now, later) = input.split_at(input.len().min(needed - partial.used().len()));
                    if now.is_empty() {
                        return Ok(frames);
                    }
                    partial.append(now);
                    input = later;
                    continue;
                }
                Decoded::Frame(head, body) => {
                    self.answer.note(frame::is_pressed(partial.used()));
                    sink.frame(peer, &head, body);
                    frames += 1;
                }
                Decoded::Bye => self.bye = true,
            }
            pool.give(self.partial.take().expect("looked at just now"));
        }
        while !input.is_empty() {
            match frame::decode(input)? {
                Decoded::Frame(head, body) => {
                    self.answer.note(frame::is_pressed(input));
                    sink.frame(peer, &head, body);
                    frames += 1;
                    input = &input[OVERHEAD + body.len()..];
                }
                Decoded::Bye => {
                    self.bye = true;
                    input = &input[frame::PREFIX..];
                }
                Decoded::Need(_) => {
                    let mut partial = pool.take();
                    partial.append(input);
                    self.partial = Some(partial);
                    return Ok(frames);
                }
            }
        }
        Ok(frames)
    }

    /// Nothing more comes in; if writing failed too, that is the end.
    fn nothing(&mut self) -> Received {
        match self.broken.take() {
            Some(cause) => Received::Over(cause),
            None => Received::Nothing,
        }
    }

    fn farewell(&self) -> String {
        match self.bye {
            true => format!("{}: it has left the job", self.remote),
            false => format!("{}: it closed the connection without farewell: has it died?", self.remote),
        }
    }

    /// Says farewell and closes; waits at most `patience`, if any, for bytes that the peer's system has not taken.
    pub(crate) fn close(mut self, scratch: &mut [u8], pool: &mut Pool, patience: Option<Duration>) {
        self.blocked = false;
        self.send_raw(&frame::BYE, pool);
        // Bytes left unread would turn the close into a reset, which may cost the peer what it has not read yet.
        for _ in 0..Self::DRAINED {
            if !matches!(self.socket.read(scratch), Ok(1..)) {
                break;
            }
        }
        let _ = self.socket.shutdown(Shutdown::Write);
        if let Some(patience) = patience {
            let _ = sockopt::set_socket_linger(&self.socket, Some(patience));
        }
    }
}

/// How many bytes the frame that has begun is known to lack.
fn missing(partial: &Chunk) -> usize {
    match frame::decode(partial.used()) {
        Ok(Decoded::Need(needed)) => needed - partial.used().len(),
        _ => 0,
    }
}

fn uninterrupted(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
