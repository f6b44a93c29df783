//! The receiver's side: receives are posted, take unexpected messages, and fetch those that an RTS announced.

use banyan_datatype::Data;
use banyan_memory::{Buffer, DeviceFailure, HeapBuffer};
use banyan_transport::{Class, DeviceMoves, Kinds, Outcome, Peer, Port, Remote, Token, Transfer};

use crate::credit;
use crate::grants;
use crate::p2p::{P2p, list, wide_tag};
use crate::payload;
use crate::peers::RtsOwner;
use crate::request::{
    self, Body, Fragments, Matched, Message, Pieces, Read, Recv, RecvStep, Reply, Request, State,
};
use crate::staging::{self, Incoming};
use crate::types::Choice;
use crate::types::{MsgId, RecvArgs, ReqId, Started};
use crate::ways::Way;
use crate::wire::{Cts, Kind, Offer, Rts};

/// Into memory in many short pieces a message is read through a buffer of so many bytes.
const PIECE: u64 = 256 << 10;

/// A longer message that came whole before its receive is not waited for while a device copies it. Of shorter ones that is quicker than to ask.
const LONGEST_WAITED: usize = 32 << 10;

/// Bytes that are read from a peer's memory before anybody looks again at what it has sent.
const TURN: u64 = 128 << 10;

/// Which messages a receive matches, tagged or keyed.
struct Criteria {
    peer: Option<Peer>,
    ctx: u64,
    class: Class,
    src: Option<u32>,
    tag: Option<u64>,
}

impl P2p {
    /// Receives a message with a tag.
    #[inline]
    pub fn recv(&mut self, port: &mut impl Port, m: RecvArgs) -> Started {
        let (src, peer) = m.src.unzip();
        let tag = m.tag.map(wide_tag);
        self.receive(port, Criteria { peer, ctx: m.ctx, class: Class::P2p, src, tag }, m.data)
    }

    /// Receives the message of `peer` with this key, as schedules of collectives do.
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
        self.receive(port, Criteria { peer: Some(peer), ctx, class: Class::Coll, src, tag }, data)
    }

    /// Receives a message taken by [`P2p::mprobe`] (MPI_Imrecv); `None` if there is no such message, or not any more.
    pub fn mrecv(&mut self, port: &mut impl Port, message: MsgId, data: &Data) -> Option<Started> {
        let message = self.messages.remove(message.0)?;
        Some(self.take(port, message, 0, Class::P2p, data))
    }

    #[inline]
    fn receive(&mut self, port: &mut impl Port, criteria: Criteria, data: &Data) -> Started {
        let side = self.contexts.at(criteria.ctx).side(criteria.class);
        if let Some((entry, id)) = side.unexpected.find(criteria.src, criteria.tag) {
            side.unexpected.remove(entry);
            if let Some(message) = self.messages.remove(id) {
                return self.take(port, message, criteria.ctx, criteria.class, data);
            }
        }
        self.post(criteria, data)
    }

    #[inline]
    fn post(&mut self, criteria: Criteria, data: &Data) -> Started {
        let Criteria { peer, ctx, class, src, tag } = criteria;
        let named = tag.filter(|_| class == Class::P2p).map(|tag| tag as i32);
        if let Some(peer) = peer
            && let Some(cause) = &self.peers.at(peer, &mut self.credit_pool).down
        {
            let blank = request::received(src.unwrap_or(0), named.unwrap_or(0), 0, 0);
            return Started::Done(request::lost(peer, cause, blank));
        }
        if peer.is_none()
            && let Some((peer, cause)) = self.contexts.at(ctx).failed.take()
        {
            return Started::Done(request::lost(
                peer,
                &cause,
                request::received(0, named.unwrap_or(0), 0, 0),
            ));
        }
        if class == Class::P2p && !self.holders.is_empty() {
            self.ask_for_more(peer);
        }
        let posted = &mut self.contexts.at(ctx).side(class).posted;
        let id = self.requests.insert_with(|id| {
            let step = RecvStep::AwaitMatch { entry: posted.push(src, tag, id) };
            Request::new(State::Recv(Recv { peer, ctx, class, tag: named, data: data.clone(), step }))
        });
        Started::Pending(ReqId(id))
    }

    /// Receives an unexpected message.
    fn take(
        &mut self,
        port: &mut impl Port,
        message: Message,
        ctx: u64,
        class: Class,
        data: &Data,
    ) -> Started {
        let sender = message.sender();
        let Message { peer, source, tag, body } = message;
        let started = match body {
            Body::Rts { rts, fragments } => {
                let here = fragments.as_ref().map_or(0, |fragments| fragments.bytes);
                let down = self.peers.at(peer, &mut self.credit_pool).down.clone();
                if let Some(cause) = down.filter(|_| here < rts.total) {
                    self.release_fragments(peer, fragments);
                    return Started::Done(request::lost(peer, &cause, request::received(source, tag, 0, 0)));
                }
                let step = RecvStep::AwaitMatch { entry: 0 };
                let recv = Recv { peer: Some(peer), ctx, class, tag: Some(tag), data: data.clone(), step };
                let id = self.requests.insert(Request::new(State::Recv(recv)));
                self.fetch(id, peer, source, tag, rts, fragments);
                Started::Pending(ReqId(id))
            }
            whole if staging::is_staged(data) && whole.payload().len() > LONGEST_WAITED => {
                let id = self.take_to_device((peer, ctx, class), (source, tag), whole.payload(), data);
                self.received_late(peer, whole, sender);
                Started::Pending(id)
            }
            whole => {
                let payload = whole.payload();
                let completion = match staging::is_staged(data) {
                    true => request::delivered_to_device(data, (source, tag), payload),
                    false => {
                        let accepted = payload::unpack(data, 0, payload);
                        request::received(source, tag, payload.len() as u64, accepted as u64)
                    }
                };
                self.received_late(peer, whole, sender);
                Started::Done(completion)
            }
        };
        if self.peers.at(peer, &mut self.credit_pool).listed {
            self.flush(port, peer);
        }
        match started {
            Started::Pending(id) => self.test(id).map_or(Started::Pending(id), Started::Done),
            done => done,
        }
    }

    /// Receives a whole message that was kept, by way of a bounce buffer from which a device copies it.
    fn take_to_device(
        &mut self,
        (peer, ctx, class): (Peer, u64, Class),
        (source, tag): (u32, i32),
        payload: &[u8],
        data: &Data,
    ) -> ReqId {
        let (total, mut staged) = (payload.len() as u64, Incoming::default());
        let accepted = total.min(data.len());
        staged.place(data, accepted, 0, &payload[..accepted as usize]);
        let message = Matched { peer, sender: 0, source, tag, total, accepted, chosen: None };
        let pieces = Pieces { message, received: accepted, granted: None, staged };
        let step = RecvStep::AwaitPieces(Box::new(pieces));
        let recv = Recv { peer: Some(peer), ctx, class, tag: Some(tag), data: data.clone(), step };
        let id = self.requests.insert(Request::new(State::Recv(recv)));
        self.all_here(id, &message);
        ReqId(id)
    }

    /// A whole message is where it belongs, or is copied from elsewhere.
    fn received_late(&mut self, peer: Peer, whole: Body, sender: Option<u64>) {
        self.release(peer, whole);
        if let Some(sender) = sender {
            self.owe(peer, Reply::bare(Kind::Fin, sender, 0));
        }
    }

    /// Frees what was kept of an unexpected message, and owes its sender the credit.
    pub(crate) fn release(&mut self, peer: Peer, body: Body) {
        match body {
            Body::Short { len, .. } => {
                self.pool.discount(len.into());
                self.paid_back(peer, credit::cost(len.into()));
            }
            Body::Whole { payload, .. } => self.release_frame(peer, payload),
            Body::Rts { fragments, .. } => self.release_fragments(peer, fragments),
        }
    }

    /// Frees the fragments that were kept with an RTS, and owes their sender the credit.
    fn release_fragments(&mut self, peer: Peer, fragments: Option<Box<Fragments>>) {
        fragments
            .into_iter()
            .flat_map(|fragments| fragments.frames)
            .for_each(|frame| self.release_frame(peer, frame));
    }

    fn release_frame(&mut self, peer: Peer, frame: Vec<u8>) {
        let units = credit::cost(frame.len());
        self.pool.give_back(frame);
        self.paid_back(peer, units);
    }

    /// A message of `peer` that cost `units` left this process's memory, or was never kept.
    #[inline]
    pub(crate) fn paid_back(&mut self, peer: Peer, units: u32) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.down.is_some() {
            return self.credit_pool.write_off(&mut link.loan, units);
        }
        link.loan.used(units);
        if link.loan.is_due() {
            list(&mut self.work, link);
        }
    }

    /// Receive `id` is matched with an RTS and the fragments that are here: unpacks these; then reads the rest, or asks
    /// for it, or lets it come.
    pub(crate) fn fetch(
        &mut self,
        id: u64,
        peer: Peer,
        source: u32,
        tag: i32,
        rts: Rts,
        fragments: Option<Box<Fragments>>,
    ) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return debug_assert!(false, "a receive that has just been matched is under way");
        };
        let accepted = rts.total.min(recv.data.len());
        let chosen = self.chosen(peer, &rts, fragments.is_some());
        let past = matches!(self.choice, Choice::Fixed(Way::NonTemporal))
            || chosen.is_some_and(|chosen| chosen.way == Way::NonTemporal);
        let message = Matched { peer, sender: rts.id, source, tag, total: rts.total, accepted, chosen };
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return debug_assert!(false, "the receive was under way above");
        };
        recv.peer = Some(peer);
        let (mut received, mut staged) = (0, Incoming::copied(past));
        for frame in fragments.iter().flat_map(|fragments| &fragments.frames) {
            let fits = (frame.len() as u64).min(accepted - received);
            staged.place(&recv.data, accepted, received, &frame[..fits as usize]);
            received += fits;
        }
        self.release_fragments(peer, fragments);
        let link = self.peers.at(peer, &mut self.credit_pool);
        if let Some(open_rts) = link.open_rts.as_mut().filter(|open_rts| open_rts.sender == rts.id) {
            open_rts.owner = RtsOwner::Receive(id);
        }
        if received == accepted {
            if !rts.pushed {
                self.owe(peer, Reply::bare(Kind::Fin, rts.id, 0));
            }
            self.await_pieces(id, message, (received, staged), false);
            return self.all_here(id, &message);
        }
        let Some(region) = rts
            .region()
            .filter(|_| link.is_worth_reading(rts.offer == Offer::Device) || rts.way == Way::Write)
        else {
            return self.await_pieces(id, message, (received, staged), !rts.pushed);
        };
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return debug_assert!(false, "the receive was under way above");
        };
        let (way, end, device) = (rts.way, accepted, rts.offer == Offer::Device);
        let read =
            Read { message, region, device, way, end, rest: None, done: 0, reading: 0, piece: None, staged };
        recv.step = RecvStep::AwaitRead(Box::new(read));
        link.reads.push_back(id);
        list(&mut self.work, link);
    }

    /// The message of receive `id` comes in pieces; `ask` for them with a CTS if they do not come anyway.
    fn await_pieces(&mut self, id: u64, message: Matched, (received, staged): (u64, Incoming), ask: bool) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return debug_assert!(false, "both callers have just found the receive under way");
        };
        recv.step = RecvStep::AwaitPieces(Box::new(Pieces { message, received, granted: None, staged }));
        let to_device = staging::is_staged(&recv.data);
        if ask {
            let cts = Cts { id, room: message.accepted, grant: None, to_device };
            self.owe(message.peer, cts.reply(message.sender));
        }
    }

    /// Starts the reads of a peer's memory that are next; gives how many. Once [`TURN`] bytes were read at once the rest waits for
    /// the next call: what the peer sends meanwhile may be an answer, or a request that it waits for.
    pub(crate) fn start_reads(&mut self, port: &mut impl Port, peer: Peer) -> usize {
        let (mut started, mut bytes) = (0, 0);
        while bytes < TURN {
            if let Some((together, len)) = self.read_together(port, peer, TURN - bytes) {
                (started, bytes) = (started + together, bytes + len);
                continue;
            }
            let Some(id) = self.peers.at(peer, &mut self.credit_pool).reads.pop_front() else { break };
            started += 1;
            if self.is_read_full(id) {
                self.peers.at(peer, &mut self.credit_pool).reads.push_front(id);
                return started;
            }
            if self.grant(port, id) {
                continue;
            }
            let (transfer, len) = self.read(port, id, port.caps(peer).get);
            bytes += len;
            match transfer {
                Transfer::Started => {}
                Transfer::Done => self.read_over(id, Outcome::Done),
                Transfer::Impossible => self.read_over(id, Outcome::Impossible),
                Transfer::Busy => {
                    self.stats.busy += 1;
                    self.peers.at(peer, &mut self.credit_pool).reads.push_front(id);
                    return started - 1;
                }
            }
        }
        started
    }

    /// Reads several messages of a peer together, up to the one that makes it `most` bytes; gives how many messages, and how many bytes. `None` if
    /// only one is next, or if what is next has its own way.
    fn read_together(&mut self, port: &mut impl Port, peer: Peer, most: u64) -> Option<(usize, u64)> {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.reads.len() < 2 {
            return None;
        }
        let (requests, mut bytes) = (&self.requests, 0);
        let mut gets = link.reads.iter().map_while(|&id| {
            let get = requests.get(id).filter(|_| bytes < most).and_then(read_by_itself)?;
            bytes += get.0.len;
            Some(get)
        });
        let together = port.get_together(peer, &mut gets);
        for _ in 0..together {
            let Some(id) = self.peers.at(peer, &mut self.credit_pool).reads.pop_front() else { break };
            if let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id)
                && let RecvStep::AwaitRead(read) = &mut recv.step
            {
                read.reading = read.end - read.done;
            }
            self.read_over(id, Outcome::Done);
        }
        (together > 0).then_some((together, bytes))
    }

    /// Reads the message of receive `id`, or the next piece of it; gives how many bytes, too.
    fn read(&mut self, port: &mut impl Port, id: u64, readable: Kinds) -> (Transfer, u64) {
        if !readable.has(Kinds::HOST) {
            return (Transfer::Impossible, 0);
        }
        // A receive that was given up is still in the queue of reads; `read_over` does not find it either.
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return (Transfer::Started, 0);
        };
        let RecvStep::AwaitRead(read) = &mut recv.step else {
            debug_assert!(false, "a receive in the queue of reads awaits one");
            return (Transfer::Started, 0);
        };
        // Where a network's device may reach the memory itself, the fabric says of each whether it does.
        let by_network =
            staging::is_staged(&recv.data) && port.device_moves(read.message.peer) == DeviceMoves::ByNetwork;
        let Read { message, region: (addr, key), device, end, done, reading, piece, .. } = &mut **read;
        let left = *end - *done;
        let mut get = |local: &[Buffer], reading: &mut u64| {
            *reading = local.iter().map(|local| local.len() as u64).sum();
            let remote = Remote { addr: addr.wrapping_add(*done), len: *reading, key: *key };
            (port.get(message.peer, remote, local, Token(id)), remote.len)
        };
        let reached = *device || readable.has(Kinds::of(recv.data.buffer().kind()));
        if let Some((memory, start)) = recv.data.piece().filter(|_| reached) {
            *piece = None;
            return get(&[memory.slice(start + *done as isize, left as usize)], reading);
        }
        if let Some(runs) = payload::runs(&recv.data, *done, left).filter(|_| reached || by_network) {
            *piece = None;
            let got = get(&runs, reading);
            if reached || got.0 != Transfer::Impossible {
                return got;
            }
        }
        let len = left.min(PIECE) as usize;
        let room = || recv.data.buffer().bounce_buffer().unwrap_or_else(|| HeapBuffer::zeroed(len));
        let local = piece.get_or_insert_with(room).slice(0, len);
        get(&[local], reading)
    }

    /// What became of a read of receive `id`.
    pub(crate) fn read_over(&mut self, id: u64, outcome: Outcome) {
        // The receive may be gone, with its peer or because it was given up: the outcome is late.
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        let RecvStep::AwaitRead(read) = &mut recv.step else { return };
        let Read { message, device, end, rest, done, reading, piece, staged, .. } = &mut **read;
        let (message, device) = (*message, *device);
        match outcome {
            Outcome::Impossible => {
                self.stats.get_refused += 1;
                let link = self.peers.at(message.peer, &mut self.credit_pool);
                let refusals = if device { &mut link.refused_devices } else { &mut link.refused_reads };
                *refusals = refusals.saturating_add(1);
                let refused = !link.is_readable();
                if let Some(long) = link.long.as_mut().filter(|_| refused) {
                    long.refuse(&[Way::Read, Way::Both]);
                }
                match rest {
                    Some(rest) => {
                        rest.unreadable = true;
                        self.half_over(id);
                    }
                    None => self.await_pieces(id, message, (0, Incoming::default()), true),
                }
            }
            Outcome::Done => {
                match piece {
                    Some(_) if staging::is_staged(&recv.data) => {
                        piece.take().iter().for_each(|piece| staged.copy(&recv.data, *done, piece, *reading));
                    }
                    Some(piece) => payload::scatter(&recv.data, *done, piece, *reading as usize),
                    None => {}
                }
                *done += *reading;
                if *done < *end {
                    let link = self.peers.at(message.peer, &mut self.credit_pool);
                    link.reads.push_back(id);
                    return list(&mut self.work, link);
                }
                self.stats.gets += 1;
                let (halved, in_place) = (rest.is_some(), staged.is_none());
                if !halved && !in_place {
                    let (received, staged) = (message.accepted, std::mem::take(staged));
                    let pieces = Pieces { message, received, granted: None, staged };
                    recv.step = RecvStep::AwaitPieces(Box::new(pieces));
                }
                let link = self.peers.at(message.peer, &mut self.credit_pool);
                *(if device { &mut link.refused_devices } else { &mut link.refused_reads }) = 0;
                if halved {
                    return self.half_over(id);
                }
                self.owe(message.peer, Reply::bare(Kind::Fin, message.sender, 0));
                self.all_here(id, &message);
            }
        }
    }

    /// True if receive `id`, which reads, waits until a device has copied what was read.
    fn is_read_full(&mut self, id: u64) -> bool {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return false };
        let RecvStep::AwaitRead(read) = &mut recv.step else { return false };
        staging::is_staged(&recv.data) && read.staged.is_full()
    }

    /// All bytes of receive `id` are in this process: it is over, unless a device still copies some of them.
    pub(crate) fn all_here(&mut self, id: u64, message: &Matched) {
        match self.is_in_place(id) {
            Ok(true) => return self.received_all(id, message),
            Ok(false) => {}
            Err(failure) => return self.finish(id, request::not_copied(&failure, message.completion())),
        }
        let link = self.peers.at(message.peer, &mut self.credit_pool);
        link.staged.push_back(id);
        list(&mut self.work, link);
    }

    /// True if a device copies nothing of receive `id` any more, all of whose bytes are here; else why it does not.
    fn is_in_place(&mut self, id: u64) -> Result<bool, DeviceFailure> {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return Ok(true);
        };
        let RecvStep::AwaitPieces(pieces) = &mut recv.step else { return Ok(true) };
        pieces.staged.finish(&recv.data);
        let over = pieces.staged.is_over();
        pieces.staged.take_failure().map_or(Ok(over), Err)
    }

    /// Ends the receives from this peer of which devices have copied all; gives how many there were and are, so that nobody sleeps while
    /// there are any.
    pub(crate) fn await_devices(&mut self, peer: Peer) -> usize {
        let waiting = self.peers.at(peer, &mut self.credit_pool).staged.len();
        for _ in 0..waiting {
            let Some(id) = self.peers.at(peer, &mut self.credit_pool).staged.pop_front() else { break };
            // One that was given up is over.
            let Some(Request { state: State::Recv(recv), .. }) = self.requests.get(id) else { continue };
            let RecvStep::AwaitPieces(pieces) = &recv.step else { continue };
            let message = pieces.message;
            self.all_here(id, &message);
        }
        waiting
    }
}

/// What is to be read for a receive, and the memory for it, if that is host memory in one piece and nobody else has a part in it.
fn read_by_itself(request: &Request) -> Option<(Remote, Buffer)> {
    let Request { state: State::Recv(recv), .. } = request else { return None };
    let RecvStep::AwaitRead(read) = &recv.step else { return None };
    let Read { message, region: (addr, key), device: false, way, end, rest: None, done, .. } = &**read else {
        return None;
    };
    let (memory, start) = recv.data.piece().filter(|(memory, _)| Kinds::of(memory.kind()) == Kinds::HOST)?;
    if grants::first_written(message, *way).is_some() {
        return None;
    }
    let remote = Remote { addr: addr.wrapping_add(*done), len: end - done, key: *key };
    Some((remote, memory.slice(start + *done as isize, remote.len as usize)))
}
