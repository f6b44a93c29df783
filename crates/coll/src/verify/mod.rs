//! Proves algorithms right without data: every unit of every buffer is an ordered expression over the units
//! that the ranks gave, kept as hashes.
//!
//! The verifier finds: wrong, missing, doubled or misordered operands; results that differ in bits between ranks;
//! overlapping accesses within a round; writes to the user's send buffer; accesses outside a buffer; messages whose
//! ends disagree; deadlocks, with synchronous sends; reads of a cell after the reader acknowledged it or its
//! owner reused it; exposed ranges that change, or go back to the user, while others may read them; offered ranges that are touched, or
//! go back to the user, before the block for them has come; accesses to the shared scratch that no publication or
//! acknowledgement orders.

mod calls;
mod memory;
mod scratch;

use self::memory::{RankMemory, Value, mix, prefixes};
use self::scratch::SharedScratch;
use std::sync::Arc;

use crate::lockstep::{Access, Counters, Lane, Machine, Operation, lockstep};
use crate::{
    Algorithm, Blocks, Buf, Form, Kind, Location, Merge, Needs, NodeRanks, Nodes, Products, Shape, Side,
    Span, Step, SubBuffer,
};

/// One case to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trial {
    /// Ranks.
    pub ranks: u32,
    /// The root of the first operation.
    pub root: u32,
    /// Units of the vector, or of a block. Uneven blocks have up to that many.
    pub len: u64,
    /// Bytes of a unit (some algorithms choose their segments by them).
    pub unit: u64,
    /// With MPI_IN_PLACE wherever it may be.
    pub in_place: bool,
    /// Blocks have equal lengths also in collectives where they may differ.
    pub even: bool,
    /// Whether the operation commutes.
    pub commutative: bool,
    /// Determines the order in which ranks get their turns.
    pub seed: u64,
    /// Units of the shared scratch.
    pub scratch: u64,
    /// Cells of a CICO buffer: with few cells ranks wait for one another, with many they get far apart.
    pub cells: u64,
    /// Bytes of a cell that is cut into sub-buffers.
    pub cell_bytes: u64,
    /// Where not all ranks know all sizes: longer blocks go by message, and not over the shared scratch.
    pub longest_copied: u64,
    /// By which pipelines are cut.
    pub products: Products,
    /// Whether there are more ranks than cores.
    pub crowded: bool,
    /// Whether ranks may read and write each other's memory.
    pub single_copy: bool,
    /// Rings go in an order that the seed decides, and not in that of ranks.
    pub ring: bool,
    /// The ranks are on up to so many nodes, dealt out at random, and some nodes have sockets and these have caches; with 0
    /// nothing is known of nodes.
    pub nodes: u32,
}

/// Checks one algorithm in one case: alone, or, where it uses shared buffers, several in a row with changing
/// roots.
///
/// # Errors
/// What is wrong, in words.
pub fn check(algorithm: &'static Algorithm, trial: &Trial) -> Result<(), String> {
    check_shapes(algorithm, trial, |rank, trial| shape(algorithm.kind, rank, trial))
}

/// Checks one algorithm of [`BETWEEN`](crate::BETWEEN) between the first `split` ranks and the others.
///
/// # Errors
/// What is wrong, in words.
pub fn check_between(algorithm: &'static Algorithm, trial: &Trial, split: u32) -> Result<(), String> {
    check_shapes(algorithm, trial, |rank, trial| calls::shape(algorithm.kind, rank, trial, split))
}

fn check_shapes(
    algorithm: &'static Algorithm,
    trial: &Trial,
    shape: impl Fn(u32, &Trial) -> Shape,
) -> Result<(), String> {
    let messages = algorithm.needs == Needs::Messages && algorithm.stages.is_empty();
    let known = trial.nodes().filter(|_| !algorithm.stages.is_empty());
    let nodes = Arc::new(known.unwrap_or_else(|| Nodes::new((0..trial.ranks).map(|_| 0))));
    let apart = nodes.apart();
    let chunks = if algorithm.kind.has_blocks() { 1 } else { 1 + trial.seed % 4 };
    let mut counters: Vec<_> = (0..trial.ranks).map(|_| Counters::new()).collect();
    // So many that each of a few ranks is the root, and some are it again.
    let again = if algorithm.kind.rooted() && trial.ranks <= 6 { trial.ranks - 1 } else { 0 };
    let ops: Vec<Operation> = (0..if messages { 1 } else { 4 + again })
        .map(|i| {
            let trial = Trial { root: (trial.root + i) % trial.ranks, ..*trial };
            let shape = |rank| trial.composed(algorithm, chunks, &apart, shape(rank, &trial));
            let shapes: Vec<_> = (0..trial.ranks).map(shape).collect();
            let ranks = counters.iter_mut().zip(&shapes);
            let windows = ranks.map(|(counters, shape)| counters.take(algorithm, shape)).collect();
            Operation { algorithm, shapes, windows }
        })
        .collect();
    let first = |rank: u32| nodes.ranks(nodes.of(rank)).at(0);
    let alike =
        |windows: &[_]| (0..trial.ranks).all(|rank| windows[rank as usize] == windows[first(rank) as usize]);
    if !ops.iter().all(|op| alike(&op.windows)) {
        return Err("the ranks count different phases or chunks".into());
    }
    let rounds = |shape: &Shape| (algorithm.rounds)(shape);
    if ops[0].shapes.iter().any(|shape| rounds(shape) != rounds(&ops[0].shapes[0])) {
        return Err("the ranks count different rounds".into());
    }
    let order = shuffled(trial.ranks, trial.seed);
    let mut machine = Symbolic::new(algorithm, &ops, trial, &nodes);
    lockstep(&ops, &mut machine, (&order, &nodes), trial.cells)
}

/// Ranks in an order that a seed decides.
fn shuffled(ranks: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ranks).collect();
    let mut random = seed;
    for i in (1..order.len()).rev() {
        random = mix(random, i as u64);
        order.swap(i, (random % (i as u64 + 1)) as usize);
    }
    order
}

/// The shape that a rank has in a trial.
pub fn shape(kind: Kind, rank: u32, trial: &Trial) -> Shape {
    calls::shape(kind, rank, trial, 0)
}

impl Trial {
    /// Where its ranks are, if they are apart.
    pub fn nodes(&self) -> Option<Nodes> {
        let location = |rank: u32| {
            let random = |salt: u32, below: u64| (mix(u64::from(salt), u64::from(rank)) % below) as u32;
            let host = random(self.nodes, u64::from(self.nodes.max(1)));
            Location([host, random(host + 100, 1 + u64::from(host + self.ranks) % 3), random(host + 200, 2)])
        };
        let nodes = Nodes::new((0..self.ranks).map(location));
        Some(nodes).filter(|nodes| self.nodes > 0 && nodes.levels().iter().any(|level| level.number > 1))
    }
}

/// What a rank published in a cell.
struct Publication {
    seq: u64,
    op: usize,
    span: Span,
    form: Form,
    values: Vec<Value>,
    sub_buffers: Vec<Filled>,
}

/// A sub-buffer that was packed: the length in it, and the block's units, if they fit.
struct Filled {
    sub_buffer: SubBuffer,
    len: u64,
    values: Vec<Value>,
}

/// A range that a rank has offered, and does not know yet that it is its own again.
struct Offered {
    seq: u64,
    sub_buffer: SubBuffer,
    range: Span,
    /// The other rank takes it, and puts nothing there.
    gives: bool,
    /// The rank that has taken it, or put its block there.
    by: Option<u32>,
}

/// The machine that carries out steps on symbols.
struct Symbolic<'a> {
    algorithm: &'static Algorithm,
    ops: &'a [Operation],
    /// By operation and rank.
    memory: Vec<Vec<RankMemory>>,
    /// The CICO buffers, by rank and cell.
    cico: Vec<Vec<Option<Publication>>>,
    /// By rank, the sequence number it packed for last, and the sub-buffers that it has packed and not published yet.
    packed: Vec<(u64, Vec<Filled>)>,
    /// By rank, what it offers.
    offered: Vec<Vec<Offered>>,
    /// By rank, the operation that it is in.
    at_op: Vec<usize>,
    /// By rank, the last sequence number that it acknowledged.
    acked: Vec<u64>,
    nodes: &'a Nodes,
    /// By node.
    scratch: Vec<SharedScratch>,
    /// By operation, the vectors of the ranks combined up to each rank.
    expected: Vec<Vec<Value>>,
    /// By operation and group, how the first rank to end an allreduce bracketed its operands.
    bits: Vec<[Option<Vec<u64>>; 2]>,
}

impl<'a> Symbolic<'a> {
    fn new(algorithm: &'static Algorithm, ops: &'a [Operation], trial: &Trial, nodes: &'a Nodes) -> Self {
        let memory = ops.iter().enumerate().map(|(op, operation)| {
            let shapes = operation.shapes.iter();
            shapes.map(|shape| RankMemory::new(op, algorithm, shape, trial.in_place)).collect()
        });
        let ranks = trial.ranks as usize;
        Symbolic {
            algorithm,
            ops,
            memory: memory.collect(),
            cico: (0..ranks).map(|_| (0..trial.cells).map(|_| None).collect()).collect(),
            packed: (0..ranks).map(|_| (0, vec![])).collect(),
            offered: (0..ranks).map(|_| vec![]).collect(),
            at_op: vec![0; ranks],
            acked: vec![0; ranks],
            nodes,
            scratch: (0..nodes.number()).map(|_| SharedScratch::new(trial.ranks, trial.scratch)).collect(),
            bits: vec![[None, None]; ops.len()],
            expected: (0..ops.len()).map(|op| prefixes(algorithm.kind, op, &ops[op].shapes)).collect(),
        }
    }

    /// What a unit of the rank's Recv must be in the end; `None` where it does not matter.
    fn result(&self, op: usize, rank: u32, unit: u64) -> Option<Value> {
        let shapes = &self.ops[op].shapes;
        let shape = &shapes[rank as usize];
        let (p, root) = (shape.ranks, rank == shape.root);
        // On an intercommunicator a group gets the result of the other one.
        let last = if shape.split == 0 { p - 1 } else { shape.group_across(rank).end - 1 };
        // The vectors of the ranks combined up to rank `last`.
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
            Kind::Reduce | Kind::Allreduce => Some(prefix(last, unit)),
            Kind::ReduceScatter | Kind::ReduceScatterBlock => {
                (unit < shape.len).then(|| prefix(last, shape.sends.start(rank) + unit))
            }
            Kind::Scan => Some(prefix(rank, unit)),
            Kind::Exscan => (rank > 0).then(|| prefix(rank - 1, unit)),
        }
    }

    fn cell(&self, seq: u64) -> usize {
        (seq % self.cico[0].len() as u64) as usize
    }

    /// The shared scratch of a rank's node.
    fn scratch(&mut self, rank: u32) -> &mut SharedScratch {
        &mut self.scratch[self.nodes.of(rank) as usize]
    }

    fn memory(&mut self, op: usize, rank: u32) -> &mut RankMemory {
        &mut self.memory[op][rank as usize]
    }

    fn read(&mut self, op: usize, rank: u32, span: Span) -> Result<Vec<Value>, String> {
        match span.buf {
            Buf::SharedScratch => self.scratch(rank).read(rank, span),
            _ => Ok(self.memory(op, rank).read(span)),
        }
    }

    fn write(&mut self, op: usize, rank: u32, span: Span, values: &[Value]) -> Result<(), String> {
        match span.buf {
            Buf::SharedScratch => return self.scratch(rank).write(rank, span, values),
            _ => self.memory(op, rank).write(span, values),
        }
        Ok(())
    }

    /// The range that is offered in a sub-buffer, for a rank that uses it now and has a block of its own there.
    fn offer_for(
        &mut self,
        rank: u32,
        (publisher, seq, sub_buffer): (u32, u64, SubBuffer),
        (own, takes): (Span, bool),
    ) -> Result<Span, String> {
        let mut offers = self.offered[publisher as usize].iter_mut();
        let found = offers.find(|offer| (offer.seq, offer.sub_buffer) == (seq, sub_buffer));
        let fits =
            |offer: &&mut Offered| offer.by.is_none() && (offer.range.len, offer.gives) == (own.len, takes);
        let Some(offer) = found.filter(fits) else {
            return Err(format!("rank {publisher} does not offer {sub_buffer:?} to rank {rank} for {own:?}"));
        };
        offer.by = Some(rank);
        Ok(offer.range)
    }

    /// A rank fills a sub-buffer of its cell of a sequence number.
    fn enter(&mut self, (rank, seq): (u32, u64), cell_bytes: u64, filled: Filled) -> Result<(), String> {
        let (packed_for, packed) = &mut self.packed[rank as usize];
        if std::mem::replace(packed_for, seq) != seq && !packed.is_empty() {
            return Err(format!("rank {rank} packed something that it never published"));
        }
        let end = |sub_buffer: &SubBuffer| sub_buffer.at + SubBuffer::HEAD + sub_buffer.room;
        let sub_buffer = filled.sub_buffer;
        let meets =
            |other: &Filled| sub_buffer.at < end(&other.sub_buffer) && other.sub_buffer.at < end(&sub_buffer);
        if end(&sub_buffer) > cell_bytes || packed.iter().any(meets) {
            return Err(format!(
                "rank {rank} has no room for {sub_buffer:?} in a cell of {cell_bytes} bytes"
            ));
        }
        packed.push(filled);
        Ok(())
    }
}

impl Machine for Symbolic<'_> {
    fn begin(&mut self, op: usize, rank: u32, steps: &[Step], lane: Lane) -> Result<(), String> {
        self.at_op[rank as usize] = op;
        let (memory, offered) = (&mut self.memory[op][rank as usize], &self.offered[rank as usize]);
        memory.begin(lane);
        for step in steps {
            for offer in offered {
                for span in step.reads().into_iter().chain([step.writes()]).flatten() {
                    let its = matches!(step, Step::AwaitPut { into, .. } if *into == offer.range);
                    let read = offer.gives && step.writes() != Some(span);
                    let [(buf, here), (other, there)] = [memory.locate(span)?, memory.locate(offer.range)?];
                    if !its && !read && buf == other && here.start < there.end && there.start < here.end {
                        return Err(format!("rank {rank}, {step:?}: that is offered to another rank"));
                    }
                }
            }
            let marked = match *step {
                Step::Offer { range, gives, .. } => memory.mark(range, !gives),
                Step::Pack { from, sub_buffer, .. } if !sub_buffer.holds(from.len) => Ok(()),
                Step::Unpack { into, sub_buffer, .. } if SubBuffer::leaves_out(sub_buffer, into.len) => {
                    Ok(())
                }
                Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => memory.mark_merge(merge),
                // In place the data are there already, and the copy does nothing.
                Step::Copy { from, into } if memory.in_place.is_some() && copies_own(from, into) => Ok(()),
                // Of the two that a reduction reads, it writes one.
                _ => {
                    let (read, written) = (step.reads()[0], step.writes());
                    let read = read.map_or(Ok(()), |span| memory.mark(span, false));
                    read.and_then(|()| written.map_or(Ok(()), |span| memory.mark(span, true)))
                }
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
                let same = memory.locate(from)? == memory.locate(into)?;
                return match same {
                    true => Ok(()),
                    false => Err(format!("rank {rank}: in place, {step:?} is no copy onto itself")),
                };
            }
            Step::Copy { from, into } => {
                let values = self.read(op, rank, from)?;
                self.write(op, rank, into, &values)?;
            }
            Step::Reduce { from, into } if into.buf == Buf::SharedScratch => {
                let values = self.read(op, rank, from)?;
                let with = self.read(op, rank, into)?;
                let sums: Vec<_> = values.iter().zip(with).map(|(left, right)| left.joined(right)).collect();
                self.write(op, rank, into, &sums)?;
            }
            Step::Reduce { from, into } => {
                let values = self.read(op, rank, from)?;
                self.memory(op, rank).take(into, values, Some(Merge::onto(into, Side::Left)));
            }
            _ => {}
        }
        Ok(())
    }

    fn pack(
        &mut self,
        op: usize,
        rank: u32,
        seq: u64,
        from: Span,
        sub_buffer: SubBuffer,
    ) -> Result<(), String> {
        let cell_bytes = self.ops[op].shapes[rank as usize].cell_bytes;
        let fits = sub_buffer.holds(from.len);
        let values = if fits { self.memory(op, rank).read(from) } else { vec![] };
        self.enter((rank, seq), cell_bytes, Filled { sub_buffer, len: from.len, values })
    }

    fn offer(
        &mut self,
        op: usize,
        rank: u32,
        seq: u64,
        (range, gives): (Span, bool),
        sub_buffer: SubBuffer,
    ) -> Result<(), String> {
        let cell_bytes = self.ops[op].shapes[rank as usize].cell_bytes;
        if !sub_buffer.holds_offer() {
            return Err(format!("rank {rank} has no room for an offer in {sub_buffer:?}"));
        }
        self.offered[rank as usize].push(Offered { seq, sub_buffer, range, gives, by: None });
        self.enter((rank, seq), cell_bytes, Filled { sub_buffer, len: range.len, values: vec![] })
    }

    fn take(
        &mut self,
        op: usize,
        rank: u32,
        (publisher, seq, sub_buffer): (u32, u64, SubBuffer),
        into: Span,
    ) -> Result<(), String> {
        let range = self.offer_for(rank, (publisher, seq, sub_buffer), (into, true))?;
        let values = self.memory(op, publisher).read(range);
        self.memory(op, rank).write(into, &values);
        Ok(())
    }

    fn put(
        &mut self,
        op: usize,
        rank: u32,
        (publisher, seq, sub_buffer): (u32, u64, SubBuffer),
        from: Span,
    ) -> Result<(), String> {
        let values = self.read(op, rank, from)?;
        let range = self.offer_for(rank, (publisher, seq, sub_buffer), (from, false))?;
        self.memory(op, publisher).write(range, &values);
        Ok(())
    }

    fn landed(&mut self, rank: u32, other: u32, into: Span) -> Result<(), String> {
        let offered = &mut self.offered[rank as usize];
        let found = offered.iter().position(|offer| (offer.range, offer.by) == (into, Some(other)));
        match found {
            Some(index) => drop(offered.swap_remove(index)),
            None => return Err(format!("rank {rank} has no block of rank {other} in {into:?}")),
        }
        Ok(())
    }

    fn publish(&mut self, op: usize, rank: u32, seq: u64, from: Span, form: Form) {
        let values = self.memory(op, rank).read(from);
        let sub_buffers = match form {
            Form::Packed => std::mem::take(&mut self.packed[rank as usize].1),
            _ => vec![],
        };
        self.scratch(rank).publish(rank, seq);
        let publication = Publication { seq, op, span: from, form, values, sub_buffers };
        let cell = self.cell(seq);
        self.cico[rank as usize][cell] = Some(publication);
    }

    fn access(&mut self, op: usize, rank: u32, access: Access) -> Result<(), String> {
        let Access { publisher, seq, at, into, merge, sub_buffer, whole } = access;
        let publication = &self.cico[publisher as usize][self.cell(seq)];
        let Some(publication) = publication.as_ref().filter(|publication| publication.seq == seq) else {
            return Err(format!(
                "rank {rank} finds another sequence number than {seq} in rank {publisher}'s CICO buffer"
            ));
        };
        self.scratch[self.nodes.of(rank) as usize].access(rank, publisher, seq);
        if publication.form == Form::Exposed {
            if self.at_op[publisher as usize] != publication.op {
                return Err(format!("rank {rank} gets memory that rank {publisher} gave back"));
            }
            // Only the units that are got must be as they were published: a part may change when all have read it.
            let (at, len) = (at, into.map_or(0, |into| into.len));
            let span = Span { at: publication.span.at + at, len, ..publication.span };
            let now = self.memory[publication.op][publisher as usize].read(span);
            if now[..] != publication.values[at as usize..(at + len) as usize] {
                return Err(format!(
                    "rank {publisher} changed what rank {rank} gets under sequence number {seq}"
                ));
            }
        }
        let Some(into) = into else { return Ok(()) };
        if let Some(sub_buffer) = sub_buffer {
            let filled = publication.sub_buffers.iter().find(|filled| filled.sub_buffer == sub_buffer);
            let Some(filled) = filled.filter(|filled| filled.len == into.len) else {
                return Err(format!(
                    "rank {rank} does not find {into:?} in {sub_buffer:?} of rank {publisher}"
                ));
            };
            if sub_buffer.holds(into.len) {
                let values = filled.values.clone();
                self.memory(op, rank).take(into, values, None);
            }
            return Ok(());
        }
        if whole && publication.values.len() as u64 != into.len {
            let published = publication.values.len();
            return Err(format!("rank {rank} takes {published} units of rank {publisher} for {into:?}"));
        }
        let Some(values) = publication.values.get(at as usize..(at + into.len) as usize).map(<[_]>::to_vec)
        else {
            return Err(format!("rank {rank} gets {into:?} out of {} units", publication.values.len()));
        };
        self.memory(op, rank).take(into, values, merge);
        Ok(())
    }

    fn ack_seen(&mut self, _: usize, rank: u32, other: u32, seq: u64) {
        // What it has taken is this rank's own again.
        self.offered[rank as usize]
            .retain(|offer| !(offer.gives && offer.by == Some(other) && offer.seq <= seq));
        self.scratch(rank).after(rank, other, seq);
    }

    fn reusable(&mut self, rank: u32, ranks: NodeRanks<'_>, seq: u64) {
        ranks.iter().for_each(|other| self.scratch(rank).after(rank, other, seq));
    }

    fn ack(&mut self, _: usize, rank: u32, seq: u64) {
        self.acked[rank as usize] = seq;
        self.scratch(rank).ack(rank, seq);
    }

    fn end(&mut self, op: usize, rank: u32) -> Result<(), String> {
        self.at_op[rank as usize] = op + 1;
        let last = self.ops[op].windows[rank as usize].last();
        if last.is_some_and(|last| self.acked[rank as usize] + 1 != last.first + u64::from(last.phases)) {
            return Err(format!("rank {rank} ends without acknowledging all its sequence numbers"));
        }
        let ranks = self.nodes.ranks(self.nodes.of(rank));
        if !self.offered[rank as usize].is_empty() {
            return Err(format!("rank {rank} ends while others may still use what it has offered"));
        }
        for cell in self.cico[rank as usize].iter().flatten() {
            let open = ranks.iter().any(|rank| self.acked[rank as usize] < cell.seq);
            if cell.op == op && cell.form == Form::Exposed && open && cell.span.len > 0 {
                return Err(format!("rank {rank} ends while others may still get from it"));
            }
        }
        let cells = std::mem::take(&mut self.memory(op, rank).cells[1]);
        for (unit, &got) in cells.iter().enumerate() {
            let Some(wanted) = self.result(op, rank, unit as u64) else { continue };
            let same = if self.algorithm.kind.reduces() && self.algorithm.reorders {
                (got.bag, got.operands) == (wanted.bag, wanted.operands)
            } else {
                // Trees below a root change the order if the operation commutes.
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
            let group = usize::from(rank < self.ops[op].shapes[0].split);
            if self.bits[op][group].get_or_insert_with(|| trees.clone()) != &trees {
                return Err(format!("rank {rank} brackets its operands in another way than others"));
            }
        }
        Ok(())
    }
}

/// True for the copy that does nothing in place.
fn copies_own(from: Span, into: Span) -> bool {
    from.buf == Buf::Send && into.buf == Buf::Recv
}
