//! [`Tcp`]: the fabric and its event loop.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use banyan_transport::{Fabric, Peer, Refusal, Sink, Token, Wake};
use mio::Events;
use mio::event::Event;
use mio::net::TcpListener;

use crate::business_card::{self, Candidate};
use crate::link::{Links, Phase};
use crate::options::{Error, MAX_STREAMS, Options};
use crate::paths::{Paths, most_stripes};
use crate::pending_connections::PendingConnections;
use crate::pool::Pool;
use crate::stream::{Received, Stream};

/// Bytes read at once.
const READ_BUFFER: usize = 256 * 1024;

/// Number of hot links, those heard last: their sockets are read without asking the system first whether something came.
const HOT: usize = 4;

/// A hot link becomes cold after this many reads in a row that find nothing.
const COLD: u32 = 100;

/// While there are hot links, the system is asked about all other sockets once in this many polls.
const ASK_EVERY: u32 = 8;

/// Once in this many polls while all connected links are hot, or none is connected: only new connections can come then.
const ASK_RARELY: u32 = 64;

/// Most links that one poll reads from besides the hot ones.
const MOST_LINKS: usize = 16;

/// An event token: the kind of its source in the upper bits, the source's number in the lower 32.
pub(crate) const KIND: usize = 1 << 32;
pub(crate) const LISTENER: usize = KIND;
pub(crate) const PENDING: usize = 2 * KIND;

/// Messages over TCP connections, made on first contact. See the [crate] for the protocol.
pub struct Tcp {
    pub(crate) me: Peer,
    pub(crate) size: u32,
    pub(crate) job: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) options: Options,
    pub(crate) poll: mio::Poll,
    events: Events,
    pub(crate) listeners: Vec<TcpListener>,
    /// Where the listeners listen.
    candidates: Vec<Candidate>,
    pub(crate) pending_connections: PendingConnections,
    pub(crate) links: Links,
    /// Number of links that are connected.
    pub(crate) connected: usize,
    /// Hot links (heard last), latest first, each with the number of its reads since then that found nothing.
    pub(crate) hot: Vec<(u32, u32)>,
    /// Links whose sockets have an event to handle.
    ready: VecDeque<u32>,
    /// Links with bytes to send.
    backlog: Vec<u32>,
    /// Links to connect: an attempt is under way, or will be.
    pub(crate) connecting: Vec<u32>,
    /// Peers that were given up, and why: the next poll reports them to the sink.
    pub(crate) lost: Vec<(Peer, String)>,
    /// What was lent on resumed streams and is acknowledged: the next poll tells the sink.
    pub(crate) released: Vec<Token>,
    /// Peers whose business cards are needed: see [`Sink::wanted`].
    wanted: Vec<Peer>,
    /// Peers that were not reached: see [`Sink::unreached`].
    unreached: Vec<Peer>,
    /// Peers that have ended, as the launcher says, and when they are given up though a connection stands.
    pub(crate) dying: Vec<(Peer, Instant)>,
    pub(crate) pool: Pool,
    read_buffer: Box<[u8]>,
    /// The socket of a link in `backlog` is full.
    socket_full: bool,
    armed: bool,
    pub(crate) polls: u32,
    /// Links on which a burst is under way: see `burst`.
    bursts: Vec<u32>,
    /// Links that are owed an acknowledgement, and when the first one is due.
    owed: Vec<u32>,
    owed_by: Option<Instant>,
    /// Counts frames that may take any stream: they take turns.
    pub(crate) turn: u32,
}

impl Tcp {
    /// The fabric of process `me` among `size`, listening, and the business card that its peers need. All processes of the
    /// job have the same `job` and `secret`.
    ///
    /// # Errors
    /// If an address of `options` cannot be listened at, or descriptors are used up.
    pub fn new(
        me: Peer,
        size: u32,
        job: u64,
        secret: [u8; 32],
        options: Options,
    ) -> Result<(Tcp, Vec<u8>), Error> {
        let poll = mio::Poll::new().map_err(Error::Poll)?;
        let (listeners, candidates) = options.listen_on(me, poll.registry())?;
        let most =
            if options.streams > 0 { options.streams.min(MAX_STREAMS) } else { most_stripes(&candidates) };
        let business_card = business_card::encode(&candidates);
        let tcp = Tcp {
            me,
            size,
            job,
            secret,
            pending_connections: PendingConnections::new(&options),
            poll,
            events: Events::with_capacity(256),
            listeners,
            links: Links::new(most),
            connected: 0,
            hot: Vec::with_capacity(HOT + 1),
            ready: VecDeque::new(),
            backlog: Vec::new(),
            connecting: Vec::new(),
            lost: Vec::new(),
            released: Vec::new(),
            wanted: Vec::new(),
            unreached: Vec::new(),
            dying: Vec::new(),
            pool: Pool::default(),
            read_buffer: vec![0; READ_BUFFER].into_boxed_slice(),
            socket_full: false,
            armed: false,
            polls: 0,
            bursts: Vec::new(),
            owed: Vec::new(),
            owed_by: None,
            turn: 0,
            options,
            candidates,
        };
        Ok((tcp, business_card))
    }

    /// Number of connections that are open.
    pub fn connections(&self) -> usize {
        self.connected
    }

    /// Has the next poll handle a link.
    pub(crate) fn mark_ready(&mut self, number: u32) {
        if let Some(link) = self.links.get(number)
            && !std::mem::replace(&mut link.in_ready, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Sends through `send` if the link is connected; otherwise starts to connect and refuses.
    #[inline]
    pub(crate) fn send<T>(
        &mut self,
        number: u32,
        send: impl FnOnce(&mut Stream, u32, usize, &mut Pool) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Some(link) = self.links.get(number) else { return Err(self.reach(number)) };
        let Phase::Up(stream) = &mut link.phase else { return Err(self.reach(number)) };
        let gathered = stream.gathers();
        let sent = send(stream, self.polls, self.options.queue, &mut self.pool);
        if stream.gathers() && !gathered {
            self.bursts.push(number);
        }
        if sent.is_err() {
            if stream.broken() {
                self.mark_ready(number);
            }
        } else if stream.unsent() > 0 && !std::mem::replace(&mut link.in_backlog, true) {
            self.backlog.push(number);
        }
        sent
    }

    /// Has polls send what a link has to send.
    pub(crate) fn mark_backlog(&mut self, number: u32) {
        if let Some(link) = self.links.get(number)
            && link.stream().is_some_and(|stream| stream.unsent() > 0)
            && !std::mem::replace(&mut link.in_backlog, true)
        {
            self.backlog.push(number);
        }
    }

    /// Starts to connect a link, or asks for the business card of its peer; gives the refusal for the present send.
    #[cold]
    fn reach(&mut self, number: u32) -> Refusal {
        let (peer, _) = self.links.of(number);
        if peer == self.me {
            return Refusal::Down;
        }
        let link = self.links.at(number);
        link.send_refused = true;
        match link.phase {
            Phase::Down => return Refusal::Down,
            Phase::Idle if !link.addresses.is_empty() => self.dial(number),
            Phase::Idle => self.want(peer),
            _ => {}
        }
        Refusal::Busy
    }

    /// Asks for the business card of a peer, once.
    pub(crate) fn want(&mut self, peer: Peer) {
        let first = self.links.at(self.links.number(peer, 0));
        if !std::mem::replace(&mut first.card_requested, true) {
            self.wanted.push(peer);
        }
    }

    /// Says that a peer is not reached, once until it is.
    pub(crate) fn note_unreached(&mut self, peer: Peer) {
        let first = self.links.at(self.links.number(peer, 0));
        if !std::mem::replace(&mut first.reported, true) {
            self.unreached.push(peer);
        }
    }

    /// Asks the system for events and records them, waiting up to `timeout` (`None`: without limit).
    fn ask_system(&mut self, timeout: Option<Duration>) {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        // An error here can only be an interruption: nothing happened.
        if self.poll.poll(&mut events, timeout).is_ok() {
            events.iter().for_each(|event| self.record(event));
        }
        self.events = events;
    }

    fn record(&mut self, event: &Event) {
        let token = event.token().0;
        let number = token & (KIND - 1);
        match token - number {
            LISTENER => self.pending_connections.accept_due = true,
            PENDING => self.pending_connections.mark_ready(number),
            _ => {
                if let Some(stream) = self.links.stream(number as u32)
                    && event.is_writable()
                {
                    stream.unblock();
                }
                self.mark_ready(number as u32);
            }
        }
    }

    /// Reads once from a link; true if there may be more.
    fn receive(&mut self, number: u32, sink: &mut impl Sink, work: &mut usize) -> bool {
        let (peer, _) = self.links.of(number);
        let Some(link) = self.links.get(number) else { return false };
        let Some(stream) = link.stream() else { return false };
        match stream.receive(peer, &mut self.read_buffer, &mut self.pool, sink) {
            Received::Nothing => false,
            Received::Frames(frames) => {
                *work += frames.max(1);
                if stream.owes_ack() {
                    stream.acknowledge_due(&mut self.pool);
                    if !std::mem::replace(&mut link.in_owed, true) {
                        self.owed.push(number);
                    }
                    self.mark_backlog(number);
                }
                true
            }
            Received::Broken(why) => {
                *work += 1;
                self.broke(number, why);
                false
            }
            Received::Malformed(cause) => {
                *work += 1;
                self.give_up(number, cause);
                false
            }
        }
    }

    fn read_hot(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(&(number, misses)) = self.hot.get(at) {
            let misses = if self.receive(number, sink, &mut work) { 0 } else { misses + 1 };
            match self.hot.get_mut(at) {
                Some(entry) if entry.0 == number && misses < COLD => {
                    entry.1 = misses;
                    at += 1;
                }
                Some(entry) if entry.0 == number => drop(self.hot.remove(at)),
                // The connection is over, and was taken out of the list.
                _ => {}
            }
        }
        work
    }

    /// Handles the links in `ready`: at most [`MOST_LINKS`], but all of them before a sleep (`armed`).
    fn read_ready(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        let most = if self.armed { usize::MAX } else { MOST_LINKS };
        for _ in 0..self.ready.len().min(most) {
            let Some(number) = self.ready.pop_front() else { break };
            let Some(link) = self.links.get(number) else { continue };
            link.in_ready = false;
            if matches!(link.phase, Phase::Dialing(_)) {
                work += self.drive_dial(number);
            } else if self.receive(number, sink, &mut work) {
                self.mark_ready(number);
                self.make_hot(number);
            }
        }
        work
    }

    /// Puts a link first among the hot ones.
    pub(crate) fn make_hot(&mut self, number: u32) {
        self.hot.retain(|&(other, _)| other != number);
        self.hot.insert(0, (number, 0));
        self.hot.truncate(HOT);
    }

    /// Has the system send what it gathers of all bursts.
    fn end_bursts(&mut self) {
        for number in self.bursts.drain(..) {
            if let Some(stream) = self.links.stream(number) {
                stream.end_burst();
            }
        }
    }

    /// Acknowledges frames on the links in `owed`, except where it is too early.
    fn acknowledge(&mut self) {
        let (now, hurry, mut next) = (Instant::now(), self.armed, None);
        let mut owed = std::mem::take(&mut self.owed);
        owed.retain(|&number| {
            let (Some(link), pool) = (self.links.get(number), &mut self.pool) else { return false };
            link.in_owed =
                link.stream().is_some_and(|stream| !stream.acknowledge((now, hurry), &mut next, pool));
            let in_owed = link.in_owed;
            self.mark_backlog(number);
            in_owed
        });
        (self.owed, self.owed_by) = (owed, next);
    }

    fn write_backlog(&mut self, sink: &mut impl Sink) -> usize {
        let (links, pool) = (&mut self.links, &mut self.pool);
        let (mut work, mut socket_full) = (0, false);
        let mut broken = Vec::new();
        self.backlog.retain(|&number| {
            let Some(link) = links.get(number) else { return false };
            let left = link.stream().map_or(0, |stream| {
                let before = stream.unsent();
                stream.flush(pool).into_iter().for_each(|token| sink.sent(token));
                socket_full |= stream.blocked();
                if stream.broken() {
                    broken.push(number);
                }
                work += usize::from(stream.unsent() < before);
                stream.unsent()
            });
            link.in_backlog = left > 0;
            left > 0
        });
        self.socket_full = socket_full;
        broken.into_iter().for_each(|number| self.mark_ready(number));
        work
    }

    /// True if somebody is to be told of peers whose business cards are needed, or that were not reached.
    fn misses(&self) -> bool {
        !self.wanted.is_empty() || !self.unreached.is_empty()
    }

    /// Tells whose business cards are needed, and who was not reached.
    fn report_missing(&mut self, sink: &mut impl Sink) -> usize {
        let missing = self.wanted.len() + self.unreached.len();
        self.wanted.drain(..).for_each(|peer| sink.wanted(peer));
        self.unreached.drain(..).for_each(|peer| sink.unreached(peer));
        missing
    }

    fn report_lost(&mut self, sink: &mut impl Sink) -> usize {
        self.released.drain(..).for_each(|token| sink.sent(token));
        let lost = std::mem::take(&mut self.lost);
        lost.iter().for_each(|(peer, cause)| sink.down(*peer, cause));
        lost.len()
    }
}

impl Fabric for Tcp {
    fn reaches(&self, peer: Peer) -> bool {
        peer != self.me && peer.0 < self.size
    }

    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        if peer == self.me {
            return Err(format!("peer {} is this process", peer.0));
        }
        let candidates =
            business_card::decode(business_card).map_err(|bad| format!("peer {}: {bad}", peer.0))?;
        let paths = Paths::new(&self.candidates, &candidates);
        let streams = self.links.streams();
        let used = if self.options.streams > 0 { streams } else { streams.min(paths.stripes() as u32) };
        let first = self.links.number(peer, 0);
        self.links.at(first).used = used;
        for number in first..first + used {
            let link = self.links.at(number);
            link.addresses = paths.of((number - first) as u8);
            if link.send_refused && matches!(link.phase, Phase::Idle) {
                self.dial(number);
            }
        }
        Ok(())
    }

    fn peer_died(&mut self, peer: Peer, cause: &str) {
        self.peer_ended(peer, cause);
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let every = match self.hot.len() {
            hot if hot == self.connected => ASK_RARELY,
            0 => 1,
            _ => ASK_EVERY,
        };
        let due = self.polls.is_multiple_of(every) || self.has_timers();
        let ask = self.armed || self.socket_full || due;
        if !self.bursts.is_empty() {
            self.end_bursts();
        }
        if !self.owed.is_empty() {
            self.acknowledge();
        }
        let mut work = self.read_hot(sink);
        if ask {
            self.ask_system(Some(Duration::ZERO));
            work += self.serve_pending();
            work += self.run_timers();
        }
        if !self.ready.is_empty() {
            work += self.read_ready(sink);
        }
        if !self.backlog.is_empty() {
            work += self.write_backlog(sink);
        }
        if !self.lost.is_empty() || !self.released.is_empty() {
            work += self.report_lost(sink);
        }
        if self.misses() {
            work += self.report_missing(sink);
        }
        work
    }

    fn by_kernel(&self) -> bool {
        true
    }

    fn unsent(&self) -> bool {
        !self.backlog.is_empty() || self.links.await_acks()
    }

    fn arm(&mut self, _wake: Wake) {
        self.armed = true;
    }

    fn disarm(&mut self) {
        self.armed = false;
    }

    fn has_news(&mut self) -> bool {
        let unwritten = !self.backlog.is_empty() && !self.socket_full;
        let untold = !self.lost.is_empty() || !self.released.is_empty();
        unwritten || untold || self.misses() || !self.ready.is_empty() || self.pending_connections.busy()
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        if self.has_news() {
            return;
        }
        let earliest = deadline.into_iter().chain(self.next_deadline()).min();
        self.ask_system(earliest.map(|at| at.saturating_duration_since(Instant::now())));
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.poll.registry().as_fd().try_clone_to_owned()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.earliest_timer().into_iter().chain(self.owed_by).min()
    }
}

impl Drop for Tcp {
    /// Says farewell to all peers. Bytes that the peers have not taken yet get at most one second, for all peers together.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        for stream in self.links.take_streams() {
            let patience = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
            stream.close(&mut self.read_buffer, &mut self.pool, patience);
        }
    }
}
