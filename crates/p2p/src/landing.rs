//! Where the bodies of frames go that have begun to arrive: straight to the memory of the receive that has them, if there
//! is one and its bytes lie in one piece.

use banyan_memory::Buffer;
use banyan_transport::{Class, Head, Peer};

use crate::credit;
use crate::engine::Engine;
use crate::peers::{Offer, Taker};
use crate::request::{self, Matched, Pieces, RecvStep, Request, State};
use crate::sink::{Nonsense, key};
use crate::wire::{self, Kind};

impl Engine {
    /// See [`banyan_transport::Sink::place`].
    pub(crate) fn place_of(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        let ours = matches!(head.class, Class::P2p | Class::Coll);
        match Kind::from_u8(head.kind).filter(|_| ours)? {
            Kind::Eager => self.place_whole(peer, head, len),
            Kind::Early => match self.peers.at(peer, &mut self.bank).offer? {
                Offer { sender, taker: Taker::Receive(id) } if sender == head.ctx => {
                    self.place_piece(peer, id, wire::wide(head), len)
                }
                _ => None,
            },
            Kind::Data if head.class == Class::P2p => self.place_piece(peer, head.ctx, wire::wide(head), len),
            _ => None,
        }
    }

    /// Where a whole message goes that has begun to arrive, if a receive waits for it: from here on they are matched.
    fn place_whole(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        let link = self.peers.at(peer, &mut self.bank);
        if let Some(id) = link.landing {
            return self.place_piece(peer, id, 0, len);
        }
        if link.down.is_some() || !link.loan.covers(credit::cost(len)) {
            return None;
        }
        let (source, tag) = key(peer, head);
        let posted = &mut self.contexts.at(head.ctx).side(head.class).posted;
        let (place, id) = posted.find(source, tag)?;
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return None };
        let (memory, start) = recv.data.piece().filter(|_| recv.data.len() >= len as u64)?;
        let place_of_all = memory.slice(start, len);
        posted.remove(place);
        let ((source, tag), total) = (request::labels(head), len as u64);
        let message = Matched { peer, sender: 0, source, tag, total, wanted: total };
        recv.peer = Some(peer);
        recv.step = RecvStep::Pieces(Box::new(Pieces { message, received: 0 }));
        link.landing = Some(id);
        Some(place_of_all)
    }

    /// Where a piece goes, if its receive waits for it and takes it as it is.
    fn place_piece(&mut self, peer: Peer, id: u64, at: u64, len: usize) -> Option<Buffer> {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return None };
        recv.awaits(peer, at, len)?;
        let (memory, start) = recv.data.piece()?;
        Some(memory.slice(start + at as isize, len))
    }

    /// A whole message is where [`Engine::place_whole`] said.
    pub(crate) fn whole_placed(&mut self, peer: Peer, len: usize) -> Result<(), Nonsense> {
        let units = credit::cost(len);
        let link = self.peers.at(peer, &mut self.bank);
        let id = link.landing.take().ok_or(Nonsense)?;
        if !link.loan.pay(units) {
            return Err(Nonsense);
        }
        self.paid_back(peer, units);
        self.piece(peer, id, 0, len, |_| ())
    }
}
