//! What arrives. Nothing here sends: answers are queued for [`Engine::progress`].

use std::num::NonZeroU64;

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Get, Head, Peer, Sink, Token};

use crate::awaited::Awaited;
use crate::credit;
use crate::engine::{Contexts, Engine, list, wide_tag};
use crate::payload;
use crate::peers::{Link, Offer, Taker};
use crate::request::{
    self, Body, Message, Pieces, Recv, RecvStep, Reply, Request, SHORT, Send, SendStep, State,
};
use crate::wire::{self, Cts, Kind, Rts};

/// A frame that no correct peer sends.
pub(crate) struct Nonsense;

/// More than this much credit is never lent, units.
const MOST_CREDIT: u32 = 1 << 28;

impl Sink for Engine {
    /// Takes frames of the classes P2p and Coll, and keeps those of class Control; others are dropped.
    #[inline]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.accept(peer, head, body, None);
    }

    fn place(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.place_of(peer, head, len)
    }

    fn placed(&mut self, peer: Peer, head: &Head, len: usize) {
        let kind = Kind::from_u8(head.kind);
        let taken = match credited(self.peers.at(peer, &mut self.bank), head) {
            Ok(Some(_)) if kind == Some(Kind::Eager) => self.whole_placed(peer, len),
            Ok(Some(_)) if kind == Some(Kind::Early) => {
                self.early(peer, head.ctx, wire::wide(head), len, None)
            }
            Ok(Some(_)) => self.piece(peer, head.ctx, wire::wide(head), len, |_| ()),
            Ok(None) => return,
            Err(nonsense) => Err(nonsense),
        };
        if taken.is_err() {
            self.refuse(peer);
        }
    }

    fn got(&mut self, token: Token, outcome: Get) {
        self.read_over(token.0, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.peer_down(peer, cause);
    }
}

impl Engine {
    /// Takes a frame; `awaited` counts as posted last.
    #[inline(always)]
    pub(crate) fn accept(&mut self, peer: Peer, head: &Head, body: &[u8], awaited: Option<&mut Awaited<'_>>) {
        let ours = matches!(head.class, Class::P2p | Class::Coll);
        let taken = match head.kind == Kind::Eager as u8 && ours {
            true => self.whole(peer, head, body, None, awaited),
            false if ours => self.dispatch(peer, head, body, awaited),
            false => return self.control(peer, head, body),
        };
        if taken.is_err() {
            self.refuse(peer);
        }
    }

    #[cold]
    fn refuse(&mut self, peer: Peer) {
        self.stats.nonsense += 1;
        self.peer_down(peer, "it sent a frame that makes no sense");
    }

    /// Takes a frame that is no whole message, or one whose sender waits.
    #[inline(never)]
    fn dispatch(
        &mut self,
        peer: Peer,
        head: &Head,
        body: &[u8],
        awaited: Option<&mut Awaited<'_>>,
    ) -> Result<(), Nonsense> {
        let kind = Kind::from_u8(head.kind).ok_or(Nonsense)?;
        if head.class != Class::P2p && kind as u8 > Kind::Rts as u8 && kind != Kind::Early {
            return Err(Nonsense);
        }
        if kind == Kind::EagerSync {
            let id = wire::id(body).ok_or(Nonsense)?;
            return self.whole(peer, head, &body[8..], Some(id), awaited);
        }
        let Some(link) = credited(self.peers.at(peer, &mut self.bank), head)? else { return Ok(()) };
        if head.aux > 0 && !link.held.is_empty() {
            self.resume_held(peer);
        }
        match kind {
            Kind::Eager | Kind::EagerSync => unreachable!("taken before"),
            Kind::Rts => self.offered(peer, head, Rts::decode(body).ok_or(Nonsense)?, awaited),
            Kind::Early => self.early(peer, head.ctx, wire::wide(head), body.len(), Some(body)),
            Kind::Data => {
                let at = wire::wide(head);
                self.piece(peer, head.ctx, at, body.len(), |data| {
                    payload::unpack(data, at, body);
                })
            }
            Kind::Cts => self.cleared(peer, head.ctx, Cts::decode(body).ok_or(Nonsense)?),
            Kind::Taken => self.answered(peer, head.ctx, true),
            Kind::Cancelled => self.answered(peer, head.ctx, false),
            Kind::Cancel => self.cancelled(peer, head.ctx, wire::id(body).ok_or(Nonsense)?),
            Kind::Credit => Ok(()),
            Kind::Recall => self.recalled(peer),
            Kind::Return => self.given_back(peer, head.a),
            Kind::More => {
                self.announce_more(peer);
                Ok(())
            }
        }
    }

    /// A whole message: straight to the receive that waits for it, or kept.
    #[inline(always)]
    fn whole(
        &mut self,
        peer: Peer,
        head: &Head,
        body: &[u8],
        waits: Option<u64>,
        awaited: Option<&mut Awaited<'_>>,
    ) -> Result<(), Nonsense> {
        let units = credit::cost(body.len());
        let Some(link) = credited(self.peers.at(peer, &mut self.bank), head)? else { return Ok(()) };
        if !link.loan.pay(units) {
            return Err(Nonsense);
        }
        let (source, tag) = request::labels(head);
        let posted = match_posted(&mut self.contexts, peer, head);
        let awaited = awaited.filter(|awaited| posted.is_none() && awaited.fits(head));
        if posted.is_some() || awaited.is_some() {
            // Paid back at once: it does not stay.
            link.loan.used(units);
            if link.loan.is_due() {
                list(&mut self.work, link);
            }
        }
        if let Some(awaited) = awaited {
            awaited.receive(source, tag, body);
        } else if let Some(id) = posted {
            self.fill(id, source, tag, body);
        } else {
            self.keep_whole(peer, head, body, waits);
            return Ok(());
        }
        if let Some(sender) = waits {
            self.owe(peer, Reply::bare(Kind::Taken, sender, 0));
        }
        Ok(())
    }

    /// Receive `id` is matched with a message that is here.
    #[inline]
    fn fill(&mut self, id: u64, source: u32, tag: i32, body: &[u8]) {
        let Some(request) = self.requests.get_mut(id) else { return };
        let Request { state: State::Recv(recv), orphan } = request else { return };
        let wanted = payload::unpack(&recv.data, 0, body);
        let completion = request::received(source, tag, body.len() as u64, wanted as u64);
        match orphan {
            true => self.finish(id, completion),
            // It exposes nothing.
            false => request.state = State::Done(completion),
        }
    }

    #[inline(never)]
    fn keep_whole(&mut self, peer: Peer, head: &Head, body: &[u8], waits: Option<u64>) {
        let (source, tag) = request::labels(head);
        let waits = waits.and_then(NonZeroU64::new);
        let body = match body.len() {
            len @ 0..=SHORT => {
                self.pool.count(len);
                let mut bytes = [0; SHORT];
                bytes[..len].copy_from_slice(body);
                Body::Short { waits, len: len as u8, bytes }
            }
            _ => Body::Whole { waits, payload: self.pool.copy_of(body) },
        };
        self.keep(head, Message { peer, source, tag, body });
    }

    /// An offer of a message: fetched if a receive waits for it, or kept.
    fn offered(
        &mut self,
        peer: Peer,
        head: &Head,
        rts: Rts,
        awaited: Option<&mut Awaited<'_>>,
    ) -> Result<(), Nonsense> {
        let (source, tag) = request::labels(head);
        if rts.starved {
            self.relieve(peer);
        }
        if let Some(id) = match_posted(&mut self.contexts, peer, head) {
            let offer = Offer { sender: rts.id, taker: Taker::Receive(id) };
            self.peers.at(peer, &mut self.bank).offer = Some(offer);
            self.fetch(id, peer, source, tag, rts, None);
            self.note_last(peer, &rts);
            return Ok(());
        }
        self.note_last(peer, &rts);
        awaited.filter(|awaited| awaited.fits(head)).into_iter().for_each(Awaited::offered);
        let body = Body::Offer { rts, early: None };
        let id = self.keep(head, Message { peer, source, tag, body });
        let offer = Offer { sender: rts.id, taker: Taker::Message(id) };
        self.peers.at(peer, &mut self.bank).offer = Some(offer);
        Ok(())
    }

    /// Bytes that follow an offer unasked: straight to the receive that has it, or kept. They come in order, and before
    /// any other offer. Without a body they are where [`Engine::place_piece`] said.
    fn early(
        &mut self,
        peer: Peer,
        sender: u64,
        at: u64,
        len: usize,
        body: Option<&[u8]>,
    ) -> Result<(), Nonsense> {
        let (units, len) = (credit::cost(len), len as u64);
        let link = self.peers.at(peer, &mut self.bank);
        let offer = link.offer.filter(|offer| offer.sender == sender).ok_or(Nonsense)?;
        if !link.loan.pay(units) {
            return Err(Nonsense);
        }
        if let Taker::Message(id) = offer.taker
            && let Some(Message { body: Body::Offer { rts, early }, .. }) = self.messages.get_mut(id)
        {
            let early = early.get_or_insert_default();
            if at != early.bytes || len > rts.total - at {
                return Err(Nonsense);
            }
            early.frames.push(self.pool.copy_of(body.ok_or(Nonsense)?));
            early.bytes += len;
            return Ok(());
        }
        self.paid_back(peer, units);
        // What is longer than its receive is cut off; what nobody wants any more is dropped.
        let Taker::Receive(id) = offer.taker else { return Ok(()) };
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return Ok(()) };
        let Recv { data, step: RecvStep::Pieces(pieces), .. } = recv else { return Err(Nonsense) };
        let Pieces { message, received } = &mut **pieces;
        let fits = message.wanted.saturating_sub(at).min(len);
        if at > message.total || len > message.total - at || *received + fits > message.wanted {
            return Err(Nonsense);
        }
        if let Some(body) = body {
            payload::unpack(data, at, &body[..fits as usize]);
        }
        *received += fits;
        if *received == message.wanted {
            let completion = message.completion();
            self.finish(id, completion);
        }
        Ok(())
    }

    fn keep(&mut self, head: &Head, message: Message) -> u64 {
        let (src, tag) = key(message.peer, head);
        let id = self.messages.insert(message);
        self.contexts.at(head.ctx).side(head.class).unexpected.push(src, tag, id);
        self.stats.unexpected += 1;
        id
    }

    /// A piece of a message that was asked for. Pieces for receives that are over are late, not wrong.
    pub(crate) fn piece(
        &mut self,
        peer: Peer,
        id: u64,
        at: u64,
        len: usize,
        unpack: impl FnOnce(&Data),
    ) -> Result<(), Nonsense> {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            self.stats.nonsense += 1;
            return Ok(());
        };
        recv.awaits(peer, at, len).ok_or(Nonsense)?;
        unpack(&recv.data);
        if let Some(completion) = recv.arrived(len) {
            self.finish(id, completion);
        }
        Ok(())
    }

    /// The receiver of send `id` asks for pieces.
    fn cleared(&mut self, peer: Peer, id: u64, cts: Cts) -> Result<(), Nonsense> {
        let Some(send) = self.waiting_send(peer, id)? else { return Ok(()) };
        if cts.room > send.data.len() {
            return Err(Nonsense);
        }
        let SendStep::Answer { region, sent, counted } = send.step else { return Err(Nonsense) };
        send.step = SendStep::Stream { to: cts.id, room: cts.room, sent };
        let link = self.peers.at(peer, &mut self.bank);
        link.announced -= u32::from(counted);
        link.withdrawals.extend(region);
        link.streams.push_back(id);
        list(&mut self.work, link);
        self.resume_held(peer);
        Ok(())
    }

    /// The receiver of send `id` took the message, or forgot it.
    fn answered(&mut self, peer: Peer, id: u64, taken: bool) -> Result<(), Nonsense> {
        let Some(send) = self.waiting_send(peer, id)? else { return Ok(()) };
        let completion = send.completion();
        if let SendStep::Answer { counted: true, .. } = send.step {
            self.peers.at(peer, &mut self.bank).announced -= 1;
            self.resume_held(peer);
        }
        match taken {
            true => self.finish(id, completion),
            false => self.finish_cancelled(id),
        }
        Ok(())
    }

    /// The send that waits for an answer of `peer`; none if it is over.
    fn waiting_send(&mut self, peer: Peer, id: u64) -> Result<Option<&mut Send>, Nonsense> {
        match self.requests.get_mut(id) {
            Some(Request { state: State::Send(send), .. }) => {
                let waits = send.peer == peer && matches!(send.step, SendStep::Answer { .. });
                if waits { Ok(Some(send)) } else { Err(Nonsense) }
            }
            _ => {
                self.stats.nonsense += 1;
                Ok(None)
            }
        }
    }

    /// A peer wants its message back. If it is matched there is nothing to say: the answer to the message
    /// itself is on its way.
    fn cancelled(&mut self, peer: Peer, ctx: u64, sender: u64) -> Result<(), Nonsense> {
        let Some(context) = self.contexts.find(ctx) else { return Ok(()) };
        let unexpected = &mut context.tagged.unexpected;
        let of_sender =
            |id: u64| self.messages.get(id).is_some_and(|m| m.peer == peer && m.sender() == Some(sender));
        let Some((place, id)) = unexpected.places().find(|&(_, id)| of_sender(id)) else { return Ok(()) };
        unexpected.remove(place);
        if let Some(message) = self.messages.remove(id) {
            self.release(peer, message.body);
        }
        self.owe(peer, Reply::bare(Kind::Cancelled, sender, 0));
        Ok(())
    }

    /// A peer ran out of credit: what is owed goes back at once, and more is lent if there is any.
    fn relieve(&mut self, peer: Peer) {
        let link = self.peers.at(peer, &mut self.bank);
        if !self.bank.grow(&mut link.loan) {
            self.recall();
        } else if !std::mem::replace(&mut link.borrower, true) {
            self.borrowers.push_back(peer);
        }
        let link = self.peers.at(peer, &mut self.bank);
        // Any reply takes credit along.
        if link.loan.returnable() > 0 && link.replies.is_empty() {
            self.owe(peer, Reply::bare(Kind::Credit, 0, 0));
        }
    }

    /// Asks a peer that was lent more than others, and is quiet, to give it back. Looks at a few only.
    fn recall(&mut self) {
        for _ in 0..self.borrowers.len().min(4) {
            let Some(peer) = self.borrowers.pop_front() else { return };
            let link = self.peers.at(peer, &mut self.bank);
            if link.loan.active {
                link.loan.active = false;
                self.borrowers.push_back(peer);
                continue;
            }
            link.borrower = false;
            return self.owe(peer, Reply::bare(Kind::Recall, 0, 0));
        }
    }

    /// The peer wants credit back: all beyond the initial loan.
    fn recalled(&mut self, peer: Peer) -> Result<(), Nonsense> {
        let initial = self.bank.initial();
        let link = self.peers.at(peer, &mut self.bank);
        let units = link.credit.saturating_sub(initial);
        link.credit -= units;
        self.owe(peer, Reply::bare(Kind::Return, 0, u64::from(units)));
        Ok(())
    }

    fn given_back(&mut self, peer: Peer, units: u32) -> Result<(), Nonsense> {
        let link = self.peers.at(peer, &mut self.bank);
        self.bank.take_back(&mut link.loan, units).then_some(()).ok_or(Nonsense)
    }
}

/// The link of a peer that is there, with the credit that its frame brings back.
#[inline(always)]
fn credited<'a>(link: &'a mut Link, head: &Head) -> Result<Option<&'a mut Link>, Nonsense> {
    if link.down.is_some() {
        return Ok(None);
    }
    link.credit += u32::from(head.aux);
    link.heard = true;
    if link.credit > MOST_CREDIT { Err(Nonsense) } else { Ok(Some(link)) }
}

/// Takes the posted receive that a message belongs to.
#[inline(always)]
fn match_posted(contexts: &mut Contexts, peer: Peer, head: &Head) -> Option<u64> {
    let (src, tag) = key(peer, head);
    contexts.at(head.ctx).side(head.class).posted.take(src, tag)
}

/// Source and tag as matching takes them.
#[inline]
pub(crate) fn key(peer: Peer, head: &Head) -> (u32, u64) {
    match head.class {
        Class::Coll => (peer.0, wire::wide(head)),
        _ => (head.b, wide_tag(head.a as i32)),
    }
}
