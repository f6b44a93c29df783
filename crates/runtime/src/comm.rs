//! [`Comm`]: a communicator, and its point-to-point operations (MPI 5.0, chapters 3 and 7).

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use banyan_datatype::Data;
use banyan_memory::EngineGuard;
use banyan_p2p::{self as p2p, ReceiveBypass, RecvArgs, SendArgs, Started};
use banyan_pmi::status::Item;
use banyan_transport::Peer;

use crate::bail;
use crate::bsend::Attached;
use crate::cart::Cart;
use crate::coll_state::{CollState, ScheduleRanks};
use crate::engine::{Engine, fault_error, packed};
use crate::errhandler::Errhandler;
use crate::error::{Class, Error, Result};
use crate::group::{Comparison, Group};
use crate::info::Info;
use crate::message::Message;
use crate::request::{PersistentArgs, Request, SendMode};
use crate::runtime::{Purpose, Runtime, derive_context};
use crate::slow;
use crate::status::{ANY_SOURCE, ANY_TAG, Outcome, PROC_NULL, Status, TAG_UB};

/// Polls of a peer's ring before a receive from that peer is posted: some microseconds.
const SPINS: u32 = 2000;
/// Frames that may turn out to be for other receives before this one is posted.
const FRAMES: u32 = 8;

/// A communicator. Shared by everything that uses it; its context is closed when the last user lets go.
pub struct Comm {
    rt: Arc<Runtime>,
    ctx: u64,
    local: Group,
    /// The other side of an intercommunicator.
    remote: Option<Group>,
    rank: u32,
    /// Communicators made from this one so far; all members count alike.
    children: Mutex<u64>,
    /// Contexts of messages between single members while a communicator is made (`creation::MemberChannel`).
    pub(crate) channels: Mutex<Vec<u64>>,
    coll_state: Arc<CollState>,
    /// The state of nonblocking collectives, from the first one on.
    nonblocking_coll_state: OnceLock<Arc<CollState>>,
    name: Mutex<String>,
    errhandler: Mutex<Errhandler>,
    info: Mutex<Info>,
    cart: Option<Cart>,
    attached: Mutex<Option<Arc<Attached>>>,
}

/// What a new communicator inherits from its parent, or is given.
#[derive(Default)]
pub(crate) struct Inherited {
    pub(crate) errhandler: Option<Errhandler>,
    pub(crate) info: Option<Info>,
    pub(crate) cart: Option<Cart>,
}

impl Comm {
    /// Makes a communicator whose context and members all of them know already.
    pub(crate) fn make(
        rt: &Arc<Runtime>,
        ctx: u64,
        local: Group,
        remote: Option<Group>,
        name: &str,
    ) -> Result<Arc<Comm>> {
        Self::make_with(rt, ctx, local, remote, name, Inherited::default())
    }

    pub(crate) fn make_with(
        rt: &Arc<Runtime>,
        ctx: u64,
        local: Group,
        remote: Option<Group>,
        name: &str,
        inherited: Inherited,
    ) -> Result<Arc<Comm>> {
        let Some(rank) = local.rank() else {
            return Err(Error::intern("a communicator without this process"));
        };
        rt.open_context(ctx);
        let coll_state = Arc::new(CollState::new(rt, ctx, ScheduleRanks::of(&local, remote.as_ref())));
        Ok(Arc::new(Comm {
            rt: rt.clone(),
            ctx,
            local,
            remote,
            rank,
            children: Mutex::new(0),
            channels: Mutex::new(Vec::new()),
            coll_state,
            nonblocking_coll_state: OnceLock::new(),
            name: Mutex::new(name.to_owned()),
            errhandler: Mutex::new(inherited.errhandler.unwrap_or_default()),
            info: Mutex::new(inherited.info.unwrap_or_default()),
            cart: inherited.cart,
            attached: Mutex::new(None),
        }))
    }

    /// The runtime it belongs to.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.rt
    }

    /// Rank of this process (in its own group, if there are two).
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Processes in this process's group.
    pub fn size(&self) -> u32 {
        self.local.size()
    }

    /// Processes of the other group; `None` if there is only one.
    pub fn remote_size(&self) -> Option<u32> {
        self.remote.as_ref().map(Group::size)
    }

    /// Processes that each process exchanges blocks with in a collective: those of the other group, if there is one.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.targets().size()
    }

    /// True if it joins two groups.
    pub fn is_inter(&self) -> bool {
        self.remote.is_some()
    }

    /// The group of this process.
    pub fn group(&self) -> &Group {
        &self.local
    }

    /// The other group of an intercommunicator.
    pub fn remote_group(&self) -> Option<&Group> {
        self.remote.as_ref()
    }

    /// The context id: the same on all members, different from that of any other communicator.
    pub fn context(&self) -> u64 {
        self.ctx
    }

    pub(crate) fn coll_state(&self) -> &Arc<CollState> {
        &self.coll_state
    }

    /// The state of nonblocking collectives, in a context of their own: they are numbered apart from the blocking ones, so
    /// that ranks may call a blocking and a nonblocking one in either order.
    pub(crate) fn nonblocking_coll_state(&self) -> &Arc<CollState> {
        self.nonblocking_coll_state.get_or_init(|| {
            let ctx = derive_context(self.ctx, 0, Purpose::Nonblocking, 0);
            self.rt.open_context(ctx);
            Arc::new(self.coll_state.in_context(ctx))
        })
    }

    /// The name that the user or MPI gave it.
    pub fn name(&self) -> String {
        lock(&self.name).clone()
    }

    /// Names it.
    pub fn set_name(&self, name: &str) {
        *lock(&self.name) = name.to_owned();
        self.rt.engine_lock.enter().names.set(self.ctx, name);
    }

    /// What is done about its errors.
    pub fn errhandler(&self) -> Errhandler {
        lock(&self.errhandler).clone()
    }

    /// Sets what is done about its errors.
    pub fn set_errhandler(&self, errhandler: Errhandler) {
        *lock(&self.errhandler) = errhandler;
    }

    /// Its hints.
    pub fn info(&self) -> Info {
        lock(&self.info).dup()
    }

    /// Adds hints.
    pub fn set_info(&self, info: &Info) {
        *lock(&self.info) = info.dup();
    }

    /// Its Cartesian topology, if it has one.
    pub fn cart(&self) -> Option<&Cart> {
        self.cart.as_ref()
    }

    /// How two communicators relate (MPI 5.0, 7.4.1): `None` is MPI_CONGRUENT.
    pub fn compare(&self, other: &Comm) -> Option<Comparison> {
        if self.is_inter() != other.is_inter() {
            return Some(Comparison::Unequal);
        }
        if self.ctx == other.ctx {
            return Some(Comparison::Ident);
        }
        let local = self.local.compare(&other.local);
        let both = match (&self.remote, &other.remote) {
            (Some(a), Some(b)) => worse(local, a.compare(b)),
            _ => local,
        };
        (both != Comparison::Ident).then_some(both)
    }

    /// The context of the next communicator made from this one; all members derive the same.
    pub(crate) fn child_context(&self, purpose: Purpose, sibling: u32) -> u64 {
        let mut children = lock(&self.children);
        *children += 1;
        derive_context(self.ctx, *children, purpose, sibling)
    }

    /// The group whose ranks point-to-point calls name.
    pub(crate) fn targets(&self) -> &Group {
        self.remote.as_ref().unwrap_or(&self.local)
    }

    /// The process behind the rank of a call; `None` is MPI_PROC_NULL.
    #[inline(always)]
    fn target(&self, rank: i32, what: &str) -> Result<Option<Peer>> {
        if let Some(peer) = u32::try_from(rank).ok().and_then(|rank| self.targets().peer(rank)) {
            return Ok(Some(peer));
        }
        if rank == PROC_NULL {
            return Ok(None);
        }
        Err(self.no_rank(rank, what))
    }

    #[cold]
    fn no_rank(&self, rank: i32, what: &str) -> Error {
        let (name, last) = (self.name_or_kind(), self.targets().size().saturating_sub(1));
        let given = if rank == ANY_SOURCE { "MPI_ANY_SOURCE".to_string() } else { rank.to_string() };
        Error::new(Class::ERR_RANK, format!("{what} is {given}, but {name} has ranks 0 to {last}"))
    }

    #[inline(always)]
    fn source(&self, rank: i32) -> Result<Source> {
        if rank == ANY_SOURCE {
            return Ok(Source::Any);
        }
        Ok(self.target(rank, "source")?.map_or(Source::None, |peer| Source::One(rank as u32, peer)))
    }

    /// Its name, or its number of processes if it has none: for error messages.
    pub fn name_or_kind(&self) -> String {
        match lock(&self.name).as_str() {
            "" => format!("a communicator of {} processes", self.local.size()),
            name => name.to_owned(),
        }
    }

    /// Sends, and returns when the buffer may be used again (MPI_Send, Ssend, Rsend, Bsend).
    #[inline(always)]
    pub fn send(&self, data: &Data, dest: i32, tag: i32, mode: SendMode) -> Result<()> {
        let Some(peer) = self.target(dest, "dest")? else { return Ok(()) };
        check_tag(tag)?;
        let mut engine = self.rt.engine_lock.enter();
        if self.send_now(&mut engine, data, peer, tag, mode) {
            return Ok(());
        }
        self.send_and_wait(engine, data, peer, tag, mode)
    }

    /// Sends if the message can leave whole and at once; false if it cannot.
    #[inline(always)]
    fn send_now(&self, engine: &mut Engine, data: &Data, peer: Peer, tag: i32, mode: SendMode) -> bool {
        let Some(mode) = mode.of_p2p() else { return false };
        engine.p2p.send_now(&mut engine.ports, self.send_args(data, peer, tag, mode))
    }

    #[inline(always)]
    fn send_args<'a>(&self, data: &'a Data, peer: Peer, tag: i32, mode: p2p::Mode) -> SendArgs<'a> {
        SendArgs { peer, ctx: self.ctx, tag, src_rank: self.rank, data, mode }
    }

    #[cold]
    fn send_and_wait(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        data: &Data,
        peer: Peer,
        tag: i32,
        mode: SendMode,
    ) -> Result<()> {
        let posted = self.post_send(&mut engine, data, peer, tag, mode)?;
        self.finish(engine, posted, false).into_result().map(|_| ())
    }

    /// Waits for the end of an operation.
    fn finish(&self, engine: EngineGuard<'_, Engine>, posted: StartedOp, received: bool) -> Outcome {
        match posted {
            StartedOp::Over(outcome) => outcome,
            StartedOp::Active(id) => {
                let what =
                    |engine: &Engine| slow::first(engine.p2p.wait_of(id).map(slow::message).into_iter());
                outcome(&self.rt.wait_for(engine, |engine| engine.p2p.test(id), &what), received)
            }
        }
    }

    /// Receives, and returns when the message is there (MPI_Recv).
    #[inline(always)]
    pub fn recv(&self, data: &Data, source: i32, tag: i32) -> Outcome {
        match self.try_recv(data, source, tag) {
            Ok(outcome) => outcome,
            Err(error) => Outcome::failed(error),
        }
    }

    #[inline(always)]
    fn try_recv(&self, data: &Data, source: i32, tag: i32) -> Result<Outcome> {
        let source = self.source(source)?;
        check_recv_tag(tag)?;
        Ok(self.receive(self.rt.engine_lock.enter(), data, source, tag))
    }

    #[inline(always)]
    fn receive(&self, mut engine: EngineGuard<'_, Engine>, data: &Data, source: Source, tag: i32) -> Outcome {
        match self.receive_bypass(&mut engine, data, &source, tag, SPINS) {
            Some(outcome) => outcome,
            None => self.receive_posted(engine, data, source, tag),
        }
    }

    #[inline(never)]
    fn receive_posted(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        data: &Data,
        source: Source,
        tag: i32,
    ) -> Outcome {
        let posted = self.post_recv(&mut engine, data, &source, tag);
        self.finish(engine, posted, true)
    }

    /// Polls the ring of the peer for a while, if the engine has nothing else to do, and takes the message as it arrives,
    /// without posting the receive.
    #[inline(always)]
    fn receive_bypass(
        &self,
        engine: &mut Engine,
        data: &Data,
        source: &Source,
        tag: i32,
        spins: u32,
    ) -> Option<Outcome> {
        let Source::One(_, peer) = *source else { return None };
        let Engine { p2p, ports, policy, .. } = engine;
        let shm = ports.shm_to(peer)?;
        if p2p.has_work() {
            return None;
        }
        let mut bypass = ReceiveBypass::new(p2p, self.recv_args(data, source, tag))?;
        let spins = if spins > 1 && policy.spins_freely() { spins } else { 1 };
        let mut frames = 0;
        while frames < FRAMES && bypass.is_open() && shm.peek(peer, spins) {
            shm.take(peer, &mut bypass);
            frames += 1;
        }
        if frames == 0 {
            return None;
        }
        let Some(completion) = bypass.end() else {
            self.rt.wake_poller_with(engine);
            return None;
        };
        let outcome = outcome(completion, true);
        if p2p.has_work() {
            p2p.progress(ports);
        }
        Some(outcome)
    }

    /// Sends if the message can leave whole and at once; gives whether it has. This is the first part of [`Comm::isend`], for
    /// a caller that has a short way of keeping a request that is over.
    #[inline(always)]
    pub fn isend_now(&self, data: &Data, dest: i32, tag: i32, mode: SendMode) -> Result<bool> {
        let peer = self.target(dest, "dest")?;
        check_tag(tag)?;
        let Some(peer) = peer else { return Ok(false) };
        Ok(self.send_now(&mut self.rt.engine_lock.enter(), data, peer, tag, mode))
    }

    /// Starts a send (MPI_Isend and its kin).
    #[inline(never)]
    pub fn isend(self: &Arc<Self>, data: &Data, dest: i32, tag: i32, mode: SendMode) -> Result<Request> {
        let peer = self.target(dest, "dest")?;
        check_tag(tag)?;
        let Some(peer) = peer else { return Ok(Request::done(Status::EMPTY)) };
        let posted = self.post_send(&mut self.rt.engine_lock.enter(), data, peer, tag, mode)?;
        Ok(Request::posted(self, posted, false))
    }

    /// Receives if the message has arrived at the fabric already; gives the outcome then. A caller that has a short way of
    /// keeping a request that is over tries this before [`Comm::irecv`].
    #[inline(always)]
    pub fn irecv_now(&self, data: &Data, source: i32, tag: i32) -> Result<Option<Outcome>> {
        let source = self.source(source)?;
        check_recv_tag(tag)?;
        Ok(self.receive_bypass(&mut self.rt.engine_lock.enter(), data, &source, tag, 1))
    }

    /// Starts a receive (MPI_Irecv).
    #[inline(never)]
    pub fn irecv(self: &Arc<Self>, data: &Data, source: i32, tag: i32) -> Result<Request> {
        let source = self.source(source)?;
        check_recv_tag(tag)?;
        let posted = self.post_recv(&mut self.rt.engine_lock.enter(), data, &source, tag);
        Ok(Request::posted(self, posted, true))
    }

    /// A persistent send (MPI_Send_init and its kin).
    pub fn send_init(self: &Arc<Self>, data: &Data, dest: i32, tag: i32, mode: SendMode) -> Result<Request> {
        self.target(dest, "dest")?;
        check_tag(tag)?;
        Ok(Request::persistent(self, PersistentArgs::Send { data: data.clone(), dest, tag, mode }))
    }

    /// A persistent receive (MPI_Recv_init).
    pub fn recv_init(self: &Arc<Self>, data: &Data, source: i32, tag: i32) -> Result<Request> {
        self.source(source)?;
        check_recv_tag(tag)?;
        Ok(Request::persistent(self, PersistentArgs::Recv { data: data.clone(), source, tag }))
    }

    /// Starts what a persistent request describes. Its arguments were checked when it was made.
    pub(crate) fn post(&self, engine: &mut Engine, args: &PersistentArgs) -> Result<(StartedOp, bool)> {
        match args {
            PersistentArgs::Send { data, dest, tag, mode } => match self.target(*dest, "dest")? {
                None => Ok((StartedOp::Over(Outcome::ok(Status::EMPTY)), false)),
                Some(peer) => Ok((self.post_send(engine, data, peer, *tag, *mode)?, false)),
            },
            PersistentArgs::Recv { data, source, tag } => {
                Ok((self.post_recv(engine, data, &self.source(*source)?, *tag), true))
            }
            PersistentArgs::Coll { .. } => Err(Error::intern("a collective is not posted as a message")),
        }
    }

    /// Sends and receives at once (MPI_Sendrecv). `send` and `recv` have the data, the rank and the tag.
    #[inline(always)]
    pub fn sendrecv(&self, send: (&Data, i32, i32), recv: (&Data, i32, i32)) -> Outcome {
        self.try_sendrecv(send, recv, false).unwrap_or_else(Outcome::failed)
    }

    /// [`Comm::sendrecv`] in which the received data replace the sent ones (MPI_Sendrecv_replace).
    pub fn sendrecv_replace(&self, data: &Data, dest: (i32, i32), source: (i32, i32)) -> Outcome {
        let (send, recv) = ((data, dest.0, dest.1), (data, source.0, source.1));
        self.try_sendrecv(send, recv, true).unwrap_or_else(Outcome::failed)
    }

    #[inline(always)]
    fn try_sendrecv(
        &self,
        (outgoing, dest, sendtag): (&Data, i32, i32),
        (incoming, source, recvtag): (&Data, i32, i32),
        replace: bool,
    ) -> Result<Outcome> {
        let (dest, source) = (self.target(dest, "dest")?, self.source(source)?);
        check_tag(sendtag)?;
        check_recv_tag(recvtag)?;
        let mut engine = self.rt.engine_lock.enter();
        match dest {
            Some(dest) if !self.send_now(&mut engine, outgoing, dest, sendtag, SendMode::Standard) => {
                let copy = if replace { Some(Data::bytes(packed(outgoing)?)) } else { None };
                let outgoing = copy.as_ref().unwrap_or(outgoing);
                self.send_while_receiving(engine, (outgoing, dest, sendtag), (incoming, source, recvtag))
            }
            _ => Ok(self.receive(engine, incoming, source, recvtag)),
        }
    }

    #[cold]
    fn send_while_receiving(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        (outgoing, dest, sendtag): (&Data, Peer, i32),
        (incoming, source, recvtag): (&Data, Source, i32),
    ) -> Result<Outcome> {
        let sent = self.post_send(&mut engine, outgoing, dest, sendtag, SendMode::Standard)?;
        if let StartedOp::Over(sent) = sent {
            sent.into_result()?;
            return Ok(self.receive(engine, incoming, source, recvtag));
        }
        let received = self.post_recv(&mut engine, incoming, &source, recvtag);
        let sent = self.finish(engine, sent, false);
        let mut engine = self.rt.engine_lock.enter();
        if let (Some(_), StartedOp::Active(id)) = (&sent.error, &received) {
            let Engine { p2p, ports, .. } = &mut *engine;
            p2p.abandon(ports, *id);
        }
        sent.into_result()?;
        Ok(self.finish(engine, received, true))
    }

    /// Looks for a message without waiting (MPI_Iprobe).
    pub fn iprobe(&self, source: i32, tag: i32) -> Result<Option<Status>> {
        let args = self.probe_args(source, tag)?;
        let Some((source, tag)) = args else { return Ok(Some(Status::NO_PROC)) };
        Ok(self.rt.poll_once(|engine| {
            let found = engine.p2p.probe(self.ctx, source, tag).or_else(|| {
                engine.progress();
                engine.p2p.probe(self.ctx, source, tag)
            });
            found.map(|envelope| envelope_status(&envelope))
        }))
    }

    /// Waits for a message (MPI_Probe).
    pub fn probe(&self, source: i32, tag: i32) -> Result<Status> {
        let args = self.probe_args(source, tag)?;
        let Some((source, tag)) = args else { return Ok(Status::NO_PROC) };
        let engine = self.rt.engine_lock.enter();
        let find = |engine: &mut Engine| engine.p2p.probe(self.ctx, source, tag);
        Ok(envelope_status(&self.rt.wait_for(engine, find, &|_| self.probe_items(source, tag))))
    }

    /// Looks for a message and takes it out of matching (MPI_Improbe).
    pub fn improbe(self: &Arc<Self>, source: i32, tag: i32) -> Result<Option<(Message, Status)>> {
        let args = self.probe_args(source, tag)?;
        let Some((source, tag)) = args else { return Ok(Some((Message::none(), Status::NO_PROC))) };
        Ok(self.rt.poll_once(|engine| {
            let found = engine.p2p.mprobe(self.ctx, source, tag).or_else(|| {
                engine.progress();
                engine.p2p.mprobe(self.ctx, source, tag)
            });
            found.map(|(id, envelope)| (Message::of(self, id), envelope_status(&envelope)))
        }))
    }

    /// Waits for a message and takes it out of matching (MPI_Mprobe).
    pub fn mprobe(self: &Arc<Self>, source: i32, tag: i32) -> Result<(Message, Status)> {
        let args = self.probe_args(source, tag)?;
        let Some((source, tag)) = args else { return Ok((Message::none(), Status::NO_PROC)) };
        let engine = self.rt.engine_lock.enter();
        let find = |engine: &mut Engine| engine.p2p.mprobe(self.ctx, source, tag);
        let (id, envelope) = self.rt.wait_for(engine, find, &|_| self.probe_items(source, tag));
        Ok((Message::of(self, id), envelope_status(&envelope)))
    }

    /// What a probe waits for, for reports on jobs that hang.
    fn probe_items(&self, source: Option<(u32, Peer)>, tag: Option<i32>) -> (Vec<Item>, usize) {
        let peer = source.map(|(_, peer)| peer.0);
        let state = "probe: waits for a message".to_owned();
        (vec![Item::Message { sends: false, state, peer, tag, context: self.ctx, bytes: 0 }], 1)
    }

    /// Attaches a buffer for buffered sends on this communicator (MPI_Comm_attach_buffer).
    pub fn attach_buffer(&self, buffer: Attached) -> Result<()> {
        attach(&self.attached, buffer)
    }

    /// Waits for the buffered sends of this communicator's buffer, and takes it back.
    pub fn detach_buffer(&self) -> Option<Arc<Attached>> {
        self.rt.detach(&self.attached)
    }

    /// Waits for the buffered sends of this communicator's buffer.
    pub fn flush_buffer(&self) {
        let attached = lock(&self.attached).clone();
        self.rt.drain(attached.as_ref());
    }

    #[allow(clippy::type_complexity, reason = "the two wildcards of a probe")]
    fn probe_args(&self, source: i32, tag: i32) -> Result<Option<(Option<(u32, Peer)>, Option<i32>)>> {
        check_recv_tag(tag)?;
        Ok(match self.source(source)? {
            Source::None => None,
            Source::Any => Some((None, wild(tag))),
            Source::One(rank, peer) => Some((Some((rank, peer)), wild(tag))),
        })
    }

    fn post_send(
        &self,
        engine: &mut Engine,
        data: &Data,
        peer: Peer,
        tag: i32,
        mode: SendMode,
    ) -> Result<StartedOp> {
        let Some(mode) = mode.of_p2p() else { return self.post_bsend(engine, data, peer, tag) };
        let args = self.send_args(data, peer, tag, mode);
        Ok(match engine.p2p.send(&mut engine.ports, args) {
            Started::Done(completion) => StartedOp::Over(outcome(&completion, false)),
            Started::Pending(id) => StartedOp::Active(id),
        })
    }

    fn post_bsend(&self, engine: &mut Engine, data: &Data, peer: Peer, tag: i32) -> Result<StartedOp> {
        let attached = lock(&self.attached).clone().or_else(|| lock(&self.rt.attached).clone());
        let Some(attached) = attached else {
            bail!(ERR_BUFFER, "no buffer is attached for buffered sends; call MPI_Buffer_attach first")
        };
        let bytes = attached.take(data.len()).or_else(|_| {
            // Sends that are over free their room as the engine progresses.
            engine.progress();
            attached.take(data.len())
        })?;
        let copy = Data::bytes(packed(data).inspect_err(|_| attached.give_back(bytes))?);
        let args = self.send_args(&copy, peer, tag, p2p::Mode::Standard);
        match engine.p2p.send(&mut engine.ports, args) {
            Started::Pending(id) => engine.bsends.push((id, attached, bytes)),
            Started::Done(completion) => {
                attached.give_back(bytes);
                return Ok(StartedOp::Over(outcome(&completion, false)));
            }
        }
        Ok(StartedOp::Over(Outcome::ok(Status::EMPTY)))
    }

    #[inline]
    fn recv_args<'a>(&self, data: &'a Data, source: &Source, tag: i32) -> RecvArgs<'a> {
        let src = match *source {
            Source::One(rank, peer) => Some((rank, peer)),
            _ => None,
        };
        RecvArgs { ctx: self.ctx, src, tag: wild(tag), data }
    }

    #[inline]
    fn post_recv(&self, engine: &mut Engine, data: &Data, source: &Source, tag: i32) -> StartedOp {
        if let Source::None = source {
            return StartedOp::Over(Outcome::ok(Status::NO_PROC));
        }
        match engine.p2p.recv(&mut engine.ports, self.recv_args(data, source, tag)) {
            Started::Done(completion) => StartedOp::Over(outcome(&completion, true)),
            Started::Pending(id) => StartedOp::Active(id),
        }
    }
}

impl Runtime {
    /// Attaches a buffer for buffered sends of this process (MPI_Buffer_attach).
    pub fn attach_buffer(&self, buffer: Attached) -> Result<()> {
        attach(&self.attached, buffer)
    }

    /// Waits for the buffered sends, and takes the process's buffer back (MPI_Buffer_detach).
    pub fn detach_buffer(&self) -> Option<Arc<Attached>> {
        self.detach(&self.attached)
    }

    /// Waits for the buffered sends of the process's buffer (MPI_Buffer_flush).
    pub fn flush_buffer(&self) {
        let attached = lock(&self.attached).clone();
        self.drain(attached.as_ref());
    }

    fn detach(&self, attached: &Mutex<Option<Arc<Attached>>>) -> Option<Arc<Attached>> {
        let attached = lock(attached).take();
        self.drain(attached.as_ref());
        attached
    }

    fn drain(&self, attached: Option<&Arc<Attached>>) {
        let Some(attached) = attached else { return };
        let drained = |engine: &mut Engine| {
            engine.bsends.iter().all(|(_, other, _)| !Arc::ptr_eq(other, attached)).then_some(())
        };
        self.wait(self.engine_lock.enter(), drained);
    }
}

/// A message operation that was just started.
pub(crate) enum StartedOp {
    Over(Outcome),
    Active(p2p::ReqId),
}

enum Source {
    Any,
    None,
    One(u32, Peer),
}

/// The outcome of a message; only that of a receive has a source and a tag.
#[inline(always)]
pub(crate) fn outcome(completion: &p2p::Completion, received: bool) -> Outcome {
    let status = match received {
        true => Status {
            source: completion.source as i32,
            tag: completion.tag,
            bytes: completion.bytes,
            cancelled: completion.cancelled,
        },
        false => Status { bytes: completion.bytes, cancelled: completion.cancelled, ..Status::EMPTY },
    };
    Outcome { status, error: completion.fault.as_ref().map(fault_error) }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

fn attach(attached: &Mutex<Option<Arc<Attached>>>, buffer: Attached) -> Result<()> {
    let mut attached = lock(attached);
    if attached.is_some() {
        bail!(ERR_BUFFER, "a buffer is attached already; detach it first");
    }
    *attached = Some(Arc::new(buffer));
    Ok(())
}

fn envelope_status(envelope: &p2p::Envelope) -> Status {
    Status { source: envelope.source as i32, tag: envelope.tag, bytes: envelope.bytes, cancelled: false }
}

fn wild(tag: i32) -> Option<i32> {
    (tag != ANY_TAG).then_some(tag)
}

#[inline]
fn check_tag(tag: i32) -> Result<()> {
    if !(0..=TAG_UB).contains(&tag) {
        return Err(bad_tag(tag, ""));
    }
    Ok(())
}

#[inline]
fn check_recv_tag(tag: i32) -> Result<()> {
    if !(0..=TAG_UB).contains(&tag) && tag != ANY_TAG {
        return Err(bad_tag(tag, ", or MPI_ANY_TAG"));
    }
    Ok(())
}

#[cold]
fn bad_tag(tag: i32, or: &str) -> Error {
    Error::new(Class::ERR_TAG, format!("tag is {tag}, but tags are 0 to {TAG_UB} (MPI_TAG_UB){or}"))
}

fn worse(a: Comparison, b: Comparison) -> Comparison {
    match (a, b) {
        (Comparison::Unequal, _) | (_, Comparison::Unequal) => Comparison::Unequal,
        (Comparison::Similar, _) | (_, Comparison::Similar) => Comparison::Similar,
        _ => Comparison::Ident,
    }
}
