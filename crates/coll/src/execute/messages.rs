//! The steps that are messages: an execution keeps what is under way for them.

use banyan_datatype::Data;

use super::packed::Incoming;
use super::step::Tried;
use super::work::StepState;
use super::{ExecutionState, UserReduction};
use crate::{Fault, Merge, Messenger, Span};

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
}
