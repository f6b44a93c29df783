//! The steps that are messages: an execution keeps what is under way for them. And copies beside them.

use banyan_datatype::Data;

use super::packed::Incoming;
use super::step::Tried;
use super::work::StepState;
use super::{ExecutionState, UserReduction};
use crate::{Fault, Merge, Messenger, Span, Step};

/// Bytes that a rank copies before it looks whether messages have come.
const BESIDE: u64 = 16 << 10;

impl ExecutionState {
    pub(super) fn send(
        &mut self,
        index: usize,
        to: u32,
        from: Span,
        key: u32,
        io: &mut impl Messenger,
    ) -> Result<Tried<UserReduction>, Fault> {
        if let StepState::AwaitMessage(op, _) = *self.work.state(index) {
            let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
            if let StepState::AwaitMessage(_, Some(stage)) = self.work.change(index, StepState::Open) {
                self.work.spare.give(stage);
            }
            return result.map(|_| Tried::Over);
        }
        let (buf, range) = self.range(from);
        let view = if self.is_direct(index) { self.home(from) } else { &self.views[buf] };
        let (data, stage) = match view.data(range) {
            Some(data) => (data, None),
            None => {
                let stage = self.work.spare.take(range.1);
                self.views[buf].pack(range, &stage);
                (Data::bytes(stage.slice(0, range.1 as usize)), Some(stage))
            }
        };
        match io.send(to, self.key(key), &data) {
            Some(op) => {
                self.work.change(index, StepState::AwaitMessage(op, stage));
                Ok(Tried::NotYet)
            }
            None => {
                stage.into_iter().for_each(|stage| self.work.spare.give(stage));
                Ok(Tried::Over)
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        index: usize,
        from: u32,
        into: Span,
        merge: Option<Merge>,
        key: u32,
        io: &mut impl Messenger,
    ) -> Result<Tried<UserReduction>, Fault> {
        if let StepState::Open = self.work.state(index) {
            let on_device = self.landing_on_device(index, (from, into), io);
            let direct = self.is_direct(index).then(|| self.home(into).data(self.range(into).1)).flatten();
            let (data, stage) = match (on_device, direct) {
                (Some(landing), _) => {
                    (Data::typed(landing.clone(), into.len, self.element_type()), Some(landing))
                }
                (None, Some(data)) => (data, None),
                (None, None) => self.landing(into, merge),
            };
            let op = io.recv(from, self.key(key), &data);
            self.work.change(index, StepState::AwaitMessage(op, stage));
        }
        let StepState::AwaitMessage(op, _) = *self.work.state(index) else { return Ok(Tried::NotYet) };
        let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
        let StepState::AwaitMessage(_, stage) = self.work.change(index, StepState::Open) else {
            return Ok(Tried::NotYet);
        };
        let result = result.map_err(|fault| match fault {
            // A messenger need not say whom a message came from.
            Fault::Length { sent, room, .. } => Fault::Length { from, sent, room },
            other => other,
        });
        let (sent, room) = (result?, into.len * self.shape.unit);
        if sent != room {
            return Err(Fault::Length { from, sent, room });
        }
        if let Some(merge) = merge {
            let incoming = match stage {
                None => Incoming::InPlace,
                Some(landing) if landing.kind().is_host_accessible() => Incoming::Landed(landing),
                Some(landing) => Incoming::OnDevice(landing),
            };
            return self.merge(index, merge, incoming);
        }
        if let Some(stage) = stage {
            let (buf, range) = self.range(into);
            self.views[buf].unpack(range, &stage);
            self.work.spare.give(stage);
        }
        Ok(Tried::Over)
    }

    /// Copies within this rank: piece by piece while messages are to come and none goes out, as their senders may wait until this rank
    /// has heard what they announce. One that sends, too, is better through with its own part before it writes a share of theirs.
    pub(super) fn copy_beside_messages(
        &mut self,
        index: usize,
        from: Span,
        into: Span,
    ) -> Tried<UserReduction> {
        let done = if let StepState::Copying(done) = *self.work.state(index) { done } else { 0 };
        let (left, piece) = (into.len - done, (BESIDE / self.shape.unit).max(1));
        let waited_for = left > piece && !self.is_in_place(from, into) && self.only_receives();
        let len = if waited_for { piece } else { left };
        let part = |span: Span| Span { at: span.at + done, len, ..span };
        self.copy(part(from), part(into));
        if len == left {
            return Tried::Over;
        }
        self.work.change(index, StepState::Copying(done + len));
        Tried::NotYet
    }

    /// True if messages of the round are to come, and none goes out.
    fn only_receives(&self) -> bool {
        let comes = |step: &Step| matches!(step, Step::Recv { .. } | Step::RecvReduce { .. });
        let goes = |step: &Step| matches!(step, Step::Send { .. });
        let open = || self.work.open().map(|(_, step)| step);
        open().any(comes) && !open().any(goes)
    }
}
