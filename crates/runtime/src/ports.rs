//! [`Ports`]: all fabrics of this process behind one interface, each peer routed to one of them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_shm::Shm;
use banyan_tcp::Tcp;
use banyan_transport::{Caps, Fabric, Get, Head, Peer, Port, Refusal, Remote, Sink, Token};

use crate::loopback::Loopback;

/// Longest sleep without a poll: bounds the harm of events that cannot wake this process.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The fabric that carries the frames to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Own,
    Shm,
    Tcp,
    /// There is no fabric that both processes have.
    None,
}

/// The closed set of fabrics. `route` holds one entry for each peer of the universe.
pub(crate) struct Ports {
    pub(crate) own: Loopback,
    pub(crate) shm: Option<Shm>,
    pub(crate) tcp: Option<Tcp>,
    route: Vec<Route>,
}

/// Runs `$call` on the fabric of `$peer`, or gives `$none` if there is none.
macro_rules! routed {
    ($ports:expr, $peer:expr, $fabric:ident => $call:expr, $none:expr) => {
        // Shared memory first: a jump through a table would cost more than the whole call.
        match ($ports.route($peer), &mut $ports.shm) {
            (Route::Shm, Some($fabric)) => $call,
            (route, _) => routed!(@other $ports, route, $fabric => $call, $none),
        }
    };
    (@other $ports:expr, $route:expr, $fabric:ident => $call:expr, $none:expr) => {
        match $route {
            Route::Own => {
                let $fabric = &mut $ports.own;
                $call
            }
            Route::Tcp => match &mut $ports.tcp {
                Some($fabric) => $call,
                None => $none,
            },
            Route::Shm | Route::None => $none,
        }
    };
}

impl Ports {
    pub(crate) fn new(own: Loopback, shm: Option<Shm>, tcp: Option<Tcp>, route: Vec<Route>) -> Self {
        Self { own, shm, tcp, route }
    }

    /// The shared-memory fabric, if `peer` is routed to it.
    #[inline]
    pub(crate) fn shm_to(&mut self, peer: Peer) -> Option<&mut Shm> {
        self.shm.as_mut().filter(|_| self.route.get(peer.0 as usize) == Some(&Route::Shm))
    }

    #[inline]
    pub(crate) fn route(&self, peer: Peer) -> Route {
        self.route.get(peer.0 as usize).copied().unwrap_or(Route::None)
    }
}

impl Port for Ports {
    #[inline(always)]
    fn caps(&self, peer: Peer) -> Caps {
        const NONE: Caps =
            Caps { max_short: 0, max_bcopy: 4096, eager: 0, piece: 4096, get: false, alpha: 0.0, beta: 0.0 };
        let route = self.route(peer);
        if let (Route::Shm, Some(shm)) = (route, &self.shm) {
            return shm.caps(peer);
        }
        match route {
            Route::Own => self.own.caps(peer),
            Route::Tcp => match &self.tcp {
                Some(tcp) => tcp.caps(peer),
                None => NONE,
            },
            Route::Shm | Route::None => NONE,
        }
    }

    #[inline(always)]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        match (self.route(peer), &mut self.shm) {
            (Route::Shm, Some(shm)) => shm.send_short(peer, head, body),
            // `head` is copied, so that on the usual way it can stay in registers.
            _ => self.send_short_otherwise(peer, *head, body),
        }
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        routed!(self, peer, fabric => fabric.send_bcopy(peer, head, len, fill), Err(Refusal::Down))
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        memory: &Buffer,
        at: isize,
        len: usize,
    ) -> Result<(), Refusal> {
        routed!(self, peer, fabric => fabric.send_from(peer, head, memory, at, len), Err(Refusal::Down))
    }

    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote {
        routed!(self, peer, fabric => fabric.expose(peer, memory), Remote { addr: 0, len: 0, key: 0 })
    }

    fn withdraw(&mut self, peer: Peer, remote: Remote) {
        routed!(self, peer, fabric => fabric.withdraw(peer, remote), ());
    }

    fn revoke(&mut self, peer: Peer, remote: Remote) {
        routed!(self, peer, fabric => fabric.revoke(peer, remote), ());
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get {
        routed!(self, peer, fabric => fabric.get(peer, remote, local, token), Get::Impossible)
    }

    fn recall(&mut self, peer: Peer, token: Token) {
        routed!(self, peer, fabric => fabric.recall(peer, token), ());
    }
}

impl Ports {
    #[inline(never)]
    fn send_short_otherwise(&mut self, peer: Peer, head: Head, body: &[u8]) -> Result<(), Refusal> {
        routed!(self, peer, fabric => fabric.send_short(peer, &head, body), Err(Refusal::Down))
    }

    /// True if a poll would find nothing.
    #[inline(always)]
    pub(crate) fn nothing_to_poll(&self) -> bool {
        self.own.nothing_to_poll() && self.tcp.is_none() && self.shm.as_ref().is_none_or(Shm::nothing_to_poll)
    }

    #[inline]
    pub(crate) fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let mut events = self.own.poll(sink);
        if let Some(shm) = &mut self.shm {
            events += shm.poll(sink);
        }
        if let Some(tcp) = &mut self.tcp {
            events += tcp.poll(sink);
        }
        events
    }

    /// A peer whose business card is needed before its frames can leave.
    pub(crate) fn wanted(&mut self) -> Option<Peer> {
        self.tcp.as_mut()?.wanted()
    }

    /// Gives the business card of a peer to the fabric that asked for it.
    pub(crate) fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        routed!(self, peer, fabric => fabric.connect(peer, business_card), Err(format!("no fabric reaches rank {}", peer.0)))
    }

    pub(crate) fn unsent(&self) -> bool {
        self.shm.as_ref().is_some_and(Fabric::unsent) || self.tcp.as_ref().is_some_and(Fabric::unsent)
    }

    pub(crate) fn arm(&mut self) {
        match (&mut self.shm, &mut self.tcp) {
            (Some(shm), Some(tcp)) => {
                // Without a descriptor the sleep is bounded, and the poll after it finds what came.
                let _ = shm.arm_descriptor().and_then(|bell| tcp.watch(bell));
                tcp.arm();
            }
            (Some(shm), None) => shm.arm(),
            (None, Some(tcp)) => tcp.arm(),
            (None, None) => {}
        }
    }

    /// The descriptors to sleep on while other threads use the engine: see [`Ports::arm_bells`].
    pub(crate) fn bells(&mut self) -> std::io::Result<Vec<OwnedFd>> {
        let shm = self.shm.as_mut().map(Shm::bell_descriptor);
        let tcp = self.tcp.as_ref().map(Tcp::bell_descriptor);
        shm.into_iter().chain(tcp).collect()
    }

    /// [`Ports::arm`] for a sleep on the [`Ports::bells`], which arrivals make readable. False: something has arrived already.
    pub(crate) fn arm_bells(&mut self) -> bool {
        let mut drained = true;
        if let Some(shm) = &mut self.shm {
            drained &= shm.arm_descriptor().is_ok() && !shm.has_news();
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.arm();
            tcp.sleep(Some(Instant::now()));
        }
        drained
    }

    /// The latest moment of the next poll, however quiet it is.
    pub(crate) fn wake_up_by(&self) -> Instant {
        let mut at = Instant::now() + MAX_SLEEP;
        if let Some(longest) = self.shm.as_ref().and_then(Shm::longest_sleep) {
            at = at.min(Instant::now() + longest);
        }
        self.next_deadline().map_or(at, |deadline| deadline.min(at))
    }

    pub(crate) fn disarm(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.disarm();
        }
        if let Some(tcp) = &mut self.tcp {
            tcp.disarm();
        }
    }

    pub(crate) fn sleep(&mut self, deadline: Option<Instant>) {
        let latest = Instant::now() + MAX_SLEEP;
        let mut deadline = deadline.map_or(latest, |d| d.min(latest));
        if let (Some(shm), Some(_)) = (&mut self.shm, &self.tcp) {
            // Room for a refused send, and what a peer publishes, are no frames: no poll shows them.
            if shm.has_news() {
                return;
            }
            deadline = shm.longest_sleep().map_or(deadline, |most| deadline.min(Instant::now() + most));
        }
        match (&mut self.shm, &mut self.tcp) {
            (_, Some(tcp)) => tcp.sleep(Some(deadline)),
            (Some(shm), None) => shm.sleep(Some(deadline)),
            (None, None) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.tcp.as_ref().and_then(Fabric::next_deadline)
    }
}
