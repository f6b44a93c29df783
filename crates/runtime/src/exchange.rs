//! A send and a receive in one call (MPI_Sendrecv and MPI_Isendrecv, MPI 5.0, 3.10).

use banyan_datatype::Data;
use banyan_transport::Peer;

use crate::Borrowed;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::Result;
use crate::p2p::{Dest, Incoming, Outgoing, SendMode, Sender, check_recv_tag, check_tag};
use crate::request::{Operation, Request, Started};
use crate::status::{Outcome, Source};

impl Comm {
    /// Sends and receives at once (MPI_Sendrecv).
    #[inline(always)]
    pub fn sendrecv(&self, send: Outgoing<'_>, recv: Incoming<'_>) -> Outcome {
        self.exchange(send, recv, SendMode::Standard).unwrap_or_else(Outcome::failed)
    }

    /// [`Comm::sendrecv`] in which the received data replace the sent ones (MPI_Sendrecv_replace): what cannot leave at once
    /// leaves from a copy.
    pub fn sendrecv_replace(&self, data: &Data, to: (Dest, i32), from: (Source, Option<i32>)) -> Outcome {
        let (send, recv) = ((data, to.0, to.1), (data, from.0, from.1));
        self.exchange(send, recv, SendMode::Buffered).unwrap_or_else(Outcome::failed)
    }

    /// Starts a send and a receive under one request (MPI_Isendrecv).
    pub fn isendrecv(&self, send: Outgoing<'_>, recv: Incoming<'_>) -> Result<Started<Borrowed<'_>>> {
        self.start_exchange(send, recv, SendMode::Standard)
    }

    /// [`Comm::isendrecv`] as in [`Comm::sendrecv_replace`] (MPI_Isendrecv_replace).
    pub fn isendrecv_replace(
        &self,
        data: &Data,
        to: (Dest, i32),
        from: (Source, Option<i32>),
    ) -> Result<Started<Borrowed<'_>>> {
        self.start_exchange((data, to.0, to.1), (data, from.0, from.1), SendMode::Buffered)
    }

    #[inline(always)]
    fn exchange(&self, send: Outgoing<'_>, recv: Incoming<'_>, mode: SendMode) -> Result<Outcome> {
        let (dest, sender) = self.checked(send, recv)?;
        let mut engine = self.runtime().engine_lock.enter();
        match self.give(&mut engine, (send, dest), (recv, sender), mode)? {
            None => Ok(self.receive(engine, recv.0, sender, recv.2)),
            Some(both) => {
                drop(engine);
                Ok(both.wait())
            }
        }
    }

    fn start_exchange(
        &self,
        send: Outgoing<'_>,
        recv: Incoming<'_>,
        mode: SendMode,
    ) -> Result<Started<Borrowed<'_>>> {
        let (dest, sender) = self.checked(send, recv)?;
        let mut engine = self.runtime().engine_lock.enter();
        Ok(match self.give(&mut engine, (send, dest), (recv, sender), mode)? {
            None => self.start_recv(&mut engine, recv.0, sender, recv.2).owned_by(self.runtime()),
            Some(both) => Started::Pending(both),
        })
    }

    #[inline(always)]
    fn checked(&self, send: Outgoing<'_>, recv: Incoming<'_>) -> Result<(Option<Peer>, Sender)> {
        let processes = (self.receiver(send.1)?, self.sender(recv.1)?);
        check_tag(send.2)?;
        check_recv_tag(recv.2)?;
        Ok(processes)
    }

    /// Sends; if that is not over at once it posts the receive, too, and gives both under one request.
    #[inline(always)]
    fn give(
        &self,
        engine: &mut Engine,
        (send, dest): (Outgoing<'_>, Option<Peer>),
        (recv, sender): (Incoming<'_>, Sender),
        mode: SendMode,
    ) -> Result<Option<Borrowed<'_>>> {
        let Some(dest) = dest else { return Ok(None) };
        let sent = match self.post_send(engine, send.0, dest, send.2, mode) {
            Started::Done(sent) => sent,
            Started::Pending(sent) => match sent.settled(engine) {
                Some(sent) => sent,
                None => {
                    let received = self.post_recv(engine, recv.0, sender, recv.2);
                    let operation = Operation::exchange(self.runtime(), sent, received);
                    return Ok(Some(Request::of(self.runtime(), operation)));
                }
            },
        };
        sent.into_result().map(|_| None)
    }
}
