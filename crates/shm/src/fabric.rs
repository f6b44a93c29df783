//! [`Shm`]: the rings of one rank, behind the contract of all fabrics.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Caps, Fabric, Get, Head, Peer, Refusal, Remote, Sink, Token};

use crate::arena::{self, Arena};
use crate::core::Core;
use crate::doorbell::{Bed, Doorbell, light_barrier};
use crate::error::Error;
use crate::layout::{Layout, arena_stride};
use crate::names::Names;
use crate::registry;
use crate::ring::{Consumer, INLINE, Producer};
use crate::segment::{MappedRing, Segment, new_memory};
use crate::socket::Socket;
use crate::sync::{Ordering, fence};
use crate::system;

/// Frames taken from one ring in one poll.
const BATCH: usize = 32;
/// Rings polled without being told of.
const HOT: usize = 32;
/// The data ring gets its pages in pieces of so many bytes, as it is used.
const CARVE: u64 = 32 << 10;
/// Longest sleep if it is not certain that publishers know of it.
const UNSURE: Duration = Duration::from_millis(1);

/// How memory of peers is read without going through the rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SingleCopy {
    /// By a plain copy inside one process, else by `process_vm_readv` where the system allows it.
    #[default]
    Auto,
    /// By `process_vm_readv` in any case.
    Syscall,
    /// Not at all.
    Off,
}

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How memory of peers is read.
    pub single_copy: SingleCopy,
    /// Ranks sleep often: all that send fence, some nanoseconds each, and going to sleep is cheap. Otherwise
    /// sending is cheaper, and going to sleep interrupts the cores that run other ranks, some microseconds.
    /// `None`: if the node has more ranks than cores. One rank that asks for it is enough.
    pub crowded: Option<bool>,
}

/// Counts since this instance attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Reads of peers' memory that were done.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Reads that were refused, and went another way.
    pub refused_reads: u64,
    /// Times that we woke a peer.
    pub wakes: u64,
    /// Times that a peer asked to be woken by its socket and could not be (another network namespace).
    pub lost_wakes: u64,
    /// Times that we slept.
    pub sleeps: u64,
    /// Sends that found no room.
    pub busy: u64,
}

/// One rank's end of the shared memory of its node.
///
/// Not to be used in a child after `fork`; there it can be dropped, which does nothing to the parent.
pub struct Shm {
    // The rings point into the segment that `core` holds.
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    core: Arc<Core>,
    names: Names,
    /// Incoming rings that every poll looks at.
    hot: Vec<u32>,
    /// Polls so far: tells which of the hot rings are idle.
    polls: u64,
    /// Peers to which a send was refused.
    starved: Vec<u32>,
    /// Peers that are gone and have not been reported, with the cause.
    dying: Vec<(u32, String)>,
    socket: Option<Socket>,
    armed: Option<Bed>,
    /// The last barrier did not reach the publishers for certain.
    unsure: bool,
}

/// Towards one peer.
enum Outgoing {
    Cold,
    Open(Lane),
    /// Gone, and not yet reported.
    Dying,
    Down,
}

struct Lane {
    ring: Producer<MappedRing>,
    bell: *const Doorbell,
    /// Bytes of the data ring that have pages.
    carved: u64,
}

// SAFETY: the pointer leads into the segment, which the fabric holds; a doorbell is shared by all.
unsafe impl Send for Lane {}

impl Lane {
    /// Nothing more needs to be done after a send: the peer polls this ring, and does not sleep.
    #[inline]
    fn is_settled(&self, fences: bool) -> bool {
        light_barrier(fences);
        // SAFETY: `core` keeps the segment mapped for as long as this lane.
        let bell = unsafe { &*self.bell };
        bell.is_awake() && self.ring.is_hot()
    }
}

/// From one peer.
#[derive(Default)]
struct Incoming {
    ring: Option<Consumer<MappedRing>>,
    is_hot: bool,
    /// The poll that last found a frame.
    seen: u64,
}

impl Shm {
    /// Attaches local rank `me` of `peers.len()`; `peers[i]` is the universe id of local rank `i`.
    ///
    /// `memory` is shared by all ranks of the node: zero-filled when the first one comes, and at least as
    /// large as the error says that refuses it; [`Shm::segment_bytes`] is a good size. It may be used again
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

    /// Memory for `ranks` on this node: a sealed memfd, closed on exec.
    pub fn memory(ranks: u32) -> io::Result<OwnedFd> {
        new_memory(Self::segment_bytes(ranks))
    }

    /// A good size for the memory of a node with `ranks` ranks, bytes. Only what is used takes memory.
    pub fn segment_bytes(ranks: u32) -> usize {
        Layout::recommended(ranks)
    }

    /// A frame of `peer` can be taken by the next poll, as far as one look at its ring shows.
    #[inline]
    pub fn peek(&self, peer: Peer) -> bool {
        let Some(from) = self.names.index(peer) else { return false };
        match &self.incoming[from].ring {
            Some(ring) => ring.ready(),
            None => self.has_inbound(),
        }
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
        registry::join(&self.core, ctx, ranks)
    }

    /// This rank does not use the slots of `ctx` any more; when all have left they are freed.
    pub fn arena_leave(&self, ctx: u64, ranks: u32) {
        registry::leave(&self.core, ctx, ranks);
    }

    /// Takes zeroed room for the slots of a communicator of `ranks`; its offset, for all its ranks. `None`: none
    /// is left. One rank calls this and tells the others.
    pub fn arena_alloc(&self, ranks: u32) -> Option<u64> {
        arena::take(&self.core, ranks)
    }

    /// Gives the room back; no rank may look at it any more. One rank calls this.
    pub fn arena_free(&self, offset: u64, ranks: u32) {
        arena::give(&self.core, offset, ranks);
    }

    /// The slots at `offset`, seen by rank `me` of a communicator of `ranks`, whose local indices are `peers`.
    pub fn arena(&self, offset: u64, me: u32, ranks: u32, peers: &[u32]) -> Arena {
        assert_eq!(peers.len(), ranks as usize, "one local index per rank");
        arena::open(&self.core, offset, me, peers)
    }

    /// The descriptor that becomes readable when an armed rank is woken; the same at each call.
    pub fn descriptor(&mut self) -> io::Result<RawFd> {
        if self.socket.is_none() {
            self.socket = Some(Socket::of(self.core.name(), self.core.me)?);
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
        self.bell().arm(bed);
        self.armed = Some(bed);
        self.unsure = !self.core.heavy_barrier();
    }

    fn bell(&self) -> &Doorbell {
        &self.core.block(self.core.me).bell
    }

    fn has_inbound(&self) -> bool {
        self.core.block(self.core.me).inbound.groups.load(Ordering::Relaxed) != 0
    }

    /// The lane to a peer, opened on first use.
    #[inline]
    fn lane(&mut self, peer: Peer) -> Result<(usize, &mut Lane), Refusal> {
        let to = self.names.index(peer).ok_or(Refusal::Down)?;
        if !matches!(self.outgoing[to], Outgoing::Open(_)) {
            self.open(to)?;
        }
        match &mut self.outgoing[to] {
            Outgoing::Open(lane) => Ok((to, lane)),
            _ => Err(Refusal::Busy),
        }
    }

    #[cold]
    fn open(&mut self, to: usize) -> Result<(), Refusal> {
        match self.outgoing[to] {
            Outgoing::Down => return Err(Refusal::Down),
            Outgoing::Dying => return Err(Refusal::Busy),
            Outgoing::Open(_) => return Ok(()),
            Outgoing::Cold => {}
        }
        let (me, layout) = (self.core.me, &self.core.segment.layout);
        let at = layout.ring(me, to as u32);
        if let Err(error) = self.core.segment.populate(at, layout.ring_head_bytes()) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        let ring = self.core.segment.ring(me, to as u32);
        let ring = Producer::new(ring, layout.first_slot(me, to as u32));
        let bell = std::ptr::from_ref(&self.core.block(to as u32).bell);
        self.outgoing[to] = Outgoing::Open(Lane { ring, bell, carved: 0 });
        Ok(())
    }

    /// Makes sure that the data ring has pages for a body of `len` bytes.
    fn carve(&mut self, to: usize, len: usize) -> Result<(), Refusal> {
        let Outgoing::Open(lane) = &mut self.outgoing[to] else { return Err(Refusal::Busy) };
        let reach = lane.ring.reach(len);
        if reach <= lane.carved {
            return Ok(());
        }
        let layout = &self.core.segment.layout;
        let reach = reach.next_multiple_of(CARVE).min(layout.data_bytes);
        let at = layout.ring(self.core.me, to as u32) + layout.ring_head_bytes();
        let (from, more) = (at + lane.carved as usize, (reach - lane.carved) as usize);
        if let Err(error) = self.core.segment.populate(from, more) {
            self.lose(to, no_memory(&error));
            return Err(Refusal::Busy);
        }
        lane.carved = reach;
        Ok(())
    }

    /// After a send: tells the peer if it does not poll this ring, or sleeps.
    #[cold]
    fn announce(&self, to: usize) {
        fence(Ordering::SeqCst);
        if let Outgoing::Open(lane) = &self.outgoing[to]
            && !lane.ring.is_hot()
        {
            self.mark_inbound(to as u32, self.core.me);
            fence(Ordering::SeqCst);
        }
        self.core.wake(to as u32);
    }

    /// Sets the bit of `from` in the inbound bitmap of `to`.
    fn mark_inbound(&self, to: u32, from: u32) {
        let (group, bit) = (from / 64, from % 64);
        let before = self.core.segment.inbound(to, group).fetch_or(1 << bit, Ordering::AcqRel);
        if before == 0 {
            // More than 64 groups share bits.
            let groups = &self.core.block(to).inbound.groups;
            groups.fetch_or(1 << (group % 64), Ordering::AcqRel);
        }
    }

    #[cold]
    fn refuse(&mut self, to: usize) -> Refusal {
        self.core.counters.busy.fetch_add(1, Ordering::Relaxed);
        if !self.starved.contains(&(to as u32)) {
            self.starved.push(to as u32);
        }
        Refusal::Busy
    }

    fn lose(&mut self, index: usize, cause: String) {
        if !matches!(self.outgoing[index], Outgoing::Dying | Outgoing::Down) {
            self.outgoing[index] = Outgoing::Dying;
            self.core.forget(index as u32);
            self.dying.push((index as u32, cause));
        }
    }

    /// Starts polling the rings whose senders said that they are not polled.
    #[cold]
    fn welcome(&mut self) {
        let me = self.core.me;
        let groups = self.core.block(me).inbound.groups.swap(0, Ordering::AcqRel);
        for group in 0..self.core.segment.layout.ranks.div_ceil(64) {
            if groups & (1 << (group % 64)) == 0 {
                continue;
            }
            let mut bits = self.core.segment.inbound(me, group).swap(0, Ordering::AcqRel);
            while bits != 0 {
                self.warm(group * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        if self.hot.len() > HOT {
            self.cool();
        }
    }

    fn warm(&mut self, from: u32) {
        let polls = self.polls;
        let Some(slot) = self.incoming.get_mut(from as usize) else { return };
        slot.seen = polls;
        if slot.is_hot {
            return;
        }
        slot.is_hot = true;
        consumer(&self.core, slot, from).set_hot(true);
        self.hot.push(from);
    }

    /// Stops polling the half of the hot rings that has been idle for longest.
    #[cold]
    fn cool(&mut self) {
        let incoming = &mut self.incoming;
        self.hot.sort_by_key(|&from| std::cmp::Reverse(incoming[from as usize].seen));
        let idle = self.hot.split_off(HOT / 2);
        // Answers whether a frame is there.
        let mut set = |from: u32, hot: bool| {
            let slot = &mut incoming[from as usize];
            slot.is_hot = hot;
            slot.ring.as_ref().inspect(|ring| ring.set_hot(hot));
            slot.ring.as_ref().is_some_and(Consumer::ready)
        };
        for &from in &idle {
            set(from, false);
        }
        // Either a sender sees that its ring is cold, or we see what it sent: see `doorbell`.
        let certain = self.core.heavy_barrier();
        for from in idle {
            if set(from, false) || !certain {
                set(from, true);
                self.hot.push(from);
            }
        }
    }

    /// Hands over what one ring has, up to a batch.
    fn drain(&mut self, from: usize, sink: &mut impl Sink) -> usize {
        let peer = self.names.peer(from);
        let slot = &mut self.incoming[from];
        let Some(ring) = &mut slot.ring else { return 0 };
        let (mut frames, mut sane) = (0, true);
        while sane && frames < BATCH {
            let taken = ring.take(|head, body| match Head::decode(head) {
                Some(head) => sink.frame(peer, &head, body),
                None => sane = false,
            });
            match taken {
                Ok(true) => frames += 1,
                Ok(false) => break,
                Err(_) => sane = false,
            }
        }
        slot.seen = self.polls;
        if ring.tell_some() {
            self.core.wake(from as u32);
        }
        if !sane {
            self.hot.retain(|&hot| hot as usize != from);
            slot.is_hot = false;
            slot.ring = None;
            self.lose(from, "its ring in shared memory holds no valid frame".to_owned());
        }
        frames
    }

    /// Hands over the rest of what the dead sent, then reports them.
    #[cold]
    fn bury(&mut self, sink: &mut impl Sink) -> usize {
        let mut events = 0;
        for (index, cause) in std::mem::take(&mut self.dying) {
            let slot = &mut self.incoming[index as usize];
            consumer(&self.core, slot, index);
            let taken = self.drain(index as usize, sink);
            events += taken;
            if taken > 0 {
                self.dying.push((index, cause));
                continue;
            }
            self.outgoing[index as usize] = Outgoing::Down;
            sink.down(self.names.peer(index as usize), &cause);
            events += 1;
        }
        events
    }

    /// Leaves the rings as a later instance needs them.
    fn leave(&mut self) {
        for lane in &self.outgoing {
            if let Outgoing::Open(lane) = lane {
                lane.ring.save();
            }
        }
        for (from, slot) in self.incoming.iter_mut().enumerate() {
            let Some(ring) = &mut slot.ring else { continue };
            ring.set_hot(false);
            if ring.tell() {
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

/// The receiving side of the ring from `from`, made on first use: an idle pair takes no memory.
fn consumer<'a>(core: &Core, slot: &'a mut Incoming, from: u32) -> &'a mut Consumer<MappedRing> {
    slot.ring.get_or_insert_with(|| {
        let start = core.segment.layout.first_slot(from, core.me);
        Consumer::new(core.segment.ring(from, core.me), start)
    })
}

fn no_memory(error: &io::Error) -> String {
    format!("no shared memory for a ring to it: {error} (is the memory limit of this container too small?)")
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

    fn caps(&self, peer: Peer) -> Caps {
        let get = self.names.index(peer).is_some_and(|index| self.core.can_read(index as u32));
        let max_bcopy = self.core.segment.layout.max_body();
        Caps { max_short: INLINE, max_bcopy, eager: max_bcopy, get, alpha: 0.1e-6, beta: 0.1e-9 }
    }

    fn connect(&mut self, peer: Peer, _card: &[u8]) -> Result<(), String> {
        match self.names.index(peer) {
            Some(_) => Ok(()),
            None => Err(format!("{peer:?} is not on this node")),
        }
    }

    #[inline]
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
                events += self.drain(from as usize, sink);
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
