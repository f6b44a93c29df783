//! A collective as a program asks for it: what its ranks pass, and, by a plain computation, what should come of it.

use banyan_coll::{Asked, Call, Given, Kind, Lists, Memory, Op};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Address, Buffer, Scratch};

use crate::world::Random;

/// Handles of one kind differ by this: the arguments of two calls that differ in one of them have the same sum but for a multiple
/// of the places where calls are kept, so that both go to the same place.
pub(crate) const APART: u64 = 32;

/// Types of elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Type {
    Word,
    Half,
    /// A type that the program makes, of so many words, under a handle that it gives to another one later.
    Made(u64),
    /// A type of Fortran, whose size a program may tell late.
    Fortran,
}

impl Type {
    fn handle(self) -> u64 {
        match self {
            Type::Word => 0x1000,
            Type::Half => 0x1000 + APART,
            Type::Made(_) => 0x1000 + 2 * APART,
            Type::Fortran => 0x1000 + 3 * APART,
        }
    }

    fn object(self) -> TypeArc {
        let predefined = |code| Datatype::builtin(code).unwrap();
        match self {
            Type::Word => TypeArc::Predefined(predefined(0x259)),
            Type::Half => TypeArc::Predefined(predefined(0x251)),
            Type::Made(words) => Datatype::contiguous(words as i64, predefined(0x259)).unwrap().into(),
            Type::Fortran => TypeArc::Predefined(predefined(0x219)),
        }
    }

    /// Bytes of the numbers that its elements are made of.
    fn width(self) -> u64 {
        match self {
            Type::Half | Type::Fortran => 4,
            Type::Word | Type::Made(_) => 8,
        }
    }

    /// Numbers of an element.
    fn numbers(self) -> u64 {
        if let Type::Made(words) = self { words } else { 1 }
    }
}

/// One collective, the same at all ranks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Asking {
    pub(crate) kind: Kind,
    pub(crate) ranks: u32,
    /// Elements of a vector, or of a block; of uneven blocks the least.
    pub(crate) count: u64,
    pub(crate) ty: Type,
    pub(crate) op: Builtin,
    pub(crate) root: u32,
    pub(crate) in_place: bool,
    /// What the counts in lists depend on.
    pub(crate) step: u64,
    /// Elements between blocks that are given; twice as many between those that are got.
    pub(crate) gap: u64,
}

/// Blocks of elements: how many, and where they start.
pub(crate) type Blocks = Vec<(u64, u64)>;

impl Asking {
    pub(crate) fn new(kind: Kind, ranks: u32) -> Asking {
        let (ty, op) = (Type::Word, Builtin::Sum);
        Asking { kind, ranks, count: 1, ty, op, root: 0, in_place: false, step: 0, gap: 0 }
    }

    /// Elements that `from` has for `to`.
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

    /// Whether a rank has a block of what is given, or got, for each rank.
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

    /// Whether a rank gives in place.
    pub(crate) fn is_in_place(&self, rank: u32) -> bool {
        use Kind::*;
        self.in_place
            && match self.kind {
                Bcast => false,
                Gather | Gatherv | Scatter | Scatterv | Reduce => rank == self.root,
                _ => true,
            }
    }

    /// What a rank has for another one in a turn.
    fn input(&self, turn: u64, from: u32, to: u32) -> Vec<u64> {
        let apart = if self.by_rank().0 { to } else { 0 };
        let mut random = Random(turn << 40 ^ u64::from(from) << 20 ^ u64::from(apart));
        let numbers = self.block(from, to) * self.ty.numbers();
        (0..numbers).map(|_| self.cut(random.below(1 << 33))).collect()
    }

    /// What a rank has in a turn, block by block.
    pub(crate) fn inputs(&self, turn: u64, rank: u32) -> Vec<Vec<u64>> {
        let of = |to| self.input(turn, rank, to);
        if self.by_rank().0 { (0..self.ranks).map(of).collect() } else { vec![of(rank)] }
    }

    fn cut(&self, number: u64) -> u64 {
        if self.ty.width() == 4 { number & 0xffff_ffff } else { number }
    }

    /// What the ranks up to `last` have for `to`, combined.
    fn combined(&self, turn: u64, last: u32, to: u32) -> Vec<u64> {
        let pair = |(x, y): (u64, u64)| match self.op {
            Builtin::Sum => self.cut(x.wrapping_add(y)),
            _ => x.max(y),
        };
        let two = |x: Vec<u64>, y: Vec<u64>| x.into_iter().zip(y).map(pair).collect();
        (0..=last).map(|from| self.input(turn, from, to)).reduce(two).unwrap()
    }

    /// The blocks that a rank should have got; `None`: nothing is promised.
    pub(crate) fn wanted(&self, turn: u64, rank: u32) -> Option<Vec<Vec<u64>>> {
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

impl Asking {
    /// Bytes from some address on that the blocks reach over.
    fn memory(&self, blocks: &Blocks, at: isize) -> Buffer {
        let reach = blocks.iter().map(|(len, at)| len + at).max().unwrap_or(0);
        let bytes = reach * self.ty.numbers() * self.ty.width();
        // With room around, where a wrong call would go.
        Scratch::copy_of(&[0xee; 1 << 15]).slice(1 << 13 | at, bytes as usize)
    }

    /// Offset and bytes of each number.
    fn places<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = isize> + 'a {
        let (numbers, width) = (self.ty.numbers(), self.ty.width());
        let of = move |&(len, at): &(u64, u64)| {
            (at * numbers..(at + len) * numbers).map(move |at| (at * width) as isize)
        };
        blocks.iter().flat_map(of)
    }

    fn fill(&self, memory: &Buffer, blocks: &Blocks, numbers: &[Vec<u64>]) {
        for (at, number) in self.places(blocks).zip(numbers.concat()) {
            memory.write(at, &number.to_le_bytes()[..self.ty.width() as usize]);
        }
    }

    pub(crate) fn read(&self, memory: &Buffer, blocks: &Blocks) -> Vec<u64> {
        let number = |at| {
            let mut bytes = [0; 8];
            memory.read(at, &mut bytes[..self.ty.width() as usize]);
            u64::from_le_bytes(bytes)
        };
        self.places(blocks).map(number).collect()
    }

    /// The argument that says where a side's data are.
    fn side(&self, base: &Buffer, blocks: &Blocks, listed: bool) -> Memory {
        let (base, ty) = (base.clone(), self.ty.object());
        let counts = || blocks.iter().map(|block| block.0).collect();
        match self.kind {
            Kind::ReduceScatter if listed => Memory::Vector { base, counts: counts(), displs: vec![], ty },
            _ if listed && self.kind.uneven() => Memory::Vector {
                base,
                counts: counts(),
                displs: blocks.iter().map(|block| block.1 as i64).collect(),
                ty,
            },
            // Of a reduce_scatter all that is given is one vector.
            Kind::ReduceScatter => {
                Memory::Uniform { base, count: blocks.iter().map(|block| block.0).sum(), ty }
            }
            Kind::ReduceScatterBlock if blocks.len() > 1 => {
                Memory::Uniform { base, count: self.count * u64::from(self.ranks), ty }
            }
            _ => Memory::Uniform { base, count: blocks.first().map_or(0, |block| block.0), ty },
        }
    }
}

/// What a rank passes.
pub(crate) struct Passed {
    pub(crate) call: Call,
    pub(crate) asked: Asked,
    pub(crate) lists: Values,
    /// Where its data are: kept until the call is over.
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
}

/// Lists by their values.
pub(crate) struct Values(Vec<Vec<i64>>);

impl Lists for Values {
    fn is(&self, index: usize, values: &[i64]) -> bool {
        self.0.get(index).is_some_and(|list| list == values)
    }
}

fn address(buffer: &Buffer) -> Address {
    // SAFETY: it is asked only with what stands for the whole buffer: arguments equal to these have buffers of its length, which live
    // until the call is over.
    unsafe { Address::new(buffer.ptr(0, 0)) }
}

impl Asking {
    pub(crate) fn pass(&self, turn: u64, rank: u32) -> Passed {
        use Kind::*;
        let in_place = self.is_in_place(rank);
        let (gives, gets) = (self.gives(rank), self.gets(rank));
        let into_place = matches!(self.kind, Scatter | Scatterv) && in_place;
        // In place, what is got lies among what is given, or the other way round.
        let room = if in_place && !self.by_rank().1 { &gives } else { &gets };
        let shift = 8 * (turn % 5) as isize;
        let (send, recv) = (self.memory(&gives, shift), self.memory(room, 64 - shift));
        match in_place && !into_place {
            false => self.fill(&send, &gives, &self.inputs(turn, rank)),
            true if matches!(self.kind, Gather | Gatherv | Allgather | Allgatherv) => {
                self.fill(&recv, &vec![gets[rank as usize]], &[self.input(turn, rank, rank)]);
            }
            true => self.fill(&recv, room, &self.inputs(turn, rank)),
        }
        if self.kind == Bcast && rank == self.root {
            self.fill(&recv, &gets, &self.inputs(turn, rank));
        }
        let (call, given) = self.call((&send, &gives), (&recv, &gets), in_place);
        let [sends, receives] = given;
        // What does not matter may be anything.
        let buffer = |buffer: &Buffer, given: Given| match given {
            Given::Other if turn.is_multiple_of(2) => (address(buffer), Given::Data),
            given => (address(buffer), given),
        };
        let buffers = match self.kind {
            Bcast => [buffer(&recv, receives); 2],
            _ => [buffer(&send, sends), buffer(&recv, receives)],
        };
        let asked = Asked { kind: self.kind, numbers: self.numbers(rank), buffers };
        Passed { call, asked, lists: Values(self.lists(rank)), send, recv }
    }

    fn call(
        &self,
        (send, gives): (&Buffer, &Blocks),
        (recv, gets): (&Buffer, &Blocks),
        in_place: bool,
    ) -> (Call, [Given; 2]) {
        use Kind::*;
        let into_place = matches!(self.kind, Scatter | Scatterv) && in_place;
        let given = match () {
            () if self.kind == Bcast || gives.is_empty() => (Memory::Nothing, Given::Other),
            () if in_place && !into_place => (Memory::InPlace, Given::InPlace),
            () => (
                self.side(send, gives, !matches!(self.kind, Gatherv | Allgatherv | ReduceScatter)),
                Given::Data,
            ),
        };
        let counts = self.blocks((0..self.ranks).map(|to| self.block(0, to)), 0);
        let got = match () {
            () if gets.is_empty() => (Memory::Nothing, Given::Other),
            () if into_place => (Memory::InPlace, Given::InPlace),
            () if self.kind == ReduceScatter => (self.side(recv, &counts, true), Given::Data),
            () => (self.side(recv, gets, self.kind != Scatterv), Given::Data),
        };
        let ((send, sends), (recv, receives)) = (given, got);
        let call = match self.kind {
            Bcast => Call::bcast(recv, self.root),
            kind if kind.reduces() => Call::reducing(kind, send, recv, Op::Builtin(self.op), self.root),
            kind => Call::moving(kind, send, recv, self.root),
        };
        (call, [sends, receives])
    }

    /// Counts, handles and root in the order of the function's parameters.
    fn numbers(&self, rank: u32) -> [u64; Asked::NUMBERS] {
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
