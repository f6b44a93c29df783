//! The straight-line interpreter: the same schedules, for few bytes in one piece that go through shared slots.
//!
//! Nothing here needs packing, a message or a user's function, and steps are over in the order in which they
//! stand, so none needs a state. What a barrier or an 8-byte allreduce costs is decided here.

use banyan_datatype::op::reduce;
use banyan_memory::Buffer;

use super::{Advance, Running};
use crate::place::Place;
use crate::{Call, Case, Fault, Form, Kind, Memory, Messenger, Needs, Op, Published, Slots, Span, Step};

/// What the choice of an algorithm depends on, if the call may be carried out here: its elements lie in memory
/// as they are packed.
pub(crate) fn case(call: &Call, ranks: u32) -> Option<Case> {
    let main = match call.kind {
        Kind::Barrier => return Some(Case { bytes: 0.0, ranks }),
        Kind::Bcast => &call.recv,
        Kind::Reduce | Kind::Allreduce if matches!(call.send, Memory::InPlace) => &call.recv,
        Kind::Reduce | Kind::Allreduce => &call.send,
        _ => return None,
    };
    let dense = |memory: &Memory| match memory {
        Memory::Uniform { count, ty, .. } if ty.is_dense() && ty.size() > 0 => Some(count * ty.size()),
        _ => None,
    };
    let bytes = dense(main)?;
    let builtin = matches!(call.op, None | Some(Op::Builtin(_)));
    let recv = matches!(call.recv, Memory::Nothing) || dense(&call.recv) == Some(bytes);
    (builtin && recv).then_some(Case { bytes: bytes as f64, ranks })
}

impl Running {
    /// Takes over a call that has a [`case`], if the choice fell on an algorithm that needs inline slots.
    pub(crate) fn flatten(&mut self, call: Call, rank: u32, ranks: u32) {
        debug_assert_eq!(self.algorithm.needs, Needs::Inline);
        let (reduces, shape) = (call.op.is_some(), &mut self.shape);
        (shape.rank, shape.ranks, shape.root) = (rank, ranks, call.root);
        shape.commutative = call.op.as_ref().is_none_or(|op| op.commutative());
        self.in_place = matches!(call.send, Memory::InPlace).then_some(0);
        let (mut element, sides) = (None, [call.send, call.recv]);
        for (memory, place) in sides.into_iter().zip(&mut self.places) {
            if let Memory::Uniform { base, count, ty } = memory {
                let bytes = count * ty.size();
                (shape.unit, shape.len) = if reduces { (ty.size(), count) } else { (1, bytes) };
                *place = Place::Bytes(base.slice(0, bytes as usize));
                element = Some(ty);
            }
        }
        self.op = call.op.zip(element);
        self.flat = true;
    }

    /// Goes as far as possible without waiting.
    pub(super) fn advance_flat(&mut self, io: &mut impl Messenger) -> Advance {
        let Some(slots) = io.slots() else { unreachable!("shared forms are chosen with slots") };
        if slots.released(self.shape.rank) + 1 < self.stamp {
            return Advance::Pending;
        }
        loop {
            while self.work.first < self.work.round.steps.len() {
                match self.straight(self.work.round.steps[self.work.first], slots) {
                    Ok(true) => self.work.first += 1,
                    Ok(false) => return Advance::Pending,
                    Err(fault) => {
                        slots.release(self.stamp + u64::from(self.algorithm.phases) - 1);
                        self.over = Some(Err(fault.clone()));
                        return Advance::Done(Err(fault));
                    }
                }
            }
            if self.next == self.rounds {
                self.over = Some(Ok(()));
                return Advance::Done(Ok(()));
            }
            self.work.round.begin(self.next);
            (self.algorithm.round)(&self.shape, self.next, &mut self.work.round);
            self.work.first = 0;
            self.next += 1;
        }
    }

    /// Carries a step out; false if it cannot be now.
    fn straight(&mut self, step: Step, slots: &mut dyn Slots) -> Result<bool, Fault> {
        let stamp = |phase: u32| self.stamp + u64::from(phase);
        match step {
            Step::Publish { from, phase, form: Form::Inline } => {
                let stamp = stamp(phase);
                let clear = self.clear(stamp, slots);
                if clear {
                    slots.publish(stamp, &self.piece(from));
                }
                Ok(clear)
            }
            Step::Await { rank, phase } => Ok(self.look(rank, stamp(phase), slots).is_some()),
            Step::Pull { rank, phase, at, into } => {
                let Some(from) = self.shown(rank, stamp(phase), at, into.len, slots)? else {
                    return Ok(false);
                };
                self.piece(into).copy_from(0, &from, 0, from.len());
                Ok(true)
            }
            Step::PullReduce { rank, phase, at, merge } => {
                let Some(from) = self.shown(rank, stamp(phase), at, merge.into.len, slots)? else {
                    return Ok(false);
                };
                debug_assert_eq!(merge.with, merge.into);
                let Some((Op::Builtin(op), ty)) = &self.op else {
                    unreachable!("a collective that reduces has an operation")
                };
                let done = reduce(*op, ty, &from, &self.piece(merge.into), merge.into.len);
                done.map_err(|error| Fault::Operator(error.to_string()))?;
                Ok(true)
            }
            Step::Release { phase } => {
                slots.release(stamp(phase));
                Ok(true)
            }
            Step::Drain { rank, phase } => Ok(slots.released(rank) >= stamp(phase)),
            step => unreachable!("{step:?} in an algorithm that needs nothing but inline slots"),
        }
    }

    fn piece(&self, span: Span) -> Buffer {
        let ((place, at), unit) = (self.at(span), self.shape.unit);
        match &self.places[place] {
            Place::Bytes(buffer) => buffer.slice((at * unit) as isize, (span.len * unit) as usize),
            _ => Buffer::empty(),
        }
    }

    /// The part of what a rank published that a step wants; `None` before it has.
    fn shown(
        &mut self,
        rank: u32,
        stamp: u64,
        at: u64,
        len: u64,
        slots: &mut dyn Slots,
    ) -> Result<Option<Buffer>, Fault> {
        let Some(published) = self.look(rank, stamp, slots) else { return Ok(None) };
        let (at, len) = (at * self.shape.unit, len * self.shape.unit);
        match published {
            Published::Inline(buffer) if buffer.len() as u64 >= at + len => {
                Ok(Some(buffer.slice(buffer.lo() + at as isize, len as usize)))
            }
            Published::Inline(buffer) => {
                Err(Fault::Length { from: rank, sent: buffer.len() as u64, room: at + len })
            }
            Published::Region(sent) => Err(Fault::Length { from: rank, sent, room: at + len }),
        }
    }
}
