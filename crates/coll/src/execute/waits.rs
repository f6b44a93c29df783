//! Whom a collective waits for that does not go on, and how others end it.

use super::{Execution, Running, State};
use crate::{Fault, Messenger, OpId, Span, Step};

/// What a step waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    /// Something that a rank does: publish so many bytes, or send them, or get so far.
    From(u32, u64),
    /// A rank's taking so many bytes.
    To(u32, u64),
    /// All ranks' being through with something.
    All,
}

impl Execution {
    /// The number of the call on its communicator.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Names the ranks that it waits for now, some maybe more than once.
    pub fn awaits(&self, each: &mut dyn FnMut(u32)) {
        let (rank, ranks) = self.0.begun.stamps.ranks();
        self.0.waits(&mut |awaited, _| match awaited {
            Awaited::From(rank, _) | Awaited::To(rank, _) => each(rank),
            Awaited::All => (0..ranks).filter(|&other| other != rank).for_each(&mut *each),
        });
    }

    /// What is wrong if `rank` is through with the call, or has `left` it, and does nothing more for this rank; `None` if it
    /// need not.
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

    /// The next [`Execution::advance`] that can ends it with this fault.
    pub fn refuse(&mut self, fault: Fault) {
        self.0.refused.get_or_insert(fault);
    }
}

impl Running {
    /// What it waits for, with the messages that are under way for it.
    fn waits(&self, each: &mut dyn FnMut(Awaited, Option<OpId>)) {
        if let Some(line) = &self.line {
            self.begun.waits(line).into_iter().for_each(|awaited| each(awaited, None));
            return;
        }
        for (index, step) in self.work.round.steps.iter().enumerate() {
            let op = match self.work.state(index) {
                State::Over | State::Combining(_) => continue,
                State::Moving(op, _) => Some(*op),
                State::Open => None,
            };
            self.awaited(step).into_iter().for_each(|awaited| each(awaited, op));
        }
    }

    fn awaited(&self, step: &Step) -> Option<Awaited> {
        let bytes = |span: Span| span.len * self.shape.unit;
        Some(match *step {
            Step::Send { to, from, .. } => Awaited::To(to, bytes(from)),
            Step::Recv { from, into, .. } => Awaited::From(from, bytes(into)),
            Step::RecvReduce { from, merge, .. } => Awaited::From(from, bytes(merge.into)),
            Step::Fetch { rank, into, .. } | Step::Pull { rank, into, .. } => {
                Awaited::From(rank, bytes(into))
            }
            Step::PullReduce { rank, merge, .. } => Awaited::From(rank, bytes(merge.into)),
            Step::Await { rank, .. } | Step::Drain { rank, .. } => Awaited::From(rank, 0),
            Step::Publish { .. } | Step::Lay { .. } | Step::Settle { .. } => Awaited::All,
            Step::Copy { .. } | Step::Reduce { .. } | Step::Release { .. } => return None,
        })
    }
}
