//! Peers that are gone or have failed, and devices that have: what becomes of requests that wait for them, and of receives from any source.

use std::sync::Arc;

use banyan_memory::DeviceFailure;
use banyan_transport::{Class, Peer};

use crate::misbehaved::Misbehaved;
use crate::p2p::P2p;
use crate::request::{self, Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::types::{Completion, Fault};
use crate::wire::Kind;

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

    /// The device does not give the bytes of send `id`: it ends, and a receiver that has asked for them hears that they do not come.
    pub(crate) fn not_sent(&mut self, id: u64, failure: &DeviceFailure) {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get(id) else { return };
        let Send { peer, step, .. } = send;
        let (peer, completion) = (*peer, request::not_copied(failure, send.completion()));
        if let SendStep::PushGranted(granted) = step {
            self.owe(peer, Reply::bare(Kind::Unsent, granted.to, 0));
        }
        self.finish(id, completion);
    }

    /// Unsent: what receive `id` waits for does not come.
    pub(crate) fn unsent(&mut self, peer: Peer, id: u64) -> Result<(), Misbehaved> {
        // A receive that was given up is gone.
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get(id) else { return Ok(()) };
        let RecvStep::AwaitPieces(pieces) = &recv.step else { return Err(Misbehaved::DataUnasked) };
        if pieces.message.peer != peer {
            return Err(Misbehaved::ForeignReceive);
        }
        let outcome = pieces.message.completion();
        self.finish(id, Completion { bytes: 0, fault: Some(Fault::Unsent { peer }.into()), ..outcome });
        Ok(())
    }
}
