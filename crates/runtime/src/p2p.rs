//! Point-to-point communication on a communicator (MPI 5.0, chapter 3).
//!
//! Each send and receive is tried once when it is started: a message that can leave at once leaves, a message that is at
//! the fabric already is taken. What is not over then is a request of the engine. Blocking calls wait for it.

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::EngineGuard;
use banyan_p2p::{self as p2p, P2p, RecvArgs, SendArgs};
use banyan_pmi::status::Item;
use banyan_transport::Peer;

use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Class, Error, Result};
use crate::message::Message;
use crate::request::{Operation, Posted, Request, Started};
use crate::runtime::Runtime;
use crate::slow;
use crate::stateful::{Persistent, PersistentMessage};
use crate::status::{Outcome, Source, Status, TAG_UB};

pub use banyan_p2p::Mode as SendMode;

/// Polls of a peer's ring before a receive from that peer is posted: some microseconds.
const SPINS: u32 = 2000;

/// The process that a message goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// The process of this rank: of the other group, if there are two.
    Rank(i32),
    /// No process (MPI_PROC_NULL): the send is over at once and moves nothing.
    ProcNull,
}

/// A [`Source`] whose rank was checked.
#[derive(Clone, Copy)]
pub(crate) enum Sender {
    Any,
    None,
    One(u32, Peer),
}

/// A request that borrows the runtime, as calls that start a message give it.
pub type Borrowed<'a> = Request<&'a Arc<Runtime>>;
/// Data to send, their receiver, and the tag.
pub type Outgoing<'a> = (&'a Data, Dest, i32);
/// Where to receive, from whom, and the tag; `None` is any tag (MPI_ANY_TAG).
pub type Incoming<'a> = (&'a Data, Source, Option<i32>);

impl Comm {
    /// The process that a message goes to; `None` is no process.
    #[inline(always)]
    pub(crate) fn receiver(&self, dest: Dest) -> Result<Option<Peer>> {
        match dest {
            Dest::Rank(rank) => self.process(rank, "dest").map(|(_, peer)| Some(peer)),
            Dest::ProcNull => Ok(None),
        }
    }

    #[inline(always)]
    pub(crate) fn sender(&self, source: Source) -> Result<Sender> {
        match source {
            Source::Rank(rank) => self.process(rank, "source").map(|(rank, peer)| Sender::One(rank, peer)),
            Source::Any => Ok(Sender::Any),
            Source::ProcNull => Ok(Sender::None),
        }
    }

    #[inline(always)]
    fn process(&self, rank: i32, what: &str) -> Result<(u32, Peer)> {
        match u32::try_from(rank).ok().and_then(|rank| Some((rank, self.targets().peer(rank)?))) {
            Some(process) => Ok(process),
            None => Err(self.no_rank(rank, what)),
        }
    }

    #[cold]
    fn no_rank(&self, rank: i32, what: &str) -> Error {
        let (name, last) = (self.name_or_kind(), self.targets().size().saturating_sub(1));
        Error::new(Class::ERR_RANK, format!("{what} is {rank}, but {name} has ranks 0 to {last}"))
    }

    /// Sends, and returns when the buffer may be used again (MPI_Send, Ssend, Rsend, Bsend).
    #[inline(always)]
    pub fn send(&self, data: &Data, dest: Dest, tag: i32, mode: SendMode) -> Result<()> {
        let Some(peer) = self.receiver(dest)? else { return Ok(()) };
        check_tag(tag)?;
        let mut engine = self.runtime().engine_lock.enter();
        match self.start_send(&mut engine, data, peer, tag, mode)? {
            Started::Done(outcome) => outcome.into_result().map(drop),
            Started::Pending(sent) => self.finish(engine, sent).into_result().map(drop),
        }
    }

    /// Starts a send in any mode.
    #[inline(always)]
    fn start_send(
        &self,
        engine: &mut Engine,
        data: &Data,
        peer: Peer,
        tag: i32,
        mode: SendMode,
    ) -> Result<Started<Posted>> {
        match mode {
            SendMode::Buffered => self.start_bsend(engine, data, peer, tag),
            mode => Ok(self.post_send(engine, data, peer, tag, mode)),
        }
    }

    /// Starts a send. One of [`SendMode::Buffered`] takes no room in an attached buffer.
    #[inline(always)]
    pub(crate) fn post_send(
        &self,
        engine: &mut Engine,
        data: &Data,
        peer: Peer,
        tag: i32,
        mode: SendMode,
    ) -> Started<Posted> {
        let args = SendArgs { peer, ctx: self.context(), tag, src_rank: self.rank(), data, mode };
        let request = engine.p2p.send(&mut engine.ports, args);
        engine.early_looks.sent();
        Started::sent(request, data.len())
    }

    /// Waits for the end of a message.
    #[cold]
    fn finish(&self, engine: EngineGuard<'_, Engine>, posted: Posted) -> Outcome {
        let what = |engine: &Engine| slow::first(posted.item(engine).into_iter());
        let completion = self.runtime().wait_for(engine, |engine| engine.p2p.test(posted.id), &what);
        posted.outcome(completion)
    }

    /// Receives, and returns when the message is there (MPI_Recv). `None` is any tag.
    #[inline(always)]
    pub fn recv(&self, data: &Data, source: Source, tag: Option<i32>) -> Outcome {
        match self.sender(source).and_then(|sender| check_recv_tag(tag).map(|()| sender)) {
            Ok(sender) => self.receive(self.runtime().engine_lock.enter(), data, sender, tag),
            Err(error) => Outcome::failed(error),
        }
    }

    #[inline(always)]
    pub(crate) fn receive(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Outcome {
        match self.receive_bypass(&mut engine, data, sender, tag, SPINS) {
            Some(outcome) => outcome,
            None => self.receive_posted(engine, data, sender, tag),
        }
    }

    #[cold]
    fn receive_posted(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Outcome {
        if engine.ports.lingers()
            && let Some(outcome) = self.polled_bypass(&mut engine, data, sender, tag)
        {
            return outcome;
        }
        match self.post_recv(&mut engine, data, sender, tag) {
            Started::Done(outcome) => outcome,
            Started::Pending(received) => self.finish(engine, received),
        }
    }

    /// Starts a receive: takes the message if it is found to be there, and posts the receive otherwise.
    #[inline(always)]
    pub(crate) fn start_recv(
        &self,
        engine: &mut Engine,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Started<Posted> {
        // Others never look, and say nothing of when messages come: one from MPI_PROC_NULL is over at once.
        let Sender::One(..) = sender else { return self.post_recv(engine, data, sender, tag) };
        let started = match self.early_look(engine, data, sender, tag) {
            Some(outcome) => Started::Done(outcome),
            None => self.post_recv(engine, data, sender, tag),
        };
        if let Started::Done(_) = started {
            engine.early_looks.message_was_first();
        }
        started
    }

    #[inline(never)]
    pub(crate) fn post_recv(
        &self,
        engine: &mut Engine,
        data: &Data,
        sender: Sender,
        tag: Option<i32>,
    ) -> Started<Posted> {
        if let Sender::None = sender {
            return Started::Done(Outcome::ok(Status::NO_PROC));
        }
        let args = self.recv_args(data, sender, tag);
        Started::received(engine.p2p.recv(&mut engine.ports, args))
    }

    #[inline]
    pub(crate) fn recv_args<'a>(&self, data: &'a Data, sender: Sender, tag: Option<i32>) -> RecvArgs<'a> {
        let src = match sender {
            Sender::One(rank, peer) => Some((rank, peer)),
            Sender::Any | Sender::None => None,
        };
        RecvArgs { ctx: self.context(), src, tag, data }
    }

    /// Starts a send (MPI_Isend and its kin).
    #[inline(always)]
    pub fn isend(&self, data: &Data, dest: Dest, tag: i32, mode: SendMode) -> Result<Started<Borrowed<'_>>> {
        let peer = self.receiver(dest)?;
        check_tag(tag)?;
        let Some(peer) = peer else { return Ok(Started::Done(Outcome::ok(Status::EMPTY))) };
        let started = self.start_send(&mut self.runtime().engine_lock.enter(), data, peer, tag, mode)?;
        Ok(started.owned_by(self.runtime()))
    }

    /// Starts a receive (MPI_Irecv). `None` is any tag.
    #[inline(always)]
    pub fn irecv(&self, data: &Data, source: Source, tag: Option<i32>) -> Result<Started<Borrowed<'_>>> {
        let sender = self.sender(source)?;
        check_recv_tag(tag)?;
        let started = self.start_recv(&mut self.runtime().engine_lock.enter(), data, sender, tag);
        Ok(started.owned_by(self.runtime()))
    }

    /// A persistent send (MPI_Send_init and its kin).
    pub fn send_init(
        self: &Arc<Self>,
        data: &Data,
        dest: Dest,
        tag: i32,
        mode: SendMode,
    ) -> Result<Operation> {
        let dest = self.receiver(dest)?;
        check_tag(tag)?;
        let args = PersistentMessage::Send { data: data.clone(), dest, tag, mode };
        Ok(Operation::persistent(self, Persistent::Message(self.clone(), args)))
    }

    /// A persistent receive (MPI_Recv_init). `None` is any tag.
    pub fn recv_init(self: &Arc<Self>, data: &Data, source: Source, tag: Option<i32>) -> Result<Operation> {
        let sender = self.sender(source)?;
        check_recv_tag(tag)?;
        let args = PersistentMessage::Recv { data: data.clone(), sender, tag };
        Ok(Operation::persistent(self, Persistent::Message(self.clone(), args)))
    }

    /// Starts the message that a persistent request describes.
    pub(crate) fn start_message(&self, args: &PersistentMessage) -> Result<Started<Posted>> {
        let engine = &mut self.runtime().engine_lock.enter();
        match args {
            PersistentMessage::Send { data, dest: Some(peer), tag, mode } => {
                self.start_send(engine, data, *peer, *tag, *mode)
            }
            PersistentMessage::Send { dest: None, .. } => Ok(Started::Done(Outcome::ok(Status::EMPTY))),
            PersistentMessage::Recv { data, sender, tag } => Ok(self.start_recv(engine, data, *sender, *tag)),
        }
    }

    /// Looks for a message without waiting (MPI_Iprobe).
    pub fn iprobe(&self, source: Source, tag: Option<i32>) -> Result<Option<Status>> {
        let Some(source) = self.probed(source, tag)? else { return Ok(Some(Status::NO_PROC)) };
        let find = self.found(source, move |p2p, ctx| p2p.probe(ctx, source, tag));
        Ok(self.runtime().poll_for(find).transpose()?.map(|envelope| envelope_status(&envelope)))
    }

    /// Waits for a message (MPI_Probe).
    pub fn probe(&self, source: Source, tag: Option<i32>) -> Result<Status> {
        let Some(source) = self.probed(source, tag)? else { return Ok(Status::NO_PROC) };
        let engine = self.runtime().engine_lock.enter();
        let find = self.found(source, move |p2p, ctx| p2p.probe(ctx, source, tag));
        let found = self.runtime().wait_for(engine, find, &|_| self.probe_items(source, tag));
        found.map(|envelope| envelope_status(&envelope))
    }

    /// Looks for a message and takes it out of matching (MPI_Improbe).
    pub fn improbe(self: &Arc<Self>, source: Source, tag: Option<i32>) -> Result<Option<(Message, Status)>> {
        let Some(source) = self.probed(source, tag)? else {
            return Ok(Some((Message::none(), Status::NO_PROC)));
        };
        let find = self.found(source, move |p2p, ctx| p2p.mprobe(ctx, source, tag));
        let found = self.runtime().poll_for(find).transpose()?;
        Ok(found.map(|(id, envelope)| (Message::of(self, id), envelope_status(&envelope))))
    }

    /// Waits for a message and takes it out of matching (MPI_Mprobe).
    pub fn mprobe(self: &Arc<Self>, source: Source, tag: Option<i32>) -> Result<(Message, Status)> {
        let Some(source) = self.probed(source, tag)? else { return Ok((Message::none(), Status::NO_PROC)) };
        let engine = self.runtime().engine_lock.enter();
        let find = self.found(source, move |p2p, ctx| p2p.mprobe(ctx, source, tag));
        let (id, envelope) = self.runtime().wait_for(engine, find, &|_| self.probe_items(source, tag))?;
        Ok((Message::of(self, id), envelope_status(&envelope)))
    }

    /// Looks for a message from `source` in this communicator's context; an error if none is there and the source has failed.
    fn found<T>(
        &self,
        source: Option<(u32, Peer)>,
        look: impl Fn(&mut P2p, u64) -> Option<T>,
    ) -> impl FnMut(&mut Engine) -> Option<Result<T>> {
        let ctx = self.context();
        move |Engine { p2p, .. }| {
            let found = look(p2p, ctx).map(Ok);
            let mut fault = || p2p.probe_fault(ctx, source.map(|(_, peer)| peer));
            found.or_else(|| fault().map(|fault| Err(Error::of_message(&fault))))
        }
    }

    /// What a probe waits for, for reports on jobs that hang.
    fn probe_items(&self, source: Option<(u32, Peer)>, tag: Option<i32>) -> (Vec<Item>, usize) {
        let peer = source.map(|(_, peer)| peer.0);
        let state = "probe: waits for a message".to_owned();
        (vec![Item::Message { sends: false, state, peer, tag, context: self.context(), bytes: 0 }], 1)
    }

    /// The sender that a probe names, rank and process; `None` inside is any, `None` outside is no process.
    fn probed(&self, source: Source, tag: Option<i32>) -> Result<Option<Option<(u32, Peer)>>> {
        check_recv_tag(tag)?;
        Ok(match self.sender(source)? {
            Sender::None => None,
            Sender::Any => Some(None),
            Sender::One(rank, peer) => Some(Some((rank, peer))),
        })
    }
}

fn envelope_status(envelope: &p2p::Envelope) -> Status {
    let (source, tag) = (Source::Rank(envelope.source as i32), Some(envelope.tag));
    Status::new(source, tag, envelope.bytes, false)
}

#[inline]
pub(crate) fn check_tag(tag: i32) -> Result<()> {
    if !(0..=TAG_UB).contains(&tag) {
        return Err(bad_tag(tag, ""));
    }
    Ok(())
}

#[inline]
pub(crate) fn check_recv_tag(tag: Option<i32>) -> Result<()> {
    match tag {
        Some(tag) if !(0..=TAG_UB).contains(&tag) => Err(bad_tag(tag, ", or MPI_ANY_TAG")),
        _ => Ok(()),
    }
}

#[cold]
fn bad_tag(tag: i32, or: &str) -> Error {
    Error::new(Class::ERR_TAG, format!("tag is {tag}, but tags are 0 to {TAG_UB} (MPI_TAG_UB){or}"))
}
