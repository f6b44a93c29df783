//! [`Link`]: one stream to a peer, and the state of its connection; [`Links`]: all of them, by number.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use banyan_transport::Peer;

use crate::handshake::Handshake;
use crate::stream::Stream;
use crate::talk::Talk;

/// How long the two systems may take to connect the sockets. The handshake after that has no limit as long as the peer's
/// host answers: the peer may be computing.
const CONNECT: Duration = Duration::from_secs(5);

/// The pause after the first round of attempts that fail.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// One stream to a peer.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) phase: Phase,
    /// Where the peer listens, best first; empty until its business card comes.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Number of streams to the peer that this process uses; 0 until its business card comes. Known of stream 0 alone.
    pub(crate) used: u32,
    /// What was sent and received on a connection that broke: the next one goes on with it.
    pub(crate) suspended: Option<Box<Stream>>,
    /// Why that connection broke.
    pub(crate) cause: String,
    /// The latest attempt to connect, of either side, that this process knows of.
    pub(crate) attempt: u32,
    /// The attempt that became the present connection, or the last one.
    pub(crate) connected_by: u32,
    /// A send to it was refused for want of a connection: connect as soon as its addresses are known.
    pub(crate) send_refused: bool,
    /// The business card of the peer was asked for, once. Known of stream 0 alone.
    pub(crate) card_requested: bool,
    /// It was said that the peer is not reached. Known of stream 0 alone.
    pub(crate) reported: bool,
    /// The launcher says that the peer has ended, and why. Known of stream 0 alone.
    pub(crate) ended: Option<String>,
    /// Numbers of the pending connections that were accepted as this stream, oldest first, until the proof of one comes or they are
    /// dropped: a peer may try several addresses at once. At most one for each address of ours.
    pub(crate) pending: Vec<usize>,
    /// Since when no attempt has succeeded, and how long to wait before the next.
    pub(crate) failing: Option<(Instant, Duration)>,
    /// What the latest attempt at each address came to, for those that have failed.
    pub(crate) said: Vec<(SocketAddr, String)>,
    /// It is in [`Tcp`](crate::Tcp)'s list `ready`.
    pub(crate) in_ready: bool,
    /// It is in the list of links with bytes to send.
    pub(crate) in_backlog: bool,
    /// It is in the list of links that are owed an acknowledgement.
    pub(crate) in_owed: bool,
}

/// State of the connection of a stream.
#[derive(Default)]
pub(crate) enum Phase {
    /// No connection, and none is being made.
    #[default]
    Idle,
    /// This process is connecting: there is an attempt under way.
    Dialing(Box<Dial>),
    /// This process connects again at this time.
    AwaitRetry(Instant),
    /// Connected and proven.
    Up(Box<Stream>),
    /// The peer has said farewell here. Another stream may still bring what it has sent.
    Left,
    /// The peer is gone, or could not be reached: no further attempt is made.
    Down,
}

/// Attempts to connect, each at another address. The first one whose other end proves to be the peer is kept.
#[derive(Default)]
pub(crate) struct Dial {
    pub(crate) attempts: Vec<Attempt>,
    /// Index of the address that is tried next. Those in front of it were tried in this round, and failed or are under way.
    pub(crate) next: usize,
    /// When it is tried, unless an attempt fails before.
    pub(crate) next_at: Option<Instant>,
    /// Number of rounds that are over.
    pub(crate) rounds: u32,
}

/// An attempt to connect to an address.
pub(crate) struct Attempt {
    pub(crate) address: SocketAddr,
    pub(crate) talk: Talk,
    pub(crate) since: Instant,
    /// When the sockets must be connected.
    pub(crate) until: Instant,
    /// The first message, to be sent as soon as the sockets are connected.
    pub(crate) opening: Option<Vec<u8>>,
}

impl Dial {
    /// Our proof is sent: the other side may rely on this connection already, which is the only one.
    pub(crate) fn committed(&self) -> bool {
        self.attempts.iter().any(|one| matches!(one.talk.handshake, Handshake::Confirmation(_)))
    }

    /// The next address to try, none that is being tried.
    pub(crate) fn take_next(&mut self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let untried = addresses.iter().enumerate().skip(self.next);
        let free =
            |&(_, address): &(usize, &SocketAddr)| self.attempts.iter().all(|one| one.address != *address);
        let found = untried.into_iter().find(free);
        self.next = found.map_or(addresses.len(), |(at, _)| at + 1);
        found.map(|(_, address)| *address)
    }

    /// When something is to be done if nothing is heard.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let unconnected = self.attempts.iter().filter(|one| one.opening.is_some());
        unconnected.map(|one| one.until).chain(self.next_at).min()
    }
}

impl Link {
    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Up(stream) => Some(stream),
            _ => None,
        }
    }

    /// The stream, also while it has no connection.
    pub(crate) fn any_stream(&self) -> Option<&Stream> {
        match &self.phase {
            Phase::Up(stream) => Some(stream),
            _ => self.suspended.as_deref(),
        }
    }

    /// The stream, also while it has no connection.
    pub(crate) fn any_stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Up(stream) => Some(stream),
            _ => self.suspended.as_deref_mut(),
        }
    }

    /// Number of bytes that have come on the stream, by all of its connections.
    pub(crate) fn received(&self) -> u64 {
        self.any_stream().map_or(0, Stream::received)
    }

    /// How long an attempt that begins now may take to connect the sockets.
    pub(crate) fn time_to_connect(&self, now: Instant, patience: Duration) -> Duration {
        const LEAST: Duration = Duration::from_millis(500);
        let failing = self.failing.map_or(Duration::ZERO, |(since, _)| now.duration_since(since));
        CONNECT.min(patience.saturating_sub(failing)).max(LEAST)
    }

    /// When to try again; the pause doubles with each failure. `None`: attempts have failed for `patience`.
    pub(crate) fn next_try(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        const LONGEST: Duration = Duration::from_millis(250);
        let (since, pause) = self.failing.unwrap_or((now, SHORTEST));
        if now.duration_since(since) >= patience {
            return None;
        }
        self.failing = Some((since, (pause * 2).min(LONGEST)));
        Some(now + pause)
    }
}

/// The links of a process. The link of stream `s` to peer `p` has the number `p * streams + s`; stream 0 keeps frames in order.
pub(crate) struct Links {
    streams: u32,
    links: Vec<Option<Box<Link>>>,
}

impl Links {
    pub(crate) fn new(streams: u8) -> Links {
        Links { streams: streams.into(), links: Vec::new() }
    }

    /// Number of streams to each peer.
    #[inline]
    pub(crate) fn streams(&self) -> u32 {
        self.streams
    }

    /// Number of streams to a peer that this process sends by: all that there may be until its business card comes.
    pub(crate) fn used(&mut self, peer: Peer) -> u32 {
        let first = self.number(peer, 0);
        self.get(first).map(|link| link.used).filter(|&used| used > 0).unwrap_or(self.streams)
    }

    #[inline]
    pub(crate) fn number(&self, peer: Peer, stream: u32) -> u32 {
        peer.0 * self.streams + stream
    }

    /// The peer and the stream of a link.
    #[inline]
    pub(crate) fn of(&self, number: u32) -> (Peer, u8) {
        (Peer(number / self.streams), (number % self.streams) as u8)
    }

    /// The numbers of the links to a peer.
    pub(crate) fn to(&self, peer: Peer) -> std::ops::Range<u32> {
        self.number(peer, 0)..self.number(peer, self.streams)
    }

    /// A link that there is already.
    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> Option<&mut Link> {
        self.links.get_mut(number as usize)?.as_deref_mut()
    }

    pub(crate) fn phase(&self, number: u32) -> &Phase {
        self.links.get(number as usize).and_then(Option::as_ref).map_or(&Phase::Idle, |link| &link.phase)
    }

    /// A link, made if need be.
    pub(crate) fn at(&mut self, number: u32) -> &mut Link {
        let at = number as usize;
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at].get_or_insert_default()
    }

    /// The connection of a link, if there is one.
    #[inline]
    pub(crate) fn stream(&mut self, number: u32) -> Option<&mut Stream> {
        self.get(number)?.stream()
    }

    /// True if peers have not acknowledged all frames that were sent on resumable streams.
    pub(crate) fn await_acks(&self) -> bool {
        let mut streams = self.links.iter().flatten().filter_map(|link| link.any_stream());
        streams.any(Stream::awaits_ack)
    }

    /// All connections, taken away.
    pub(crate) fn take_streams(&mut self) -> impl Iterator<Item = Stream> {
        let links = std::mem::take(&mut self.links).into_iter().flatten();
        links.filter_map(|link| match link.phase {
            Phase::Up(stream) => Some(*stream),
            _ => None,
        })
    }
}
