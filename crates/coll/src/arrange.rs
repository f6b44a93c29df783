//! From a [`Call`] to a [`Shape`] and the [`Place`]s behind its buffers.

use std::sync::Arc;

use banyan_datatype::{Data, Datatype};
use banyan_memory::Buffer;

use crate::place::{Place, Spare};
use crate::{Blocks, Call, Case, Fault, Kind, Memory, Shape};

/// A call, taken apart.
pub(crate) struct Arranged {
    pub(crate) shape: Shape,
    pub(crate) send: Place,
    pub(crate) recv: Place,
    pub(crate) in_place: bool,
    /// What elements are of, if the collective reduces.
    pub(crate) ty: Option<Arc<Datatype>>,
}

impl Arranged {
    /// A call without any data.
    pub(crate) fn nothing(root: u32, commutative: bool, rank: u32, ranks: u32) -> Arranged {
        let none = Blocks::Even(0);
        let shape =
            Shape { rank, ranks, root, len: 0, unit: 1, sends: none.clone(), recvs: none, commutative };
        Arranged { shape, send: Place::Nothing, recv: Place::Nothing, in_place: false, ty: None }
    }

    /// Takes the memory out of the call.
    pub(crate) fn new(call: &mut Call, rank: u32, ranks: u32, spare: &mut Spare) -> Result<Arranged, Fault> {
        let in_place = matches!((&call.send, &call.recv), (Memory::InPlace, _) | (_, Memory::InPlace));
        let commutative = call.op.as_ref().is_none_or(|op| op.commutative());
        let arranged = Arranged { in_place, ..Self::nothing(call.root, commutative, rank, ranks) };
        if call.kind.reduces() { Ok(arranged.reducing(call)) } else { arranged.moving(call, spare) }
    }

    fn moving(mut self, call: &Call, spare: &mut Spare) -> Result<Arranged, Fault> {
        use Kind::*;
        let ranks = self.shape.ranks;
        let blocked_send = matches!(call.kind, Scatter | Scatterv | Alltoall | Alltoallv | Alltoallw);
        let blocked_recv = !matches!(call.kind, Bcast | Scatter | Scatterv);
        (self.send, self.shape.sends) = place(&call.send, blocked_send.then_some(ranks));
        (self.recv, self.shape.recvs) = place(&call.recv, blocked_recv.then_some(ranks));
        let rank = self.shape.rank;
        let own = |blocks: &Blocks| blocks.block(rank).1;
        match call.kind {
            Barrier => {}
            Bcast => self.shape.len = packed_len(&call.recv),
            Scatter | Scatterv => {
                // A root in place keeps its block where it is.
                self.shape.len = match call.recv {
                    Memory::InPlace => own(&self.shape.sends),
                    _ => packed_len(&call.recv),
                };
                if rank == call.root && !self.in_place {
                    agree(rank, own(&self.shape.sends), self.shape.len)?;
                }
            }
            Gather | Gatherv | Allgather | Allgatherv => {
                self.shape.len = match call.send {
                    Memory::InPlace => own(&self.shape.recvs),
                    _ => packed_len(&call.send),
                };
                if rank == call.root || matches!(call.kind, Allgather | Allgatherv) {
                    agree(rank, self.shape.len, own(&self.shape.recvs))?;
                }
            }
            _ => {
                if self.in_place {
                    let total = self.shape.recvs.start(ranks);
                    let copy = spare.take(total);
                    self.recv.pack((0, total), &copy);
                    self.send = Place::Bytes(copy.slice(0, total as usize));
                    self.shape.sends = self.shape.recvs.clone();
                    self.in_place = false;
                }
                self.shape.len = match self.shape.sends {
                    Blocks::Even(len) => len,
                    Blocks::Starts(_) => 0,
                };
            }
        }
        Ok(self)
    }

    fn reducing(mut self, call: &mut Call) -> Arranged {
        let (rank, ranks) = (self.shape.rank, u64::from(self.shape.ranks));
        if let Memory::Vector { counts, ty, .. } = &call.recv {
            let counted = |&count: &u64| if ty.size() == 0 { 0 } else { count };
            self.shape.sends = Blocks::from_lens(counts.iter().map(counted));
        }
        let (send, send_count) = elements(&mut call.send);
        let (recv, recv_count) = elements(&mut call.recv);
        let (Place::Elements { ty, .. }, count) = (match (&send, &recv) {
            (Place::Nothing, _) => (&recv, recv_count),
            _ => (&send, send_count),
        }) else {
            return self;
        };
        let counted = |count: u64| if ty.size() == 0 { 0 } else { count };
        self.shape.unit = ty.size();
        self.shape.len = match call.kind {
            Kind::ReduceScatter => self.shape.sends.block(rank).1,
            Kind::ReduceScatterBlock if matches!(recv, Place::Nothing) => counted(count / ranks),
            Kind::ReduceScatterBlock => counted(recv_count),
            _ => counted(count),
        };
        if call.kind == Kind::ReduceScatterBlock {
            self.shape.sends = Blocks::Even(self.shape.len);
        }
        self.ty = Some(ty.clone());
        (self.send, self.recv) = (send, recv);
        self
    }

    /// What the choice of an algorithm may depend on; `None` where not all ranks know it.
    pub(crate) fn case(&self, kind: Kind) -> Option<Case> {
        let shape = &self.shape;
        let mean = |blocks: &Blocks| blocks.start(shape.ranks) as f64 / f64::from(shape.ranks);
        let units = match kind {
            _ if kind.size_unknown() => return None,
            Kind::Allgatherv => mean(&shape.recvs),
            Kind::ReduceScatter | Kind::ReduceScatterBlock => shape.sends.start(shape.ranks) as f64,
            _ => shape.len as f64,
        };
        Some(Case { bytes: units * shape.unit as f64, ranks: shape.ranks })
    }
}

fn agree(rank: u32, sent: u64, room: u64) -> Result<(), Fault> {
    if sent == room { Ok(()) } else { Err(Fault::Length { from: rank, sent, room }) }
}

fn packed_len(memory: &Memory) -> u64 {
    match memory {
        Memory::Uniform { count, ty, .. } => count * ty.size(),
        _ => 0,
    }
}

/// Memory in packed bytes, a block for each of `ranks`, or one.
fn place(memory: &Memory, ranks: Option<u32>) -> (Place, Blocks) {
    match memory {
        Memory::Nothing | Memory::InPlace => (Place::Nothing, Blocks::Even(0)),
        Memory::Uniform { base, count, ty } => {
            let all = Place::packed(base, count * u64::from(ranks.unwrap_or(1)), ty);
            (all, Blocks::Even(count * ty.size()))
        }
        Memory::Vector { base, counts, displs, ty } => {
            let steps = |index: usize| match displs.get(index) {
                Some(displ) => *displ,
                None => counts[..index].iter().sum::<u64>() as i64,
            };
            let block = |(index, &count): (usize, &u64)| {
                block(base, steps(index) as isize * ty.extent() as isize, count, ty)
            };
            vector(counts.iter().enumerate().map(block).collect())
        }
        Memory::Wide { base, counts, displs, types } => {
            let block = |((&count, &displ), ty)| block(base, displ as isize, count, ty);
            vector(counts.iter().zip(displs).zip(types).map(block).collect())
        }
    }
}

fn block(base: &Buffer, at: isize, count: u64, ty: &Arc<Datatype>) -> Data {
    if count == 0 || ty.size() == 0 {
        return Data::bytes(Buffer::empty());
    }
    Data::typed(base.rebased(at), count, ty)
}

fn vector(blocks: Vec<Data>) -> (Place, Blocks) {
    let lens = Blocks::from_lens(blocks.iter().map(Data::len));
    (Place::blocks(blocks), lens)
}

/// Elements and their number, taken out of a call.
fn elements(memory: &mut Memory) -> (Place, u64) {
    match std::mem::replace(memory, Memory::Nothing) {
        Memory::Uniform { base, count, ty } => (Place::Elements { base, ty }, count),
        Memory::Vector { base, counts, ty, .. } => (Place::Elements { base, ty }, counts.iter().sum()),
        _ => (Place::Nothing, 0),
    }
}
