//! One-sided transfers under way: short ones through a slot, others from and to registered memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Peer, Refusal, Remote, Token, Transfer};

use crate::cache::{Access, Purpose};
use crate::fabric::{MOST_WORK, Rdma};
use crate::frames::{Id, SLOT};
use crate::verbs::{self, Local, Op, Pair, Region, Work};

/// The most bytes of one work, if the device takes so many.
const PIECE: usize = 1 << 30;
/// A transfer that is taken back is over when the device says so. One that does not say it after this time is broken.
const TAKE_BACK: Duration = Duration::from_secs(20);

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Get,
    Put,
}

/// A one-sided transfer that is under way.
pub(crate) struct Moving {
    pub(crate) peer: Peer,
    /// What it is reported as; `None`: nobody wants to hear of it any more.
    token: Option<Token>,
    works: usize,
    bytes: usize,
    /// Its local memory, registered until it is over.
    _regions: Vec<Arc<Region>>,
    /// The slot that it goes through, and the memory that what has come there belongs to.
    slot: Option<(u32, Vec<Buffer>)>,
}

impl Rdma {
    /// Ends a transfer of which a completion tells; its token, if it is done and somebody wants to hear of it.
    pub(crate) fn end_transfer(
        &mut self,
        number: u32,
        pair: u32,
        result: Result<usize, String>,
    ) -> Option<Token> {
        let moving = self.transfers.remove(&number)?;
        let peer = self.settle(pair, moving.works)?;
        if let Some((slot, into)) = &moving.slot {
            if result.is_ok() {
                let mut bytes = self.slots.bytes(*slot as usize, moving.bytes);
                for buffer in into {
                    let (first, rest) = bytes.split_at(buffer.len().min(bytes.len()));
                    buffer.write(buffer.lo(), first);
                    bytes = rest;
                }
            }
            self.free.push(*slot);
        }
        if result.is_ok() {
            self.counts.moved += moving.bytes as u64;
            return moving.token;
        }
        self.refused.extend(moving.token.map(|token| (peer, token)));
        self.end_transfers(peer);
        None
    }

    /// Ends the pair of transfers with a peer, since one has failed: messages carry from now on what they would have.
    fn end_transfers(&mut self, peer: Peer) {
        let Some(end) = self.links.end(peer) else { return };
        let Some(pair) = end.transfers.take() else { return };
        self.under_way -= std::mem::take(&mut end.moving);
        let number = pair.number();
        drop(pair);
        self.forget(number);
        let failed = self.transfers.extract_if(|_, moving| moving.peer == peer);
        self.refused.extend(failed.filter_map(|(_, moving)| Some((peer, moving.token?))));
        self.counts.refusing += 1;
    }

    /// Starts a transfer between memory of the peer and of this process.
    pub(crate) fn transfer(
        &mut self,
        peer: Peer,
        remote: Remote,
        local: &[Buffer],
        token: Token,
        way: Way,
    ) -> Transfer {
        let filled: Vec<&Buffer> = local.iter().filter(|buffer| !buffer.is_empty()).collect();
        let bytes: usize = filled.iter().map(|buffer| buffer.len()).sum();
        if bytes == 0 {
            return Transfer::Done;
        }
        if filled.iter().any(|buffer| !buffer.kind().is_host_accessible()) {
            return Transfer::Impossible;
        }
        let there = verbs::Remote { addr: remote.addr, rkey: remote.key as u32 };
        if bytes > SLOT {
            return self.by_registration(peer, token, &filled, there, way);
        }
        let local = || filled.iter().map(|&buffer| buffer.clone()).collect();
        match way {
            Way::Get => self.through_slot(peer, token, bytes, Op::Read(there), local(), |_| {}),
            Way::Put => self.through_slot(peer, token, bytes, Op::Write(there), Vec::new(), |mut out| {
                for buffer in &filled {
                    let (now, later) = out.split_at_mut(buffer.len());
                    buffer.read(buffer.lo(), now);
                    out = later;
                }
            }),
        }
    }

    /// Starts a transfer of few bytes in one work through a slot, which `fill` fills; what comes there belongs `into` memory.
    pub(crate) fn through_slot(
        &mut self,
        peer: Peer,
        token: Token,
        bytes: usize,
        op: Op,
        into: Vec<Buffer>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Transfer {
        if let Err(refusal) = self.room(peer, 1) {
            return refusal;
        }
        let Some(slot) = self.take_slot(peer) else { return Transfer::Busy };
        fill(self.slots.bytes_mut(slot as usize, bytes));
        let local = self.slots.local(slot as usize, bytes);
        let moving = Moving {
            peer,
            token: Some(token),
            works: 1,
            bytes,
            _regions: Vec::new(),
            slot: Some((slot, into)),
        };
        self.start(moving, &[(local, op)])
    }

    /// Starts a transfer from or to memory, which is registered for it.
    fn by_registration(
        &mut self,
        peer: Peer,
        token: Token,
        local: &[&Buffer],
        there: verbs::Remote,
        way: Way,
    ) -> Transfer {
        let most = PIECE.min(self.device.most_bytes as usize);
        let works: usize = local.iter().map(|buffer| buffer.len().div_ceil(most)).sum();
        if works > Pair::DEPTH {
            return Transfer::Impossible;
        }
        if let Err(refusal) = self.room(peer, works) {
            return refusal;
        }
        let access = if way == Way::Get { Access::LOCAL } else { Access::NONE };
        let (mut posts, mut regions, mut bytes) = (Vec::with_capacity(works), Vec::new(), 0);
        for buffer in local {
            let Ok(region) = self.registrations.region(buffer, access, Purpose::Ours) else {
                return Transfer::Impossible;
            };
            for at in (0..buffer.len()).step_by(most) {
                let len = (buffer.len() - at).min(most);
                let there = verbs::Remote { addr: there.addr + bytes as u64, ..there };
                let op = if way == Way::Get { Op::Read(there) } else { Op::Write(there) };
                posts.push((region.local(buffer.address(buffer.lo()) + at, len as u32), op));
                bytes += len;
            }
            regions.push(region);
        }
        let moving = Moving { peer, token: Some(token), works, bytes, _regions: regions, slot: None };
        self.start(moving, &posts)
    }

    /// Posts the works of a transfer, for which there is room. It is told of the last.
    fn start(&mut self, moving: Moving, posts: &[(Local<'static>, Op)]) -> Transfer {
        let number = self.next_transfer;
        self.next_transfer = number.wrapping_add(1);
        let peer = moving.peer;
        self.transfers.insert(number, moving);
        for (at, &(local, op)) in (1..).zip(posts) {
            self.post(peer, Work { id: Id::Transfer(number).into(), told: at == posts.len(), local, op });
        }
        Transfer::Started
    }

    /// Whether so many works may be posted to a peer now. A connection comes about, if there is none.
    fn room(&mut self, peer: Peer, works: usize) -> Result<(), Transfer> {
        match self.links.end(peer) {
            Some(end) if end.is_up() => match end.transfers {
                Some(_) if end.moving + works <= Pair::DEPTH && self.under_way + works <= MOST_WORK => Ok(()),
                Some(_) => Err(Transfer::Busy),
                None => Err(Transfer::Impossible),
            },
            Some(_) => Err(Transfer::Busy),
            None => match self.reach(peer) {
                Refusal::Busy => Err(Transfer::Busy),
                Refusal::Down => Err(Transfer::Impossible),
            },
        }
    }

    /// A free slot for a transfer of a peer, by which it is given back should the connection end.
    fn take_slot(&mut self, peer: Peer) -> Option<u32> {
        let owner = self.links.end(peer)?.transfers.as_ref()?.number();
        let slot = self.free.pop()?;
        self.owners[slot as usize] = owner;
        Some(slot)
    }

    /// Posts work of a transfer, for which there is room.
    fn post(&mut self, peer: Peer, work: Work<'_>) {
        let Some(end) = self.links.end(peer) else { return };
        let Some(pair) = &end.transfers else { return };
        end.moving += 1;
        self.under_way += 1;
        self.counts.transfers += 1;
        if let Err(why) = pair.post(&work) {
            self.broke(peer, why);
        }
    }

    /// Takes back the memory of transfers with this token. Where it is registered, it waits until the device is through with it: for the
    /// network, but not for the peer.
    pub(crate) fn take_back(&mut self, peer: Peer, token: Token) {
        self.refused.retain(|&refused| refused != (peer, token));
        let mut registered = Vec::new();
        for (&number, moving) in &mut self.transfers {
            if moving.peer == peer && moving.token == Some(token) {
                moving.token = None;
                match &mut moving.slot {
                    Some((_, into)) => into.clear(),
                    None => registered.push(number),
                }
            }
        }
        let end = Instant::now() + TAKE_BACK;
        let mut batch = Vec::new();
        for number in registered {
            let id = u64::from(Id::Transfer(number));
            loop {
                if let Some(over) = self.held.iter().position(|over| over.id == id)
                    && let Some(over) = self.held.remove(over)
                {
                    self.end_transfer(number, over.pair, over.result);
                    break;
                }
                if Instant::now() > end {
                    return self.lose(peer, "the device does not end what it is told to end");
                }
                if self.completions.poll(&mut batch) == 0 {
                    std::thread::yield_now();
                }
                self.held.extend(batch.drain(..));
            }
        }
    }
}
