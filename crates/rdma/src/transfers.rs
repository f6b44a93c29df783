//! One-sided transfers under way: short ones through a slot, others from and to registered memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_transport::{Peer, Refusal, Remote, Token, Transfer};

use crate::cache::{Access, Purpose};
use crate::fabric::{MOST_WORK, Rdma};
use crate::frames::{Id, SLOT};
use crate::links::End;
use crate::registrations::{Regions, rails, rkey};
use crate::settings::RAILS;
use crate::verbs::{self, Completion, Failure, Local, Op, Pair, Work};

/// The most bytes of one work, if the device takes so many. What is lost of one is moved again.
const PIECE: usize = 128 << 10;
/// Bytes of long works that are under way at a time each way, with all peers. More than a network holds at once is lost, and asked for again only
/// when its acknowledgement is late; and of gets nobody else bounds what comes here.
const MOST_BYTES: usize = 512 << 10;
/// A transfer that is taken back is over when the device says so. After this time the connection is broken for it, and made anew.
const HURRY: Duration = Duration::from_secs(1);

/// Where a device does not tell what the peer has refused: a transfer is taken for refused whose connection has broken so often.
const TRIES: u8 = 3;

/// Which way the bytes of a transfer go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Get,
    Put,
}

/// How a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Moving,
    /// A work of it was not carried out, or that is not known.
    Failed,
    /// The peer has refused it.
    Refused,
}

/// A work of a transfer.
#[derive(Clone, Copy)]
struct Part {
    what: Piece,
    /// The rail by which it was posted last, and whether it is over there.
    rail: usize,
    over: bool,
}

/// What a work does.
#[derive(Clone, Copy)]
enum Piece {
    /// It goes through a slot.
    Short(Local<'static>, Op),
    /// It moves these bytes of registered memory: of which region, their address there and at the peer.
    Long { region: usize, addr: usize, len: u32, there: u64 },
}

impl Part {
    fn new(what: Piece) -> Part {
        Part { what, rail: 0, over: false }
    }

    /// The bytes of a long work.
    fn bytes(&self) -> usize {
        match self.what {
            Piece::Short(..) => 0,
            Piece::Long { len, .. } => len as usize,
        }
    }
}

/// Which way a transfer goes by long works, and the keys of the peer's memory.
type Ways = Option<(Way, u64)>;

/// A one-sided transfer that is under way.
pub(crate) struct Moving {
    peer: Peer,
    /// What it is reported as; `None`: nobody wants to hear of it any more.
    token: Option<Token>,
    bytes: usize,
    long: Ways,
    /// What devices are to do, how much of it was posted, and how much of that is surely over, counted from the beginning.
    parts: Vec<Part>,
    posted: usize,
    passed: usize,
    /// Number of works that devices have not told the end of.
    under_way: usize,
    /// How often its connection broke meanwhile.
    breaks: u8,
    state: State,
    /// Its local memory, registered until it is over.
    regions: Vec<Arc<Regions>>,
    /// The slot that it goes through, and the memory that what has come there belongs to.
    slot: Option<(u32, Vec<Buffer>)>,
}

impl Moving {
    /// One of which nothing was posted.
    fn new(peer: Peer, token: Token, bytes: usize, parts: Vec<Part>) -> Moving {
        Moving {
            peer,
            token: Some(token),
            bytes,
            long: None,
            parts,
            posted: 0,
            passed: 0,
            under_way: 0,
            breaks: 0,
            state: State::Failed,
            regions: Vec::new(),
            slot: None,
        }
    }

    /// The part that is posted next, as work on a rail.
    fn work(&self, rail: usize) -> (Local<'static>, Op) {
        match (self.parts[self.posted].what, self.long) {
            (Piece::Long { region, addr, len, there }, Some((way, keys))) => {
                let there = verbs::Remote { addr: there, rkey: rkey(keys, rail) };
                let op = if way == Way::Get { Op::Read(there) } else { Op::Write(there) };
                (self.regions[region].local(rail, addr, len), op)
            }
            (Piece::Short(local, op), _) => (local, op),
            (Piece::Long { .. }, None) => unreachable!("long works have a way"),
        }
    }

    /// On how many rails works may be posted: as many as both memories are registered for.
    fn rails(&self) -> usize {
        let theirs = self.long.map_or(1, |(_, keys)| rails(keys));
        self.regions.iter().map(|regions| regions.rails()).fold(theirs, usize::min)
    }

    /// The oldest work that a rail has under way is over; gives its bytes. Works of one rail are over in the order in which they were posted.
    fn over(&mut self, rail: usize) -> Option<usize> {
        let part =
            self.parts[self.passed..self.posted].iter_mut().find(|part| part.rail == rail && !part.over)?;
        part.over = true;
        let bytes = part.bytes();
        while self.passed < self.posted && self.parts[self.passed].over {
            self.passed += 1;
        }
        self.under_way -= 1;
        Some(bytes)
    }

    /// Forgets what devices were told to do, which they do no more.
    fn forget_works(&mut self, long: &mut Long) {
        for part in &mut self.parts[self.passed..self.posted] {
            if !std::mem::take(&mut part.over) {
                long.over(self.long, part.rail, part.bytes());
            }
        }
        self.parts.iter_mut().for_each(|part| part.over = false);
        (self.posted, self.passed, self.under_way, self.state) = (0, 0, 0, State::Failed);
    }
}

/// Bytes of long works that are under way, on each rail, in gets and in puts. Short works do not count: they never wait for others.
#[derive(Default)]
pub(crate) struct Long([[usize; 2]; RAILS]);

impl Long {
    /// The rail that a work of so many bytes goes by, of so many that there are: that with the least under way, if there is room. A work of any
    /// length finds room when it is alone.
    fn rail(&self, long: Ways, bytes: usize, rails: usize) -> Option<usize> {
        let Some((way, _)) = long else { return Some(0) };
        let under_way = |rail: &usize| self.0[*rail][way as usize];
        let rail = (0..rails).min_by_key(under_way)?;
        let now = under_way(&rail);
        (now == 0 || now + bytes <= MOST_BYTES).then_some(rail)
    }

    fn begins(&mut self, long: Ways, rail: usize, bytes: usize) {
        long.into_iter().for_each(|(way, _)| self.0[rail][way as usize] += bytes);
    }

    fn over(&mut self, long: Ways, rail: usize, bytes: usize) {
        long.into_iter().for_each(|(way, _)| self.0[rail][way as usize] -= bytes);
    }
}

impl Rdma {
    /// A work of a transfer is over, on a rail; the transfer's token, if all is done and somebody wants to hear of it.
    pub(crate) fn transfer_moved(
        &mut self,
        number: u32,
        rail: usize,
        result: Result<u32, Failure>,
    ) -> Option<Token> {
        let moving = self.transfers.get_mut(&number)?;
        let peer = moving.peer;
        let end = self.links.end(peer)?;
        if let Some(bytes) = moving.over(rail) {
            self.long.over(moving.long, rail, bytes);
            end.moving -= 1;
            end.moved += u64::from(result.is_ok());
            self.under_way -= 1;
            if rail > 0 && result.is_ok() {
                self.counts.striped += bytes as u64;
                end.rails_work();
            }
        }
        let all = moving.under_way == 0 && moving.posted == moving.parts.len();
        match result {
            Ok(_) if all && moving.state == State::Moving => {
                end.works();
                let moving = self.transfers.remove(&number)?;
                self.done(moving)
            }
            Ok(_) => None,
            Err(failure) => {
                self.transfer_failed(number, failure);
                None
            }
        }
    }

    /// A work of a transfer has failed, and with it the connection.
    pub(crate) fn transfer_failed(&mut self, number: u32, failure: Failure) {
        let Some(moving) = self.transfers.get_mut(&number) else { return };
        let peer = moving.peer;
        moving.state = moving.state.max(if failure.is_refusal() { State::Refused } else { State::Failed });
        self.broke(peer, failure.why());
        if let Some(breaking) = self.links.end(peer).and_then(|end| end.breaking.as_mut()) {
            breaking.refused |= failure.is_refusal();
        }
    }

    /// All of a transfer has arrived.
    fn done(&mut self, moving: Moving) -> Option<Token> {
        if let Some((slot, into)) = &moving.slot {
            let mut bytes = self.sending.bytes(*slot, moving.bytes);
            for buffer in into {
                let (first, rest) = bytes.split_at(buffer.len().min(bytes.len()));
                buffer.write(buffer.lo(), first);
                bytes = rest;
            }
            self.sending.give(*slot);
        }
        self.counts.moved += moving.bytes as u64;
        moving.token
    }

    /// The pairs to a peer are gone. What was refused is told; what nobody wants to hear of is over; the others are still to be done.
    pub(crate) fn end_transfers(&mut self, peer: Peer) {
        if !self.device.tells_refusals() {
            for moving in self.transfers.values_mut().filter(|moving| moving.peer == peer) {
                moving.breaks += 1;
                if moving.breaks == TRIES {
                    moving.state = State::Refused;
                }
            }
        }
        let over = |moving: &Moving| moving.state == State::Refused || moving.token.is_none();
        let over = self.transfers.extract_if(|_, moving| moving.peer == peer && over(moving));
        for (_, mut moving) in over {
            moving.forget_works(&mut self.long);
            self.refused.extend(moving.token.map(|token| (peer, token)));
            moving.slot.iter().for_each(|(slot, _)| self.sending.give(*slot));
        }
        for moving in self.transfers.values_mut().filter(|moving| moving.peer == peer) {
            moving.forget_works(&mut self.long);
        }
        self.unposted.retain(|number| self.transfers.get(number).is_some_and(|moving| moving.peer != peer));
    }

    /// A peer is gone, and the pairs to it: so are its transfers.
    pub(crate) fn drop_transfers(&mut self, peer: Peer) {
        for (_, mut moving) in self.transfers.extract_if(|_, moving| moving.peer == peer) {
            moving.forget_works(&mut self.long);
            moving.slot.iter().for_each(|(slot, _)| self.sending.give(*slot));
        }
        self.unposted.retain(|number| self.transfers.contains_key(number));
    }

    /// True if transfers with a peer are still to be done.
    pub(crate) fn has_transfers(&self, peer: Peer) -> bool {
        self.transfers.values().any(|moving| moving.peer == peer)
    }

    /// True if an atomic operation is among the transfers that are still to be done: a second time is not as good as once.
    pub(crate) fn atomic_under_way(&self, peer: Peer) -> bool {
        let atomic = |part: &Part| matches!(part.what, Piece::Short(_, Op::Add(..) | Op::CompareSwap(..)));
        let mut all = self.transfers.values().filter(|moving| moving.peer == peer);
        all.any(|moving| moving.parts.iter().any(atomic))
    }

    /// Does again what is still to be done, by a connection that was made anew.
    pub(crate) fn move_again(&mut self, peer: Peer) {
        let failed = |moving: &Moving| moving.peer == peer && moving.state == State::Failed;
        let all = self.transfers.iter().filter(|(_, moving)| failed(moving));
        let mut numbers: Vec<u32> = all.map(|(&number, _)| number).collect();
        // In the order in which they began, also where numbers have begun anew.
        numbers.sort_by_key(|number| number.wrapping_sub(self.next_transfer));
        numbers.into_iter().for_each(|number| self.post_transfer(number));
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
        let there = verbs::Remote { addr: remote.addr, rkey: remote.key as u32 };
        // The processor copies to and from slots.
        if bytes > SLOT || filled.iter().any(|buffer| !buffer.kind().is_host_accessible()) {
            return self.by_registration(peer, token, &filled, remote, way);
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
        if let Err(refusal) = self.room(peer) {
            return refusal;
        }
        let Some(slot) = self.sending.take(bytes) else { return Transfer::Busy };
        fill(self.sending.bytes_mut(slot, bytes));
        let parts = vec![Part::new(Piece::Short(self.sending.local(slot, bytes), op))];
        self.start(Moving { slot: Some((slot, into)), ..Moving::new(peer, token, bytes, parts) })
    }

    /// Starts a transfer from or to memory, which is registered for it.
    fn by_registration(
        &mut self,
        peer: Peer,
        token: Token,
        local: &[&Buffer],
        remote: Remote,
        way: Way,
    ) -> Transfer {
        if let Err(refusal) = self.room(peer) {
            return refusal;
        }
        let goes = |other: &Moving| other.long.is_some_and(|(its, _)| its == way);
        if self.unposted.iter().any(|number| self.transfers.get(number).is_some_and(goes)) {
            return Transfer::Busy;
        }
        let most = self.devices().map(|device| device.most_bytes as usize).fold(PIECE, usize::min);
        let access = if way == Way::Get { Access::LOCAL } else { Access::NONE };
        let (mut parts, mut regions, mut bytes) = (Vec::new(), Vec::new(), 0);
        for buffer in local {
            let Ok(region) = self.registrations.region(buffer, access, Purpose::Ours) else {
                return Transfer::Impossible;
            };
            for at in (0..buffer.len()).step_by(most) {
                let len = (buffer.len() - at).min(most);
                let (addr, there) = (buffer.address(buffer.lo()) + at, remote.addr + bytes as u64);
                parts.push(Part::new(Piece::Long { region: regions.len(), addr, len: len as u32, there }));
                bytes += len;
            }
            regions.push(region);
        }
        let long = Some((way, remote.key));
        self.start(Moving { long, regions, ..Moving::new(peer, token, bytes, parts) })
    }

    /// Starts a transfer, for which there is room.
    fn start(&mut self, moving: Moving) -> Transfer {
        let number = self.next_transfer;
        self.next_transfer = number.checked_add(1).unwrap_or(1);
        self.transfers.insert(number, moving);
        self.post_transfer(number);
        Transfer::Started
    }

    /// Posts the works of a transfer, as many as there is room for now.
    fn post_transfer(&mut self, number: u32) {
        if let Some(moving) = self.transfers.get_mut(&number) {
            moving.state = State::Moving;
            self.unposted.push(number);
            self.post_works();
        }
    }

    /// Posts works that had no room so far.
    pub(crate) fn post_works(&mut self) {
        let mut unposted = std::mem::take(&mut self.unposted);
        unposted.retain(|&number| self.post_some(number));
        self.unposted = unposted;
    }

    /// Posts works of a transfer; true if there is no room for some of them.
    fn post_some(&mut self, number: u32) -> bool {
        let Some(moving) = self.transfers.get_mut(&number) else { return false };
        let Some(end) = self.links.end(moving.peer).filter(|end| end.breaking.is_none()) else {
            return false;
        };
        let Some(pairs) = &mut end.pairs else { return false };
        while let Some(bytes) = moving.parts.get(moving.posted).map(Part::bytes) {
            let rail = self.long.rail(moving.long, bytes, pairs.rails().min(moving.rails()));
            let Some(rail) = rail.filter(|_| end.moving < Pair::DEPTH && self.under_way < MOST_WORK) else {
                return true;
            };
            let (local, op) = moving.work(rail);
            let work = Work { id: Id::Transfer(number).into(), told: true, local, op };
            if let Err(why) = pairs.of_transfers(rail).post(work) {
                moving.state = State::Failed;
                let peer = moving.peer;
                self.broke(peer, why);
                return false;
            }
            pairs.tried |= rail > 0;
            self.long.begins(moving.long, rail, bytes);
            moving.parts[moving.posted].rail = rail;
            moving.posted += 1;
            moving.under_way += 1;
            end.moving += 1;
            self.under_way += 1;
            self.counts.transfers += 1;
        }
        false
    }

    /// Whether a work may be posted to a peer now. A connection comes about, if there is none.
    fn room(&mut self, peer: Peer) -> Result<(), Transfer> {
        match self.links.end(peer) {
            Some(end) if end.is_up() => {
                end.used = self.polls;
                let room = end.moving < Pair::DEPTH && self.under_way < MOST_WORK;
                room.then_some(()).ok_or(Transfer::Busy)
            }
            _ => match self.reach(peer) {
                Refusal::Busy => Err(Transfer::Busy),
                Refusal::Down => Err(Transfer::Impossible),
            },
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
        registered.into_iter().for_each(|number| self.wait_for_device(peer, number));
    }

    /// Waits until the device is through with a transfer that nobody wants to hear of.
    fn wait_for_device(&mut self, peer: Peer, number: u32) {
        let (start, id) = (Instant::now(), u64::from(Id::Transfer(number)));
        while self.transfers.get(&number).is_some_and(|moving| moving.under_way > 0) {
            // One of a pair that has ended, and that was forgotten, tells of work that was given up with it.
            let told = |over: &Completion| over.id == id && self.peers.get(over.pair).is_some();
            if let Some(over) = self.held.iter().position(told)
                && let Some(over) = self.held.remove(over)
            {
                self.transfer_moved(number, over.rail(), over.result);
                continue;
            }
            if start.elapsed() > HURRY {
                self.broke(peer, "a transfer that was taken back does not end".into());
            }
            if self.hold_completions() == 0 {
                if self.links.look(peer).is_some_and(End::flushes_in_vain) {
                    self.renew_broken(peer);
                }
                std::thread::yield_now();
            }
        }
        self.transfers.remove(&number);
        self.unposted.retain(|&other| other != number);
    }
}
