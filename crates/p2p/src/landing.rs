//! Memory for the bodies of frames that have begun to arrive: that of their receive, if there is one and its memory is
//! contiguous. This spares a copy.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Head, Peer};

use crate::credit;
use crate::misbehaved::Misbehaved;
use crate::p2p::P2p;
use crate::peers::{OpenRts, RtsOwner};
use crate::request::{self, Arrival, Matched, Pieces, Recv, RecvStep, Request, State};
use crate::sink::source_and_tag;
use crate::staging::{self, Incoming};
use crate::wire::{self, Kind};

impl P2p {
    /// See [`banyan_transport::Sink::landing`].
    pub(crate) fn landing_of(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        let ours = matches!(head.class, Class::P2p | Class::Coll);
        match Kind::from_u8(head.kind).filter(|_| ours)? {
            Kind::Eager => self.land_whole(peer, head, len),
            Kind::Fragment => match self.peers.at(peer, &mut self.credit_pool).open_rts? {
                OpenRts { sender, owner: RtsOwner::Receive(id) } if sender == head.ctx => {
                    self.land_piece(peer, id, wire::wide(head), len)
                }
                _ => None,
            },
            Kind::Data if head.class == Class::P2p => self.land_piece(peer, head.ctx, wire::wide(head), len),
            _ => None,
        }
    }

    /// The memory for a whole message that has begun to arrive, if a receive waits for it: from here on they are matched.
    fn land_whole(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if let Some(id) = link.landing {
            return self.land_piece(peer, id, 0, len);
        }
        if link.down.is_some() || !link.loan.covers(credit::cost(len)) {
            return None;
        }
        let (source, tag) = source_and_tag(peer, head);
        let posted = &mut self.contexts.at(head.ctx).side(head.class).posted;
        let (entry, id) = posted.find(source, tag)?;
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            debug_assert!(false, "a posted receive is under way");
            return None;
        };
        let mut staged = Incoming::default();
        let fits = recv.data.len() >= len as u64;
        let body = fits.then(|| body_of(&recv.data, &mut staged, 0, len)).flatten()?;
        posted.remove(entry);
        let ((source, tag), total) = (request::labels(head), len as u64);
        let message = Matched { peer, sender: 0, source, tag, total, accepted: total, chosen: None };
        recv.peer = Some(peer);
        recv.step = RecvStep::AwaitPieces(Box::new(Pieces { message, received: 0, granted: None, staged }));
        link.landing = Some(id);
        Some(body)
    }

    /// The memory for a piece, if receive `id` awaits it and has it in contiguous memory.
    fn land_piece(&mut self, peer: Peer, id: u64, at: u64, len: usize) -> Option<Buffer> {
        // The receive may have been given up: the fabric drops the bytes.
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return None };
        recv.awaits(peer, at, len).ok()?;
        let Recv { data, step, .. } = recv;
        let staged = match step {
            RecvStep::AwaitPieces(pieces) => &mut pieces.staged,
            RecvStep::AwaitRead(read) => &mut read.staged,
            RecvStep::AwaitMatch { .. } => return None,
        };
        body_of(data, staged, at, len)
    }

    /// A whole message is in the memory that [`P2p::land_whole`] gave.
    pub(crate) fn whole_landed(&mut self, peer: Peer, len: usize) -> Result<(), Misbehaved> {
        let units = credit::cost(len);
        let link = self.peers.at(peer, &mut self.credit_pool);
        let id = link.landing.take().ok_or(Misbehaved::NotLanded)?;
        if !link.loan.pay(units) {
            return Err(Misbehaved::CreditOverrun);
        }
        self.paid_back(peer, units);
        self.piece(peer, id, 0, len, Arrival::Landed)
    }
}

/// The memory for the bytes of a message from `at` on: that of the receive, or of a bounce buffer if that is a device's.
fn body_of(data: &Data, staged: &mut Incoming, at: u64, len: usize) -> Option<Buffer> {
    if staging::is_staged(data) {
        return staged.reserve(data, at, len);
    }
    let (memory, start) = data.piece()?;
    Some(memory.slice(start + at as isize, len))
}
