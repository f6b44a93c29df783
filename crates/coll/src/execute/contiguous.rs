//! [`ContiguousCall`]: a call whose data lie in pieces without holes and go through shared buffers or the shared scratch, so that
//! it can run along a [`CompiledPlan`].
//!
//! Such a call needs no packing, no message and no function of the user's, and its steps are over in the order of the list: no
//! step needs a state, and all rounds of the schedule are one list. [`super::run`] carries the steps out.

use banyan_datatype::TypeArc;
use banyan_datatype::op::{Builtin, Reducer};
use banyan_memory::Buffer;

use super::compiled::{CompiledPlan, Layout, Piece, PlanKey, shape};
use crate::ledger::About;
use crate::view::View;
use crate::{Algorithm, Call, Kind, Op, Operand, Shape, Topology};

/// A call whose elements lie in memory as they are packed.
#[derive(Clone, Copy)]
pub(crate) struct ContiguousCall<'a> {
    pub(crate) plan_key: PlanKey,
    /// The buffer with what this rank publishes, and where in it that starts.
    pub(crate) send: Option<(&'a Buffer, u32)>,
    pub(crate) recv: Option<&'a Buffer>,
    /// The operands that say where the blocks lie that this rank sends and receives, if blocks may differ.
    pub(crate) sides: Option<[&'a Operand; 2]>,
    /// An alltoall in place: each block is received where another one is sent from.
    pub(crate) in_place_exchange: bool,
    pub(crate) reduction: Option<Reduction<&'a TypeArc>>,
}

/// The operation of a reduction, its kernel, and the type of the elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reduction<T> {
    pub(crate) op: Builtin,
    pub(crate) reducer: Reducer,
    pub(crate) ty: T,
}

/// Buffer, count per block and type of an operand of so many blocks, if their elements have no holes and fill the buffer.
#[inline(always)]
fn dense(memory: &Operand, blocks: u32) -> Option<(&Buffer, u64, &TypeArc)> {
    match memory {
        Operand::Uniform { base, count, ty } => {
            let all = count.checked_mul(u64::from(blocks))?;
            fill(base, all, ty).then_some((base, *count, ty))
        }
        _ => None,
    }
}

/// True if so many elements have no holes, and fill their buffer.
#[inline]
fn fill(base: &Buffer, count: u64, ty: &TypeArc) -> bool {
    let bytes = count.saturating_mul(ty.size());
    ty.is_dense() && ty.size() > 0 && base.lo() == 0 && base.len() as u64 == bytes && bytes <= MAX_BYTES
}

/// Plan steps count offsets in 32 bits.
const MAX_BYTES: u64 = 1 << 31;

impl<'a> ContiguousCall<'a> {
    /// The contiguous form of a call, if it has one.
    #[inline(always)]
    pub(crate) fn of(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<ContiguousCall<'a>> {
        match call.kind.uneven() {
            true => ContiguousCall::uneven(call, rank),
            false => ContiguousCall::even(call, (rank, ranks)),
        }
    }

    /// A call whose blocks, if any, are alike.
    #[inline(always)]
    pub(crate) fn even(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<ContiguousCall<'a>> {
        match call.kind {
            Kind::Barrier => {
                let plan_key = PlanKey { root: call.root, commutative: true, unit: 1, len: 0 };
                Some(ContiguousCall {
                    plan_key,
                    send: None,
                    recv: None,
                    sides: None,
                    in_place_exchange: false,
                    reduction: None,
                })
            }
            kind if kind.reduces() => ContiguousCall::reduction(call, ranks),
            _ => ContiguousCall::data_movement(call, (rank, ranks)),
        }
    }

    /// A call whose blocks may differ.
    pub(crate) fn uneven(call: &'a Call, rank: u32) -> Option<ContiguousCall<'a>> {
        match call.kind {
            Kind::ReduceScatter => ContiguousCall::reduce_scatter(call, rank),
            Kind::Gatherv | Kind::Scatterv | Kind::Allgatherv | Kind::Alltoallv => {
                ContiguousCall::blocks(call, rank)
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn reduction(call: &'a Call, ranks: u32) -> Option<ContiguousCall<'a>> {
        let Some(Op::Builtin(op)) = call.op else { return None };
        let in_place = matches!(call.send, Operand::InPlace);
        let blocks = match call.kind {
            Kind::Reduce | Kind::Allreduce | Kind::Scan | Kind::Exscan => 1,
            Kind::ReduceScatterBlock => ranks,
            _ => return None,
        };
        // In place, the receive buffer holds all blocks that the rank sends.
        let recv = match &call.recv {
            Operand::Nothing => None,
            memory => Some(dense(memory, if in_place { blocks } else { 1 })?),
        };
        let (base, all, ty) = if in_place { recv? } else { dense(&call.send, 1)? };
        let len = recv.map_or(all, |recv| recv.1);
        let given = if in_place { len * u64::from(blocks) } else { all };
        if given != len * u64::from(blocks) || recv.is_some_and(|recv| recv.2.size() != ty.size()) {
            return None;
        }
        let plan_key = PlanKey { root: call.root, unit: ty.size(), len, commutative: op.is_commutative() };
        Some(ContiguousCall {
            plan_key,
            send: Some((base, 0)),
            recv: recv.map(|recv| recv.0),
            sides: None,
            in_place_exchange: false,
            // An operation that is not defined on the type ends in an error when it is executed without a plan.
            reduction: Some(reducer(op, ty)?),
        })
    }

    /// A reduce_scatter, whose blocks may differ.
    fn reduce_scatter(call: &'a Call, rank: u32) -> Option<ContiguousCall<'a>> {
        let Some(Op::Builtin(op)) = call.op else { return None };
        let Operand::Vector { base, counts, ty, .. } = &call.recv else { return None };
        let (own, all) = (*counts.get(rank as usize)?, counts.iter().sum());
        let (send, reach) = match &call.send {
            Operand::InPlace => (base, all),
            memory => match dense(memory, 1)? {
                (send, count, sent) if (count, sent.size()) == (all, ty.size()) => (send, own),
                _ => return None,
            },
        };
        if !fill(base, reach, ty) {
            return None;
        }
        let plan_key =
            PlanKey { root: call.root, unit: ty.size(), len: own, commutative: op.is_commutative() };
        Some(ContiguousCall {
            plan_key,
            send: Some((send, 0)),
            recv: Some(base),
            sides: Some([&call.send, &call.recv]),
            in_place_exchange: false,
            reduction: Some(reducer(op, ty)?),
        })
    }

    /// A data movement whose blocks may differ, on the send side, the receive side, or both.
    fn blocks(call: &'a Call, rank: u32) -> Option<ContiguousCall<'a>> {
        // The buffer of a side, and this rank's own block in it.
        let side = |memory: &'a Operand| match memory {
            Operand::Nothing | Operand::InPlace => Some(None),
            Operand::Vector { base, ty, .. } if ty.is_dense() => {
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
            (Operand::InPlace, Some((base, _))) if call.kind == Kind::Alltoallv => {
                given = &call.recv;
                Some((base, 0))
            }
            (Operand::InPlace, Some((base, own))) => Some((base, own.at)),
            _ => send.map(|(base, _)| (base, 0)),
        };
        let plan_key = PlanKey { root: call.root, unit: 1, len: u64::from(len), commutative: true };
        let recv = recv.map(|(base, _)| base);
        Some(ContiguousCall {
            plan_key,
            send,
            recv,
            sides: Some([given, &call.recv]),
            in_place_exchange: false,
            reduction: None,
        })
    }

    #[inline]
    fn layouts(&self) -> Option<[Layout<'a>; 2]> {
        self.sides.map(|[given, got]| [Layout::of(given), Layout::of(got)])
    }

    /// Bytes of the largest block that this rank knows of.
    #[inline]
    pub(crate) fn largest(&self) -> u64 {
        let uneven = self.layouts().map_or(0, |[given, got]| given.largest().max(got.largest()));
        uneven.max(self.plan_key.block())
    }

    /// True if the compiled plan is for calls like this one.
    #[inline]
    pub(crate) fn fits(&self, plan: &CompiledPlan) -> bool {
        plan.serves(&self.plan_key, self.layouts())
    }

    pub(crate) fn shape(&self, kind: Kind, rank: u32, topology: &Topology) -> Shape {
        shape(kind, &self.plan_key, self.layouts(), rank, topology)
    }

    /// What the call is about; `plan` is its compiled plan.
    #[inline(always)]
    pub(crate) fn about(&self, plan: &CompiledPlan) -> About {
        match self.reduction {
            Some(Reduction { op, .. }) => plan.about.with_builtin(op),
            None => plan.about,
        }
    }

    /// Compiles the plan for the call by an algorithm.
    pub(crate) fn plan(&self, algorithm: &'static Algorithm, shape: &Shape) -> CompiledPlan {
        CompiledPlan::new((self.plan_key, self.layouts()), algorithm, shape)
    }

    #[inline(always)]
    fn data_movement(call: &'a Call, (rank, ranks): (u32, u32)) -> Option<ContiguousCall<'a>> {
        // How many blocks the rank sends and receives.
        let (gives, gets) = match call.kind {
            Kind::Bcast => (0, 1),
            Kind::Gather | Kind::Allgather => (1, ranks),
            Kind::Scatter => (ranks, 1),
            Kind::Alltoall => (ranks, ranks),
            _ => return None,
        };
        let side = |memory, blocks| match memory {
            &Operand::Nothing | &Operand::InPlace => Some(None),
            memory => dense(memory, blocks).map(Some),
        };
        let (send, recv) = (side(&call.send, gives)?, side(&call.recv, gets)?);
        let bytes = |side: Option<(_, u64, &TypeArc)>| side.map(|(_, count, ty)| count * ty.size());
        let len = match (bytes(send), bytes(recv)) {
            (Some(sent), Some(room)) if sent != room => return None,
            (sent, room) => sent.or(room)?,
        };
        let send = match (&call.send, recv) {
            (Operand::InPlace, Some((base, ..))) if gives == 1 => {
                Some((base, (u64::from(rank) * len) as u32))
            }
            (Operand::InPlace, Some((base, ..))) => Some((base, 0)),
            (_, Some((base, ..))) if call.kind == Kind::Bcast => Some((base, 0)),
            _ => send.map(|(base, ..)| (base, 0)),
        };
        let in_place_exchange = call.kind == Kind::Alltoall && matches!(call.send, Operand::InPlace);
        let plan_key = PlanKey { root: call.root, unit: 1, len, commutative: true };
        Some(ContiguousCall {
            plan_key,
            send,
            recv: recv.map(|side| side.0),
            sides: None,
            in_place_exchange,
            reduction: None,
        })
    }

    /// The contiguous call that an execution has [adopted](super::ExecutionState::adopt).
    pub(super) fn resumed(
        (views, in_place, op): (&'a [View; 4], Option<u64>, Option<&'a (Op, TypeArc)>),
        plan_key: PlanKey,
    ) -> ContiguousCall<'a> {
        let [send, recv] = [0, 1].map(|side| match &views[side] {
            View::Bytes(buffer) => Some(buffer),
            _ => None,
        });
        let reduction = match op {
            Some((Op::Builtin(op), ty)) => reducer(*op, ty),
            _ => None,
        };
        let start = in_place.unwrap_or(0) as u32;
        let send = send.map(|base| (base, start));
        ContiguousCall { plan_key, send, recv, sides: None, in_place_exchange: false, reduction }
    }

    /// True if the call can be carried out along its compiled plan.
    #[inline]
    pub(crate) fn can_run(&self, plan: &CompiledPlan) -> bool {
        plan.steps.is_some() && !(self.in_place_exchange && plan.chunks.number > 0)
    }
}

#[inline(always)]
fn reducer(op: Builtin, ty: &TypeArc) -> Option<Reduction<&TypeArc>> {
    Some(Reduction { op, reducer: Reducer::find(op, ty).ok()?, ty })
}
