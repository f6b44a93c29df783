//! [`Tcp`]: the fabric, its event loop and its part of the contract.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{
    Access, Caps, Fabric, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Sent, Sink, Token,
    Transfer, Wake,
};
use mio::Events;
use mio::event::Event;
use mio::net::TcpListener;

use crate::business_card;
use crate::frame::{MAX_BODY, PIECE};
use crate::link::{Link, Phase};
use crate::options::{Error, Options};
use crate::pending_connections::PendingConnections;
use crate::pool::Pool;
use crate::stream::{Received, Stream};

/// Largest body of a short frame, bytes: written straight from the caller's slice.
const MAX_SHORT: usize = 4096;

/// Messages up to this size are one frame, bytes: RTS and reply take as long as some 64 KiB, and an awaited message is
/// written straight to its buffer. From 1 MiB on the round trip costs nothing, as the first piece leaves meanwhile.
const EAGER: usize = 256 * 1024;

/// Bytes read at once.
const READ_BUFFER: usize = 256 * 1024;

/// Number of hot peers, those heard last: their sockets are read without asking the system first whether something came.
const HOT: usize = 4;

/// A hot peer becomes cold after this many reads in a row that find nothing.
const COLD: u32 = 100;

/// While there are hot peers, the system is asked about all other sockets once in this many polls.
const ASK_EVERY: u32 = 8;

/// Once in this many polls while all connected peers are hot: only new connections can come then.
const ASK_RARELY: u32 = 64;

/// Most peers that one poll reads from besides the hot ones.
const MOST_PEERS: usize = 16;

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
    pub(crate) pending_connections: PendingConnections,
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// Number of peers that are connected.
    pub(crate) connected: usize,
    /// Hot peers (heard last), latest first, each with the number of its reads since then that found nothing.
    hot: Vec<(u32, u32)>,
    /// Peers whose sockets have an event to handle.
    ready: VecDeque<u32>,
    /// Peers with bytes to send.
    backlog: Vec<u32>,
    /// Peers to connect to: an attempt is under way, or will be.
    pub(crate) connecting: Vec<u32>,
    /// Peers that were given up, and why: the next poll reports them to the sink.
    pub(crate) lost: Vec<(Peer, String)>,
    /// Peers whose business cards are needed: see [`Fabric::wanted`].
    wanted: VecDeque<Peer>,
    pub(crate) pool: Pool,
    read_buffer: Box<[u8]>,
    /// The socket of a peer in `backlog` is full.
    socket_full: bool,
    armed: bool,
    polls: u32,
    /// Peers to which a burst is under way: see `burst`.
    bursts: Vec<u32>,
    /// Peers that are owed an acknowledgement.
    owed: Vec<u32>,
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
        let (listeners, addresses) = options.listen_on(poll.registry())?;
        let tcp = Tcp {
            me,
            size,
            job,
            secret,
            pending_connections: PendingConnections::new(&options),
            options,
            poll,
            events: Events::with_capacity(256),
            listeners,
            links: Vec::new(),
            connected: 0,
            hot: Vec::with_capacity(HOT + 1),
            ready: VecDeque::new(),
            backlog: Vec::new(),
            connecting: Vec::new(),
            lost: Vec::new(),
            wanted: VecDeque::new(),
            pool: Pool::default(),
            read_buffer: vec![0; READ_BUFFER].into_boxed_slice(),
            socket_full: false,
            armed: false,
            polls: 0,
            bursts: Vec::new(),
            owed: Vec::new(),
        };
        Ok((tcp, business_card::encode(&addresses)))
    }

    pub(crate) fn link(&mut self, peer: Peer) -> &mut Link {
        let at = peer.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at].get_or_insert_default()
    }

    /// Has the next poll handle a peer.
    pub(crate) fn mark_ready(&mut self, peer: u32) {
        if let Some(Some(link)) = self.links.get_mut(peer as usize)
            && !std::mem::replace(&mut link.in_ready, true)
        {
            self.ready.push_back(peer);
        }
    }

    /// Sends through `send` if the peer is connected; otherwise starts to connect and refuses.
    #[inline]
    fn send<T>(
        &mut self,
        peer: Peer,
        send: impl FnOnce(&mut Stream, u32, usize, &mut Pool) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { return Err(self.reach(peer)) };
        let Phase::Up(stream) = &mut link.phase else { return Err(self.reach(peer)) };
        let gathered = stream.gathers();
        let sent = send(stream, self.polls, self.options.queue, &mut self.pool);
        if stream.gathers() && !gathered {
            self.bursts.push(peer.0);
        }
        if sent.is_err() {
            if stream.broken() {
                self.mark_ready(peer.0);
            }
        } else if stream.unsent() > 0 && !std::mem::replace(&mut link.in_backlog, true) {
            self.backlog.push(peer.0);
        }
        sent
    }

    /// Starts to connect to a peer, or asks for its business card; gives the refusal for the present send.
    #[cold]
    fn reach(&mut self, peer: Peer) -> Refusal {
        if peer == self.me {
            return Refusal::Down;
        }
        let link = self.link(peer);
        link.send_refused = true;
        match link.phase {
            Phase::Down => return Refusal::Down,
            Phase::Idle if !link.addresses.is_empty() => self.dial(peer),
            Phase::Idle if !std::mem::replace(&mut link.card_requested, true) => self.wanted.push_back(peer),
            _ => {}
        }
        Refusal::Busy
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
                if let Some(stream) = stream_to(&mut self.links, number as u32)
                    && event.is_writable()
                {
                    stream.unblock();
                }
                self.mark_ready(number as u32);
            }
        }
    }

    /// Reads once from a peer; true if there may be more.
    fn receive(&mut self, peer: u32, sink: &mut impl Sink, work: &mut usize) -> bool {
        let Some(Some(link)) = self.links.get_mut(peer as usize) else { return false };
        let Some(stream) = link.stream() else { return false };
        match stream.receive(Peer(peer), &mut self.read_buffer, &mut self.pool, sink) {
            Received::Nothing => false,
            Received::Frames(frames) => {
                *work += frames.max(1);
                if stream.owes_ack() && !std::mem::replace(&mut link.in_owed, true) {
                    self.owed.push(peer);
                }
                true
            }
            Received::Over(cause) => {
                *work += 1;
                link.phase = Phase::Down;
                self.connected -= 1;
                self.hot.retain(|&(other, _)| other != peer);
                sink.down(Peer(peer), &cause);
                false
            }
        }
    }

    fn read_hot(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some(&(peer, misses)) = self.hot.get(at) {
            let misses = if self.receive(peer, sink, &mut work) { 0 } else { misses + 1 };
            match self.hot.get_mut(at) {
                Some(entry) if entry.0 == peer && misses < COLD => {
                    entry.1 = misses;
                    at += 1;
                }
                Some(entry) if entry.0 == peer => drop(self.hot.remove(at)),
                // The peer is down, and `receive` has taken it out of the list.
                _ => {}
            }
        }
        work
    }

    /// Handles the peers in `ready`: at most [`MOST_PEERS`], but all of them before a sleep (`armed`).
    fn read_ready(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        let most = if self.armed { usize::MAX } else { MOST_PEERS };
        for _ in 0..self.ready.len().min(most) {
            let Some(peer) = self.ready.pop_front() else { break };
            let Some(Some(link)) = self.links.get_mut(peer as usize) else { continue };
            link.in_ready = false;
            if matches!(link.phase, Phase::Dialing(_)) {
                work += self.drive_dial(Peer(peer));
            } else if self.receive(peer, sink, &mut work) {
                self.mark_ready(peer);
                self.make_hot(peer);
            }
        }
        work
    }

    /// Puts a peer first among the hot ones.
    pub(crate) fn make_hot(&mut self, peer: u32) {
        self.hot.retain(|&(other, _)| other != peer);
        self.hot.insert(0, (peer, 0));
        self.hot.truncate(HOT);
    }

    /// Has the system send what it gathers of all bursts.
    fn end_bursts(&mut self) {
        for peer in self.bursts.drain(..) {
            if let Some(stream) = stream_to(&mut self.links, peer) {
                stream.end_burst();
            }
        }
    }

    /// Acknowledges frames to the peers in `owed`, except where it is too early.
    fn acknowledge(&mut self) {
        let (links, hurry, now) = (&mut self.links, self.armed, Instant::now());
        self.owed.retain(|&peer| {
            let Some(link) = &mut links[peer as usize] else { return false };
            link.in_owed = link.stream().is_some_and(|stream| !stream.acknowledge(now, hurry));
            link.in_owed
        });
    }

    fn write_backlog(&mut self, sink: &mut impl Sink) -> usize {
        let (links, pool) = (&mut self.links, &mut self.pool);
        let (mut work, mut socket_full) = (0, false);
        let mut broken = Vec::new();
        self.backlog.retain(|&peer| {
            let Some(link) = &mut links[peer as usize] else { return false };
            let left = link.stream().map_or(0, |stream| {
                let before = stream.unsent();
                stream.flush(pool).into_iter().for_each(|token| sink.sent(token));
                socket_full |= stream.blocked();
                if stream.broken() {
                    broken.push(peer);
                }
                work += usize::from(stream.unsent() < before);
                stream.unsent()
            });
            link.in_backlog = left > 0;
            left > 0
        });
        self.socket_full = socket_full;
        broken.into_iter().for_each(|peer| self.mark_ready(peer));
        work
    }

    fn report_lost(&mut self, sink: &mut impl Sink) -> usize {
        let lost = std::mem::take(&mut self.lost);
        lost.iter().for_each(|(peer, cause)| sink.down(*peer, cause));
        lost.len()
    }
}

/// The connection to a peer, if there is one.
fn stream_to(links: &mut [Option<Box<Link>>], peer: u32) -> Option<&mut Stream> {
    links.get_mut(peer as usize)?.as_mut()?.stream()
}

impl Port for Tcp {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: MAX_SHORT,
            max_bcopy: MAX_BODY,
            eager: EAGER,
            piece: PIECE,
            get: Kinds::NONE,
            put: Kinds::NONE,
            atomics: Kinds::NONE,
            alpha: 5e-6,
            beta: 1.0 / 3.5e9,
        }
    }

    #[inline]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        debug_assert!(body.len() <= MAX_SHORT);
        self.send(peer, |stream, round, limit, pool| stream.send(head, body, round, limit, pool))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        debug_assert!(len <= MAX_BODY);
        self.send(peer, |stream, round, limit, pool| stream.send_filled(head, len, fill, round, limit, pool))
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        body: (&Buffer, isize, usize),
        token: Option<Token>,
    ) -> Result<Sent, Refusal> {
        self.send(peer, |stream, round, limit, pool| {
            stream.send_from(head, body, token, (round, limit), pool)
        })
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        if let Some(stream) = stream_to(&mut self.links, peer.0) {
            stream.reclaim(token, &mut self.pool);
        }
    }

    fn register(&mut self, _peer: Peer, _memory: &Buffer, _access: Access) -> Result<Remote, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    fn get(&mut self, _peer: Peer, _remote: Remote, _local: &[Buffer], _token: Token) -> Transfer {
        Transfer::Impossible
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
        let addresses =
            business_card::decode(business_card).map_err(|bad| format!("peer {}: {bad}", peer.0))?;
        let link = self.link(peer);
        link.addresses = addresses;
        link.current = 0;
        if link.send_refused && matches!(link.phase, Phase::Idle) {
            self.dial(peer);
        }
        Ok(())
    }

    fn wanted(&mut self) -> Option<Peer> {
        self.wanted.pop_front()
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let every = if self.hot.len() < self.connected { ASK_EVERY } else { ASK_RARELY };
        let ask = self.armed || self.socket_full || self.hot.is_empty() || self.polls.is_multiple_of(every);
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
        if !self.lost.is_empty() {
            work += self.report_lost(sink);
        }
        work
    }

    fn unsent(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn arm(&mut self, _wake: Wake) {
        self.armed = true;
    }

    fn disarm(&mut self) {
        self.armed = false;
    }

    fn has_news(&mut self) -> bool {
        let unwritten = !self.backlog.is_empty() && !self.socket_full;
        unwritten || !self.ready.is_empty() || !self.lost.is_empty() || self.pending_connections.busy()
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
        self.earliest_timer()
    }
}

impl Drop for Tcp {
    /// Says farewell to all peers. Bytes that the peers have not taken yet get at most one second, for all peers together.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        for link in std::mem::take(&mut self.links).into_iter().flatten() {
            if let Phase::Up(stream) = link.phase {
                let patience = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
                stream.close(&mut self.read_buffer, &mut self.pool, patience);
            }
        }
    }
}
