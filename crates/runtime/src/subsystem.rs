//! [`Subsystem`]: what the engine knows of each part that moves in a process. They are listed in `engine`.

use std::time::Instant;

use banyan_p2p::P2p;
use banyan_transport::{Head, Peer, Sink};

use crate::ports::Ports;
use crate::running::RunningColls;
use crate::wait::Policy;

/// A part of the runtime that moves when the engine is polled: messages, collectives, buffered sends, the line to the
/// launcher. It stands above the fabrics and above the subsystems that it moves by.
pub(crate) trait Subsystem {
    /// What it moves by, as the engine lends it for a call.
    type Below<'a>;

    /// True if [`Subsystem::progress`] may find something to do. Every poll asks this.
    fn has_work(&self) -> bool;

    /// True if nothing of it is under way that this process must not leave behind.
    fn idle(&self) -> bool {
        !self.has_work()
    }

    /// Moves what can be moved without waiting. Returns how many things happened.
    fn progress(&mut self, below: Self::Below<'_>) -> usize;

    /// Takes a frame of one of its classes. It cannot send from here: what it owes leaves in [`Subsystem::progress`].
    fn frame(&mut self, _peer: Peer, _head: &Head, _body: &[u8]) {}

    /// Called before a sleep, when there is nothing to do. Returns when it is to be called again at the latest.
    fn before_sleep(&mut self, _below: Self::Below<'_>) -> Option<Instant> {
        None
    }
}

/// Messages and fabrics, as the subsystems above them use them.
pub(crate) struct Messaging<'a> {
    pub(crate) p2p: &'a mut P2p,
    pub(crate) ports: &'a mut Ports,
}

/// All that the launcher's word is for.
pub(crate) struct Informed<'a> {
    pub(crate) p2p: &'a mut P2p,
    pub(crate) ports: &'a mut Ports,
    pub(crate) colls: &'a mut RunningColls,
    pub(crate) policy: &'a mut Policy,
}

impl Subsystem for P2p {
    type Below<'a> = &'a mut Ports;

    #[inline(always)]
    fn has_work(&self) -> bool {
        P2p::has_work(self)
    }

    fn idle(&self) -> bool {
        P2p::idle(self)
    }

    #[inline(always)]
    fn progress(&mut self, ports: &mut Ports) -> usize {
        P2p::progress(self, ports)
    }

    #[inline(always)]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        Sink::frame(self, peer, head, body);
    }
}
