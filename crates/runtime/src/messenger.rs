//! The engine's messages, as the schedules of collectives use them.

use banyan_coll::{self as coll, OpId};
use banyan_datatype::Data;
use banyan_p2p::{self as p2p, Started};

use crate::places;
use crate::ports::Ports;
use crate::team::{Team, TeamSlots};

/// The engine's messages and shared slots, as schedules use them.
pub(crate) struct Messages<'a> {
    p2p: &'a mut p2p::Engine,
    ports: &'a mut Ports,
    early: &'a mut Early,
    team: &'a Team,
    slots: Option<&'a TeamSlots>,
}

impl<'a> Messages<'a> {
    pub(crate) fn new(
        p2p: &'a mut p2p::Engine,
        ports: &'a mut Ports,
        early: &'a mut Early,
        team: &'a Team,
    ) -> Self {
        Self { p2p, ports, early, team, slots: team.slots() }
    }
}

/// Receives of schedules that were over when they were posted, until the schedule asks.
#[derive(Default)]
pub(crate) struct Early(Vec<Option<p2p::Completion>>);

/// Marks the id of an early receive.
const EARLY: u64 = 1 << 63;

impl Early {
    fn keep(&mut self, completion: p2p::Completion) -> OpId {
        OpId(EARLY | places::keep(&mut self.0, completion) as u64)
    }

    fn take(&mut self, op: OpId) -> Option<p2p::Completion> {
        self.0.get_mut((op.0 & !EARLY) as usize)?.take()
    }
}

impl Messages<'_> {
    fn fault(&self, fault: p2p::Fault) -> coll::Fault {
        match fault {
            // The schedule knows from whom it receives.
            p2p::Fault::Truncated { sent, room } => coll::Fault::Length { from: u32::MAX, sent, room },
            p2p::Fault::PeerDown { peer, cause } => {
                let rank = self.team.group.rank_of(peer).unwrap_or(u32::MAX);
                coll::Fault::Gone { rank, cause: cause.to_string() }
            }
        }
    }
}

impl coll::Messenger for Messages<'_> {
    fn send(&mut self, to: u32, key: coll::Key, data: &Data) -> Option<OpId> {
        let peer = self.team.group.peer(to)?;
        match self.p2p.send_keyed(self.ports, peer, self.team.ctx, word(key), data) {
            Started::Done(_) => None,
            Started::Pending(id) => Some(OpId(id.0)),
        }
    }

    fn recv(&mut self, from: u32, key: coll::Key, data: &Data) -> OpId {
        let peer = self.team.group.peer(from).expect("schedules name ranks of the communicator");
        match self.p2p.recv_keyed(self.ports, peer, self.team.ctx, word(key), data) {
            Started::Done(completion) => self.early.keep(completion),
            Started::Pending(id) => OpId(id.0),
        }
    }

    fn poll(&mut self, op: OpId) -> Option<Result<u64, coll::Fault>> {
        let completion = match op.0 & EARLY {
            0 => self.p2p.test(p2p::ReqId(op.0))?,
            _ => self.early.take(op)?,
        };
        Some(match completion.fault {
            None => Ok(completion.bytes),
            Some(fault) => Err(self.fault(fault)),
        })
    }

    fn met(&mut self, op: OpId) -> bool {
        op.0 & EARLY != 0 || self.p2p.is_met(p2p::ReqId(op.0))
    }

    fn cancel(&mut self, op: OpId) {
        match op.0 & EARLY {
            0 => self.p2p.abandon(self.ports, p2p::ReqId(op.0)),
            _ => drop(self.early.take(op)),
        }
    }

    fn slots(&mut self) -> Option<&mut dyn coll::Slots> {
        self.slots.as_mut().map(|slots| slots as &mut dyn coll::Slots)
    }
}

fn word(key: coll::Key) -> u64 {
    u64::from(key.seq) << 32 | u64::from(key.step)
}
