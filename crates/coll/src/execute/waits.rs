//! Which ranks a collective waits for that does not get on, and how a note from another rank ends it.

use super::{Execution, ExecutionState, StepState};
use crate::schedule::Guard;
use crate::{Fault, Messenger, OpId, Step};

/// What a step waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// A rank is to send or publish so many bytes, or (0 bytes) to get as far as this.
    From(u32, u64),
    /// A rank is to receive so many bytes, or to offer room for them.
    To(u32, u64),
    /// All ranks are to acknowledge something.
    All,
}

impl Execution {
    /// The number of the call on its communicator.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Calls `each` with the ranks that the execution waits for now, with some maybe more than once.
    pub fn awaits(&self, each: &mut dyn FnMut(u32)) {
        let (rank, ranks) = self.0.cursor.seqs.ranks();
        self.0.waits(&mut |awaited, _| match awaited {
            Awaited::From(rank, _) | Awaited::To(rank, _) => each(rank),
            Awaited::All => {
                (0..ranks).filter(|&other| other != rank).for_each(|other| each(self.0.local(other)));
            }
        });
    }

    /// The fault of this call if `rank` does nothing more for it, because that rank is through with the call, or has given it up
    /// (`left` says why); `None` if this rank does not wait for that one.
    pub fn unanswered(&self, (rank, left): (u32, Option<Fault>), io: &mut impl Messenger) -> Option<Fault> {
        let mut fault = None;
        self.0.waits(&mut |awaited, op| {
            let idle = op.is_none_or(|op| !io.met(op));
            let found = match awaited {
                Awaited::From(_, 0) if left.is_none() => return,
                Awaited::From(from, room) => (from, Fault::Length { from, sent: 0, room }),
                Awaited::To(to, sent) => (to, Fault::Unwanted { to, sent }),
                _ => return,
            };
            if idle && found.0 == rank {
                fault.get_or_insert(found.1);
            }
        });
        fault.map(|found| left.unwrap_or(found))
    }

    /// Makes the collective fail with this fault, in the next [`Execution::advance`] in which it is this call's turn.
    pub fn refuse(&mut self, fault: Fault) {
        self.0.refused.get_or_insert(fault);
    }
}

impl ExecutionState {
    /// Calls `each` with all that the execution waits for, and with the message that is under way for it.
    fn waits(&self, each: &mut dyn FnMut(Awaited, Option<OpId>)) {
        if let Some(plan) = &self.plan {
            self.cursor.waits(plan).into_iter().for_each(|awaited| each(awaited, None));
            return;
        }
        for (index, step) in self.work.round.steps.iter().enumerate() {
            let op = match self.work.state(index) {
                _ if self.awaits_device(index) => continue,
                StepState::Over | StepState::AwaitUserOp(_) | StepState::Copying(_) => continue,
                StepState::AwaitMessage(op, _) => Some(*op),
                StepState::Open => None,
            };
            let awaited = awaited(step, |span| span.len * self.shape.unit).map(|awaited| match awaited {
                other if matches!(step.guard(), Guard::Message(_)) => other,
                Awaited::From(rank, bytes) => Awaited::From(self.local(rank), bytes),
                Awaited::To(rank, bytes) => Awaited::To(self.local(rank), bytes),
                Awaited::All => Awaited::All,
            });
            awaited.into_iter().for_each(|awaited| each(awaited, op));
        }
    }
}

/// What a rank waits for at a step, if that needs another rank.
pub(super) fn awaited<R: Copy>(step: &Step<R>, bytes: impl Fn(R) -> u64) -> Option<Awaited> {
    let bytes = || step.range().map_or(0, &bytes);
    Some(match (step.guard(), step) {
        (Guard::Message(to), Step::Send { .. }) | (Guard::Published(to, _), Step::Put { .. }) => {
            Awaited::To(to, bytes())
        }
        (Guard::Message(rank) | Guard::Published(rank, _), _) => Awaited::From(rank, bytes()),
        (Guard::Acked(rank, _), _) => Awaited::From(rank, 0),
        (Guard::CellFree(_) | Guard::Reusable(_), _) => Awaited::All,
        (Guard::Free | Guard::Turn, _) => return None,
    })
}
