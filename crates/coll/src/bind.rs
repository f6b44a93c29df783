//! Binds the operands of a [`Call`]: makes its [`Shape`], and the [`View`]s behind the buffers of the schedule.

use std::sync::Arc;

use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::Buffer;

use crate::execute::ExecutionState;
use crate::execute::contiguous::{Piece, Reduction};
use crate::execute::plan::Compiled;
use crate::view::View;
use crate::{
    About, Algorithm, Blocks, Buf, Call, Case, Fault, Kind, Model, Needs, Op, Operand, Shape, Span, Topology,
};

impl ExecutionState {
    /// Sets shape, views and operation (all unset before) to what a call says, and refuses it if that contradicts itself.
    pub(crate) fn bind(
        &mut self,
        call: &Call,
        rank: u32,
        split: u32,
        (topology, model): (&Topology, &Model),
    ) {
        let shape = &mut self.shape;
        (shape.kind, shape.root) = (call.kind, call.root);
        (shape.rank, shape.ranks, shape.split) = (rank, topology.ranks, split);
        self.refused = self.bind_operands(call).err();
        self.shape.on(topology, model);
    }

    fn bind_operands(&mut self, call: &Call) -> Result<(), Fault> {
        let in_place = matches!(call.send, Operand::InPlace) || matches!(call.recv, Operand::InPlace);
        let shape = &mut self.shape;
        shape.commutative = call.op.as_ref().is_none_or(|op| op.commutative());
        match call.kind.reduces() {
            true => self.reduction(call),
            false => self.data_movement(call, in_place)?,
        }
        self.in_place = if in_place { self.shape.in_place_at() } else { None };
        Ok(())
    }

    fn data_movement(&mut self, call: &Call, in_place: bool) -> Result<(), Fault> {
        use Kind::*;
        let Shape { rank, ranks, split, .. } = self.shape;
        let blocked_send = matches!(call.kind, Scatter | Scatterv | Alltoall | Alltoallv | Alltoallw);
        let blocked_recv = !matches!(call.kind, Bcast | Scatter | Scatterv);
        // On an intercommunicator a rank has blocks for the ranks of the other group.
        let owners = if split > 0 { self.shape.group_across(rank) } else { 0..ranks };
        let blocks = owners.len() as u32;
        let bound = |operand: &Operand, blocked: bool| {
            let (view, lens) = view(operand, blocked.then_some(blocks));
            (view, if blocked && split > 0 { lens.among(owners.clone(), ranks) } else { lens })
        };
        let [send, recv, ..] = &mut self.views;
        (*send, self.shape.sends) = bound(&call.send, blocked_send);
        (*recv, self.shape.recvs) = bound(&call.recv, blocked_recv);
        let own = |blocks: &Blocks| blocks.block(rank).1;
        match call.kind {
            Barrier => {}
            Bcast => self.shape.len = packed_len(&call.recv),
            Scatter | Scatterv => {
                // A root in place keeps its block where it is.
                self.shape.len = match call.recv {
                    Operand::InPlace => own(&self.shape.sends),
                    _ => packed_len(&call.recv),
                };
                if rank == call.root && !in_place {
                    agree(rank, own(&self.shape.sends), self.shape.len)?;
                }
            }
            Gather | Gatherv | Allgather | Allgatherv => {
                self.shape.len = match call.send {
                    Operand::InPlace => own(&self.shape.recvs),
                    _ => packed_len(&call.send),
                };
                let gets_own = match call.kind {
                    Gather | Gatherv => rank == call.root,
                    _ => split == 0,
                };
                if gets_own {
                    agree(rank, self.shape.len, own(&self.shape.recvs))?;
                }
            }
            _ => {
                if in_place {
                    // Data come in where those to be sent lie: see `detach`.
                    (*send, self.shape.sends) = (recv.clone(), self.shape.recvs.clone());
                    self.in_place_exchange = true;
                }
                if let Blocks::Even(len) = self.shape.sends {
                    self.shape.len = len;
                }
            }
        }
        Ok(())
    }

    fn reduction(&mut self, call: &Call) {
        let (ranks, shape) = (u64::from(self.shape.ranks), &mut self.shape);
        if let Operand::Vector { counts, ty, .. } = &call.recv {
            let units = |&count: &u64| if ty.size() == 0 { 0 } else { count };
            shape.sends = shape.in_group(Blocks::from_lens(counts.iter().map(units)));
        }
        let kind = call.kind;
        let ((send, send_count), (recv, recv_count)) = (elements(&call.send), elements(&call.recv));
        let (View::Elements { ty, .. }, count) = (match (&send, &recv) {
            (View::Nothing, _) => (&recv, recv_count),
            _ => (&send, send_count),
        }) else {
            return;
        };
        let units = |count: u64| if ty.size() == 0 { 0 } else { count };
        shape.unit = ty.size();
        shape.len = match kind {
            Kind::ReduceScatter => shape.sends.block(shape.rank).1,
            Kind::ReduceScatterBlock if matches!(recv, View::Nothing) => units(count / ranks),
            Kind::ReduceScatterBlock => units(recv_count),
            _ => units(count),
        };
        if kind == Kind::ReduceScatterBlock {
            shape.sends = shape.in_group(Blocks::Even(shape.len));
        }
        self.op = call.op.clone().map(|op| (op, ty.clone()));
        (self.views[0], self.views[1]) = (send, recv);
    }

    /// What is given lies where something else is got: moves it out of the way of what comes in.
    pub(crate) fn detach(&mut self) {
        if std::mem::take(&mut self.in_place_exchange) {
            let total = self.shape.recvs.start(self.shape.ranks);
            let copy = self.work.spare.take(total);
            self.views[1].pack((0, total), &copy);
            self.views[0] = View::Bytes(copy.slice(0, total as usize));
        }
    }

    /// What it is about.
    pub(crate) fn about(&self) -> About {
        About::of(&self.shape).with_any(self.op.as_ref().map(|(op, _)| op), self.shape.split > 0)
    }

    /// The schedule of an algorithm over bytes of the arguments, whose buffers are `bases`, if there is one.
    pub(crate) fn compile(
        &self,
        algorithm: &'static Algorithm,
        bases: &[Option<Buffer>; 2],
    ) -> Option<Compiled> {
        let with = match &self.op {
            None => None,
            Some((Op::Builtin(op), ty)) => Some(Reduction::new(*op, ty.clone())?),
            Some((Op::User { .. }, _)) => return None,
        };
        let piece = |span: Span| self.piece(span, bases);
        let compiled = Compiled::new(algorithm, &self.shape, self.about(), with, piece)?;
        // In place, what goes over the shared scratch or is exposed could be overwritten before it is read.
        let stays = !compiled.touches_scratch && !compiled.offers && algorithm.needs != Needs::SingleCopy;
        (!self.in_place_exchange || stays).then_some(compiled)
    }

    /// Where a span lies, if that is in one piece.
    fn piece(&self, span: Span, bases: &[Option<Buffer>; 2]) -> Option<Piece> {
        let bytes = |units: u64| units.checked_mul(self.shape.unit);
        let (buf, at) = match span.buf {
            Buf::Temp => return None,
            Buf::SharedScratch => (span.buf, bytes(span.at)? as i64),
            _ if span.len == 0 => (span.buf, 0),
            _ => {
                let (view, _) = self.at(span);
                if let View::Nothing = self.views[view] {
                    // A root in place has its own block where it is.
                    return Some(Piece { buf: span.buf, at: 0, len: 0, elements: 0, past: false });
                }
                let memory = self.direct(span)?;
                // In place, what is given is in the buffer of what is got.
                let (buf, base) = match (view, bases) {
                    (0, [Some(base), _]) => (Buf::Send, base),
                    (_, [_, Some(base)]) => (Buf::Recv, base),
                    _ => return None,
                };
                (buf, memory.address(memory.lo()).wrapping_sub(base.address(0)) as i64)
            }
        };
        let (at, len) = (i32::try_from(at).ok()?, u32::try_from(bytes(span.len)?).ok()?);
        Some(Piece { buf, at, len, elements: u32::try_from(span.len).ok()?, past: false })
    }

    /// What the choice of an algorithm may depend on; `None` where not all ranks know it.
    pub(crate) fn case(&self) -> Option<Case> {
        self.shape.case(self.is_plain())
    }

    /// See [`Case::plain`].
    pub(crate) fn is_plain(&self) -> bool {
        match &self.op {
            None => !self.shape.kind.reduces(),
            Some((op, ty)) => matches!(op, Op::Builtin(_)) && ty.is_dense(),
        }
    }
}

impl Shape {
    /// Blocks of the ranks of this rank's group as blocks of all ranks.
    fn in_group(&self, blocks: Blocks) -> Blocks {
        if self.split > 0 { blocks.among(self.group_of(self.rank), self.ranks) } else { blocks }
    }

    /// Units that the ranks of a communicator of two exchange, where lengths are [known by pairs](Kind::known_by_pairs): of two blocks, those of
    /// the longer one. `None` where not all ranks know them.
    pub(crate) fn of_pair(&self) -> Option<u64> {
        if self.kind.size_unknown(self.ranks) || self.split > 0 {
            return None;
        }
        let other = 1 - self.rank;
        let [sends, recvs] = [&self.sends, &self.recvs].map(|blocks| blocks.block(other).1);
        Some(match self.kind {
            Kind::Gatherv | Kind::Scatterv if self.rank != self.root => self.len,
            Kind::Gatherv => recvs,
            Kind::Scatterv => sends,
            _ => sends.max(recvs),
        })
    }

    /// What the choice of an algorithm may depend on, for elements that are [plain](Case::plain) or not; `None` where
    /// not all ranks know the sizes.
    pub(crate) fn case(&self, plain: bool) -> Option<Case> {
        let all = |blocks: &Blocks| blocks.start(self.ranks);
        let (units, largest) = match self.kind {
            kind if kind.known_by_pairs() => (self.of_pair()? as f64, None),
            Kind::Allgatherv => {
                let mean = all(&self.recvs) as f64 / f64::from(self.ranks);
                (mean, (0..self.ranks).map(|rank| self.recvs.block(rank).1).max())
            }
            kind if kind.scatters_result() => (all(&self.sends) as f64, None),
            _ => (self.len as f64, None),
        };
        let unit = self.unit as f64;
        let largest = largest.map_or(units, |units| units as f64) * unit;
        Some(Case { largest, plain, ..Case::plain(units * unit, self.ranks) })
    }
}

/// Checks that this rank gives itself as many bytes as it expects.
fn agree(rank: u32, sent: u64, room: u64) -> Result<(), Fault> {
    if sent == room { Ok(()) } else { Err(Fault::Length { from: rank, sent, room }) }
}

/// Packed bytes of a uniform operand; else 0.
fn packed_len(operand: &Operand) -> u64 {
    match operand {
        Operand::Uniform { count, ty, .. } => count * ty.size(),
        _ => 0,
    }
}

/// The view of an operand in packed bytes, and its blocks: one for each of `ranks` ranks, or one in all.
fn view(operand: &Operand, ranks: Option<u32>) -> (View, Blocks) {
    match operand {
        Operand::Nothing | Operand::InPlace => (View::Nothing, Blocks::Even(0)),
        Operand::Uniform { base, count, ty } => {
            let all = View::packed(base, count * u64::from(ranks.unwrap_or(1)), ty);
            (all, Blocks::Even(count * ty.size()))
        }
        Operand::Vector { base, counts, displs, ty } => {
            let steps = |index: usize| match displs.get(index) {
                Some(displ) => *displ,
                None => counts[..index].iter().sum::<u64>() as i64,
            };
            let block = |(index, &count): (usize, &u64)| {
                block(base, steps(index) as isize * ty.extent() as isize, count, ty)
            };
            vector(counts.iter().enumerate().map(block).collect())
        }
        Operand::Wide { base, counts, displs, types } => {
            let block =
                |((&count, &displ), ty): ((&u64, &i64), &TypeArc)| block(base, displ as isize, count, ty);
            vector(counts.iter().zip(displs).zip(types).map(block).collect())
        }
    }
}

/// The memory of one block.
fn block(base: &Buffer, at: isize, count: u64, ty: &Arc<Datatype>) -> Data {
    if count == 0 || ty.size() == 0 {
        return Data::bytes(Buffer::empty());
    }
    Data::typed(base.rebased(at), count, ty)
}

/// The view of blocks that lie anywhere.
fn vector(blocks: Vec<Data>) -> (View, Blocks) {
    let lens = Blocks::from_lens(blocks.iter().map(Data::len));
    (View::blocks(blocks), lens)
}

/// The view of an operand in elements, and their number.
fn elements(operand: &Operand) -> (View, u64) {
    let view = |base: &Buffer, ty: &TypeArc| View::Elements { base: base.clone(), ty: ty.clone() };
    match operand {
        Operand::Uniform { base, count, ty } => (view(base, ty), *count),
        Operand::Vector { base, counts, ty, .. } => (view(base, ty), counts.iter().sum()),
        _ => (View::Nothing, 0),
    }
}
