//! Peers that are gone or have failed: what becomes of requests that wait for them, and of receives from any source.

use std::sync::Arc;

use banyan_transport::{Class, Peer};

use crate::p2p::P2p;
use crate::request::{Recv, RecvStep, Request, State};
use crate::types::Fault;

impl P2p {
    /// A member of the communicator of this context has failed. Its message may be what receives from any source wait for: those
    /// that are posted end with [`Fault::PeerDown`], or if there are none, the next one that finds no message does. Later ones wait
    /// for the other members.
    pub fn member_failed(&mut self, ctx: u64, peer: Peer, cause: &Arc<str>) {
        let waits_for_any = |request: &Request| {
            matches!(&request.state, State::Recv(Recv { peer: None, ctx: of, class: Class::P2p, step, .. })
                if *of == ctx && matches!(step, RecvStep::AwaitMatch { .. }))
        };
        let involved = |(id, request): (u64, &Request)| waits_for_any(request).then_some(id);
        let ids: Vec<u64> = self.requests.iter().filter_map(involved).collect();
        if ids.is_empty() {
            self.contexts.at(ctx).failed = Some((peer, cause.clone()));
        }
        for id in ids {
            self.finish_lost(id, peer, cause);
        }
    }

    /// Why a probe for a message from `src` (`None`: any) that finds none is not to go on: its peer is gone, or a member of the
    /// communicator has failed and no receive has told of that.
    pub fn probe_fault(&mut self, ctx: u64, src: Option<Peer>) -> Option<Fault> {
        match src {
            Some(peer) => {
                let cause = self.peers.at(peer, &mut self.credit_pool).down.clone()?;
                Some(Fault::PeerDown { peer, cause })
            }
            None => {
                let (peer, cause) = self.contexts.at(ctx).failed.take()?;
                Some(Fault::PeerDown { peer, cause })
            }
        }
    }
}
