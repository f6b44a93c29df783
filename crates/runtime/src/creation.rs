//! Making communicators from communicators (MPI 5.0, 7.4 and 7.6).

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::HeapBuffer;
use banyan_p2p::{Mode, RecvArgs, ReqId, SendArgs, Started};
use banyan_transport::Peer;

use crate::cart::Cart;
use crate::collective::Root;
use crate::comm::{Comm, Inherited};
use crate::context::{Purpose, Retired, derive_context};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::group::{Comparison, Group};
use crate::info::Info;
use crate::status::{Outcome, PROC_NULL, TAG_UB, UNDEFINED};
use crate::{bail, lock};

/// How a communicator is split by what its processes share (MPI_Comm_split_type).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitType {
    /// Processes that can share memory.
    Shared,
    /// Processes that share another part of the hardware: this library tells none apart.
    Other,
    /// MPI_UNDEFINED: not in any.
    Undefined,
}

impl Comm {
    /// A communicator of the same processes (MPI_Comm_dup, MPI_Comm_idup). It takes no message:
    /// all members derive the same context. The caller copies attributes.
    pub fn dup(&self, info: Option<&Info>) -> Result<Arc<Comm>> {
        let ctx = self.child_context(Purpose::Duplicate, 0);
        let inherited = Inherited {
            errhandler: Some(self.errhandler()),
            info: Some(info.map_or_else(|| self.info(), Info::dup)),
            cart: self.cart().cloned(),
        };
        Self::make_with(
            self.runtime(),
            ctx,
            self.group().clone(),
            self.remote_group().cloned(),
            "",
            inherited,
        )
    }

    /// Splits by colour, ordered by key (MPI_Comm_split). `None` where the colour is MPI_UNDEFINED.
    pub fn split(&self, color: i32, key: i32) -> Result<Option<Arc<Comm>>> {
        if color < 0 && color != UNDEFINED {
            bail!(ERR_ARG, "color is {color}; it must be non-negative or MPI_UNDEFINED");
        }
        let mut mine = [0; 8];
        mine[..4].copy_from_slice(&color.to_le_bytes());
        mine[4..].copy_from_slice(&key.to_le_bytes());
        let pairs = self.allgather_bytes(&mine)?;
        let part = |pairs: &[u8], group: &Group| Group::new(of_color(pairs, color, group), self.me());
        let (local, remote) = match self.remote_group() {
            None => (part(&pairs, self.group()), None),
            // Each group has gathered the pairs of the other one.
            Some(other) => {
                let own = self.swap_bytes(&pairs, 8 * self.size() as usize)?;
                (part(&own, self.group()), Some(part(&pairs, other)))
            }
        };
        // Every member counts the child, also a member that gets none.
        let ctx = self.child_context(Purpose::Split, color as u32);
        if color == UNDEFINED || remote.as_ref().is_some_and(|remote| remote.size() == 0) {
            return Ok(None);
        }
        Ok(Some(self.child(ctx, local, remote)?))
    }

    /// Splits by the hardware that processes share (MPI_Comm_split_type).
    pub fn split_type(&self, kind: SplitType, key: i32) -> Result<Option<Arc<Comm>>> {
        let color = match kind {
            SplitType::Shared => {
                let job = self.runtime().job_info();
                job.node_of(job.rank) as i32
            }
            SplitType::Other | SplitType::Undefined => UNDEFINED,
        };
        self.split(color, key)
    }

    /// A communicator of a subset, called by all (MPI_Comm_create); of a subset of each group, if there are two. `None` for
    /// processes outside of it.
    pub fn create(&self, group: &Group) -> Result<Option<Arc<Comm>>> {
        self.check_subset(group)?;
        let remote = match self.is_inter() {
            false => None,
            true => Some(self.swap_groups(group)?),
        };
        // One call may make several groups that do not overlap: their leaders differ.
        let leader = group.peer(0).filter(|_| remote.is_none());
        let ctx = self.child_context(Purpose::Subset, leader.map_or(u32::MAX, |peer| peer.0));
        match group.rank() {
            None => Ok(None),
            Some(_) if remote.as_ref().is_some_and(|remote| remote.size() == 0) => Ok(None),
            Some(_) => Ok(Some(self.child(ctx, group.clone(), remote)?)),
        }
    }

    /// The group that the members of the other side have given to MPI_Comm_create, in exchange for this side's.
    fn swap_groups(&self, group: &Group) -> Result<Group> {
        let size = number(&self.swap_bytes(&u64::from(group.size()).to_le_bytes(), 8)?, 0);
        let mine: Vec<u8> = group.peers().flat_map(|peer| peer.0.to_le_bytes()).collect();
        let theirs = self.swap_bytes(&mine, 4 * size as usize)?;
        Ok(Group::new(peers_of(&theirs), self.me()))
    }

    /// A communicator of a subset, called by its members only (MPI_Comm_create_group).
    pub fn create_group(&self, group: &Group, tag: i32) -> Result<Option<Arc<Comm>>> {
        self.intra_only("MPI_Comm_create_group")?;
        self.check_subset(group)?;
        if !(0..=TAG_UB).contains(&tag) {
            bail!(ERR_TAG, "tag is {tag}, but tags are 0 to {TAG_UB} (MPI_TAG_UB)");
        }
        let Some(rank) = group.rank() else { return Ok(None) };
        let channel = MemberChannel::open(
            self,
            derive_context(self.context(), 0, Purpose::CreateGroupChannel, tag as u32),
        );
        let ctx = match rank {
            0 => {
                let ctx = self.runtime().draw_context();
                for peer in group.peers().skip(1) {
                    channel.send(peer, &ctx.to_le_bytes())?;
                }
                ctx
            }
            _ => {
                let leader = group.peer(0).ok_or_else(|| Error::intern("a group without a leader"))?;
                number(&channel.recv(leader, 8)?, 0)
            }
        };
        Ok(Some(self.child(ctx, group.clone(), None)?))
    }

    /// A communicator with a Cartesian topology (MPI_Cart_create). Ranks keep their order.
    pub fn cart_create(&self, cart: Cart) -> Result<Option<Arc<Comm>>> {
        self.intra_only("MPI_Cart_create")?;
        let size = cart.size();
        let ctx = self.child_context(Purpose::Cart, size);
        if self.rank() >= size {
            return Ok(None);
        }
        let peers = (0..size).filter_map(|rank| self.group().peer(rank)).collect();
        let inherited = Inherited { errhandler: Some(self.errhandler()), info: None, cart: Some(cart) };
        Ok(Some(Self::make_with(self.runtime(), ctx, Group::new(peers, self.me()), None, "", inherited)?))
    }

    /// The slices of a grid that this process is in (MPI_Cart_sub).
    pub fn cart_sub(&self, remain: &[bool]) -> Result<Arc<Comm>> {
        let Some(cart) = self.cart() else {
            bail!(ERR_TOPOLOGY, "the communicator has no Cartesian topology")
        };
        let (slice, color, key) = cart.sub(self.rank() as i32, remain)?;
        let part = self.split(color, key)?.ok_or_else(|| Error::intern("a slice without this process"))?;
        let inherited = Inherited { errhandler: Some(self.errhandler()), info: None, cart: Some(slice) };
        let ctx = part.child_context(Purpose::Duplicate, 0);
        Self::make_with(self.runtime(), ctx, part.group().clone(), None, "", inherited)
    }

    /// Joins two groups by their leaders (MPI_Intercomm_create). `bridge` matters at the leader only.
    pub fn intercomm_create(&self, leader: i32, bridge: Option<(&Comm, i32)>, tag: i32) -> Result<Arc<Comm>> {
        self.intra_only("MPI_Intercomm_create")?;
        let leader = match u32::try_from(leader).ok().filter(|&rank| rank < self.size()) {
            Some(rank) => rank,
            None => bail!(
                ERR_RANK,
                "local_leader is {leader}, but the local communicator has ranks 0 to {}",
                self.size() - 1
            ),
        };
        let root = Root::Rank(leader as i32);
        // The leader tells the others how large the other group is (0: it failed), then who is in it.
        let (word, mut members) = match self.rank() == leader {
            false => (Ok(0), Vec::new()),
            true => match self.exchange_with_leader(bridge, tag) {
                Ok(members) => (Ok(members.len() as u64), members),
                Err(error) => (Err(error), Vec::new()),
            },
        };
        let length = number(&self.bcast_bytes(&word.as_ref().map_or(0, |n| *n).to_le_bytes(), root)?, 0);
        word?;
        if length == 0 {
            bail!(ERR_OTHER, "the leader, rank {leader}, could not reach the other group");
        }
        members.resize(length as usize, 0);
        let members = self.bcast_bytes(&members, root)?;
        let ctx = number(&members, 0);
        let remote = Group::new(peers_of(&members[8..]), self.me());
        if remote.intersection(self.group()).size() > 0 {
            bail!(ERR_COMM, "the two groups of an intercommunicator must not overlap");
        }
        self.child(ctx, self.group().clone(), Some(remote))
    }

    /// One communicator of both groups (MPI_Intercomm_merge); the group that says `high` comes second.
    pub fn intercomm_merge(&self, high: bool) -> Result<Arc<Comm>> {
        let Some(remote) = self.remote_group() else {
            bail!(ERR_COMM, "MPI_Intercomm_merge needs an intercommunicator")
        };
        // The leaders, rank 0 of each group, exchange `high`; each then tells its group.
        let ctx = self.child_context(Purpose::Merged, 0);
        let channel = MemberChannel::open(self, derive_context(ctx, 0, Purpose::IntercommMergeChannel, 0));
        let first = match self.rank() {
            0 => {
                let other = remote.peer(0).ok_or_else(|| Error::intern("an empty remote group"))?;
                let receive = channel.post_recv(other, 1);
                channel.send(other, &[u8::from(high)])?;
                let theirs = receive.finish()?[0] != 0;
                match high == theirs {
                    // Both groups gave the same `high`: the group with the lower leader comes first.
                    true => self.group().peer(0) < remote.peer(0),
                    false => !high,
                }
            }
            _ => false,
        };
        let first = match self.rank() {
            0 => {
                for peer in self.group().peers().skip(1) {
                    channel.send(peer, &[u8::from(first)])?;
                }
                first
            }
            _ => {
                let leader = self.group().peer(0).ok_or_else(|| Error::intern("an empty group"))?;
                channel.recv(leader, 1)?[0] != 0
            }
        };
        let (a, b) = if first { (self.group(), remote) } else { (remote, self.group()) };
        let group = Group::new(a.peers().chain(b.peers()).collect(), self.me());
        self.child(ctx, group, None)
    }

    /// At the leader: exchanges context and members with the leader of the other group.
    fn exchange_with_leader(&self, bridge: Option<(&Comm, i32)>, tag: i32) -> Result<Vec<u8>> {
        let Some((bridge, remote_leader)) = bridge else {
            bail!(ERR_COMM, "peer_comm is MPI_COMM_NULL at the local leader")
        };
        let other = u32::try_from(remote_leader).ok().and_then(|rank| bridge.targets().peer(rank));
        let Some(other) = other else {
            bail!(
                ERR_RANK,
                "remote_leader is {remote_leader}{}, but peer_comm has ranks 0 to {}",
                if remote_leader == PROC_NULL { " (MPI_PROC_NULL)" } else { "" },
                bridge.targets().size().saturating_sub(1)
            )
        };
        if !(0..=TAG_UB).contains(&tag) {
            bail!(ERR_TAG, "tag is {tag}, but tags are 0 to {TAG_UB} (MPI_TAG_UB)");
        }
        let channel = MemberChannel::open(
            bridge,
            derive_context(bridge.context(), 0, Purpose::IntercommCreateChannel, tag as u32),
        );
        let drawn = self.runtime().draw_context();
        let mut mine = drawn.to_le_bytes().to_vec();
        mine.extend(self.group().peers().flat_map(|peer| peer.0.to_le_bytes()));
        let length = channel.post_recv(other, 8);
        channel.send(other, &(mine.len() as u64).to_le_bytes())?;
        let length = number(&length.finish()?, 0);
        if !(12..=8 + 4 * u64::from(u32::MAX)).contains(&length) {
            bail!(ERR_INTERN, "the other leader announced a group of {length} bytes");
        }
        let theirs = channel.post_recv(other, length as usize);
        channel.send(other, &mine)?;
        let mut theirs = theirs.finish()?;
        // Both sides take the context that the lower leader drew.
        if self.me() < other {
            theirs[..8].copy_from_slice(&drawn.to_le_bytes());
        }
        Ok(theirs)
    }

    fn child(&self, ctx: u64, local: Group, remote: Option<Group>) -> Result<Arc<Comm>> {
        let inherited = Inherited { errhandler: Some(self.errhandler()), ..Inherited::default() };
        Self::make_with(self.runtime(), ctx, local, remote, "", inherited)
    }

    fn me(&self) -> Peer {
        Peer(self.runtime().job_info().rank)
    }

    fn check_subset(&self, group: &Group) -> Result<()> {
        if group.peers().any(|peer| self.group().rank_of(peer).is_none()) {
            bail!(ERR_GROUP, "the group has processes that are not in the communicator");
        }
        Ok(())
    }

    fn intra_only(&self, call: &str) -> Result<()> {
        if self.is_inter() {
            bail!(ERR_COMM, "{call} is for communicators of one group, and this is an intercommunicator");
        }
        Ok(())
    }
}

impl Comparison {
    /// The result of MPI_Comm_compare, from that of [`Comm::compare`].
    pub fn of_comms(comparison: Option<Comparison>) -> Comparison {
        comparison.unwrap_or(Comparison::Congruent)
    }
}

/// Messages between single members, on a context of their own, while a communicator is made.
struct MemberChannel<'a> {
    comm: &'a Comm,
    ctx: u64,
}

/// A receive that was posted on a channel.
struct PostedRecv<'a> {
    channel: &'a MemberChannel<'a>,
    data: Data,
    buffer: banyan_memory::Buffer,
    started: Started,
}

impl<'a> MemberChannel<'a> {
    /// The context stays open as long as the communicator: the first message of the next call on it may arrive before this
    /// process has finished the last call.
    fn open(comm: &'a Comm, ctx: u64) -> Self {
        let mut channels = lock(&comm.channels);
        if !channels.contains(&ctx) {
            comm.runtime().open_context(ctx);
            channels.push(ctx);
        }
        Self { comm, ctx }
    }

    fn send(&self, peer: Peer, bytes: &[u8]) -> Result<()> {
        let data = Data::bytes(HeapBuffer::copy_of(bytes));
        let rt = self.comm.runtime();
        let mut guard = rt.engine_lock.enter();
        let engine = &mut *guard;
        let me = rt.job_info().rank;
        let args = SendArgs { peer, ctx: self.ctx, tag: 0, src_rank: me, data: &data, mode: Mode::Standard };
        match engine.p2p.send(&mut engine.ports, args) {
            None => Ok(()),
            Some(id) => self.finish(guard, id),
        }
    }

    fn finish(&self, guard: banyan_memory::EngineGuard<'_, Engine>, id: ReqId) -> Result<()> {
        let completion = self.comm.runtime().wait(guard, |engine| engine.p2p.test(id));
        Outcome::of(&completion, false).into_result().map(drop)
    }

    fn recv(&self, peer: Peer, len: usize) -> Result<Vec<u8>> {
        self.post_recv(peer, len).finish()
    }

    fn post_recv(&'a self, peer: Peer, len: usize) -> PostedRecv<'a> {
        let buffer = HeapBuffer::zeroed(len);
        let data = Data::bytes(buffer.clone());
        let mut guard = self.comm.runtime().engine_lock.enter();
        let engine = &mut *guard;
        let args = RecvArgs { ctx: self.ctx, src: Some((peer.0, peer)), tag: Some(0), data: &data };
        let started = engine.p2p.recv(&mut engine.ports, args);
        PostedRecv { channel: self, data, buffer, started }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        for ctx in std::mem::take(&mut *lock(&self.channels)) {
            self.runtime().retire(Retired { ctx, arena_ranks: None, sequence: None });
        }
    }
}

impl PostedRecv<'_> {
    fn finish(self) -> Result<Vec<u8>> {
        if let Started::Pending(id) = self.started {
            self.channel.finish(self.channel.comm.runtime().engine_lock.enter(), id)?;
        }
        drop(self.data);
        let mut out = vec![0; self.buffer.len()];
        self.buffer.read(0, &mut out);
        Ok(out)
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The processes of a list of little-endian numbers of 4 bytes.
fn peers_of(bytes: &[u8]) -> Vec<Peer> {
    bytes.chunks_exact(4).map(|b| Peer(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
}

/// The members of a group that gave this colour, by key, then by rank. `pairs` has the colour and the key of each member.
fn of_color(pairs: &[u8], color: i32, group: &Group) -> Vec<Peer> {
    let word = |at: usize| i32::from_le_bytes([pairs[at], pairs[at + 1], pairs[at + 2], pairs[at + 3]]);
    let mut members: Vec<(i32, u32)> = (0..group.size())
        .map(|rank| (rank, 8 * rank as usize))
        .filter(|&(_, at)| word(at) == color)
        .map(|(rank, at)| (word(at + 4), rank))
        .collect();
    members.sort_unstable();
    members.iter().filter_map(|&(_, rank)| group.peer(rank)).collect()
}
