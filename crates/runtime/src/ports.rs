//! [`Ports`]: the closed list of fabrics, all those of this process behind one interface, each peer routed to one of them.
//!
//! Dispatch, names, start, polling, sleeping and deadlines follow from the list below.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};

use banyan_memory::Buffer;
use banyan_shm::Shm;
use banyan_tcp::Tcp;
#[cfg(feature = "sim")]
use banyan_transport::sim::SimFabric;
use banyan_transport::{
    Access, Atomic, Caps, Fabric, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Sent, Sink, Token,
    Transfer, Wake,
};

use crate::business_cards;
use crate::error::Result;
use crate::loopback::Loopback;
use crate::members::{Joining, Slot};
use crate::wait::sleep_on;

/// The descriptors of fabrics that arrivals make readable.
pub(crate) type Bells = Arc<[OwnedFd]>;

/// Longest sleep without a poll: bounds the harm of events that cannot wake this process.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// The sleep of a process that no descriptor can wake.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// Makes [`Route`], [`Ports`] and what goes through all of the fabrics from the list of them.
macro_rules! fabrics {
    ($d:tt $($(#[$if:meta])? $field:ident $route:ident $slot:ty),+) => {
        /// The fabric that carries the frames to a peer.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Route {
            $($(#[$if])? $route,)+
            /// There is no fabric that both processes have.
            None,
        }

        /// The fabrics of this process. `route` holds one entry for each peer of the universe.
        pub(crate) struct Ports {
            $($(#[$if])? pub(crate) $field: $slot,)+
            route: Vec<Route>,
            /// The fabric that the process sleeps on by its own means: the only one that reaches other processes.
            alone: Option<Route>,
            /// A fabric needs business cards of its peers.
            needs_cards: bool,
            /// Descriptors that arrivals make readable, made by the first sleep on them.
            bells: Option<Bells>,
        }

        impl Ports {
            /// The names of all fabrics, as in `BANYAN_FABRICS`.
            const NAMES: &[&str] = &[$($(#[$if])? <$slot as Slot>::NAME),+];

            /// Starts the fabrics one after the other: this process to itself, then those that the job names, in its order. Each
            /// carries the peers that it reaches and none before it does.
            pub(crate) fn start(joining: &mut Joining<'_>) -> Result<Ports> {
                $($(#[$if])? let mut $field = None;)+
                for name in joining.order(Self::NAMES) {
                    $($(#[$if])? if name == <$slot as Slot>::NAME {
                        let slot = <$slot as Slot>::start(joining)?;
                        if let Some(fabric) = slot.get() {
                            joining.take(Route::$route, |peer| fabric.reaches(peer));
                        }
                        $field = Some(slot);
                    })+
                }
                let (route, needs_cards) = (std::mem::take(&mut joining.route), !joining.cards.is_empty());
                let mut ports = Ports {
                    $($(#[$if])? $field: $field.expect("all names are in the order"),)+
                    route,
                    alone: None,
                    needs_cards,
                    bells: None,
                };
                ports.alone = ports.find_alone();
                Ok(ports)
            }

            /// True if a poll would find nothing.
            #[inline(always)]
            pub(crate) fn nothing_to_poll(&self) -> bool {
                $($(#[$if])? if let Some(fabric) = self.$field.get() && !fabric.nothing_to_poll() {
                    return false;
                })+
                true
            }

            #[inline]
            pub(crate) fn poll(&mut self, sink: &mut impl Sink) -> usize {
                let mut events = 0;
                $($(#[$if])? if let Some(fabric) = self.$field.get_mut() {
                    events += fabric.poll(sink);
                })+
                events
            }

            fn each(&mut self) -> impl Iterator<Item = (Route, &mut dyn Fabric)> {
                let all = [$($(#[$if])? self.$field.get_mut().map(|fabric| (Route::$route, fabric as &mut dyn Fabric))),+];
                all.into_iter().flatten()
            }

            fn named(&mut self, name: &str) -> Option<&mut dyn Fabric> {
                $($(#[$if])? if name == <$slot as Slot>::NAME {
                    return self.$field.get_mut().map(|fabric| fabric as &mut dyn Fabric);
                })+
                None
            }
        }

        /// Runs `$call` on the fabric of `$peer`, or gives `$none` if there is none.
        macro_rules! routed {
            ($d ports:ident.$d get:ident, $d peer:expr, $d fabric:ident => $d call:expr, $d none:expr) => {
                match $d ports.route($d peer) {
                    $($(#[$if])? Route::$route => match $d ports.$field.$d get() {
                        Some($d fabric) => $d call,
                        None => $d none,
                    },)+
                    Route::None => $d none,
                }
            };
        }
    };
}

// Each line: the field, the route, and the fabric; an option unless it is always there.
fabrics! { $
    own Own Loopback,
    shm Shm Option<Shm>,
    tcp Tcp Option<Tcp>,
    #[cfg(feature = "sim")]
    sim Sim Option<SimFabric>
}

impl Ports {
    fn find_alone(&mut self) -> Option<Route> {
        let mut to_others = self.each().map(|(route, _)| route).filter(|&route| route != Route::Own);
        to_others.next().filter(|_| to_others.next().is_none())
    }

    /// A rank that no fabric reaches.
    pub(crate) fn unreached(&self) -> Option<usize> {
        self.route.iter().position(|route| *route == Route::None)
    }

    /// The shared-memory fabric, if `peer` is routed to it.
    #[inline]
    pub(crate) fn shm_to(&mut self, peer: Peer) -> Option<&mut Shm> {
        self.shm.as_mut().filter(|_| self.route.get(peer.0 as usize) == Some(&Route::Shm))
    }

    #[inline]
    fn route(&self, peer: Peer) -> Route {
        self.route.get(peer.0 as usize).copied().unwrap_or(Route::None)
    }

    /// True if business cards may be [wanted](Ports::wanted).
    #[inline]
    pub(crate) fn needs_cards(&self) -> bool {
        self.needs_cards
    }

    /// A peer whose business card is needed before its frames can leave.
    pub(crate) fn wanted(&mut self) -> Option<Peer> {
        self.each().find_map(|(_, fabric)| fabric.wanted())
    }

    /// Gives the business card of a peer to the fabrics that it has addresses of.
    ///
    /// # Errors
    /// If it is no business card, or none of this process's fabrics is in it.
    pub(crate) fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        let mut connected = false;
        for (name, addresses) in business_cards::decode(business_card)? {
            if let Some(fabric) = self.named(name) {
                fabric.connect(peer, addresses)?;
                connected = true;
            }
        }
        if connected { Ok(()) } else { Err(format!("no fabric reaches rank {}", peer.0)) }
    }

    pub(crate) fn unsent(&mut self) -> bool {
        self.each().any(|(_, fabric)| fabric.unsent())
    }

    /// Arms all fabrics. `descriptors`: the sleep is on [`Ports::bells`], because other threads use the fabrics meanwhile or
    /// there is something else to wait for; otherwise it is [`Ports::sleep`].
    pub(crate) fn arm(&mut self, descriptors: bool) {
        let wake = if descriptors || self.alone.is_none() { Wake::Descriptor } else { Wake::Sleep };
        self.each().for_each(|(_, fabric)| fabric.arm(wake));
    }

    pub(crate) fn disarm(&mut self) {
        self.each().for_each(|(_, fabric)| fabric.disarm());
    }

    /// After arming and a poll: true if something has come that no poll shows, so that nothing will end the sleep.
    pub(crate) fn has_news(&mut self) -> bool {
        self.each().fold(false, |news, (_, fabric)| fabric.has_news() || news)
    }

    /// The descriptors that arrivals make readable.
    ///
    /// # Errors
    /// If a fabric has none, as descriptors are used up.
    pub(crate) fn bells(&mut self) -> io::Result<Bells> {
        if let Some(bells) = &self.bells {
            return Ok(bells.clone());
        }
        let to_others = self.each().filter(|(route, _)| *route != Route::Own);
        let bells: Bells = to_others.map(|(_, fabric)| fabric.descriptor()).collect::<io::Result<_>>()?;
        Ok(self.bells.insert(bells).clone())
    }

    /// The latest moment of the next poll, however quiet it is; not after `deadline`.
    pub(crate) fn wake_up_by(&mut self, deadline: Option<Instant>) -> Instant {
        let deadlines = self.each().filter_map(|(_, fabric)| fabric.next_deadline()).min();
        deadlines.into_iter().chain(deadline).fold(Instant::now() + MAX_SLEEP, Instant::min)
    }

    /// After [`Ports::arm`] and a poll: sleeps until something arrives, there is input at `also`, or the deadline has passed.
    pub(crate) fn sleep(&mut self, deadline: Option<Instant>, also: Option<BorrowedFd<'_>>) {
        let until = self.wake_up_by(deadline);
        let alone = self.alone.filter(|_| also.is_none());
        if let Some((_, fabric)) = alone.and_then(|alone| self.each().find(|(route, _)| *route == alone)) {
            return fabric.sleep(Some(until));
        }
        if self.has_news() {
            return;
        }
        match self.bells() {
            Ok(bells) if !bells.is_empty() => sleep_on(bells.iter().map(AsFd::as_fd).chain(also), until),
            _ => thread::sleep(BLIND_SLEEP),
        }
    }
}

impl Port for Ports {
    #[inline(always)]
    fn caps(&self, peer: Peer) -> Caps {
        const NONE: Caps = Caps {
            max_short: 0,
            max_bcopy: 4096,
            eager: 0,
            piece: 4096,
            get: Kinds::NONE,
            put: Kinds::NONE,
            atomics: Kinds::NONE,
            alpha: 0.0,
            beta: 0.0,
        };
        match (self.route(peer), &self.shm) {
            // Shared memory first: a jump through a table would cost more than the whole call.
            (Route::Shm, Some(shm)) => shm.caps(peer),
            _ => routed!(self.get, peer, fabric => fabric.caps(peer), NONE),
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
        routed!(self.get_mut, peer, fabric => fabric.send_bcopy(peer, head, len, fill), Err(Refusal::Down))
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        body: (&Buffer, isize, usize),
        token: Option<Token>,
    ) -> Result<Sent, Refusal> {
        routed!(self.get_mut, peer, fabric => fabric.send_from(peer, head, body, token), Err(Refusal::Down))
    }

    fn register(&mut self, peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        let none = Err(RegisterError::Unsupported);
        routed!(self.get_mut, peer, fabric => fabric.register(peer, memory, access), none)
    }

    fn withdraw(&mut self, peer: Peer, remote: Remote) {
        routed!(self.get_mut, peer, fabric => fabric.withdraw(peer, remote), ());
    }

    fn revoke(&mut self, peer: Peer, remote: Remote) {
        routed!(self.get_mut, peer, fabric => fabric.revoke(peer, remote), ());
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        routed!(self.get_mut, peer, fabric => fabric.get(peer, remote, local, token), Transfer::Impossible)
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        routed!(self.get_mut, peer, fabric => fabric.put(peer, remote, local, token), Transfer::Impossible)
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        routed!(self.get_mut, peer, fabric => fabric.atomic(peer, word, op, result, token), Transfer::Impossible)
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        routed!(self.get_mut, peer, fabric => fabric.reclaim(peer, token), ());
    }
}

impl Ports {
    #[inline(never)]
    fn send_short_otherwise(&mut self, peer: Peer, head: Head, body: &[u8]) -> Result<(), Refusal> {
        routed!(self.get_mut, peer, fabric => fabric.send_short(peer, &head, body), Err(Refusal::Down))
    }
}

#[cfg(test)]
mod tests {
    use banyan_pmi::Job;

    use super::*;

    #[test]
    fn the_setting_names_the_fabrics_of_the_list() {
        let mut named = vec!["self"];
        named.extend(banyan_pmi::settings::FABRIC_NAMES);
        if cfg!(feature = "sim") {
            named.push("sim");
        }
        named.sort_unstable();
        let mut listed = Ports::NAMES.to_vec();
        listed.sort_unstable();
        assert_eq!(listed, named);
    }

    /// The routes of rank 0 of two on one node, if these fabrics are allowed.
    fn routes(allowed: &[&'static str]) -> Vec<Route> {
        let node = vec![banyan_pmi::NodeRun::host(1)];
        let job = Job { size: 2, local_size: 2, nodes: node, ..Job::singleton(1) };
        let mut joining = Joining {
            job: &job,
            client: None,
            allowed: allowed.to_vec(),
            route: Joining::nowhere(&job),
            cards: Vec::new(),
            node_memory: Some(Shm::memory(2).expect("memory for a node")),
            #[cfg(feature = "sim")]
            sim: None,
        };
        let ports = Ports::start(&mut joining).expect("fabrics");
        assert_eq!(ports.shm.is_some(), allowed.contains(&"shm"), "collectives share memory in any case");
        ports.route
    }

    #[test]
    fn the_first_fabric_named_that_reaches_a_peer_carries_it() {
        assert_eq!(routes(&["shm", "tcp"]), [Route::Own, Route::Shm]);
        assert_eq!(routes(&["tcp", "shm"]), [Route::Own, Route::Tcp]);
        assert_eq!(routes(&["tcp"]), [Route::Own, Route::Tcp]);
        assert_eq!(routes(&["shm"]), [Route::Own, Route::Shm]);
    }
}
