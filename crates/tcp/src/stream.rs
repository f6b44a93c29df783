//! [`Stream`]: a proven connection that carries frames.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Head, Peer, Refusal, Sink};
use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

use crate::burst::{Answer, Burst};
use crate::frame::{self, Decoded, OVERHEAD};
use crate::pool::{Chunk, Pool, Queue};

/// A whole frame up to this size is put together on the stack and written by one plain write.
const SMALL: usize = 512;

/// A body up to this size may be copied to the queue; a larger one waits at its owner until the queue is empty.
const QUEUED: usize = 64 * 1024;

/// So much of a body must be missing for its sink to be asked where it goes.
const PLACED: usize = 4096;

/// So many bytes behind a body that is read where it goes are read with it, and so many first after one: what comes next
/// is likely to be another such body.
const BEHIND: usize = 4096;

/// A proven connection.
pub(crate) struct Stream {
    socket: TcpStream,
    remote: SocketAddr,
    queue: Queue,
    /// The beginning of a frame whose rest has not come yet.
    partial: Option<Chunk>,
    /// A frame whose body goes where its sink says, and whose rest has not come yet.
    landing: Option<Landing>,
    /// How much is read where a frame begins.
    ahead: usize,
    /// The socket took less than it was offered: wait until it says that it is writable.
    blocked: bool,
    burst: Burst,
    answer: Answer,
    /// Writing failed; what the peer sent before is still read.
    broken: Option<String>,
    /// The peer said farewell.
    bye: bool,
}

/// A frame of which `done` bytes of the body are there.
struct Landing {
    head: Head,
    len: usize,
    done: usize,
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
            landing: None,
            ahead: usize::MAX,
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

    /// As [`Stream::send`], for bytes of a user's memory from an offset on: the system takes them from there.
    pub(crate) fn send_from(
        &mut self,
        head: &Head,
        (memory, at, len): (&Buffer, isize, usize),
        round: u32,
        limit: usize,
        pool: &mut Pool,
    ) -> Result<(), Refusal> {
        let size = OVERHEAD + len;
        if size <= SMALL {
            let mut body = [0; SMALL];
            memory.read(at, &mut body[..len]);
            return self.send(head, &body[..len], round, limit, pool);
        }
        if !self.queue.is_empty() {
            let fill = &mut |body: &mut [u8]| memory.read(at, body);
            return if len > QUEUED {
                Err(Refusal::Busy)
            } else {
                self.send_filled(head, len, fill, round, limit, pool)
            };
        }
        self.check(size, limit)?;
        let prefix = self.prefix(head, len, round);
        let written = uninterrupted(|| memory.send(self.socket.as_fd(), &prefix, at, len));
        let written = self.judge(written)?;
        if written < size {
            let body = written.saturating_sub(OVERHEAD);
            let rest = self.queue.add(size - written, pool);
            let (first, rest) = rest.split_at_mut(OVERHEAD.saturating_sub(written));
            first.copy_from_slice(&prefix[written.min(OVERHEAD)..]);
            memory.read(at + body as isize, rest);
            return self.queued(pool);
        }
        Ok(())
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
            let written = self.queue.write(pool, |pieces| write(&self.socket, pieces));
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
        let missing = match (&self.landing, &self.partial) {
            (Some(landing), _) => landing.len - landing.done,
            (None, Some(partial)) => missing(partial),
            (None, None) => 0,
        };
        let read = match (&self.landing, &mut self.partial) {
            (Some(landing), _) => match sink.place(peer, &landing.head, landing.len) {
                Some(place) => {
                    let behind = &mut scratch[..BEHIND];
                    place.receive(self.socket.as_fd(), landing.done as isize, missing, behind)
                }
                None => return self.drop_body(peer, missing, scratch, sink),
            },
            (None, None) => {
                let ahead = self.ahead.min(scratch.len());
                self.socket.read(&mut scratch[..ahead])
            }
            (None, Some(partial)) => {
                let rest = IoSliceMut::new(partial.offer(missing));
                self.socket.read_vectored(&mut [rest, IoSliceMut::new(scratch)])
            }
        };
        let read = match self.judge_read(read) {
            Ok(read) => read,
            Err(nothing) => return nothing,
        };
        if missing == 0 && read >= self.ahead {
            self.ahead = usize::MAX;
        }
        let landed = self.land(peer, missing.min(read), sink);
        if let Some(partial) = &mut self.partial {
            partial.add(missing.min(read));
        }
        match self.deliver(peer, &scratch[..read.saturating_sub(missing)], pool, sink) {
            Ok(frames) => Received::Frames(landed + frames),
            Err(malformed) => Received::Over(format!("{} sent {malformed}", self.remote)),
        }
    }

    /// Bytes that a read gave, or what it says if there are none.
    fn judge_read(&mut self, read: io::Result<usize>) -> Result<usize, Received> {
        match read {
            Ok(0) => Err(Received::Over(self.farewell())),
            Ok(read) => Ok(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.nothing()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(Received::Frames(0)),
            Err(error) => Err(Received::Over(format!("{}: {error}", self.remote))),
        }
    }

    /// Nobody wants the rest of a body any more.
    fn drop_body(
        &mut self,
        peer: Peer,
        missing: usize,
        scratch: &mut [u8],
        sink: &mut impl Sink,
    ) -> Received {
        let most = missing.min(scratch.len());
        let read = self.socket.read(&mut scratch[..most]);
        match self.judge_read(read) {
            Ok(read) => Received::Frames(self.land(peer, read, sink)),
            Err(nothing) => nothing,
        }
    }

    /// So many more bytes of the body under way came, if one is; gives how many frames that makes.
    fn land(&mut self, peer: Peer, bytes: usize, sink: &mut impl Sink) -> usize {
        let Some(landing) = &mut self.landing else { return 0 };
        landing.done += bytes;
        if landing.done < landing.len {
            return 0;
        }
        sink.placed(peer, &landing.head, landing.len);
        self.landing = None;
        self.ahead = BEHIND;
        1
    }

    /// Asks for a place for the body of the frame that begins with `input`, of `size` bytes. True if there is one.
    fn begin_landing(&mut self, peer: Peer, input: &[u8], size: usize, sink: &mut impl Sink) -> bool {
        if size < input.len() + PLACED {
            return false;
        }
        let Some((head, body)) = frame::head(input) else { return false };
        let len = size - OVERHEAD;
        let Some(place) = sink.place(peer, &head, len) else { return false };
        place.write(0, body);
        self.answer.note(frame::is_pressed(input));
        self.landing = Some(Landing { head, len, done: body.len() });
        self.ahead = BEHIND;
        true
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
                Decoded::Need(size) if self.begin_landing(peer, input, size, sink) => return Ok(frames),
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

/// Writes several pieces, with no signal should the peer be gone (`writev` would send one).
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
