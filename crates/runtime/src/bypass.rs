//! A receive from a named peer that is not posted at first, as its caller waits anyway: it takes the message as it arrives, straight from the
//! fabric that the peer is reached by (see [`ReceiveBypass`]).

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_p2p::ReceiveBypass;
use banyan_transport::{Fabric, Head, Outcome as Transferred, Peer, Port, Sink, Token};

use crate::comm::Comm;
use crate::engine::Engine;
use crate::launcher::Launcher;
use crate::p2p::Sender;
use crate::ports::LOOKS;
use crate::status::Outcome;
use crate::subsystem::Subsystem;

/// Frames that may turn out to be for other receives before this one is posted.
const FRAMES: u32 = 8;
/// Polls of a fabric by which all peers are reached, with [`LOOKS`] looks after each, before the receive is posted: some microseconds.
const POLLS: u32 = 32;

impl Comm {
    /// Polls the ring of the peer for a while, if the engine has nothing else to do, and takes the message as it arrives,
    /// without posting the receive.
    #[inline(always)]
    pub(crate) fn receive_bypass(
        &self,
        engine: &mut Engine,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
        spins: u32,
    ) -> Option<Outcome> {
        let Sender::One(_, peer) = sender else { return None };
        let Engine { p2p, ports, policy, colls, .. } = engine;
        let shm = ports.shm_to(peer)?;
        if p2p.has_work() {
            return None;
        }
        let others = |peer: Peer, head: &Head, body: &[u8]| colls.frame(peer, head, body);
        let mut bypass = ReceiveBypass::new(p2p, self.recv_args(data, sender, tag), others)?;
        let spins = if spins > 1 && policy.spins_freely() { spins } else { 1 };
        let mut frames = 0;
        while frames < FRAMES && bypass.is_open() && shm.peek(peer, spins) {
            shm.take(peer, &mut bypass);
            frames += 1;
        }
        // Also where nothing came: to drop it would be to look at what was just stored.
        let completion = bypass.end();
        if frames == 0 {
            return None;
        }
        let Some(completion) = completion else {
            self.runtime().wake_poller_with(engine);
            return None;
        };
        let outcome = Outcome::of(completion, true);
        if p2p.has_work() {
            p2p.progress(ports);
        }
        Some(outcome)
    }

    /// The same, where one fabric alone carries all that comes from other processes ([`Ports::lingers`](crate::ports::Ports::lingers)): polls it.
    #[inline(always)]
    pub(crate) fn polled_bypass(
        &self,
        engine: &mut Engine,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Option<Outcome> {
        let Sender::One(_, peer) = sender else { return None };
        if self.runtime().engine_lock.is_multi_threaded()
            || !engine.policy.spins_freely()
            || engine.has_work()
        {
            return None;
        }
        let Engine { p2p, ports, colls, launcher, .. } = engine;
        let fabric = ports.only_to(peer)?;
        // What is longer comes in several frames, the first of which finds its receive better posted.
        if data.len() > fabric.caps(peer).max_bcopy as u64 {
            return None;
        }
        let others = |peer: Peer, head: &Head, body: &[u8]| colls.frame(peer, head, body);
        let bypass = ReceiveBypass::new(p2p, self.recv_args(data, sender, tag), others)?;
        let mut waiting = Waiting { bypass, launcher };
        let mut polls = 0;
        while polls < POLLS && waiting.bypass.is_open() {
            // Where something else is to be done first, looks find nothing.
            if fabric.linger(LOOKS, &mut waiting) == 0 {
                fabric.poll(&mut waiting);
            }
            polls += 1;
        }
        let completion = waiting.bypass.end();
        if p2p.has_work() {
            p2p.progress(ports);
        }
        Some(Outcome::of(completion?, true))
    }
}

/// What hears of arrivals while a receive waits for one of them.
struct Waiting<'a, F> {
    bypass: ReceiveBypass<'a, F>,
    launcher: &'a mut Launcher,
}

impl<F: FnMut(Peer, &Head, &[u8])> Sink for Waiting<'_, F> {
    #[inline(always)]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.bypass.frame(peer, head, body);
    }

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.bypass.landing(peer, head, len)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.bypass.landed(peer, head, len);
    }

    fn sent(&mut self, token: Token) {
        self.bypass.sent(token);
    }

    fn completed(&mut self, token: Token, outcome: Transferred) {
        self.bypass.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.bypass.down(peer, cause);
    }

    fn wanted(&mut self, peer: Peer) {
        self.launcher.wants(peer);
    }

    fn unreached(&mut self, peer: Peer) {
        self.launcher.misses(peer);
    }
}
