//! [`Engine`]: the moving parts behind the engine lock: the fabrics, and the list of subsystems that move by them.

use std::sync::Arc;
use std::time::Instant;

use banyan_coll::UserReduction;
use banyan_memory::Buffer;
use banyan_p2p::P2p;
use banyan_pmi::Client;
use banyan_transport::{Class, Head, Outcome, Peer, Sink, Token};

use crate::bsend::BufferedSends;
use crate::bypass::EarlyLooks;
use crate::launcher::Launcher;
use crate::ports::{BLIND_SLEEP, LOOKS, Ports};
use crate::running::{CollId, RunningColls};
use crate::slow::Names;
use crate::subsystem::{Informed, Messaging, Subsystem};
use crate::wait::{FruitlessPolls, Idle, Policy, Sleep, Waker};

/// Poll credit: so many collectives may end on the spot between two polls of all fabrics.
const POLL_CREDIT: u32 = 64;
/// A program that polls in vain does what a rank does before it sleeps so seldom.
const VAIN_POLLS: u32 = 1 << 10;
/// With more ranks than cores one collective uses so much of the credit, as it lasts as long as so many elsewhere.
const CROWDED_COST: u32 = 8;

/// The moving parts of the runtime. Reached only through the engine lock.
pub(crate) struct Engine {
    pub(crate) ports: Ports,
    pub(crate) p2p: P2p,
    pub(crate) colls: RunningColls,
    pub(crate) launcher: Launcher,
    pub(crate) bsends: BufferedSends,
    pub(crate) policy: Policy,
    pub(crate) fruitless_polls: FruitlessPolls,
    pub(crate) early_looks: EarlyLooks,
    /// Where MPI_Waitany and MPI_Testany begin to look in their list, so that all requests get their turn.
    pub(crate) any_from: usize,
    /// A thread polls for all (MPI_THREAD_MULTIPLE); the others wait for word from it.
    pub(crate) has_poller: bool,
    /// Wake those that sleep outside the engine lock (the polling thread, and the one that sleeps for tasks), if another thread
    /// finds what they may wait for.
    sleepers: Vec<Arc<Waker>>,
    /// Poll credit that collectives have used since it was last renewed by a poll.
    used_poll_credit: u32,
    /// Polls of the program's own (MPI_Test) that found nothing.
    vain_polls: u32,
    pub(crate) names: Names,
    /// Names the MPI function that was called last; empty if nobody knows.
    pub(crate) caller: fn() -> &'static str,
}

/// Makes what the engine does with every subsystem from the list of them, in the order in which they move: the classes of
/// frames that each takes, and what it moves by.
macro_rules! subsystems {
    ($engine:ident => $($field:ident: $type:ty, classes [$($class:ident),*], by $below:expr;)+) => {
        impl Engine {
            /// True if a subsystem may find something to do.
            #[inline(always)]
            pub(crate) fn has_work(&self) -> bool {
                false $(|| self.$field.has_work())+
            }

            /// True if a poll would find nothing to move, as most polls do.
            #[inline(always)]
            fn nothing_to_poll(&self) -> bool {
                self.ports.nothing_to_poll() && !self.has_work()
            }

            #[inline(never)]
            fn progress_all(&mut self) -> usize {
                let events = self.ports.poll(&mut Arrivals { $($field: &mut self.$field),+ });
                self.progress_subsystems(events)
            }

            /// Waits a little for what comes, where one fabric alone brings it (see [`Ports::linger`]).
            #[inline]
            fn linger_on_fabric(&mut self) -> Option<usize> {
                let events = self.ports.linger(&mut Arrivals { $($field: &mut self.$field),+ })?;
                Some(if events > 0 { self.progress_subsystems(events) } else { 0 })
            }

            /// Moves the subsystems, after so many things have happened at the fabrics. Returns how many things happened in all.
            #[inline(always)]
            fn progress_subsystems(&mut self, mut events: usize) -> usize {
                let $engine = self;
                $(events += Subsystem::progress(&mut $engine.$field, $below);)+
                if events > 0 && !$engine.sleepers.is_empty() {
                    $engine.wake_sleepers();
                }
                events
            }

            /// True if no operation of this process is under way.
            pub(crate) fn drained(&mut self) -> bool {
                !self.ports.unsent() $(&& Subsystem::idle(&self.$field))+
            }

            /// Called before a sleep. Returns when the subsystems have something to do at the latest.
            pub(crate) fn before_sleep(&mut self) -> Option<Instant> {
                let $engine = self;
                [$(Subsystem::before_sleep(&mut $engine.$field, $below)),+].into_iter().flatten().min()
            }
        }

        /// The subsystems, while frames arrive.
        #[allow(dead_code, reason = "some subsystems take no frames")]
        struct Arrivals<'a> {
            $($field: &'a mut $type),+
        }

        impl Arrivals<'_> {
            /// Gives a frame to the subsystem that its class belongs to. Nobody takes those of one-sided communication yet.
            #[inline(always)]
            fn hand_over(&mut self, peer: Peer, head: &Head, body: &[u8]) {
                match head.class {
                    $($(Class::$class => Subsystem::frame(self.$field, peer, head, body),)*)+
                    Class::Rma => {}
                }
            }
        }
    };
}

subsystems! { engine =>
    p2p: P2p, classes [P2p, Coll], by &mut engine.ports;
    colls: RunningColls, classes [Control], by Messaging { p2p: &mut engine.p2p, ports: &mut engine.ports };
    launcher: Launcher, classes [], by Informed {
        p2p: &mut engine.p2p, ports: &mut engine.ports, colls: &mut engine.colls, policy: &mut engine.policy
    };
    bsends: BufferedSends, classes [], by &mut engine.p2p;
}

impl Engine {
    pub(crate) fn new(p2p: P2p, ports: Ports, client: Option<Client>, policy: Policy) -> Self {
        Self {
            ports,
            p2p,
            colls: RunningColls::default(),
            launcher: Launcher::new(client),
            bsends: BufferedSends::default(),
            policy,
            fruitless_polls: FruitlessPolls::default(),
            early_looks: EarlyLooks::default(),
            any_from: 0,
            has_poller: false,
            sleepers: Vec::new(),
            used_poll_credit: 0,
            vain_polls: 0,
            names: Names::default(),
            caller: || "",
        }
    }

    /// The collectives under way, and what they move by.
    #[inline(always)]
    pub(crate) fn colls(&mut self) -> (&mut RunningColls, Messaging<'_>) {
        (&mut self.colls, Messaging { p2p: &mut self.p2p, ports: &mut self.ports })
    }

    /// Moves what can be moved without waiting. Returns how many things happened.
    #[inline(always)]
    pub(crate) fn progress(&mut self) -> usize {
        if self.nothing_to_poll() { 0 } else { self.progress_all() }
    }

    /// Passes the time until the next poll, after one that found nothing, and counts the looks that were in vain meanwhile.
    #[inline(never)]
    pub(crate) fn linger(&mut self, idle: &mut Idle) {
        let wants_poll = self.p2p.has_work() || self.launcher.has_work();
        match if wants_poll { None } else { self.linger_on_fabric() } {
            None => std::hint::spin_loop(),
            Some(0) => idle.has_looked(LOOKS),
            Some(_) => idle.reset(),
        }
    }

    /// Before a sleep outside the engine lock: arms the fabrics, and tells what ends that sleep; `None` if something has come already.
    pub(crate) fn prepare_sleep(&mut self) -> Option<Sleep> {
        self.ports.arm(true);
        if self.progress() > 0 || self.colls.has_user_reductions() || self.ports.has_news() {
            return None;
        }
        let asks = self.before_sleep();
        let (until, launcher) = (self.ports.wake_up_by(asks), self.launcher.awaited_owned());
        Some(match self.ports.bells() {
            Ok(bells) => Sleep { bells, launcher, until },
            // The process has no descriptor left to sleep on.
            Err(_) => Sleep { bells: Arc::new([]), launcher, until: until.min(Instant::now() + BLIND_SLEEP) },
        })
    }

    /// Has this one woken from its sleep by what is found meanwhile.
    pub(crate) fn add_sleeper(&mut self, waker: &Arc<Waker>) {
        self.remove_sleeper(waker);
        self.sleepers.push(waker.clone());
    }

    pub(crate) fn remove_sleeper(&mut self, waker: &Arc<Waker>) {
        self.sleepers.retain(|other| !Arc::ptr_eq(other, waker));
    }

    /// Wakes all that sleep outside the engine lock.
    #[cold]
    pub(crate) fn wake_sleepers(&mut self) {
        self.sleepers.drain(..).for_each(|waker| waker.wake());
    }

    /// After a sleep: who sleeps on must arm the fabrics again.
    pub(crate) fn disarm(&mut self) {
        self.ports.disarm();
        self.wake_sleepers();
    }

    /// Sleeps until something arrives, unless something did already. Bounded (see `ports`).
    pub(crate) fn sleep(&mut self) {
        self.ports.arm(self.launcher.awaited().is_some());
        if self.progress() == 0 && !self.colls.has_user_reductions() {
            let until = self.before_sleep();
            self.ports.sleep(until, self.launcher.awaited());
        }
        self.disarm();
    }

    /// Counts a poll of the program's own that found nothing: once in a while it hears what the launcher says.
    #[inline(always)]
    pub(crate) fn polled_in_vain(&mut self) {
        self.vain_polls = self.vain_polls.wrapping_add(1);
        if self.vain_polls.is_multiple_of(VAIN_POLLS) {
            self.before_sleep();
        }
    }

    /// Takes back a user reduction that was run, and goes on with its collective.
    pub(crate) fn user_reduction_done(&mut self, id: CollId, reduction: UserReduction) {
        let (colls, net) = self.colls();
        colls.user_reduction_done(id, reduction, net);
        self.wake_sleepers();
    }

    /// Counts a collective that ended without a poll of the fabrics. When the credit is used up the fabrics are polled, as
    /// other ranks may wait for this one to poll. Returns how many things happened.
    #[inline(always)]
    pub(crate) fn spend_poll_credit(&mut self) -> usize {
        self.used_poll_credit += if self.policy.spins_freely() { 1 } else { CROWDED_COST };
        if self.used_poll_credit < POLL_CREDIT {
            return 0;
        }
        self.used_poll_credit = 0;
        self.progress()
    }
}

impl Sink for Arrivals<'_> {
    #[inline]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.hand_over(peer, head, body);
    }

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.p2p.landing(peer, head, len)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.p2p.landed(peer, head, len);
    }

    fn sent(&mut self, token: Token) {
        self.p2p.sent(token);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.p2p.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.p2p.down(peer, cause);
    }

    fn wanted(&mut self, peer: Peer) {
        self.launcher.wants(peer);
    }

    fn unreached(&mut self, peer: Peer) {
        self.launcher.misses(peer);
    }
}
