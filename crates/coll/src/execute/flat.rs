//! The straight-line interpreter: the same schedules, for few bytes in one piece that go through shared slots.
//!
//! Nothing here needs packing, a message or a user's function, and steps are over in the order in which they
//! stand, so none needs a state, and all rounds are one list ([`Line`]) that is kept for the next call of the
//! same [`Outline`]. What a barrier or an 8-byte allreduce costs is decided here.

use std::sync::Arc;

use banyan_datatype::Datatype;
use banyan_datatype::op::{Builtin, reduce};
use banyan_memory::Buffer;

use super::{Advance, Running, Stamps};
use crate::place::Place;
use crate::{
    Algorithm, Buf, Call, Fault, Form, Kind, Memory, Messenger, Needs, Op, Published, Round, Shape, Slots,
    Span, Step,
};

/// All that can differ between the shapes of two calls of one kind here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outline {
    root: u32,
    pub(crate) unit: u64,
    pub(crate) len: u64,
    pub(crate) commutative: bool,
}

/// The steps of a whole schedule that needs nothing but inline slots; none if another kind of algorithm is
/// better for its outline.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) outline: Outline,
    pub(crate) algorithm: &'static Algorithm,
    steps: Vec<Step>,
}

impl Line {
    /// Ranks up to which lists are kept: they are as long as there are ranks.
    pub(crate) const RANKS: u32 = 128;

    pub(crate) fn new(outline: Outline, algorithm: &'static Algorithm, (rank, ranks): (u32, u32)) -> Line {
        let Outline { root, unit, len, commutative } = outline;
        let shape = Shape { rank, ranks, root, unit, len, commutative, ..Shape::NOTHING };
        let (mut round, mut steps) = (Round::default(), vec![]);
        if algorithm.needs == Needs::Inline {
            for index in 0..(algorithm.rounds)(&shape) {
                round.begin(index);
                (algorithm.round)(&shape, index, &mut round);
                steps.append(&mut round.steps);
            }
        }
        Line { outline, algorithm, steps }
    }
}

/// A call that may be carried out here: its elements lie in memory as they are packed.
#[derive(Clone, Copy)]
pub(crate) struct Flat<'a> {
    pub(crate) outline: Outline,
    memory: Sides<'a>,
}

/// Where a call's elements are, and what to reduce them with.
#[derive(Clone, Copy)]
struct Sides<'a> {
    unit: u64,
    send: Option<&'a Buffer>,
    recv: Option<&'a Buffer>,
    with: Option<(Builtin, &'a Arc<Datatype>)>,
}

impl<'a> Flat<'a> {
    pub(crate) fn of(call: &'a Call) -> Option<Flat<'a>> {
        let dense = |memory: &'a Memory| match memory {
            Memory::Uniform { base, count, ty } if ty.is_dense() && ty.size() > 0 => Some((base, *count, ty)),
            _ => None,
        };
        let with = match call.op {
            None => None,
            Some(Op::Builtin(op)) => Some(op),
            Some(Op::User { .. }) => return None,
        };
        let recv = match &call.recv {
            Memory::Nothing => None,
            memory => Some(dense(memory)?),
        };
        let send = match (call.kind, &call.send) {
            (Kind::Barrier, _) => {
                let outline = Outline { root: 0, unit: 1, len: 0, commutative: true };
                return Some(Flat { outline, memory: Sides { unit: 1, send: None, recv: None, with: None } });
            }
            (Kind::Bcast, _) | (Kind::Reduce | Kind::Allreduce, Memory::InPlace) => recv?,
            (Kind::Reduce | Kind::Allreduce, memory) => dense(memory)?,
            _ => return None,
        };
        let (base, count, ty) = send;
        if recv.is_some_and(|(_, other, of)| other * of.size() != count * ty.size()) {
            return None;
        }
        let (unit, len) = if with.is_some() { (ty.size(), count) } else { (1, count * ty.size()) };
        let commutative = with.is_none_or(Builtin::is_commutative);
        let outline = Outline { root: call.root, unit, len, commutative };
        let (recv, with) = (recv.map(|side| side.0), with.map(|op| (op, ty)));
        Some(Flat { outline, memory: Sides { unit, send: Some(base), recv, with } })
    }
}

impl Sides<'_> {
    /// Goes on along the line as far as possible without waiting: true at its end.
    #[inline]
    fn walk(&self, steps: &[Step], at: &mut Begun, slots: &mut (impl Slots + ?Sized)) -> Result<bool, Fault> {
        if !at.stamps.turn(slots) {
            return Ok(false);
        }
        while let Some(step) = steps.get(at.next) {
            if !self.step(step, &mut at.stamps, slots)? {
                return Ok(false);
            }
            at.next += 1;
        }
        Ok(true)
    }

    /// Carries a step out; false if it cannot be now.
    #[inline]
    fn step(
        &self,
        step: &Step,
        stamps: &mut Stamps,
        slots: &mut (impl Slots + ?Sized),
    ) -> Result<bool, Fault> {
        match *step {
            Step::Publish { from, phase, form: Form::Inline } => {
                let stamp = stamps.of(phase);
                let clear = stamps.clear(stamp, slots);
                if clear {
                    slots.publish(stamp, &self.piece(from));
                }
                Ok(clear)
            }
            Step::Await { rank, phase } => Ok(stamps.look(rank, stamps.of(phase), slots).is_some()),
            Step::Pull { rank, phase, at, into } => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                let from = self.part(rank, published, at, into.len)?;
                self.piece(into).copy_from(0, &from, 0, from.len());
                Ok(true)
            }
            Step::PullReduce { rank, phase, at, merge } => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                let from = self.part(rank, published, at, merge.into.len)?;
                debug_assert_eq!(merge.with, merge.into);
                let Some((op, ty)) = self.with else {
                    unreachable!("a collective that reduces has an operation")
                };
                let done = reduce(op, ty, &from, &self.piece(merge.into), merge.into.len);
                done.map_err(|error| Fault::Operator(error.to_string()))?;
                Ok(true)
            }
            Step::Release { phase } => {
                slots.release(stamps.of(phase));
                Ok(true)
            }
            Step::Drain { rank, phase } => Ok(slots.released(rank) >= stamps.of(phase)),
            step => unreachable!("{step:?} in an algorithm that needs nothing but inline slots"),
        }
    }

    #[inline]
    fn piece(&self, span: Span) -> Buffer {
        let side = if span.buf == Buf::Send { self.send } else { self.recv };
        match side {
            Some(buffer) => buffer.slice((span.at * self.unit) as isize, (span.len * self.unit) as usize),
            None => Buffer::empty(),
        }
    }

    /// The part of what a rank published that a step wants.
    #[inline]
    fn part(&self, rank: u32, published: Published, at: u64, len: u64) -> Result<Buffer, Fault> {
        let (at, len) = (at * self.unit, len * self.unit);
        let sent = match published {
            Published::Inline(buffer) if buffer.len() as u64 >= at + len => {
                return Ok(buffer.slice(buffer.lo() + at as isize, len as usize));
            }
            Published::Inline(buffer) => buffer.len() as u64,
            Published::Region(sent) => sent,
        };
        Err(Fault::Length { from: rank, sent, room: at + len })
    }
}

/// How far along its line a call has come.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    next: usize,
    pub(crate) stamps: Stamps,
}

impl Begun {
    pub(crate) fn new(stamps: Stamps) -> Begun {
        Begun { next: 0, stamps }
    }

    /// Walks along a line, with so many looks after the first; `None`: it would have to wait.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        flat: &Flat<'_>,
        line: &Line,
        slots: &mut impl Slots,
        looks: u32,
    ) -> Option<Result<(), Fault>> {
        for _ in 0..=looks {
            match flat.memory.walk(&line.steps, self, slots) {
                Ok(false) => {}
                Ok(true) => return Some(Ok(())),
                Err(fault) => {
                    slots.release(self.stamps.of(line.algorithm.phases - 1));
                    return Some(Err(fault));
                }
            }
        }
        None
    }
}

impl Running {
    /// Takes over a call that is [`Flat`], and has come so far.
    pub(crate) fn flatten(&mut self, call: Call, line: &Line, begun: Begun) {
        let in_place = matches!(call.send, Memory::InPlace);
        let sides = [call.send, call.recv];
        let mut element = None;
        for (memory, place) in sides.into_iter().zip(&mut self.places) {
            if let Memory::Uniform { base, ty, .. } = memory {
                *place = Place::Bytes(base);
                element = Some(ty);
            }
        }
        self.in_place = in_place.then_some(0);
        self.op = call.op.zip(element);
        self.shape.unit = line.outline.unit;
        self.algorithm = line.algorithm;
        self.work.round.steps.clone_from(&line.steps);
        (self.flat, self.stamps, self.work.first) = (true, begun.stamps, begun.next);
    }

    /// Goes as far as possible without waiting.
    pub(super) fn advance_line(&mut self, io: &mut impl Messenger) -> Advance {
        let Some(slots) = io.slots() else { unreachable!("shared forms are chosen with slots") };
        let [send, recv] = [0, 1].map(|side| match &self.places[side] {
            Place::Bytes(buffer) => Some(buffer),
            _ => None,
        });
        let memory = Sides {
            unit: self.shape.unit,
            send: if self.in_place.is_some() { recv } else { send },
            recv,
            with: self.op.as_ref().and_then(|(op, ty)| match op {
                Op::Builtin(op) => Some((*op, ty)),
                Op::User { .. } => None,
            }),
        };
        let mut at = Begun { next: self.work.first, stamps: self.stamps };
        let walked = memory.walk(&self.work.round.steps, &mut at, slots);
        (self.work.first, self.stamps) = (at.next, at.stamps);
        let result = match walked {
            Ok(false) => return Advance::Pending,
            Ok(true) => Ok(()),
            Err(fault) => {
                slots.release(self.stamps.of(self.algorithm.phases - 1));
                Err(fault)
            }
        };
        self.over = Some(result.clone());
        Advance::Done(result)
    }
}
