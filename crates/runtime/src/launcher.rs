//! [`Launcher`]: the line to the launcher, over which business cards come that a fabric needs.

use std::os::fd::{BorrowedFd, OwnedFd};

use banyan_pmi::{Client, Event};
use banyan_transport::Peer;

use crate::subsystem::{Messaging, Subsystem};

/// The line to the launcher, if there is one.
pub(crate) struct Launcher {
    pub(crate) client: Option<Client>,
    /// Business cards asked for and not yet received.
    lookups: usize,
}

impl Launcher {
    pub(crate) fn new(client: Option<Client>) -> Self {
        Self { client, lookups: 0 }
    }

    /// What its answer makes readable, if one is awaited.
    pub(crate) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        self.client.as_ref().filter(|_| self.lookups > 0).and_then(Client::events)
    }

    /// [`Launcher::awaited`] as a duplicate.
    pub(crate) fn awaited_owned(&self) -> Option<OwnedFd> {
        self.awaited().and_then(|socket| socket.try_clone_to_owned().ok())
    }

    /// Tells the launcher that this process has finalized and may end now.
    pub(crate) fn leave(&mut self) {
        if let Some(client) = &mut self.client {
            // If the launcher is gone there is nobody to tell.
            let _ = client.finalized();
        }
    }
}

impl Subsystem for Launcher {
    type Below<'a> = Messaging<'a>;

    #[inline(always)]
    fn has_work(&self) -> bool {
        self.lookups > 0
    }

    /// An answer that is awaited keeps nobody: what needs it is under way elsewhere.
    fn idle(&self) -> bool {
        true
    }

    #[inline(always)]
    fn progress(&mut self, net: Messaging<'_>) -> usize {
        if self.lookups > 0 || net.ports.needs_cards() { self.look_up(net) } else { 0 }
    }
}

impl Launcher {
    /// Asks for business cards that a fabric wants, and gives the fabric those that arrived.
    #[inline(never)]
    fn look_up(&mut self, Messaging { p2p, ports }: Messaging<'_>) -> usize {
        let Some(client) = &mut self.client else { return 0 };
        let mut events = 0;
        while let Some(peer) = ports.wanted() {
            // A broken connection shows when its next event is read.
            let _ = client.lookup(peer.0);
            self.lookups += 1;
            events += 1;
        }
        while self.lookups > 0 {
            match client.try_event() {
                Ok(Some(Event::BusinessCard { rank, business_card })) => {
                    self.lookups -= 1;
                    events += 1;
                    if let Err(cause) = ports.connect(Peer(rank), &business_card) {
                        p2p.peer_down(Peer(rank), &cause);
                    }
                }
                Ok(None) => break,
                Err(cause) => {
                    // The launcher is gone: this process is about to be killed.
                    self.lookups = 0;
                    eprintln!("banyan: lost the launcher: {cause}");
                }
            }
        }
        events
    }
}
