//! Probing for messages, and receiving those that a probe took out of matching (MPI 5.0, 3.8).

use crate::boundary::{On, SelfComm, mpi};
use crate::buffers::data;
use crate::comm::lookup;
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::p2p::finish;
use crate::pointer::Ptr;
use crate::request::give_started;
use crate::status::{any_tag, source_of, store};
use banyan_runtime::{Message, Result, Status, bail};

fn found(
    comm: MPI_Comm,
    (new, from): (Message, Status),
    message: Ptr<MPI_Message>,
    status: Ptr<MPI_Status>,
) -> Result<()> {
    store(status, &from);
    if new.is_none() {
        return message.set(MPI_MESSAGE_NO_PROC);
    }
    message.set(MPI_Message(INSTANCE.handles.messages.insert((new, comm))?))
}

/// The communicator of a message that is still to be received.
fn comm_of(message: MPI_Message) -> Result<MPI_Comm> {
    match message {
        MPI_MESSAGE_NO_PROC => Ok(MPI_COMM_SELF),
        MPI_MESSAGE_NULL => bail!(ERR_REQUEST, "the message is MPI_MESSAGE_NULL"),
        MPI_Message(number) => INSTANCE.handles.messages.with(number, |(_, comm)| *comm),
    }
}

/// Takes the message out of the table; its handle is gone.
fn take(message: Ptr<MPI_Message>) -> Result<Message> {
    let matched = match message.get()? {
        MPI_MESSAGE_NO_PROC => Message::none(),
        MPI_Message(number) => INSTANCE.handles.messages.remove(number)?.0,
    };
    message.set(MPI_MESSAGE_NULL)?;
    Ok(matched)
}

mpi! {
    fn MPI_Probe(source, tag, comm, status) on comm {
        store(status, &lookup(comm)?.probe(source_of(source), any_tag(tag))?);
        Ok(())
    }

    fn MPI_Iprobe(source, tag, comm, flag, status) on comm {
        let found = lookup(comm)?.iprobe(source_of(source), any_tag(tag))?;
        flag.set(found.is_some().into())?;
        if let Some(from) = found {
            store(status, &from);
        }
        Ok(())
    }

    fn MPI_Mprobe(source, tag, comm, message, status) on comm gives message {
        let matched = lookup(comm)?.mprobe(source_of(source), any_tag(tag))?;
        found(comm, matched, message, status)
    }

    fn MPI_Improbe(source, tag, comm, flag, message, status) on comm gives message {
        let matched = lookup(comm)?.improbe(source_of(source), any_tag(tag))?;
        flag.set(matched.is_some().into())?;
        match matched {
            Some(matched) => found(comm, matched, message, status),
            None => Ok(()),
        }
    }

    fn MPI_Mrecv<N>(buf, count, datatype, message, status) on SelfComm {
        let comm = comm_of(message.get()?)?;
        let data = data(buf, count, datatype).on(comm)?;
        finish(take(message)?.recv(&data), status).on(comm)
    }

    fn MPI_Imrecv<N>(buf, count, datatype, message, request) on SelfComm gives request {
        let comm = comm_of(message.get()?)?;
        let data = data(buf, count, datatype).on(comm)?;
        let object = lookup(comm)?;
        give_started(request, take(message)?.irecv(&data), &object)
    }
}
