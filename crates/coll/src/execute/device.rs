//! Steps that a device carries out on its own memory: reductions by its kernels, and copies within it, to it and from it. Such a step
//! fetches nothing that the device has, and writes nothing back.

use banyan_datatype::device::{Copies, Reduction};
use banyan_datatype::op::{Builtin, reduce};
use banyan_datatype::{Data, TypeArc};
use banyan_memory::{Buffer, Copying, HeapBuffer, Scratch};

use super::ExecutionState;
use super::packed::{Incoming, PIECE};
use crate::view::{View, elements};
use crate::{Buf, Merge, Messenger, Op, Side, Span, Step};

/// A step that a device carries out.
#[derive(Debug, Default)]
pub(super) struct OnDevice {
    merges: Vec<Merging>,
    copies: Vec<Copies>,
    /// Memory of the device for operands that are not there, and how much of it is taken.
    scratch: Option<Scratch>,
    taken: usize,
}

/// A reduction: `out[i] = a[i] op b[i]`.
#[derive(Debug)]
struct Merging {
    /// The copies that bring operands to the device.
    brought: Vec<Copies>,
    running: Option<Copying>,
    /// `a`, `b` and `out`.
    memory: [Buffer; 3],
    count: u64,
    /// Where an operand landed.
    landing: Option<Buffer>,
}

/// What elements are combined by.
type Operation<'a> = (&'a mut Option<Reduction>, Builtin, &'a TypeArc);

/// Bytes from the first of so many elements to the end of the last one.
fn reach(ty: &TypeArc, count: u64) -> usize {
    ty.span(count).map_or(0, |span| span.hi as usize)
}

/// Operands begin at multiples of this in scratch memory, in bytes.
const ALIGN: usize = 16;

/// True once all copies are over.
pub(super) fn are_over(copies: &mut Vec<Copies>) -> bool {
    copies.retain_mut(|copy| !copy.are_over());
    copies.is_empty()
}

impl OnDevice {
    /// True once the device has something to do, or has done it.
    pub(super) fn has_begun(&self) -> bool {
        !self.merges.is_empty() || !self.copies.is_empty()
    }

    /// Goes on; true once all is over.
    pub(super) fn is_over(&mut self, operation: Option<Operation<'_>>) -> bool {
        let mut over = are_over(&mut self.copies);
        if let Some((reduction, op, ty)) = operation {
            for merging in &mut self.merges {
                over &= merging.is_over((&mut *reduction, op, ty));
            }
        }
        over
    }

    /// The memory in which operands landed, when all is over.
    pub(super) fn landings(&mut self) -> impl Iterator<Item = Buffer> {
        self.merges.drain(..).filter_map(|merging| merging.landing)
    }

    /// The next `len` bytes of scratch memory.
    fn take(&mut self, len: usize) -> Buffer {
        let Some(scratch) = &self.scratch else {
            unreachable!("there is scratch memory for what is not on the device")
        };
        let at = self.taken;
        self.taken += len.next_multiple_of(ALIGN);
        scratch.memory().slice(at as isize, len)
    }
}

impl Merging {
    fn is_over(&mut self, (reduction, op, ty): Operation<'_>) -> bool {
        if let Some(running) = &self.running {
            return running.is_over();
        }
        if !are_over(&mut self.brought) {
            return false;
        }
        let [a, b, out] = &self.memory;
        match reduction.as_ref().map(|reduction| reduction.start([a, b, out], self.count)) {
            Some(Ok(running)) => self.running.insert(running).is_over(),
            // The device runs no kernels: it is not asked again.
            Some(Err(_)) | None => {
                *reduction = None;
                self.by_host(op, ty);
                true
            }
        }
    }

    fn by_host(&self, op: Builtin, ty: &TypeArc) {
        let ([a, b, out], count) = (&self.memory, self.count);
        let data = |memory: &Buffer| Data::typed(memory.clone(), count, ty);
        let here = data(&HeapBuffer::zeroed(reach(ty, count)));
        here.copy_from(&data(b));
        let reduced = reduce(op, ty, a, here.buffer(), count);
        reduced.unwrap_or_else(|error| unreachable!("the device was to do it: {error}"));
        data(out).copy_from(&here);
    }
}

impl ExecutionState {
    /// What a step begins with that a device carries out; `None` if it is the host's.
    pub(super) fn on_device(&self, step: &Step) -> Option<OnDevice> {
        let (into, host) = match *step {
            Step::Copy { from, into } => return self.copies_on_device(from, into).then(OnDevice::default),
            Step::Reduce { from, into } => (into, [Some(from), None]),
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => {
                (merge.into, [Some(merge.with), None])
            }
            _ => return None,
        };
        let reduction = self.mirror.as_ref()?.reduction.as_ref()?;
        let out = self.operand(into).filter(|_| into.len > 0)?.elements(self.at(into).1);
        let operands =
            host.into_iter().flatten().map(|span| Some(self.operand(span)?.elements(self.at(span).1)));
        let operands: Vec<Option<Buffer>> = operands.collect();
        if operands.iter().flatten().any(|operand| !operand.shares_device(&out)) {
            return None;
        }
        // What comes from elsewhere is on the host, in pieces perhaps.
        let incoming = usize::from(!matches!(step, Step::Reduce { .. }));
        let from_host = incoming + operands.iter().filter(|operand| operand.is_none()).count();
        let all = reduction.reach(into.len) + ALIGN;
        let len = (all + all.div_ceil(PIECE as usize) * ALIGN) * from_host;
        // Without room the step is the host's.
        let scratch = if from_host > 0 { Some(Scratch::beside(&out, len).ok()?) } else { None };
        Some(OnDevice { scratch, ..OnDevice::default() })
    }

    /// True if a step is a message that goes from or to the memory of a device itself, and had better do so.
    pub(super) fn may_be_direct(&self, step: &Step, io: &mut impl Messenger) -> bool {
        let (rank, span) = match *step {
            Step::Send { to, from, .. } => (to, from),
            Step::Recv { from, into, .. } => (from, into),
            _ => return false,
        };
        let lies_there = self.operand(span).is_some_and(|operand| operand.data(self.range(span).1).is_some());
        lies_there && io.moves_devices(rank, span.len * self.shape.unit)
    }

    /// Where elements land that a device combines with others: in its own memory, if they had better come there.
    pub(super) fn landing_on_device(
        &mut self,
        index: usize,
        (from, into): (u32, Span),
        io: &mut impl Messenger,
    ) -> Option<Buffer> {
        let moves = self.is_on_device(index) && io.moves_devices(from, into.len * self.shape.unit);
        let reach = moves.then(|| reach(self.element_type(), into.len))?;
        Some(self.under_way(index).take(reach))
    }

    /// The operand of a device that a span lies in.
    fn operand(&self, span: Span) -> Option<&View> {
        let operand = self.mirror.as_ref()?.operands.get(self.at(span).0);
        operand.filter(|operand| !matches!(operand, View::Nothing))
    }

    /// The memory that holds a span: a device's, or the host's.
    pub(super) fn home(&self, span: Span) -> &View {
        self.operand(span).unwrap_or(&self.views[self.at(span).0])
    }

    /// True if a copy is a device's, and can be made at once.
    fn copies_on_device(&self, from: Span, into: Span) -> bool {
        let in_one = |span: Span| self.home(span).data((self.at(span).1, span.len)).is_some();
        (self.operand(from).is_some() || self.operand(into).is_some()) && (in_one(from) || in_one(into))
    }

    pub(super) fn copy_on_device(&mut self, index: usize, from: Span, into: Span) {
        if self.in_place.is_some() && from.buf == Buf::Send && into.buf == Buf::Recv {
            return;
        }
        let (there, here) = (self.home(from), self.home(into));
        let (from, into) = ((self.at(from).1, from.len), (self.at(into).1, into.len));
        let mut copies = vec![];
        match (there.data(from), here.data(into)) {
            (Some(from), _) => {
                here.parts(into, |data, skip, at, len| copies.push(data.start_copy(skip, &from, at, len)));
            }
            (None, Some(into)) => {
                there.parts(from, |data, skip, at, len| copies.push(into.start_copy(at, data, skip, len)));
            }
            (None, None) => unreachable!("`on_device` has looked"),
        }
        self.under_way(index).copies.extend(copies);
    }

    /// Combines incoming elements, which are on the host, with those at this rank.
    pub(super) fn merge_on_device(&mut self, index: usize, merge: Merge, incoming: Incoming) {
        let count = merge.into.len;
        let (incoming, landing) = match incoming {
            Incoming::InPlace => (self.elements(merge.into), None),
            Incoming::Landed(landing) => (landing.clone(), Some(landing)),
            Incoming::OnDevice(landing) => (landing, None),
            // It may be gone before the device has read it.
            Incoming::ReadOnly(shared) => {
                let ty = self.element_type().clone();
                let landing = elements(count, &ty, &mut self.work.spare);
                Data::typed(landing.clone(), count, &ty).copy_from(&Data::bytes(shared));
                (landing.clone(), Some(landing))
            }
        };
        let with = self.home(merge.with).elements(self.at(merge.with).1);
        let operands = if merge.side == Side::Right { [with, incoming] } else { [incoming, with] };
        self.start_merging(index, operands, merge.into, landing);
    }

    pub(super) fn reduce_on_device(&mut self, index: usize, from: Span, into: Span) {
        let operands = [from, into].map(|span| self.home(span).elements(self.at(span).1));
        self.start_merging(index, operands, into, None);
    }

    fn start_merging(&mut self, index: usize, operands: [Buffer; 2], into: Span, landing: Option<Buffer>) {
        let count = into.len;
        let out = self.home(into).elements(self.at(into).1);
        let reach = reach(self.element_type(), count);
        let step = self.under_way(index);
        let mut brought = vec![];
        let [a, b] = operands.map(|operand| {
            if !operand.kind().is_host_accessible() {
                return operand;
            }
            let there = step.take(reach);
            let here = Data::bytes(operand.slice(0, reach));
            brought.push(Data::bytes(there.clone()).start_copy(0, &here, 0, reach as u64));
            there
        });
        step.merges.push(Merging { brought, running: None, memory: [a, b, out], count, landing });
    }

    /// The type and the operation, if a device may reduce.
    pub(super) fn builtin(&self) -> Option<(Builtin, TypeArc)> {
        match &self.op {
            Some((Op::Builtin(op), ty)) => Some((*op, ty.clone())),
            _ => None,
        }
    }
}
