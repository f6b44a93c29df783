//! [`Link`]: what is known of one peer, and how far the connection to it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::handshake::Handshake;
use crate::stream::Stream;
use crate::talk::Talk;

/// One peer.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) phase: Phase,
    /// Where it listens; empty until its card comes.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Which of them is tried now.
    pub(crate) current: usize,
    /// A send was tried: connect as soon as that is possible.
    pub(crate) wished: bool,
    /// Its card was asked for.
    pub(crate) asked: bool,
    /// The guest that is accepted as this peer's connection, unless it goes before its proof.
    pub(crate) guest: Option<usize>,
    /// Since when no attempt has succeeded, and how long to wait before the next.
    pub(crate) failing: Option<(Instant, Duration)>,
    /// It is in the list of those to look at.
    pub(crate) flagged: bool,
    /// It is in the list of those with bytes to send.
    pub(crate) in_backlog: bool,
    /// It is in the list of those that are owed an acknowledgement.
    pub(crate) owed: bool,
}

/// How far the connection is.
#[derive(Default)]
pub(crate) enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// We connect.
    Dialing(Box<Dial>),
    /// We connect again at this time.
    Waiting(Instant),
    /// There is one.
    Up(Box<Stream>),
    /// There was one, or none could be made: there will be none.
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
    /// Our proof is out: the other side may count on this connection already.
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

    /// Waits longer after each failure, and tries the next address. `None`: patience is at an end.
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
