//! [`Link`]: what is known of one peer, and the state of the connection to it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::handshake::Handshake;
use crate::stream::Stream;
use crate::talk::Talk;

/// One peer.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) phase: Phase,
    /// Where it listens; empty until its business card comes.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Index of the address that is tried now.
    pub(crate) current: usize,
    /// A send to it was refused for want of a connection: connect as soon as its addresses are known.
    pub(crate) send_refused: bool,
    /// Its business card was asked for, once.
    pub(crate) card_requested: bool,
    /// Number of the pending connection that was accepted as this peer's, until its proof comes or it is dropped.
    pub(crate) pending: Option<usize>,
    /// Since when no attempt has succeeded, and how long to wait before the next.
    pub(crate) failing: Option<(Instant, Duration)>,
    /// It is in [`Tcp`](crate::Tcp)'s list `ready`.
    pub(crate) in_ready: bool,
    /// It is in the list of peers with bytes to send.
    pub(crate) in_backlog: bool,
    /// It is in the list of peers that are owed an acknowledgement.
    pub(crate) in_owed: bool,
}

/// State of the connection to a peer.
#[derive(Default)]
pub(crate) enum Phase {
    /// No connection, and none is being made.
    #[default]
    Idle,
    /// This process is connecting.
    Dialing(Box<Dial>),
    /// This process connects again at this time.
    AwaitRetry(Instant),
    /// Connected and proven.
    Up(Box<Stream>),
    /// The connection ended, or none could be made: no further attempt is made.
    Down,
}

/// An attempt to connect.
pub(crate) struct Dial {
    pub(crate) talk: Talk,
    pub(crate) since: Instant,
    /// The first message, to be sent as soon as the sockets are connected.
    pub(crate) opening: Option<Vec<u8>>,
}

impl Dial {
    /// Our proof is sent: the other side may rely on this connection already.
    pub(crate) fn committed(&self) -> bool {
        matches!(self.talk.handshake, Handshake::Confirmation(_))
    }
}

impl Link {
    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Up(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.addresses.get(self.current).copied()
    }

    /// When to try the next address; the pause doubles with each failure. `None`: attempts have failed for `patience`.
    pub(crate) fn next_try(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        const SHORTEST: Duration = Duration::from_millis(1);
        const LONGEST: Duration = Duration::from_millis(250);
        let (since, pause) = self.failing.unwrap_or((now, SHORTEST));
        if now.duration_since(since) >= patience {
            return None;
        }
        self.failing = Some((since, (pause * 2).min(LONGEST)));
        self.current = (self.current + 1) % self.addresses.len().max(1);
        Some(now + pause)
    }
}
