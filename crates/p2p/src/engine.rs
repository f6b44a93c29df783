//! [`Engine`]: the state of all messages of a process, and the calls that do not send.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_transport::{Class, Head, Peer};

use crate::credit::Bank;
use crate::hash::Map;
use crate::matching::{Posted, Unexpected};
use crate::peers::{Link, Peers};
use crate::pool::Pool;
use crate::request::{self, Body, Message, Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::slab::Slab;
use crate::types::{Completion, Config, Envelope, MsgId, ReqId, Stats, Wait};
use crate::wire::Kind;

/// Frames of class Control that are kept between two rounds, and the bytes of one: a peer that sends more is not heard.
const MOST_CONTROLS: usize = 4096;
const MOST_CONTROL: usize = 256;

/// The messages of one process. Pure: frames leave through a [`crate::Port`], arrive through
/// [`banyan_transport::Sink`], and whatever a frame leaves owing is sent by [`Engine::progress`].
#[derive(Debug)]
pub struct Engine {
    pub(crate) contexts: Contexts,
    pub(crate) requests: Slab<Request>,
    pub(crate) messages: Slab<Message>,
    pub(crate) peers: Peers,
    pub(crate) bank: Bank,
    pub(crate) pool: Pool,
    /// Peers that something is owed to.
    pub(crate) work: VecDeque<Peer>,
    /// Peers that were lent more than the initial credit, the longest ago first.
    pub(crate) borrowers: VecDeque<Peer>,
    /// Peers that may hold messages back until they are asked for more.
    pub(crate) holders: Vec<Peer>,
    pub(crate) stats: Stats,
    /// Frames of class Control that came, until they are asked for.
    controls: Vec<(Peer, u64, Vec<u8>)>,
}

impl Engine {
    /// An engine without contexts.
    pub fn new(config: Config) -> Self {
        Self {
            contexts: Contexts::default(),
            requests: Slab::new(),
            messages: Slab::new(),
            peers: Peers::default(),
            bank: Bank::new(&config),
            pool: Pool::default(),
            work: VecDeque::new(),
            borrowers: VecDeque::new(),
            holders: Vec::new(),
            stats: Stats::default(),
            controls: Vec::new(),
        }
    }

    /// Frames of class Control that came: who sent each, its context, and its body.
    pub fn take_controls(&mut self) -> Vec<(Peer, u64, Vec<u8>)> {
        std::mem::take(&mut self.controls)
    }

    /// True if there are some.
    #[inline]
    pub fn has_controls(&self) -> bool {
        !self.controls.is_empty()
    }

    /// A frame of no message: kept for the runtime if it is small and not too many are, else dropped.
    #[cold]
    pub(crate) fn control(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        if head.class != Class::Control || self.controls.len() >= MOST_CONTROLS || body.len() > MOST_CONTROL {
            return self.stats.nonsense += 1;
        }
        self.controls.push((peer, head.ctx, body.to_vec()));
        // A round follows.
        let link = self.peers.at(peer, &mut self.bank);
        list(&mut self.work, link);
    }

    /// The communicator of this context exists now. Messages for it may have come before.
    pub fn open_context(&mut self, ctx: u64) {
        self.contexts.at(ctx);
    }

    /// The communicator is gone. Messages that nobody received are dropped (their senders are set free),
    /// receives that are still posted complete as cancelled.
    pub fn close_context(&mut self, ctx: u64) {
        let Some(context) = self.contexts.remove(ctx) else { return };
        for side in [context.tagged, context.keyed] {
            side.posted.ids().for_each(|id| self.finish_cancelled(id));
            side.unexpected.places().for_each(|(_, id)| self.discard(id));
        }
    }

    /// The outcome of a request that is done; frees it. `None` while it is not, and for ids that are not
    /// (or no longer) known.
    #[inline]
    pub fn test(&mut self, id: ReqId) -> Option<Completion> {
        let Some(Request { state: State::Done(done), .. }) = self.requests.get_mut(id.0) else { return None };
        let completion = Completion { fault: done.fault.take(), ..*done };
        self.requests.forget(id.0);
        Some(completion)
    }

    /// True if [`Engine::test`] would give an outcome.
    #[inline]
    pub fn is_done(&self, id: ReqId) -> bool {
        matches!(self.requests.get(id.0), Some(Request { state: State::Done(_), .. }))
    }

    /// True if the other side has come to a request under way: a receive that is matched, a send that was answered or needs
    /// no answer.
    pub fn is_met(&self, id: ReqId) -> bool {
        match self.requests.get(id.0).map(|request| &request.state) {
            Some(State::Recv(recv)) => !matches!(recv.step, RecvStep::Match { .. }),
            Some(State::Send(send)) => !matches!(send.step, SendStep::Leave { .. } | SendStep::Answer { .. }),
            _ => true,
        }
    }

    /// True if the request is known, and not done.
    #[inline]
    pub fn is_pending(&self, id: ReqId) -> bool {
        self.requests.get(id.0).is_some_and(|request| !matches!(request.state, State::Done(_)))
    }

    /// True if something in this context is under way.
    pub fn is_used(&self, ctx: u64) -> bool {
        self.requests.iter().any(|(_, request)| match &request.state {
            State::Send(send) => send.head.ctx == ctx,
            State::Recv(recv) => recv.ctx == ctx,
            State::Done(_) => false,
        })
    }

    /// The outcome of a request that is done, without freeing it (MPI_Request_get_status).
    pub fn peek(&self, id: ReqId) -> Option<&Completion> {
        match self.requests.get(id.0) {
            Some(Request { state: State::Done(completion), .. }) => Some(completion),
            _ => None,
        }
    }

    /// Nobody will ask for this request again: it is freed when it is done (MPI_Request_free).
    pub fn detach(&mut self, id: ReqId) {
        if self.test(id).is_some() {
            return;
        }
        if let Some(request) = self.requests.get_mut(id.0) {
            request.orphan = true;
        }
    }

    /// Asks to cancel (MPI 5.0, 3.8.4). A receive that is not matched completes as cancelled at once; so
    /// does a send whose envelope has not left. A send that waits for its receiver asks it to forget the
    /// message, and completes as cancelled, or normally if the message was matched. All else goes on.
    pub fn cancel(&mut self, id: ReqId) {
        let Some(request) = self.requests.get_mut(id.0) else { return };
        match &request.state {
            State::Recv(Recv { step: RecvStep::Match { place }, ctx, class, .. }) => {
                self.contexts.at(*ctx).side(*class).posted.remove(*place);
                self.finish_cancelled(id.0);
            }
            State::Send(Send { step: SendStep::Leave { .. }, .. }) => self.finish_cancelled(id.0),
            State::Send(Send { peer, head, step: SendStep::Answer { .. }, .. })
                if head.class == Class::P2p =>
            {
                let (peer, ctx) = (*peer, head.ctx);
                self.owe(peer, Reply::with(Kind::Cancel, ctx, &id.0.to_le_bytes()));
            }
            _ => {}
        }
    }

    /// The first message that a receive from `src` (rank and process; `None` is any) with this tag would take (MPI_Iprobe).
    pub fn probe(&mut self, ctx: u64, src: Option<(u32, Peer)>, tag: Option<i32>) -> Option<Envelope> {
        let (_, id) = self.look_for(ctx, src, tag)?;
        self.envelope(MsgId(id))
    }

    /// As [`Engine::probe`], and takes the message out of matching, for [`Engine::mrecv`] (MPI_Improbe).
    pub fn mprobe(
        &mut self,
        ctx: u64,
        src: Option<(u32, Peer)>,
        tag: Option<i32>,
    ) -> Option<(MsgId, Envelope)> {
        let (place, id) = self.look_for(ctx, src, tag)?;
        self.contexts.at(ctx).tagged.unexpected.remove(place);
        Some((MsgId(id), self.envelope(MsgId(id))?))
    }

    /// Place and id of a message that is probed for. It may be one that its sender has not announced.
    fn look_for(&mut self, ctx: u64, src: Option<(u32, Peer)>, tag: Option<i32>) -> Option<(u32, u64)> {
        let (rank, peer) = src.unzip();
        let context = self.contexts.find(ctx);
        let found = context.and_then(|context| context.tagged.unexpected.find(rank, tag.map(wide_tag)));
        if found.is_none() && !self.holders.is_empty() {
            self.ask_for_more(peer);
        }
        found
    }

    /// What is known of a message taken by [`Engine::mprobe`] and not yet received.
    pub fn envelope(&self, message: MsgId) -> Option<Envelope> {
        let message = self.messages.get(message.0)?;
        Some(Envelope { source: message.source, tag: message.tag, bytes: message.bytes() })
    }

    /// Nothing is owed to any peer, no send is under way: this process may leave without harming others.
    pub fn idle(&self) -> bool {
        // What a collective gave up, nobody may ever fetch.
        let given_up = |r: &Request, send: &Send| {
            r.orphan && send.head.class == Class::Coll && matches!(send.step, SendStep::Answer { .. })
        };
        let sending = |r: &Request| matches!(&r.state, State::Send(send) if !given_up(r, send));
        !self.peers.iter().any(Link::owes_frames) && !self.requests.iter().any(|(_, r)| sending(r))
    }

    /// Something is to be sent, or to be tried again, by [`Engine::progress`]: a frame that the fabric
    /// refused, for one. Sleep then only on fabrics that wake a sender when there is room again.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        Stats { held: self.pool.held, held_most: self.pool.most, ..self.stats }
    }

    /// All requests that are not done, and what each waits for.
    pub fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        self.requests.iter().filter_map(|(id, _)| self.wait_of(ReqId(id)))
    }

    /// What a request waits for; `None` if it is done, or not known.
    pub fn wait_of(&self, id: ReqId) -> Option<Wait> {
        match &self.requests.get(id.0)?.state {
            State::Done(_) => None,
            State::Send(send) => Some(send.wait(id)),
            State::Recv(recv) => Some(recv.wait(id)),
        }
    }

    /// The peer is gone: what only it could satisfy completes with [`crate::Fault::PeerDown`], and so does
    /// whatever is started towards it later. Whole messages of it that are here can still be received.
    pub fn peer_down(&mut self, peer: Peer, cause: &str) {
        let link = self.peers.at(peer, &mut self.bank);
        if link.down.is_some() {
            return;
        }
        let cause: Arc<str> = cause.into();
        link.down = Some(cause.clone());
        link.replies.clear();
        link.envelopes.clear();
        link.held.clear();
        link.ready = false;
        link.reads.clear();
        link.streams.clear();
        (link.offer, link.landing) = (None, None);
        self.bank.close(&mut link.loan);
        let involved = |(id, request): (u64, &Request)| request.needs(peer).then_some(id);
        let ids: Vec<u64> = self.requests.iter().filter_map(involved).collect();
        for id in ids {
            self.finish_lost(id, peer, &cause);
        }
    }

    /// Sets a request's outcome.
    #[inline]
    pub(crate) fn finish(&mut self, id: u64, completion: Completion) {
        let Some(request) = self.requests.get_mut(id) else { return };
        if let Some((peer, region)) = request.exposed() {
            let link = self.peers.at(peer, &mut self.bank);
            link.withdrawals.push(region);
            list(&mut self.work, link);
        }
        if request.orphan {
            self.requests.remove(id);
        } else {
            request.state = State::Done(completion);
        }
    }

    pub(crate) fn finish_cancelled(&mut self, id: u64) {
        let Some(request) = self.requests.get(id) else { return };
        let mut completion = request.blank();
        completion.cancelled = true;
        self.finish(id, completion);
    }

    pub(crate) fn finish_lost(&mut self, id: u64, peer: Peer, cause: &Arc<str>) {
        let Some(request) = self.requests.get(id) else { return };
        let blank = request.blank();
        if let State::Recv(Recv { step: RecvStep::Match { place }, ctx, class, .. }) = &request.state {
            self.contexts.at(*ctx).side(*class).posted.remove(*place);
        }
        self.finish(id, request::lost(peer, cause, blank));
    }

    /// Drops a message that nobody will receive.
    pub(crate) fn discard(&mut self, id: u64) {
        let Some(message) = self.messages.remove(id) else { return };
        let follows = matches!(&message.body, Body::Offer { rts, .. } if rts.follows);
        let waits = message.sender().filter(|_| !follows);
        self.release(message.peer, message.body);
        if let Some(sender) = waits {
            self.owe(message.peer, Reply::bare(Kind::Taken, sender, 0));
        }
    }

    /// Queues a frame for a peer, for the next progress.
    #[inline]
    pub(crate) fn owe(&mut self, peer: Peer, reply: Reply) {
        let link = self.peers.at(peer, &mut self.bank);
        if link.down.is_none() {
            link.replies.push_back(reply);
            list(&mut self.work, link);
        }
    }
}

/// Puts a peer on the list of work, once.
#[inline]
pub(crate) fn list(work: &mut VecDeque<Peer>, link: &mut Link) {
    if !link.listed {
        link.listed = true;
        work.push_back(link.peer);
    }
}

/// A tag as matching takes it.
#[inline]
pub(crate) fn wide_tag(tag: i32) -> u64 {
    u64::from(tag as u32)
}

/// All contexts; the one used last is found without hashing.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    index: Map<u64, usize>,
    slots: Vec<Context>,
    free: Vec<usize>,
    last: Option<(u64, usize)>,
}

/// The queues of one communicator.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tagged: Side,
    pub(crate) keyed: Side,
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) posted: Posted,
    pub(crate) unexpected: Unexpected,
}

impl Context {
    fn new() -> Self {
        let side = || Side { posted: Posted::new(), unexpected: Unexpected::new() };
        Self { tagged: side(), keyed: side() }
    }

    /// Messages with tags, or with keys.
    #[inline]
    pub(crate) fn side(&mut self, class: Class) -> &mut Side {
        if class == Class::Coll { &mut self.keyed } else { &mut self.tagged }
    }
}

impl Contexts {
    /// The context; it comes to be with the first message for it, or the first call.
    #[inline(always)]
    pub(crate) fn at(&mut self, ctx: u64) -> &mut Context {
        let slot = match self.last {
            Some((last, slot)) if last == ctx => slot,
            _ => self.look_up(ctx),
        };
        &mut self.slots[slot]
    }

    #[cold]
    fn look_up(&mut self, ctx: u64) -> usize {
        let slot = match self.index.get(&ctx) {
            Some(&slot) => slot,
            None => self.add(ctx),
        };
        self.last = Some((ctx, slot));
        slot
    }

    fn add(&mut self, ctx: u64) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Context::new());
            self.slots.len() - 1
        });
        self.index.insert(ctx, slot);
        slot
    }

    /// The context, if there is one.
    pub(crate) fn find(&mut self, ctx: u64) -> Option<&mut Context> {
        let slot = *self.index.get(&ctx)?;
        Some(&mut self.slots[slot])
    }

    fn remove(&mut self, ctx: u64) -> Option<Context> {
        let slot = self.index.remove(&ctx)?;
        self.last = None;
        self.free.push(slot);
        Some(std::mem::replace(&mut self.slots[slot], Context::new()))
    }
}
