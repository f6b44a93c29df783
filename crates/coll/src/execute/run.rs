//! Carries out the steps of a compiled [`Plan`], one after the other: what a barrier or an 8-byte allreduce costs is decided here.

use std::sync::Arc;
use std::time::Duration;

use banyan_memory::Buffer;

use super::contiguous::{Contiguous, Scratch};
use super::plan::{Compiled, Plan};
use super::step::{Tried, step};
use super::waits::{Awaited, awaited};
use super::{Advance, ExecutionState, SeqWindow};
use crate::schedule::Guard;
use crate::sections::Allotment;
use crate::view::View;
use crate::{Fault, Messenger, Needs, SharedBuffers};

/// A rank whose cells are all taken is ahead of the slowest one, from which each look at its acknowledgements takes their cache line. So
/// it lets so much time pass between two looks, in which some more cells become free, but not all: a stream of broadcasts fills one in 0.06 to 0.1 us.
const UNTIL_CELLS_ARE_FREE: Duration = Duration::from_nanos(300);

/// How far along its plan a call has come.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Cursor {
    next: usize,
    pub(crate) seqs: SeqWindow,
    /// Where its chunks go.
    pub(crate) allotment: Allotment,
}

impl Cursor {
    #[inline(always)]
    pub(crate) fn new(seqs: SeqWindow) -> Cursor {
        Cursor { next: 0, seqs, allotment: Allotment::default() }
    }

    /// What it waits for at the step that it has come to.
    pub(super) fn waits(&self, plan: &Plan) -> Option<Awaited> {
        let step = plan.compiled.as_ref()?.steps.get(self.next)?;
        awaited(step, |piece| piece.len.into())
    }

    /// Goes along a plan; where it would have to wait it polls on while `keep_polling` says so, which is told how long not to
    /// look before that. `None`: it has to wait.
    #[inline(never)]
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        compiled: &Compiled,
        buffers: (&Buffer, &Buffer),
        shared: &mut impl SharedBuffers,
        keep_polling: &mut impl FnMut(Duration) -> bool,
    ) -> Option<Result<(), Box<Fault>>> {
        let allotment = &self.allotment;
        let scratch = || Scratch { memory: shared.scratch(), cut: &compiled.cut, allotment };
        let scratch = compiled.touches_scratch.then(scratch);
        let mut call = Contiguous { buffers, with: compiled.with.as_ref(), scratch };
        while !self.seqs.turn(shared) {
            keep_polling(Duration::ZERO).then_some(())?;
        }
        while let Some(next) = compiled.steps.get(self.next) {
            match step(next, &mut call, (&mut self.seqs, allotment), shared) {
                Ok(Tried::Over) => self.next += 1,
                Ok(Tried::NotYet) => {
                    let is_ahead = matches!(next.guard(), Guard::CellFree(_));
                    keep_polling(if is_ahead { UNTIL_CELLS_ARE_FREE } else { Duration::ZERO })
                        .then_some(())?;
                }
                Ok(Tried::UserReduction(never)) => match never {},
                Err(fault) => {
                    let scratch = plan.algorithm.needs == Needs::SharedScratch;
                    self.seqs.give_up(compiled.phases, scratch, shared);
                    return Some(Err(Box::new(fault)));
                }
            }
        }
        Some(Ok(()))
    }
}

impl ExecutionState {
    /// Takes over a call on these buffers.
    pub(crate) fn adopt(&mut self, plan: Arc<Plan>, [send, recv]: [Buffer; 2]) {
        [self.views[0], self.views[1]] = [View::Bytes(send), View::Bytes(recv)];
        self.algorithm = plan.algorithm;
        self.plan = Some(plan);
    }

    /// Goes along its plan, as [`Cursor::run`]; `None`, too, if it has none.
    pub(crate) fn run(
        &mut self,
        shared: &mut impl SharedBuffers,
        keep_polling: &mut impl FnMut(Duration) -> bool,
    ) -> Option<Result<(), Box<Fault>>> {
        let plan = self.plan.as_deref()?;
        let [View::Bytes(send), View::Bytes(recv), ..] = &self.views else { return None };
        self.cursor.run(plan, plan.compiled.as_ref()?, (send, recv), shared, keep_polling)
    }

    /// Goes along its plan as far as possible without waiting; `None` if it has none.
    pub(super) fn advance_plan(&mut self, io: &mut impl Messenger) -> Option<Advance> {
        self.plan.as_ref()?;
        let Some(shared) = io.shared() else { unreachable!("compiled plans are chosen with shared buffers") };
        let Some(result) = self.run(shared, &mut |_| false) else { return Some(Advance::Pending) };
        let result = result.map_err(|fault| *fault);
        (self.over, self.plan) = (Some(result.clone()), None);
        Some(Advance::Done(result))
    }
}
