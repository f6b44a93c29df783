//! An in-memory world for the executor: messages and shared slots of all ranks in one thread, with seeded
//! random delays, and checks of what the executor promises to its surroundings.

use std::collections::{HashMap, VecDeque};

use banyan_coll::{
    Advance, Execution, Fault, Key, Messenger, Note, OpId, PlanCache, Published, Slots, order_of,
};
use banyan_datatype::Data;
use banyan_memory::{Buffer, Scratch};

/// A small generator of random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The bytes of `data`, packed.
pub(crate) fn packed(data: &Data) -> Vec<u8> {
    let mut bytes = vec![0; data.len() as usize];
    data.cursor().pack(data, &mut bytes);
    bytes
}

enum Body {
    /// Copied when it was sent.
    Copied(Vec<u8>),
    /// Still in the sender's memory.
    There(Data, OpId),
}

/// All messages and slots of one communicator.
pub(crate) struct Net {
    pub(crate) random: Random,
    mail: HashMap<(u32, u32, Key), VecDeque<Body>>,
    receives: HashMap<OpId, (u32, u32, Key, Data)>,
    /// Sends not yet delivered (false) and those that are (true).
    sends: HashMap<OpId, bool>,
    next: u64,
    slots: Vec<Slot>,
    inline: usize,
    regions: bool,
    pub(crate) board: Buffer,
    /// The ranks' calls may differ.
    pub(crate) differ: bool,
}

struct Slot {
    /// What will be published, and when.
    next: Option<(u64, Buffer)>,
    banks: Vec<Option<(u64, bool, Buffer)>>,
    published: u64,
    released: u64,
    /// Stamps of regions that it took back.
    revoked: Vec<u64>,
    voided: Vec<(u64, u64)>,
}

impl Slot {
    fn new(banks: usize) -> Slot {
        let (revoked, voided) = (vec![], vec![]);
        Slot { next: None, banks: vec![None; banks], published: 0, released: 0, revoked, voided }
    }
}

impl Net {
    pub(crate) fn new(ranks: u32, seed: u64, inline: usize, regions: bool) -> Net {
        Net {
            random: Random(seed),
            mail: HashMap::new(),
            receives: HashMap::new(),
            sends: HashMap::new(),
            next: 0,
            // With few banks ranks wait for one another, with many they get far apart.
            slots: (0..ranks).map(|_| Slot::new(if seed.is_multiple_of(2) { 2 } else { 16 })).collect(),
            inline,
            regions,
            board: Scratch::zeroed(0),
            differ: false,
        }
    }

    fn id(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// Nothing may be left behind.
    #[allow(dead_code, reason = "what nobody wants is left behind where calls differ")]
    pub(crate) fn assert_empty(&self) {
        assert!(self.mail.values().all(VecDeque::is_empty), "messages that nobody received");
        assert!(self.receives.is_empty() && self.sends.is_empty(), "operations that nobody finished");
    }
}

impl Net {
    /// Regions that a rank has published and not taken back.
    #[allow(dead_code, reason = "not every test lends regions")]
    pub(crate) fn lent(&self, rank: u32) -> usize {
        let slot = &self.slots[rank as usize];
        let lent = |bank: &&(u64, bool, Buffer)| bank.1 && !slot.revoked.contains(&bank.0);
        slot.banks.iter().flatten().filter(lent).count()
    }
}

/// One rank's way into the net.
pub(crate) struct Port<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) rank: u32,
}

impl Messenger for Port<'_> {
    fn send(&mut self, to: u32, key: Key, data: &Data) -> Option<OpId> {
        let queue = (self.rank, to, key);
        if self.net.random.one_in(2) {
            self.net.mail.entry(queue).or_default().push_back(Body::Copied(packed(data)));
            return None;
        }
        let id = self.net.id();
        self.net.sends.insert(id, false);
        self.net.mail.entry(queue).or_default().push_back(Body::There(data.clone(), id));
        Some(id)
    }

    fn recv(&mut self, from: u32, key: Key, data: &Data) -> OpId {
        let id = self.net.id();
        self.net.receives.insert(id, (from, self.rank, key, data.clone()));
        id
    }

    fn poll(&mut self, op: OpId) -> Option<Result<u64, Fault>> {
        if let Some(&delivered) = self.net.sends.get(&op) {
            return delivered.then(|| {
                self.net.sends.remove(&op);
                Ok(0)
            });
        }
        if self.net.random.one_in(3) {
            return None;
        }
        let (from, to, key, data) = self.net.receives.get(&op).expect("an operation under way").clone();
        let body = self.net.mail.get_mut(&(from, to, key))?.pop_front()?;
        let bytes = match body {
            Body::Copied(bytes) => bytes,
            Body::There(data, id) => {
                self.net.sends.insert(id, true);
                packed(&data)
            }
        };
        let room = data.len();
        self.net.receives.remove(&op);
        if bytes.len() as u64 > room {
            // A message does not know ranks.
            return Some(Err(Fault::Length { from: u32::MAX, sent: bytes.len() as u64, room }));
        }
        data.cursor().unpack(&data, &bytes);
        Some(Ok(bytes.len() as u64))
    }

    fn met(&mut self, op: OpId) -> bool {
        self.net.sends.get(&op).is_some_and(|&delivered| delivered)
    }

    fn cancel(&mut self, op: OpId) {
        let known = self.net.receives.remove(&op).is_some() | self.net.sends.remove(&op).is_some();
        assert!(known, "cancelled twice, or after its end");
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        if self.net.inline > 0 { Some(self) } else { None }
    }
}

impl Port<'_> {
    fn place(&self, stamp: u64) -> usize {
        (stamp % self.banks()) as usize
    }

    fn stamp(&mut self, stamp: u64, region: bool, buffer: Buffer) {
        let (banks, bank) = (self.banks(), self.place(stamp));
        let clear = self.net.slots.iter().all(|slot| slot.released + banks >= order_of(stamp));
        assert!(clear, "rank {} publishes {stamp} in a bank that others may still read", self.rank);
        let slot = &mut self.net.slots[self.rank as usize];
        assert!(order_of(stamp) > slot.published, "stamps grow");
        slot.published = order_of(stamp);
        slot.banks[bank] = Some((stamp, region, buffer));
    }
}

impl Slots for Port<'_> {
    fn banks(&self) -> u64 {
        self.net.slots[0].banks.len() as u64
    }

    fn inline_bytes(&self) -> usize {
        self.net.inline
    }

    fn publish(&mut self, stamp: u64, data: &Buffer, at: isize, len: usize) {
        assert!(len <= self.net.inline, "{len} bytes are too many for a slot");
        let mut bytes = vec![0; len];
        data.read(at, &mut bytes);
        self.stamp(stamp, false, Scratch::copy_of(&bytes).slice(0, bytes.len()));
    }

    fn bank(&mut self, stamp: u64) -> Buffer {
        let inline = self.net.inline;
        let slot = &mut self.net.slots[self.rank as usize];
        match &slot.next {
            Some((there, bank)) if *there == stamp => bank.clone(),
            _ => {
                // With whatever is left of what was there before.
                let bank = Scratch::copy_of(&vec![0x77; inline]);
                slot.next = Some((stamp, bank.clone()));
                bank.slice(0, inline)
            }
        }
    }

    fn publish_bank(&mut self, stamp: u64) {
        let laid = self.net.slots[self.rank as usize].next.take();
        let bank = laid.filter(|laid| laid.0 == stamp).expect("something was laid").1;
        let bank = bank.slice(0, self.net.inline);
        self.stamp(stamp, false, bank);
    }

    fn publish_region(&mut self, stamp: u64, data: &Buffer) {
        assert!(self.net.regions);
        self.stamp(stamp, true, data.clone());
    }

    fn revoke_regions(&mut self, first: u64, last: u64) {
        self.net.slots[self.rank as usize].revoked.extend(first..=last);
    }

    fn look(&mut self, rank: u32, stamp: u64) -> Option<Published> {
        assert!(
            self.net.slots[self.rank as usize].released < order_of(stamp),
            "looks at what it has released"
        );
        let bank = self.place(stamp);
        let slot = &self.net.slots[rank as usize];
        if slot.published < order_of(stamp) || self.net.random.one_in(4) {
            return None;
        }
        let (there, region, buffer) = slot.banks[bank].as_ref()?;
        if *there != stamp {
            assert!(self.net.differ, "the bank was used again too early");
            return None;
        }
        Some(if *region { Published::Region(buffer.len() as u64) } else { Published::Inline(buffer.clone()) })
    }

    fn pull(&mut self, rank: u32, stamp: u64, at: u64, into: &Buffer) -> bool {
        let bank = self.place(stamp);
        let (there, _, from) = self.net.slots[rank as usize].banks[bank].as_ref().unwrap();
        assert_eq!(*there, stamp);
        if self.net.slots[rank as usize].revoked.contains(&stamp) {
            return false;
        }
        into.copy_from(into.lo(), from, from.lo() + at as isize, into.len());
        true
    }

    fn release(&mut self, stamp: u64) {
        let slot = &mut self.net.slots[self.rank as usize];
        assert!(stamp > slot.released || self.net.differ);
        slot.released = stamp;
    }

    fn released(&mut self, rank: u32) -> u64 {
        self.net.slots[rank as usize].released
    }

    fn void(&mut self, first: u64, last: u64) {
        self.net.slots[self.rank as usize].voided.push((first, last));
    }

    fn reached(&mut self, rank: u32, stamp: u64) -> bool {
        let slot = &self.net.slots[rank as usize];
        let gave_up = slot.voided.iter().any(|&(first, last)| (first..=last).contains(&stamp));
        slot.released >= stamp && !gave_up
    }

    fn board(&mut self) -> Buffer {
        self.net.board.clone()
    }

    fn can_pull_regions(&self) -> bool {
        self.net.regions
    }
}

/// Advances all the executions, by rank, in random order until they are done; returns their results.
#[allow(dead_code, reason = "not every test has calls that go together")]
pub(crate) fn run(net: &mut Net, executions: &mut [Vec<Execution>]) -> Vec<Vec<Result<(), Fault>>> {
    run_with(net, executions, &mut |_, _, _, _| ())
}

/// What is done in each turn, with the results so far, and in the end of a call (by rank and index).
type Also<'a> = &'a mut dyn FnMut(&mut Net, &mut [Vec<Execution>], &[Vec<Option<Result<(), Fault>>>], u32);

fn run_with(net: &mut Net, executions: &mut [Vec<Execution>], also: Also<'_>) -> Vec<Vec<Result<(), Fault>>> {
    let mut results: Vec<Vec<Option<Result<(), Fault>>>> =
        executions.iter().map(|mine| vec![None; mine.len()]).collect();
    let mut jobs = vec![];
    for turn in 0..200_000 {
        let mut left = 0;
        for rank in 0..executions.len() {
            for (index, execution) in executions[rank].iter_mut().enumerate() {
                if results[rank][index].is_some() {
                    continue;
                }
                left += 1;
                if net.random.one_in(3) {
                    continue;
                }
                match execution.advance(&mut Port { net, rank: rank as u32 }) {
                    Advance::Done(result) => results[rank][index] = Some(result),
                    Advance::Pending => {}
                    Advance::UserOp(job) => jobs.push((rank, index, job)),
                }
            }
        }
        // The user's functions run some time later.
        while !jobs.is_empty() && !net.random.one_in(3) {
            let at = net.random.below(jobs.len() as u64) as usize;
            let (rank, index, job) = jobs.swap_remove(at);
            job.run();
            executions[rank][index].completed(job);
        }
        if left == 0 {
            return results.into_iter().map(|mine| mine.into_iter().flatten().collect()).collect();
        }
        also(net, executions, &results, turn);
    }
    panic!("no end in sight");
}

/// The same, where ranks that wait for long ask, and say why they gave up, as a runtime does it for them.
#[allow(dead_code, reason = "not every test has calls that differ")]
pub(crate) fn run_asking(
    net: &mut Net,
    plans: &mut [PlanCache],
    executions: &mut [Vec<Execution>],
) -> Vec<Vec<Result<(), Fault>>> {
    let ranks = plans.len();
    let mut told = vec![vec![false; executions[0].len()]; ranks];
    let mut heard = told.clone();
    run_with(net, executions, &mut |net, executions, results, turn| {
        // To whom, and what.
        let mut notes: Vec<(usize, usize, Note)> = vec![];
        for rank in 0..ranks {
            for index in 0..executions[rank].len() {
                let number = executions[rank][index].number();
                match &results[rank][index] {
                    Some(Err(fault)) if !told[rank][index] => {
                        told[rank][index] = true;
                        let note = plans[rank].ledger().fail(number, fault);
                        if !heard[rank][index] {
                            notes.extend((0..ranks).filter(|&to| to != rank).map(|to| (rank, to, note)));
                        }
                    }
                    None if turn % 300 == 299 => {
                        let note = plans[rank].ledger().ask(number);
                        executions[rank][index].awaits(&mut |to| notes.push((rank, to as usize, note)));
                    }
                    _ => {}
                }
            }
        }
        while let Some((from, to, note)) = notes.pop() {
            let note = Note::decode(&note.encode()).expect("what was encoded");
            let index = executions[to].iter().position(|execution| execution.number() == note.number());
            let running = index.filter(|&index| results[to][index].is_none());
            let news = plans[to].ledger().hear(note, running.is_some());
            notes.extend(news.answer.map(|answer| (to, from, answer)));
            let Some(index) = running else { continue };
            if let Some(fault) = news.fault {
                heard[to][index] = true;
                executions[to][index].refuse(fault);
            } else if let Some(silent) = news.silent {
                let fault = executions[to][index].unanswered(silent, &mut Port { net, rank: to as u32 });
                fault.into_iter().for_each(|fault| executions[to][index].refuse(fault));
            }
        }
    })
}
