//! Incoming data: where they land, and how they are combined.

use banyan_datatype::op::reduce;
use banyan_datatype::{Data, TypeArc};
use banyan_memory::Buffer;

use super::{Job, Running, State, Tried};
use crate::place::{Range, elements};
use crate::{Buf, Fault, Merge, Op, Side, Span, Step};

/// Where incoming elements are.
pub(super) enum Came {
    /// Where the result belongs.
    InPlace,
    /// In memory of this execution's.
    Landed(Buffer),
    /// In memory that must not be written.
    Seen(Buffer),
}

impl Running {
    /// Where incoming data go first, and the memory for that if it is not where they belong.
    pub(super) fn landing(&mut self, into: Span, merge: Option<Merge>) -> (Data, Option<Buffer>) {
        if let Some(merge) = merge.filter(|merge| !self.direct(merge)) {
            let (ty, count) = (self.element_type().clone(), merge.into.len);
            let landing = elements(count, &ty, &mut self.work.spare);
            return (Data::typed(landing.clone(), count, &ty), Some(landing));
        }
        let (buf, range) = self.range(into);
        match self.places[buf].data(range) {
            Some(data) => (data, None),
            None => {
                let stage = self.work.spare.take(range.1);
                (Data::bytes(stage.slice(0, range.1 as usize)), Some(stage))
            }
        }
    }

    /// What is incoming can go to the place of the result at once, and be combined there.
    pub(super) fn direct(&self, merge: &Merge) -> bool {
        merge.side != Side::Left && !self.onto_itself(merge)
    }

    pub(super) fn onto_itself(&self, merge: &Merge) -> bool {
        self.at(merge.with) == self.at(merge.into)
    }

    pub(super) fn element_type(&self) -> &TypeArc {
        match &self.op {
            Some((_, ty)) => ty,
            None => unreachable!("a collective that reduces has an operation"),
        }
    }

    /// Combines what came.
    pub(super) fn merge(&mut self, index: usize, merge: Merge, came: Came) -> Result<Tried, Fault> {
        let (with, into, count) = (self.elements(merge.with), self.elements(merge.into), merge.into.len);
        let (input, landing) = match came {
            Came::InPlace => return self.combine(index, with, into, count, None),
            Came::Landed(landing) => (landing.clone(), Some(landing)),
            Came::Seen(shared) => (shared, None),
        };
        if self.lands_right(&merge) {
            return self.combine(index, with, input, count, landing);
        }
        if !self.onto_itself(&merge) {
            self.copy(merge.with, merge.into);
        }
        self.combine(index, input, into, count, landing)
    }

    /// The result comes to be where the incoming data landed, and must go from there to its place.
    pub(super) fn lands_right(&self, merge: &Merge) -> bool {
        merge.side == Side::Right && self.onto_itself(merge)
    }

    /// `inout = input op inout`, here or by the owner. `landing` is kept until that is done.
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
                self.work.change(index, State::Combining(landing));
                Ok(Tried::Job(job))
            }
        }
    }

    /// After a reduction of what landed.
    pub(super) fn combined(&mut self, index: usize, landing: Option<Buffer>) {
        let Some(landing) = landing else { return };
        let merge = match self.work.round.steps[index] {
            Step::RecvReduce { merge, .. } | Step::PullReduce { merge, .. } => Some(merge),
            _ => None,
        };
        if let Some(merge) = merge.filter(|merge| self.lands_right(merge)) {
            let result = Data::typed(landing.clone(), merge.into.len, self.element_type());
            let (buf, range) = self.range(merge.into);
            if let Some(data) = self.places[buf].data(range) {
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
        self.places[from].copy(from_range, &self.places[into], into_range, &mut self.work.spare);
    }

    /// Which place a span is in, and where it starts there.
    pub(super) fn at(&self, span: Span) -> (usize, u64) {
        match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (Buf::Recv as usize, start + span.at),
            (Buf::Board, _) => (Buf::Board as usize, self.begun.stamps.taken.at(span.at, &self.shape.cut())),
            (buf, _) => (buf as usize, span.at),
        }
    }

    pub(super) fn range(&self, span: Span) -> (usize, Range) {
        let (place, at) = self.at(span);
        (place, (at, span.len))
    }

    pub(super) fn elements(&self, span: Span) -> Buffer {
        let (place, at) = self.at(span);
        self.places[place].elements(at)
    }
}
