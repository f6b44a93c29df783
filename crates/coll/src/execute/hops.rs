//! Carries out the steps of a [`Line`], one after the other: what a barrier or an 8-byte allreduce costs is decided here.

use std::sync::Arc;

use banyan_memory::Buffer;

use super::flat::{Flat, With};
use super::line::{Hop, Line, Spot};
use super::shared::{inside, lay};
use super::waits::Awaited;
use super::{Advance, Running, Stamps};
use crate::place::Place;
use crate::sections::Cut;
use crate::{Buf, Fault, Messenger, Needs, Op, Published, Slots};

impl Flat<'_> {
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
                let (clear, stamp) = (stamps.clear(phase, slots), stamps.named(phase));
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
                let (clear, stamp) = (stamps.clear(phase, slots), stamps.named(phase));
                if clear
                    && let Some((base, start)) = self.send
                    && let Some(inside) = lay(&slots.bank(stamp), stamp, pocket.into(), u64::from(from.len))
                {
                    inside.copy_from(0, base, (start + from.at) as isize, from.len as usize);
                }
                Ok(clear)
            }
            Hop::PublishLaid { phase } => {
                slots.publish_bank(stamps.named(phase));
                Ok(true)
            }
            Hop::Fetch { rank, phase, pocket, into } => {
                let stamp = stamps.named(phase);
                let Some(published) = stamps.look(rank, phase, slots) else { return Ok(false) };
                let inside = inside(&published, (rank, stamp), pocket.into(), u64::from(into.len))?;
                if let (Some(recv), Some(inside)) = (self.recv, inside) {
                    recv.copy_from(into.at as isize, &inside, 0, into.len as usize);
                }
                Ok(true)
            }
            Hop::Await { rank, phase } => Ok(stamps.look(rank, phase, slots).is_some()),
            Hop::Pull { rank, phase, at, into } => {
                let Some(published) = stamps.look(rank, phase, slots) else { return Ok(false) };
                if let Some(recv) = self.recv {
                    let from = inline(published, rank, (at + into.len) as usize)?;
                    recv.copy_from(into.at as isize, &from, at as isize, into.len as usize);
                }
                Ok(true)
            }
            Hop::Reduce { rank, phase, at, into } => {
                let Some(published) = stamps.look(rank, phase, slots) else { return Ok(false) };
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
            Hop::Drain { rank, phase } => Ok(slots.reached(rank, stamps.of(phase))),
            Hop::Settle { chunk } => Ok(stamps.settled(chunk, slots)),
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
            _ => (&board.memory, stamps.taken.at(u64::from(piece.at), &board.cut)),
        };
        Some((base, at as isize))
    }
}

/// The board, as a call finds it.
struct Board {
    memory: Buffer,
    cut: Cut,
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
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Begun {
    next: usize,
    pub(crate) stamps: Stamps,
}

impl Begun {
    pub(crate) fn new(stamps: Stamps) -> Begun {
        Begun { next: 0, stamps }
    }

    /// What it waits for at the step that it has come to.
    pub(super) fn waits(&self, line: &Line) -> Option<Awaited> {
        Some(match *line.hops.as_ref()?.get(self.next)? {
            Hop::Pull { rank, into, .. } | Hop::Fetch { rank, into, .. } | Hop::Reduce { rank, into, .. } => {
                Awaited::From(rank, into.len.into())
            }
            Hop::Await { rank, .. } | Hop::Drain { rank, .. } => Awaited::From(rank, 0),
            Hop::Publish { .. } | Hop::Lay { .. } | Hop::Settle { .. } => Awaited::All,
            _ => return None,
        })
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
        let memory = if line.chunks.number > 0 { slots.board() } else { Buffer::empty() };
        let board = Board { memory, cut: line.cut };
        while !self.stamps.turn(slots) {
            again().then_some(())?;
        }
        while let Some(hop) = hops.get(self.next) {
            match flat.step(hop, &mut self.stamps, &board, slots) {
                Ok(true) => self.next += 1,
                Ok(false) => again().then_some(())?,
                Err(fault) => {
                    let board = line.algorithm.needs == Needs::Board;
                    self.stamps.give_up(line.phases, board, slots);
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
        (self.line, self.begun) = (Some(line), begun);
    }

    /// Goes along its line as far as possible without waiting; `None` if it has none.
    pub(super) fn advance_line(&mut self, io: &mut impl Messenger) -> Option<Advance> {
        let Running { line, begun, places, in_place, op, .. } = self;
        let line = line.as_ref()?;
        let Some(slots) = io.slots() else { unreachable!("shared forms are chosen with slots") };
        let flat = Flat::again((places, *in_place, op.as_ref()), line.outline);
        let Some(result) = begun.walk(&flat, line, slots, &mut || false) else {
            return Some(Advance::Pending);
        };
        let result = result.map_err(|fault| *fault);
        (self.over, self.line) = (Some(result.clone()), None);
        Some(Advance::Done(result))
    }
}
