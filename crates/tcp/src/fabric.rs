//! [`Tcp`]: the fabric, its event loop and its part of the contract.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Caps, Fabric, Get, Head, Peer, Refusal, Remote, Sink, Token};
use mio::event::Event;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest};

use crate::card;
use crate::frame::{MAX_BODY, PIECE};
use crate::guests::Guests;
use crate::link::{Link, Phase};
use crate::options::{Error, Options};
use crate::pool::Pool;
use crate::stream::{Received, Stream};

/// Largest body of a short frame, bytes: written straight from the caller's slice.
const MAX_SHORT: usize = 4096;

/// Messages up to this size are one frame, bytes: a question and its answer take as long as some 64 KiB, and who waits for
/// a message has it written where it goes. From 1 MiB on they cost nothing, as the first piece leaves meanwhile.
const EAGER: usize = 256 * 1024;

/// Bytes read at once.
const SCRATCH: usize = 256 * 1024;

/// So many of the peers that were heard last are looked at by reading their sockets, without asking the
/// system which sockets have something.
const HOT: usize = 4;

/// So many looks at a hot peer that give nothing make it cold.
const COLD: u32 = 100;

/// While there are hot peers, every so many polls the system is asked about all the others.
const LOOK_EVERY: u32 = 8;

/// The same while all that are connected are hot: only strangers call.
const LOOK_RARELY: u32 = 64;

/// Most peers that one poll reads from, hot ones apart.
const MOST_PEERS: usize = 16;

/// What an event is about: the kind in the upper bits, a number in the lower 32.
pub(crate) const KIND: usize = 1 << 32;
pub(crate) const LISTENER: usize = KIND;
pub(crate) const GUEST: usize = 2 * KIND;
const WATCHED: usize = 3 * KIND;

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
    pub(crate) guests: Guests,
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// Peers that there are connections with.
    pub(crate) connected: usize,
    /// Peers heard last, latest first, and how often since then there was nothing of them.
    hot: Vec<(u32, u32)>,
    /// Peers whose sockets have something to say.
    ready: VecDeque<u32>,
    /// Peers with bytes to send.
    backlog: Vec<u32>,
    /// Peers that we are connecting to.
    pub(crate) pending: Vec<u32>,
    /// Peers that were given up, and why: to be told by the next poll.
    pub(crate) fallen: Vec<(Peer, String)>,
    wanted: VecDeque<Peer>,
    pub(crate) pool: Pool,
    scratch: Box<[u8]>,
    /// A socket with bytes to send is full.
    stuck: bool,
    armed: bool,
    /// A watched descriptor had something since the last poll.
    foreign: bool,
    polls: u32,
    /// Peers that bursts go to: see `burst`.
    bursts: Vec<u32>,
    /// Peers that are owed an acknowledgement.
    owed: Vec<u32>,
}

impl Tcp {
    /// The fabric of process `me` among `size`, listening, and the card that its peers need. All processes of the
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
            guests: Guests::new(&options),
            options,
            poll,
            events: Events::with_capacity(256),
            listeners,
            links: Vec::new(),
            connected: 0,
            hot: Vec::with_capacity(HOT + 1),
            ready: VecDeque::new(),
            backlog: Vec::new(),
            pending: Vec::new(),
            fallen: Vec::new(),
            wanted: VecDeque::new(),
            pool: Pool::default(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            stuck: false,
            armed: false,
            foreign: false,
            polls: 0,
            bursts: Vec::new(),
            owed: Vec::new(),
        };
        Ok((tcp, card::encode(&addresses)))
    }

    /// From now on, input at `fd` ends [`Fabric::sleep`] too (a doorbell, the launcher's socket), and counts as
    /// something that happened in [`Fabric::poll`]; reading it is up to the caller. What is there already counts
    /// as new, also if the descriptor is watched already. It stays open until [`Tcp::unwatch`].
    ///
    /// # Errors
    /// If the system refuses (a descriptor that cannot be waited for).
    pub fn watch(&mut self, fd: RawFd) -> io::Result<()> {
        let (registry, token) = (self.poll.registry(), mio::Token(WATCHED));
        match registry.register(&mut SourceFd(&fd), token, Interest::READABLE) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                registry.reregister(&mut SourceFd(&fd), token, Interest::READABLE)
            }
            done => done,
        }
    }

    /// A descriptor that becomes readable when something arrives, to sleep on while the fabric itself is in
    /// other hands. What a poll has seen does not count any more: arm, poll until nothing happens, then sleep.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn bell_descriptor(&self) -> io::Result<OwnedFd> {
        self.poll.registry().as_fd().try_clone_to_owned()
    }

    /// Ends [`Tcp::watch`].
    ///
    /// # Errors
    /// If `fd` is not watched.
    pub fn unwatch(&mut self, fd: RawFd) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&fd))
    }

    /// The job has grown (or a peer of another job joined): peers up to `size` are accepted.
    pub fn grow(&mut self, size: u32) {
        self.size = self.size.max(size);
    }

    pub(crate) fn link(&mut self, peer: Peer) -> &mut Link {
        let at = peer.0 as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at].get_or_insert_default()
    }

    /// Has the next poll look at a peer.
    pub(crate) fn flag(&mut self, peer: u32) {
        if let Some(Some(link)) = self.links.get_mut(peer as usize)
            && !std::mem::replace(&mut link.flagged, true)
        {
            self.ready.push_back(peer);
        }
    }

    /// Sends through `send` if there is a connection; otherwise sees that there will be one.
    #[inline]
    fn send(
        &mut self,
        peer: Peer,
        send: impl FnOnce(&mut Stream, u32, usize, &mut Pool) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { return Err(self.reach(peer)) };
        let Phase::Up(stream) = &mut link.phase else { return Err(self.reach(peer)) };
        let gathered = stream.gathers();
        let sent = send(stream, self.polls, self.options.queue, &mut self.pool);
        if stream.gathers() && !gathered {
            self.bursts.push(peer.0);
        }
        if let Err(refusal) = sent {
            if stream.broken() {
                self.flag(peer.0);
            }
            return Err(refusal);
        }
        if stream.unsent() > 0 && !std::mem::replace(&mut link.in_backlog, true) {
            self.backlog.push(peer.0);
        }
        Ok(())
    }

    #[cold]
    fn reach(&mut self, peer: Peer) -> Refusal {
        if peer == self.me {
            return Refusal::Down;
        }
        let link = self.link(peer);
        link.wished = true;
        match link.phase {
            Phase::Down => return Refusal::Down,
            Phase::Idle if !link.addresses.is_empty() => self.dial(peer),
            Phase::Idle if !std::mem::replace(&mut link.asked, true) => self.wanted.push_back(peer),
            _ => {}
        }
        Refusal::Busy
    }

    /// Asks the system what happened, and notes it.
    fn look(&mut self, timeout: Option<Duration>) {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        // An error here can only be an interruption: nothing happened.
        if self.poll.poll(&mut events, timeout).is_ok() {
            events.iter().for_each(|event| self.note(event));
        }
        self.events = events;
    }

    fn note(&mut self, event: &Event) {
        let token = event.token().0;
        let number = token & (KIND - 1);
        match token - number {
            LISTENER => self.guests.calling = true,
            GUEST => self.guests.flag(number),
            WATCHED => self.foreign = true,
            _ => {
                let stream = self.links.get_mut(number).and_then(|link| link.as_mut()?.stream());
                if let Some(stream) = stream
                    && event.is_writable()
                {
                    stream.unblock();
                }
                self.flag(number as u32);
            }
        }
    }

    /// Reads once from a peer; true if there may be more.
    fn receive(&mut self, peer: u32, sink: &mut impl Sink, work: &mut usize) -> bool {
        let Some(Some(link)) = self.links.get_mut(peer as usize) else { return false };
        let Some(stream) = link.stream() else { return false };
        match stream.receive(Peer(peer), &mut self.scratch, &mut self.pool, sink) {
            Received::Nothing => false,
            Received::Frames(frames) => {
                *work += frames.max(1);
                if stream.owes_answer() && !std::mem::replace(&mut link.owed, true) {
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
                // It is down, and out of the list.
                _ => {}
            }
        }
        work
    }

    /// Sees to the peers that have something to say: all of them if someone wants to sleep.
    fn read_ready(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        let most = if self.armed { usize::MAX } else { MOST_PEERS };
        for _ in 0..self.ready.len().min(most) {
            let Some(peer) = self.ready.pop_front() else { break };
            let Some(Some(link)) = self.links.get_mut(peer as usize) else { continue };
            link.flagged = false;
            if matches!(link.phase, Phase::Dialing(_)) {
                work += self.drive_dial(Peer(peer));
            } else if self.receive(peer, sink, &mut work) {
                self.flag(peer);
                self.heat(peer);
            }
        }
        work
    }

    /// Makes a peer the hottest.
    pub(crate) fn heat(&mut self, peer: u32) {
        self.hot.retain(|&(other, _)| other != peer);
        self.hot.insert(0, (peer, 0));
        self.hot.truncate(HOT);
    }

    fn end_bursts(&mut self) {
        for peer in self.bursts.drain(..) {
            let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
            if let Some(stream) = link.and_then(|link| link.stream()) {
                stream.end_burst();
            }
        }
    }

    fn acknowledge(&mut self) {
        let (links, hurry, now) = (&mut self.links, self.armed, Instant::now());
        self.owed.retain(|&peer| {
            let Some(link) = &mut links[peer as usize] else { return false };
            link.owed = link.stream().is_some_and(|stream| !stream.acknowledge(now, hurry));
            link.owed
        });
    }

    fn write_backlog(&mut self) -> usize {
        let (links, pool) = (&mut self.links, &mut self.pool);
        let (mut work, mut stuck) = (0, false);
        let mut broken = Vec::new();
        self.backlog.retain(|&peer| {
            let Some(link) = &mut links[peer as usize] else { return false };
            let left = link.stream().map_or(0, |stream| {
                let before = stream.unsent();
                stream.flush(pool);
                stuck |= stream.blocked();
                if stream.broken() {
                    broken.push(peer);
                }
                work += usize::from(stream.unsent() < before);
                stream.unsent()
            });
            link.in_backlog = left > 0;
            left > 0
        });
        self.stuck = stuck;
        broken.into_iter().for_each(|peer| self.flag(peer));
        work
    }

    fn tell_fallen(&mut self, sink: &mut impl Sink) -> usize {
        let fallen = std::mem::take(&mut self.fallen);
        fallen.iter().for_each(|(peer, cause)| sink.down(*peer, cause));
        fallen.len()
    }
}

impl Fabric for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: MAX_SHORT,
            max_bcopy: MAX_BODY,
            eager: EAGER,
            piece: PIECE,
            get: false,
            alpha: 5e-6,
            beta: 1.0 / 3.5e9,
        }
    }

    fn connect(&mut self, peer: Peer, card: &[u8]) -> Result<(), String> {
        if peer == self.me {
            return Err(format!("peer {} is this process", peer.0));
        }
        let addresses = card::decode(card).map_err(|bad| format!("peer {}: {bad}", peer.0))?;
        let link = self.link(peer);
        link.addresses = addresses;
        link.current = 0;
        if link.wished && matches!(link.phase, Phase::Idle) {
            self.dial(peer);
        }
        Ok(())
    }

    fn wanted(&mut self) -> Option<Peer> {
        self.wanted.pop_front()
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
        memory: &Buffer,
        at: isize,
        len: usize,
    ) -> Result<(), Refusal> {
        debug_assert!(len <= MAX_BODY);
        self.send(peer, |stream, round, limit, pool| {
            stream.send_from(head, (memory, at, len), round, limit, pool)
        })
    }

    fn expose(&mut self, _peer: Peer, memory: &Buffer) -> Remote {
        Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key: 0 }
    }

    fn get(&mut self, _peer: Peer, _remote: Remote, _local: &Buffer, _token: Token) -> Get {
        Get::Impossible
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        self.polls = self.polls.wrapping_add(1);
        let every = if self.hot.len() < self.connected { LOOK_EVERY } else { LOOK_RARELY };
        let look = self.armed || self.stuck || self.hot.is_empty() || self.polls.is_multiple_of(every);
        if !self.bursts.is_empty() {
            self.end_bursts();
        }
        if !self.owed.is_empty() {
            self.acknowledge();
        }
        let mut work = self.read_hot(sink);
        if look {
            self.look(Some(Duration::ZERO));
            work += usize::from(std::mem::take(&mut self.foreign));
            work += self.welcome();
            work += self.run_timers();
        }
        if !self.ready.is_empty() {
            work += self.read_ready(sink);
        }
        if !self.backlog.is_empty() {
            work += self.write_backlog();
        }
        if !self.fallen.is_empty() {
            work += self.tell_fallen(sink);
        }
        work
    }

    fn unsent(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn arm(&mut self) {
        self.armed = true;
    }

    fn disarm(&mut self) {
        self.armed = false;
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        let unwritten = !self.backlog.is_empty() && !self.stuck;
        if self.foreign
            || unwritten
            || !self.ready.is_empty()
            || !self.fallen.is_empty()
            || self.guests.busy()
        {
            return;
        }
        let earliest = deadline.into_iter().chain(self.next_deadline()).min();
        self.look(earliest.map(|at| at.saturating_duration_since(Instant::now())));
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.earliest_timer()
    }
}

impl Drop for Tcp {
    /// Says farewell to all peers; what they have not taken yet gets at most a second for all together.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        for link in std::mem::take(&mut self.links).into_iter().flatten() {
            if let Phase::Up(stream) = link.phase {
                let patience = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
                stream.close(&mut self.scratch, &mut self.pool, patience);
            }
        }
    }
}
