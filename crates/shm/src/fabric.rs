//! [`Shm`]: the rings of one rank as a [`Fabric`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::{Buffer, MemoryKind, count_handed};
use banyan_transport::{
    Access, Caps, DeviceMoves, Fabric, Handed, Handover, Head, Kinds, Peer, Port, Refusal, RegisterError,
    Remote, Sink, Token, Transfer, Wake,
};

use crate::arena::{self, Arena};
use crate::attachment::{Attachment, Way};
use crate::devices::{self, Devices};
use crate::doorbell::{Doorbell, SleepMode};
use crate::error::Error;
use crate::handover::{self, Handovers};
use crate::layout::{MOST_RANKS, arena_stride};
use crate::options::{Options, Stats};
use crate::peer_map::PeerMap;
use crate::receiving::{BATCH, Incoming};
use crate::registry;
use crate::ring::{Consumer, INLINE, Producer};
use crate::segment::{Segment, new_memory};
use crate::sending::Outgoing;
use crate::socket::Socket;
use crate::swap::BLOCK;
use crate::sync::Ordering;
use crate::system;

/// Longest sleep if it is not certain that publishers see that the rank sleeps.
const UNSURE: Duration = Duration::from_millis(1);

/// Longest body of a frame. Up to this length one frame, copied in and then out, is no slower than a rendezvous and
/// pieces that both sides copy at the same time, and a window of such messages is a tenth quicker.
const LONGEST: usize = 64 << 10;

/// Longest body that is copied in whole before it is copied out.
const PIECE: usize = BLOCK;

/// One rank's end of the shared memory of its node.
///
/// Not to be used in a child after `fork`; there it can be dropped, which does nothing to the parent.
pub struct Shm {
    // The rings point into the segment that `attachment` holds.
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) incoming: Vec<Incoming>,
    /// Memory that is handed to peers, and what they have handed to this rank; drivers have pinned parts of the segment.
    handovers: Handovers,
    pub(crate) attachment: Arc<Attachment>,
    pub(crate) peers: PeerMap,
    /// The senders whose rings every poll reads.
    pub(crate) hot: Vec<u32>,
    /// Number of polls so far, which shows which of the hot rings are idle.
    pub(crate) polls: u64,
    /// Peers to which a send was refused.
    pub(crate) starved: Vec<u32>,
    /// Peers that are gone and not yet reported, with the cause.
    pub(crate) lost: Vec<(u32, String)>,
    /// Memory of devices that is exposed to peers, and what is read of theirs.
    pub(crate) devices: Devices,
    /// Work for polls that is there rarely: peers to report, or reads of memory of devices.
    pub(crate) rare: bool,
    pub(crate) socket: Option<Socket>,
    pub(crate) armed: Option<SleepMode>,
    /// True if the last barrier may not have reached all publishers.
    pub(crate) unsure: bool,
}

impl Shm {
    /// Attaches local rank `me` of `peers.len()`; `peers[i]` is the universe id of local rank `i`.
    ///
    /// `memory` is shared by all ranks of the node; [`Shm::memory`] makes it. It is zero-filled when the first rank
    /// attaches, and at least as large as [`Error::TooSmall`] says. A later instance of this rank may attach to it once
    /// this one is dropped.
    pub fn attach(memory: OwnedFd, me: u32, peers: &[Peer], options: Options) -> Result<Shm, Error> {
        let ranks = peers.len() as u32;
        let attachment = Attachment::new(Segment::map(memory, ranks)?, me, &options)?;
        Ok(Shm {
            outgoing: peers.iter().map(|_| Outgoing::Unopened).collect(),
            incoming: peers.iter().map(|_| Incoming::default()).collect(),
            handovers: Handovers::new(),
            attachment: Arc::new(attachment),
            peers: PeerMap::new(peers),
            hot: Vec::new(),
            polls: 0,
            starved: Vec::new(),
            lost: Vec::new(),
            devices: Devices::default(),
            rare: false,
            socket: None,
            armed: None,
            unsure: false,
        })
    }

    /// Memory for a process without peers.
    pub fn private() -> io::Result<OwnedFd> {
        Self::memory(1, None)
    }

    /// The most ranks that can share the memory of a node.
    pub const MOST_RANKS: u32 = MOST_RANKS;

    /// Memory for `ranks` (1 to [`Shm::MOST_RANKS`]) on this node: a memfd, sealed so that its size stays, closed on exec. Its
    /// size is a reservation, several GiB for many ranks: only what is used takes memory. Limits of this process on files and
    /// address space make it smaller. `private_cache`: bytes of cache that each core has for itself, if that is known, which the rings
    /// of few ranks are longer than.
    ///
    /// # Errors
    /// If these limits are too low, and what the system says.
    pub fn memory(ranks: u32, private_cache: Option<u64>) -> io::Result<OwnedFd> {
        assert!((1..=MOST_RANKS).contains(&ranks), "{ranks} ranks cannot share memory");
        new_memory(ranks, private_cache)
    }

    /// True if the next poll can consume a frame of `peer`; its ring is read up to `spins` times until one is there.
    #[inline(always)]
    pub fn peek(&self, peer: Peer, spins: u32) -> bool {
        let Some(from) = self.peers.index(peer) else { return false };
        let incoming = &self.incoming[from];
        match &incoming.ring {
            Some(ring) if ring.ready() => true,
            Some(ring) => (1..spins).any(|_| ring.ready()),
            None => (0..spins).any(|_| self.has_inbound()),
        }
    }

    /// Whether [`Port::get`] can read `peer`'s memory. The first call after `peer` has attached really tries it; `None`
    /// before that.
    pub fn can_get(&self, peer: Peer) -> Option<bool> {
        self.attachment.test_read(self.peers.index(peer)? as u32)
    }

    /// Counts since this instance attached.
    pub fn stats(&self) -> Stats {
        self.attachment.stats()
    }

    /// Bytes of the arena of a communicator of `ranks`.
    pub fn arena_bytes(ranks: u32) -> usize {
        arena_stride(ranks)
    }

    /// The offset of the arena of the communicator `ctx` (not 0). All its ranks get the same answer, in whatever order
    /// they ask; `None` (for all of them) if there is no room. Each calls [`Shm::arena_leave`] in the end, also after `None`.
    pub fn arena_join(&self, ctx: u64, ranks: u32) -> Option<u64> {
        let segment = &self.attachment.segment;
        registry::join(segment, &segment.header().registry, ctx, ranks)
    }

    /// This rank does not use the arena of `ctx` any more; when all its ranks have left, it is freed.
    pub fn arena_leave(&self, ctx: u64, ranks: u32) {
        let segment = &self.attachment.segment;
        registry::leave(segment, &segment.header().registry, ctx, ranks);
    }

    /// Allocates a zeroed arena for a communicator of `ranks`; its offset. `None`: there is no room. One rank calls this and
    /// tells the others.
    pub fn arena_alloc(&self, ranks: u32) -> Option<u64> {
        registry::alloc(&self.attachment.segment, ranks)
    }

    /// Frees an arena of [`Shm::arena_alloc`], which no rank may use any more. One rank calls this.
    pub fn arena_free(&self, offset: u64, ranks: u32) {
        registry::free(&self.attachment.segment, offset, ranks);
    }

    /// The local index of a rank of this node; `None` if it is on another one.
    pub fn local_index(&self, peer: Peer) -> Option<u32> {
        self.peers.index(peer).map(|index| index as u32)
    }

    /// The arena at `offset`, for rank `me` of a communicator of `ranks`, whose local indices are `peers`.
    pub fn arena(&self, offset: u64, me: u32, ranks: u32, peers: &[u32]) -> Arena {
        assert_eq!(peers.len(), ranks as usize, "one local index per rank");
        arena::open(&self.attachment, offset, me, peers)
    }

    /// The socket of this rank's doorbell.
    fn socket(&mut self) -> io::Result<&Socket> {
        if self.socket.is_none() {
            self.socket = Some(self.attachment.new_socket()?);
        }
        self.socket.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    fn arm_as(&mut self, sleep_mode: SleepMode) {
        arena::request_wakes(&self.attachment);
        for &to in &self.starved {
            if let Outgoing::Open(endpoint) = &mut self.outgoing[to as usize]
                && endpoint.ring.is_starved()
            {
                endpoint.ring.request_wake();
            }
        }
        self.bell().arm(sleep_mode);
        self.armed = Some(sleep_mode);
        self.unsure = !self.attachment.heavy_barrier();
    }

    #[cold]
    fn poll_rare(&mut self, sink: &mut impl Sink) -> usize {
        let lost = if self.lost.is_empty() { 0 } else { self.report_lost(sink) };
        let over = self.devices.poll(&self.attachment, sink);
        self.rare = self.devices.are_busy() || !self.lost.is_empty();
        lost + over
    }

    #[cold]
    fn read_device(
        &mut self,
        from: (Peer, usize),
        remote: Remote,
        local: &[Buffer],
        token: Token,
    ) -> Transfer {
        let transfer = self.devices.read(&self.attachment, from, remote, local, token);
        self.rare |= self.devices.are_busy();
        transfer
    }

    fn bell(&self) -> &Doorbell {
        &self.attachment.block(self.attachment.me).bell
    }

    #[inline(always)]
    fn has_inbound(&self) -> bool {
        self.attachment.block(self.attachment.me).inbound.groups.load(Ordering::Relaxed) != 0
    }

    /// Leaves the rings as a later instance of this rank needs them, and detaches.
    fn leave_rings(&mut self) {
        for endpoint in &self.outgoing {
            if let Outgoing::Open(endpoint) = endpoint {
                endpoint.ring.save();
            }
        }
        let fences = self.attachment.fences();
        for (from, incoming) in self.incoming.iter_mut().enumerate() {
            self.attachment.segment.save_swap(self.attachment.me, from as u32, &incoming.swap);
            let Some(ring) = &mut incoming.ring else { continue };
            ring.set_hot(false);
            if ring.ack(fences) {
                self.attachment.wake(from as u32);
            }
        }
        self.attachment.heavy_barrier();
        for (from, incoming) in self.incoming.iter().enumerate() {
            if incoming.ring.as_ref().is_some_and(Consumer::ready) {
                self.mark_inbound(self.attachment.me, from as u32);
            }
        }
        self.attachment.detach();
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        if self.attachment.is_ours() {
            self.leave_rings();
        }
    }
}

impl Port for Shm {
    #[inline(always)]
    fn caps(&self, peer: Peer) -> Caps {
        let get = self.peers.index(peer).is_some_and(|index| self.attachment.can_read(index as u32));
        let max_bcopy = self.attachment.segment.layout.max_body().min(LONGEST);
        // With a core for each rank both sides copy short pieces at once. Otherwise what is long is read.
        let piece = if get && self.attachment.crowded { max_bcopy } else { max_bcopy.min(PIECE) };
        Caps {
            max_short: INLINE,
            max_bcopy,
            eager: max_bcopy,
            piece,
            get: Kinds::HOST.only_if(get),
            put: Kinds::HOST.only_if(get),
            atomics: Kinds::NONE,
            prefers_get: false,
            alpha: 0.1e-6,
            beta: 0.1e-9,
        }
    }

    #[inline(always)]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        let fences = self.attachment.fences();
        let (to, endpoint) = self.endpoint(peer)?;
        if !endpoint.ring.push_short(&head.encode(), body) {
            return Err(self.refuse(to));
        }
        if !endpoint.is_peer_polling(fences) {
            self.notify(to);
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
        let fences = self.attachment.fences();
        let (to, _) = self.endpoint(peer)?;
        if len > INLINE {
            self.incoming[to].see_streams();
            self.populate_body(to, len)?;
        }
        let Outgoing::Open(endpoint) = &mut self.outgoing[to] else { return Err(Refusal::Busy) };
        if !endpoint.ring.push(&head.encode(), len, fill, &mut self.incoming[to].swap) {
            return Err(self.refuse(to));
        }
        if !endpoint.is_peer_polling(fences) {
            self.notify(to);
        }
        Ok(())
    }

    /// What a peer may do is up to the system: whoever may read this process's memory may write it.
    fn register(&mut self, _peer: Peer, memory: &Buffer, _access: Access) -> Result<Remote, RegisterError> {
        match memory.kind() {
            MemoryKind::Host => Ok(self.attachment.remote(memory)),
            MemoryKind::Device => self.devices.expose(memory).ok_or(RegisterError::Unsupported),
        }
    }

    fn revoke(&mut self, _peer: Peer, remote: Remote) {
        match devices::is_key(remote.key) {
            true => self.devices.revoke(remote.key),
            false => self.attachment.revoke(),
        }
    }

    fn device_moves(&mut self, peer: Peer) -> DeviceMoves {
        if self.caps(peer).get.has(Kinds::HOST) { DeviceMoves::ByDrivers } else { DeviceMoves::Never }
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        self.devices.reclaim(peer, token);
    }

    fn handover(&mut self, _peer: Peer, near: &Buffer) -> Option<Handover> {
        self.handovers.take(&self.attachment, near)
    }

    fn hand_over(&mut self, peer: Peer, head: &Head, handover: &Handover, len: usize) -> Result<(), Refusal> {
        let to = self.peers.index(peer).ok_or(Refusal::Down)?;
        let number = handover.number;
        self.handovers.give(&self.attachment, number, to);
        let sent = self.send_short(peer, head, &Handed { number, len: len as u32 }.encode());
        match sent {
            Ok(()) => count_handed(len),
            Err(_) => Handovers::take_back(&self.attachment, number),
        }
        sent
    }

    fn is_returned(&mut self, _peer: Peer, number: u32) -> bool {
        !handover::is_with_peer(&self.attachment, self.attachment.me, number)
    }

    fn handed(&mut self, peer: Peer, handed: Handed, near: &Buffer) -> Option<Buffer> {
        let from = self.peers.index(peer)? as u32;
        self.handovers.find(&self.attachment, (from, handed), near)
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        match self.peers.index(peer) {
            Some(index) if devices::is_key(remote.key) => {
                self.read_device((peer, index), remote, local, token)
            }
            Some(index) => self.attachment.transfer(index as u32, remote, local, Way::Read),
            None => Transfer::Impossible,
        }
    }

    fn get_together(&mut self, peer: Peer, gets: &mut dyn Iterator<Item = (Remote, Buffer)>) -> usize {
        self.peers.index(peer).map_or(0, |index| self.attachment.read_together(index as u32, gets))
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], _token: Token) -> Transfer {
        match self.peers.index(peer) {
            Some(index) => self.attachment.transfer(index as u32, remote, local, Way::Write),
            None => Transfer::Impossible,
        }
    }
}

impl Fabric for Shm {
    fn reaches(&self, peer: Peer) -> bool {
        self.peers.index(peer).is_some_and(|index| index != self.attachment.me as usize)
    }

    fn connect(&mut self, peer: Peer, _business_card: &[u8]) -> Result<(), String> {
        match self.peers.index(peer) {
            Some(_) => Ok(()),
            None => Err(format!("{peer:?} is not on this node")),
        }
    }

    fn peer_died(&mut self, peer: Peer, cause: &str) {
        if let Some(index) = self.peers.index(peer) {
            self.lose(index, cause.to_owned());
            self.handovers.peer_died(&self.attachment, index);
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        self.polls += 1;
        if self.has_inbound() {
            self.poll_announced();
        }
        let mut events = 0;
        let mut at = 0;
        // A corrupt ring leaves the list during this loop.
        while let Some(&from) = self.hot.get(at) {
            at += 1;
            if self.incoming[from as usize].ring.as_ref().is_some_and(Consumer::ready) {
                events += self.drain(from as usize, BATCH, sink);
            }
        }
        if self.rare {
            events += self.poll_rare(sink);
        }
        events
    }

    #[inline(always)]
    fn nothing_to_poll(&self) -> bool {
        let ready = |&from: &u32| self.incoming[from as usize].ring.as_ref().is_some_and(Consumer::ready);
        !self.has_inbound() && !self.rare && !self.hot.iter().any(ready)
    }

    /// Without a descriptor nobody can sleep on it, and no arrival needs to make it readable.
    fn arm(&mut self, wake: Wake) {
        match wake {
            Wake::Descriptor if self.socket().is_ok() => self.arm_as(SleepMode::Descriptor),
            _ => self.arm_as(SleepMode::Futex),
        }
    }

    fn disarm(&mut self) {
        self.bell().awake();
        if self.armed.take() == Some(SleepMode::Descriptor)
            && let Some(socket) = &self.socket
        {
            socket.drain();
        }
    }

    fn has_news(&mut self) -> bool {
        let outgoing = &self.outgoing;
        let ring = |&to: &u32| match &outgoing[to as usize] {
            Outgoing::Open(endpoint) => Some(&endpoint.ring),
            _ => None,
        };
        self.starved.retain(|to| ring(to).is_some_and(Producer::is_starved));
        let room = self.starved.iter().filter_map(ring).any(Producer::has_news);
        let woken = self.armed.is_some() && !self.bell().is_armed();
        // Called first and always: it takes what has come off the lists of what is missing.
        arena::any_news(&self.attachment) || room || woken || self.devices.are_busy()
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        if self.has_news() {
            return;
        }
        self.attachment.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let until = deadline.into_iter().chain(self.next_deadline()).min();
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let (word, value) = self.bell().futex();
        system::futex_wait(word, value, left);
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.socket()?.as_fd().try_clone_to_owned()
    }

    /// Armed, no sleep may be long if it is not certain that publishers see that this rank sleeps.
    fn next_deadline(&self) -> Option<Instant> {
        (self.armed.is_some() && self.unsure).then(|| Instant::now() + UNSURE)
    }
}
