//! Operands that lie in memory as they are packed. Ranges of steps are bytes of the user's buffers, worked out once for all
//! calls with the same arguments; nothing of such a call needs packing, a message or a user's function.

use banyan_datatype::TypeArc;
use banyan_datatype::op::{Builtin, Reducer};
use banyan_memory::Buffer;

use super::step::{Operands, Tried};
use crate::sections::{Allotment, Cut};
use crate::{Buf, Fault, Merge, SharedBuffers};

/// Bytes of an argument, counted from its address, or of the shared scratch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) buf: Buf,
    pub(crate) at: i32,
    pub(crate) len: u32,
    /// Elements, where the collective reduces.
    pub(crate) elements: u32,
    /// What is copied here goes past the caches.
    pub(crate) past: bool,
}

/// The kernel of a reduction, and the type of the elements.
#[derive(Debug)]
pub(crate) struct Reduction {
    pub(crate) reducer: Reducer,
    pub(crate) ty: TypeArc,
}

impl Reduction {
    /// `None` if the operation is not defined for such elements.
    pub(crate) fn new(op: Builtin, ty: TypeArc) -> Option<Reduction> {
        Some(Reduction { reducer: Reducer::find(op, &ty).ok()?, ty })
    }
}

/// The memory of a call.
pub(crate) struct Contiguous<'a> {
    /// What is given, and what is got, from the addresses of the arguments on.
    pub(crate) buffers: (&'a Buffer, &'a Buffer),
    pub(crate) with: Option<&'a Reduction>,
    /// `None` if no step touches it.
    pub(crate) scratch: Option<Scratch<'a>>,
}

/// The shared scratch, as a call finds it.
pub(crate) struct Scratch<'a> {
    pub(crate) memory: Buffer,
    /// In bytes.
    pub(crate) cut: &'a Cut,
    pub(crate) allotment: &'a Allotment,
}

impl Contiguous<'_> {
    /// The memory of a piece, and where in it that is.
    #[inline(always)]
    fn at(&self, piece: Piece) -> (&Buffer, isize) {
        match piece.buf {
            Buf::Send => (self.buffers.0, piece.at as isize),
            Buf::Recv => (self.buffers.1, piece.at as isize),
            _ => {
                let Some(Scratch { memory, cut, allotment }) = &self.scratch else {
                    unreachable!("the plan says that no step touches the shared scratch")
                };
                (memory, allotment.at(piece.at as u64, cut) as isize)
            }
        }
    }

    #[inline(always)]
    fn slice(&self, piece: Piece) -> Buffer {
        let (base, at) = self.at(piece);
        base.slice(at, piece.len as usize)
    }

    #[inline(always)]
    fn combine<J>(&self, from: &Buffer, into: Piece) -> Result<Tried<J>, Fault> {
        if let Some(Reduction { reducer, ty, .. }) = self.with {
            let done = reducer.reduce(ty, from, &self.slice(into), into.elements.into());
            done.map_err(|error| Fault::Operator(error.to_string()))?;
        }
        Ok(Tried::Over)
    }
}

impl Operands for Contiguous<'_> {
    type Range = Piece;
    type UserReduction = std::convert::Infallible;

    #[inline(always)]
    fn bytes(&self, bytes: u64) -> u64 {
        bytes
    }

    #[inline(always)]
    fn units(range: Piece) -> u64 {
        range.len.into()
    }

    #[inline(always)]
    fn publish(&mut self, from: Piece, seq: u64, shared: &mut impl SharedBuffers) {
        let (base, at) = self.at(from);
        shared.publish(seq, base, at, from.len as usize);
    }

    fn expose(&mut self, from: Piece, seq: u64, shared: &mut impl SharedBuffers) {
        shared.expose(seq, &self.slice(from));
    }

    #[inline(always)]
    fn pack(&mut self, from: Piece, into: &Buffer) {
        let (base, at) = self.at(from);
        into.copy_from(0, base, at, from.len as usize);
    }

    #[inline(always)]
    fn unpack(&mut self, into: Piece, from: &Buffer, at: isize) {
        let (base, to) = self.at(into);
        base.copy_from(to, from, at, into.len as usize);
    }

    fn get(
        &mut self,
        (rank, seq, at): (u32, u64, u64),
        into: Piece,
        shared: &mut impl SharedBuffers,
    ) -> bool {
        shared.get(rank, seq, at, &self.slice(into))
    }

    fn offer(&mut self, (range, _): (Piece, bool), seq: u64, at: u64, shared: &mut impl SharedBuffers) {
        shared.offer(seq, at, &self.slice(range));
    }

    fn take(
        &mut self,
        (rank, seq, at): (u32, u64, u64),
        into: Piece,
        shared: &mut impl SharedBuffers,
    ) -> bool {
        shared.take(rank, seq, at, &self.slice(into))
    }

    fn put(
        &mut self,
        (rank, seq, at): (u32, u64, Option<u64>),
        from: Piece,
        shared: &mut impl SharedBuffers,
    ) {
        shared.put(rank, seq, at, &self.slice(from));
    }

    fn landed(&mut self, _: Piece) {}

    #[inline(always)]
    fn get_reduce(
        &mut self,
        inline: Option<&Buffer>,
        (rank, _, at): (u32, u64, u64),
        merge: Merge<Piece>,
        _: &mut impl SharedBuffers,
    ) -> Result<Tried<Self::UserReduction>, Fault> {
        // Plans that would need memory of their own for what is exposed are not compiled.
        let Some(inline) = inline else { return Err(Fault::Unreadable { rank }) };
        self.combine(&inline.slice(at as isize, merge.into.len as usize), merge.into)
    }

    #[inline(always)]
    fn copy(&mut self, from: Piece, into: Piece) -> Tried<Self::UserReduction> {
        let ((base, at), (to, to_at)) = (self.at(from), self.at(into));
        match (from.buf, into.buf) {
            _ if base.address(at) == to.address(to_at) => {}
            _ if into.past => to.copy_past(to_at, base, at, into.len as usize),
            (Buf::Send, Buf::SharedScratch) => to.copy_given(to_at, base, at, into.len as usize),
            (Buf::SharedScratch, Buf::Send | Buf::Recv) => to.take_from(to_at, base, at, into.len as usize),
            _ => to.copy_from(to_at, base, at, into.len as usize),
        }
        Tried::Over
    }

    fn reduce(&mut self, from: Piece, into: Piece) -> Result<Tried<Self::UserReduction>, Fault> {
        self.combine(&self.slice(from), into)
    }
}
