//! Every algorithm, executed on real data in an in-memory world and compared with a naive computation: odd sizes, every
//! root, derived datatypes, in place, operations that do not commute, several collectives at once.

mod world;

use std::sync::Arc;

use banyan_coll::{
    Algorithm, Attempt, Call, Fault, Kind, Model, Needs, Nodes, Op, Operand, Overrides, PlanCache,
    SharedCaps, Topology, Tuning, UserOp, begin, start,
};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype};
use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};
use world::{Net, Port, Random, packed, run};

/// How a pair of 64-bit words, of which all data consist, lies in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layout {
    /// Two elements of MPI_UINT64_T.
    Words,
    /// One element.
    Pairs,
    /// One element: the words in reverse order with a hole between them, the first below the address.
    Gaps,
}

impl Layout {
    /// The type, and how many elements of it are so many pairs.
    fn elements(self, pairs: u64) -> (Arc<Datatype>, u64) {
        let word = Datatype::builtin(0x259).unwrap();
        match self {
            Layout::Words => (word.clone(), 2 * pairs),
            Layout::Pairs => (Datatype::contiguous(2, word).unwrap(), pairs),
            Layout::Gaps => {
                let apart = Datatype::hindexed(&[1, 1], &[16, -8], word).unwrap();
                (Datatype::resized(&apart, -8, 40).unwrap(), pairs)
            }
        }
    }
}

/// Memory of a user, with a margin around it, and the blocks of data in it.
struct UserMemory {
    /// The margin, too.
    whole: Buffer,
    /// Offset 0 is the address that the user passes.
    base: Buffer,
    blocks: Vec<Data>,
    device: Option<SimulatedDevice>,
}

const MARGIN: isize = 64;
const FILL: u8 = 0xee;

impl UserMemory {
    /// Memory for blocks of one layout, each given by its length and start in pairs.
    fn new(layout: Layout, blocks: &[(u64, u64)], device: Option<&SimulatedDevice>) -> UserMemory {
        let (ty, _) = layout.elements(1);
        let pairs = blocks.iter().map(|(number, at)| number + at).max().unwrap_or(0);
        let (_, elements) = layout.elements(pairs);
        let len = elements as isize * ty.extent() as isize + 2 * MARGIN;
        let fill = vec![FILL; len as usize];
        let whole = device.map_or_else(|| HeapBuffer::zeroed(fill.len()), |device| device.alloc(fill.len()));
        whole.write(0, &fill);
        let base = whole.rebased(MARGIN);
        let block = |&(number, at): &(u64, u64)| {
            let (ty, elements) = layout.elements(number);
            let steps = layout.elements(at).1 as isize;
            Data::typed(base.rebased(steps * ty.extent() as isize), elements, &ty)
        };
        let blocks = blocks.iter().map(block).collect();
        UserMemory { whole, base, blocks, device: device.cloned() }
    }

    fn fill(&self, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut rest = &bytes[..];
        for block in &self.blocks {
            let n = block.cursor().unpack(block, rest);
            rest = &rest[n..];
        }
        assert!(rest.is_empty());
    }

    fn words(&self) -> Vec<u64> {
        let under_way = self.device.as_ref().map_or(0, |device| device.copies().1);
        assert_eq!(under_way, 0, "copies of a collective that is over");
        let bytes: Vec<u8> = self.blocks.iter().flat_map(packed).collect();
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    /// Asserts that no byte outside the blocks was written.
    fn assert_holes(&self, layout: Layout, shape: &[(u64, u64)]) {
        let untouched = UserMemory::new(layout, shape, None);
        untouched.fill(&self.words());
        let bytes = |memory: &UserMemory| {
            let mut bytes = vec![0; memory.whole.len()];
            memory.whole.read(0, &mut bytes);
            bytes
        };
        assert!(bytes(self) == bytes(&untouched), "bytes outside the data were written");
    }
}

/// A reduction function of the user's, on pairs.
struct Pairwise(fn([u64; 2], [u64; 2]) -> [u64; 2]);

impl UserOp for Pairwise {
    fn apply(&self, input: &Buffer, inout: &Buffer, count: u64, ty: &Arc<Datatype>) {
        let pairs = |buffer: &Buffer| -> Vec<[u64; 2]> {
            let bytes = packed(&Data::typed(buffer.clone(), count, ty));
            let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
            bytes.chunks(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect()
        };
        let out = Data::typed(inout.clone(), count, ty);
        let combined = pairs(input).into_iter().zip(pairs(inout)).flat_map(|(x, y)| self.0(x, y));
        let bytes: Vec<u8> = combined.flat_map(u64::to_ne_bytes).collect();
        out.cursor().unpack(&out, &bytes);
    }
}

fn add([a, b]: [u64; 2], [c, d]: [u64; 2]) -> [u64; 2] {
    [a.wrapping_add(c), b.wrapping_add(d)]
}

/// `x -> a x + b`, composed: associative, not commutative.
fn affine([a, b]: [u64; 2], [c, d]: [u64; 2]) -> [u64; 2] {
    [a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b)]
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Operation {
    Sum,
    /// The sum of the two words each, by a function of the user's, which commutes.
    Add,
    /// A function of the user's that does not commute.
    Affine,
}

impl Operation {
    fn op(self) -> Op {
        match self {
            Operation::Sum => Op::Builtin(Builtin::Sum),
            Operation::Add => Op::User { commutative: true, fun: Arc::new(Pairwise(add)) },
            Operation::Affine => Op::User { commutative: false, fun: Arc::new(Pairwise(affine)) },
        }
    }

    fn combine(self, left: &[u64], right: &[u64]) -> Vec<u64> {
        let pairs = left.chunks(2).zip(right.chunks(2));
        pairs
            .flat_map(|(x, y)| match self {
                Operation::Sum | Operation::Add => add([x[0], x[1]], [y[0], y[1]]),
                Operation::Affine => affine([x[0], x[1]], [y[0], y[1]]),
            })
            .collect()
    }
}

/// One collective to be tried.
#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: Kind,
    ranks: u32,
    root: u32,
    /// Pairs of the vector, or of a block; where blocks are uneven, the most pairs of a block.
    pairs: u64,
    in_place: bool,
    /// The layouts at even and at odd ranks, where they may differ.
    layouts: [Layout; 2],
    operation: Operation,
    /// Some operands are in memory of devices.
    devices: bool,
    seed: u64,
}

/// Length and start of each block, in pairs.
type BlockList = Vec<(u64, u64)>;

/// A call of one rank, and its memory.
struct Prepared {
    call: Call,
    recv: Option<(UserMemory, Layout, BlockList)>,
    /// What the rank sends, kept alive, and the words that must still be in it afterwards.
    send: Option<(UserMemory, Vec<u64>)>,
    /// The words that must be in `recv` afterwards, if MPI promises any.
    expected: Option<Vec<u64>>,
}

impl Trial {
    fn uneven(&self, from: u32, to: u32) -> u64 {
        Random(self.seed ^ u64::from(from) << 32 ^ u64::from(to)).below(self.pairs + 1)
    }

    /// The pairs that rank `from` has for rank `to` (for 0 where it has one vector, not blocks).
    fn given(&self, from: u32, to: u32, pairs: u64) -> Vec<u64> {
        let mut random = Random(self.seed.wrapping_mul(31) ^ u64::from(from) << 20 ^ u64::from(to));
        (0..2 * pairs).map(|_| random.below(1 << 40)).collect()
    }

    /// Pairs of the block that goes from one rank to another.
    fn block(&self, from: u32, to: u32) -> u64 {
        use Kind::*;
        match self.kind {
            Gatherv | Allgatherv => self.uneven(from, 0),
            Scatterv | ReduceScatter => self.uneven(to, 0),
            // In place, what two ranks exchange must be of one length.
            Alltoallv | Alltoallw if self.in_place => self.uneven(from.min(to), from.max(to)),
            Alltoallv | Alltoallw => self.uneven(from, to),
            _ => self.pairs,
        }
    }

    /// All that a rank sends, block by block.
    fn gives(&self, rank: u32) -> Vec<Vec<u64>> {
        use Kind::*;
        let to_all = || (0..self.ranks).map(|to| self.given(rank, to, self.block(rank, to))).collect();
        match self.kind {
            Barrier => vec![],
            Bcast if rank != self.root => vec![],
            Scatter | Scatterv if rank != self.root => vec![],
            Scatter | Scatterv | Alltoall | Alltoallv | Alltoallw | ReduceScatter | ReduceScatterBlock => {
                to_all()
            }
            _ => vec![self.given(rank, 0, self.block(rank, 0))],
        }
    }

    /// All that a rank should receive, block by block; `None` if its memory is not significant.
    fn gets(&self, rank: u32) -> Option<Vec<Vec<u64>>> {
        use Kind::*;
        let root = rank == self.root;
        let all = |to: usize| (0..self.ranks).map(|from| self.gives(from).swap_remove(to)).collect();
        let combined = |ranks: std::ops::Range<u32>| {
            let whole = ranks.map(|from| self.gives(from).concat());
            whole.reduce(|left, right| self.operation.combine(&left, &right))
        };
        match self.kind {
            Barrier => None,
            Bcast => Some(self.gives(self.root)),
            Gather | Gatherv => root.then(|| all(0)),
            Allgather | Allgatherv => Some(all(0)),
            Scatter | Scatterv => Some(vec![self.gives(self.root).swap_remove(rank as usize)]),
            Alltoall | Alltoallv | Alltoallw => Some(all(rank as usize)),
            Reduce => root.then(|| vec![combined(0..self.ranks).unwrap()]),
            Allreduce => Some(vec![combined(0..self.ranks).unwrap()]),
            Scan => Some(vec![combined(0..rank + 1).unwrap()]),
            Exscan => combined(0..rank).map(|vector| vec![vector]),
            ReduceScatter | ReduceScatterBlock => {
                let whole = combined(0..self.ranks).unwrap();
                let start: u64 = (0..rank).map(|to| self.block(0, to)).sum();
                let (start, len) = (2 * start as usize, 2 * self.block(0, rank) as usize);
                Some(vec![whole[start..start + len].to_vec()])
            }
        }
    }

    fn layout(&self, rank: u32) -> Layout {
        match self.kind.reduces() {
            true if self.operation == Operation::Sum => Layout::Words,
            true if self.layouts[0] == Layout::Words => Layout::Pairs,
            true => self.layouts[0],
            false => self.layouts[(rank % 2) as usize],
        }
    }

    /// Blocks of these lengths, one after the other, or scattered and out of order.
    fn block_list(&self, lens: &[u64], scattered: bool) -> BlockList {
        let step = self.pairs + 1;
        let last = lens.len() as u64;
        let mut at = 0;
        lens.iter()
            .zip(0..)
            .map(|(&len, index)| {
                let block = if scattered { (len, (last - 1 - index) * step) } else { (len, at) };
                at += len;
                block
            })
            .collect()
    }

    /// The operand for these blocks; `blocked`: the collective has a block per rank here.
    fn operand(&self, memory: &UserMemory, layout: Layout, blocks: &[(u64, u64)], blocked: bool) -> Operand {
        use Kind::*;
        let base = memory.base.clone();
        let (ty, _) = layout.elements(1);
        let counts = || blocks.iter().map(|block| layout.elements(block.0).1).collect();
        let displs =
            |unit: i64| blocks.iter().map(|block| layout.elements(block.1).1 as i64 * unit).collect();
        match self.kind {
            Alltoallw => {
                let types = vec![ty.clone(); blocks.len()];
                Operand::Wide {
                    base,
                    counts: counts(),
                    displs: displs(ty.extent()),
                    types: types.into_iter().map(Into::into).collect(),
                }
            }
            Gatherv | Scatterv | Allgatherv | Alltoallv if blocked => {
                Operand::Vector { base, counts: counts(), displs: displs(1), ty: ty.into() }
            }
            _ => {
                // The count is that of one block, except where it is that of the whole vector.
                let whole = matches!(self.kind, ReduceScatter | ReduceScatterBlock);
                let pairs = match whole {
                    true => blocks.iter().map(|block| block.0).sum(),
                    false => blocks.first().map_or(0, |block| block.0),
                };
                Operand::Uniform { base, count: layout.elements(pairs).1, ty: ty.into() }
            }
        }
    }

    /// The devices whose memory a rank gives from and gets into, if it does.
    fn devices(&self, rank: u32) -> [Option<SimulatedDevice>; 2] {
        let mut random = Random(self.seed ^ u64::from(rank) << 32);
        let device = || SimulatedDevice::new(1 << 24, self.seed + u64::from(rank));
        [0, 1].map(|_| (self.devices && random.one_in(2)).then(device))
    }

    fn make(&self, rank: u32) -> Prepared {
        use Kind::*;
        let layout = self.layout(rank);
        let gives = self.gives(rank);
        let gets = self.gets(rank);
        let scattered = matches!(self.kind, Gatherv | Scatterv | Allgatherv | Alltoallv | Alltoallw);
        let lens =
            |blocks: &[Vec<u64>]| blocks.iter().map(|block| block.len() as u64 / 2).collect::<Vec<_>>();
        let list = |blocks: &[Vec<u64>]| self.block_list(&lens(blocks), scattered && blocks.len() > 1);
        // The first rank of an exscan must have memory, though MPI promises nothing to be in it.
        let shape = match (&gets, self.kind) {
            (Some(gets), _) => Some(list(gets)),
            (None, Exscan) => Some(vec![(self.pairs, 0)]),
            (None, _) => None,
        };
        let in_place = self.in_place
            && match self.kind {
                Barrier | Bcast => false,
                Gather | Gatherv | Scatter | Scatterv | Reduce => rank == self.root,
                _ => true,
            };
        let whole_in_place = matches!(self.kind, ReduceScatter | ReduceScatterBlock) && in_place;
        let shape = if whole_in_place { Some(list(&gives)) } else { shape };
        let [gives_from, gets_into] = self.devices(rank);
        let recv = shape.map(|shape| (UserMemory::new(layout, &shape, gets_into.as_ref()), layout, shape));
        let send_shape = list(&gives);
        let send = UserMemory::new(layout, &send_shape, gives_from.as_ref());
        send.fill(&gives.concat());
        let mut recv_operand = Operand::Nothing;
        if let Some((memory, layout, shape)) = &recv {
            recv_operand = self.operand(memory, *layout, shape, !matches!(self.kind, Scatterv));
            match self.kind {
                Bcast if rank == self.root => memory.fill(&gives.concat()),
                ReduceScatter => {
                    let counts = (0..self.ranks).map(|to| layout.elements(self.block(0, to)).1).collect();
                    let (base, ty) = (memory.base.clone(), layout.elements(1).0);
                    recv_operand = Operand::Vector { base, counts, displs: vec![], ty: ty.into() };
                }
                ReduceScatterBlock => {
                    let (base, ty) = (memory.base.clone(), layout.elements(1).0);
                    recv_operand =
                        Operand::Uniform { base, count: layout.elements(self.pairs).1, ty: ty.into() };
                }
                _ => {}
            }
            if in_place && !matches!(self.kind, Scatter | Scatterv) {
                self.fill_in_place(rank, memory, gets.as_ref(), &gives);
            }
        }
        let (mut send_operand, mut recv_operand) = match self.kind {
            Bcast | Barrier => (Operand::Nothing, recv_operand),
            _ if gives.is_empty() => (Operand::Nothing, recv_operand),
            _ => {
                let blocked = !matches!(self.kind, Gatherv | Allgatherv);
                (self.operand(&send, layout, &send_shape, blocked), recv_operand)
            }
        };
        let (mut recv, mut expected) = (recv, gets.map(|gets| gets.concat()));
        match self.kind {
            Scatter | Scatterv if in_place => (recv_operand, recv, expected) = (Operand::InPlace, None, None),
            _ if in_place => send_operand = Operand::InPlace,
            _ => {}
        }
        let call = match self.kind {
            Barrier => Call::barrier(),
            Bcast => Call::bcast(recv_operand, self.root),
            kind if kind.reduces() => {
                Call::reduction(kind, send_operand, recv_operand, self.operation.op(), self.root)
            }
            kind => Call::data_movement(kind, send_operand, recv_operand, self.root),
        };
        Prepared { call, recv, send: (!in_place).then(|| (send, gives.concat())), expected }
    }

    /// Writes what the rank sends to where it belongs in the rank's receive buffer.
    fn fill_in_place(
        &self,
        rank: u32,
        memory: &UserMemory,
        gets: Option<&Vec<Vec<u64>>>,
        gives: &[Vec<u64>],
    ) {
        use Kind::*;
        match (self.kind, gets) {
            (Gather | Gatherv | Allgather | Allgatherv, Some(gets)) => {
                let own = |(from, block): (usize, &Vec<u64>)| match from == rank as usize {
                    true => block.clone(),
                    false => vec![0; block.len()],
                };
                memory.fill(&gets.iter().enumerate().map(own).collect::<Vec<_>>().concat());
            }
            _ => memory.fill(&gives.concat()),
        }
    }
}

fn topology(ranks: u32, (inline, scratch): (usize, usize), crowded: bool) -> Topology {
    let shared = (inline > 0).then_some(SharedCaps {
        inline: inline as u64,
        single_copy: true,
        scratch: scratch as u64,
    });
    Topology {
        ranks,
        nodes: if shared.is_some() { 1 } else { ranks },
        cores: if crowded { 1 } else { 64 },
        per_node: ranks,
        shared,
    }
}

const INLINE: usize = 2048;

/// Bytes of a CICO buffer and of the shared scratch. Where each pair of ranks decides by size, some pairs use the one, some the
/// other, and some send messages.
fn shared_memory_bytes(needs: Needs) -> (usize, usize) {
    match needs {
        Needs::Messages => (0, 0),
        Needs::SubBuffers => (1280, 1 << 16),
        _ => (INLINE, 4096),
    }
}

/// The ranks of a trial, and where they are. Compositions have nodes of several ranks, each with shared buffers.
fn ranks_of(trial: &Trial, needs: Needs, composed: bool) -> (Net, Nodes, Topology) {
    let (inline, scratch) = shared_memory_bytes(needs);
    let topology = topology(trial.ranks, (inline, scratch), !trial.seed.is_multiple_of(3));
    let mut net = Net::new(trial.ranks, trial.seed, inline, true);
    let of_rank = |rank: u32| (u64::from(rank) * 7 + trial.seed) as u32 % if composed { 3 } else { 1 };
    let nodes = Nodes::new((0..trial.ranks).map(of_rank));
    let on_node = |node: u32| (0..trial.ranks).filter(|&rank| of_rank(rank) == node).collect::<Vec<_>>();
    net.nodes = (0..3).map(on_node).filter(|ranks| !ranks.is_empty()).collect();
    net.scratch = HeapBuffer::zeroed(scratch * net.nodes.len());
    let topology = match composed {
        true => Topology { nodes: nodes.number(), per_node: nodes.largest(), cores: 64, ..topology },
        false => topology,
    };
    (net, nodes, topology)
}

/// Starts a call at a rank, at random at once as far as it goes or without looking at the other ranks.
fn begin_somehow(call: Call, rank: u32, net: &mut Net, plans: &mut PlanCache, tuning: &Tuning) -> Attempt {
    if !net.random.one_in(2) {
        return Attempt::Pending(start(call, plans, tuning));
    }
    let mut polls = net.random.below(4);
    let mut poll_again = || polls.checked_sub(1).map(|left| polls = left).is_some();
    let has_shared = plans.topology().shared.is_some();
    let mut port = Port { net, rank };
    begin(call, None, plans, tuning, has_shared.then_some(&mut port), &mut poll_again)
}

/// Checks what a call has left in a rank's memory.
fn check(prepared: &Prepared, about: &str) {
    if let Some((memory, layout, shape)) = &prepared.recv {
        if let Some(expected) = &prepared.expected {
            let got = memory.words();
            assert!(got[..expected.len()] == expected[..], "{about}: {got:x?}");
        }
        memory.assert_holes(*layout, shape);
    }
    if let Some((memory, words)) = &prepared.send {
        assert!(memory.words() == *words, "{about}: what it sent has changed");
    }
}

/// Carries a collective out on all ranks, several times at once with changing roots, and checks the results.
fn try_out(algorithm: Option<&Algorithm>, trial: Trial) {
    let about = format!("{algorithm:?}, {trial:?}");
    let overrides = algorithm.map(|row| Overrides::parse(&format!("{row:?}")).unwrap()).unwrap_or_default();
    // A network as quick as memory, on which long data go through the stages of a composition in several chunks.
    let model = Model { alpha: 1e-6, overhead: 0.1e-6, beta: 1.0 / 12e9, ..Model::default() };
    let tuning = Tuning { overrides, model };
    let composed = algorithm.is_some_and(|row| !row.stages.is_empty());
    let needs =
        if composed { Needs::SharedScratch } else { algorithm.map_or(Needs::Messages, |row| row.needs) };
    let (mut net, nodes, topology) = ranks_of(&trial, needs, composed);
    let mut plans: Vec<PlanCache> = (0..trial.ranks)
        .map(|rank| PlanCache::new(rank, topology).on(nodes.clone(), topology.shared, 64))
        .collect();
    // Each trial twice, so that the second call uses the compiled plan that the first one left.
    let times = if topology.shared.is_some() { 4 } else { 2 };
    let trials: Vec<Trial> = (0..times)
        .map(|i| i / 2)
        .map(|i| Trial { root: (trial.root + i) % trial.ranks, seed: trial.seed + u64::from(i), ..trial })
        .collect();
    let prepared: Vec<Vec<Prepared>> =
        (0..trial.ranks).map(|rank| trials.iter().map(|trial| trial.make(rank)).collect()).collect();
    let mut executions: Vec<Vec<_>> = vec![];
    // The results of calls that were over in their attempt, by rank and call.
    let mut over: Vec<Vec<Option<Result<(), Fault>>>> = vec![];
    for ((rank, prepared), plans) in (0..).zip(&prepared).zip(&mut plans) {
        let (mut started, mut done) = (vec![], vec![]);
        for prepared in prepared {
            done.push(match begin_somehow(prepared.call.clone(), rank, &mut net, plans, &tuning) {
                Attempt::Over(result) => Some(result.map_err(|fault| *fault)),
                Attempt::Pending(execution) => {
                    started.push(execution);
                    None
                }
            });
        }
        executions.push(started);
        over.push(done);
    }
    let has_levels = nodes.number() > 1 && nodes.largest() > 1;
    let moves = trial.pairs > 0 || trial.kind == Kind::Barrier;
    let blocks = match trial.kind {
        Kind::Scatter | Kind::Alltoall | Kind::ReduceScatter | Kind::ReduceScatterBlock => {
            u64::from(trial.ranks)
        }
        _ => 1,
    };
    if let Some(row) = algorithm
        && moves
        && trial.ranks > 1
        && trial.pairs * 16 * blocks <= INLINE as u64
        && over[0][0].is_none()
        && (row.needs != Needs::SharedScratch || trial.operation == Operation::Sum)
        && (!composed || has_levels)
    {
        assert_eq!(executions[0][0].algorithm(), row, "{about}");
    }
    let mut results = run(&mut net, &mut executions);
    for (results, over) in results.iter_mut().zip(over) {
        let mut waited = std::mem::take(results).into_iter();
        results.extend(over.into_iter().filter_map(|over| over.or_else(|| waited.next())));
    }
    for (rank, (results, prepared)) in results.iter().zip(&prepared).enumerate() {
        assert_eq!(results.len(), prepared.len());
        for (i, (result, prepared)) in results.iter().zip(prepared).enumerate() {
            let about = format!("rank {rank}, call {i} of {about}");
            assert_eq!(*result, Ok(()), "{about}");
            check(prepared, &about);
        }
    }
    // A composition goes through the shared buffers of each node.
    let reducible = !trial.kind.reduces() || trial.operation == Operation::Sum;
    assert!(!(composed && has_levels && moves && reducible) || net.publications() > 0, "{about}");
    net.assert_empty();
    for (plans, executions) in plans.iter_mut().zip(executions) {
        executions.into_iter().for_each(|execution| plans.recycle(execution));
    }
}

/// A random trial for an algorithm.
fn some_trial(row: &Algorithm, ranks: u32, pairs: u64, random: &mut Random) -> Trial {
    let operation = match random.below(if row.reorders { 2 } else { 3 }) {
        0 => Operation::Sum,
        1 => Operation::Add,
        _ => Operation::Affine,
    };
    let mut layout = || if random.one_in(2) { Layout::Words } else { Layout::Gaps };
    let layouts = [layout(), layout()];
    Trial {
        kind: row.kind,
        ranks,
        root: random.below(u64::from(ranks)) as u32,
        pairs,
        in_place: random.one_in(2),
        layouts,
        operation,
        devices: false,
        seed: random.below(1 << 30),
    }
}

fn try_kinds(kinds: &[Kind]) {
    let seed = 20_261_121;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::ALL.iter().filter(|row| kinds.contains(&row.kind)) {
        for ranks in 1..=17 {
            for pairs in [1, 0, u64::from(ranks) + 1, 5, 1 + random.below(40)] {
                try_out(Some(row), some_trial(row, ranks, pairs, &mut random));
            }
        }
    }
}

#[test]
fn long_vectors_go_in_segments() {
    let seed = 4711;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::ALL.iter().filter(|row| row.needs != Needs::Inline) {
        for ranks in [2, 3, 5] {
            let pairs = if row.kind.reduces() { 10_007 } else { 9_001 };
            try_out(Some(row), some_trial(row, ranks, pairs, &mut random));
        }
    }
}

/// The simulated device's memory cannot be touched, and its copies are over some polls after they were started.
#[test]
fn operands_in_memory_of_devices() {
    let seed = 77;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::ALL {
        for ranks in [1, 2, 3, 6] {
            for pairs in [u64::from(ranks) + 2, 1 + random.below(40)] {
                let trial = some_trial(row, ranks, pairs, &mut random);
                try_out(Some(row), Trial { devices: true, ..trial });
            }
        }
    }
    for row in banyan_coll::ALL.iter().filter(|row| row.needs == Needs::SharedScratch) {
        let trial = some_trial(row, 3, 1_003, &mut random);
        try_out(Some(row), Trial { devices: true, ..trial });
    }
}

#[test]
fn the_tuner_s_own_choices_work_side_by_side() {
    let seed = 99;
    println!("seed {seed}");
    let mut random = Random(seed);
    for (kind, _) in Kind::ALL {
        let row = banyan_coll::of_kind(kind).next().unwrap();
        for ranks in [1, 4, 6] {
            for pairs in [1, 300] {
                try_out(None, some_trial(row, ranks, pairs, &mut random));
            }
        }
    }
}

#[test]
fn broadcasts_and_barriers() {
    try_kinds(&[Kind::Barrier, Kind::Bcast]);
}

#[test]
fn gathers_and_scatters() {
    try_kinds(&[Kind::Gather, Kind::Gatherv, Kind::Scatter, Kind::Scatterv]);
}

#[test]
fn gathers_to_all_and_exchanges() {
    use Kind::*;
    try_kinds(&[Allgather, Allgatherv, Alltoall, Alltoallv, Alltoallw]);
}

#[test]
fn reductions() {
    use Kind::*;
    try_kinds(&[Reduce, Allreduce, ReduceScatter, ReduceScatterBlock, Scan, Exscan]);
}
