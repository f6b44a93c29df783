//! A collective as a program calls it: the arguments that each rank passes and, by a plain computation, the right results.

use banyan_coll::{ArgKind, Call, Kind, Lists, Op, Operand, Signature};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Bounds, Buffer, HeapBuffer, MemoryKind, SimulatedDevice};

use crate::world::Random;

/// How far handles of one kind are apart. The sums of the arguments of two calls that differ in one handle then differ by a
/// multiple of the entries of the replay cache, so that both calls go to the same entry.
pub(crate) const APART: u64 = 64;

/// Types of elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Type {
    Word,
    Half,
    /// A type of so many words that the program makes; its handle may stand for another type later.
    Derived(u64),
    /// A type of Fortran, whose size is not settled: a program may set it late.
    Fortran,
}

impl Type {
    fn handle(self) -> u64 {
        match self {
            Type::Word => 0x1000,
            Type::Half => 0x1000 + APART,
            Type::Derived(_) => 0x1000 + 2 * APART,
            Type::Fortran => 0x1000 + 3 * APART,
        }
    }

    fn object(self) -> TypeArc {
        let predefined = |code| Datatype::builtin(code).unwrap();
        match self {
            Type::Word => TypeArc::Predefined(predefined(0x259)),
            Type::Half => TypeArc::Predefined(predefined(0x251)),
            Type::Derived(words) => Datatype::contiguous(words as i64, predefined(0x259)).unwrap().into(),
            Type::Fortran => TypeArc::Predefined(predefined(0x219)),
        }
    }

    /// Bytes of the numbers that its elements are made of.
    fn width(self) -> u64 {
        match self {
            Type::Half | Type::Fortran => 4,
            Type::Word | Type::Derived(_) => 8,
        }
    }

    /// Numbers of an element.
    fn numbers(self) -> u64 {
        if let Type::Derived(words) = self { words } else { 1 }
    }
}

/// One collective, which all ranks call alike.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Scenario {
    pub(crate) kind: Kind,
    pub(crate) ranks: u32,
    /// Elements of a vector, or of a block; where blocks are uneven, of the smallest.
    pub(crate) count: u64,
    pub(crate) ty: Type,
    pub(crate) op: Builtin,
    pub(crate) root: u32,
    pub(crate) in_place: bool,
    /// Shifts the counts in lists: another value, other counts.
    pub(crate) step: u64,
    /// Elements between the blocks to send; twice as many lie between the blocks to receive.
    pub(crate) gap: u64,
    /// All buffers are memory of devices.
    pub(crate) device: bool,
}

/// Blocks of elements: how many, and where they start.
pub(crate) type Blocks = Vec<(u64, u64)>;

impl Scenario {
    pub(crate) fn new(kind: Kind, ranks: u32) -> Scenario {
        let (ty, op) = (Type::Word, Builtin::Sum);
        Scenario { kind, ranks, count: 1, ty, op, root: 0, in_place: false, step: 0, gap: 0, device: false }
    }

    /// Elements that rank `from` has for rank `to`.
    fn block(&self, from: u32, to: u32) -> u64 {
        use Kind::*;
        let uneven = |rank: u32| self.count + (u64::from(rank) + self.step) % 3;
        match self.kind {
            Gatherv | Allgatherv => uneven(from),
            Scatterv | ReduceScatter => uneven(to),
            Alltoallv => uneven(from + to),
            _ => self.count,
        }
    }

    /// Whether a rank has one block for each rank to send, and to receive.
    fn by_rank(&self) -> (bool, bool) {
        use Kind::*;
        let gives = matches!(
            self.kind,
            Scatter | Scatterv | Alltoall | Alltoallv | ReduceScatter | ReduceScatterBlock
        );
        (gives, matches!(self.kind, Gather | Gatherv | Allgather | Allgatherv | Alltoall | Alltoallv))
    }

    fn blocks(&self, lens: impl Iterator<Item = u64>, gap: u64) -> Blocks {
        let mut at = 0;
        let next = |len| {
            let start = at;
            at += len + gap;
            (len, start)
        };
        lens.map(next).collect()
    }

    pub(crate) fn gives(&self, rank: u32) -> Blocks {
        let all = self.blocks((0..self.ranks).map(|to| self.block(rank, to)), self.gap);
        match self.kind {
            Kind::Bcast | Kind::Scatter | Kind::Scatterv if rank != self.root => vec![],
            _ if self.by_rank().0 => all,
            _ => vec![(self.block(rank, rank), 0)],
        }
    }

    pub(crate) fn gets(&self, rank: u32) -> Blocks {
        let all = self.blocks((0..self.ranks).map(|from| self.block(from, rank)), 2 * self.gap);
        match self.kind {
            Kind::Gather | Kind::Gatherv | Kind::Reduce if rank != self.root => vec![],
            _ if self.by_rank().1 => all,
            Kind::Bcast => vec![(self.count, 0)],
            Kind::Scatter | Kind::Scatterv => vec![(self.block(self.root, rank), 0)],
            _ => vec![(self.block(rank, rank), 0)],
        }
    }

    /// Whether a rank passes MPI_IN_PLACE.
    pub(crate) fn is_in_place(&self, rank: u32) -> bool {
        use Kind::*;
        self.in_place
            && match self.kind {
                Bcast => false,
                Gather | Gatherv | Scatter | Scatterv | Reduce => rank == self.root,
                _ => true,
            }
    }

    /// The numbers that rank `from` has for rank `to` in a turn.
    fn input(&self, turn: u64, from: u32, to: u32) -> Vec<u64> {
        let to_block = if self.by_rank().0 { to } else { 0 };
        let mut random = Random(turn << 40 ^ u64::from(from) << 20 ^ u64::from(to_block));
        let numbers = self.block(from, to) * self.ty.numbers();
        (0..numbers).map(|_| self.fit(random.below(1 << 33))).collect()
    }

    /// All numbers that a rank sends in a turn, block by block.
    pub(crate) fn inputs(&self, turn: u64, rank: u32) -> Vec<Vec<u64>> {
        let of = |to| self.input(turn, rank, to);
        if self.by_rank().0 { (0..self.ranks).map(of).collect() } else { vec![of(rank)] }
    }

    fn fit(&self, number: u64) -> u64 {
        if self.ty.width() == 4 { number & 0xffff_ffff } else { number }
    }

    /// What the ranks up to `last` have for rank `to`, combined.
    fn combined(&self, turn: u64, last: u32, to: u32) -> Vec<u64> {
        let pair = |(x, y): (u64, u64)| match self.op {
            Builtin::Sum => self.fit(x.wrapping_add(y)),
            _ => x.max(y),
        };
        let two = |x: Vec<u64>, y: Vec<u64>| x.into_iter().zip(y).map(pair).collect();
        (0..=last).map(|from| self.input(turn, from, to)).reduce(two).unwrap()
    }

    /// The blocks that a rank should have received; `None`: MPI promises nothing.
    pub(crate) fn expected(&self, turn: u64, rank: u32) -> Option<Vec<Vec<u64>>> {
        use Kind::*;
        let root = self.root;
        let from_all = || (0..self.ranks).map(|from| self.input(turn, from, rank)).collect();
        Some(match self.kind {
            Bcast => vec![self.input(turn, root, 0)],
            Gather | Gatherv | Reduce if rank != root => return None,
            Gather | Gatherv | Allgather | Allgatherv | Alltoall | Alltoallv => from_all(),
            Scatter | Scatterv => vec![self.input(turn, root, rank)],
            Exscan if rank == 0 => return None,
            Exscan => vec![self.combined(turn, rank - 1, rank)],
            Scan => vec![self.combined(turn, rank, rank)],
            _ => vec![self.combined(turn, self.ranks - 1, rank)],
        })
    }
}

impl Scenario {
    /// Memory that the blocks fit into, from offset `at` of a larger buffer on.
    fn memory(&self, blocks: &Blocks, at: isize) -> Buffer {
        let reach = blocks.iter().map(|(len, at)| len + at).max().unwrap_or(0);
        let bytes = reach * self.ty.numbers() * self.ty.width();
        // With room around it, where a wrong call would write.
        let fill = [0xee; 1 << 17];
        let whole = match self.device {
            true => SimulatedDevice::new(fill.len(), 1).alloc(fill.len()),
            false => HeapBuffer::zeroed(fill.len()),
        };
        whole.write(0, &fill);
        whole.slice(1 << 13 | at, bytes as usize)
    }

    /// The offset of each number in bytes.
    fn offsets<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = isize> + 'a {
        let (numbers, width) = (self.ty.numbers(), self.ty.width());
        let of = move |&(len, at): &(u64, u64)| {
            (at * numbers..(at + len) * numbers).map(move |at| (at * width) as isize)
        };
        blocks.iter().flat_map(of)
    }

    fn fill(&self, memory: &Buffer, blocks: &Blocks, numbers: &[Vec<u64>]) {
        for (at, number) in self.offsets(blocks).zip(numbers.concat()) {
            memory.write(at, &number.to_le_bytes()[..self.ty.width() as usize]);
        }
    }

    pub(crate) fn read(&self, memory: &Buffer, blocks: &Blocks) -> Vec<u64> {
        let number = |at| {
            let mut bytes = [0; 8];
            memory.read(at, &mut bytes[..self.ty.width() as usize]);
            u64::from_le_bytes(bytes)
        };
        self.offsets(blocks).map(number).collect()
    }

    /// The operand for the data to send, or to receive; `listed`: with lists where the collective has them.
    fn operand(&self, base: &Buffer, blocks: &Blocks, listed: bool) -> Operand {
        let (base, ty) = (base.clone(), self.ty.object());
        let counts = || blocks.iter().map(|block| block.0).collect();
        match self.kind {
            Kind::ReduceScatter if listed => Operand::Vector { base, counts: counts(), displs: vec![], ty },
            _ if listed && self.kind.uneven() => Operand::Vector {
                base,
                counts: counts(),
                displs: blocks.iter().map(|block| block.1 as i64).collect(),
                ty,
            },
            // What a reduce_scatter sends is one vector.
            Kind::ReduceScatter => {
                Operand::Uniform { base, count: blocks.iter().map(|block| block.0).sum(), ty }
            }
            Kind::ReduceScatterBlock if blocks.len() > 1 => {
                Operand::Uniform { base, count: self.count * u64::from(self.ranks), ty }
            }
            _ => Operand::Uniform { base, count: blocks.first().map_or(0, |block| block.0), ty },
        }
    }
}

/// What a rank passes to the function.
pub(crate) struct Arguments {
    pub(crate) call: Call,
    pub(crate) signature: Signature,
    pub(crate) lists: Values,
    /// The rank's data, kept until the call is over.
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
}

/// Lists of counts and displacements.
pub(crate) struct Values(Vec<Vec<i64>>);

impl Lists for Values {
    fn is(&self, index: usize, values: &[i64]) -> bool {
        self.0.get(index).is_some_and(|list| list == values)
    }
}

impl Arguments {
    /// The buffers of the signature, within bounds that are kept for arguments that are equal.
    pub(crate) fn buffers(&self, bounds: [Bounds; 2]) -> [Buffer; 2] {
        // SAFETY: the addresses are those of buffers that live until the call is over, and the signature describes all of them:
        // buffers of equal arguments have their length.
        [0, 1].map(|side| unsafe { Buffer::within(self.signature.buffers[side].0 as *mut u8, bounds[side]) })
    }
}

impl Scenario {
    pub(crate) fn arguments(&self, turn: u64, rank: u32) -> Arguments {
        use Kind::*;
        let in_place = self.is_in_place(rank);
        let (gives, gets) = (self.gives(rank), self.gets(rank));
        let recv_in_place = matches!(self.kind, Scatter | Scatterv) && in_place;
        // In place, the blocks to receive lie among those to send, or the other way round.
        let room = if in_place && !self.by_rank().1 { &gives } else { &gets };
        let shift = 8 * (turn % 5) as isize;
        let (send, recv) = (self.memory(&gives, shift), self.memory(room, 64 - shift));
        match in_place && !recv_in_place {
            false => self.fill(&send, &gives, &self.inputs(turn, rank)),
            true if matches!(self.kind, Gather | Gatherv | Allgather | Allgatherv) => {
                self.fill(&recv, &vec![gets[rank as usize]], &[self.input(turn, rank, rank)]);
            }
            true => self.fill(&recv, room, &self.inputs(turn, rank)),
        }
        if self.kind == Bcast && rank == self.root {
            self.fill(&recv, &gets, &self.inputs(turn, rank));
        }
        let (call, arg_kinds) = self.call((&send, &gives), (&recv, &gets), in_place);
        let [sends, receives] = arg_kinds;
        // A buffer that is not significant may be anything.
        let buffer = |buffer: &Buffer, kind: ArgKind| match kind {
            ArgKind::Other if turn.is_multiple_of(2) => (buffer.address(0), ArgKind::Data(MemoryKind::Host)),
            kind => (buffer.address(0), kind),
        };
        let buffers = match self.kind {
            Bcast => [buffer(&recv, receives); 2],
            _ => [buffer(&send, sends), buffer(&recv, receives)],
        };
        let signature = Signature { kind: self.kind, numbers: self.numbers(rank), buffers };
        Arguments { call, signature, lists: Values(self.lists(rank)), send, recv }
    }

    fn call(
        &self,
        (send, gives): (&Buffer, &Blocks),
        (recv, gets): (&Buffer, &Blocks),
        in_place: bool,
    ) -> (Call, [ArgKind; 2]) {
        use Kind::*;
        let recv_in_place = matches!(self.kind, Scatter | Scatterv) && in_place;
        let given = match () {
            () if self.kind == Bcast || gives.is_empty() => (Operand::Nothing, ArgKind::Other),
            () if in_place && !recv_in_place => (Operand::InPlace, ArgKind::InPlace),
            () => (
                self.operand(send, gives, !matches!(self.kind, Gatherv | Allgatherv | ReduceScatter)),
                ArgKind::Data(send.kind()),
            ),
        };
        let counts = self.blocks((0..self.ranks).map(|to| self.block(0, to)), 0);
        let data = ArgKind::Data(recv.kind());
        let got = match () {
            () if gets.is_empty() => (Operand::Nothing, ArgKind::Other),
            () if recv_in_place => (Operand::InPlace, ArgKind::InPlace),
            () if self.kind == ReduceScatter => (self.operand(recv, &counts, true), data),
            () => (self.operand(recv, gets, self.kind != Scatterv), data),
        };
        let ((send, sends), (recv, receives)) = (given, got);
        let call = match self.kind {
            Bcast => Call::bcast(recv, self.root),
            kind if kind.reduces() => Call::reduction(kind, send, recv, Op::Builtin(self.op), self.root),
            kind => Call::data_movement(kind, send, recv, self.root),
        };
        (call, [sends, receives])
    }

    /// Counts, handles and root in the order of the function's parameters.
    fn numbers(&self, rank: u32) -> [u64; Signature::NUMBERS] {
        use Kind::*;
        let (count, own, ty) = (self.count, self.block(rank, rank), self.ty.handle());
        let (op, root) = (if self.op == Builtin::Sum { 0x400 } else { 0x400 + APART }, u64::from(self.root));
        let numbers = match self.kind {
            Barrier | Alltoallw => vec![],
            Bcast => vec![count, ty, root],
            Gather | Scatter => vec![count, ty, count, ty, root],
            Gatherv => vec![own, ty, ty, root],
            Scatterv => vec![ty, self.block(self.root, rank), ty, root],
            Allgather | Alltoall => vec![count, ty, count, ty],
            Allgatherv => vec![own, ty, ty],
            Alltoallv => vec![ty, ty],
            Reduce => vec![count, ty, op, root],
            Allreduce | Scan | Exscan | ReduceScatterBlock => vec![count, ty, op],
            ReduceScatter => vec![ty, op],
        };
        std::array::from_fn(|at| numbers.get(at).copied().unwrap_or(0))
    }

    fn lists(&self, rank: u32) -> Vec<Vec<i64>> {
        use Kind::*;
        let two = |blocks: Blocks| -> [Vec<i64>; 2] {
            [
                blocks.iter().map(|block| block.0 as i64).collect(),
                blocks.iter().map(|block| block.1 as i64).collect(),
            ]
        };
        match self.kind {
            Gatherv | Allgatherv => two(self.gets(rank)).into(),
            Scatterv => two(self.gives(rank)).into(),
            Alltoallv => [two(self.gives(rank)), two(self.gets(rank))].concat(),
            ReduceScatter => two(self.blocks((0..self.ranks).map(|to| self.block(0, to)), 0))[..1].to_vec(),
            _ => vec![],
        }
    }
}
