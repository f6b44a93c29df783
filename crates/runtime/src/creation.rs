//! Making communicators from communicators (MPI 5.0, 7.4 and 7.6).

use std::sync::Arc;

use banyan_coll::Call;
use banyan_datatype::Data;
use banyan_memory::HeapBuffer;
use banyan_transport::Peer;

use crate::cart::Cart;
use crate::coll::bytes_of;
use crate::collective::Root;
use crate::comm::{Comm, Inherited};
use crate::context::{Purpose, derive_context};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::info::Info;
use crate::p2p::{Dest, SendMode, check_tag};
use crate::request::Operation;
use crate::status::{Source, Status};
use crate::{bail, lock};

/// How a communicator is split by what its processes share (MPI_Comm_split_type).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitType {
    /// Processes that can share memory.
    Shared,
    /// Processes that share another part of the hardware: this library tells none apart.
    Other,
}

impl Comm {
    /// A communicator of the same processes, without hints (MPI_Comm_dup, MPI_Comm_idup). It takes no message: all members derive the same
    /// context. The caller copies attributes.
    pub fn dup(&self) -> Result<Arc<Comm>> {
        let ctx = self.child_context(Purpose::Duplicate, 0);
        let inherited = Inherited {
            errhandler: Some(self.errhandler()),
            cart: self.cart().cloned(),
            ..Inherited::default()
        };
        let groups = (self.group().clone(), self.remote_group().cloned());
        Self::make(self.runtime(), ctx, groups, inherited)
    }

    /// As [`Comm::dup`], with hints (MPI_Comm_dup_with_info). If they say that all buffers are memory of devices, processes tell each other which one
    /// is current, and algorithms are chosen by what is between these. All give the same hint.
    pub fn dup_with_info(&self, hints: &Info) -> Result<Arc<Comm>> {
        let (new, telling) = self.dup_for(hints)?;
        telling.map_or(Ok(()), |call| self.run(call))?;
        Ok(new)
    }

    /// As [`Comm::dup_with_info`]; the new communicator may be used when the operation is over (MPI_Comm_idup_with_info).
    pub fn idup_with_info(&self, hints: &Info) -> Result<(Arc<Comm>, Operation)> {
        let (new, telling) = self.dup_for(hints)?;
        let operation = telling.map_or(Ok(Operation::done(Status::EMPTY)), |call| self.start(call))?;
        Ok((new, operation))
    }

    /// A duplicate with hints, and what has to be told before it is used.
    fn dup_for(&self, hints: &Info) -> Result<(Arc<Comm>, Option<Call>)> {
        let new = self.dup()?;
        new.keep_info(hints)?;
        let telling = self.tell_gpus(&new, hints)?;
        Ok((new, telling))
    }

    /// Splits by colour, ordered by key (MPI_Comm_split). `None` without a colour (MPI_UNDEFINED).
    pub fn split(&self, color: Option<i32>, key: i32) -> Result<Option<Arc<Comm>>> {
        if let Some(color @ ..0) = color {
            bail!(ERR_ARG, "color is {color}; it must be non-negative or MPI_UNDEFINED");
        }
        let wanted = color.map_or(u32::MAX, |color| color as u32);
        let mine = [wanted.to_le_bytes(), key.to_le_bytes()].concat();
        let pairs = self.allgather_bytes(&mine)?;
        let part = |pairs: &[u8], group: &Group| Group::new(of_color(pairs, wanted, group), self.me());
        let (local, remote) = match self.remote_group() {
            None => (part(&pairs, self.group()), None),
            // Each group has gathered the pairs of the other one.
            Some(other) => {
                let own = self.swap_bytes(&pairs, 8 * self.size() as usize)?;
                (part(&own, self.group()), Some(part(&pairs, other)))
            }
        };
        // Every member counts the child, also a member that gets none.
        let ctx = self.child_context(Purpose::Split, wanted);
        if color.is_none() || remote.as_ref().is_some_and(|remote| remote.size() == 0) {
            return Ok(None);
        }
        Ok(Some(self.child(ctx, local, remote)?))
    }

    /// Splits by the hardware that processes share (MPI_Comm_split_type), with hints for each part. `None` without a kind (MPI_UNDEFINED).
    pub fn split_type(&self, kind: Option<SplitType>, key: i32, hints: &Info) -> Result<Option<Arc<Comm>>> {
        let color = match kind {
            Some(SplitType::Shared) => {
                let job = self.runtime().job();
                Some(job.node_of(job.rank) as i32)
            }
            Some(SplitType::Other) | None => None,
        };
        let part = self.split(color, key)?;
        part.as_ref().map_or(Ok(()), |part| part.set_info(hints))?;
        Ok(part)
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
        check_tag(tag)?;
        let (Some(rank), Some(leader)) = (group.rank(), group.peer(0)) else { return Ok(None) };
        let channel = self.channel(Purpose::CreateGroupChannel, tag)?;
        let ctx = HeapBuffer::copy_of(&self.runtime().draw_context().to_le_bytes());
        let data = Data::bytes(ctx.clone());
        match rank {
            0 => group
                .peers()
                .skip(1)
                .try_for_each(|peer| channel.send(&data, Dest::Rank(peer.0 as i32), 0, SendMode::Standard))?,
            _ => drop(channel.recv(&data, Source::Rank(leader.0 as i32), Some(0)).into_result()?),
        }
        Ok(Some(self.child(number(&bytes_of(&ctx), 0), group.clone(), None)?))
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
        Ok(Some(self.grid(ctx, Group::new(peers, self.me()), cart)?))
    }

    /// The slices of a grid that this process is in (MPI_Cart_sub).
    pub fn cart_sub(&self, remain: &[bool]) -> Result<Arc<Comm>> {
        let Some(cart) = self.cart() else {
            bail!(ERR_TOPOLOGY, "the communicator has no Cartesian topology")
        };
        let (slice, color, key) = cart.sub(self.rank() as i32, remain)?;
        let part =
            self.split(Some(color), key)?.ok_or_else(|| Error::intern("a slice without this process"))?;
        self.grid(part.child_context(Purpose::Duplicate, 0), part.group().clone(), slice)
    }

    fn grid(&self, ctx: u64, group: Group, cart: Cart) -> Result<Arc<Comm>> {
        let errhandler = Some(self.errhandler());
        let inherited = Inherited { errhandler, cart: Some(cart), ..Inherited::default() };
        Self::make(self.runtime(), ctx, (group, None), inherited)
    }

    /// Joins two groups by their leaders (MPI_Intercomm_create). `bridge` matters at the leader only.
    pub fn intercomm_create(
        &self,
        leader: i32,
        bridge: Option<(&Comm, Dest)>,
        tag: i32,
    ) -> Result<Arc<Comm>> {
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
        let ctx = self.child_context(Purpose::Merged, 0);
        // What the leaders, rank 0 of each group, have said: that of the other group, and what that one has heard of this one.
        let theirs = self.swap_bytes(&[u8::from(high)], 1)?;
        let ours = self.swap_bytes(&theirs, 1)?;
        let first = match ours == theirs {
            // Both groups gave the same `high`: the group with the lower leader comes first.
            true => self.group().peer(0) < remote.peer(0),
            false => ours == [0],
        };
        let (a, b) = if first { (self.group(), remote) } else { (remote, self.group()) };
        let group = Group::new(a.peers().chain(b.peers()).collect(), self.me());
        self.child(ctx, group, None)
    }

    /// At the leader: exchanges context and members with the leader of the other group.
    fn exchange_with_leader(&self, bridge: Option<(&Comm, Dest)>, tag: i32) -> Result<Vec<u8>> {
        let Some((bridge, leader)) = bridge else {
            bail!(ERR_COMM, "peer_comm is MPI_COMM_NULL at the local leader")
        };
        let (named, rank) = match leader {
            Dest::Rank(rank) => (rank.to_string(), u32::try_from(rank).ok()),
            Dest::ProcNull => ("MPI_PROC_NULL".to_owned(), None),
        };
        let Some(other) = rank.and_then(|rank| bridge.targets().peer(rank)) else {
            let last = bridge.targets().size().saturating_sub(1);
            bail!(ERR_RANK, "remote_leader is {named}, but peer_comm has ranks 0 to {last}")
        };
        check_tag(tag)?;
        let channel = bridge.channel(Purpose::IntercommCreateChannel, tag)?;
        let drawn = self.runtime().draw_context();
        let mut mine = drawn.to_le_bytes().to_vec();
        mine.extend(self.group().peers().flat_map(|peer| peer.0.to_le_bytes()));
        let length = number(&channel.exchange_bytes(other, &(mine.len() as u64).to_le_bytes(), 8)?, 0);
        if !(12..=8 + 4 * u64::from(u32::MAX)).contains(&length) {
            bail!(ERR_INTERN, "the other leader announced a group of {length} bytes");
        }
        let mut theirs = channel.exchange_bytes(other, &mine, length as usize)?;
        // Both sides take the context that the lower leader drew.
        if self.me() < other {
            theirs[..8].copy_from_slice(&drawn.to_le_bytes());
        }
        Ok(theirs)
    }

    /// A communicator of all processes, for messages between single members of this one while another is made. It stays open as
    /// long as this one: the first message of the next call on it may arrive before this process has finished the last call.
    fn channel(&self, purpose: Purpose, tag: i32) -> Result<Arc<Comm>> {
        let ctx = derive_context(self.context(), 0, purpose, tag as u32);
        let mut channels = lock(&self.channels);
        if let Some(known) = channels.iter().find(|channel| channel.context() == ctx) {
            return Ok(known.clone());
        }
        let everybody = Group::contiguous(Peer(0), self.runtime().job().size, self.me());
        channels.push(Self::make(self.runtime(), ctx, (everybody, None), Inherited::default())?);
        Ok(channels[channels.len() - 1].clone())
    }

    /// On a [channel](Comm::channel): the `len` bytes of another process, in exchange for `mine`.
    fn exchange_bytes(&self, other: Peer, mine: &[u8], len: usize) -> Result<Vec<u8>> {
        let (given, got, rank) = (HeapBuffer::copy_of(mine), HeapBuffer::zeroed(len), other.0 as i32);
        let (given, into) = (Data::bytes(given), Data::bytes(got.clone()));
        let (send, recv) = ((&given, Dest::Rank(rank), 0), (&into, Source::Rank(rank), Some(0)));
        self.sendrecv(send, recv).into_result()?;
        Ok(bytes_of(&got))
    }

    fn child(&self, ctx: u64, local: Group, remote: Option<Group>) -> Result<Arc<Comm>> {
        let inherited = Inherited { errhandler: Some(self.errhandler()), ..Inherited::default() };
        Self::make(self.runtime(), ctx, (local, remote), inherited)
    }

    fn me(&self) -> Peer {
        Peer(self.runtime().job().rank)
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

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// The processes of a list of little-endian numbers of 4 bytes.
fn peers_of(bytes: &[u8]) -> Vec<Peer> {
    words(bytes).map(Peer).collect()
}

/// The members of a group that gave this colour, by key, then by rank. `pairs` has the colour and the key of each member.
fn of_color(pairs: &[u8], color: u32, group: &Group) -> Vec<Peer> {
    let pairs: Vec<u32> = words(pairs).collect();
    let of_color = pairs.chunks_exact(2).zip(0..group.size()).filter(|(pair, _)| pair[0] == color);
    let mut members: Vec<(i32, u32)> = of_color.map(|(pair, rank)| (pair[1] as i32, rank)).collect();
    members.sort_unstable();
    members.iter().filter_map(|&(_, rank)| group.peer(rank)).collect()
}
