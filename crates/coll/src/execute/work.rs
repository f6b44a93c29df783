//! [`Work`]: the steps that an execution has under way, and how far each has come.

use banyan_memory::Buffer;

use crate::lanes::Lanes;
use crate::view::Spare;
use crate::{OpId, Round, Span, Step};

/// What an execution allocates; the next one uses it again.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(super) round: Round,
    /// Steps at the beginning of the round that are over.
    pub(super) first: usize,
    /// Steps of the round that are not over.
    pub(super) left: usize,
    pub(super) lanes: Lanes,
    /// The states of the steps of the round. Entries before `first` mean nothing (those steps are over); steps beyond the
    /// end are open.
    pub(super) states: Vec<StepState>,
    /// Packed copies that stay exposed until the end.
    pub(super) kept: Vec<Buffer>,
    /// Where others put their blocks for ranges that do not lie in one piece.
    pub(super) offered: Vec<(Span, Buffer)>,
    pub(crate) spare: Spare,
}

impl Work {
    /// The steps of the round that are not over, by their places in it.
    pub(super) fn open(&self) -> impl Iterator<Item = (usize, &Step)> {
        let steps = self.round.steps.iter().enumerate().skip(self.first);
        steps.filter(|&(index, _)| !matches!(self.state(index), StepState::Over))
    }

    /// The entries of states that mean something.
    pub(super) fn entries(&self) -> impl Iterator<Item = &StepState> {
        self.states.iter().skip(self.first)
    }

    pub(super) fn state(&self, index: usize) -> &StepState {
        match index < self.first {
            true => &StepState::Over,
            false => self.states.get(index).unwrap_or(&StepState::Open),
        }
    }

    /// Changes the state of a step, and returns what it was. Most steps are over at once, in their order, and need no entry.
    pub(super) fn change(&mut self, index: usize, state: StepState) -> StepState {
        if self.states.len() <= index {
            self.states.resize_with(index + 1, || StepState::Open);
        }
        std::mem::replace(&mut self.states[index], state)
    }

    pub(super) fn close(&mut self, index: usize) {
        self.left -= 1;
        self.lanes.close(index);
        if index == self.first {
            self.first += 1;
        } else {
            self.change(index, StepState::Over);
        }
    }
}

/// What a step awaits.
#[derive(Debug)]
pub(crate) enum StepState {
    /// Not begun, or not possible yet.
    Open,
    /// Its message is under way; with the memory that stands in for the user's, if the message cannot use that.
    AwaitMessage(OpId, Option<Buffer>),
    /// So many units of a long copy are there.
    Copying(u64),
    /// The owner runs the user's function on the incoming elements; with the memory where they landed, if it is not the user's.
    AwaitUserOp(Option<Buffer>),
    Over,
}
