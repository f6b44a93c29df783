//! Operands in memory of a device, which the steps of a schedule cannot touch: steps work on a [`Mirror`] of them in the host's
//! memory. What a step reads is fetched before it, unless it is there, what it has written goes back after it, and while the device
//! copies, the step stays pending. Steps that the device carries out itself are in `device`.

use banyan_datatype::Data;
use banyan_datatype::device::{Copies, Reduction};
use banyan_memory::{DeviceFailure, HeapBuffer};

use super::device::{OnDevice, are_over};
use super::ranges::Ranges;
use super::step::Tried;
use super::{ExecutionState, UserReduction};
use crate::view::{Range, View};
use crate::{Fault, Messenger, Span, Step, SubBuffer};

/// The operands of an execution that are a device's.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// The operands themselves, like the views that stand for them; [`View::Nothing`] where that is the host's memory.
    pub(super) operands: [View; 2],
    /// The units that their mirrors have as they are.
    fetched: [Ranges; 2],
    /// What the device combines elements by, unless only the host can.
    pub(super) reduction: Option<Reduction>,
    /// The steps of the round, as far as they have been tried.
    steps: Vec<Progress>,
    /// What must be over before the first round.
    first: Vec<Copies>,
}

/// How far the copies of a step have come.
#[derive(Debug)]
enum Progress {
    Untried,
    AwaitFetch(Vec<Copies>),
    /// What the step reads is there.
    Fetched,
    /// The step itself is over.
    AwaitWriteBack(Vec<Copies>),
    /// The device carries it out.
    OnDevice(OnDevice),
    /// A message from or to the device's memory itself.
    Direct,
}

impl Mirror {
    /// True if copies are under way.
    pub(super) fn awaits_copies(&self) -> bool {
        let under_way = |step: &Progress| match step {
            Progress::AwaitFetch(copies) | Progress::AwaitWriteBack(copies) => !copies.is_empty(),
            Progress::OnDevice(step) => step.has_begun(),
            Progress::Untried | Progress::Fetched | Progress::Direct => false,
        };
        !self.first.is_empty() || self.steps.iter().any(under_way)
    }
}

impl View {
    fn is_on_device(&self) -> bool {
        let (View::Bytes(base) | View::Elements { base, .. } | View::Packed { base, .. }) = self else {
            let View::Blocks { blocks, .. } = self else { return false };
            return blocks.iter().any(|block| !block.buffer().kind().is_host_accessible());
        };
        !base.kind().is_host_accessible()
    }

    /// Memory of the host that has the same units.
    fn mirrored(&self) -> View {
        match self {
            View::Nothing => View::Nothing,
            View::Bytes(buffer) => View::Bytes(HeapBuffer::zeroed(buffer.len())),
            View::Elements { base, ty } => {
                // A user's function may treat elements as whole structures, holes included.
                let (lo, hi) =
                    (base.lo().min(base.lo() + ty.lb() as isize), base.hi() + ty.extent().abs() as isize);
                let base = HeapBuffer::zeroed((hi - lo) as usize).rebased(-lo);
                View::Elements { base, ty: ty.clone() }
            }
            View::Packed { all, .. } => View::Bytes(HeapBuffer::zeroed(all.len() as usize)),
            View::Blocks { starts, .. } => {
                View::Bytes(HeapBuffer::zeroed(starts.last().map_or(0, |&end| end as usize)))
            }
        }
    }

    /// Starts the copies of a range between this view and its mirror: to the mirror, or from it.
    fn exchange(&self, range: Range, mirror: &View, fetch: bool, copies: &mut Vec<Copies>) {
        let Some(here) = mirror.data(range) else {
            unreachable!("a mirror lies in one piece, or as its operand")
        };
        self.parts(range, |there: &Data, skip, at, len| {
            copies.push(match fetch {
                true => here.start_copy(at, there, skip, len),
                false => there.start_copy(skip, &here, at, len),
            });
        });
    }
}

impl ExecutionState {
    /// Puts mirrors in the place of operands that are a device's.
    pub(crate) fn mirror(&mut self) {
        let [send, recv, ..] = &mut self.views;
        if !(send.is_on_device() || recv.is_on_device()) {
            return;
        }
        let mut operands = [send, recv].map(|view| {
            let mirror = if view.is_on_device() { view.mirrored() } else { return View::Nothing };
            std::mem::replace(view, mirror)
        });
        let mut first = vec![];
        // What is given lies where something else is got: all of it is fetched before that comes in.
        if std::mem::take(&mut self.in_place_exchange) {
            let given = std::mem::replace(&mut operands[0], View::Nothing);
            let all = (0, self.shape.sends.start(self.shape.ranks));
            let fetched = DeviceFailure::caught(|| given.exchange(all, &self.views[0], true, &mut first));
            fetched.unwrap_or_else(|failure| self.device_failed(failure));
        }
        let reduction = self.builtin().and_then(|(op, ty)| Reduction::find(op, &ty));
        let fetched = Default::default();
        self.mirror = Some(Box::new(Mirror { operands, fetched, reduction, steps: vec![], first }));
    }

    /// True once the first round may begin.
    pub(super) fn is_mirrored(&mut self) -> bool {
        self.mirror.as_mut().is_none_or(|mirror| are_over(&mut mirror.first))
    }

    /// Starts the copies of those of the spans that lie in an operand of a device's.
    fn exchange(&self, spans: impl IntoIterator<Item = Span>, fetch: bool) -> Vec<Copies> {
        let mut copies = vec![];
        let Some(mirror) = &self.mirror else { return copies };
        for span in spans.into_iter().filter(|span| span.len > 0) {
            let (view, range) = self.range(span);
            let parts = match mirror.fetched.get(view) {
                Some(fetched) if fetch => fetched.missing(range),
                _ => vec![range],
            };
            match mirror.operands.get(view) {
                None | Some(View::Nothing) => {}
                Some(operand) => {
                    parts
                        .into_iter()
                        .for_each(|part| operand.exchange(part, &self.views[view], fetch, &mut copies));
                }
            }
        }
        copies
    }

    /// From now on mirrors have these spans as they are on the device, or do not.
    fn are_fetched(&mut self, spans: impl IntoIterator<Item = Span>, fetched: bool) {
        for span in spans {
            let (view, range) = self.range(span);
            let ranges = self.mirror.as_mut().and_then(|mirror| mirror.fetched.get_mut(view));
            match ranges {
                Some(ranges) if fetched => ranges.insert(range),
                Some(ranges) => ranges.remove(range),
                None => {}
            }
        }
    }

    /// True for a step on a block that does not fit into its sub-buffer: the block goes by another step.
    fn is_left_out(&self, step: &Step) -> bool {
        match *step {
            Step::Pack { from: span, sub_buffer, .. } => !sub_buffer.holds(span.len * self.shape.unit),
            Step::Unpack { into: span, sub_buffer, .. } => {
                SubBuffer::leaves_out(sub_buffer, span.len * self.shape.unit)
            }
            _ => false,
        }
    }

    /// What a step reads.
    fn reads(&self, step: &Step) -> impl Iterator<Item = Span> + use<> {
        let reads = if self.is_left_out(step) { [None; 2] } else { step.reads() };
        reads.into_iter().flatten()
    }

    /// What a step writes.
    fn writes(&self, step: &Step) -> Option<Span> {
        step.writes().filter(|_| !self.is_left_out(step))
    }

    fn progress(&mut self, index: usize) -> &mut Progress {
        let Some(mirror) = &mut self.mirror else { unreachable!("asked for where there is a mirror") };
        if mirror.steps.len() <= index {
            mirror.steps.resize_with(index + 1, || Progress::Untried);
        }
        &mut mirror.steps[index]
    }

    /// Tries a step where operands are mirrored.
    pub(super) fn try_mirrored(
        &mut self,
        index: usize,
        io: &mut impl Messenger,
    ) -> Result<Tried<UserReduction>, Fault> {
        let step = self.work.round.steps[index];
        if let Progress::Untried = self.progress(index) {
            *self.progress(index) = match self.on_device(&step) {
                Some(on_device) => Progress::OnDevice(on_device),
                None if self.may_be_direct(&step, io) => Progress::Direct,
                None => Progress::AwaitFetch(self.exchange(self.reads(&step), true)),
            };
        }
        match self.progress(index) {
            Progress::OnDevice(_) => return self.try_on_device(index, io),
            Progress::Direct => {
                let tried = self.try_step(index, io)?;
                if let Tried::Over = tried {
                    self.are_fetched(self.writes(&step), false);
                }
                return Ok(tried);
            }
            Progress::AwaitWriteBack(copies) => {
                if !are_over(copies) {
                    return Ok(Tried::NotYet);
                }
                self.are_fetched(self.writes(&step), true);
                return Ok(Tried::Over);
            }
            Progress::AwaitFetch(copies) => {
                if !are_over(copies) {
                    return Ok(Tried::NotYet);
                }
                self.are_fetched(self.reads(&step), true);
                // Until what it writes is written back, the mirror has neither what was there nor what will be.
                self.are_fetched(self.writes(&step), false);
                *self.progress(index) = Progress::Fetched;
            }
            Progress::Untried | Progress::Fetched => {}
        }
        match self.try_step(index, io)? {
            Tried::Over => Ok(if self.write_back(index) { Tried::Over } else { Tried::NotYet }),
            other => Ok(other),
        }
    }

    /// Tries a step that the device carries out, once what it waits for is there.
    fn try_on_device(
        &mut self,
        index: usize,
        io: &mut impl Messenger,
    ) -> Result<Tried<UserReduction>, Fault> {
        if !self.under_way(index).has_begun() {
            let tried = self.try_step(index, io)?;
            if !self.under_way(index).has_begun() {
                return Ok(tried);
            }
        }
        let operation = self.builtin();
        let Some(mirror) = &mut self.mirror else { unreachable!("asked for where there is a mirror") };
        let Progress::OnDevice(step) = &mut mirror.steps[index] else { unreachable!("the device's step") };
        let operation = operation.as_ref().map(|(op, ty)| (&mut mirror.reduction, *op, ty));
        if !step.is_over(operation) {
            return Ok(Tried::NotYet);
        }
        step.landings().for_each(|landing| self.work.spare.give(landing));
        self.are_fetched(self.work.round.steps[index].writes(), false);
        Ok(Tried::Over)
    }

    /// True if the device carries out a step.
    pub(super) fn is_on_device(&self, index: usize) -> bool {
        let step = self.mirror.as_ref().and_then(|mirror| mirror.steps.get(index));
        matches!(step, Some(Progress::OnDevice(_)))
    }

    /// True if a step is a message from or to the device's memory itself.
    pub(super) fn is_direct(&self, index: usize) -> bool {
        let step = self.mirror.as_ref().and_then(|mirror| mirror.steps.get(index));
        matches!(step, Some(Progress::Direct))
    }

    /// A step that the device carries out.
    pub(super) fn under_way(&mut self, index: usize) -> &mut OnDevice {
        let Progress::OnDevice(step) = self.progress(index) else { unreachable!("the device's step") };
        step
    }

    /// Called when a step itself is over: true if there is nothing to be written back.
    pub(super) fn write_back(&mut self, index: usize) -> bool {
        if self.mirror.is_none() {
            return true;
        }
        let copies = self.exchange(self.writes(&self.work.round.steps[index]), false);
        let nothing = copies.is_empty();
        *self.progress(index) = Progress::AwaitWriteBack(copies);
        nothing
    }

    /// True if a step waits for the device alone: it is over but for the copy of its result, or the device carries it out.
    pub(super) fn awaits_device(&self, index: usize) -> bool {
        match self.mirror.as_ref().and_then(|mirror| mirror.steps.get(index)) {
            Some(Progress::OnDevice(step)) => step.has_begun(),
            other => matches!(other, Some(Progress::AwaitWriteBack(_))),
        }
    }

    /// Another round begins.
    pub(super) fn begin_mirrored(&mut self) {
        if let Some(mirror) = &mut self.mirror {
            mirror.steps.clear();
        }
    }
}
