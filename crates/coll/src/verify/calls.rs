//! The calls of a [`Trial`], bound as the runtime binds them: so what is proved are the shapes of real calls.

use std::sync::Arc;

use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Buffer, HeapBuffer};

use super::memory::mix;
use super::{Trial, shuffled};
use crate::execute::ExecutionState;
use crate::{
    Algorithm, Call, Composition, Kind, Model, Needs, Nodes, Op, Operand, RingOrder, Shape, Stage,
    StageGroup, SubBuffer, Topology, UserOp, of_kind,
};

/// The code of MPI_BYTE in the MPI 5.0 ABI.
const MPI_BYTE: u16 = 0x247;

impl Trial {
    /// The shape of a rank with what becomes of the stages of a composition: in so many chunks, and with any of the algorithms
    /// that each group may choose, whatever others do, compositions among them.
    pub(super) fn composed(
        &self,
        row: &'static Algorithm,
        chunks: u64,
        nodes: &Arc<Nodes>,
        shape: Shape,
    ) -> Shape {
        if row.stages.is_empty() || nodes.number() == 1 {
            return shape;
        }
        let mut numbers = [0; 2];
        let within = nodes.inner(shape.rank);
        let mut choose = |stage: &Stage, inner: &mut Shape| {
            let here = stage.group == StageGroup::Node;
            let group = if here { nodes.of(shape.rank) + 1 } else { 0 };
            if here && nodes.level() == 0 {
                let Trial { scratch, cell_bytes, crowded, single_copy, .. } = *self;
                *inner = Shape { scratch, cell_bytes, crowded, single_copy, ..inner.clone() };
            }
            let may = |row: &&Algorithm| match row.needs {
                Needs::Messages => row.stages.is_empty() || here && within.is_some(),
                Needs::Offers
                    if !SubBuffer::new(self.cell_bytes, 0, inner.ranks.max(2) - 1).holds_offer() =>
                {
                    false
                }
                _ => here && nodes.level() == 0 && inner.ranks > 1,
            };
            let number = &mut numbers[usize::from(here)];
            *number += 1;
            let rows: Vec<_> = of_kind(stage.kind).filter(may).collect();
            let random = mix(mix(self.seed + u64::from(self.root), u64::from(group)), *number);
            rows[random as usize % rows.len()]
        };
        let compose = |row, inner: &Shape| self.composed(row, 1, within?, inner.clone()).composition;
        let composition = Composition::new(row, &shape, nodes, chunks, &mut choose, &compose);
        Shape { composition: Some(Arc::new(composition)), ..shape }
    }
}

/// The shape that a rank has in a trial; of `split` ranks and the others, if `split` is not 0.
pub(super) fn shape(kind: Kind, rank: u32, trial: &Trial, split: u32) -> Shape {
    let topology = Topology::assumed(trial.ranks, false, 1);
    let mut state = ExecutionState::default();
    state.bind(&call(kind, rank, trial, split), rank, split, (&topology, &Model::default()));
    assert_eq!(state.refused, None, "{kind:?} of {trial:?} contradicts itself");
    // Data that only move are bound in bytes, and proved in larger units.
    let shape = state.shape.in_units_of(if kind.reduces() { 1 } else { trial.unit });
    let &Trial { unit, commutative, scratch, cell_bytes, longest_copied, products, crowded, .. } = trial;
    let single_copy = trial.single_copy;
    let ring =
        if trial.ring && split == 0 { RingOrder::new(shuffled(trial.ranks, !trial.seed)) } else { None };
    Shape {
        unit,
        commutative,
        scratch,
        cell_bytes,
        longest_copied,
        products,
        crowded,
        single_copy,
        ring,
        ..shape
    }
}

/// Units of the block that a rank gives another one.
fn uneven_len(trial: &Trial, from: u32, to: u32) -> u64 {
    match trial.even {
        true => trial.len,
        false => mix(mix(u64::from(from), u64::from(to)), trial.len) % (trial.len + 1),
    }
}

/// A reduction that nobody carries out.
struct Never;

impl UserOp for Never {
    fn apply(&self, _: &Buffer, _: &Buffer, _: u64, _: &Arc<Datatype>) {
        unreachable!("there are no data")
    }
}

/// What a rank calls in a trial. The two groups of an intercommunicator may give each other data of different lengths.
fn call(kind: Kind, rank: u32, trial: &Trial, split: u32) -> Call {
    use Kind::*;
    let &Trial { ranks, root, len, unit, commutative, .. } = trial;
    let groups = Shape { ranks, split, ..Shape::NOTHING };
    let own = if split == 0 { 0..ranks } else { groups.group_of(rank) };
    // The ranks that this one has blocks for.
    let others = if split == 0 { 0..ranks } else { groups.group_across(rank) };
    let (is_root, beside) = (rank == root, !others.contains(&root));
    // One above the other: memory for one is enough.
    let byte = Datatype::builtin(MPI_BYTE).expect("MPI_BYTE is built in");
    let bytes = Datatype::contiguous(unit as i64, byte).expect("some bytes");
    let ty = TypeArc::from(Datatype::resized(&bytes, 0, 0).expect("the same bytes"));
    let base = HeapBuffer::zeroed(unit as usize);
    let one = |count: u64| Operand::Uniform { base: base.clone(), count, ty: ty.clone() };
    let each = |counts: Vec<u64>| {
        let (base, displs) = (base.clone(), vec![0; counts.len()]);
        match kind {
            Alltoallw => Operand::Wide { base, displs, types: vec![ty.clone(); counts.len()], counts },
            ReduceScatter => Operand::Vector { base, counts, displs: vec![], ty: ty.clone() },
            _ => Operand::Vector { base, counts, displs, ty: ty.clone() },
        }
    };
    let given = |from: u32, to: u32| match kind {
        _ if kind.uneven() => uneven_len(trial, from, to),
        _ if from < split || split == 0 => len,
        _ => len.div_ceil(2),
    };
    let blocks = |len: &dyn Fn(u32) -> u64| match kind.uneven() {
        true => each(others.clone().map(len).collect()),
        false => one(len(others.start)),
    };
    let only_if = |condition: bool, operand: Operand| if condition { operand } else { Operand::Nothing };
    let (mut send, recv) = match kind {
        Barrier => (Operand::Nothing, Operand::Nothing),
        Bcast => (Operand::Nothing, only_if(is_root || !beside, one(len))),
        Gather | Gatherv => {
            (only_if(!beside, one(given(rank, 0))), only_if(is_root, blocks(&|from| given(from, 0))))
        }
        Scatter | Scatterv => {
            (only_if(is_root, blocks(&|to| given(to, 0))), only_if(!beside, one(given(rank, 0))))
        }
        Allgather | Allgatherv => (one(given(rank, 0)), blocks(&|from| given(from, 0))),
        Alltoall | Alltoallv | Alltoallw => {
            (blocks(&|to| given(rank, to)), blocks(&|from| given(from, rank)))
        }
        Reduce => (only_if(!beside, one(len)), only_if(is_root, one(len))),
        Allreduce | Scan | Exscan => (one(len), one(len)),
        ReduceScatter | ReduceScatterBlock => {
            // Both groups get equally many units in all.
            let (number, all) = (own.len() as u64, len * u64::from(split) * u64::from(ranks - split));
            let lens: Vec<u64> = match split {
                0 => own.clone().map(|other| given(other, 0)).collect(),
                _ => (0..number).map(|index| all * (index + 1) / number - all * index / number).collect(),
            };
            let mine = lens[(rank - own.start) as usize];
            (one(lens.iter().sum()), if kind == ReduceScatter { each(lens) } else { one(mine) })
        }
    };
    let may_be_in_place = Shape { kind, rank, root, ..groups }.in_place_at().is_some();
    if trial.in_place && split == 0 && may_be_in_place {
        send = Operand::InPlace;
    }
    // The other ranks of the root's group do not know it.
    let root = match split > 0 && beside && !is_root {
        true => own.clone().find(|&other| other != rank).unwrap_or(root),
        false => root,
    };
    let op = kind.reduces().then(|| Op::User { commutative, fun: Arc::new(Never) });
    Call { kind, root: if kind.rooted() { root } else { 0 }, send, recv, op }
}
