//! Calls for the straight-line interpreter: bytes that lie in pieces without holes and go through shared slots or the board.
//!
//! Nothing of them needs packing, a message or a user's function, and steps are over in the order in which they
//! stand, so none needs a state, and all rounds of the schedule are one list ([`Line`]). The interpreter is [`super::hops`].

use banyan_datatype::TypeArc;
use banyan_datatype::op::{Builtin, Reducer};
use banyan_memory::Buffer;

use super::line::{Layout, Line, Outline, Piece, shape};
use crate::ledger::About;
use crate::place::Place;
use crate::{Algorithm, Call, Facts, Kind, Memory, Op, Shape};

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

    /// What it is about, if that is its line.
    #[inline(always)]
    pub(crate) fn about(&self, line: &Line) -> About {
        match self.with {
            Some(With { op, .. }) => line.about.with(op),
            None => line.about,
        }
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

    /// What an execution is about that was [flattened](super::Running::flatten).
    pub(super) fn again(
        (places, in_place, op): (&'a [Place; 4], Option<u64>, Option<&'a (Op, TypeArc)>),
        outline: Outline,
    ) -> Flat<'a> {
        let [send, recv] = [0, 1].map(|side| match &places[side] {
            Place::Bytes(buffer) => Some(buffer),
            _ => None,
        });
        let with = match op {
            Some((Op::Builtin(op), ty)) => reducer(*op, ty),
            _ => None,
        };
        let start = in_place.unwrap_or(0) as u32;
        let send = send.map(|base| (base, start));
        Flat { outline, send, recv, sides: None, exchanges: false, with }
    }

    /// Whether a call can be carried out along a line.
    #[inline]
    pub(crate) fn can_walk(&self, line: &Line) -> bool {
        line.hops.is_some() && !(self.exchanges && line.chunks.number > 0)
    }
}

#[inline(always)]
fn reducer(op: Builtin, ty: &TypeArc) -> Option<With<&TypeArc>> {
    Some(With { op, reducer: Reducer::find(op, ty).ok()?, ty })
}
