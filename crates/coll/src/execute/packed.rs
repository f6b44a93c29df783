//! Operands of any kind, in an [`ExecutionState`]: what a step cannot use as it lies is packed on the way, and functions of the
//! user's run outside.

use banyan_datatype::op::reduce;
use banyan_datatype::{Data, TypeArc};
use banyan_memory::Buffer;

use super::step::{Operands, Tried};
use super::{ExecutionState, StepState, UserReduction};
use crate::view::{Range, elements};
use crate::{Buf, Fault, Merge, Op, SharedBuffers, Side, Span, Step};

/// Where the elements are that a rank has received.
pub(super) enum Incoming {
    /// Where the result belongs.
    InPlace,
    /// In memory of this execution.
    Landed(Buffer),
    /// In memory of the device that carries the step out.
    OnDevice(Buffer),
    /// In shared memory, which must not be written.
    ReadOnly(Buffer),
}

/// The operands of an execution, at one step of its round.
pub(super) struct Packed<'a> {
    pub(super) state: &'a mut ExecutionState,
    pub(super) index: usize,
}

impl Operands for Packed<'_> {
    type Range = Span;
    type UserReduction = UserReduction;

    fn bytes(&self, units: u64) -> u64 {
        units * self.state.shape.unit
    }

    fn units(range: Span) -> u64 {
        range.len
    }

    fn publish(&mut self, from: Span, seq: u64, shared: &mut impl SharedBuffers) {
        if let Some(direct) = self.state.direct(from) {
            return shared.publish(seq, &direct, direct.lo(), direct.len());
        }
        let stage = self.state.packed(from);
        shared.publish(seq, &stage, 0, self.bytes(from.len) as usize);
        self.state.work.spare.give(stage);
    }

    fn expose(&mut self, from: Span, seq: u64, shared: &mut impl SharedBuffers) {
        if let Some(direct) = self.state.direct(from) {
            return shared.expose(seq, &direct);
        }
        let stage = self.state.packed(from);
        shared.expose(seq, &stage.slice(0, self.bytes(from.len) as usize));
        // It stays exposed to the end.
        self.state.work.kept.push(stage);
    }

    fn pack(&mut self, from: Span, into: &Buffer) {
        let (view, range) = self.state.range(from);
        self.state.views[view].pack(range, into);
    }

    fn unpack(&mut self, into: Span, from: &Buffer, at: isize) {
        let (view, range) = self.state.range(into);
        let bytes = self.bytes(into.len) as usize;
        self.state.views[view].unpack(range, &from.slice(from.lo() + at, bytes));
    }

    fn get(&mut self, (rank, seq, at): (u32, u64, u64), into: Span, shared: &mut impl SharedBuffers) -> bool {
        self.fetch(into, |whole| shared.get(rank, seq, at, whole))
    }

    fn offer(&mut self, (range, gives): (Span, bool), seq: u64, at: u64, shared: &mut impl SharedBuffers) {
        if let Some(direct) = self.state.direct(range) {
            return shared.offer(seq, at, &direct);
        }
        let len = self.bytes(range.len);
        let stage = if gives { self.state.packed(range) } else { self.state.work.spare.take(len) };
        shared.offer(seq, at, &stage.slice(0, len as usize));
        match gives {
            true => self.state.work.kept.push(stage),
            false => self.state.work.offered.push((range, stage)),
        }
    }

    fn take(
        &mut self,
        (rank, seq, at): (u32, u64, u64),
        into: Span,
        shared: &mut impl SharedBuffers,
    ) -> bool {
        self.fetch(into, |whole| shared.take(rank, seq, at, whole))
    }

    fn put(&mut self, (rank, seq, at): (u32, u64, Option<u64>), from: Span, shared: &mut impl SharedBuffers) {
        if let Some(direct) = self.state.direct(from) {
            return shared.put(rank, seq, at, &direct);
        }
        let stage = self.state.packed(from);
        shared.put(rank, seq, at, &stage.slice(0, self.bytes(from.len) as usize));
        self.state.work.spare.give(stage);
    }

    fn landed(&mut self, into: Span) {
        let offered = &mut self.state.work.offered;
        let Some(index) = offered.iter().position(|(span, _)| *span == into) else { return };
        let (_, stage) = offered.swap_remove(index);
        self.unpack(into, &stage, 0);
        self.state.work.spare.give(stage);
    }

    fn get_reduce(
        &mut self,
        inline: Option<&Buffer>,
        (rank, seq, at): (u32, u64, u64),
        merge: Merge,
        shared: &mut impl SharedBuffers,
    ) -> Result<Tried<UserReduction>, Fault> {
        let (state, index) = (&mut *self.state, self.index);
        let (unit, count) = (state.shape.unit, merge.into.len);
        let builtin = matches!(state.op, Some((Op::Builtin(_), _)));
        let whole_units = builtin && state.element_type().is_dense() && !state.lands_right(&merge);
        match inline {
            // Straight out of shared memory; but that is not shown to a user's function.
            Some(inline) if whole_units => {
                let here = inline.slice(inline.lo() + at as isize, (count * unit) as usize);
                state.merge(index, merge, Incoming::ReadOnly(here))
            }
            // In pieces that stay in the cache between copy and reduction.
            None if whole_units => {
                let piece = (PIECE / unit).max(1);
                for first in (0..count).step_by(piece as usize) {
                    let part =
                        |span: Span| Span { at: span.at + first, len: piece.min(count - first), ..span };
                    let merge = Merge { with: part(merge.with), into: part(merge.into), ..merge };
                    let came = state.bring(None, (rank, seq, at + first * unit), &merge, shared)?;
                    state.merge(index, merge, came)?;
                }
                Ok(Tried::Over)
            }
            inline => {
                let came = state.bring(inline, (rank, seq, at), &merge, shared)?;
                state.merge(index, merge, came)
            }
        }
    }

    fn copy(&mut self, from: Span, into: Span) -> Tried<UserReduction> {
        if !self.state.is_on_device(self.index) {
            return self.state.copy_beside_messages(self.index, from, into);
        }
        self.state.copy_on_device(self.index, from, into);
        Tried::Over
    }

    fn reduce(&mut self, from: Span, into: Span) -> Result<Tried<UserReduction>, Fault> {
        if self.state.is_on_device(self.index) {
            self.state.reduce_on_device(self.index, from, into);
            return Ok(Tried::NotYet);
        }
        let (input, inout) = (self.state.elements(from), self.state.elements(into));
        self.state.combine(self.index, input, inout, into.len, None)
    }
}

impl Packed<'_> {
    /// Copies to a range what `get` copies to a buffer as long, if it does.
    fn fetch(&mut self, into: Span, get: impl FnOnce(&Buffer) -> bool) -> bool {
        if let Some(direct) = self.state.direct(into) {
            return get(&direct);
        }
        let stage = self.state.work.spare.take(self.bytes(into.len));
        let got = get(&stage.slice(0, self.bytes(into.len) as usize));
        if got {
            self.unpack(into, &stage, 0);
        }
        self.state.work.spare.give(stage);
        got
    }
}

/// Bytes got and reduced at a time.
pub(super) const PIECE: u64 = 1 << 16;

impl ExecutionState {
    /// The memory of a range, if its packed bytes lie there in one piece.
    pub(crate) fn direct(&self, span: Span) -> Option<Buffer> {
        let (view, range) = self.range(span);
        self.views[view].data(range).and_then(|data| data.contiguous())
    }

    /// A copy of the packed bytes of a range.
    fn packed(&mut self, span: Span) -> Buffer {
        let (view, range) = self.range(span);
        let stage = self.work.spare.take(span.len * self.shape.unit);
        self.views[view].pack(range, &stage);
        stage
    }

    /// Copies what a rank published, packed bytes from `at` on, to where it is combined.
    fn bring(
        &mut self,
        inline: Option<&Buffer>,
        (rank, seq, at): (u32, u64, u64),
        merge: &Merge,
        shared: &mut impl SharedBuffers,
    ) -> Result<Incoming, Fault> {
        let (place, landing) = self.landing(merge.into, Some(*merge));
        let bytes = merge.into.len * self.shape.unit;
        let refused = Fault::Unreadable { rank };
        if let Some(inline) = inline {
            place.copy_from(&Data::bytes(inline.slice(inline.lo() + at as isize, bytes as usize)));
        } else if let Some(memory) = place.contiguous() {
            if !shared.get(rank, seq, at, &memory) {
                return Err(refused);
            }
        } else {
            let stage = self.work.spare.take(bytes);
            let packed = stage.slice(0, bytes as usize);
            if !shared.get(rank, seq, at, &packed) {
                return Err(refused);
            }
            place.copy_from(&Data::bytes(packed));
            self.work.spare.give(stage);
        }
        Ok(landing.map_or(Incoming::InPlace, Incoming::Landed))
    }

    /// Where incoming data go first, and the memory for that if it is not where they belong.
    pub(super) fn landing(&mut self, into: Span, merge: Option<Merge>) -> (Data, Option<Buffer>) {
        if let Some(merge) = merge.filter(|merge| !self.lands_in_place(merge)) {
            let (ty, count) = (self.element_type().clone(), merge.into.len);
            let landing = elements(count, &ty, &mut self.work.spare);
            return (Data::typed(landing.clone(), count, &ty), Some(landing));
        }
        let (buf, range) = self.range(into);
        match self.views[buf].data(range) {
            Some(data) => (data, None),
            None => {
                let stage = self.work.spare.take(range.1);
                (Data::bytes(stage.slice(0, range.1 as usize)), Some(stage))
            }
        }
    }

    /// True if the incoming data can be received where the result belongs, and be combined there.
    pub(super) fn lands_in_place(&self, merge: &Merge) -> bool {
        merge.side != Side::Left && !self.onto_itself(merge)
    }

    /// True if the result replaces the operand that the incoming data are combined with.
    pub(super) fn onto_itself(&self, merge: &Merge) -> bool {
        self.at(merge.with) == self.at(merge.into)
    }

    pub(super) fn element_type(&self) -> &TypeArc {
        match &self.op {
            Some((_, ty)) => ty,
            None => unreachable!("a collective that reduces has an operation"),
        }
    }

    /// Combines incoming elements with those at this rank.
    pub(super) fn merge(
        &mut self,
        index: usize,
        merge: Merge,
        incoming: Incoming,
    ) -> Result<Tried<UserReduction>, Fault> {
        if self.is_on_device(index) {
            self.merge_on_device(index, merge, incoming);
            return Ok(Tried::NotYet);
        }
        let (with, into, count) = (self.elements(merge.with), self.elements(merge.into), merge.into.len);
        let (input, landing) = match incoming {
            Incoming::InPlace => return self.combine(index, with, into, count, None),
            Incoming::Landed(landing) => (landing.clone(), Some(landing)),
            Incoming::ReadOnly(shared) => (shared, None),
            Incoming::OnDevice(_) => unreachable!("the host carries the step out"),
        };
        if self.lands_right(&merge) {
            return self.combine(index, with, input, count, landing);
        }
        if !self.onto_itself(&merge) {
            self.copy(merge.with, merge.into);
        }
        self.combine(index, input, into, count, landing)
    }

    /// True if the result is computed where the incoming data landed, and must be copied from there to where it belongs.
    pub(super) fn lands_right(&self, merge: &Merge) -> bool {
        merge.side == Side::Right && self.onto_itself(merge)
    }

    /// `inout = input op inout`, at once, or by the owner if the function is the user's. `landing` is kept until that
    /// is done.
    pub(super) fn combine(
        &mut self,
        index: usize,
        input: Buffer,
        inout: Buffer,
        count: u64,
        landing: Option<Buffer>,
    ) -> Result<Tried<UserReduction>, Fault> {
        let Some((op, ty)) = &self.op else { unreachable!("a collective that reduces has an operation") };
        match op {
            Op::Builtin(op) => {
                let done = reduce(*op, ty, &input, &inout, count);
                done.map_err(|error| Fault::Operator(error.to_string()))?;
                self.combined(index, landing);
                Ok(Tried::Over)
            }
            Op::User { fun, .. } => {
                let reduction = UserReduction { fun: fun.clone(), ty: ty.clone(), input, inout, count };
                self.work.change(index, StepState::AwaitUserOp(landing));
                Ok(Tried::UserReduction(reduction))
            }
        }
    }

    /// Called after a reduction: copies the result out of `landing` if it is there, and gives that memory back.
    pub(super) fn combined(&mut self, index: usize, landing: Option<Buffer>) {
        let Some(landing) = landing else { return };
        let merge = match self.work.round.steps[index] {
            Step::RecvReduce { merge, .. } | Step::GetReduce { merge, .. } => Some(merge),
            _ => None,
        };
        if let Some(merge) = merge.filter(|merge| self.lands_right(merge)) {
            let result = Data::typed(landing.clone(), merge.into.len, self.element_type());
            let (buf, range) = self.range(merge.into);
            if let Some(data) = self.views[buf].data(range) {
                data.copy_from(&result);
            }
        }
        self.work.spare.give(landing);
    }

    /// True if what is to be copied is there already.
    pub(super) fn is_in_place(&self, from: Span, into: Span) -> bool {
        self.in_place.is_some() && from.buf == Buf::Send && into.buf == Buf::Recv
    }

    pub(super) fn copy(&mut self, from: Span, into: Span) {
        if self.is_in_place(from, into) {
            return;
        }
        let ((from, from_range), (into, into_range)) = (self.range(from), self.range(into));
        self.views[from].copy(from_range, &self.views[into], into_range, &mut self.work.spare);
    }

    /// The index of the view that a span is in, and the unit where it starts there.
    pub(crate) fn at(&self, span: Span) -> (usize, u64) {
        match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (Buf::Recv as usize, start + span.at),
            (Buf::SharedScratch, _) => {
                (Buf::SharedScratch as usize, self.cursor.allotment.at(span.at, &self.cut))
            }
            (buf, _) => (buf as usize, span.at),
        }
    }

    pub(super) fn range(&self, span: Span) -> (usize, Range) {
        let (view, at) = self.at(span);
        (view, (at, span.len))
    }

    pub(super) fn elements(&self, span: Span) -> Buffer {
        let (view, at) = self.at(span);
        self.views[view].elements(at)
    }
}
