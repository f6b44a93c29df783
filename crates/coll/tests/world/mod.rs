//! An in-memory world for the executor: messages and shared buffers of all ranks in one thread, with seeded
//! random delays, and checks of what the executor promises to its surroundings.

use std::collections::{HashMap, VecDeque};

use banyan_coll::{
    Advance, Execution, Fault, Key, Messenger, Note, OpId, PlanCache, Published, SharedBuffers, order_of,
};
use banyan_datatype::Data;
use banyan_memory::{Buffer, DeviceFailure, HeapBuffer};

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

/// What a message carries.
enum Body {
    /// Bytes that were copied when it was sent.
    Copied(Vec<u8>),
    /// Data that are still in the sender's memory.
    Borrowed(Data, OpId),
}

/// All messages and CICO buffers of one communicator.
pub(crate) struct Net {
    pub(crate) random: Random,
    mail: HashMap<(u32, u32, Key), VecDeque<Body>>,
    receives: HashMap<OpId, (u32, u32, Key, Data)>,
    /// Sends under way, and whether they are delivered.
    sends: HashMap<OpId, bool>,
    /// Those of them that a device has not copied, and why.
    unsent: HashMap<OpId, String>,
    next: u64,
    /// By rank.
    cicos: Vec<CicoBuffer>,
    inline: usize,
    single_copy: bool,
    /// The ranks of each node, which share buffers; all of them, if there are no nodes.
    pub(crate) nodes: Vec<Vec<u32>>,
    /// Each node has an equal part of it.
    pub(crate) scratch: Buffer,
    /// The ranks' calls may differ.
    pub(crate) differ: bool,
}

/// A sequence number, whether an exposed range was published under it, and the bytes.
type Cell = (u64, bool, Buffer);

/// The most bytes that are published in a small cell.
const SMALL: usize = 16;

struct CicoBuffer {
    /// The cell that is being packed, and the sequence number that it will be published under.
    next: Option<(u64, Buffer)>,
    /// What each small cell holds, and each other one.
    cells: [Vec<Option<Cell>>; 2],
    /// What is offered, by sequence number and place in the cell.
    offers: HashMap<(u64, u64), Buffer>,
    published: u64,
    acked: u64,
    /// Sequence numbers of exposed ranges that the rank took back.
    revoked: Vec<u64>,
    /// From which to which sequence number the rank gave up.
    voided: Vec<(u64, u64)>,
}

impl CicoBuffer {
    fn new(cells: usize) -> CicoBuffer {
        let (revoked, voided) = (vec![], vec![]);
        let (cells, offers) = ([vec![None; 4 * cells], vec![None; cells]], HashMap::new());
        CicoBuffer { next: None, cells, offers, published: 0, acked: 0, revoked, voided }
    }
}

impl Net {
    pub(crate) fn new(ranks: u32, seed: u64, inline: usize, single_copy: bool) -> Net {
        Net {
            random: Random(seed),
            mail: HashMap::new(),
            receives: HashMap::new(),
            sends: HashMap::new(),
            unsent: HashMap::new(),
            next: 0,
            // With few cells ranks wait for one another, with many they get far apart.
            cicos: (0..ranks).map(|_| CicoBuffer::new(if seed.is_multiple_of(2) { 2 } else { 16 })).collect(),
            inline,
            single_copy,
            nodes: vec![(0..ranks).collect()],
            scratch: HeapBuffer::zeroed(0),
            differ: false,
        }
    }

    fn id(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// No message and no operation may be left behind.
    #[allow(dead_code, reason = "where calls differ, messages that nobody receives are left behind")]
    pub(crate) fn assert_empty(&self) {
        assert!(self.mail.values().all(VecDeque::is_empty), "messages that nobody received");
        assert!(self.receives.is_empty() && self.sends.is_empty(), "operations that nobody finished");
    }
}

impl Net {
    /// The last sequence number that any rank has published under.
    #[allow(dead_code, reason = "not every test uses shared buffers")]
    pub(crate) fn publications(&self) -> u64 {
        self.cicos.iter().map(|cico| cico.published).max().unwrap_or(0)
    }

    /// Exposed ranges that a rank has published and not taken back.
    #[allow(dead_code, reason = "not every test exposes ranges")]
    pub(crate) fn exposed(&self, rank: u32) -> usize {
        let cico = &self.cicos[rank as usize];
        let exposed = |cell: &&(u64, bool, Buffer)| cell.1 && !cico.revoked.contains(&cell.0);
        cico.cells.iter().flatten().flatten().filter(exposed).count()
    }
}

/// One rank's access to the net.
pub(crate) struct Port<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) rank: u32,
}

impl Messenger for Port<'_> {
    type Shared = Self;

    fn moves_devices(&mut self, _rank: u32, _bytes: u64) -> bool {
        self.net.random.one_in(2)
    }

    fn send(&mut self, to: u32, key: Key, data: &Data) -> Option<OpId> {
        let queue = (self.rank, to, key);
        if self.net.random.one_in(2) {
            self.net.mail.entry(queue).or_default().push_back(Body::Copied(packed(data)));
            return None;
        }
        let id = self.net.id();
        self.net.sends.insert(id, false);
        self.net.mail.entry(queue).or_default().push_back(Body::Borrowed(data.clone(), id));
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
                self.net.unsent.remove(&op).map_or(Ok(0), |what| Err(Fault::device(what)))
            });
        }
        if self.net.random.one_in(3) {
            return None;
        }
        let (from, to, key, data) = self.net.receives.get(&op).expect("an operation under way").clone();
        let body = self.net.mail.get_mut(&(from, to, key))?.pop_front()?;
        self.net.receives.remove(&op);
        let bytes = match body {
            Body::Copied(bytes) => bytes,
            Body::Borrowed(data, id) => {
                self.net.sends.insert(id, true);
                match DeviceFailure::caught(|| packed(&data)) {
                    Ok(bytes) => bytes,
                    Err(failure) => {
                        self.net.unsent.insert(id, failure.what);
                        return Some(Err(Fault::Left { rank: from }));
                    }
                }
            }
        };
        let room = data.len();
        if bytes.len() as u64 > room {
            // A messenger need not say whom a message of a wrong length came from.
            return Some(Err(Fault::Length { from: u32::MAX, sent: bytes.len() as u64, room }));
        }
        let unpacked = DeviceFailure::caught(|| data.cursor().unpack(&data, &bytes));
        Some(unpacked.map(|_| bytes.len() as u64).map_err(|failure| Fault::device(failure.what)))
    }

    fn met(&mut self, op: OpId) -> bool {
        self.net.sends.get(&op).is_some_and(|&delivered| delivered)
    }

    fn cancel(&mut self, op: OpId) {
        let under_way = self.net.receives.remove(&op).is_some() | self.net.sends.remove(&op).is_some();
        assert!(under_way, "cancelled twice, or after its end");
    }

    fn shared(&mut self) -> Option<&mut Self> {
        if self.net.inline > 0 { Some(self) } else { None }
    }
}

impl Port<'_> {
    /// What the cells hold in which a rank may have published under a sequence number.
    fn held(&self, rank: u32, seq: u64) -> impl Iterator<Item = &Cell> {
        self.cico(rank).cells.iter().filter_map(move |cells| cells[seq as usize % cells.len()].as_ref())
    }

    /// The node of this rank.
    fn node(&self) -> usize {
        self.net.nodes.iter().position(|ranks| ranks.contains(&self.rank)).expect("each rank is on a node")
    }

    /// What a rank of the shared buffers has published.
    fn cico(&self, index: u32) -> &CicoBuffer {
        &self.net.cicos[self.net.nodes[self.node()][index as usize] as usize]
    }

    /// The range that a rank offers.
    fn offered(&self, rank: u32, seq: u64, at: u64) -> Option<Buffer> {
        let cico = self.cico(rank);
        cico.offers.get(&(seq, at)).filter(|_| !cico.revoked.contains(&seq)).cloned()
    }

    /// Publishes bytes, or an exposed range, under a sequence number.
    fn publish_as(&mut self, seq: u64, exposed: bool, buffer: Buffer) {
        self.publish_in(seq, false, (seq, exposed, buffer));
    }

    /// The same, in a small cell or in another one.
    fn publish_in(&mut self, seq: u64, small: bool, published: Cell) {
        let cells = if small { self.cells_for(0) } else { self.cells() };
        let ranks = 0..self.net.nodes[self.node()].len() as u32;
        let acked = ranks.map(|index| self.cico(index)).all(|cico| cico.acked + cells >= order_of(seq));
        assert!(acked, "rank {} publishes {seq} in a cell that others may still read", self.rank);
        let cico = &mut self.net.cicos[self.rank as usize];
        assert!(order_of(seq) > cico.published, "sequence numbers grow");
        cico.published = order_of(seq);
        cico.cells[usize::from(!small)][(seq % cells) as usize] = Some(published);
    }
}

impl SharedBuffers for Port<'_> {
    fn cells(&self) -> u64 {
        self.net.cicos[0].cells[1].len() as u64
    }

    fn cells_for(&self, bytes: u64) -> u64 {
        self.net.cicos[0].cells[usize::from(bytes > SMALL as u64)].len() as u64
    }

    fn inline_bytes(&self) -> usize {
        self.net.inline
    }

    fn publish(&mut self, seq: u64, data: &Buffer, at: isize, len: usize) {
        assert!(len <= self.net.inline, "{len} bytes are too many for a CICO buffer");
        let mut bytes = vec![0; len];
        data.read(at, &mut bytes);
        let data = HeapBuffer::copy_of(&bytes).slice(0, bytes.len());
        self.publish_in(seq, len <= SMALL, (seq, false, data));
    }

    fn cell(&mut self, seq: u64) -> Buffer {
        let inline = self.net.inline;
        let cico = &mut self.net.cicos[self.rank as usize];
        match &cico.next {
            Some((packed, cell)) if *packed == seq => cell.clone(),
            _ => {
                // A cell still holds what was in it before: here, these bytes.
                let cell = HeapBuffer::copy_of(&vec![0x77; inline]);
                cico.next = Some((seq, cell.clone()));
                cell.slice(0, inline)
            }
        }
    }

    fn publish_cell(&mut self, seq: u64) {
        let packed = self.net.cicos[self.rank as usize].next.take();
        let cell = packed.filter(|packed| packed.0 == seq).expect("something was packed").1;
        let cell = cell.slice(0, self.net.inline);
        self.publish_as(seq, false, cell);
    }

    fn expose(&mut self, seq: u64, data: &Buffer) {
        assert!(self.net.single_copy);
        self.publish_as(seq, true, data.clone());
    }

    fn revoke_exposed(&mut self, first: u64, last: u64) {
        self.net.cicos[self.rank as usize].revoked.extend(first..=last);
    }

    fn poll(&mut self, rank: u32, seq: u64, _at_once: bool) -> Option<Published> {
        assert!(
            self.net.cicos[self.rank as usize].acked < order_of(seq),
            "rank {} polls what it has acknowledged",
            self.rank
        );
        let late = self.net.random.one_in(4);
        let cico = self.cico(rank);
        if cico.published < order_of(seq) || late {
            return None;
        }
        let Some((_, exposed, buffer)) = self.held(rank, seq).find(|cell| cell.0 == seq) else {
            let again = self.held(rank, seq).any(|cell| order_of(cell.0) > order_of(seq));
            assert!(self.net.differ || !again, "the cell was used again too early");
            return None;
        };
        Some(if *exposed {
            Published::Exposed(buffer.len() as u64)
        } else {
            Published::Inline(buffer.clone())
        })
    }

    fn get(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        let (_, _, from) = self.held(rank, seq).find(|cell| cell.0 == seq).expect("it is published");
        if self.cico(rank).revoked.contains(&seq) {
            return false;
        }
        into.copy_from(into.lo(), from, from.lo() + at as isize, into.len());
        true
    }

    fn offer(&mut self, seq: u64, at: u64, range: &Buffer) {
        assert!(self.net.single_copy);
        self.cell(seq).write(at as isize, &[0x55; 24]);
        self.net.cicos[self.rank as usize].offers.insert((seq, at), range.clone());
    }

    fn take(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        match self.offered(rank, seq, at).filter(|range| range.len() == into.len()) {
            Some(range) => into.copy_from(into.lo(), &range, range.lo(), range.len()),
            None => return false,
        }
        true
    }

    fn put(&mut self, rank: u32, seq: u64, at: Option<u64>, data: &Buffer) {
        let refused = self.net.random.one_in(4);
        let offered = at.and_then(|at| self.offered(rank, seq, at));
        match offered.filter(|range| range.len() == data.len() && !refused) {
            Some(range) => {
                range.copy_from(range.lo(), data, data.lo(), data.len());
                self.publish_as(seq, false, HeapBuffer::zeroed(0));
            }
            None => {
                let mut bytes = vec![0; data.len()];
                data.read(data.lo(), &mut bytes);
                self.publish_as(seq, true, HeapBuffer::copy_of(&bytes).slice(0, bytes.len()));
            }
        }
    }

    fn ack(&mut self, seq: u64) {
        let cico = &mut self.net.cicos[self.rank as usize];
        assert!(seq > cico.acked || self.net.differ);
        cico.acked = seq;
    }

    fn acked(&mut self, rank: u32) -> u64 {
        self.cico(rank).acked
    }

    fn void(&mut self, first: u64, last: u64) {
        self.net.cicos[self.rank as usize].voided.push((first, last));
    }

    fn reached(&mut self, rank: u32, seq: u64) -> bool {
        let cico = self.cico(rank);
        let gave_up = cico.voided.iter().any(|&(first, last)| (first..=last).contains(&seq));
        cico.acked >= seq && !gave_up
    }

    fn scratch(&mut self) -> Buffer {
        let each = self.net.scratch.len() / self.net.nodes.len();
        self.net.scratch.slice((self.node() * each) as isize, each)
    }

    fn single_copy(&self) -> bool {
        self.net.single_copy
    }
}

/// Advances the executions of all ranks, with random pauses, until they are done; returns their results by rank.
#[allow(dead_code, reason = "not every test has calls that go together")]
pub(crate) fn run(net: &mut Net, executions: &mut [Vec<Execution>]) -> Vec<Vec<Result<(), Fault>>> {
    run_with(net, executions, &mut |_, _, _, _| ())
}

/// What a test does in each turn: with the executions and their results so far (by rank and index), and the turn's number.
type EachTurn<'a> =
    &'a mut dyn FnMut(&mut Net, &mut [Vec<Execution>], &[Vec<Option<Result<(), Fault>>>], u32);

fn run_with(
    net: &mut Net,
    executions: &mut [Vec<Execution>],
    each_turn: EachTurn<'_>,
) -> Vec<Vec<Result<(), Fault>>> {
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
        each_turn(net, executions, &results, turn);
    }
    panic!("no end in sight");
}

/// Advances the executions, and does for them what a runtime does: a rank that waits for long asks those it waits for, and a rank
/// that gives a call up tells all others why.
#[allow(dead_code, reason = "not every test has calls that differ")]
pub(crate) fn run_asking(
    net: &mut Net,
    plans: &mut [PlanCache],
    executions: &mut [Vec<Execution>],
) -> Vec<Vec<Result<(), Fault>>> {
    let ranks = plans.len();
    let mut told = vec![vec![false; executions[0].len()]; ranks];
    // Calls that a rank is to give up because of a note: it need not tell the others.
    let mut knows = told.clone();
    run_with(net, executions, &mut |net, executions, results, turn| {
        // From whom, to whom, and what.
        let mut notes: Vec<(usize, usize, Note)> = vec![];
        for rank in 0..ranks {
            for index in 0..executions[rank].len() {
                let number = executions[rank][index].number();
                match &results[rank][index] {
                    Some(Err(fault)) if !told[rank][index] => {
                        told[rank][index] = true;
                        let note = plans[rank].ledger().fail(number, fault);
                        if !knows[rank][index] {
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
            let heard = plans[to].ledger().hear(note, running.is_some());
            notes.extend(heard.answer.map(|answer| (to, from, answer)));
            let Some(index) = running else { continue };
            if let Some(fault) = heard.fault {
                knows[to][index] = true;
                executions[to][index].refuse(fault);
            } else if let Some(silent) = heard.silent {
                let fault = executions[to][index].unanswered(silent, &mut Port { net, rank: to as u32 });
                fault.into_iter().for_each(|fault| executions[to][index].refuse(fault));
            }
        }
    })
}
