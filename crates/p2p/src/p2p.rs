//! [`P2p`]: the state of all messages of a process, and the calls that do not send.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_transport::{Class, Peer};

use crate::credit::CreditPool;
use crate::matching::{Posted, Unexpected};
use crate::peers::{Link, Peers};
use crate::pool::Pool;
use crate::request::{self, Body, Message, Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::slab::Slab;
use crate::types::{Choice, Completion, Config, Envelope, Known, MsgId, ReqId, Stats, Wait};
use crate::wire::{self, Kind};
use banyan_transport::hash::Map;

/// The messages of one process. Pure: frames leave through a [`banyan_transport::Port`], arrive through
/// [`banyan_transport::Sink`], and whatever a frame leaves owing is sent by [`P2p::progress`].
#[derive(Debug)]
pub struct P2p {
    pub(crate) contexts: Contexts,
    pub(crate) requests: Slab<Request>,
    pub(crate) messages: Slab<Message>,
    pub(crate) peers: Peers,
    pub(crate) credit_pool: CreditPool,
    pub(crate) pool: Pool,
    /// Peers for which something is to be done: [`P2p::progress`] goes through them.
    pub(crate) work: VecDeque<Peer>,
    /// Peers that were lent more than the initial credit; the first is asked first to return it.
    pub(crate) borrowers: VecDeque<Peer>,
    /// Peers that may hold messages until they are asked for more.
    pub(crate) holders: Vec<Peer>,
    pub(crate) choice: Choice,
    pub(crate) known: Known,
    pub(crate) stats: Stats,
}

impl P2p {
    /// No messages, no contexts, no peers.
    pub fn new(config: Config) -> Self {
        Self {
            contexts: Contexts::default(),
            requests: Slab::new(),
            messages: Slab::new(),
            peers: Peers::new(config.choice.first(), config.ipc_from),
            credit_pool: CreditPool::new(&config),
            pool: Pool::default(),
            work: VecDeque::new(),
            borrowers: VecDeque::new(),
            holders: Vec::new(),
            choice: config.choice,
            known: config.known,
            stats: Stats::default(),
        }
    }

    /// The communicator of this context exists now. Messages for it may have come earlier, and are kept.
    pub fn open_context(&mut self, ctx: u64) {
        self.contexts.at(ctx);
    }

    /// The communicator of this context is gone. Messages that nobody received are dropped (their sends complete);
    /// receives that are still posted complete as cancelled.
    pub fn close_context(&mut self, ctx: u64) {
        let Some(context) = self.contexts.remove(ctx) else { return };
        for side in [context.tagged, context.keyed] {
            side.posted.ids().for_each(|id| self.finish_cancelled(id));
            side.unexpected.iter().for_each(|(_, id)| self.discard(id));
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

    /// True if [`P2p::test`] would give an outcome.
    #[inline]
    pub fn is_done(&self, id: ReqId) -> bool {
        matches!(self.requests.get(id.0), Some(Request { state: State::Done(_), .. }))
    }

    /// False while the other side may not have come to a request: a receive that is not matched, a send that awaits room or
    /// a reply. True of all others.
    pub fn is_met(&self, id: ReqId) -> bool {
        match self.requests.get(id.0).map(|request| &request.state) {
            Some(State::Recv(recv)) => !matches!(recv.step, RecvStep::AwaitMatch { .. }),
            Some(State::Send(send)) => {
                !matches!(send.step, SendStep::AwaitRoom { .. } | SendStep::AwaitReply { .. })
            }
            _ => true,
        }
    }

    /// True if there is such a request, and it is not done.
    #[inline]
    pub fn is_pending(&self, id: ReqId) -> bool {
        self.requests.get(id.0).is_some_and(|request| !matches!(request.state, State::Done(_)))
    }

    /// True if a request in this context is under way.
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

    /// Frees a request when it is done, or at once if it is: nobody will ask for it again (MPI_Request_free).
    pub fn detach(&mut self, id: ReqId) {
        if self.test(id).is_some() {
            return;
        }
        if let Some(request) = self.requests.get_mut(id.0) {
            request.orphan = true;
        }
    }

    /// Asks to cancel (MPI 5.0, 3.8.4). A receive that is not matched completes as cancelled at once; so
    /// does a send whose envelope has not left. For a send that awaits a reply the receiver is asked to drop the
    /// message; the send completes as cancelled, or normally if the message was matched. All other requests go on.
    pub fn cancel(&mut self, id: ReqId) {
        let Some(request) = self.requests.get_mut(id.0) else { return };
        match &request.state {
            State::Recv(Recv { step: RecvStep::AwaitMatch { entry }, ctx, class, .. }) => {
                self.contexts.at(*ctx).side(*class).posted.remove(*entry);
                self.finish_cancelled(id.0);
            }
            State::Send(Send { step: SendStep::AwaitRoom { .. }, .. }) => self.finish_cancelled(id.0),
            State::Send(Send { peer, head, step: SendStep::AwaitReply { .. }, .. })
                if head.class == Class::P2p =>
            {
                let (peer, ctx) = (*peer, head.ctx);
                self.owe(peer, Reply::with(wire::control(Kind::Cancel, ctx, 0), &id.0.to_le_bytes()));
            }
            _ => {}
        }
    }

    /// The envelope of the first message that a receive from `src` (rank and process; `None` is any) with this tag would
    /// match (MPI_Iprobe).
    pub fn probe(&mut self, ctx: u64, src: Option<(u32, Peer)>, tag: Option<i32>) -> Option<Envelope> {
        let (_, id) = self.find_unexpected(ctx, src, tag)?;
        self.envelope(MsgId(id))
    }

    /// [`P2p::probe`] that also takes the message out of matching, for [`P2p::mrecv`] (MPI_Improbe).
    pub fn mprobe(
        &mut self,
        ctx: u64,
        src: Option<(u32, Peer)>,
        tag: Option<i32>,
    ) -> Option<(MsgId, Envelope)> {
        let (entry, id) = self.find_unexpected(ctx, src, tag)?;
        self.contexts.at(ctx).tagged.unexpected.remove(entry);
        Some((MsgId(id), self.envelope(MsgId(id))?))
    }

    /// Queue entry and id of a message that is probed for. If there is none, senders that may hold it are asked for more.
    fn find_unexpected(
        &mut self,
        ctx: u64,
        src: Option<(u32, Peer)>,
        tag: Option<i32>,
    ) -> Option<(u32, u64)> {
        let (rank, peer) = src.unzip();
        let context = self.contexts.find(ctx);
        let found = context.and_then(|context| context.tagged.unexpected.find(rank, tag.map(wide_tag)));
        if found.is_none() && !self.holders.is_empty() {
            self.ask_for_more(peer);
        }
        found
    }

    /// The envelope of a message taken by [`P2p::mprobe`] and not yet received.
    pub fn envelope(&self, message: MsgId) -> Option<Envelope> {
        let message = self.messages.get(message.0)?;
        Some(Envelope { source: message.source, tag: message.tag, bytes: message.bytes() })
    }

    /// True if nothing is owed to any peer and no send is under way: this process may leave without harming others.
    pub fn idle(&self) -> bool {
        // A message of a collective that was given up may never be received.
        let given_up = |r: &Request, send: &Send| {
            r.orphan && send.head.class == Class::Coll && matches!(send.step, SendStep::AwaitReply { .. })
        };
        let sending = |r: &Request| matches!(&r.state, State::Send(send) if !given_up(r, send));
        !self.peers.iter().any(|link| link.owed().more_than_credit())
            && !self.requests.iter().any(|(_, r)| sending(r))
    }

    /// True if [`P2p::progress`] has something to send, or to try again (such as a frame that the fabric
    /// refused). The caller may then sleep only on fabrics that wake a sender when there is room again.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        Stats { buffered: self.pool.in_use, buffered_most: self.pool.most_in_use, ..self.stats }
    }

    /// All requests that are not done, and what each waits for.
    pub fn waits(&self) -> impl Iterator<Item = Wait> + '_ {
        self.requests.iter().filter_map(|(id, _)| self.wait_of(ReqId(id)))
    }

    /// What a request waits for; `None` if it is done, or there is no such request.
    pub fn wait_of(&self, id: ReqId) -> Option<Wait> {
        match &self.requests.get(id.0)?.state {
            State::Done(_) => None,
            State::Send(send) => Some(send.wait(id)),
            State::Recv(recv) => Some(recv.wait(id)),
        }
    }

    /// The peer is gone: requests that only it could complete end with [`crate::Fault::PeerDown`] and this cause, and so do
    /// those that are started towards it later. Whole messages of the peer that are here can still be received.
    pub fn peer_down(&mut self, peer: Peer, cause: &str) {
        let link = self.peers.at(peer, &mut self.credit_pool);
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
        link.granted.clear();
        (link.open_rts, link.landing) = (None, None);
        self.credit_pool.close(&mut link.loan);
        let involved = |(id, request): (u64, &Request)| request.needs(peer).then_some(id);
        let ids: Vec<u64> = self.requests.iter().filter_map(involved).collect();
        for id in ids {
            self.finish_lost(id, peer, &cause);
        }
    }

    /// Sets a request's outcome; frees it if it is detached.
    #[inline]
    pub(crate) fn finish(&mut self, id: u64, completion: Completion) {
        let Some(request) = self.requests.get_mut(id) else {
            return debug_assert!(false, "a request is finished once");
        };
        if let Some((peer, region)) = request.exposed() {
            let link = self.peers.at(peer, &mut self.credit_pool);
            link.withdrawals.push(region);
            list(&mut self.work, link);
        }
        if let State::Send(send) = &mut request.state
            && send.lent > 0
        {
            send.step = SendStep::AwaitMemory(Box::new(completion));
            return;
        }
        if request.orphan {
            self.requests.remove(id);
        } else {
            request.state = State::Done(completion);
        }
    }

    pub(crate) fn finish_cancelled(&mut self, id: u64) {
        let Some(request) = self.requests.get(id) else {
            return debug_assert!(false, "a request that is cancelled is under way");
        };
        let mut completion = request.blank();
        completion.cancelled = true;
        self.finish(id, completion);
    }

    pub(crate) fn finish_lost(&mut self, id: u64, peer: Peer, cause: &Arc<str>) {
        let Some(request) = self.requests.get_mut(id) else {
            return debug_assert!(false, "a request that needs a peer is under way");
        };
        let blank = request.blank();
        if let State::Recv(Recv { step: RecvStep::AwaitMatch { entry }, ctx, class, .. }) = &request.state {
            self.contexts.at(*ctx).side(*class).posted.remove(*entry);
        }
        if let State::Send(Send { lent: 1.., step, .. }) = &mut request.state {
            // The fabric may never tell. What was over before stays as it was.
            if !matches!(step, SendStep::AwaitMemory(_)) {
                *step = SendStep::AwaitMemory(Box::new(request::lost(peer, cause, blank)));
            }
            let link = self.peers.at(peer, &mut self.credit_pool);
            link.reclaims.push(id);
            return list(&mut self.work, link);
        }
        self.finish(id, request::lost(peer, cause, blank));
    }

    /// Drops an unexpected message that nobody will receive; its send completes.
    pub(crate) fn discard(&mut self, id: u64) {
        let Some(message) = self.messages.remove(id) else {
            return debug_assert!(false, "an entry of a queue is a message");
        };
        let pushed = matches!(&message.body, Body::Rts { rts, .. } if rts.pushed);
        let sender = message.sender().filter(|_| !pushed);
        self.release(message.peer, message.body);
        if let Some(sender) = sender {
            self.owe(message.peer, Reply::bare(Kind::Fin, sender, 0));
        }
    }

    /// Queues a frame for a peer, for the next [`P2p::progress`].
    #[inline]
    pub(crate) fn owe(&mut self, peer: Peer, reply: Reply) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.down.is_none() {
            link.replies.push_back(reply);
            list(&mut self.work, link);
        }
    }
}

/// Puts a peer on the list of those with work, once.
#[inline]
pub(crate) fn list(work: &mut VecDeque<Peer>, link: &mut Link) {
    if !link.listed {
        link.listed = true;
        work.push_back(link.peer);
    }
}

/// A tag as matching compares it.
#[inline]
pub(crate) fn wide_tag(tag: i32) -> u64 {
    u64::from(tag as u32)
}

/// All contexts; the one used last is found without hashing.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    index: Map<u64, usize>,
    contexts: Vec<Context>,
    free: Vec<usize>,
    /// Its id and its place, which is beyond all contexts where that one is gone.
    last: (u64, usize),
}

/// The queues of one communicator.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) tagged: Side,
    pub(crate) keyed: Side,
    /// A member of the communicator that has failed, which no receive from any source has told of yet.
    pub(crate) failed: Option<(Peer, Arc<str>)>,
}

/// The queues of the messages with tags, or of those with keys.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) posted: Posted,
    pub(crate) unexpected: Unexpected,
}

impl Context {
    fn new() -> Self {
        let side = || Side { posted: Posted::new(), unexpected: Unexpected::new() };
        Self { tagged: side(), keyed: side(), failed: None }
    }

    /// The queues of messages with tags, or of those with keys.
    #[inline]
    pub(crate) fn side(&mut self, class: Class) -> &mut Side {
        if class == Class::Coll { &mut self.keyed } else { &mut self.tagged }
    }
}

impl Contexts {
    /// The context; the first message for it or the first call makes it.
    #[inline(always)]
    pub(crate) fn at(&mut self, ctx: u64) -> &mut Context {
        let (last, at) = self.last;
        // One branch, as `NOWHERE` is beyond all contexts.
        if (last == ctx) & (at < self.contexts.len()) {
            return &mut self.contexts[at];
        }
        let at = self.look_up(ctx);
        &mut self.contexts[at]
    }

    const NOWHERE: (u64, usize) = (0, usize::MAX);

    #[cold]
    fn look_up(&mut self, ctx: u64) -> usize {
        let at = match self.index.get(&ctx) {
            Some(&at) => at,
            None => self.add(ctx),
        };
        self.last = (ctx, at);
        at
    }

    fn add(&mut self, ctx: u64) -> usize {
        let at = self.free.pop().unwrap_or_else(|| {
            self.contexts.push(Context::new());
            self.contexts.len() - 1
        });
        self.index.insert(ctx, at);
        at
    }

    /// The context, if there is one.
    pub(crate) fn find(&mut self, ctx: u64) -> Option<&mut Context> {
        let at = *self.index.get(&ctx)?;
        Some(&mut self.contexts[at])
    }

    fn remove(&mut self, ctx: u64) -> Option<Context> {
        let at = self.index.remove(&ctx)?;
        self.last = Self::NOWHERE;
        self.free.push(at);
        Some(std::mem::replace(&mut self.contexts[at], Context::new()))
    }
}
