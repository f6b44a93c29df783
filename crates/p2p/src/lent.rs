//! Memory of sends that others use: peers that read what was registered, and fabrics that send from it after the call.

use banyan_transport::{Peer, Port, Token};

use crate::p2p::P2p;
use crate::request::{Request, SendStep, State};

impl P2p {
    /// Takes back the memory that the peer needs no longer; gives how many ranges.
    pub(crate) fn withdraw(&mut self, port: &mut impl Port, peer: Peer) -> usize {
        let link = self.peers.at(peer, &mut self.credit_pool);
        let mut done = 0;
        while let Some(region) = link.withdrawals.pop() {
            // A peer that is gone has not said that it read all.
            if link.down.is_some() {
                port.revoke(peer, region)
            } else {
                port.withdraw(peer, region)
            }
            done += 1;
        }
        done
    }

    /// Takes back what the fabric has of sends to a peer that is gone; gives of how many.
    pub(crate) fn reclaim(&mut self, port: &mut impl Port, peer: Peer) -> usize {
        let mut done = 0;
        while let Some(id) = self.peers.at(peer, &mut self.credit_pool).reclaims.pop() {
            port.reclaim(peer, Token(id));
            self.memory_free(id);
            done += 1;
        }
        done
    }

    /// The fabric needs no memory of send `id` any more: if all else was over, it is done.
    pub(crate) fn memory_free(&mut self, id: u64) {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return };
        send.lent = 0;
        if let SendStep::AwaitMemory(outcome) = &send.step {
            let outcome = (**outcome).clone();
            self.finish(id, outcome);
        }
    }

    /// The fabric needs the memory of one more frame of send `id` no longer.
    pub(crate) fn frame_left(&mut self, id: u64) {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return };
        send.lent = send.lent.saturating_sub(1);
        if send.lent == 0 {
            self.memory_free(id);
        }
    }
}
