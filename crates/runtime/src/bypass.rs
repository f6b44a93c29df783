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

/// Sends after a look in vain, from which on looks are no fewer: one for 64 receives.
const SENDS: u32 = 7;

/// Whether a receive that nobody waits for yet looks for its message before it is posted. In a stream a look finds it, and the receive need not be
/// posted. In an exchange, where the peer sends after its own receive is posted, too, a look comes too early and does harm: it takes
/// the line that the peer is about to write. So each send after a look in vain has twice as many receives go without one, but for
/// the first, until a message is there first.
#[derive(Debug, Default)]
pub(crate) struct EarlyLooks {
    /// The last look was in vain, and nothing was sent since.
    in_vain: bool,
    sends: u32,
    /// Receives that are still to go without a look.
    skipped: u32,
}

impl EarlyLooks {
    /// Whether this receive is to look.
    #[inline(always)]
    fn are_due(&mut self) -> bool {
        let due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        due
    }

    /// This process has sent something.
    #[inline(always)]
    pub(crate) fn sent(&mut self) {
        if self.in_vain {
            self.in_vain = false;
            self.sends = (self.sends + 1).min(SENDS);
            self.skipped = (1 << self.sends) / 2 - 1;
        }
    }

    /// A message was there before its receive.
    #[inline(always)]
    pub(crate) fn message_was_first(&mut self) {
        *self = Self::default();
    }
}

impl Comm {
    /// Takes the message of a receive that nobody waits for yet, if it is there and a look for it is due.
    #[inline(always)]
    pub(crate) fn early_look(
        &self,
        engine: &mut Engine,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Option<Outcome> {
        if !engine.early_looks.are_due() {
            return None;
        }
        let found = self.receive_bypass(engine, data, sender, tag, 1);
        engine.early_looks.in_vain = found.is_none();
        found
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many receives look, if no message is there yet, and something is sent after each receive, or nothing.
    fn looks_in_vain(early: &mut EarlyLooks, receives: u32, sends: bool) -> u32 {
        let mut looks = 0;
        for _ in 0..receives {
            if early.are_due() {
                early.in_vain = true;
                looks += 1;
            }
            if sends {
                early.sent();
            }
        }
        looks
    }

    #[test]
    fn looks_become_seldom_in_exchanges_only() {
        let mut early = EarlyLooks::default();
        assert_eq!(looks_in_vain(&mut early, 1000, false), 1000);
        // After no receive, 1, 3, 7, 15 and 31 more without a look, and from then on after 63.
        assert_eq!(looks_in_vain(&mut early, 2 + 2 + 4 + 8 + 16 + 32, true), 7);
        assert_eq!(looks_in_vain(&mut early, 640, true), 10);
        early.message_was_first();
        assert_eq!(looks_in_vain(&mut early, 2, true), 2);
        assert_eq!(looks_in_vain(&mut early, 1, true), 0);
    }
}
