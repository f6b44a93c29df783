//! [`Stream`]: what carries frames to a peer over a proven connection, or over several, one after the other.

mod sealed;
mod sending;

use std::io::{self, IoSliceMut, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use banyan_transport::{Head, Peer, Sink, Token};
use mio::net::TcpStream;
use rustix::net::sockopt;

use crate::burst::{AckState, Burst};
use crate::frame::{self, Decoded, OVERHEAD};
use crate::handshake::{Features, Session};
use crate::pool::{Chunk, Pool};
use crate::queue::{Arrivals, Impossible, MAX_COPIED, Queue};
use sealed::Sealing;

/// Least number of missing bytes of a body for which the sink is asked for memory.
const MIN_LANDED: usize = 4096;

/// Bytes read beyond a body that is read straight to where it lands, and bytes of the first read after it: only a few, as the
/// next frame is likely to have such a body, too.
const BEHIND: usize = 4096;

/// How long what has come waits for a frame that carries its acknowledgement, unless that is due: to send it by itself takes a
/// packet, and wakes a peer that sleeps.
const TELL_AFTER: Duration = Duration::from_millis(5);

/// A stream. A resumable one outlives its connection: it keeps what the peer has not acknowledged, for the next one.
pub(crate) struct Stream {
    socket: TcpStream,
    remote: SocketAddr,
    resumable: bool,
    /// What encryption needs, on an encrypted connection.
    sealing: Option<Box<Sealing>>,
    queue: Queue,
    arrivals: Arrivals,
    /// Since when something has waited for its acknowledgement.
    untold: Option<Instant>,
    /// The beginning of a frame whose rest has not come yet.
    partial: Option<Chunk>,
    /// A frame whose body is read straight to the memory that the sink named, and whose rest has not come yet.
    landing: Option<Landing>,
    /// Most bytes of a read that begins with a new frame.
    ahead: usize,
    /// The socket took nothing: nothing is written until the system reports that it is writable.
    blocked: bool,
    burst: Burst,
    ack: AckState,
    /// Why writing failed; what the peer sent before is still read.
    broken: Option<Break>,
    /// The peer said farewell.
    bye: bool,
}

/// A frame of which `done` bytes of the body are there.
struct Landing {
    head: Head,
    len: usize,
    done: usize,
}

/// Why a connection broke.
pub(crate) struct Break {
    /// A sentence for people.
    pub(crate) cause: String,
    /// The peer's host has not answered for a while.
    pub(crate) silent: bool,
}

/// The result of reading once from the socket.
pub(crate) enum Received {
    /// No bytes were there.
    Nothing,
    /// Bytes came that completed this many frames; there may be more bytes.
    Frames(usize),
    /// The connection broke, or the peer closed it.
    Broken(Break),
    /// The peer has sent what no peer sends, for this reason.
    Malformed(String),
}

impl Stream {
    /// Most reads at the close that discard incoming bytes.
    const DRAINED: usize = 64;

    pub(crate) fn new(socket: TcpStream, remote: SocketAddr, session: Session) -> Stream {
        Stream {
            socket,
            remote,
            resumable: session.features.has(Features::RESUME),
            sealing: session.keys.map(Sealing::new),
            queue: Queue::default(),
            arrivals: Arrivals::default(),
            untold: None,
            partial: None,
            landing: None,
            ahead: usize::MAX,
            blocked: false,
            burst: Burst::default(),
            ack: AckState::default(),
            broken: None,
            bye: false,
        }
    }

    /// It goes on with the next connection when this one breaks.
    pub(crate) fn resumable(&self) -> bool {
        self.resumable
    }

    /// Number of bytes of the stream that have come so far.
    pub(crate) fn received(&self) -> u64 {
        self.arrivals.bytes()
    }

    /// The connection is not used any more.
    pub(crate) fn suspend(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        self.burst = Burst::default();
        self.ack = AckState::default();
        (self.ahead, self.blocked, self.broken, self.sealing) = (usize::MAX, false, None, None);
    }

    /// Goes on with another connection; `done` gets the tokens of what the peer has received, and was lent.
    pub(crate) fn resume(
        &mut self,
        socket: TcpStream,
        remote: SocketAddr,
        session: Session,
        pool: &mut Pool,
        done: impl FnMut(Token),
    ) -> Result<(), Impossible> {
        (self.socket, self.remote, self.sealing) = (socket, remote, session.keys.map(Sealing::new));
        self.queue.rewind(session.received, pool, done)
    }

    /// The socket is full.
    pub(crate) fn blocked(&self) -> bool {
        self.blocked
    }

    /// Writing failed: [`Stream::receive`] reports it when nothing more comes in.
    pub(crate) fn broken(&self) -> bool {
        self.broken.is_some()
    }

    /// The socket can take bytes again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// True while small frames wait in the system for [`Stream::end_burst`] or the peer's acknowledgement of earlier ones.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.burst.gathers()
    }

    /// Has the system send the small frames that wait there.
    pub(crate) fn end_burst(&mut self) {
        self.burst.end(&self.socket);
    }

    /// The peer waits for an acknowledgement of what was read.
    #[inline]
    pub(crate) fn owes_ack(&self) -> bool {
        self.ack.is_owed() || self.resumable && self.arrivals.has_news()
    }

    /// Acknowledges what was read, to the peer's system, unless it is too early and there is no `hurry`, and to the peer. False if
    /// something is still owed: then `next` becomes the time at which it is due, if that is before the present one.
    pub(crate) fn acknowledge(
        &mut self,
        (now, hurry): (Instant, bool),
        next: &mut Option<Instant>,
        pool: &mut Pool,
    ) -> bool {
        let packets = self.ack.send(&self.socket, now, hurry);
        if !self.resumable || !self.arrivals.has_news() {
            self.untold = None;
            return packets;
        }
        let due = *self.untold.get_or_insert(now) + TELL_AFTER;
        if now >= due {
            return self.tell(pool) && packets;
        }
        *next = Some(next.map_or(due, |next| next.min(due)));
        false
    }

    /// Acknowledges the stream to the peer if that is due.
    pub(crate) fn acknowledge_due(&mut self, pool: &mut Pool) {
        if self.resumable && self.arrivals.is_due() {
            self.tell(pool);
        }
    }

    /// Acknowledges the stream; false if too much waits to be written.
    fn tell(&mut self, pool: &mut Pool) -> bool {
        let room = self.queue.unwritten() < MAX_COPIED && !self.queue.has_lent_to_write();
        if room {
            self.untold = None;
            let ack = self.arrivals.acknowledge();
            self.queue.append_ack(&ack, pool);
            self.flush(pool);
        }
        room
    }

    /// Reads once from the socket, and hands all whole frames to `sink`.
    pub(crate) fn receive(
        &mut self,
        peer: Peer,
        read_buffer: &mut [u8],
        pool: &mut Pool,
        sink: &mut impl Sink,
    ) -> Received {
        if self.sealing.is_some() {
            return self.receive_sealed(peer, read_buffer, pool, sink);
        }
        let missing = match (&self.landing, &self.partial) {
            (Some(landing), _) => landing.len - landing.done,
            (None, Some(partial)) => missing(partial),
            (None, None) => 0,
        };
        let read = match (&self.landing, &mut self.partial) {
            (Some(landing), _) => match sink.landing(peer, &landing.head, landing.len) {
                Some(memory) => {
                    let behind = &mut read_buffer[..BEHIND];
                    memory.receive(self.socket.as_fd(), landing.done as isize, missing, behind)
                }
                None => return self.drop_body(peer, missing, read_buffer, sink),
            },
            (None, None) => {
                let ahead = self.ahead.min(read_buffer.len());
                self.socket.read(&mut read_buffer[..ahead])
            }
            (None, Some(partial)) => {
                let rest = IoSliceMut::new(partial.room_for(missing));
                self.socket.read_vectored(&mut [rest, IoSliceMut::new(read_buffer)])
            }
        };
        let read = match self.judge_read(read) {
            Ok(read) => read,
            Err(nothing) => return nothing,
        };
        self.arrivals.count(read);
        if missing == 0 && read >= self.ahead {
            self.ahead = usize::MAX;
        }
        let landed = self.land(peer, missing.min(read), sink);
        if let Some(partial) = &mut self.partial {
            partial.add(missing.min(read));
        }
        match self.deliver(peer, &read_buffer[..read.saturating_sub(missing)], pool, sink) {
            Ok(frames) => Received::Frames(landed + frames),
            Err(malformed) => Received::Malformed(format!("{} sent {malformed}", self.remote)),
        }
    }

    /// The number of bytes read, or the result of the read if there are none.
    fn judge_read(&mut self, read: io::Result<usize>) -> Result<usize, Received> {
        match read {
            Ok(0) => Err(Received::Broken(Break { cause: self.farewell(), silent: false })),
            Ok(read) => Ok(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.nothing()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(Received::Frames(0)),
            Err(error) => Err(Received::Broken(self.breaks(&error))),
        }
    }

    fn breaks(&self, error: &io::Error) -> Break {
        let silent = error.kind() == io::ErrorKind::TimedOut;
        Break { cause: format!("{}: {error}", self.remote), silent }
    }

    /// Reads and discards part of a body for which the sink has no memory any more.
    fn drop_body(
        &mut self,
        peer: Peer,
        missing: usize,
        read_buffer: &mut [u8],
        sink: &mut impl Sink,
    ) -> Received {
        let most = missing.min(read_buffer.len());
        let read = self.socket.read(&mut read_buffer[..most]);
        match self.judge_read(read) {
            Ok(read) => {
                self.arrivals.count(read);
                Received::Frames(self.land(peer, read, sink))
            }
            Err(nothing) => nothing,
        }
    }

    /// Counts `bytes` that were read straight to the memory of the body under way, if there is one. Gives 1 if that completes
    /// its frame, else 0.
    fn land(&mut self, peer: Peer, bytes: usize, sink: &mut impl Sink) -> usize {
        let Some(landing) = &mut self.landing else { return 0 };
        landing.done += bytes;
        if landing.done < landing.len {
            return 0;
        }
        self.arrivals.note(OVERHEAD + landing.len);
        sink.landed(peer, &landing.head, landing.len);
        self.landing = None;
        self.ahead = BEHIND;
        1
    }

    /// Asks the sink for memory for the body of the frame of `size` bytes that begins with `input`. True if there is one.
    fn begin_landing(&mut self, peer: Peer, input: &[u8], size: usize, sink: &mut impl Sink) -> bool {
        if size < input.len() + MIN_LANDED {
            return false;
        }
        let Some((head, body)) = frame::head(input) else { return false };
        let len = size - OVERHEAD;
        let Some(memory) = sink.landing(peer, &head, len) else { return false };
        memory.write(0, body);
        self.ack.note(frame::requests_ack(input));
        self.landing = Some(Landing { head, len, done: body.len() });
        self.ahead = BEHIND;
        true
    }

    /// Hands all whole frames of `partial` and `input` to the sink, and keeps the rest; gives the number of frames.
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
                    self.ack.note(frame::requests_ack(partial.used()));
                    self.arrivals.note(partial.used().len());
                    sink.frame(peer, &head, body);
                    frames += 1;
                }
                Decoded::Bye => self.bye = true,
                Decoded::Ack(bytes) => acknowledged(&mut self.queue, bytes, pool, sink)?,
            }
            pool.give(self.partial.take().expect("looked at just now"));
        }
        while !input.is_empty() {
            match frame::decode(input)? {
                Decoded::Frame(head, body) => {
                    self.ack.note(frame::requests_ack(input));
                    self.arrivals.note(OVERHEAD + body.len());
                    sink.frame(peer, &head, body);
                    frames += 1;
                    input = &input[OVERHEAD + body.len()..];
                }
                Decoded::Bye => {
                    self.bye = true;
                    input = &input[frame::PREFIX..];
                }
                Decoded::Ack(bytes) => {
                    acknowledged(&mut self.queue, bytes, pool, sink)?;
                    input = &input[frame::ACK..];
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

    /// The result where nothing comes in: the end if writing has failed, else nothing.
    fn nothing(&mut self) -> Received {
        match self.broken.take() {
            Some(cause) => Received::Broken(cause),
            None => Received::Nothing,
        }
    }

    /// The peer has said farewell: it sends nothing more here.
    pub(crate) fn has_left(&self) -> bool {
        self.bye
    }

    /// Why the connection was closed by the peer.
    fn farewell(&self) -> String {
        match self.bye {
            true => format!("{}: it has left the job", self.remote),
            false => format!("{}: it closed the connection without farewell: has it died?", self.remote),
        }
    }

    /// Says farewell and closes. The close waits at most `patience`, if given, for bytes that the peer's system has not
    /// taken.
    pub(crate) fn close(mut self, read_buffer: &mut [u8], pool: &mut Pool, patience: Option<Duration>) {
        self.blocked = false;
        if !self.queue.has_lent_to_write() {
            if self.resumable && self.arrivals.has_news() {
                self.tell(pool);
            }
            self.send_raw(&frame::BYE, pool);
        }
        // Bytes left unread would turn the close into a reset, which may cost the peer what it has not read yet.
        for _ in 0..Self::DRAINED {
            if !matches!(self.socket.read(read_buffer), Ok(1..)) {
                break;
            }
        }
        let _ = self.socket.shutdown(Shutdown::Write);
        if let Some(patience) = patience {
            let _ = sockopt::set_socket_linger(&self.socket, Some(patience));
        }
    }
}

/// Bytes that the frame in `partial` is known to lack.
fn missing(partial: &Chunk) -> usize {
    match frame::decode(partial.used()) {
        Ok(Decoded::Need(needed)) => needed - partial.used().len(),
        _ => 0,
    }
}

/// Takes an acknowledgement of the peer: what was kept until then is not needed any more.
fn acknowledged(
    queue: &mut Queue,
    bytes: u64,
    pool: &mut Pool,
    sink: &mut impl Sink,
) -> Result<(), frame::Malformed> {
    queue.forget(bytes, pool, |token| sink.sent(token)).map_err(|_| frame::Malformed::Ack)
}
