//! Proves algorithms right without data: every unit of every buffer is an ordered expression over the units
//! that the ranks gave, kept as hashes.
//!
//! Seen are: wrong, missing, doubled or misordered operands; results that differ in bits between ranks;
//! overlapping accesses within a round; writes to what the user gave; accesses outside a buffer; messages whose
//! ends disagree; deadlocks, with sends synchronous; reads of a slot after its release or reuse; published
//! memory that changes, or goes back to the user, while others may read it.

use crate::walk::{Look, Machine, Operation, walk};
use crate::{Algorithm, Blocks, Buf, Form, Kind, Merge, Shape, Side, Span, Step};

/// One case to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trial {
    /// Ranks.
    pub ranks: u32,
    /// The root of the first operation.
    pub root: u32,
    /// Units of the vector, or of a block. Of collectives with uneven blocks: they have up to that many.
    pub len: u64,
    /// Bytes of a unit (some algorithms choose their segments by it).
    pub unit: u64,
    /// With MPI_IN_PLACE wherever it may be.
    pub in_place: bool,
    /// Blocks are alike also where they need not be.
    pub even: bool,
    /// Whether the operation commutes.
    pub commutative: bool,
    /// In what order ranks get their turns.
    pub seed: u64,
}

/// Checks one algorithm in one case: alone, or, where it uses shared slots, several in a row with changing
/// roots.
///
/// # Errors
/// What is wrong, in words.
pub fn check(algorithm: &'static Algorithm, trial: &Trial) -> Result<(), String> {
    let phases = u64::from(algorithm.phases);
    let ops: Vec<Operation> = (0..if phases > 0 { 4 } else { 1 })
        .map(|i| {
            let trial = Trial { root: (trial.root + i as u32) % trial.ranks, ..*trial };
            let shapes = (0..trial.ranks).map(|rank| shape(algorithm.kind, rank, &trial)).collect();
            Operation { algorithm, shapes, first: 1 + i * phases }
        })
        .collect();
    let rounds = |shape: &Shape| (algorithm.rounds)(shape);
    if ops[0].shapes.iter().any(|shape| rounds(shape) != rounds(&ops[0].shapes[0])) {
        return Err("the ranks count different rounds".into());
    }
    let mut order: Vec<u32> = (0..trial.ranks).collect();
    let mut random = trial.seed;
    for i in (1..order.len()).rev() {
        random = mix(random, i as u64);
        order.swap(i, (random % (i as u64 + 1)) as usize);
    }
    let mut machine = Symbolic::new(algorithm, &ops, trial);
    walk(&ops, &mut machine, &order)
}

/// The shape that a rank has in a trial.
pub fn shape(kind: Kind, rank: u32, trial: &Trial) -> Shape {
    let Trial { ranks, root, len, unit, commutative, .. } = *trial;
    let even = Blocks::Even(len);
    let uneven = |of: &dyn Fn(u32) -> u64| Blocks::from_lens((0..ranks).map(of));
    let none = Blocks::Even(0);
    let (own, sends, recvs) = match kind {
        Kind::Gather | Kind::Allgather => (len, none, even),
        Kind::Scatter => (len, even, none),
        Kind::Alltoall => (len, even.clone(), even),
        Kind::Gatherv if rank != root => (uneven_len(trial, rank, 0), none.clone(), none),
        Kind::Gatherv | Kind::Allgatherv => {
            (uneven_len(trial, rank, 0), none, uneven(&|r| uneven_len(trial, r, 0)))
        }
        Kind::Scatterv if rank != root => (uneven_len(trial, rank, 0), none.clone(), none),
        Kind::Scatterv => (uneven_len(trial, rank, 0), uneven(&|r| uneven_len(trial, r, 0)), none),
        Kind::Alltoallv | Kind::Alltoallw => {
            (0, uneven(&|to| uneven_len(trial, rank, to)), uneven(&|from| uneven_len(trial, from, rank)))
        }
        Kind::ReduceScatter => (uneven_len(trial, rank, 0), uneven(&|r| uneven_len(trial, r, 0)), none),
        Kind::ReduceScatterBlock => (len, even, none),
        _ => (len, none.clone(), none),
    };
    Shape { rank, ranks, root, len: own, unit, sends, recvs, commutative }
}

fn uneven_len(trial: &Trial, from: u32, to: u32) -> u64 {
    match trial.even {
        true => trial.len,
        false => mix(mix(u64::from(from), u64::from(to)), trial.len) % (trial.len + 1),
    }
}

/// Units of the buffers of a rank: Send and Recv.
fn extents(kind: Kind, shape: &Shape) -> (u64, u64) {
    let (len, p, root) = (shape.len, shape.ranks, shape.rank == shape.root);
    let at_root = |units: u64| if root { units } else { 0 };
    match kind {
        Kind::Barrier => (0, 0),
        Kind::Bcast => (0, len),
        Kind::Gather | Kind::Gatherv => (len, at_root(shape.recvs.start(p))),
        Kind::Scatter | Kind::Scatterv => (at_root(shape.sends.start(p)), len),
        Kind::Allgather | Kind::Allgatherv => (len, shape.recvs.start(p)),
        Kind::Alltoall | Kind::Alltoallv | Kind::Alltoallw => (shape.sends.start(p), shape.recvs.start(p)),
        Kind::Reduce => (len, at_root(len)),
        Kind::ReduceScatter | Kind::ReduceScatterBlock => (shape.sends.start(p), len),
        Kind::Allreduce | Kind::Scan | Kind::Exscan => (len, len),
    }
}

/// An expression over what the ranks gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Value {
    /// The operands in order, however they are bracketed.
    sequence: u64,
    /// How many there are.
    operands: u64,
    /// The operands in any order.
    bag: u64,
    /// The operands in order and as bracketed: equal bits.
    tree: u64,
}

impl Value {
    const UNDEFINED: Value = Value { sequence: 0xdead, operands: 0, bag: 0xdead, tree: 0xdead };

    /// Unit `unit` of what `rank` gave to operation `op`.
    fn leaf(op: usize, rank: u32, unit: u64) -> Value {
        let hash = mix(mix(op as u64, u64::from(rank)), unit);
        Value { sequence: hash, operands: 1, bag: hash, tree: hash }
    }

    fn joined(self, right: Value) -> Value {
        const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
        let shift = match right.operands {
            1 => BASE,
            n => BASE.wrapping_pow(n as u32),
        };
        Value {
            sequence: self.sequence.wrapping_mul(shift).wrapping_add(right.sequence),
            operands: self.operands + right.operands,
            bag: self.bag.wrapping_add(right.bag),
            tree: mix(self.tree, right.tree),
        }
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x632b_e59b_d9b4_e019).rotate_left(29);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

/// The buffers of a rank, and who touched what in the present round.
struct Memory {
    /// Send (empty if in place), Recv, Temp.
    cells: [Vec<Value>; 3],
    /// The round of the last read and of the last write, by cell.
    marks: [Vec<(u32, u32)>; 3],
    round: u32,
    /// Where Send starts in Recv.
    in_place: Option<u64>,
    send_len: u64,
}

impl Memory {
    fn new(op: usize, algorithm: &Algorithm, shape: &Shape, in_place: bool) -> Memory {
        let kind = algorithm.kind;
        let (send, recv) = extents(kind, shape);
        let in_place = shape.in_place_at(kind).filter(|_| in_place);
        let given = |units: u64| (0..units).map(|unit| Value::leaf(op, shape.rank, unit)).collect::<Vec<_>>();
        let mut cells = [
            if in_place.is_some() { vec![] } else { given(send) },
            vec![Value::UNDEFINED; recv.max(in_place.map_or(0, |at| at + send)) as usize],
            vec![Value::UNDEFINED; (algorithm.temp)(shape) as usize],
        ];
        if let Some(at) = in_place {
            cells[1][at as usize..(at + send) as usize].copy_from_slice(&given(send));
        }
        if kind == Kind::Bcast && shape.rank == shape.root {
            cells[1] = given(recv);
        }
        let marks = std::array::from_fn(|i| vec![(0, 0); cells[i].len()]);
        Memory { cells, marks, round: 0, in_place, send_len: send }
    }

    /// Which cells a span is.
    fn place(&self, span: Span) -> Result<(usize, std::ops::Range<usize>), String> {
        let (buf, at) = match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (1, start + span.at),
            (buf, _) => (buf as usize, span.at),
        };
        let room = if span.buf == Buf::Send { self.send_len } else { self.cells[buf].len() as u64 };
        if span.len > 0 && span.at + span.len > room {
            return Err(format!("{span:?} is outside the buffer of {room} units"));
        }
        Ok((buf, at as usize..(at + span.len) as usize))
    }

    fn mark(&mut self, span: Span, write: bool) -> Result<(), String> {
        if write && span.buf == Buf::Send && span.len > 0 {
            return Err(format!("{span:?} is the user's, and written to"));
        }
        let (buf, range) = self.place(span)?;
        for (read, written) in &mut self.marks[buf][range] {
            if *written == self.round || (write && *read == self.round) {
                return Err(format!("{span:?} is accessed by two steps of one round"));
            }
            *(if write { written } else { read }) = self.round;
        }
        Ok(())
    }

    fn read(&self, span: Span) -> Vec<Value> {
        self.place(span).map(|(buf, range)| self.cells[buf][range].to_vec()).unwrap_or_default()
    }

    fn write(&mut self, span: Span, values: &[Value]) {
        if let Ok((buf, range)) = self.place(span) {
            self.cells[buf][range].copy_from_slice(values);
        }
    }

    /// Writes incoming values, or what they are when combined.
    fn take(&mut self, into: Span, values: Vec<Value>, merge: Option<Merge>) {
        let Some(merge) = merge else { return self.write(into, &values) };
        let with = self.read(merge.with);
        let combined = values.into_iter().zip(with).map(|(came, with)| match merge.side {
            Side::Left | Side::Any => came.joined(with),
            Side::Right => with.joined(came),
        });
        self.write(into, &combined.collect::<Vec<_>>());
    }

    fn mark_merge(&mut self, merge: Merge) -> Result<(), String> {
        // Onto itself, also where Send is in place, is one access.
        if self.place(merge.with)? != self.place(merge.into)? {
            self.mark(merge.with, false)?;
        }
        self.mark(merge.into, true)
    }
}

struct Publication {
    stamp: u64,
    op: usize,
    span: Span,
    form: Form,
    values: Vec<Value>,
}

struct Symbolic<'a> {
    algorithm: &'static Algorithm,
    ops: &'a [Operation],
    /// By operation and rank.
    memory: Vec<Vec<Memory>>,
    /// By rank and bank.
    slots: Vec<[Option<Publication>; 2]>,
    /// The operation that each rank is in.
    at_op: Vec<usize>,
    released: Vec<u64>,
    /// By operation, all ranks' vectors combined up to each rank.
    expected: Vec<Vec<Value>>,
    /// By operation, how the first rank to end an allreduce bracketed its operands.
    bits: Vec<Option<Vec<u64>>>,
}

impl<'a> Symbolic<'a> {
    fn new(algorithm: &'static Algorithm, ops: &'a [Operation], trial: &Trial) -> Self {
        let memory = ops.iter().enumerate().map(|(op, operation)| {
            let shapes = operation.shapes.iter();
            shapes.map(|shape| Memory::new(op, algorithm, shape, trial.in_place)).collect()
        });
        let ranks = trial.ranks as usize;
        Symbolic {
            algorithm,
            ops,
            memory: memory.collect(),
            slots: (0..ranks).map(|_| [None, None]).collect(),
            at_op: vec![0; ranks],
            released: vec![0; ranks],
            bits: vec![None; ops.len()],
            expected: (0..ops.len()).map(|op| prefixes(algorithm.kind, op, &ops[op].shapes)).collect(),
        }
    }

    /// What the rank's Recv must be in the end; `None` where anything will do.
    fn result(&self, op: usize, rank: u32, unit: u64) -> Option<Value> {
        let shapes = &self.ops[op].shapes;
        let shape = &shapes[rank as usize];
        let (p, root) = (shape.ranks, rank == shape.root);
        // All ranks' vectors combined up to rank `last`.
        let prefix = |last: u32, unit: u64| {
            let units = self.expected[op].len() as u64 / u64::from(p);
            self.expected[op][(u64::from(last) * units + unit) as usize]
        };
        let gathered = |blocks: &Blocks| {
            let from = match blocks {
                Blocks::Even(len) => (unit / len) as u32,
                Blocks::Starts(starts) => starts.partition_point(|&start| start <= unit) as u32 - 1,
            };
            (from < p).then(|| (from, unit - blocks.start(from)))
        };
        match self.algorithm.kind {
            Kind::Barrier => None,
            Kind::Bcast => Some(Value::leaf(op, shape.root, unit)),
            Kind::Gather | Kind::Gatherv if !root => None,
            Kind::Gather | Kind::Gatherv | Kind::Allgather | Kind::Allgatherv => {
                gathered(&shape.recvs).map(|(from, unit)| Value::leaf(op, from, unit))
            }
            Kind::Scatter | Kind::Scatterv => {
                let start = shapes[shape.root as usize].sends.start(rank);
                Some(Value::leaf(op, shape.root, start + unit))
            }
            Kind::Alltoall | Kind::Alltoallv | Kind::Alltoallw => gathered(&shape.recvs)
                .map(|(from, unit)| Value::leaf(op, from, shapes[from as usize].sends.start(rank) + unit)),
            Kind::Reduce if !root => None,
            Kind::Reduce | Kind::Allreduce => Some(prefix(p - 1, unit)),
            Kind::ReduceScatter | Kind::ReduceScatterBlock => {
                (unit < shape.len).then(|| prefix(p - 1, shape.sends.start(rank) + unit))
            }
            Kind::Scan => Some(prefix(rank, unit)),
            Kind::Exscan => (rank > 0).then(|| prefix(rank - 1, unit)),
        }
    }

    fn memory(&mut self, op: usize, rank: u32) -> &mut Memory {
        &mut self.memory[op][rank as usize]
    }
}

/// The vectors of the ranks combined, in order, up to each rank: rank by rank.
fn prefixes(kind: Kind, op: usize, shapes: &[Shape]) -> Vec<Value> {
    if !kind.reduces() {
        return vec![];
    }
    let units = extents(kind, &shapes[0]).0;
    let mut all: Vec<Value> = (0..units).map(|unit| Value::leaf(op, 0, unit)).collect();
    for rank in 1..shapes.len() {
        for unit in 0..units as usize {
            let below = all[(rank - 1) * units as usize + unit];
            all.push(below.joined(Value::leaf(op, rank as u32, unit as u64)));
        }
    }
    all
}

impl Machine for Symbolic<'_> {
    fn begin(&mut self, op: usize, rank: u32, steps: &[Step]) -> Result<(), String> {
        self.at_op[rank as usize] = op;
        let memory = self.memory(op, rank);
        memory.round += 1;
        for step in steps {
            let marked = match *step {
                Step::Send { from, .. } | Step::Publish { from, .. } => memory.mark(from, false),
                Step::Recv { into, .. } | Step::Pull { into, .. } => memory.mark(into, true),
                Step::RecvReduce { merge, .. } | Step::PullReduce { merge, .. } => memory.mark_merge(merge),
                // In place, what is given is there already.
                Step::Copy { from, into } if memory.in_place.is_some() && copies_own(from, into) => Ok(()),
                Step::Reduce { from, into } | Step::Copy { from, into } => {
                    memory.mark(from, false).and_then(|()| memory.mark(into, true))
                }
                Step::Await { .. } | Step::Release { .. } | Step::Drain { .. } => Ok(()),
            };
            marked.map_err(|what| format!("rank {rank}, {step:?}: {what}"))?;
        }
        Ok(())
    }

    fn message(&mut self, op: usize, ends: (u32, u32), from: Span, into: Span, merge: Option<Merge>) {
        let values = self.memory(op, ends.0).read(from);
        self.memory(op, ends.1).take(into, values, merge);
    }

    fn local(&mut self, op: usize, rank: u32, step: &Step) -> Result<(), String> {
        let memory = self.memory(op, rank);
        match *step {
            Step::Copy { from, into } if memory.in_place.is_some() && copies_own(from, into) => {
                let same = memory.place(from)? == memory.place(into)?;
                return match same {
                    true => Ok(()),
                    false => Err(format!("rank {rank}: in place, {step:?} is no copy onto itself")),
                };
            }
            Step::Copy { from, into } => {
                let values = memory.read(from);
                memory.write(into, &values);
            }
            Step::Reduce { from, into } => {
                let values = memory.read(from);
                memory.take(into, values, Some(Merge::onto(into, Side::Left)));
            }
            _ => {}
        }
        Ok(())
    }

    fn publish(&mut self, op: usize, rank: u32, stamp: u64, from: Span, form: Form) {
        let values = self.memory(op, rank).read(from);
        let publication = Publication { stamp, op, span: from, form, values };
        self.slots[rank as usize][(stamp & 1) as usize] = Some(publication);
    }

    fn look(&mut self, op: usize, rank: u32, look: Look) -> Result<(), String> {
        let Look { publisher, stamp, at, into, merge } = look;
        let slot = &self.slots[publisher as usize][(stamp & 1) as usize];
        let Some(slot) = slot.as_ref().filter(|slot| slot.stamp == stamp) else {
            return Err(format!("rank {rank} finds another stamp than {stamp} in rank {publisher}'s slot"));
        };
        if slot.form == Form::Region {
            if self.at_op[publisher as usize] != slot.op {
                return Err(format!("rank {rank} pulls memory that rank {publisher} gave back"));
            }
            // Only what is pulled must be as it was published: parts may change when all have read them.
            let (at, len) = (at, into.map_or(0, |into| into.len));
            let span = Span { at: slot.span.at + at, len, ..slot.span };
            let now = self.memory[slot.op][publisher as usize].read(span);
            if now[..] != slot.values[at as usize..(at + len) as usize] {
                return Err(format!("rank {publisher} changed what rank {rank} pulls under stamp {stamp}"));
            }
        }
        let Some(into) = into else { return Ok(()) };
        let Some(values) = slot.values.get(at as usize..(at + into.len) as usize).map(<[_]>::to_vec) else {
            return Err(format!("rank {rank} pulls {into:?} out of {} units", slot.values.len()));
        };
        self.memory(op, rank).take(into, values, merge);
        Ok(())
    }

    fn drained(&mut self, _: usize, _: u32, _: u32, _: u64) {}

    fn release(&mut self, _: usize, rank: u32, stamp: u64) {
        self.released[rank as usize] = stamp;
    }

    fn end(&mut self, op: usize, rank: u32) -> Result<(), String> {
        self.at_op[rank as usize] = op + 1;
        let phases = u64::from(self.algorithm.phases);
        if phases > 0 && self.released[rank as usize] + 1 != self.ops[op].first + phases {
            return Err(format!("rank {rank} ends without releasing all its stamps"));
        }
        for bank in self.slots[rank as usize].iter().flatten() {
            let open = self.released.iter().any(|&released| released < bank.stamp);
            if bank.op == op && bank.form == Form::Region && open && bank.span.len > 0 {
                return Err(format!("rank {rank} ends while others may still pull from it"));
            }
        }
        let cells = std::mem::take(&mut self.memory(op, rank).cells[1]);
        for (unit, &got) in cells.iter().enumerate() {
            let Some(wanted) = self.result(op, rank, unit as u64) else { continue };
            let same = if self.algorithm.kind.reduces() && self.algorithm.reorders {
                (got.bag, got.operands) == (wanted.bag, wanted.operands)
            } else {
                // Rooted trees reorder what commutes.
                let ordered = got.sequence == wanted.sequence && got.operands == wanted.operands;
                let commutes = self.ops[op].shapes[rank as usize].commutative;
                ordered || commutes && (got.bag, got.operands) == (wanted.bag, wanted.operands)
            };
            if !same {
                return Err(format!("rank {rank}, unit {unit}: {got:?} where {wanted:?} belongs"));
            }
        }
        if self.algorithm.kind == Kind::Allreduce {
            let trees: Vec<u64> = cells.iter().map(|value| value.tree).collect();
            if self.bits[op].get_or_insert_with(|| trees.clone()) != &trees {
                return Err(format!("rank {rank} brackets its operands in another way than others"));
            }
        }
        Ok(())
    }
}

fn copies_own(from: Span, into: Span) -> bool {
    from.buf == Buf::Send && into.buf == Buf::Recv
}
