//! Frames that arrive. Nothing here sends: replies are queued for [`P2p::progress`].

use std::num::NonZeroU64;

use banyan_memory::Buffer;
use banyan_transport::{Class, Handed, Head, Outcome, Peer, Sink, Token};

use crate::bypass::BypassedReceive;
use crate::credit;
use crate::misbehaved::Misbehaved;
use crate::p2p::{Contexts, P2p, list, wide_tag};
use crate::payload;
use crate::peers::{Link, OpenRts, RtsOwner};
use crate::request::{
    self, Arrival, Body, Granted, Message, Pieces, Recv, RecvStep, Reply, Request, SHORT, Send, SendStep,
    State,
};
use crate::staging;
use crate::wire::{self, Cts, Kind, Rts};

impl Sink for P2p {
    /// Takes frames of the classes P2p and Coll: a peer that hands over another one misbehaves.
    #[inline]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.accept(peer, head, body, None);
    }

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.landing_of(peer, head, len)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        let kind = Kind::from_u8(head.kind);
        let accepted = match credited(self.peers.at(peer, &mut self.credit_pool), head) {
            Ok(Some(_)) if kind == Some(Kind::Eager) => self.whole_landed(peer, len),
            Ok(Some(_)) if kind == Some(Kind::Fragment) => {
                self.fragment(peer, head.ctx, wire::wide(head), len, None)
            }
            Ok(Some(_)) => self.piece(peer, head.ctx, wire::wide(head), len, Arrival::Landed),
            Ok(None) => return,
            Err(cause) => Err(cause),
        };
        if let Err(cause) = accepted {
            self.refuse(peer, cause);
        }
    }

    fn sent(&mut self, token: Token) {
        self.frame_left(token.0);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        match self.requests.get(token.0) {
            Some(Request { state: State::Send(_), .. }) => self.write_over(token.0, outcome),
            _ => self.read_over(token.0, outcome),
        }
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.peer_down(peer, cause);
    }
}

impl P2p {
    /// Takes a frame; `bypass` counts as the receive that was posted last.
    #[inline(always)]
    pub(crate) fn accept(
        &mut self,
        peer: Peer,
        head: &Head,
        body: &[u8],
        bypass: Option<&mut BypassedReceive<'_>>,
    ) {
        let ours = wire::is_of_messages(head.class);
        let accepted = match head.kind == Kind::Eager as u8 && ours {
            true => self.whole(peer, head, body, None, bypass),
            false if ours => self.dispatch(peer, head, body, bypass),
            false => Err(Misbehaved::WrongClass),
        };
        if let Err(cause) = accepted {
            self.refuse(peer, cause);
        }
    }

    /// A peer that misbehaved is down.
    #[cold]
    pub(crate) fn refuse(&mut self, peer: Peer, cause: Misbehaved) {
        self.stats.misbehaved += 1;
        self.peer_down(peer, cause.text());
    }

    /// Takes a frame that is no whole message, or a whole one whose sender waits.
    #[inline(never)]
    fn dispatch(
        &mut self,
        peer: Peer,
        head: &Head,
        body: &[u8],
        bypass: Option<&mut BypassedReceive<'_>>,
    ) -> Result<(), Misbehaved> {
        let kind = Kind::from_u8(head.kind).ok_or(Misbehaved::UnknownKind)?;
        if head.class != Class::P2p && kind as u8 > Kind::Rts as u8 && kind != Kind::Fragment {
            return Err(Misbehaved::WrongClass);
        }
        if kind == Kind::EagerSync {
            let id = wire::id(body)?;
            return self.whole(peer, head, &body[8..], Some(id), bypass);
        }
        let Some(link) = credited(self.peers.at(peer, &mut self.credit_pool), head)? else { return Ok(()) };
        if head.aux > 0 && !link.held.is_empty() {
            self.resume_held(peer);
        }
        match kind {
            Kind::Eager | Kind::EagerSync => unreachable!("handled above"),
            Kind::Rts => self.rts_arrived(peer, head, Rts::decode(body)?, bypass),
            Kind::Fragment => self.fragment(peer, head.ctx, wire::wide(head), body.len(), Some(body)),
            Kind::Data => {
                let at = wire::wide(head);
                self.piece(peer, head.ctx, at, body.len(), Arrival::Body(body))
            }
            Kind::Cts => self.cleared(peer, head.ctx, Cts::decode(head, body)?),
            Kind::Fin if self.excused(peer, head.ctx) => Ok(()),
            Kind::Fin => self.answered(peer, head.ctx, true),
            Kind::Cancelled => self.answered(peer, head.ctx, false),
            Kind::Cancel => self.cancelled(peer, head.ctx, wire::id(body)?),
            Kind::Credit => Ok(()),
            Kind::RecallCredit => self.return_credit(peer),
            Kind::ReturnCredit => self.credit_returned(peer, head.a),
            Kind::Written => self.written(peer, head.ctx, wire::wide(head)),
            Kind::Prefer => self.preferred(peer, head),
            Kind::Unsent => self.unsent(peer, head.ctx),
            Kind::Handed => {
                let handed = Handed::decode(body).ok_or(Misbehaved::ShortBody)?;
                self.handed(peer, head.ctx, wire::wide(head), handed)
            }
            Kind::AnnounceMore => {
                self.announce_more(peer);
                Ok(())
            }
        }
    }

    /// A whole message: unpacked into the receive that waits for it, or kept. `sync_id` is the id of a send that awaits FIN.
    #[inline(always)]
    fn whole(
        &mut self,
        peer: Peer,
        head: &Head,
        body: &[u8],
        sync_id: Option<u64>,
        bypass: Option<&mut BypassedReceive<'_>>,
    ) -> Result<(), Misbehaved> {
        let units = credit::cost(body.len());
        let Some(link) = credited(self.peers.at(peer, &mut self.credit_pool), head)? else { return Ok(()) };
        if !link.loan.pay(units) {
            return Err(Misbehaved::CreditOverrun);
        }
        let past = link.copies_past(body.len() as u64);
        let posted = match_posted(&mut self.contexts, peer, head);
        // Not by `filter`, which compilers do not inline here.
        let bypass = match bypass {
            Some(bypass) if posted.is_none() && bypass.fits(head) => Some(bypass),
            _ => None,
        };
        if posted.is_some() || bypass.is_some() {
            // The credit is returned at once: the message does not stay in memory.
            link.loan.used(units);
            if link.loan.is_due() {
                list(&mut self.work, link);
            }
        }
        if let Some(bypass) = bypass {
            bypass.receive(head, body, past);
        } else if let Some(id) = posted {
            let (source, tag) = request::labels(head);
            self.fill(id, (source, tag), body, past);
        } else {
            self.keep_whole(peer, head, body, sync_id);
            return Ok(());
        }
        if let Some(sender) = sync_id {
            self.owe(peer, Reply::bare(Kind::Fin, sender, 0));
        }
        Ok(())
    }

    /// Receive `id` is matched with a whole message: unpacks it.
    #[inline]
    fn fill(&mut self, id: u64, (source, tag): (u32, i32), body: &[u8], past: bool) {
        let Some(request) = self.requests.get_mut(id) else {
            debug_assert!(false, "a posted receive is a request");
            return;
        };
        let Request { state: State::Recv(recv), orphan } = request else {
            debug_assert!(false, "a posted receive is not done");
            return;
        };
        if !body.is_empty() && staging::is_staged(&recv.data) {
            return self.fill_device(id, source, tag, body);
        }
        let accepted = payload::unpack_by(past, &recv.data, 0, body);
        // Made where it goes: what both arms share would be stored in parts, and copied from there.
        let completion = || request::received(source, tag, body.len() as u64, accepted as u64);
        match orphan {
            true => self.finish(id, completion()),
            // A receive exposes nothing that `finish` would withdraw.
            false => request.state = State::Done(completion()),
        }
    }

    /// [`P2p::fill`] where the memory is a device's.
    #[cold]
    #[inline(never)]
    fn fill_device(&mut self, id: u64, source: u32, tag: i32, body: &[u8]) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        let completion = request::delivered_to_device(&recv.data, (source, tag), body);
        self.finish(id, completion);
    }

    /// Keeps a whole message, in itself if it is short.
    #[inline(never)]
    fn keep_whole(&mut self, peer: Peer, head: &Head, body: &[u8], sync_id: Option<u64>) {
        let (source, tag) = request::labels(head);
        let sync_id = sync_id.and_then(NonZeroU64::new);
        let body = match body.len() {
            len @ 0..=SHORT => {
                self.pool.count(len);
                let mut bytes = [0; SHORT];
                bytes[..len].copy_from_slice(body);
                Body::Short { sync_id, len: len as u8, bytes }
            }
            _ => Body::Whole { sync_id, payload: self.pool.copy_of(body) },
        };
        self.keep(head, Message { peer, source, tag, body });
    }

    /// An RTS: its message is fetched if a receive waits for it, else the RTS is kept.
    fn rts_arrived(
        &mut self,
        peer: Peer,
        head: &Head,
        mut rts: Rts,
        bypass: Option<&mut BypassedReceive<'_>>,
    ) -> Result<(), Misbehaved> {
        let (source, tag) = request::labels(head);
        if rts.starved {
            self.relieve(peer);
        }
        self.note_announced(peer, head, &mut rts);
        if let Some(id) = match_posted(&mut self.contexts, peer, head) {
            let open_rts = OpenRts { sender: rts.id, owner: RtsOwner::Receive(id) };
            self.peers.at(peer, &mut self.credit_pool).open_rts = Some(open_rts);
            self.fetch(id, peer, source, tag, rts, None);
            self.note_last(peer, &rts);
            return Ok(());
        }
        self.note_last(peer, &rts);
        bypass.filter(|bypass| bypass.fits(head)).into_iter().for_each(BypassedReceive::rts_arrived);
        let body = Body::Rts { rts, fragments: None };
        let id = self.keep(head, Message { peer, source, tag, body });
        let open_rts = OpenRts { sender: rts.id, owner: RtsOwner::Message(id) };
        self.peers.at(peer, &mut self.credit_pool).open_rts = Some(open_rts);
        Ok(())
    }

    /// A fragment: unpacked into the receive that has its RTS, or kept. Fragments come in order, and before
    /// any other RTS. Without a body the bytes are where [`P2p::land_piece`] said.
    fn fragment(
        &mut self,
        peer: Peer,
        sender: u64,
        at: u64,
        len: usize,
        body: Option<&[u8]>,
    ) -> Result<(), Misbehaved> {
        let (units, len) = (credit::cost(len), len as u64);
        let link = self.peers.at(peer, &mut self.credit_pool);
        let open_rts = link.open_rts.filter(|open_rts| open_rts.sender == sender);
        let open_rts = open_rts.ok_or(Misbehaved::StrayFragment)?;
        if !link.loan.pay(units) {
            return Err(Misbehaved::CreditOverrun);
        }
        if let RtsOwner::Message(id) = open_rts.owner
            && let Some(Message { body: Body::Rts { rts, fragments }, .. }) = self.messages.get_mut(id)
        {
            let fragments = fragments.get_or_insert_default();
            if at != fragments.bytes {
                return Err(Misbehaved::FragmentOrder);
            }
            if len > rts.total - at {
                return Err(Misbehaved::BeyondEnd);
            }
            fragments.frames.push(self.pool.copy_of(body.ok_or(Misbehaved::NotLanded)?));
            fragments.bytes += len;
            return Ok(());
        }
        self.paid_back(peer, units);
        // The message was dropped.
        let RtsOwner::Receive(id) = open_rts.owner else { return Ok(()) };
        // The receive has all that it has room for, or was given up.
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return Ok(()) };
        let Recv { data, step: RecvStep::AwaitPieces(pieces), .. } = recv else {
            return Err(Misbehaved::FragmentOfRead);
        };
        let Pieces { message, received, staged, .. } = &mut **pieces;
        // What is longer than the receive is cut off.
        let fits = message.accepted.saturating_sub(at).min(len);
        if at > message.total || len > message.total - at {
            return Err(Misbehaved::BeyondEnd);
        }
        if *received + fits > message.accepted {
            return Err(Misbehaved::DataOverrun);
        }
        match body {
            Some(body) => staged.place(data, message.accepted, at, &body[..fits as usize]),
            None => staged.landed(data, message.accepted, at, len as usize),
        }
        *received += fits;
        if *received == message.accepted {
            let message = *message;
            self.all_here(id, &message);
        }
        Ok(())
    }

    /// Puts a message among those that wait for a receive.
    fn keep(&mut self, head: &Head, message: Message) -> u64 {
        let (src, tag) = source_and_tag(message.peer, head);
        let id = self.messages.insert(message);
        self.contexts.at(head.ctx).side(head.class).unexpected.push(src, tag, id);
        self.stats.unexpected += 1;
        id
    }

    /// DATA, or all of a frame, for receive `id`.
    pub(crate) fn piece(
        &mut self,
        peer: Peer,
        id: u64,
        at: u64,
        len: usize,
        arrival: Arrival<'_>,
    ) -> Result<(), Misbehaved> {
        self.note_unwritten(peer, id);
        self.take_piece(peer, id, at, len, arrival)
    }

    /// A piece of a message that receive `id` has asked for.
    pub(crate) fn take_piece(
        &mut self,
        peer: Peer,
        id: u64,
        at: u64,
        len: usize,
        arrival: Arrival<'_>,
    ) -> Result<(), Misbehaved> {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            // The receive was given up: the piece is late, which is no fault of the peer.
            self.stats.misbehaved += 1;
            return Ok(());
        };
        recv.awaits(peer, at, len)?;
        recv.place(at, len, arrival);
        match recv.arrived(len) {
            Some(message) => self.all_here(id, &message),
            None => self.half_over(id),
        }
        Ok(())
    }

    /// CTS: the receiver of send `id` asks for pieces.
    fn cleared(&mut self, peer: Peer, id: u64, cts: Cts) -> Result<(), Misbehaved> {
        let Some(send) = self.waiting_send(peer, id)? else { return Ok(()) };
        if cts.room > send.data.len() {
            return Err(Misbehaved::GrantTooLong);
        }
        let SendStep::AwaitReply { region, ref mut staged, sent, counted } = send.step else {
            debug_assert!(false, "a waiting send awaits a reply");
            return Err(Misbehaved::ReplyUnasked);
        };
        let Cts { id: to, room, to_device, .. } = cts;
        let sent = cts.grant.map_or(sent.into(), |grant| grant.from);
        if sent > room && cts.grant.is_some() {
            return Err(Misbehaved::GrantTooLong);
        }
        let more = cts.grant.is_some() && sent > 0;
        let kept = region.filter(|_| more);
        let staged = staged.take();
        let granted = Granted {
            to,
            room,
            sent,
            grant: cts.grant,
            started: false,
            more,
            region: kept,
            to_device,
            staged,
        };
        send.step = SendStep::PushGranted(Box::new(granted));
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.announced -= u32::from(counted);
        link.withdrawals.extend(region.filter(|_| !more));
        link.granted.push_back(id);
        list(&mut self.work, link);
        self.resume_held(peer);
        Ok(())
    }

    /// FIN or Cancelled: the receiver of send `id` received the message, or dropped it.
    fn answered(&mut self, peer: Peer, id: u64, received: bool) -> Result<(), Misbehaved> {
        let Some(send) = self.waiting_send(peer, id)? else { return Ok(()) };
        let completion = send.completion();
        if let SendStep::AwaitReply { counted: true, .. } = send.step {
            self.peers.at(peer, &mut self.credit_pool).announced -= 1;
            self.resume_held(peer);
        }
        match received {
            true => self.finish(id, completion),
            false => self.finish_cancelled(id),
        }
        Ok(())
    }

    /// The send that waits for a reply of `peer`; none if it is over.
    fn waiting_send(&mut self, peer: Peer, id: u64) -> Result<Option<&mut Send>, Misbehaved> {
        match self.requests.get_mut(id) {
            Some(Request { state: State::Send(send), .. }) => {
                if send.peer != peer {
                    return Err(Misbehaved::ForeignSend);
                }
                let waits = matches!(send.step, SendStep::AwaitReply { .. });
                if waits { Ok(Some(send)) } else { Err(Misbehaved::ReplyUnasked) }
            }
            // A reply to a send that was cancelled, or that is complete, is late.
            _ => {
                self.stats.misbehaved += 1;
                Ok(None)
            }
        }
    }

    /// The sender cancels a message. If the message is matched nothing is sent: the answer to the message
    /// itself is on its way.
    fn cancelled(&mut self, peer: Peer, ctx: u64, sender: u64) -> Result<(), Misbehaved> {
        let Some(context) = self.contexts.find(ctx) else { return Ok(()) };
        let unexpected = &mut context.tagged.unexpected;
        let of_sender =
            |id: u64| self.messages.get(id).is_some_and(|m| m.peer == peer && m.sender() == Some(sender));
        let Some((entry, id)) = unexpected.iter().find(|&(_, id)| of_sender(id)) else { return Ok(()) };
        unexpected.remove(entry);
        if let Some(message) = self.messages.remove(id) {
            self.release(peer, message.body);
        }
        self.owe(peer, Reply::bare(Kind::Cancelled, sender, 0));
        Ok(())
    }

    /// A peer ran out of credit: what is owed to it is returned at once, and more is lent if there is any.
    fn relieve(&mut self, peer: Peer) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if !self.credit_pool.grow(&mut link.loan) {
            self.recall_credit();
        } else if !std::mem::replace(&mut link.borrower, true) {
            self.borrowers.push_back(peer);
        }
        let link = self.peers.at(peer, &mut self.credit_pool);
        // Any reply carries credit.
        if link.loan.returnable() > 0 && link.replies.is_empty() {
            self.owe(peer, Reply::bare(Kind::Credit, 0, 0));
        }
    }

    /// Asks a peer that was lent more than the initial credit, and is quiet, to return it. Looks at a few peers only.
    fn recall_credit(&mut self) {
        for _ in 0..self.borrowers.len().min(4) {
            let Some(peer) = self.borrowers.pop_front() else { return };
            let link = self.peers.at(peer, &mut self.credit_pool);
            if link.loan.active {
                link.loan.active = false;
                self.borrowers.push_back(peer);
                continue;
            }
            link.borrower = false;
            return self.owe(peer, Reply::bare(Kind::RecallCredit, 0, 0));
        }
    }

    /// The peer asks for its credit: all beyond the initial loan is returned.
    fn return_credit(&mut self, peer: Peer) -> Result<(), Misbehaved> {
        let initial = self.credit_pool.initial();
        let link = self.peers.at(peer, &mut self.credit_pool);
        let units = link.credit.saturating_sub(initial);
        link.credit -= units;
        self.owe(peer, Reply::bare(Kind::ReturnCredit, 0, u64::from(units)));
        Ok(())
    }

    /// The peer returns credit that it was lent.
    fn credit_returned(&mut self, peer: Peer, units: u32) -> Result<(), Misbehaved> {
        let link = self.peers.at(peer, &mut self.credit_pool);
        self.credit_pool.take_back(&mut link.loan, units).then_some(()).ok_or(Misbehaved::CreditNotLent)
    }
}

/// The link of the peer, with the credit that its frame returns; `None` if the peer is down.
#[inline(always)]
fn credited<'a>(link: &'a mut Link, head: &Head) -> Result<Option<&'a mut Link>, Misbehaved> {
    if link.down.is_some() {
        return Ok(None);
    }
    link.credit += head.aux;
    link.heard = true;
    if link.credit > credit::MOST_CREDIT { Err(Misbehaved::CreditFlood) } else { Ok(Some(link)) }
}

/// Takes the posted receive that a message matches out of its queue; gives its id.
#[inline(always)]
fn match_posted(contexts: &mut Contexts, peer: Peer, head: &Head) -> Option<u64> {
    let (src, tag) = source_and_tag(peer, head);
    contexts.at(head.ctx).side(head.class).posted.take(src, tag)
}

/// Source and tag of an envelope, as matching compares them.
#[inline]
pub(crate) fn source_and_tag(peer: Peer, head: &Head) -> (u32, u64) {
    match head.class {
        Class::Coll => (peer.0, wire::wide(head)),
        _ => (head.b, wide_tag(head.a as i32)),
    }
}
