//! [`Messages`]: the keyed messages of p2p, as the schedules of collectives use them.

use banyan_coll::{self as coll, OpId};
use banyan_datatype::Data;
use banyan_p2p::{self as p2p, Started};
use banyan_transport::{DeviceMoves, Port};

use crate::coll_state::{CollState, CommBuffers};
use crate::ports::Ports;
use crate::slab;
use crate::subsystem::Messaging;

/// The keyed messages of p2p and the shared buffers of a communicator, as its schedules use them.
pub(crate) struct Messages<'a> {
    p2p: &'a mut p2p::P2p,
    ports: &'a mut Ports,
    ready: &'a mut ReadyMessages,
    coll_state: &'a CollState,
    shared: Option<&'a CommBuffers>,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(
        net: &'a mut Messaging<'_>,
        ready: &'a mut ReadyMessages,
        coll_state: &'a CollState,
    ) -> Self {
        let Messaging { p2p, ports } = net;
        Self { p2p, ports, ready, coll_state, shared: coll_state.shared() }
    }
}

/// Receives of schedules that were over when they were posted, until the schedule polls them.
#[derive(Default)]
pub(crate) struct ReadyMessages(Vec<Option<p2p::Completion>>);

/// Marks the id of a receive in [`ReadyMessages`].
const READY: u64 = 1 << 63;

impl ReadyMessages {
    fn keep(&mut self, completion: p2p::Completion) -> OpId {
        OpId(READY | slab::keep(&mut self.0, completion) as u64)
    }

    fn take(&mut self, op: OpId) -> Option<p2p::Completion> {
        self.0.get_mut((op.0 & !READY) as usize)?.take()
    }
}

impl Messages<'_> {
    fn fault(&self, fault: p2p::Fault) -> coll::Fault {
        match fault {
            // The schedule knows from whom it receives.
            p2p::Fault::Truncated { sent, room } => coll::Fault::Length { from: u32::MAX, sent, room },
            p2p::Fault::NoMemory { .. } => unreachable!("a schedule sends nothing from copies"),
            p2p::Fault::Device { what } => coll::Fault::device(what.to_string()),
            p2p::Fault::Unsent { peer } => {
                let rank = self.coll_state.group.rank_of(peer).unwrap_or(u32::MAX);
                coll::Fault::Left { rank }
            }
            p2p::Fault::PeerDown { peer, cause } => {
                let rank = self.coll_state.group.rank_of(peer).unwrap_or(u32::MAX);
                coll::Fault::Gone { rank, cause: cause.to_string() }
            }
        }
    }
}

impl<'a> coll::Messenger for Messages<'a> {
    type Shared = &'a CommBuffers;

    fn moves_devices(&mut self, rank: u32, bytes: u64) -> bool {
        // What is not longer goes through the fabric's frames in any case.
        let Some(peer) = self.coll_state.group.peer(rank) else { return false };
        bytes > self.ports.caps(peer).eager as u64 && self.ports.device_moves(peer) != DeviceMoves::Never
    }

    fn send(&mut self, to: u32, key: coll::Key, data: &Data) -> Option<OpId> {
        let peer = self.coll_state.group.peer(to)?;
        let sent = self.p2p.send_keyed(self.ports, peer, self.coll_state.ctx, wire_key(key), data);
        sent.map(|id| OpId(id.0))
    }

    fn recv(&mut self, from: u32, key: coll::Key, data: &Data) -> OpId {
        let peer = self.coll_state.group.peer(from).expect("schedules name ranks of the communicator");
        match self.p2p.recv_keyed(self.ports, peer, self.coll_state.ctx, wire_key(key), data) {
            Started::Done(completion) => self.ready.keep(completion),
            Started::Pending(id) => OpId(id.0),
        }
    }

    fn poll(&mut self, op: OpId) -> Option<Result<u64, coll::Fault>> {
        let completion = match op.0 & READY {
            0 => self.p2p.test(p2p::ReqId(op.0))?,
            _ => self.ready.take(op)?,
        };
        Some(match completion.fault {
            None => Ok(completion.bytes),
            Some(fault) => Err(self.fault(*fault)),
        })
    }

    fn met(&mut self, op: OpId) -> bool {
        op.0 & READY != 0 || self.p2p.is_met(p2p::ReqId(op.0))
    }

    fn cancel(&mut self, op: OpId) {
        match op.0 & READY {
            0 => self.p2p.abandon(self.ports, p2p::ReqId(op.0)),
            _ => drop(self.ready.take(op)),
        }
    }

    fn shared(&mut self) -> Option<&mut Self::Shared> {
        self.shared.as_mut()
    }
}

fn wire_key(key: coll::Key) -> u64 {
    u64::from(key.call) << 32 | u64::from(key.step)
}
