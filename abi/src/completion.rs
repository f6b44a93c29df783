//! Calls on several requests (MPI 5.0, 3.7.5): completing, testing and starting those of an array.

use crate::boundary::{On, SelfComm, mpi};
use crate::buffers::room;
use crate::ffi::*;
use crate::handles::Objects;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use crate::request::{Entry, Look, finish, look, runtime};
use crate::status::{store, store_empty};
use banyan_runtime::{Class, Error, Operation, Outcome, Result, Runtime, Settling, Status, UnderWay, bail};

/// The requests of an array; null handles are left out.
struct Many {
    array: Ptr<MPI_Request>,
    entries: Vec<Listed>,
}

/// A request in an array.
struct Listed {
    at: usize,
    handle: MPI_Request,
    entry: Entry,
}

impl Listed {
    fn place(&self) -> usize {
        self.at
    }
}

impl AsRef<Operation> for Listed {
    #[inline]
    fn as_ref(&self) -> &Operation {
        &self.entry.operation
    }
}

impl Many {
    fn new(count: c_int, array: Ptr<MPI_Request>) -> Result<Many> {
        let len = length(count, array)?;
        let mut entries = room(len)?;
        INSTANCE.handles.requests.visit(|objects| -> Result<()> {
            for at in 0..len {
                let handle = array.at(at)?;
                if handle != MPI_REQUEST_NULL {
                    entries.push(Listed { at, handle, entry: objects.get(handle.0)?.clone() });
                }
            }
            Ok(())
        })?;
        Ok(Many { array, entries })
    }

    fn operations(self) -> Vec<Operation> {
        self.entries.into_iter().map(|listed| listed.entry.operation).collect()
    }

    /// Those that are over, after one poll; they stay as they are. `None` if none is active.
    fn over(&self, runtime: &Runtime) -> Option<Vec<&Listed>> {
        let active = self.entries.iter().filter(|listed| listed.entry.operation.is_active());
        let active: Vec<&Listed> = active.collect();
        if active.is_empty() {
            return None;
        }
        Some(runtime.over(&active, false).into_iter().map(|at| active[at]).collect())
    }

    fn release(&self, which: &[Listed]) -> Result<()> {
        INSTANCE.handles.requests.visit(|mut objects| {
            for Listed { at, handle, .. } in
                which.iter().filter(|listed| !listed.entry.operation.is_persistent())
            {
                objects.remove(handle.0)?;
                self.array.put(*at, MPI_REQUEST_NULL)?;
            }
            Ok(())
        })
    }

    /// Stores the status of a request that is over, and notes its error.
    #[inline]
    fn note(&self, which: usize, outcome: Outcome, out: Statuses, failures: &mut Failures) {
        let Listed { at, entry, .. } = &self.entries[which];
        out.put(*at, &outcome);
        failures.note(*at, outcome, entry.comm);
    }
}

/// The failures of a call that completes several requests.
#[derive(Default)]
struct Failures {
    /// The first of the array: its place there, its error, and the communicator that this is reported on.
    first: Option<(usize, Error, MPI_Comm)>,
    count: usize,
}

impl Failures {
    #[inline(always)]
    fn note(&mut self, at: usize, outcome: Outcome, comm: MPI_Comm) {
        if let Some(error) = outcome.error {
            self.add(at, error, comm);
        }
    }

    #[cold]
    fn add(&mut self, at: usize, error: Error, comm: MPI_Comm) {
        self.count += 1;
        if self.first.as_ref().is_none_or(|&(first, ..)| at < first) {
            self.first = Some((at, error, comm));
        }
    }

    /// MPI_ERR_IN_STATUS if any request failed.
    #[inline(always)]
    fn in_status(self) -> Result<()> {
        match self.first {
            None => Ok(()),
            Some((at, error, comm)) => Self::report(at, &error, self.count - 1).on(comm),
        }
    }

    #[cold]
    fn report(at: usize, error: &Error, more: usize) -> Result<()> {
        Err(Error::new(Class::ERR_IN_STATUS, format!("request {at} failed ({error}), and {more} more")))
    }
}

/// Whether an array has requests, all of them are messages, and none is over; null handles are left out. Most tests find
/// just this, and it takes no copy of the requests.
#[inline(always)]
fn all_pending(count: c_int, array: Ptr<MPI_Request>) -> Result<bool> {
    let len = length(count, array)?;
    let pending = |objects: Objects<'_, Entry>, under_way: UnderWay<'_>| {
        let mut any = false;
        for at in 0..len {
            match array.at(at) {
                Ok(MPI_REQUEST_NULL) => {}
                // A bad handle is reported by the code that completes requests.
                Ok(handle) if objects.find(handle.0).is_some_and(|entry| under_way.has(&entry.operation)) => {
                    any = true;
                }
                _ => return false,
            }
        }
        any
    };
    Ok(runtime()?
        .runtime()
        .all_under_way(|under_way| INSTANCE.handles.requests.visit(|objects| pending(objects, under_way))))
}

/// The length of an array of requests, checked.
#[inline(always)]
fn length(count: c_int, array: Ptr<MPI_Request>) -> Result<usize> {
    let Ok(len) = usize::try_from(count) else { bail!(ERR_COUNT, "the number of requests is {count}") };
    if array.is_null() && len > 0 {
        bail!(ERR_REQUEST, "the array of requests is NULL");
    }
    Ok(len)
}

/// An array of statuses, or MPI_STATUSES_IGNORE.
#[derive(Clone, Copy)]
struct Statuses(Ptr<MPI_Status>);

impl Statuses {
    fn new(array: Ptr<MPI_Status>) -> Self {
        Self(array)
    }

    #[inline]
    fn put(self, at: usize, outcome: &Outcome) {
        self.store(at, &outcome.status, outcome.class());
    }

    /// The status of a request that went well, or was null.
    #[inline]
    fn well(self, at: usize, status: &Status) {
        self.store(at, status, Class::SUCCESS);
    }

    #[inline]
    fn store(self, at: usize, from: &Status, class: Class) {
        if self.0.is_null() {
            return;
        }
        // `at` and `put` fail only for a null pointer.
        if let Ok(mut status) = self.0.at(at) {
            status.fill(from);
            status.MPI_ERROR = class.0;
            let _ = self.0.put(at, status);
        }
    }
}

/// MPI_Waitall. All handles are checked first. Then the messages are completed as they come in the array, and at last what has a state of
/// its own. Handles are good until what they name is over, for threads that complete or cancel it meanwhile.
fn wait_all(count: c_int, array: Ptr<MPI_Request>, statuses: Ptr<MPI_Status>) -> Result<()> {
    let len = length(count, array)?;
    let out = Statuses::new(statuses);
    INSTANCE.handles.requests.visit(|objects| -> Result<()> {
        for at in 0..len {
            let handle = array.at(at)?;
            if handle != MPI_REQUEST_NULL {
                objects.get(handle.0)?;
            }
        }
        Ok(())
    })?;
    let (mut at, mut any_stateful, mut failures) = (0, false, Failures::default());
    let mut advance = |mut objects: Objects<'_, Entry>, mut settling: Settling<'_>| -> Result<bool> {
        while at < len {
            let handle = array.at(at)?;
            if handle == MPI_REQUEST_NULL {
                out.well(at, &Status::EMPTY);
            } else {
                match look(&mut objects, handle, &mut settling)? {
                    Look::UnderWay => return Ok(false),
                    Look::Stateful => any_stateful = true,
                    Look::Over(outcome, comm) => {
                        array.put(at, MPI_REQUEST_NULL)?;
                        out.put(at, &outcome);
                        failures.note(at, outcome, comm);
                    }
                }
            }
            at += 1;
        }
        Ok(true)
    };
    runtime()?.runtime().wait_until(
        |settling| match INSTANCE.handles.requests.visit(|objects| advance(objects, settling)) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        },
        || Many::new(count, array).map(Many::operations).unwrap_or_default(),
    )?;
    if any_stateful { wait_stateful(count, array, out, failures) } else { failures.in_status() }
}

/// Waits for the requests that MPI_Waitall has not completed: those with a state of their own.
#[cold]
fn wait_stateful(count: c_int, array: Ptr<MPI_Request>, out: Statuses, mut failures: Failures) -> Result<()> {
    let many = Many::new(count, array)?;
    runtime()?
        .runtime()
        .wait_all(&many.entries, |which, outcome| many.note(which, outcome, out, &mut failures));
    many.release(&many.entries)?;
    failures.in_status()
}

/// MPI_Waitsome and MPI_Testsome.
fn some(
    block: bool,
    incount: c_int,
    requests: Ptr<MPI_Request>,
    (outcount, indices): (Ptr<c_int>, Ptr<c_int>),
    statuses: Ptr<MPI_Status>,
) -> Result<()> {
    if !block && all_pending(incount, requests)? {
        return outcount.set(0);
    }
    let many = Many::new(incount, requests)?;
    let Some(found) = runtime()?.runtime().some(&many.entries, block) else {
        return outcount.set(MPI_UNDEFINED);
    };
    outcount.set(found.len() as c_int)?;
    let out = Statuses::new(statuses);
    let mut failures = Failures::default();
    for (nth, (which, outcome)) in found.into_iter().enumerate() {
        let Listed { at, entry, .. } = &many.entries[which];
        indices.put(nth, *at as c_int)?;
        out.put(nth, &outcome);
        failures.note(*at, outcome, entry.comm);
        many.release(&many.entries[which..][..1])?;
    }
    failures.in_status()
}

/// Ends MPI_Waitany and MPI_Testany: `found` is the request that is over.
fn any(many: &Many, found: (usize, Outcome), indx: Ptr<c_int>, status: Ptr<MPI_Status>) -> Result<()> {
    let (which, outcome) = found;
    indx.set(many.entries[which].at as c_int)?;
    many.release(&many.entries[which..][..1])?;
    finish(outcome, many.entries[which].entry.comm, status)
}

fn none_active(indx: Ptr<c_int>, status: Ptr<MPI_Status>) -> Result<()> {
    store_empty(status);
    indx.set(MPI_UNDEFINED)
}

mpi! {
    fn MPI_Waitall(count, array_of_requests, array_of_statuses) on SelfComm {
        wait_all(count, array_of_requests, array_of_statuses)
    }

    fn MPI_Testall(count, array_of_requests, flag, array_of_statuses) on SelfComm {
        let many = Many::new(count, array_of_requests)?;
        let (out, mut failures) = (Statuses::new(array_of_statuses), Failures::default());
        let note = |which, outcome| many.note(which, outcome, out, &mut failures);
        let over = many.entries.is_empty() || runtime()?.runtime().test_all(&many.entries, note);
        flag.set(over.into())?;
        if !over {
            return Ok(());
        }
        for at in (0..count as usize).filter(|_| many.entries.len() < count as usize) {
            if array_of_requests.at(at)? == MPI_REQUEST_NULL {
                out.well(at, &Status::EMPTY);
            }
        }
        many.release(&many.entries)?;
        failures.in_status()
    }

    fn MPI_Waitany(count, array_of_requests, indx, status) on SelfComm {
        let many = Many::new(count, array_of_requests)?;
        match runtime()?.runtime().wait_any(&many.entries, Listed::place) {
            Some(found) => any(&many, found, indx, status),
            None => none_active(indx, status),
        }
    }

    fn MPI_Testany(count, array_of_requests, indx, flag, status) on SelfComm {
        if all_pending(count, array_of_requests)? {
            flag.set(0)?;
            return indx.set(MPI_UNDEFINED);
        }
        let many = Many::new(count, array_of_requests)?;
        let found = runtime()?.runtime().test_any(&many.entries, Listed::place);
        flag.set((!matches!(found, Ok(None))).into())?;
        match found {
            Ok(Some(found)) => any(&many, found, indx, status),
            Ok(None) => indx.set(MPI_UNDEFINED),
            Err(()) => none_active(indx, status),
        }
    }

    fn MPI_Waitsome(incount, array_of_requests, outcount, array_of_indices, array_of_statuses) on SelfComm {
        some(true, incount, array_of_requests, (outcount, array_of_indices), array_of_statuses)
    }

    fn MPI_Testsome(incount, array_of_requests, outcount, array_of_indices, array_of_statuses) on SelfComm {
        some(false, incount, array_of_requests, (outcount, array_of_indices), array_of_statuses)
    }

    fn MPI_Request_get_status_all(count, array_of_requests, flag, array_of_statuses) on SelfComm {
        let many = Many::new(count, array_of_requests)?;
        let own = runtime()?;
        let over = many.entries.is_empty() || !own.runtime().over(&many.entries, true).is_empty();
        flag.set(over.into())?;
        if !over {
            return Ok(());
        }
        let out = Statuses::new(array_of_statuses);
        (0..count as usize).for_each(|at| out.well(at, &Status::EMPTY));
        for listed in &many.entries {
            out.put(listed.at, &listed.entry.operation.status(own.runtime()));
        }
        Ok(())
    }

    fn MPI_Request_get_status_any(count, array_of_requests, indx, flag, status) on SelfComm {
        let many = Many::new(count, array_of_requests)?;
        let own = runtime()?;
        let found = many.over(own.runtime());
        flag.set(found.as_ref().is_none_or(|found| !found.is_empty()).into())?;
        let Some(found) = found else { return none_active(indx, status) };
        match found.first() {
            Some(Listed { at, entry, .. }) => {
                store(status, &entry.operation.status(own.runtime()).status);
                indx.set(*at as c_int)
            }
            None => indx.set(MPI_UNDEFINED),
        }
    }

    fn MPI_Request_get_status_some(
        incount, array_of_requests, outcount, array_of_indices, array_of_statuses,
    ) on SelfComm {
        let many = Many::new(incount, array_of_requests)?;
        let own = runtime()?;
        let Some(found) = many.over(own.runtime()) else { return outcount.set(MPI_UNDEFINED) };
        let out = Statuses::new(array_of_statuses);
        for (nth, Listed { at, entry, .. }) in found.iter().enumerate() {
            array_of_indices.put(nth, *at as c_int)?;
            out.put(nth, &entry.operation.status(own.runtime()));
        }
        outcount.set(found.len() as c_int)
    }

    fn MPI_Startall(count, array_of_requests) on SelfComm {
        let many = Many::new(count, array_of_requests)?;
        if many.entries.len() < count as usize {
            bail!(ERR_REQUEST, "one of the requests is MPI_REQUEST_NULL");
        }
        for Listed { entry, .. } in &many.entries {
            entry.operation.start().on(entry.comm)?;
        }
        Ok(())
    }
}
