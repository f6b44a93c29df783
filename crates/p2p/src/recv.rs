//! The receiver's side: posting, taking messages that are here, fetching those that are offered.

use banyan_datatype::Data;
use banyan_memory::Scratch;
use banyan_transport::{Caps, Class, Get, Peer, Remote, Token};

use crate::credit;
use crate::engine::{Engine, list, wide_tag};
use crate::payload;
use crate::peers::Taker;
use crate::port::Port;
use crate::request::{
    self, Body, Early, Matched, Message, Pieces, Read, Recv, RecvStep, Reply, Request, State,
};
use crate::types::{MsgId, RecvArgs, ReqId, Started};
use crate::wire::{Cts, Kind, Rts};

/// Scattered messages are read in pieces of so many bytes.
const PIECE: u64 = 256 << 10;

/// What a receive asks for, of either kind.
struct Wanted {
    peer: Option<Peer>,
    ctx: u64,
    class: Class,
    src: Option<u32>,
    tag: Option<u64>,
}

impl Engine {
    /// Receives a message with a tag.
    #[inline]
    pub fn recv(&mut self, port: &mut impl Port, m: RecvArgs) -> Started {
        let (src, peer) = m.src.unzip();
        let tag = m.tag.map(wide_tag);
        self.receive(port, Wanted { peer, ctx: m.ctx, class: Class::P2p, src, tag }, m.data)
    }

    /// Receives the message of `peer` with this key.
    #[inline]
    pub fn recv_keyed(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        ctx: u64,
        key: u64,
        data: &Data,
    ) -> Started {
        let (src, tag) = (Some(peer.0), Some(key));
        self.receive(port, Wanted { peer: Some(peer), ctx, class: Class::Coll, src, tag }, data)
    }

    /// Receives a message taken by [`Engine::mprobe`]; `None` if there is no such message (any more).
    pub fn mrecv(&mut self, port: &mut impl Port, message: MsgId, data: &Data) -> Option<Started> {
        let message = self.messages.remove(message.0)?;
        Some(self.take(port, message, 0, Class::P2p, data))
    }

    #[inline]
    fn receive(&mut self, port: &mut impl Port, want: Wanted, data: &Data) -> Started {
        let side = self.contexts.at(want.ctx).side(want.class);
        if let Some((place, id)) = side.unexpected.find(want.src, want.tag) {
            side.unexpected.remove(place);
            if let Some(message) = self.messages.remove(id) {
                return self.take(port, message, want.ctx, want.class, data);
            }
        }
        self.post(want, data)
    }

    #[inline]
    fn post(&mut self, want: Wanted, data: &Data) -> Started {
        let Wanted { peer, ctx, class, src, tag } = want;
        let named = tag.filter(|_| class == Class::P2p).map(|tag| tag as i32);
        if let Some(peer) = peer
            && let Some(cause) = &self.peers.at(peer, &mut self.bank).down
        {
            let blank = request::received(src.unwrap_or(0), named.unwrap_or(0), 0, 0);
            return Started::Done(request::lost(peer, cause, blank));
        }
        if class == Class::P2p && !self.holders.is_empty() {
            self.ask_for_more(peer);
        }
        let posted = &mut self.contexts.at(ctx).side(class).posted;
        let id = self.requests.insert_with(|id| {
            let step = RecvStep::Match { place: posted.push(src, tag, id) };
            Request::new(State::Recv(Recv { peer, ctx, class, tag: named, data: data.clone(), step }))
        });
        Started::Pending(ReqId(id))
    }

    /// Receives a message that no receive had been waiting for.
    fn take(
        &mut self,
        port: &mut impl Port,
        message: Message,
        ctx: u64,
        class: Class,
        data: &Data,
    ) -> Started {
        let waits = message.sender();
        let Message { peer, source, tag, body } = message;
        let started = match body {
            Body::Offer { rts, early } => {
                let here = early.as_ref().map_or(0, |early| early.bytes);
                let down = self.peers.at(peer, &mut self.bank).down.clone();
                if let Some(cause) = down.filter(|_| here < rts.total) {
                    self.release_early(peer, early);
                    return Started::Done(request::lost(peer, &cause, request::received(source, tag, 0, 0)));
                }
                let step = RecvStep::Match { place: 0 };
                let recv = Recv { peer: Some(peer), ctx, class, tag: Some(tag), data: data.clone(), step };
                let id = self.requests.insert(Request::new(State::Recv(recv)));
                self.fetch(id, peer, source, tag, rts, early);
                Started::Pending(ReqId(id))
            }
            whole => {
                let payload = whole.payload();
                let wanted = payload::unpack(data, 0, payload);
                let completion = request::received(source, tag, payload.len() as u64, wanted as u64);
                self.release(peer, whole);
                if let Some(sender) = waits {
                    self.owe(peer, Reply::bare(Kind::Taken, sender, 0));
                }
                Started::Done(completion)
            }
        };
        if self.peers.at(peer, &mut self.bank).listed {
            self.flush(port, peer);
        }
        match started {
            Started::Pending(id) => self.test(id).map_or(Started::Pending(id), Started::Done),
            done => done,
        }
    }

    /// What was kept of an unexpected message is not needed any more.
    pub(crate) fn release(&mut self, peer: Peer, body: Body) {
        match body {
            Body::Short { len, .. } => {
                self.pool.discount(len.into());
                self.paid_back(peer, credit::cost(len.into()));
            }
            Body::Whole { payload, .. } => self.release_frame(peer, payload),
            Body::Offer { early, .. } => self.release_early(peer, early),
        }
    }

    /// The same of what had followed an offer.
    fn release_early(&mut self, peer: Peer, early: Option<Box<Early>>) {
        early.into_iter().flat_map(|early| early.frames).for_each(|frame| self.release_frame(peer, frame));
    }

    fn release_frame(&mut self, peer: Peer, frame: Vec<u8>) {
        let units = credit::cost(frame.len());
        self.pool.give_back(frame);
        self.paid_back(peer, units);
    }

    /// A message that cost `units` left memory, or never was put there.
    #[inline]
    pub(crate) fn paid_back(&mut self, peer: Peer, units: u32) {
        let link = self.peers.at(peer, &mut self.bank);
        if link.down.is_some() {
            return self.bank.forget(&mut link.loan, units);
        }
        link.loan.used(units);
        if link.loan.is_due() {
            list(&mut self.work, link);
        }
    }

    /// Receive `id` is matched with an offer, of which so much is here: takes it; reads the rest, or asks for it, or
    /// lets it come.
    pub(crate) fn fetch(
        &mut self,
        id: u64,
        peer: Peer,
        source: u32,
        tag: i32,
        rts: Rts,
        early: Option<Box<Early>>,
    ) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        let wanted = rts.total.min(recv.data.len());
        let message = Matched { peer, sender: rts.id, source, tag, total: rts.total, wanted };
        recv.peer = Some(peer);
        let mut received = 0;
        for frame in early.iter().flat_map(|early| &early.frames) {
            received += payload::unpack(&recv.data, received, frame) as u64;
        }
        self.release_early(peer, early);
        let link = self.peers.at(peer, &mut self.bank);
        if let Some(offer) = link.offer.as_mut().filter(|offer| offer.sender == rts.id) {
            offer.taker = Taker::Receive(id);
        }
        if received == wanted {
            if !rts.follows {
                self.owe(peer, Reply::bare(Kind::Taken, rts.id, 0));
            }
            return self.finish(id, message.completion());
        }
        let Some(region) = rts.region().filter(|_| link.is_readable()) else {
            return self.await_pieces(id, message, received, !rts.follows);
        };
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        recv.step = RecvStep::Read(Box::new(Read { message, region, done: 0, scratch: None }));
        link.reads.push_back(id);
        list(&mut self.work, link);
    }

    /// The message comes in pieces, if they are asked for.
    fn await_pieces(&mut self, id: u64, message: Matched, received: u64, ask: bool) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        recv.step = RecvStep::Pieces(Box::new(Pieces { message, received }));
        if !ask {
            return;
        }
        let cts = Cts { id, room: message.wanted };
        self.owe(message.peer, Reply::with(Kind::Cts, message.sender, &cts.encode()));
    }

    /// Starts the reads that are next.
    pub(crate) fn start_reads(&mut self, port: &mut impl Port, peer: Peer, caps: &Caps) -> usize {
        let mut started = 0;
        while let Some(id) = self.peers.at(peer, &mut self.bank).reads.pop_front() {
            started += 1;
            let outcome = if caps.get { self.read(port, id) } else { Get::Impossible };
            self.read_over(id, outcome);
        }
        started
    }

    /// Reads the message of receive `id`, or its next piece.
    fn read(&mut self, port: &mut impl Port, id: u64) -> Get {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return Get::Started;
        };
        let RecvStep::Read(read) = &mut recv.step else { return Get::Started };
        let Read { message, region: (addr, key), done, scratch } = &mut **read;
        let contiguous = recv.data.contiguous();
        let len = if contiguous.is_some() { message.wanted } else { (message.wanted - *done).min(PIECE) };
        let local = match contiguous {
            Some(memory) => memory.slice(memory.lo(), len as usize),
            None => scratch.get_or_insert_with(|| Scratch::zeroed(len as usize)).slice(0, len as usize),
        };
        let remote = Remote { addr: addr.wrapping_add(*done), len, key: *key };
        port.get(message.peer, remote, &local, Token(id))
    }

    /// A read of receive `id` is over (or goes on).
    pub(crate) fn read_over(&mut self, id: u64, outcome: Get) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        let RecvStep::Read(read) = &mut recv.step else { return };
        let Read { message, done, scratch, .. } = &mut **read;
        let message = *message;
        match outcome {
            Get::Started => {}
            Get::Impossible => {
                self.stats.get_refused += 1;
                let link = self.peers.at(message.peer, &mut self.bank);
                link.refused_reads = link.refused_reads.saturating_add(1);
                self.await_pieces(id, message, 0, true);
            }
            Get::Done => {
                let mut len = message.wanted - *done;
                if let Some(scratch) = scratch {
                    len = len.min(PIECE);
                    payload::scatter(&recv.data, *done, scratch, len as usize);
                }
                *done += len;
                if *done < message.wanted {
                    let link = self.peers.at(message.peer, &mut self.bank);
                    link.reads.push_back(id);
                    return list(&mut self.work, link);
                }
                self.stats.gets += 1;
                self.peers.at(message.peer, &mut self.bank).refused_reads = 0;
                self.owe(message.peer, Reply::bare(Kind::Taken, message.sender, 0));
                self.finish(id, message.completion());
            }
        }
    }
}
