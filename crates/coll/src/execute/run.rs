//! Carries out the steps of a [`CompiledPlan`], one after the other. This code decides what a barrier or an 8-byte allreduce
//! costs.

use std::sync::Arc;

use banyan_memory::Buffer;

use super::compiled::{CompiledPlan, PlanStep, Spot};
use super::contiguous::{ContiguousCall, Reduction};
use super::shared::{pack_into, packed_bytes};
use super::waits::Awaited;
use super::{Advance, ExecutionState, SeqWindow};
use crate::sections::Cut;
use crate::view::View;
use crate::{Buf, Fault, Messenger, Needs, Op, Published, SharedBuffers};

impl ContiguousCall<'_> {
    /// Carries a step out; false if it must wait.
    #[inline(always)]
    fn step(
        &self,
        plan_step: &PlanStep,
        seqs: &mut SeqWindow,
        scratch: &ScratchView,
        shared: &mut (impl SharedBuffers + ?Sized),
    ) -> Result<bool, Fault> {
        match *plan_step {
            PlanStep::Publish { phase, from } => {
                let (free, seq) = (seqs.cell_free(phase, shared), seqs.tagged(phase));
                if free {
                    match self.send {
                        Some((base, start)) => {
                            shared.publish(seq, base, (start + from.at) as isize, from.len as usize);
                        }
                        None => shared.publish(seq, &Buffer::empty(), 0, 0),
                    }
                }
                Ok(free)
            }
            PlanStep::Pack { phase, sub_buffer, from } => {
                let (free, seq) = (seqs.cell_free(phase, shared), seqs.tagged(phase));
                if free
                    && let Some((base, start)) = self.send
                    && let Some(room) =
                        pack_into(&shared.cell(seq), seq, sub_buffer.into(), u64::from(from.len))
                {
                    room.copy_from(0, base, (start + from.at) as isize, from.len as usize);
                }
                Ok(free)
            }
            PlanStep::PublishPacked { phase } => {
                shared.publish_cell(seqs.tagged(phase));
                Ok(true)
            }
            PlanStep::Unpack { rank, phase, sub_buffer, into } => {
                let seq = seqs.tagged(phase);
                let Some(published) = seqs.poll(rank, phase, shared) else { return Ok(false) };
                let bytes = packed_bytes(&published, (rank, seq), sub_buffer.into(), u64::from(into.len))?;
                if let (Some(recv), Some(bytes)) = (self.recv, bytes) {
                    recv.copy_from(into.at as isize, &bytes, 0, into.len as usize);
                }
                Ok(true)
            }
            PlanStep::Await { rank, phase } => Ok(seqs.poll(rank, phase, shared).is_some()),
            PlanStep::Get { rank, phase, at, into } => {
                let Some(published) = seqs.poll(rank, phase, shared) else { return Ok(false) };
                if let Some(recv) = self.recv {
                    let from = inline(published, rank, (at + into.len) as usize)?;
                    recv.copy_from(into.at as isize, &from, at as isize, into.len as usize);
                }
                Ok(true)
            }
            PlanStep::GetReduce { rank, phase, at, into } => {
                let Some(published) = seqs.poll(rank, phase, shared) else { return Ok(false) };
                if let (Some(recv), Some(Reduction { reducer, ty, .. })) = (self.recv, self.reduction) {
                    let from = inline(published, rank, (at + into.len) as usize)?;
                    let from = from.slice(at as isize, into.len as usize);
                    let into = recv.slice(into.at as isize, into.len as usize);
                    let done = reducer.reduce(ty, &from, &into, self.plan_key.len);
                    done.map_err(|error| Fault::Operator(error.to_string()))?;
                }
                Ok(true)
            }
            PlanStep::Ack { phase } => {
                shared.ack(seqs.of(phase));
                Ok(true)
            }
            PlanStep::Copy { from, into } => {
                let spots = self.at(from, scratch, seqs).zip(self.at(into, scratch, seqs));
                if let Some(((base, at), (to, to_at))) = spots
                    && base.address(at) != to.address(to_at)
                {
                    to.copy_from(to_at, base, at, into.piece.len as usize);
                }
                Ok(true)
            }
            PlanStep::WaitAck { .. } | PlanStep::WaitReuse { .. } | PlanStep::Reduce { .. } => {
                self.step_on_scratch(plan_step, seqs, scratch, shared)
            }
        }
    }

    /// Carries out the steps that only long schedules have; apart, so that they do not slow the others down.
    #[inline(never)]
    fn step_on_scratch(
        &self,
        plan_step: &PlanStep,
        seqs: &mut SeqWindow,
        scratch: &ScratchView,
        shared: &mut (impl SharedBuffers + ?Sized),
    ) -> Result<bool, Fault> {
        match *plan_step {
            PlanStep::WaitAck { rank, phase } => Ok(shared.reached(rank, seqs.of(phase))),
            PlanStep::WaitReuse { chunk } => Ok(seqs.reusable(chunk, shared)),
            PlanStep::Reduce { from, into } => {
                let spots = self.at(from, scratch, seqs).zip(self.at(into, scratch, seqs));
                if let (Some(((base, at), (to, to_at))), Some(Reduction { reducer, ty, .. })) =
                    (spots, self.reduction)
                {
                    let len = into.piece.len as usize;
                    let (from, into) = (base.slice(at, len), to.slice(to_at, len));
                    let done = reducer.reduce(ty, &from, &into, len as u64 / self.plan_key.unit);
                    done.map_err(|error| Fault::Operator(error.to_string()))?;
                }
                Ok(true)
            }
            _ => unreachable!("`step` carries out all others"),
        }
    }

    /// The memory that a spot is in, and the offset there.
    #[inline(always)]
    fn at<'b>(
        &'b self,
        Spot { buf, piece }: Spot,
        scratch: &'b ScratchView,
        seqs: &SeqWindow,
    ) -> Option<(&'b Buffer, isize)> {
        let (base, at) = match buf {
            Buf::Send => self.send.map(|(base, start)| (base, u64::from(start) + u64::from(piece.at)))?,
            Buf::Recv => (self.recv?, u64::from(piece.at)),
            _ => (&scratch.memory, seqs.allotment.at(u64::from(piece.at), &scratch.cut)),
        };
        Some((base, at as isize))
    }
}

/// The shared scratch, and how it is cut for this call.
struct ScratchView {
    memory: Buffer,
    cut: Cut,
}

/// The inline bytes that a rank published; an error if there are fewer than this rank expects.
#[inline]
fn inline(published: Published, rank: u32, room: usize) -> Result<Buffer, Fault> {
    let sent = match published {
        Published::Inline(buffer) if buffer.len() >= room => return Ok(buffer),
        Published::Inline(buffer) => buffer.len() as u64,
        Published::Exposed(sent) => sent,
    };
    Err(Fault::Length { from: rank, sent, room: room as u64 })
}

/// How far a call has come along its compiled plan.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    next: usize,
    pub(crate) seqs: SeqWindow,
}

impl Cursor {
    pub(crate) fn new(seqs: SeqWindow) -> Cursor {
        Cursor { next: 0, seqs }
    }

    /// What the next step waits for.
    pub(super) fn waits(&self, plan: &CompiledPlan) -> Option<Awaited> {
        Some(match *plan.steps.as_ref()?.get(self.next)? {
            PlanStep::Get { rank, into, .. }
            | PlanStep::Unpack { rank, into, .. }
            | PlanStep::GetReduce { rank, into, .. } => Awaited::From(rank, into.len.into()),
            PlanStep::Await { rank, .. } | PlanStep::WaitAck { rank, .. } => Awaited::From(rank, 0),
            PlanStep::Publish { .. } | PlanStep::Pack { .. } | PlanStep::WaitReuse { .. } => Awaited::All,
            _ => return None,
        })
    }

    /// Runs along a compiled plan. A step that must wait is tried again as long as `keep_polling` returns true. `None`: the call
    /// must wait.
    #[inline(never)]
    pub(crate) fn run(
        &mut self,
        call: &ContiguousCall<'_>,
        plan: &CompiledPlan,
        shared: &mut (impl SharedBuffers + ?Sized),
        keep_polling: &mut impl FnMut() -> bool,
    ) -> Option<Result<(), Box<Fault>>> {
        let steps = plan.steps.as_deref().unwrap_or_default();
        let memory = if plan.chunks.number > 0 { shared.scratch() } else { Buffer::empty() };
        let scratch = ScratchView { memory, cut: plan.cut };
        while !self.seqs.turn(shared) {
            keep_polling().then_some(())?;
        }
        while let Some(plan_step) = steps.get(self.next) {
            match call.step(plan_step, &mut self.seqs, &scratch, shared) {
                Ok(true) => self.next += 1,
                Ok(false) => keep_polling().then_some(())?,
                Err(fault) => {
                    let scratch = plan.algorithm.needs == Needs::SharedScratch;
                    self.seqs.give_up(plan.phases, scratch, shared);
                    return Some(Err(Box::new(fault)));
                }
            }
        }
        Some(Ok(()))
    }
}

impl ExecutionState {
    /// Takes over a contiguous call that has come as far as `cursor` says.
    pub(crate) fn adopt(&mut self, call: &ContiguousCall<'_>, plan: Arc<CompiledPlan>, cursor: Cursor) {
        // Where in its buffer starts what this rank publishes.
        self.in_place = call.send.map(|(_, start)| u64::from(start));
        for (base, view) in [call.send.map(|send| send.0), call.recv].into_iter().zip(&mut self.views) {
            if let Some(base) = base {
                *view = View::Bytes(base.clone());
            }
        }
        self.op = call.reduction.map(|reduction| (Op::Builtin(reduction.op), reduction.ty.clone()));
        self.algorithm = plan.algorithm;
        (self.plan, self.cursor) = (Some(plan), cursor);
    }

    /// Runs along the compiled plan as far as possible without waiting; `None` if there is no plan.
    pub(super) fn advance_plan(&mut self, io: &mut impl Messenger) -> Option<Advance> {
        let ExecutionState { plan, cursor, views, in_place, op, .. } = self;
        let plan = plan.as_ref()?;
        let Some(shared) = io.shared() else { unreachable!("shared forms are chosen with CICO buffers") };
        let call = ContiguousCall::resumed((views, *in_place, op.as_ref()), plan.plan_key);
        let Some(result) = cursor.run(&call, plan, shared, &mut || false) else {
            return Some(Advance::Pending);
        };
        let result = result.map_err(|fault| *fault);
        (self.over, self.plan) = (Some(result.clone()), None);
        Some(Advance::Done(result))
    }
}
