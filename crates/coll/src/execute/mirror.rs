//! Operands in memory of a device, which the steps of a schedule cannot touch: steps work on a [`Mirror`] of them in the host's
//! memory. What a step reads is fetched before it, what it has written goes back after it, and while the device copies, the
//! step stays pending.

use banyan_datatype::Data;
use banyan_datatype::device::Copies;
use banyan_memory::HeapBuffer;

use super::step::Tried;
use super::{ExecutionState, UserReduction};
use crate::view::{Range, View};
use crate::{Fault, Messenger, Span};

/// The operands of an execution that are a device's.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// The operands themselves, like the views that stand for them; [`View::Nothing`] where that is the host's memory.
    operands: [View; 2],
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
}

impl Mirror {
    /// True if copies are under way.
    pub(super) fn awaits_copies(&self) -> bool {
        let under_way = |step: &Progress| match step {
            Progress::AwaitFetch(copies) | Progress::AwaitWriteBack(copies) => !copies.is_empty(),
            Progress::Untried | Progress::Fetched => false,
        };
        !self.first.is_empty() || self.steps.iter().any(under_way)
    }
}

/// True once all copies are over.
fn are_over(copies: &mut Vec<Copies>) -> bool {
    copies.retain_mut(|copy| !copy.are_over());
    copies.is_empty()
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
            given.exchange((0, self.shape.sends.start(self.shape.ranks)), &self.views[0], true, &mut first);
        }
        self.mirror = Some(Box::new(Mirror { operands, steps: vec![], first }));
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
            match mirror.operands.get(view) {
                None | Some(View::Nothing) => {}
                Some(operand) => operand.exchange(range, &self.views[view], fetch, &mut copies),
            }
        }
        copies
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
        if let Progress::Untried = self.progress(index) {
            let read = self.work.round.steps[index].reads();
            *self.progress(index) = Progress::AwaitFetch(self.exchange(read.into_iter().flatten(), true));
        }
        match self.progress(index) {
            Progress::AwaitWriteBack(copies) => {
                return Ok(if are_over(copies) { Tried::Over } else { Tried::NotYet });
            }
            Progress::AwaitFetch(copies) => {
                if !are_over(copies) {
                    return Ok(Tried::NotYet);
                }
                *self.progress(index) = Progress::Fetched;
            }
            Progress::Untried | Progress::Fetched => {}
        }
        match self.try_step(index, io)? {
            Tried::Over => Ok(if self.write_back(index) { Tried::Over } else { Tried::NotYet }),
            other => Ok(other),
        }
    }

    /// Called when a step itself is over: true if there is nothing to be written back.
    pub(super) fn write_back(&mut self, index: usize) -> bool {
        if self.mirror.is_none() {
            return true;
        }
        let copies = self.exchange(self.work.round.steps[index].writes(), false);
        let nothing = copies.is_empty();
        *self.progress(index) = Progress::AwaitWriteBack(copies);
        nothing
    }

    /// True if a step itself is over, and only the copy of its result is not.
    pub(super) fn is_written_back(&self, index: usize) -> bool {
        let step = self.mirror.as_ref().and_then(|mirror| mirror.steps.get(index));
        matches!(step, Some(Progress::AwaitWriteBack(_)))
    }

    /// Another round begins.
    pub(super) fn begin_mirrored(&mut self) {
        if let Some(mirror) = &mut self.mirror {
            mirror.steps.clear();
        }
    }
}
