//! Requests (MPI 5.0, 3.7 and 3.9): their handles, and completing, starting and cancelling one.

use crate::boundary::{On, SelfComm, mpi};
use crate::comm::{Found, lookup as lookup_comm};
use crate::ffi::*;
use crate::handles::Objects;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use crate::status::{store, store_empty};
use banyan_runtime::{Borrowed, Operation, Outcome, Result, Settled, Settling, Started, bail};

/// A request, and the communicator that its errors are reported on.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) operation: Operation,
    pub(crate) comm: MPI_Comm,
}

/// Gives the user a new request.
#[inline(always)]
pub(crate) fn give(to: Ptr<MPI_Request>, operation: Operation, comm: MPI_Comm) -> Result<()> {
    to.set(MPI_Request(INSTANCE.handles.requests.insert_with(|| Entry { operation, comm })?))
}

/// Gives the user the request of a message that was started. If that fails, the message is given up.
#[inline(always)]
pub(crate) fn give_started(to: Ptr<MPI_Request>, started: Started<Borrowed<'_>>, on: &Found) -> Result<()> {
    match started {
        Started::Done(Outcome { status, error: None }) => give(to, Operation::done(status), on.handle()),
        Started::Done(failed) => give(to, Operation::over(on.runtime(), failed), on.handle()),
        Started::Pending(request) => {
            // Not lent to what may drop it: it then has no place in memory, from which the entry would be copied.
            let operation = request.into_operation();
            let entry = || Entry { operation: operation.clone(), comm: on.handle() };
            match INSTANCE.handles.requests.insert_with(entry) {
                Ok(number) => to.set(MPI_Request(number)),
                Err(error) => {
                    drop(operation.held_by(on.runtime()));
                    Err(error)
                }
            }
        }
    }
}

/// The runtime, through MPI_COMM_SELF, which it always has.
#[inline]
pub(crate) fn runtime() -> Result<Found> {
    lookup_comm(MPI_COMM_SELF)
}

/// The request of a handle; None for MPI_REQUEST_NULL.
fn lookup(request: MPI_Request) -> Result<Option<Entry>> {
    if request == MPI_REQUEST_NULL {
        return Ok(None);
    }
    INSTANCE.handles.requests.lookup(request.0).map(Some)
}

/// The request of a handle that must not be null.
#[inline]
fn active(request: MPI_Request) -> Result<Entry> {
    match request {
        MPI_REQUEST_NULL => bail!(ERR_REQUEST, "the request is MPI_REQUEST_NULL"),
        MPI_Request(number) => INSTANCE.handles.requests.lookup(number),
    }
}

/// What a look at a request finds.
pub(crate) enum Look {
    /// It was a message, and over: the handle is gone.
    Over(Outcome, MPI_Comm),
    /// It is a message that is under way.
    UnderWay,
    /// It has a state of its own, and is completed by itself.
    Stateful,
}

/// Completes a request if it is a message that is over. It is not copied for that, as most requests of short messages are over.
#[inline(always)]
pub(crate) fn look(
    objects: &mut Objects<'_, Entry>,
    handle: MPI_Request,
    settling: &mut Settling<'_>,
) -> Result<Look> {
    let mut other = Look::UnderWay;
    let over = objects.remove_if(handle.0, |entry| match settling.settle(&entry.operation) {
        Settled::Over(outcome) => Some(Look::Over(outcome, entry.comm)),
        Settled::UnderWay => None,
        Settled::Stateful => {
            other = Look::Stateful;
            None
        }
    })?;
    Ok(over.unwrap_or(other))
}

/// Waits for a request, unless it has a state of its own.
#[inline(always)]
fn wait_for_message(handle: MPI_Request) -> Result<Look> {
    runtime()?.runtime().wait_until(
        |mut settling| match INSTANCE
            .handles
            .requests
            .visit(|mut objects| look(&mut objects, handle, &mut settling))
        {
            Ok(Look::UnderWay) => None,
            found => Some(found),
        },
        || active(handle).map(|entry| entry.operation).into_iter().collect(),
    )
}

/// Frees a completed request unless it is persistent.
fn release(to: Ptr<MPI_Request>, handle: MPI_Request, operation: &Operation) -> Result<()> {
    if operation.is_persistent() {
        return Ok(());
    }
    INSTANCE.handles.requests.remove(handle.0)?;
    to.set(MPI_REQUEST_NULL)
}

/// Ends a call that completed one operation.
pub(crate) fn finish(outcome: Outcome, comm: MPI_Comm, status: Ptr<MPI_Status>) -> Result<()> {
    store(status, &outcome.status);
    match outcome.error {
        None => Ok(()),
        Some(error) => Err(error).on(comm),
    }
}

mpi! {
    fn MPI_Wait(request, status) on SelfComm {
        let handle = request.get()?;
        if handle == MPI_REQUEST_NULL {
            store_empty(status);
            return Ok(());
        }
        // What was over before it had a request, as short messages are.
        let over = |entry: &Entry| entry.operation.over_status();
        if let Some(found) = INSTANCE.handles.requests.visit(|mut objects| objects.remove_if(handle.0, over))? {
            request.set(MPI_REQUEST_NULL)?;
            store(status, &found);
            return Ok(());
        }
        if let Look::Over(outcome, comm) = wait_for_message(handle)? {
            request.set(MPI_REQUEST_NULL)?;
            return finish(outcome, comm, status);
        }
        let entry = active(handle)?;
        let outcome = entry.operation.wait(runtime()?.runtime());
        release(request, handle, &entry.operation)?;
        finish(outcome, entry.comm, status)
    }

    fn MPI_Test(request, flag, status) on SelfComm {
        let handle = request.get()?;
        let Some(entry) = lookup(handle)? else {
            store_empty(status);
            return flag.set(1);
        };
        let Some(outcome) = entry.operation.test(runtime()?.runtime()) else { return flag.set(0) };
        flag.set(1)?;
        release(request, handle, &entry.operation)?;
        finish(outcome, entry.comm, status)
    }

    fn MPI_Request_get_status(request, flag, status) on SelfComm {
        let Some(entry) = lookup(request)? else {
            store_empty(status);
            return flag.set(1);
        };
        let own = runtime()?;
        let over = !own.runtime().over(std::slice::from_ref(&entry.operation), true).is_empty();
        flag.set(over.into())?;
        if over {
            store(status, &entry.operation.status(own.runtime()).status);
        }
        Ok(())
    }

    fn MPI_Start(request) on SelfComm {
        let entry = active(request.get()?)?;
        entry.operation.start().on(entry.comm)
    }

    fn MPI_Cancel(request) on SelfComm {
        let entry = active(request.get()?)?;
        entry.operation.cancel(runtime()?.runtime()).on(entry.comm)
    }

    fn MPI_Request_free(request) on SelfComm {
        let handle = request.get()?;
        let old = active(handle)?;
        request.set(MPI_REQUEST_NULL)?;
        let freed = old.operation.free(runtime()?.runtime()).on(old.comm);
        if !matches!(freed, Ok(true)) {
            INSTANCE.handles.requests.remove(handle.0)?;
        }
        freed.map(drop)
    }

    fn MPI_Grequest_complete(request) on SelfComm {
        let old = active(request)?;
        if old.operation.complete().on(old.comm)? {
            // The user freed it before; now it is complete, and gone.
            INSTANCE.handles.requests.remove(request.0)?;
            old.operation.free(runtime()?.runtime()).on(old.comm)?;
        }
        Ok(())
    }
}
