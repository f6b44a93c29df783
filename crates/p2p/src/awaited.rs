//! [`Awaiting`]: a receive whose caller stands at the fabric, and is not posted as long as it does.
//!
//! It counts as posted last: it has the engine to itself, so nothing is posted after it. It takes the first message
//! that fits and that no posted receive takes, if that comes whole. An offer is kept as unexpected, where
//! [`Engine::recv`] finds it.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Get, Head, Peer, Sink, Token};

use crate::engine::{Engine, wide_tag};
use crate::payload;
use crate::request;
use crate::types::{Completion, RecvArgs};

/// A sink for the frames that arrive while a caller waits for one of them.
#[derive(Debug)]
pub struct Awaiting<'a> {
    engine: &'a mut Engine,
    awaited: Awaited<'a>,
}

/// The receive.
#[derive(Debug)]
pub(crate) struct Awaited<'a> {
    ctx: u64,
    source: Option<u32>,
    tag: Option<i32>,
    data: &'a Data,
    state: State,
}

#[derive(Debug)]
enum State {
    Open,
    Offered,
    Received(Completion),
}

impl<'a> Awaiting<'a> {
    /// `None` if a message that fits is here already: [`Engine::recv`] takes it.
    #[inline(always)]
    pub fn new(engine: &'a mut Engine, m: RecvArgs<'a>) -> Option<Self> {
        let source = m.src.map(|(rank, _)| rank);
        let unexpected = &mut engine.contexts.at(m.ctx).tagged.unexpected;
        if unexpected.find(source, m.tag.map(wide_tag)).is_some() {
            return None;
        }
        let awaited = Awaited { ctx: m.ctx, source, tag: m.tag, data: m.data, state: State::Open };
        Some(Self { engine, awaited })
    }

    /// It did not come yet, and the engine has nothing to do that would have to be done first.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        matches!(self.awaited.state, State::Open) && !self.engine.has_work()
    }

    /// The outcome, if the message came. Otherwise the receive never was.
    #[inline(always)]
    pub fn end(&self) -> Option<&Completion> {
        match &self.awaited.state {
            State::Received(completion) => Some(completion),
            State::Open | State::Offered => None,
        }
    }
}

impl Sink for Awaiting<'_> {
    #[inline(always)]
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.engine.accept(peer, head, body, Some(&mut self.awaited));
    }

    fn place(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.engine.place(peer, head, len)
    }

    fn placed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.engine.placed(peer, head, len);
    }

    fn got(&mut self, token: Token, outcome: Get) {
        self.engine.got(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        self.engine.down(peer, cause);
    }
}

impl Awaited<'_> {
    /// The message of this envelope is what is waited for.
    #[inline(always)]
    pub(crate) fn fits(&self, head: &Head) -> bool {
        matches!(self.state, State::Open)
            && head.class == Class::P2p
            && head.ctx == self.ctx
            && self.source.is_none_or(|source| source == head.b)
            && self.tag.is_none_or(|tag| tag == head.a as i32)
    }

    #[inline(always)]
    pub(crate) fn receive(&mut self, source: u32, tag: i32, body: &[u8]) {
        let wanted = payload::unpack(self.data, 0, body);
        self.state = State::Received(request::received(source, tag, body.len() as u64, wanted as u64));
    }

    /// What was waited for is an offer: nothing after it may be taken.
    pub(crate) fn offered(&mut self) {
        self.state = State::Offered;
    }
}
