//! Symbolic memory: what every unit of a rank's buffers is, as an expression over the units that the ranks gave.

use crate::lockstep::Lane;
use crate::{Algorithm, Buf, Kind, Merge, Shape, Side, Span};

/// An expression over the units that the ranks gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Value {
    /// The operands in order, however they are bracketed.
    pub(super) sequence: u64,
    /// The number of operands.
    pub(super) operands: u64,
    /// The operands in any order.
    pub(super) bag: u64,
    /// The operands in order and as bracketed: equal bits.
    pub(super) tree: u64,
}

impl Value {
    const UNDEFINED: Value = Value { sequence: 0xdead, operands: 0, bag: 0xdead, tree: 0xdead };

    /// Unit `unit` of what `rank` gave to operation `op`.
    pub(super) fn leaf(op: usize, rank: u32, unit: u64) -> Value {
        let hash = mix(mix(op as u64, u64::from(rank)), unit);
        Value { sequence: hash, operands: 1, bag: hash, tree: hash }
    }

    /// `self op right`.
    pub(super) fn joined(self, right: Value) -> Value {
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

/// A hash of two numbers.
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x632b_e59b_d9b4_e019).rotate_left(29);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 29)
}

/// The buffers of a rank, and which cells the steps of the present round access.
pub(super) struct RankMemory {
    /// Send (empty if in place), Recv, Temp.
    pub(super) cells: [Vec<Value>; 3],
    /// By cell of these and of the shared scratch, the round of the last read and of the last write.
    pub(super) marks: [Vec<(u32, u32)>; 4],
    /// How many rounds have begun, and the numbers of those under way: the last one of each lane.
    rounds: u32,
    under_way: [Option<u32>; 2],
    /// The number of the round whose accesses are noted.
    round: u32,
    /// Where Send starts in Recv, if the call is in place.
    pub(super) in_place: Option<u64>,
    /// Units of Send.
    pub(super) send_units: u64,
}

impl RankMemory {
    pub(super) fn new(op: usize, algorithm: &Algorithm, shape: &Shape, in_place: bool) -> RankMemory {
        let kind = algorithm.kind;
        let [send, recv] = shape.extents();
        let in_place = shape.in_place_at().filter(|_| in_place);
        let given = |units: u64| (0..units).map(|unit| Value::leaf(op, shape.rank, unit)).collect::<Vec<_>>();
        let mut cells = [
            if in_place.is_some() { vec![] } else { given(send) },
            vec![Value::UNDEFINED; recv.max(in_place.map_or(0, |at| at + send)) as usize],
            vec![Value::UNDEFINED; algorithm.temp(shape) as usize],
        ];
        if let Some(at) = in_place {
            cells[1][at as usize..(at + send) as usize].copy_from_slice(&given(send));
        }
        if kind == Kind::Bcast && shape.rank == shape.root {
            cells[1] = given(recv);
        }
        let marked = |i: usize| cells.get(i).map_or(shape.scratch as usize, Vec::len);
        let marks = std::array::from_fn(|i| vec![(0, 0); marked(i)]);
        RankMemory { cells, marks, rounds: 0, under_way: [None; 2], round: 0, in_place, send_units: send }
    }

    /// A round begins.
    pub(super) fn begin(&mut self, lane: Lane) {
        self.rounds += 1;
        self.round = self.rounds;
        self.under_way[lane.index] = Some(self.round);
        if !lane.beside {
            self.under_way[1 - lane.index] = None;
        }
    }

    /// The buffer and the cells of a span.
    pub(super) fn locate(&self, span: Span) -> Result<(usize, std::ops::Range<usize>), String> {
        let (buf, at) = match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (1, start + span.at),
            (buf, _) => (buf as usize, span.at),
        };
        let room = if span.buf == Buf::Send { self.send_units } else { self.marks[buf].len() as u64 };
        if span.len == 0 {
            return Ok((buf, 0..0));
        }
        if span.at + span.len > room {
            return Err(format!("{span:?} is outside the buffer of {room} units"));
        }
        Ok((buf, at as usize..(at + span.len) as usize))
    }

    /// Notes an access in the present round, and finds one that is forbidden beside another one, in this round or in that of the
    /// other lane which is under way.
    pub(super) fn mark(&mut self, span: Span, write: bool) -> Result<(), String> {
        if write && span.buf == Buf::Send && span.len > 0 {
            return Err(format!("{span:?} is the user's, and written to"));
        }
        let (buf, range) = self.locate(span)?;
        let under_way = self.under_way;
        let now = |round: u32| under_way.contains(&Some(round));
        for (read, written) in &mut self.marks[buf][range] {
            if now(*written) || (write && now(*read)) {
                return Err(format!("{span:?} is accessed by two steps of one round"));
            }
            *(if write { written } else { read }) = self.round;
        }
        Ok(())
    }

    pub(super) fn read(&self, span: Span) -> Vec<Value> {
        self.locate(span).map(|(buf, range)| self.cells[buf][range].to_vec()).unwrap_or_default()
    }

    pub(super) fn write(&mut self, span: Span, values: &[Value]) {
        if let Ok((buf, range)) = self.locate(span) {
            self.cells[buf][range].copy_from_slice(values);
        }
    }

    /// Writes incoming values, or the result of combining them.
    pub(super) fn take(&mut self, into: Span, values: Vec<Value>, merge: Option<Merge>) {
        let Some(merge) = merge else { return self.write(into, &values) };
        let with = self.read(merge.with);
        let combined = values.into_iter().zip(with).map(|(came, with)| match merge.side {
            Side::Left | Side::Any => came.joined(with),
            Side::Right => with.joined(came),
        });
        self.write(into, &combined.collect::<Vec<_>>());
    }

    /// Notes the accesses of a combination.
    pub(super) fn mark_merge(&mut self, merge: Merge) -> Result<(), String> {
        // If both ranges are the same cells, also because Send is in place, that is one access.
        if self.locate(merge.with)? != self.locate(merge.into)? {
            self.mark(merge.with, false)?;
        }
        self.mark(merge.into, true)
    }
}

/// For each rank, the vectors of the ranks combined in order up to that rank; a second group begins anew.
pub(super) fn prefixes(kind: Kind, op: usize, shapes: &[Shape]) -> Vec<Value> {
    if !kind.reduces() {
        return vec![];
    }
    let units = shapes.iter().map(|shape| shape.extents()[0]).max().unwrap_or(0);
    let mut all: Vec<Value> = (0..units).map(|unit| Value::leaf(op, 0, unit)).collect();
    for rank in 1..shapes.len() {
        for unit in 0..units as usize {
            let below = all[(rank - 1) * units as usize + unit];
            let own = Value::leaf(op, rank as u32, unit as u64);
            all.push(if rank as u32 == shapes[rank].split { own } else { below.joined(own) });
        }
    }
    all
}
