//! Pieces of long messages that come in memory which both processes share. A frame says where a piece is; it counts as here from then on, and the
//! next [`P2p::progress`] copies it from there, as a sink does not reach the memory. The memory is returned with the last buffer on it: when all is copied,
//! or at once if nobody wants it any more.

use banyan_memory::Buffer;
use banyan_transport::{Handed, Peer, Port};

use crate::misbehaved::Misbehaved;
use crate::p2p::{P2p, list};
use crate::request::{Recv, RecvStep, Request, State};

/// A piece of a message that a peer has handed over: for which receive, if one awaits it, and from which byte of the message on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedPiece {
    receive: Option<u64>,
    at: u64,
    handed: Handed,
}

impl P2p {
    /// Handed: a piece for receive `id`, from byte `at` of the message on, is in memory of `peer`'s.
    pub(crate) fn handed(&mut self, peer: Peer, id: u64, at: u64, handed: Handed) -> Result<(), Misbehaved> {
        let awaited = self.await_handed(peer, id, at, handed.len as usize);
        let receive = awaited.is_ok_and(|awaited| awaited).then_some(id);
        // Also where nobody wants it: it is to be returned.
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.handed.push_back(HandedPiece { receive, at, handed });
        list(&mut self.work, link);
        awaited.map(drop)
    }

    /// Such a piece of `len` bytes counts as here; false if the receive was given up.
    fn await_handed(&mut self, peer: Peer, id: u64, at: u64, len: usize) -> Result<bool, Misbehaved> {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            // It is late, which is no fault of the peer.
            self.stats.misbehaved += 1;
            return Ok(false);
        };
        recv.awaits(peer, at, len)?;
        let RecvStep::AwaitPieces(pieces) = &mut recv.step else { return Err(Misbehaved::DataUnasked) };
        pieces.staged.await_handed();
        if let Some(message) = recv.arrived(len) {
            self.all_here(id, &message);
        }
        Ok(true)
    }

    /// Copies the pieces that a peer has handed over, or has devices begin to; gives how many.
    pub(crate) fn take_handed(&mut self, port: &mut impl Port, peer: Peer) -> usize {
        let mut taken = 0;
        while let Some(HandedPiece { receive, at, handed }) =
            self.peers.at(peer, &mut self.credit_pool).handed.pop_front()
        {
            taken += 1;
            let found = match receive.and_then(|id| self.requests.get_mut(id)) {
                Some(Request {
                    state: State::Recv(Recv { data, step: RecvStep::AwaitPieces(pieces), .. }),
                    ..
                }) => Some((data, pieces)),
                _ => None,
            };
            let near = found.as_ref().map_or_else(Buffer::empty, |(data, _)| data.buffer().clone());
            match (port.handed(peer, handed, &near), found) {
                (Some(memory), Some((data, pieces))) => pieces.staged.take(data, at, &memory),
                // Given up: it is returned at once.
                (Some(_), None) => {}
                (None, found) => {
                    let awaited = receive.filter(|_| found.is_some());
                    // It is not here after all.
                    found.into_iter().for_each(|(_, pieces)| pieces.received -= u64::from(handed.len));
                    self.not_handed(peer, awaited);
                }
            }
        }
        taken
    }

    /// There is no memory where a peer has said so: it is down, and so ends the receive that waits for it.
    fn not_handed(&mut self, peer: Peer, receive: Option<u64>) {
        match (self.peers.at(peer, &mut self.credit_pool).down.clone(), receive) {
            (None, _) => self.refuse(peer, Misbehaved::NotHanded),
            (Some(cause), Some(id)) => self.finish_lost(id, peer, &cause),
            (Some(_), None) => {}
        }
    }
}
