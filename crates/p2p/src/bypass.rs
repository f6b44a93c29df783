//! [`ReceiveBypass`]: a receive that is not posted while its caller polls the fabric and takes the message from there.
//!
//! It counts as posted last: it borrows [`P2p`], so nothing is posted after it. It takes the first message
//! that matches it and no posted receive, if that comes whole. An RTS is kept as unexpected, where
//! [`P2p::recv`] finds it.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Head, Outcome, Peer, Sink, Token};

use crate::p2p::{P2p, wide_tag};
use crate::payload;
use crate::request;
use crate::staging;
use crate::types::{Completion, RecvArgs};
use crate::wire;

/// A sink for the frames that arrive while a caller waits for one of them. Frames of other messages are treated as usual;
/// frames of classes that are not those of messages go to `others`.
#[derive(Debug)]
pub struct ReceiveBypass<'a, F> {
    p2p: &'a mut P2p,
    bypass: BypassedReceive<'a>,
    others: F,
}

/// The receive of a [`ReceiveBypass`].
#[derive(Debug)]
pub(crate) struct BypassedReceive<'a> {
    ctx: u64,
    source: Option<u32>,
    tag: Option<i32>,
    data: &'a Data,
    state: State,
}

#[derive(Debug)]
enum State {
    Open,
    RtsArrived,
    Received(Completion),
}

impl<'a, F> ReceiveBypass<'a, F> {
    /// `None` if a message that fits is here already: [`P2p::recv`] takes it.
    #[inline(always)]
    pub fn new(p2p: &'a mut P2p, m: RecvArgs<'a>, others: F) -> Option<Self> {
        let source = m.src.map(|(rank, _)| rank);
        let unexpected = &mut p2p.contexts.at(m.ctx).tagged.unexpected;
        if unexpected.find(source, m.tag.map(wide_tag)).is_some() {
            return None;
        }
        let bypass = BypassedReceive { ctx: m.ctx, source, tag: m.tag, data: m.data, state: State::Open };
        Some(Self { p2p, bypass, others })
    }

    /// True while the message has not come, and [`P2p::progress`] has nothing to do first.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        matches!(self.bypass.state, State::Open) && !self.p2p.has_work()
    }

    /// The outcome, if the message came whole. `None`: nothing was received and nothing is posted.
    #[inline(always)]
    pub fn end(self) -> Option<Completion> {
        match self.bypass.state {
            State::Received(completion) => Some(completion),
            State::Open | State::RtsArrived => None,
        }
    }
}

impl<F: FnMut(Peer, &Head, &[u8])> Sink for ReceiveBypass<'_, F> {
    #[inline(always)]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        match wire::is_of_messages(head.class) {
            true => self.p2p.accept(peer, head, body, Some(&mut self.bypass)),
            false => (self.others)(peer, head, body),
        }
    }

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.p2p.landing(peer, head, len)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.p2p.landed(peer, head, len);
    }

    fn sent(&mut self, token: Token) {
        self.p2p.sent(token);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.p2p.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.p2p.down(peer, cause);
    }
}

impl BypassedReceive<'_> {
    /// Whether the message of this envelope is the one that is waited for.
    #[inline(always)]
    pub(crate) fn fits(&self, head: &Head) -> bool {
        // `&` has all of it looked at, which takes less time than a branch for each.
        matches!(self.state, State::Open)
            & (head.class == Class::P2p)
            & (head.ctx == self.ctx)
            & (self.source.unwrap_or(head.b) == head.b)
            & (self.tag.unwrap_or(head.a as i32) == head.a as i32)
    }

    /// Takes the whole message, which [fits](Self::fits), and copies it past the caches, or not.
    #[inline(always)]
    pub(crate) fn receive(&mut self, head: &Head, body: &[u8], past: bool) {
        let (source, tag) = (head.b, head.a as i32);
        if !body.is_empty() && staging::is_staged(self.data) {
            return self.receive_to_device(source, tag, body);
        }
        let accepted = payload::unpack_by(past, self.data, 0, body);
        let received = request::received(source, tag, body.len() as u64, accepted as u64);
        // It was open, and has nothing to drop, for which an assignment would look.
        std::mem::forget(std::mem::replace(&mut self.state, State::Received(received)));
    }

    #[cold]
    #[inline(never)]
    fn receive_to_device(&mut self, source: u32, tag: i32, body: &[u8]) {
        self.state = State::Received(request::delivered_to_device(self.data, (source, tag), body));
    }

    /// The message that is waited for comes by RTS: no later one may be taken.
    pub(crate) fn rts_arrived(&mut self) {
        self.state = State::RtsArrived;
    }
}
