//! [`Message`]: a message that a matched probe took out of matching (MPI 5.0, 3.8.2).

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_p2p::MsgId;

use crate::comm::Comm;
use crate::error::{Class, Error};
use crate::p2p::Borrowed;
use crate::request::Started;
use crate::status::{Outcome, Status};

/// A matched message, to be received once.
pub struct Message(Option<(Arc<Comm>, MsgId)>);

impl Message {
    pub(crate) fn of(comm: &Arc<Comm>, id: MsgId) -> Self {
        Self(Some((comm.clone(), id)))
    }

    /// MPI_MESSAGE_NO_PROC.
    pub fn none() -> Self {
        Self(None)
    }

    /// True for the message of MPI_PROC_NULL.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The communicator on which it came.
    pub fn comm(&self) -> Option<&Arc<Comm>> {
        self.0.as_ref().map(|(comm, _)| comm)
    }

    /// Receives it (MPI_Mrecv).
    pub fn recv(self, data: &Data) -> Outcome {
        self.irecv(data).wait()
    }

    /// Starts to receive it (MPI_Imrecv).
    pub fn irecv(&self, data: &Data) -> Started<Borrowed<'_>> {
        let Some((comm, id)) = &self.0 else { return Started::Done(Outcome::ok(Status::NO_PROC)) };
        let engine = &mut *comm.runtime().engine_lock.enter();
        match engine.p2p.mrecv(&mut engine.ports, *id, data) {
            Some(started) => Started::received(started).owned_by(comm.runtime()),
            None => {
                let error = Error::new(Class::ERR_REQUEST, "the message was received already");
                Started::Done(Outcome::failed(error))
            }
        }
    }
}
