//! [`Message`]: a message that a matched probe took out of matching (MPI 5.0, 3.8.2).

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_p2p::{MsgId, Started};

use crate::comm::{Comm, StartedOp, outcome};
use crate::error::{Class, Error};
use crate::request::Request;
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
        match self.0 {
            None => Outcome::ok(Status::NO_PROC),
            Some((comm, id)) => start(&comm, id, data).wait(comm.runtime()),
        }
    }

    /// Starts to receive it (MPI_Imrecv). `own` is the communicator of the request if the message is that of
    /// MPI_PROC_NULL.
    pub fn irecv(self, data: &Data, own: &Arc<Comm>) -> Request {
        match self.0 {
            None => Request::over(own, Outcome::ok(Status::NO_PROC)),
            Some((comm, id)) => start(&comm, id, data),
        }
    }
}

fn start(comm: &Arc<Comm>, id: MsgId, data: &Data) -> Request {
    let mut guard = comm.runtime().engine_lock.enter();
    let engine = &mut *guard;
    let posted = match engine.p2p.mrecv(&mut engine.ports, id, data) {
        Some(Started::Done(completion)) => StartedOp::Over(outcome(&completion, true)),
        Some(Started::Pending(id)) => StartedOp::Active(id),
        None => StartedOp::Over(Outcome::failed(Error::new(
            Class::ERR_REQUEST,
            "the message was received already",
        ))),
    };
    Request::posted(comm, posted, true)
}
