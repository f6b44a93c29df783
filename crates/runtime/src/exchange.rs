//! A send and a receive in one call (MPI_Sendrecv and MPI_Isendrecv, MPI 5.0, 3.10).

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::EngineGuard;

use crate::Borrowed;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::Result;
use crate::p2p::{Dest, Incoming, Outgoing, SendMode, Sender, check_recv_tag, check_tag};
use crate::request::{Operation, Posted, Request, Started};
use crate::status::{Outcome, Source, Status};

impl Comm {
    /// Sends and receives at once (MPI_Sendrecv).
    #[inline(always)]
    pub fn sendrecv(&self, send: Outgoing<'_>, recv: Incoming<'_>) -> Outcome {
        self.exchange(send, recv, SendMode::Standard).unwrap_or_else(Outcome::failed)
    }

    /// [`Comm::sendrecv`] in which the received data replace the sent ones (MPI_Sendrecv_replace).
    pub fn sendrecv_replace(&self, data: &Data, to: (Dest, i32), from: (Source, Option<i32>)) -> Outcome {
        let (send, recv) = ((data, to.0, to.1), (data, from.0, from.1));
        self.exchange(send, recv, SendMode::Buffered).unwrap_or_else(Outcome::failed)
    }

    #[inline(always)]
    fn exchange(
        &self,
        (outgoing, dest, sendtag): Outgoing<'_>,
        (incoming, source, recvtag): Incoming<'_>,
        mode: SendMode,
    ) -> Result<Outcome> {
        let (dest, sender) = (self.receiver(dest)?, self.sender(source)?);
        check_tag(sendtag)?;
        check_recv_tag(recvtag)?;
        let mut engine = self.runtime().engine_lock.enter();
        if let Some(dest) = dest {
            match self.post_send(&mut engine, outgoing, dest, sendtag, mode) {
                Started::Done(sent) => drop(sent.into_result()?),
                Started::Pending(sent) => {
                    return self.receive_while_sending(engine, sent, incoming, sender, recvtag);
                }
            }
        }
        Ok(self.receive(engine, incoming, sender, recvtag))
    }

    #[cold]
    fn receive_while_sending(
        &self,
        mut engine: EngineGuard<'_, Engine>,
        sent: Posted,
        incoming: &Data,
        sender: Sender,
        recvtag: Option<i32>,
    ) -> Result<Outcome> {
        let received = self.post_recv(&mut engine, incoming, sender, recvtag);
        let sent = self.finish(engine, sent);
        let mut engine = self.runtime().engine_lock.enter();
        match (sent.error, received) {
            (None, Started::Done(received)) => Ok(received),
            (None, Started::Pending(received)) => Ok(self.finish(engine, received)),
            (Some(error), received) => {
                if let Started::Pending(received) = received {
                    received.abandon(&mut engine);
                }
                Err(error)
            }
        }
    }

    /// Starts a send and a receive under one request (MPI_Isendrecv).
    pub fn isendrecv(
        self: &Arc<Self>,
        send: Outgoing<'_>,
        recv: Incoming<'_>,
    ) -> Result<Started<Borrowed<'_>>> {
        self.start_exchange(send, recv, SendMode::Standard)
    }

    /// [`Comm::isendrecv`] in which the received data replace the sent ones (MPI_Isendrecv_replace): what cannot leave at once
    /// leaves from a copy.
    pub fn isendrecv_replace(
        self: &Arc<Self>,
        data: &Data,
        to: (Dest, i32),
        from: (Source, Option<i32>),
    ) -> Result<Started<Borrowed<'_>>> {
        self.start_exchange((data, to.0, to.1), (data, from.0, from.1), SendMode::Buffered)
    }

    fn start_exchange(
        self: &Arc<Self>,
        (outgoing, dest, sendtag): Outgoing<'_>,
        (incoming, source, recvtag): Incoming<'_>,
        mode: SendMode,
    ) -> Result<Started<Borrowed<'_>>> {
        let (dest, sender) = (self.receiver(dest)?, self.sender(source)?);
        check_tag(sendtag)?;
        check_recv_tag(recvtag)?;
        let mut engine = self.runtime().engine_lock.enter();
        let sent = match dest.map(|dest| self.post_send(&mut engine, outgoing, dest, sendtag, mode)) {
            Some(Started::Pending(sent)) => match sent.settled(&mut engine) {
                Some(over) => Started::Done(over),
                None => Started::Pending(sent),
            },
            Some(over) => over,
            None => Started::Done(Outcome::ok(Status::EMPTY)),
        };
        match sent {
            Started::Done(sent) => {
                sent.into_result()?;
                Ok(self.start_recv(&mut engine, incoming, sender, recvtag, 1).owned_by(self.runtime()))
            }
            Started::Pending(sent) => {
                let received = self.post_recv(&mut engine, incoming, sender, recvtag);
                drop(engine);
                let operation = Operation::exchange(self, sent, received);
                Ok(Started::Pending(Request::of(self.runtime(), operation)))
            }
        }
    }
}
