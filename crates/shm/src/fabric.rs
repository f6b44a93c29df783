//! [`Shm`]: the rings of one rank, behind the contract of all fabrics.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Caps, Fabric, Get, Head, Peer, Refusal, Remote, Sink, Token};

use crate::arena::{self, Arena};
use crate::core::Core;
use crate::doorbell::{Bed, Doorbell};
use crate::error::Error;
use crate::layout::{MOST_RANKS, arena_stride};
use crate::names::Names;
use crate::options::{Options, Stats};
use crate::receiving::{BATCH, Incoming};
use crate::registry;
use crate::ring::{Consumer, INLINE, Producer};
use crate::segment::{Segment, new_memory};
use crate::sending::Outgoing;
use crate::socket::Socket;
use crate::sync::Ordering;
use crate::system;

/// Longest sleep if it is not certain that publishers know of it.
const UNSURE: Duration = Duration::from_millis(1);

/// Longest body of a frame. Up to here one frame, copied in and then out, is no slower than a rendezvous and
/// pieces that both sides copy at the same time, and a window of such messages is a tenth quicker.
const LONGEST: usize = 64 << 10;

/// Longest body that is copied in whole before it is copied out.
const PIECE: usize = 16 << 10;

/// One rank's end of the shared memory of its node.
///
/// Not to be used in a child after `fork`; there it can be dropped, which does nothing to the parent.
pub struct Shm {
    // The rings point into the segment that `core` holds.
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) incoming: Vec<Incoming>,
    pub(crate) core: Arc<Core>,
    pub(crate) names: Names,
    /// Incoming rings that every poll looks at.
    pub(crate) hot: Vec<u32>,
    /// Polls so far: tells which of the hot rings are idle.
    pub(crate) polls: u64,
    /// Peers to which a send was refused.
    pub(crate) starved: Vec<u32>,
    /// Peers that are gone and have not been reported, with the cause.
    pub(crate) dying: Vec<(u32, String)>,
    pub(crate) socket: Option<Socket>,
    pub(crate) armed: Option<Bed>,
    /// The last barrier did not reach the publishers for certain.
    pub(crate) unsure: bool,
}

impl Shm {
    /// Attaches local rank `me` of `peers.len()`; `peers[i]` is the universe id of local rank `i`.
    ///
    /// `memory` is shared by all ranks of the node: zero-filled when the first one comes, and at least as
    /// large as the error says that refuses it; [`Shm::memory`] makes it. It may be used again
    /// by a later instance of this rank once this one is dropped.
    pub fn attach(memory: OwnedFd, me: u32, peers: &[Peer], options: Options) -> Result<Shm, Error> {
        let ranks = peers.len() as u32;
        let core = Core::new(Segment::map(memory, ranks)?, me, &options)?;
        Ok(Shm {
            outgoing: peers.iter().map(|_| Outgoing::Cold).collect(),
            incoming: peers.iter().map(|_| Incoming::default()).collect(),
            core: Arc::new(core),
            names: Names::new(peers),
            hot: Vec::new(),
            polls: 0,
            starved: Vec::new(),
            dying: Vec::new(),
            socket: None,
            armed: None,
            unsure: false,
        })
    }

    /// Memory for a process without peers.
    pub fn private() -> io::Result<OwnedFd> {
        Self::memory(1)
    }

    /// The most ranks that can share the memory of a node.
    pub const MOST_RANKS: u32 = MOST_RANKS;

    /// Memory for `ranks` (1 to [`Shm::MOST_RANKS`]) on this node: a memfd, sealed so that its size stays, closed on exec. Its
    /// size is a reservation, several GiB for many ranks: only what is used takes memory. Limits of this process on files and
    /// address space make it smaller.
    ///
    /// # Errors
    /// If these limits are too low, and what the system says.
    pub fn memory(ranks: u32) -> io::Result<OwnedFd> {
        assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks cannot share memory");
        new_memory(ranks)
    }

    /// A frame of `peer` can be taken by the next poll, as far as so many looks at its ring show.
    #[inline(always)]
    pub fn peek(&self, peer: Peer, looks: u32) -> bool {
        let Some(from) = self.names.index(peer) else { return false };
        match &self.incoming[from].ring {
            Some(ring) => ring.ready() || (1..looks).any(|_| ring.ready()),
            None => (0..looks).any(|_| self.has_inbound()),
        }
    }

    /// A poll would find nothing.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        let ready = |&from: &u32| self.incoming[from as usize].ring.as_ref().is_some_and(Consumer::ready);
        !self.has_inbound() && self.dying.is_empty() && !self.hot.iter().any(ready)
    }

    /// Reports that `peer` is gone (who starts the ranks knows): what it sent is still handed over, then
    /// [`Sink::down`] says `cause`.
    pub fn peer_died(&mut self, peer: Peer, cause: &str) {
        let Some(index) = self.names.index(peer) else { return };
        self.lose(index, cause.to_owned());
    }

    /// Whether `peer`'s memory can be read by [`Fabric::get`]: really tried on the first call after it has
    /// attached; `None` before.
    pub fn can_get(&self, peer: Peer) -> Option<bool> {
        self.core.try_reach(self.names.index(peer)? as u32)
    }

    /// Counts since this instance attached.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// Bytes of the slots of a communicator of `ranks`.
    pub fn arena_bytes(ranks: u32) -> usize {
        arena_stride(ranks)
    }

    /// The slots of the communicator `ctx` (not 0): their offset, which all its ranks get alike, in whatever order
    /// they ask; `None` (for all of them) if there is no room. Each calls [`Shm::arena_leave`] in the end.
    pub fn arena_join(&self, ctx: u64, ranks: u32) -> Option<u64> {
        let segment = &self.core.segment;
        registry::join(segment, &segment.header().registry, ctx, ranks)
    }

    /// This rank does not use the slots of `ctx` any more; when all have left they are freed.
    pub fn arena_leave(&self, ctx: u64, ranks: u32) {
        let segment = &self.core.segment;
        registry::leave(segment, &segment.header().registry, ctx, ranks);
    }

    /// Takes zeroed room for the slots of a communicator of `ranks`; its offset, for all its ranks. `None`: none
    /// is left. One rank calls this and tells the others.
    pub fn arena_alloc(&self, ranks: u32) -> Option<u64> {
        registry::take(&self.core.segment, ranks)
    }

    /// Gives the room back; no rank may look at it any more. One rank calls this.
    pub fn arena_free(&self, offset: u64, ranks: u32) {
        registry::give(&self.core.segment, offset, ranks);
    }

    /// The slots at `offset`, seen by rank `me` of a communicator of `ranks`, whose local indices are `peers`.
    pub fn arena(&self, offset: u64, me: u32, ranks: u32, peers: &[u32]) -> Arena {
        assert_eq!(peers.len(), ranks as usize, "one local index per rank");
        arena::open(&self.core, offset, me, peers)
    }

    /// The descriptor that becomes readable when an armed rank is woken; the same at each call.
    pub fn descriptor(&mut self) -> io::Result<RawFd> {
        if self.socket.is_none() {
            self.socket = Some(self.core.new_socket()?);
        }
        self.socket.as_ref().map(|socket| socket.as_fd().as_raw_fd()).ok_or(io::ErrorKind::NotFound.into())
    }

    /// A duplicate of [`Shm::descriptor`], to sleep on while the fabric itself is in other hands.
    pub fn bell_descriptor(&mut self) -> io::Result<OwnedFd> {
        self.descriptor()?;
        let socket = self.socket.as_ref().ok_or(io::ErrorKind::NotFound)?;
        socket.as_fd().try_clone_to_owned()
    }

    /// Like [`Fabric::arm`], and makes the descriptor readable on arrivals, so that a rank can sleep on other
    /// things too. The caller polls once more and asks [`Shm::has_news`] before it sleeps.
    pub fn arm_descriptor(&mut self) -> io::Result<RawFd> {
        let descriptor = self.descriptor()?;
        self.arm_as(Bed::Descriptor);
        Ok(descriptor)
    }

    /// After arming: something came that is no frame (room for a refused send, a publication in an arena),
    /// or someone has woken us already.
    pub fn has_news(&mut self) -> bool {
        let outgoing = &self.outgoing;
        let ring = |&to: &u32| match &outgoing[to as usize] {
            Outgoing::Open(lane) => Some(&lane.ring),
            _ => None,
        };
        self.starved.retain(|to| ring(to).is_some_and(Producer::is_starved));
        let room = self.starved.iter().filter_map(ring).any(Producer::has_news);
        let woken = self.armed.is_some() && !self.bell().is_armed();
        // Asked first and always: what has come is taken off the list of what is missing.
        arena::any_news(&self.core) || room || woken
    }

    /// After arming by descriptor: no sleep may be longer than this. `None`: no such limit.
    pub fn longest_sleep(&self) -> Option<Duration> {
        self.unsure.then_some(UNSURE)
    }

    fn arm_as(&mut self, bed: Bed) {
        arena::mark_all(&self.core);
        for &to in &self.starved {
            if let Outgoing::Open(lane) = &mut self.outgoing[to as usize]
                && lane.ring.is_starved()
            {
                lane.ring.ask();
            }
        }
        self.bell().arm(bed);
        self.armed = Some(bed);
        self.unsure = !self.core.heavy_barrier();
    }

    fn bell(&self) -> &Doorbell {
        &self.core.block(self.core.me).bell
    }

    #[inline(always)]
    fn has_inbound(&self) -> bool {
        self.core.block(self.core.me).inbound.groups.load(Ordering::Relaxed) != 0
    }

    /// Leaves the rings as a later instance needs them.
    fn leave(&mut self) {
        for lane in &self.outgoing {
            if let Outgoing::Open(lane) = lane {
                lane.ring.save();
            }
        }
        let fences = self.core.fences();
        for (from, slot) in self.incoming.iter_mut().enumerate() {
            let Some(ring) = &mut slot.ring else { continue };
            ring.set_hot(false);
            if ring.tell(fences) {
                self.core.wake(from as u32);
            }
        }
        self.core.heavy_barrier();
        for (from, slot) in self.incoming.iter().enumerate() {
            if slot.ring.as_ref().is_some_and(Consumer::ready) {
                self.mark_inbound(self.core.me, from as u32);
            }
        }
        self.core.stand_up();
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        if self.core.is_ours() {
            self.leave();
        }
    }
}

impl Fabric for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    #[inline(always)]
    fn caps(&self, peer: Peer) -> Caps {
        let get = self.names.index(peer).is_some_and(|index| self.core.can_read(index as u32));
        let max_bcopy = self.core.segment.layout.max_body().min(LONGEST);
        // Where frames are the way of long messages, there is a core for each rank.
        let piece = if get { max_bcopy } else { max_bcopy.min(PIECE) };
        Caps { max_short: INLINE, max_bcopy, eager: max_bcopy, piece, get, alpha: 0.1e-6, beta: 0.1e-9 }
    }

    fn connect(&mut self, peer: Peer, _card: &[u8]) -> Result<(), String> {
        match self.names.index(peer) {
            Some(_) => Ok(()),
            None => Err(format!("{peer:?} is not on this node")),
        }
    }

    #[inline(always)]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        let fences = self.core.fences();
        let (to, lane) = self.lane(peer)?;
        if !lane.ring.push_short(&head.encode(), body) {
            return Err(self.refuse(to));
        }
        if !lane.is_settled(fences) {
            self.announce(to);
        }
        Ok(())
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        let fences = self.core.fences();
        let (to, _) = self.lane(peer)?;
        if len > INLINE {
            self.carve(to, len)?;
        }
        let (_, lane) = self.lane(peer)?;
        if !lane.ring.push(&head.encode(), len, fill) {
            return Err(self.refuse(to));
        }
        if !lane.is_settled(fences) {
            self.announce(to);
        }
        Ok(())
    }

    fn expose(&mut self, _peer: Peer, memory: &Buffer) -> Remote {
        self.core.remote(memory)
    }

    fn revoke(&mut self, _remote: Remote) {
        self.core.revoke();
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, _token: Token) -> Get {
        match self.names.index(peer) {
            Some(index) => self.core.read(index as u32, remote, local),
            None => Get::Impossible,
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        self.polls += 1;
        if self.has_inbound() {
            self.welcome();
        }
        let mut events = 0;
        let mut at = 0;
        // A ring that turns out corrupt leaves the list on the way.
        while let Some(&from) = self.hot.get(at) {
            at += 1;
            if self.incoming[from as usize].ring.as_ref().is_some_and(Consumer::ready) {
                events += self.drain(from as usize, BATCH, sink);
            }
        }
        if !self.dying.is_empty() {
            events += self.bury(sink);
        }
        events
    }

    fn arm(&mut self) {
        self.arm_as(Bed::Futex);
    }

    fn disarm(&mut self) {
        self.bell().awake();
        if self.armed.take() == Some(Bed::Descriptor)
            && let Some(socket) = &self.socket
        {
            socket.drain();
        }
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        if self.has_news() {
            return;
        }
        self.core.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.into_iter().chain(self.longest_sleep()).min();
        match (self.armed, &self.socket) {
            (Some(Bed::Descriptor), Some(socket)) => socket.wait(left),
            _ => {
                let (word, value) = self.bell().futex();
                system::futex_wait(word, value, left);
            }
        }
    }
}
