//! Incoming data: where they land, and how they are combined with what is there.

use banyan_datatype::op::reduce;
use banyan_datatype::{Data, TypeArc};
use banyan_memory::Buffer;

use super::{ExecutionState, Job, StepState, Tried};
use crate::view::{Range, elements};
use crate::{Buf, Fault, Merge, Op, Side, Span, Step};

/// Where the elements are that a rank has received.
pub(super) enum Incoming {
    /// Where the result belongs.
    InPlace,
    /// In memory of this execution.
    Landed(Buffer),
    /// In shared memory, which must not be written.
    ReadOnly(Buffer),
}

impl ExecutionState {
    /// Where incoming data go first, and the memory for that if it is not where they belong.
    pub(super) fn landing(&mut self, into: Span, merge: Option<Merge>) -> (Data, Option<Buffer>) {
        if let Some(merge) = merge.filter(|merge| !self.direct(merge)) {
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
    pub(super) fn direct(&self, merge: &Merge) -> bool {
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
    pub(super) fn merge(&mut self, index: usize, merge: Merge, incoming: Incoming) -> Result<Tried, Fault> {
        let (with, into, count) = (self.elements(merge.with), self.elements(merge.into), merge.into.len);
        let (input, landing) = match incoming {
            Incoming::InPlace => return self.combine(index, with, into, count, None),
            Incoming::Landed(landing) => (landing.clone(), Some(landing)),
            Incoming::ReadOnly(shared) => (shared, None),
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

    /// `inout = input op inout`, at once, or as a job of the owner's if the function is the user's. `landing` is kept until that
    /// is done.
    pub(super) fn combine(
        &mut self,
        index: usize,
        input: Buffer,
        inout: Buffer,
        count: u64,
        landing: Option<Buffer>,
    ) -> Result<Tried, Fault> {
        let Some((op, ty)) = &self.op else { unreachable!("a collective that reduces has an operation") };
        match op {
            Op::Builtin(op) => {
                let done = reduce(*op, ty, &input, &inout, count);
                done.map_err(|error| Fault::Operator(error.to_string()))?;
                self.combined(index, landing);
                Ok(Tried::Over)
            }
            Op::User { fun, .. } => {
                let job = Job { fun: fun.clone(), ty: ty.clone(), input, inout, count };
                self.work.change(index, StepState::AwaitUserOp(landing));
                Ok(Tried::Job(job))
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

    pub(super) fn copy(&mut self, from: Span, into: Span) {
        if self.in_place.is_some() && from.buf == Buf::Send && into.buf == Buf::Recv {
            return;
        }
        let ((from, from_range), (into, into_range)) = (self.range(from), self.range(into));
        self.views[from].copy(from_range, &self.views[into], into_range, &mut self.work.spare);
    }

    /// The index of the view that a span is in, and the unit where it starts there.
    pub(super) fn at(&self, span: Span) -> (usize, u64) {
        match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (Buf::Recv as usize, start + span.at),
            (Buf::SharedScratch, _) => {
                (Buf::SharedScratch as usize, self.cursor.seqs.allotment.at(span.at, &self.shape.cut()))
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
