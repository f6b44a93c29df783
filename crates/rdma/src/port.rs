//! The fabric towards its peers: frames, and one-sided transfers by the device.

use std::time::{Duration, Instant};

use banyan_memory::{Buffer, MemoryKind};
use banyan_transport::{
    Access, Atomic, Caps, Fetch, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Token, Transfer,
};

use crate::fabric::{MOST_WORK, Rdma};
use crate::frames::{BODY, Id, What};
use crate::verbs::{self, Op, Pair, Region, Work};

/// The most bytes of one work, if the device takes so many.
const PIECE: usize = 1 << 30;
/// The key of a range without bytes, which is not registered.
const NO_BYTES: u64 = u64::MAX;
/// A transfer that is taken back is over when the device says so. One that does not say it after this time is broken.
const TAKE_BACK: Duration = Duration::from_secs(20);

/// A one-sided transfer that is under way.
pub(crate) struct Moving {
    pub(crate) peer: Peer,
    token: Token,
    works: usize,
    bytes: usize,
    /// Its local memory, registered until it is over.
    _regions: Vec<Region>,
    /// The slot that an atomic's old value arrives in, and where that belongs.
    result: Option<(u32, Buffer)>,
}

impl Rdma {
    /// Ends a transfer of which a completion tells; its token, if it is done. With `wanted` an atomic's result is kept.
    pub(crate) fn end_transfer(
        &mut self,
        number: u32,
        pair: u32,
        result: Result<usize, String>,
        wanted: bool,
    ) -> Option<Token> {
        let moving = self.transfers.remove(&number)?;
        let peer = self.settle(pair, moving.works)?;
        if let Some((slot, memory)) = &moving.result {
            if wanted && result.is_ok() {
                memory.write(0, self.slots.bytes(*slot as usize, 8));
            }
            self.free.push(*slot);
        }
        match result {
            Ok(_) => {
                self.counts.moved += moving.bytes as u64;
                Some(moving.token)
            }
            Err(_) => {
                if wanted {
                    self.refused.push((peer, moving.token));
                }
                self.end_transfers(peer);
                None
            }
        }
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
        self.refused.extend(failed.map(|(_, moving)| (peer, moving.token)));
        self.counts.refusing += 1;
    }

    /// Starts the works of a transfer between memory of the peer and of this process.
    fn transfer(
        &mut self,
        peer: Peer,
        remote: Remote,
        local: &[Buffer],
        token: Token,
        (access, op): (verbs::Access, fn(verbs::Remote) -> Op),
    ) -> Transfer {
        let most = PIECE.min(self.device.most_bytes as usize);
        let filled: Vec<&Buffer> = local.iter().filter(|buffer| !buffer.is_empty()).collect();
        let works = filled.iter().map(|buffer| buffer.len().div_ceil(most)).sum();
        if works == 0 {
            return Transfer::Done;
        }
        let of_device = filled.iter().any(|buffer| !buffer.kind().is_host_accessible());
        if of_device || works > Pair::DEPTH {
            return Transfer::Impossible;
        }
        if let Err(refusal) = self.room(peer, works) {
            return refusal;
        }
        let regions = filled.iter().map(|buffer| Region::new(&self.device, buffer, access));
        let Ok(regions) = regions.collect::<Result<Vec<_>, _>>() else { return Transfer::Impossible };
        self.counts.registrations += regions.len() as u64;
        let number = self.next_transfer;
        let (mut addr, mut left) = (remote.addr, works);
        for (region, buffer) in regions.iter().zip(&filled) {
            for at in (0..buffer.len()).step_by(most) {
                let len = (buffer.len() - at).min(most);
                left -= 1;
                let local = region.local(at, len as u32);
                let op = op(verbs::Remote { addr, rkey: remote.key as u32 });
                self.post(peer, Work { id: Id::Transfer(number).into(), told: left == 0, local, op });
                addr += len as u64;
            }
        }
        let bytes = (addr - remote.addr) as usize;
        self.transfers.insert(number, Moving { peer, token, works, bytes, _regions: regions, result: None });
        self.next_transfer = number.wrapping_add(1);
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
}

impl Port for Rdma {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: BODY,
            max_bcopy: BODY,
            eager: BODY,
            piece: BODY,
            get: Kinds::HOST,
            put: Kinds::HOST,
            atomics: Kinds::HOST.only_if(self.device.atomics),
            alpha: 2e-6,
            beta: 1.0 / 10e9,
        }
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        match self.links.end(peer) {
            Some(end) if end.is_up() && end.credit.may_send() => {}
            Some(end) if end.is_up() => return Err(Refusal::Busy),
            _ => return Err(self.reach(peer)),
        }
        if !self.leave(peer, What::Frame(*head), len, fill) {
            return Err(Refusal::Busy);
        }
        self.counts.frames += 1;
        self.counts.sent += len as u64;
        Ok(())
    }

    fn register(&mut self, _peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        if memory.kind() != MemoryKind::Host {
            return Err(RegisterError::Unsupported);
        }
        if memory.is_empty() {
            return Ok(Remote { addr: memory.address(memory.lo()) as u64, len: 0, key: NO_BYTES });
        }
        let access = match access {
            Access::Read => verbs::Access::Read,
            Access::ReadWrite => verbs::Access::ReadWrite,
        };
        let region = Region::new(&self.device, memory, access).map_err(|_| RegisterError::NoRoom)?;
        self.counts.registrations += 1;
        let verbs::Remote { addr, rkey } = region.remote();
        self.registered.insert(rkey.into(), region);
        Ok(Remote { addr, len: memory.len() as u64, key: rkey.into() })
    }

    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        self.registered.remove(&remote.key);
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer(peer, remote, local, token, (verbs::Access::Local, Op::Read))
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer(peer, remote, local, token, (verbs::Access::None, Op::Write))
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        let at = verbs::Remote { addr: word.addr, rkey: word.key as u32 };
        let op = match op {
            Atomic::Fetch(Fetch::Add, operand) => Op::Add(at, operand),
            Atomic::CompareSwap { old, new } => Op::CompareSwap(at, old, new),
            Atomic::Fetch(..) => return Transfer::Impossible,
        };
        if !self.device.atomics {
            return Transfer::Impossible;
        }
        if let Err(refusal) = self.room(peer, 1) {
            return refusal;
        }
        let Some(slot) = self.take_slot(peer) else { return Transfer::Busy };
        let number = self.next_transfer;
        let local = self.slots.local(slot as usize, 8);
        self.post(peer, Work { id: Id::Transfer(number).into(), told: true, local, op });
        let result = Some((slot, result.clone()));
        self.transfers
            .insert(number, Moving { peer, token, works: 1, bytes: 8, _regions: Vec::new(), result });
        self.next_transfer = number.wrapping_add(1);
        Transfer::Started
    }

    /// Waits until the device is through with the memory: for the network, but not for the peer.
    fn reclaim(&mut self, peer: Peer, token: Token) {
        self.refused.retain(|&refused| refused != (peer, token));
        let of = |moving: &Moving| moving.peer == peer && moving.token == token;
        let found: Vec<u32> =
            self.transfers.iter().filter(|(_, moving)| of(moving)).map(|(&number, _)| number).collect();
        let end = Instant::now() + TAKE_BACK;
        let mut batch = Vec::new();
        for number in found {
            let id = u64::from(Id::Transfer(number));
            loop {
                if let Some(over) = self.held.iter().position(|over| over.id == id)
                    && let Some(over) = self.held.remove(over)
                {
                    self.end_transfer(number, over.pair, over.result, false);
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
