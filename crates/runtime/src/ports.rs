//! [`Ports`]: the closed list of fabrics, all those of this process behind one interface, each peer routed to one of them.
//!
//! Dispatch, start, polling, sleeping and deadlines follow from the list, which is [`banyan_pmi::fabrics`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, iter, thread};

use banyan_memory::Buffer;
use banyan_pmi::{Client, Job, settings};
use banyan_shm::Shm;
#[cfg(feature = "sim")]
use banyan_transport::sim::SimFabric;
use banyan_transport::{
    Access, Atomic, Caps, DeviceMoves, Fabric, Handed, Handover, Head, Joining, Member, NotStarted, Order,
    Peer, Port, Refusal, RegisterError, Remote, Sent, Sink, Token, Transfer, Wake,
};

use crate::business_cards;
use crate::error::{Error, Result};
use crate::long;
use crate::loopback::Loopback;
use crate::wait::sleep_on;

/// The descriptors of fabrics that arrivals make readable.
pub(crate) type Bells = Arc<[OwnedFd]>;

/// Longest sleep without a poll: bounds the harm of events that cannot wake this process.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Looks between two polls where all peers are reached by one fabric.
pub(crate) const LOOKS: u32 = 64;
/// The sleep of a process that no descriptor can wake.
pub(crate) const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// What became of the start of a fabric: if it is there, with its business card.
type Started<F> = std::result::Result<Option<(F, Vec<u8>)>, NotStarted>;

/// A job that fabrics are started for.
pub(crate) struct Start<'a> {
    pub(crate) job: &'a Job,
    pub(crate) client: Option<&'a mut Client>,
    /// The names of the fabrics that may reach other processes, in order of preference.
    pub(crate) allowed: Vec<&'static str>,
    /// The memory of the node, where no launcher hands it out.
    pub(crate) node_memory: Option<OwnedFd>,
    /// An endpoint of a simulated network, which is its own start.
    #[cfg(feature = "sim")]
    pub(crate) sim: Option<SimFabric>,
}

impl Start<'_> {
    /// Starts a fabric, and gives its business card, too. `reached`: those before it surely reach all peers.
    fn member<F: Member>(&mut self, reached: bool) -> Started<F> {
        let (job, here) = (self.job, self.job.node_of(self.job.rank));
        F::start(Joining {
            me: Peer(job.rank),
            size: job.size,
            job: job.job_id,
            secret: job.secret,
            node: job.places.ranks_on(here, job.size).map(Peer).collect(),
            nodes: job.hosts(),
            crowded: job.local_size > job.cores(),
            single_copy: long::choice(job)?.1,
            streams: job.setting(settings::TCP_STREAMS).map(settings::streams).transpose()?.unwrap_or(0),
            nics: job.setting(settings::NIC).unwrap_or_default(),
            rdma: job.setting(settings::RDMA).unwrap_or_default(),
            turn: self.turn(here),
            topology: job.setting(settings::TOPOLOGY).unwrap_or_default(),
            ports: job.setting(settings::PORTS).map(settings::ports).transpose()?,
            patience: settings::duration(job.setting_or_default(settings::PATIENCE))
                .map_err(|why| format!("{}: {why}", settings::PATIENCE))?,
            encrypt: settings::flag(job.setting_or_default(settings::ENCRYPT))
                .map_err(|why| format!("{}: {why}", settings::ENCRYPT))?,
            reached,
            node_memory: &mut || match (self.node_memory.take(), self.client.as_mut()) {
                (None, Some(client)) => client.take_node_memory().map_err(|error| error.to_string()),
                (memory, _) => Ok(memory),
            },
        })
    }

    /// How many ranks of this node come before this one that may use the same socket.
    fn turn(&self, here: u32) -> u32 {
        let (job, places) = (self.job, &self.job.places);
        let socket = |rank| places.home(rank).socket;
        let before = places.ranks_on(here, job.size).take_while(|rank| *rank != job.rank);
        before.filter(|rank| socket(*rank) == socket(job.rank)).count() as u32
    }

    #[cfg(feature = "sim")]
    fn simulated(&mut self, _reached: bool) -> Started<SimFabric> {
        Ok(self.sim.take().map(|fabric| (fabric, Vec::new())))
    }
}

/// Makes [`Route`], [`Ports`] and what goes through all of the fabrics from the list of them, with the way in which each starts.
macro_rules! ports {
    ($($(#[$if:meta])? $name:ident $route:ident $fabric:ty, $start:path;)+) => {
        /// The fabric that carries the frames to a peer.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Route {
            /// `self`, from this process to itself.
            Own,
            $($(#[$if])? $route,)+
            /// There is no fabric that both processes have.
            None,
        }

        impl Route {
            /// The name of the fabric, as in `BANYAN_FABRICS`.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    Route::Own => "self",
                    $($(#[$if])? Route::$route => stringify!($name),)+
                    Route::None => "",
                }
            }
        }

        /// The fabrics of this process. `route` holds one entry for each peer of the universe.
        pub(crate) struct Ports {
            own: Loopback,
            $($(#[$if])? pub(crate) $name: Option<$fabric>,)+
            route: Vec<Route>,
            /// The fabric that the process sleeps on by its own means: the only one that reaches other processes.
            alone: Option<Route>,
            /// Routes and business cards of the fabrics that need those of their peers, in their order.
            pub(crate) cards: Vec<(Route, Vec<u8>)>,
            /// Fabrics that have not started here, and why.
            pub(crate) not_started: Vec<(Route, NotStarted)>,
            several_hosts: bool,
            /// All other processes are routed to the RDMA fabric.
            only_rdma: bool,
            /// [`Port::whole_short`]: the least of all fabrics.
            whole_short: usize,
            /// Descriptors that arrivals make readable, made by the first sleep on them.
            bells: Option<Bells>,
        }

        impl Ports {
            /// Starts the fabrics that are allowed, in their order. Each carries the peers that it reaches and none before it
            /// does.
            pub(crate) fn start(start: &mut Start<'_>) -> Result<Ports> {
                let me = Peer(start.job.rank);
                let mut ports = Ports {
                    own: Loopback::new(me),
                    $($(#[$if])? $name: None,)+
                    route: vec![Route::None; start.job.size as usize],
                    alone: None,
                    cards: Vec::new(),
                    not_started: Vec::new(),
                    several_hosts: start.job.hosts() > 1,
                    only_rdma: false,
                    whole_short: 0,
                    bells: None,
                };
                ports.take(Route::Own, |peer| peer == me);
                for name in start.allowed.clone() {
                    $($(#[$if])? if name == stringify!($name) {
                        ports.add(Route::$route, |reached| $start(start, reached), |ports| &mut ports.$name)?;
                    })+
                }
                ports.alone = ports.find_alone();
                ports.routed();
                Ok(ports)
            }

            /// Starts one fabric and keeps it in its place. Not inlined: the copies of all fabrics would lie on the stack at the same
            /// time, in pages that nothing needs later.
            #[inline(never)]
            fn add<F: Fabric>(
                &mut self,
                route: Route,
                start: impl FnOnce(bool) -> Started<F>,
                place: fn(&mut Ports) -> &mut Option<F>,
            ) -> Result<()> {
                let surely_reached = self.route.iter().all(|&route| route != Route::None && !self.has_card(route));
                match start(surely_reached) {
                    Ok(Some((fabric, card))) => {
                        self.take(route, |peer| fabric.reaches(peer));
                        *place(self) = Some(fabric);
                        self.cards.extend(Some((route, card)).filter(|(_, card)| !card.is_empty()));
                    }
                    Ok(None) => {}
                    Err(NotStarted::Fatal(why)) => return Err(Error::other(why)),
                    Err(why) => self.not_started.push((route, why)),
                }
                Ok(())
            }

            /// Ends all fabrics, which say farewell to their peers: no frame is sent or received after this.
            pub(crate) fn close(&mut self) {
                $($(#[$if])? {
                    self.$name = None;
                })+
            }

            /// True if a poll would find nothing.
            #[inline(always)]
            pub(crate) fn nothing_to_poll(&self) -> bool {
                if !self.own.nothing_to_poll() {
                    return false;
                }
                $($(#[$if])? if let Some(fabric) = &self.$name && !fabric.nothing_to_poll() {
                    return false;
                })+
                true
            }

            #[inline]
            pub(crate) fn poll(&mut self, sink: &mut impl Sink) -> usize {
                let mut events = self.own.poll(sink);
                $($(#[$if])? if let Some(fabric) = &mut self.$name {
                    events += fabric.poll(sink);
                })+
                events
            }

            /// The fabrics that have started.
            fn each(&mut self) -> impl Iterator<Item = (Route, &mut dyn Fabric)> {
                let others = [$($(#[$if])? self.$name.as_mut().map(|fabric| (Route::$route, fabric as &mut dyn Fabric))),+];
                iter::once((Route::Own, &mut self.own as &mut dyn Fabric)).chain(others.into_iter().flatten())
            }

            /// What the fabric of a peer can do; [`Caps::NONE`] if there is none.
            #[inline(never)]
            fn caps_by(&self, route: Route, peer: Peer) -> Caps {
                match route {
                    Route::Own => self.own.caps(peer),
                    $($(#[$if])? Route::$route => match &self.$name {
                        Some(fabric) => fabric.caps(peer),
                        None => Caps::NONE,
                    },)+
                    Route::None => Caps::NONE,
                }
            }

            /// Sends by any fabric, known when this is compiled: the way of messages to oneself.
            #[inline(never)]
            fn send_short_by(&mut self, peer: Peer, head: Head, body: &[u8]) -> Result<(), Refusal> {
                match self.route(peer) {
                    Route::Own => self.own.send_short(peer, &head, body),
                    $($(#[$if])? Route::$route => match &mut self.$name {
                        Some(fabric) => fabric.send_short(peer, &head, body),
                        None => Err(Refusal::Down),
                    },)+
                    Route::None => Err(Refusal::Down),
                }
            }

            /// The fabric that carries the frames to a peer.
            fn by(&mut self, peer: Peer) -> Option<&mut dyn Fabric> {
                match self.route(peer) {
                    Route::Own => Some(&mut self.own),
                    $($(#[$if])? Route::$route => self.$name.as_mut().map(|fabric| fabric as &mut dyn Fabric),)+
                    Route::None => None,
                }
            }
        }
    };
}

/// The list of the fabrics between processes, and the simulated network of tests.
macro_rules! and_simulated {
    ($($name:ident $route:ident $fabric:ty, $between:literal;)+) => {
        ports! {
            $($name $route $fabric, Start::member;)+
            #[cfg(feature = "sim")]
            sim Sim SimFabric, Start::simulated;
        }
    };
}
banyan_pmi::fabrics!(and_simulated);

impl Ports {
    fn find_alone(&mut self) -> Option<Route> {
        let mut to_others = self.each().map(|(route, _)| route).filter(|&route| route != Route::Own);
        to_others.next().filter(|_| to_others.next().is_none())
    }

    /// A fabric has started: it carries the peers that it reaches, and no fabric before it does.
    fn take(&mut self, by: Route, reaches: impl Fn(Peer) -> bool) {
        let free = (0..).map(Peer).zip(&mut self.route).filter(|(_, route)| **route == Route::None);
        free.filter(|(peer, _)| reaches(*peer)).for_each(|(_, route)| *route = by);
    }

    /// Takes note of the routes.
    fn routed(&mut self) {
        self.only_rdma =
            self.rdma.is_some() && self.route.iter().all(|route| matches!(route, Route::Own | Route::Rdma));
        self.whole_short =
            self.each().map(|(_, fabric)| fabric.caps(Peer(0)).whole_short()).min().unwrap_or(0);
    }

    /// After a poll that found nothing: waits for more, where what waits for one fabric alone may look at it more often than a poll would.
    /// Gives how many things happened; `None`: there is no such fabric.
    #[inline]
    pub(crate) fn linger(&mut self, sink: &mut impl Sink) -> Option<usize> {
        Some(self.rdma.as_mut().filter(|_| self.only_rdma)?.linger(LOOKS, sink))
    }

    /// True if the kernel brings what comes from other hosts.
    pub(crate) fn by_kernel(&mut self) -> bool {
        let through: Vec<Route> =
            self.each().filter(|(_, fabric)| fabric.by_kernel()).map(|(route, _)| route).collect();
        self.several_hosts && self.route.iter().any(|route| through.contains(route))
    }

    /// What the fabrics have done so far, as far as they count it: a line for each.
    pub(crate) fn accounts(&mut self) -> Vec<String> {
        self.each()
            .filter_map(|(route, fabric)| Some(format!("{}: {}", route.name(), fabric.account()?)))
            .collect()
    }

    /// A rank that no fabric reaches.
    pub(crate) fn unreached(&self) -> Option<usize> {
        self.route.iter().position(|route| *route == Route::None)
    }

    fn has_card(&self, route: Route) -> bool {
        self.cards.iter().any(|(with_card, _)| *with_card == route)
    }

    /// The shared-memory fabric, if `peer` is routed to it.
    #[inline]
    pub(crate) fn shm_to(&mut self, peer: Peer) -> Option<&mut Shm> {
        self.shm.as_mut().filter(|_| self.route.get(peer.0 as usize) == Some(&Route::Shm))
    }

    /// True if one fabric carries all that comes from other processes, and it is one to linger on.
    #[inline(always)]
    pub(crate) fn lingers(&self) -> bool {
        self.only_rdma
    }

    /// The fabric that carries all that comes from other processes, if `peer` is one of these and the fabric is one to linger on.
    #[inline(always)]
    pub(crate) fn only_to(&mut self, peer: Peer) -> Option<&mut banyan_rdma::Loaded> {
        if !self.only_rdma || self.route(peer) != Route::Rdma {
            return None;
        }
        self.rdma.as_mut()
    }

    #[inline]
    fn route(&self, peer: Peer) -> Route {
        self.route.get(peer.0 as usize).copied().unwrap_or(Route::None)
    }

    /// True if business cards may be [wanted](Sink::wanted).
    #[inline]
    pub(crate) fn needs_cards(&self) -> bool {
        !self.cards.is_empty()
    }

    /// The process of a peer has ended, as the launcher says.
    pub(crate) fn peer_died(&mut self, peer: Peer, cause: &str) {
        if let Some(fabric) = self.by(peer) {
            fabric.peer_died(peer, cause);
        }
    }

    /// Routes a peer to the first fabric that both have, as its business card shows, and that accepts the addresses there. Both sides
    /// choose the same one, as all ranks have their fabrics in one order. Until then nothing has left for the peer by this route. True if it is
    /// another one than before.
    ///
    /// # Errors
    /// If it is no business card, or none of this process's fabrics accepts it.
    pub(crate) fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<bool, String> {
        let theirs = business_cards::decode(business_card)?;
        let ours: Vec<Route> = self.cards.iter().map(|(route, _)| *route).collect();
        let mut refused = Vec::new();
        for route in ours {
            let Some((_, addresses)) = theirs.iter().find(|(name, _)| *name == route.name()) else {
                continue;
            };
            let Some((_, fabric)) = self.each().find(|(other, _)| *other == route) else { continue };
            match fabric.connect(peer, addresses) {
                Ok(()) => {
                    let before = self.route(peer);
                    if self.has_card(before) {
                        self.route[peer.0 as usize] = route;
                    }
                    let changed = self.route(peer) != before;
                    if changed {
                        self.routed();
                    }
                    return Ok(changed);
                }
                Err(why) => refused.push(why),
            }
        }
        match &refused[..] {
            [] => Err(format!("no fabric reaches rank {}", peer.0)),
            _ => Err(refused.join("; ")),
        }
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
        match (self.route(peer), &self.shm) {
            // These two first: a jump through a table would cost more than the whole call.
            (Route::Shm, Some(shm)) => shm.caps(peer),
            (Route::Rdma, _) => self.rdma.as_ref().map_or(Caps::NONE, |rdma| rdma.caps(peer)),
            (route, _) => self.caps_by(route, peer),
        }
    }

    #[inline(always)]
    fn whole_short(&self) -> usize {
        self.whole_short
    }

    #[inline(always)]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        match (self.route(peer), &mut self.shm) {
            (Route::Shm, Some(shm)) => shm.send_short(peer, head, body),
            // `head` is copied, so that on the way by shared memory it can stay in registers.
            (Route::Rdma, _) => match &mut self.rdma {
                Some(rdma) => rdma.send_short(peer, &{ *head }, body),
                None => Err(Refusal::Down),
            },
            _ => self.send_short_by(peer, *head, body),
        }
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        self.by(peer).ok_or(Refusal::Down)?.send_bcopy(peer, head, len, fill)
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        body: (&Buffer, isize, usize),
        token: Option<Token>,
        order: Order,
    ) -> Result<Sent, Refusal> {
        self.by(peer).ok_or(Refusal::Down)?.send_from(peer, head, body, token, order)
    }

    fn register(&mut self, peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        self.by(peer).ok_or(RegisterError::Unsupported)?.register(peer, memory, access)
    }

    fn withdraw(&mut self, peer: Peer, remote: Remote) {
        if let Some(fabric) = self.by(peer) {
            fabric.withdraw(peer, remote);
        }
    }

    fn revoke(&mut self, peer: Peer, remote: Remote) {
        if let Some(fabric) = self.by(peer) {
            fabric.revoke(peer, remote);
        }
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.by(peer).map_or(Transfer::Impossible, |fabric| fabric.get(peer, remote, local, token))
    }

    fn get_together(&mut self, peer: Peer, gets: &mut dyn Iterator<Item = (Remote, Buffer)>) -> usize {
        self.by(peer).map_or(0, |fabric| fabric.get_together(peer, gets))
    }

    fn device_moves(&mut self, peer: Peer) -> DeviceMoves {
        self.by(peer).map_or(DeviceMoves::Never, |fabric| fabric.device_moves(peer))
    }

    fn handover(&mut self, peer: Peer, near: &Buffer) -> Option<Handover> {
        self.by(peer)?.handover(peer, near)
    }

    fn hand_over(&mut self, peer: Peer, head: &Head, handover: &Handover, len: usize) -> Result<(), Refusal> {
        self.by(peer).ok_or(Refusal::Down)?.hand_over(peer, head, handover, len)
    }

    fn is_returned(&mut self, peer: Peer, number: u32) -> bool {
        self.by(peer).is_none_or(|fabric| fabric.is_returned(peer, number))
    }

    fn handed(&mut self, peer: Peer, handed: Handed, near: &Buffer) -> Option<Buffer> {
        self.by(peer)?.handed(peer, handed, near)
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.by(peer).map_or(Transfer::Impossible, |fabric| fabric.put(peer, remote, local, token))
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        self.by(peer).map_or(Transfer::Impossible, |fabric| fabric.atomic(peer, word, op, result, token))
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        if let Some(fabric) = self.by(peer) {
            fabric.reclaim(peer, token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The routes of rank 0 of two on one node, if these fabrics are allowed.
    fn routes(allowed: &[&'static str]) -> Vec<Route> {
        let job = Job { size: 2, local_size: 2, ..Job::singleton(1) };
        let mut start = Start {
            job: &job,
            client: None,
            allowed: allowed.to_vec(),
            node_memory: Some(Shm::memory(2, None).expect("memory for a node")),
            #[cfg(feature = "sim")]
            sim: None,
        };
        let ports = Ports::start(&mut start).expect("fabrics");
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
