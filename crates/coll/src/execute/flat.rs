//! The straight-line interpreter: the same schedules, for few bytes in one piece that go through shared slots.
//!
//! Nothing here needs packing, a message or a user's function, and steps are over in the order in which they
//! stand, so none needs a state, and all rounds are one list ([`Line`]) that is kept for the next call of the
//! same [`Outline`]. What a barrier or an 8-byte allreduce costs is decided here.

use std::sync::Arc;

use banyan_datatype::TypeArc;
use banyan_datatype::op::{Builtin, Reducer};
use banyan_memory::Buffer;

use super::{Advance, Running, Stamps};
use crate::place::Place;
use crate::{
    Algorithm, Buf, Call, Fault, Form, Kind, Memory, Merge, Messenger, Needs, Op, Published, Round, Shape,
    Slots, Step,
};

/// All that can differ between the shapes of two calls of one kind here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outline {
    root: u32,
    commutative: bool,
    unit: u64,
    len: u64,
}

impl Outline {
    pub(crate) fn bytes(&self) -> u64 {
        self.unit * self.len
    }

    pub(crate) fn commutative(&self) -> bool {
        self.commutative
    }
}

/// A step over whole vectors.
#[derive(Clone, Copy, Debug)]
enum Hop {
    Publish(u32),
    Await(u32, u32),
    Pull(u32, u32),
    Reduce(u32, u32),
    Release(u32),
    Drain(u32, u32),
}

/// The steps of a whole schedule, by rank and phase.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) outline: Outline,
    /// What was chosen.
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) phases: u32,
    /// `None` if that needs more than what can be done here.
    hops: Option<Vec<Hop>>,
}

impl Line {
    /// Ranks up to which lines are kept: they are as long as there are ranks.
    pub(crate) const RANKS: u32 = 128;

    pub(crate) fn new(outline: Outline, algorithm: &'static Algorithm, (rank, ranks): (u32, u32)) -> Line {
        let Outline { root, unit, len, commutative } = outline;
        let shape = Shape { rank, ranks, root, unit, len, commutative, ..Shape::NOTHING };
        let rounds = if algorithm.needs == Needs::Inline { (algorithm.rounds)(&shape) } else { 0 };
        let (mut round, mut hops) = (Round::default(), vec![]);
        for index in 0..rounds {
            round.begin(index);
            (algorithm.round)(&shape, index, &mut round);
            hops.extend(round.steps.iter().map(|step| hop(step, &shape)));
        }
        let hops: Option<Vec<Hop>> = hops.into_iter().collect();
        let phases = (algorithm.phases)(&shape);
        Line { outline, algorithm, phases, hops: hops.filter(|hops| !hops.is_empty()) }
    }

    pub(crate) fn can_be_walked(&self) -> bool {
        self.hops.is_some()
    }
}

/// The short form of a step, if it has one.
fn hop(step: &Step, shape: &Shape) -> Option<Hop> {
    let (send, recv) = (shape.whole(Buf::Send), shape.whole(Buf::Recv));
    // The root of a bcast publishes what others receive.
    Some(match *step {
        Step::Publish { from, phase, form: Form::Inline }
            if from == send || from == recv || from.len == 0 =>
        {
            Hop::Publish(phase)
        }
        Step::Await { rank, phase } => Hop::Await(rank, phase),
        Step::Pull { rank, phase, at: 0, into } if into == recv => Hop::Pull(rank, phase),
        Step::PullReduce { rank, phase, at: 0, merge: Merge { with, into, .. } }
            if with == recv && into == recv =>
        {
            Hop::Reduce(rank, phase)
        }
        Step::Release { phase } => Hop::Release(phase),
        Step::Drain { rank, phase } => Hop::Drain(rank, phase),
        _ => return None,
    })
}

/// A call that may be carried out here: its elements lie in memory as they are packed.
#[derive(Clone, Copy)]
pub(crate) struct Flat<'a> {
    pub(crate) outline: Outline,
    /// What is published (of a barrier: nothing).
    send: Option<&'a Buffer>,
    recv: Option<&'a Buffer>,
    with: Option<(Reducer, &'a TypeArc)>,
}

/// Elements that fill their buffer.
#[inline]
fn dense(memory: &Memory) -> Option<(&Buffer, u64, &TypeArc)> {
    match memory {
        Memory::Uniform { base, count, ty } if ty.is_dense() && ty.size() > 0 => {
            let whole = base.lo() == 0 && base.len() as u64 == count * ty.size();
            whole.then_some((base, *count, ty))
        }
        _ => None,
    }
}

impl<'a> Flat<'a> {
    #[inline]
    pub(crate) fn of(call: &'a Call) -> Option<Flat<'a>> {
        let mut outline = Outline { root: call.root, commutative: true, unit: 1, len: 0 };
        if call.kind == Kind::Barrier {
            return Some(Flat { outline, send: None, recv: None, with: None });
        }
        let recv = match &call.recv {
            Memory::Nothing => None,
            memory => Some(dense(memory)?),
        };
        let (send, count, ty) = match (call.kind, &call.send) {
            (Kind::Bcast, _) | (Kind::Reduce | Kind::Allreduce, Memory::InPlace) => recv?,
            (Kind::Reduce | Kind::Allreduce, memory) => dense(memory)?,
            _ => return None,
        };
        if recv.is_some_and(|(other, ..)| other.len() != send.len()) {
            return None;
        }
        let with = match call.op {
            None => {
                outline.len = send.len() as u64;
                None
            }
            Some(Op::Builtin(op)) => {
                (outline.unit, outline.len, outline.commutative) = (ty.size(), count, op.is_commutative());
                Some(reducer(op, ty)?)
            }
            Some(Op::User { .. }) => return None,
        };
        Some(Flat { outline, send: Some(send), recv: recv.map(|side| side.0), with })
    }

    /// What an execution is about that was [flattened](Running::flatten).
    fn again(running: &'a Running, outline: Outline) -> Flat<'a> {
        let [send, recv] = [0, 1].map(|side| match &running.places[side] {
            Place::Bytes(buffer) => Some(buffer),
            _ => None,
        });
        let with = match &running.op {
            Some((Op::Builtin(op), ty)) => reducer(*op, ty),
            _ => None,
        };
        Flat { outline, send: send.or(recv), recv, with }
    }

    /// Carries a step out; false if it cannot be now.
    #[inline]
    fn step(&self, hop: Hop, stamps: &mut Stamps, slots: &mut (impl Slots + ?Sized)) -> Result<bool, Fault> {
        match hop {
            Hop::Publish(phase) => {
                let stamp = stamps.of(phase);
                let clear = stamps.clear(stamp, slots);
                if clear {
                    slots.publish(stamp, self.send.unwrap_or(&Buffer::empty()));
                }
                Ok(clear)
            }
            Hop::Await(rank, phase) => Ok(stamps.look(rank, stamps.of(phase), slots).is_some()),
            Hop::Pull(rank, phase) => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                if let Some(recv) = self.recv {
                    let from = whole(published, rank, recv.len())?;
                    recv.copy_from(0, &from, 0, recv.len());
                }
                Ok(true)
            }
            Hop::Reduce(rank, phase) => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                if let (Some(recv), Some((reducer, ty))) = (self.recv, self.with) {
                    let from = whole(published, rank, recv.len())?;
                    let done = reducer.reduce(ty, &from, recv, self.outline.len);
                    done.map_err(|error| Fault::Operator(error.to_string()))?;
                }
                Ok(true)
            }
            Hop::Release(phase) => {
                slots.release(stamps.of(phase));
                Ok(true)
            }
            Hop::Drain(rank, phase) => Ok(slots.released(rank) >= stamps.of(phase)),
        }
    }
}

#[inline]
fn reducer(op: Builtin, ty: &TypeArc) -> Option<(Reducer, &TypeArc)> {
    // If it is not defined, the error comes from where all of them come from.
    Some((Reducer::find(op, ty).ok()?, ty))
}

/// Inline bytes that a rank published, if they are as many as this rank expects.
#[inline]
fn whole(published: Published, rank: u32, room: usize) -> Result<Buffer, Fault> {
    let sent = match published {
        Published::Inline(buffer) if buffer.len() >= room => return Ok(buffer),
        Published::Inline(buffer) => buffer.len() as u64,
        Published::Region(sent) => sent,
    };
    Err(Fault::Length { from: rank, sent, room: room as u64 })
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
        slots: &mut (impl Slots + ?Sized),
        looks: u32,
    ) -> Option<Result<(), Fault>> {
        let hops = line.hops.as_deref().unwrap_or_default();
        let mut left = looks;
        while !self.stamps.turn(slots) {
            left = left.checked_sub(1)?;
        }
        while let Some(&hop) = hops.get(self.next) {
            match flat.step(hop, &mut self.stamps, slots) {
                Ok(true) => self.next += 1,
                Ok(false) => {
                    left = left.checked_sub(1)?;
                    std::hint::spin_loop();
                }
                Err(fault) => {
                    slots.release(self.stamps.of(line.phases - 1));
                    return Some(Err(fault));
                }
            }
        }
        Some(Ok(()))
    }
}

impl Running {
    /// Takes over a call that is [`Flat`], and has come so far.
    pub(crate) fn flatten(&mut self, call: Call, line: Arc<Line>, begun: Begun) {
        let mut element = None;
        for (memory, place) in [call.send, call.recv].into_iter().zip(&mut self.places) {
            if let Memory::Uniform { base, ty, .. } = memory {
                *place = Place::Bytes(base);
                element = Some(ty);
            }
        }
        self.op = call.op.zip(element);
        self.algorithm = line.algorithm;
        self.line = Some((line, begun));
    }

    /// Goes as far as possible without waiting.
    pub(super) fn advance_line(
        &mut self,
        (line, mut begun): (Arc<Line>, Begun),
        io: &mut impl Messenger,
    ) -> Advance {
        let Some(slots) = io.slots() else { unreachable!("shared forms are chosen with slots") };
        let walked = begun.walk(&Flat::again(self, line.outline), &line, slots, 0);
        self.stamps = begun.stamps;
        match walked {
            None => {
                self.line = Some((line, begun));
                Advance::Pending
            }
            Some(result) => {
                self.over = Some(result.clone());
                Advance::Done(result)
            }
        }
    }
}
