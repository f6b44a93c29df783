//! One collective on all ranks, with the data that each gives and must get: computed naively, in memory with margins and holes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use banyan_coll::{Call, Kind, Op, Operand, UserOp};
use banyan_datatype::device::FOR_THE_PROCESSOR;
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype};
use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};

use crate::world::{Random, packed};

/// Kernels that devices have run, at least.
pub(crate) static KERNELS: AtomicU64 = AtomicU64::new(0);

/// The library of kernels; none without a compiler.
pub(crate) fn kernels_of_tests() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let made = cuda_double::compile::library(FOR_THE_PROCESSOR, folder);
        made.inspect_err(|why| eprintln!("devices run no kernels: {why}")).ok()
    });
    made.as_deref()
}

/// How a pair of 64-bit words, of which all data consist, lies in memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Layout {
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
pub(crate) struct UserMemory {
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

    pub(crate) fn words(&self) -> Vec<u64> {
        KERNELS.fetch_add(self.device.as_ref().map_or(0, SimulatedDevice::kernels), Ordering::Relaxed);
        let under_way = self.device.as_ref().map_or(0, |device| device.copies().1);
        assert_eq!(under_way, 0, "copies of a collective that is over");
        let bytes: Vec<u8> = self.blocks.iter().flat_map(packed).collect();
        bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    /// Asserts that no byte outside the blocks was written.
    pub(crate) fn assert_holes(&self, layout: Layout, shape: &[(u64, u64)]) {
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
pub(crate) enum Operation {
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
pub(crate) struct Trial {
    pub(crate) kind: Kind,
    pub(crate) ranks: u32,
    pub(crate) root: u32,
    /// Pairs of the vector, or of a block; where blocks are uneven, the most pairs of a block.
    pub(crate) pairs: u64,
    pub(crate) in_place: bool,
    /// The layouts at even and at odd ranks, where they may differ.
    pub(crate) layouts: [Layout; 2],
    pub(crate) operation: Operation,
    /// Some operands are in memory of devices.
    pub(crate) devices: bool,
    pub(crate) seed: u64,
}

/// Length and start of each block, in pairs.
pub(crate) type BlockList = Vec<(u64, u64)>;

/// A call of one rank, and its memory.
pub(crate) struct Prepared {
    pub(crate) call: Call,
    pub(crate) recv: Option<(UserMemory, Layout, BlockList)>,
    /// What the rank sends, kept alive, and the words that must still be in it afterwards.
    pub(crate) send: Option<(UserMemory, Vec<u64>)>,
    /// The words that must be in `recv` afterwards, if MPI promises any.
    pub(crate) expected: Option<Vec<u64>>,
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

    /// The devices whose memory a rank gives from and gets into, if it does. Some run kernels.
    fn devices(&self, rank: u32) -> [Option<SimulatedDevice>; 2] {
        let mut random = Random(self.seed ^ u64::from(rank) << 32);
        let kernels = random.one_in(2);
        let device = || {
            let device = SimulatedDevice::new(1 << 24, self.seed + u64::from(rank));
            kernels_of_tests()
                .filter(|_| kernels)
                .into_iter()
                .for_each(|library| device.run_kernels_of(library));
            device
        };
        [0, 1].map(|_| (self.devices && random.one_in(2)).then(device))
    }

    pub(crate) fn make(&self, rank: u32) -> Prepared {
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
