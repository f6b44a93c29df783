//! The straight-line interpreter: the same schedules, for bytes that lie in pieces without holes and go through shared slots or the board.
//!
//! Nothing here needs packing, a message or a user's function, and steps are over in the order in which they
//! stand, so none needs a state, and all rounds are one list ([`Line`]). What a barrier or an 8-byte allreduce costs
//! is decided here.

use std::sync::Arc;

use banyan_datatype::TypeArc;
use banyan_datatype::op::{Builtin, Reducer};
use banyan_memory::Buffer;

use super::line::{Hop, Layout, Line, Outline, Piece, Spot, shape};
use super::shared::{inside, lay};
use super::{Advance, Running, Stamps};
use crate::place::Place;
use crate::{Algorithm, Buf, Call, Facts, Fault, Kind, Memory, Messenger, Op, Published, Shape, Slots};

/// A call that may be carried out here: its elements lie in memory as they are packed.
#[derive(Clone, Copy)]
pub(crate) struct Flat<'a> {
    pub(crate) outline: Outline,
    /// What is published, and where it starts in the buffer.
    pub(crate) send: Option<(&'a Buffer, u32)>,
    pub(crate) recv: Option<&'a Buffer>,
    /// What says where blocks lie that may differ, of what is given and of what is got.
    pub(crate) sides: Option<[&'a Memory; 2]>,
    /// What is given lies where something else is got.
    pub(crate) exchanges: bool,
    pub(crate) with: Option<With<&'a TypeArc>>,
}

/// What is reduced with, and elements of which type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct With<T> {
    pub(crate) op: Builtin,
    pub(crate) reducer: Reducer,
    pub(crate) ty: T,
}

/// Elements, in so many blocks, that fill their buffer.
#[inline(always)]
fn dense(memory: &Memory, blocks: u32) -> Option<(&Buffer, u64, &TypeArc)> {
    match memory {
        Memory::Uniform { base, count, ty } => {
            let all = count.checked_mul(u64::from(blocks))?;
            fill(base, all, ty).then_some((base, *count, ty))
        }
        _ => None,
    }
}

/// True if these are elements without holes, and fill their buffer.
#[inline]
fn fill(base: &Buffer, count: u64, ty: &TypeArc) -> bool {
    let bytes = count.saturating_mul(ty.size());
    ty.is_dense() && ty.size() > 0 && base.lo() == 0 && base.len() as u64 == bytes && bytes <= MOST
}

/// Places are counted in 32 bits.
const MOST: u64 = 1 << 31;

impl<'a> Flat<'a> {
    #[inline(always)]
    pub(crate) fn of(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<Flat<'a>> {
        match call.kind.uneven() {
            true => Flat::uneven(call, rank),
            false => Flat::even(call, (rank, ranks)),
        }
    }

    /// A call whose blocks, if any, are alike.
    #[inline(always)]
    pub(crate) fn even(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<Flat<'a>> {
        match call.kind {
            Kind::Barrier => {
                let outline = Outline { root: call.root, commutative: true, unit: 1, len: 0 };
                Some(Flat { outline, send: None, recv: None, sides: None, exchanges: false, with: None })
            }
            kind if kind.reduces() => Flat::reducing(call, ranks),
            _ => Flat::moving(call, (rank, ranks)),
        }
    }

    /// A call whose blocks may differ.
    pub(crate) fn uneven(call: &'a Call, rank: u32) -> Option<Flat<'a>> {
        match call.kind {
            Kind::ReduceScatter => Flat::scattering(call, rank),
            Kind::Gatherv | Kind::Scatterv | Kind::Allgatherv | Kind::Alltoallv => Flat::blocks(call, rank),
            _ => None,
        }
    }

    #[inline(always)]
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
            sides: None,
            exchanges: false,
            // If it is not defined, the error comes from where all of them come from.
            with: Some(reducer(op, ty)?),
        })
    }

    /// A reduce_scatter, whose blocks may differ.
    fn scattering(call: &'a Call, rank: u32) -> Option<Flat<'a>> {
        let Some(Op::Builtin(op)) = call.op else { return None };
        let Memory::Vector { base, counts, ty, .. } = &call.recv else { return None };
        let (own, all) = (*counts.get(rank as usize)?, counts.iter().sum());
        let (send, reach) = match &call.send {
            Memory::InPlace => (base, all),
            memory => match dense(memory, 1)? {
                (send, count, sent) if (count, sent.size()) == (all, ty.size()) => (send, own),
                _ => return None,
            },
        };
        if !fill(base, reach, ty) {
            return None;
        }
        let outline =
            Outline { root: call.root, unit: ty.size(), len: own, commutative: op.is_commutative() };
        Some(Flat {
            outline,
            send: Some((send, 0)),
            recv: Some(base),
            sides: Some([&call.send, &call.recv]),
            exchanges: false,
            with: Some(reducer(op, ty)?),
        })
    }

    /// Data in blocks that may differ, on one side or on both.
    fn blocks(call: &'a Call, rank: u32) -> Option<Flat<'a>> {
        // The buffer, and this rank's own block in it.
        let side = |memory: &'a Memory| match memory {
            Memory::Nothing | Memory::InPlace => Some(None),
            Memory::Vector { base, ty, .. } if ty.is_dense() => {
                Some(Some((base, Layout::of(memory).block(rank)?)))
            }
            memory => {
                let (base, count, ty) = dense(memory, 1)?;
                Some(Some((base, Piece { at: 0, len: (count * ty.size()) as u32 })))
            }
        };
        let (send, recv) = (side(&call.send)?, side(&call.recv)?);
        let len = match (send, recv) {
            (Some((_, sent)), Some((_, room))) if sent.len != room.len => return None,
            (send, recv) => send.or(recv)?.1.len,
        };
        let mut given = &call.send;
        let send = match (&call.send, recv) {
            (Memory::InPlace, Some((base, _))) if call.kind == Kind::Alltoallv => {
                given = &call.recv;
                Some((base, 0))
            }
            (Memory::InPlace, Some((base, own))) => Some((base, own.at)),
            _ => send.map(|(base, _)| (base, 0)),
        };
        let outline = Outline { root: call.root, unit: 1, len: u64::from(len), commutative: true };
        let recv = recv.map(|(base, _)| base);
        Some(Flat { outline, send, recv, sides: Some([given, &call.recv]), exchanges: false, with: None })
    }

    #[inline]
    fn layouts(&self) -> Option<[Layout<'a>; 2]> {
        self.sides.map(|[given, got]| [Layout::of(given), Layout::of(got)])
    }

    /// Bytes of the largest block that is known here.
    #[inline]
    pub(crate) fn largest(&self) -> u64 {
        let uneven = self.layouts().map_or(0, |[given, got]| given.largest().max(got.largest()));
        uneven.max(self.outline.block())
    }

    /// True if a line is for calls like this one.
    #[inline]
    pub(crate) fn is_on(&self, line: &Line) -> bool {
        line.is_of(&self.outline, self.layouts())
    }

    pub(crate) fn shape(&self, kind: Kind, rank: u32, facts: &Facts) -> Shape {
        shape(kind, &self.outline, self.layouts(), rank, facts)
    }

    /// The line for it by an algorithm.
    pub(crate) fn line(&self, algorithm: &'static Algorithm, shape: &Shape) -> Line {
        Line::new((self.outline, self.layouts()), algorithm, shape)
    }

    #[inline(always)]
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
        let exchanges = call.kind == Kind::Alltoall && matches!(call.send, Memory::InPlace);
        let outline = Outline { root: call.root, unit: 1, len, commutative: true };
        Some(Flat { outline, send, recv: recv.map(|side| side.0), sides: None, exchanges, with: None })
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
        let send = send.map(|base| (base, start));
        Flat { outline, send, recv, sides: None, exchanges: false, with }
    }

    /// Carries a step out; false if it cannot be now.
    #[inline(always)]
    fn step(
        &self,
        hop: &Hop,
        stamps: &mut Stamps,
        board: &Board,
        slots: &mut (impl Slots + ?Sized),
    ) -> Result<bool, Fault> {
        match *hop {
            Hop::Publish { phase, from } => {
                let stamp = stamps.of(phase);
                let clear = stamps.clear(stamp, slots);
                if clear {
                    match self.send {
                        Some((base, start)) => {
                            slots.publish(stamp, base, (start + from.at) as isize, from.len as usize);
                        }
                        None => slots.publish(stamp, &Buffer::empty(), 0, 0),
                    }
                }
                Ok(clear)
            }
            Hop::Lay { phase, pocket, from } => {
                let stamp = stamps.of(phase);
                let clear = stamps.clear(stamp, slots);
                if clear
                    && let Some((base, start)) = self.send
                    && let Some(inside) = lay(&slots.bank(stamp), stamp, pocket.into(), u64::from(from.len))
                {
                    inside.copy_from(0, base, (start + from.at) as isize, from.len as usize);
                }
                Ok(clear)
            }
            Hop::PublishLaid { phase } => {
                slots.publish_bank(stamps.of(phase));
                Ok(true)
            }
            Hop::Fetch { rank, phase, pocket, into } => {
                let stamp = stamps.of(phase);
                let Some(published) = stamps.look(rank, stamp, slots) else { return Ok(false) };
                let inside = inside(&published, (rank, stamp), pocket.into(), u64::from(into.len))?;
                if let (Some(recv), Some(inside)) = (self.recv, inside) {
                    recv.copy_from(into.at as isize, &inside, 0, into.len as usize);
                }
                Ok(true)
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
                if let (Some(recv), Some(With { reducer, ty, .. })) = (self.recv, self.with) {
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
            Hop::Copy { from, into } => {
                let spots = self.at(from, board, stamps).zip(self.at(into, board, stamps));
                if let Some(((base, at), (to, to_at))) = spots
                    && base.address(at) != to.address(to_at)
                {
                    to.copy_from(to_at, base, at, into.piece.len as usize);
                }
                Ok(true)
            }
            Hop::Drain { .. } | Hop::Settle { .. } | Hop::Combine { .. } => {
                self.step_on_board(hop, stamps, board, slots)
            }
        }
    }

    /// The steps that only long schedules have: not in the way of the others.
    #[inline(never)]
    fn step_on_board(
        &self,
        hop: &Hop,
        stamps: &mut Stamps,
        board: &Board,
        slots: &mut (impl Slots + ?Sized),
    ) -> Result<bool, Fault> {
        match *hop {
            Hop::Drain { rank, phase } => Ok(slots.released(rank) >= stamps.of(phase)),
            Hop::Settle { half } => Ok(stamps.settled(half, slots)),
            Hop::Combine { from, into } => {
                let spots = self.at(from, board, stamps).zip(self.at(into, board, stamps));
                if let (Some(((base, at), (to, to_at))), Some(With { reducer, ty, .. })) = (spots, self.with)
                {
                    let len = into.piece.len as usize;
                    let (from, into) = (base.slice(at, len), to.slice(to_at, len));
                    let done = reducer.reduce(ty, &from, &into, len as u64 / self.outline.unit);
                    done.map_err(|error| Fault::Operator(error.to_string()))?;
                }
                Ok(true)
            }
            _ => unreachable!("it is done above"),
        }
    }

    /// The memory of a place, and where in it that is.
    #[inline(always)]
    fn at<'b>(
        &'b self,
        Spot { buf, piece }: Spot,
        board: &'b Board,
        stamps: &Stamps,
    ) -> Option<(&'b Buffer, isize)> {
        let (base, at) = match buf {
            Buf::Send => self.send.map(|(base, start)| (base, u64::from(start) + u64::from(piece.at)))?,
            Buf::Recv => (self.recv?, u64::from(piece.at)),
            _ => (&board.memory, stamps.halves.at(u64::from(piece.at), board.half)),
        };
        Some((base, at as isize))
    }

    /// Whether a call can be carried out along a line.
    #[inline]
    pub(crate) fn can_walk(&self, line: &Line) -> bool {
        line.hops.is_some() && !(self.exchanges && line.chunks > 0)
    }
}

/// The board, as a call finds it.
struct Board {
    memory: Buffer,
    half: u64,
}

#[inline(always)]
fn reducer(op: Builtin, ty: &TypeArc) -> Option<With<&TypeArc>> {
    Some(With { op, reducer: Reducer::find(op, ty).ok()?, ty })
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
pub(crate) struct Begun {
    next: usize,
    pub(crate) stamps: Stamps,
}

impl Begun {
    pub(crate) fn new(stamps: Stamps) -> Begun {
        Begun { next: 0, stamps }
    }

    /// Walks along a line; where it would have to wait it looks `again` as long as that says so. `None`: it has to wait.
    #[inline(never)]
    pub(crate) fn walk(
        &mut self,
        flat: &Flat<'_>,
        line: &Line,
        slots: &mut (impl Slots + ?Sized),
        again: &mut impl FnMut() -> bool,
    ) -> Option<Result<(), Box<Fault>>> {
        let hops = line.hops.as_deref().unwrap_or_default();
        let memory = if line.chunks > 0 { slots.board() } else { Buffer::empty() };
        let board = Board { memory, half: line.half };
        while !self.stamps.turn(slots) {
            again().then_some(())?;
        }
        while let Some(hop) = hops.get(self.next) {
            match flat.step(hop, &mut self.stamps, &board, slots) {
                Ok(true) => self.next += 1,
                Ok(false) => again().then_some(())?,
                Err(fault) => {
                    slots.release(self.stamps.of(line.phases - 1));
                    return Some(Err(Box::new(fault)));
                }
            }
        }
        Some(Ok(()))
    }
}

impl Running {
    /// Takes over a call that is [`Flat`], and has come so far.
    pub(crate) fn flatten(&mut self, flat: &Flat<'_>, line: Arc<Line>, begun: Begun) {
        // What is published starts there in its buffer.
        self.in_place = flat.send.map(|(_, start)| u64::from(start));
        for (base, place) in [flat.send.map(|send| send.0), flat.recv].into_iter().zip(&mut self.places) {
            if let Some(base) = base {
                *place = Place::Bytes(base.clone());
            }
        }
        self.op = flat.with.map(|with| (Op::Builtin(with.op), with.ty.clone()));
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
                let result = result.map_err(|fault| *fault);
                self.over = Some(result.clone());
                Advance::Done(result)
            }
        }
    }
}
