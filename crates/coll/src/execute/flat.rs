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
    Algorithm, Blocks, Buf, Call, Fault, Form, Kind, Memory, Merge, Messenger, Needs, Op, Published, Round,
    Shape, Side, Slots, Span, Step,
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
    /// How many lines of a kind are kept: programs go around some roots and sizes.
    pub(crate) const PLACES: usize = 16;

    /// Where its line is kept, unless another has taken the place.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        (self.root as usize + self.len as usize) % Self::PLACES
    }

    /// Bytes of a vector or block: a rank publishes no less.
    #[inline]
    pub(crate) fn block(&self) -> u64 {
        self.unit * self.len
    }

    /// What a [`Case`](crate::Case) counts.
    pub(crate) fn bytes(&self, kind: Kind, ranks: u32) -> u64 {
        let blocks = if kind == Kind::ReduceScatterBlock { u64::from(ranks) } else { 1 };
        self.block() * blocks
    }

    pub(crate) fn commutative(&self) -> bool {
        self.commutative
    }
}

/// A step on bytes of what is given and what is got, where schedules that fit into slots need it.
#[derive(Clone, Copy, Debug)]
enum Hop {
    Publish { phase: u32, from: Piece },
    Await { rank: u32, phase: u32 },
    Pull { rank: u32, phase: u32, at: u32, into: Piece },
    Reduce { rank: u32, phase: u32, at: u32, into: Piece },
    Release { phase: u32 },
    Drain { rank: u32, phase: u32 },
}

/// Bytes of a side.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: u32,
    len: u32,
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
        let even = Blocks::Even(len);
        let (sends, recvs) = (even.clone(), even);
        let shape = Shape { rank, ranks, root, unit, len, sends, recvs, commutative, board: 0 };
        let fits = matches!(algorithm.needs, Needs::Inline | Needs::InlineBlocks);
        let rounds = if fits { (algorithm.rounds)(&shape) } else { 0 };
        let (mut round, mut hops) = (Round::default(), vec![]);
        for index in 0..rounds {
            round.begin(index);
            (algorithm.round)(&shape, index, &mut round);
            hops.extend(round.steps.iter().map(|step| hop(step, unit)));
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
fn hop(step: &Step, unit: u64) -> Option<Hop> {
    let bytes = |units: u64| u32::try_from(units * unit).ok();
    let piece = |span: Span| Some(Piece { at: bytes(span.at)?, len: bytes(span.len)? });
    Some(match *step {
        // The root of a bcast publishes what others receive: there, both are one.
        Step::Publish { from, phase, form: Form::Inline } => Hop::Publish { phase, from: piece(from)? },
        Step::Await { rank, phase } => Hop::Await { rank, phase },
        Step::Pull { rank, phase, at, into } if into.buf == Buf::Recv => {
            Hop::Pull { rank, phase, at: bytes(at)?, into: piece(into)? }
        }
        Step::PullReduce { rank, phase, at, merge: Merge { with, into, side: Side::Left } }
            if with == into && into.buf == Buf::Recv =>
        {
            Hop::Reduce { rank, phase, at: bytes(at)?, into: piece(into)? }
        }
        Step::Release { phase } => Hop::Release { phase },
        Step::Drain { rank, phase } => Hop::Drain { rank, phase },
        _ => return None,
    })
}

/// A call that may be carried out here: its elements lie in memory as they are packed.
#[derive(Clone, Copy)]
pub(crate) struct Flat<'a> {
    pub(crate) outline: Outline,
    /// What is published, and where it starts in the buffer.
    send: Option<(&'a Buffer, u32)>,
    recv: Option<&'a Buffer>,
    with: Option<(Reducer, &'a TypeArc)>,
}

/// Elements, in so many blocks, that fill their buffer.
#[inline]
fn dense(memory: &Memory, blocks: u32) -> Option<(&Buffer, u64, &TypeArc)> {
    match memory {
        Memory::Uniform { base, count, ty } if ty.is_dense() && ty.size() > 0 => {
            let bytes = count.checked_mul(ty.size())?.checked_mul(u64::from(blocks))?;
            let whole = base.lo() == 0 && base.len() as u64 == bytes && bytes <= MOST;
            whole.then_some((base, *count, ty))
        }
        _ => None,
    }
}

/// No slot holds more.
const MOST: u64 = 1 << 20;

impl<'a> Flat<'a> {
    #[inline]
    pub(crate) fn of(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<Flat<'a>> {
        match call.kind {
            Kind::Barrier => {
                let outline = Outline { root: call.root, commutative: true, unit: 1, len: 0 };
                Some(Flat { outline, send: None, recv: None, with: None })
            }
            kind if kind.reduces() => Flat::reducing(call, ranks),
            _ => Flat::moving(call, (rank, ranks)),
        }
    }

    #[inline]
    fn reducing(call: &'a Call, ranks: u32) -> Option<Flat<'a>> {
        let Some(Op::Builtin(op)) = call.op else { return None };
        let in_place = matches!(call.send, Memory::InPlace);
        let blocks = match call.kind {
            Kind::Reduce | Kind::Allreduce | Kind::Scan | Kind::Exscan => 1,
            Kind::ReduceScatterBlock => ranks,
            _ => return None,
        };
        // In place, the result's buffer reaches over all that is given.
        let recv = match &call.recv {
            Memory::Nothing => None,
            memory => Some(dense(memory, if in_place { blocks } else { 1 })?),
        };
        let (base, all, ty) = if in_place { recv? } else { dense(&call.send, 1)? };
        let len = recv.map_or(all, |recv| recv.1);
        let given = if in_place { len * u64::from(blocks) } else { all };
        if given != len * u64::from(blocks) || recv.is_some_and(|recv| recv.2.size() != ty.size()) {
            return None;
        }
        let outline = Outline { root: call.root, unit: ty.size(), len, commutative: op.is_commutative() };
        Some(Flat {
            outline,
            send: Some((base, 0)),
            recv: recv.map(|recv| recv.0),
            // If it is not defined, the error comes from where all of them come from.
            with: Some(reducer(op, ty)?),
        })
    }

    #[inline]
    fn moving(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<Flat<'a>> {
        // Blocks of the two sides.
        let (gives, gets) = match call.kind {
            Kind::Bcast => (0, 1),
            Kind::Gather | Kind::Allgather => (1, ranks),
            Kind::Scatter => (ranks, 1),
            Kind::Alltoall => (ranks, ranks),
            _ => return None,
        };
        let side = |memory, blocks| match memory {
            &Memory::Nothing | &Memory::InPlace => Some(None),
            memory => dense(memory, blocks).map(Some),
        };
        let (send, recv) = (side(&call.send, gives)?, side(&call.recv, gets)?);
        let bytes = |side: Option<(_, u64, &TypeArc)>| side.map(|(_, count, ty)| count * ty.size());
        let len = match (bytes(send), bytes(recv)) {
            (Some(sent), Some(room)) if sent != room => return None,
            (sent, room) => sent.or(room)?,
        };
        let send = match (&call.send, recv) {
            (Memory::InPlace, Some((base, ..))) if gives == 1 => Some((base, (u64::from(rank) * len) as u32)),
            (Memory::InPlace, Some((base, ..))) => Some((base, 0)),
            (_, Some((base, ..))) if call.kind == Kind::Bcast => Some((base, 0)),
            _ => send.map(|(base, ..)| (base, 0)),
        };
        let outline = Outline { root: call.root, unit: 1, len, commutative: true };
        Some(Flat { outline, send, recv: recv.map(|side| side.0), with: None })
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
        let start = running.in_place.unwrap_or(0) as u32;
        Flat { outline, send: send.or(recv).map(|base| (base, start)), recv, with }
    }

    /// Carries a step out; false if it cannot be now.
    #[inline]
    fn step(&self, hop: Hop, stamps: &mut Stamps, slots: &mut (impl Slots + ?Sized)) -> Result<bool, Fault> {
        match hop {
            Hop::Publish { phase, from } => {
                let stamp = stamps.of(phase);
                let clear = stamps.clear(stamp, slots);
                if clear {
                    match self.send {
                        Some((base, start)) if from.len > 0 => {
                            slots.publish(stamp, &base.slice((start + from.at) as isize, from.len as usize));
                        }
                        _ => slots.publish(stamp, &Buffer::empty()),
                    }
                }
                Ok(clear)
            }
            Hop::Await { rank, phase } => Ok(stamps.look(rank, stamps.of(phase), slots).is_some()),
            Hop::Pull { rank, phase, at, into } => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                if let Some(recv) = self.recv {
                    let from = inline(published, rank, (at + into.len) as usize)?;
                    recv.copy_from(into.at as isize, &from, at as isize, into.len as usize);
                }
                Ok(true)
            }
            Hop::Reduce { rank, phase, at, into } => {
                let Some(published) = stamps.look(rank, stamps.of(phase), slots) else { return Ok(false) };
                if let (Some(recv), Some((reducer, ty))) = (self.recv, self.with) {
                    let from = inline(published, rank, (at + into.len) as usize)?;
                    let from = from.slice(at as isize, into.len as usize);
                    let into = recv.slice(into.at as isize, into.len as usize);
                    let done = reducer.reduce(ty, &from, &into, self.outline.len);
                    done.map_err(|error| Fault::Operator(error.to_string()))?;
                }
                Ok(true)
            }
            Hop::Release { phase } => {
                slots.release(stamps.of(phase));
                Ok(true)
            }
            Hop::Drain { rank, phase } => Ok(slots.released(rank) >= stamps.of(phase)),
        }
    }
}

#[inline]
fn reducer(op: Builtin, ty: &TypeArc) -> Option<(Reducer, &TypeArc)> {
    Some((Reducer::find(op, ty).ok()?, ty))
}

/// Inline bytes that a rank published, if they are as many as this rank expects.
#[inline]
fn inline(published: Published, rank: u32, room: usize) -> Result<Buffer, Fault> {
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

    /// Walks along a line; where it would have to wait it looks `again` as long as that says so. `None`: it has to wait.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        flat: &Flat<'_>,
        line: &Line,
        slots: &mut (impl Slots + ?Sized),
        again: &mut impl FnMut() -> bool,
    ) -> Option<Result<(), Fault>> {
        let hops = line.hops.as_deref().unwrap_or_default();
        while !self.stamps.turn(slots) {
            again().then_some(())?;
        }
        while let Some(&hop) = hops.get(self.next) {
            match flat.step(hop, &mut self.stamps, slots) {
                Ok(true) => self.next += 1,
                Ok(false) => again().then_some(())?,
                Err(fault) => {
                    slots.release(self.stamps.of(line.phases - 1));
                    return Some(Err(fault));
                }
            }
        }
        Some(Ok(()))
    }
}

impl Flat<'_> {
    /// Where what is published starts in its buffer.
    pub(crate) fn start(&self) -> u32 {
        self.send.map_or(0, |send| send.1)
    }
}

impl Running {
    /// Takes over a call that is [`Flat`], and has come so far. What it publishes starts there in its buffer.
    pub(crate) fn flatten(&mut self, call: Call, start: u32, line: Arc<Line>, begun: Begun) {
        self.in_place = Some(u64::from(start));
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
        let walked = begun.walk(&Flat::again(self, line.outline), &line, slots, &mut || false);
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
