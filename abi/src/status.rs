//! Status objects: how a result is stored in them, and the functions on them (MPI 5.0, 3.2.5).

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::types;
use banyan_runtime::{Result, Source, Status, bail};

/// The sender that a rank or a constant of the ABI names.
#[inline(always)]
pub(crate) fn source_of(rank: c_int) -> Source {
    match rank {
        MPI_PROC_NULL => Source::ProcNull,
        MPI_ANY_SOURCE => Source::Any,
        rank => Source::Rank(rank),
    }
}

/// The tag that a number of the ABI is; `None` is any.
#[inline(always)]
pub(crate) fn any_tag(tag: c_int) -> Option<i32> {
    (tag != MPI_ANY_TAG).then_some(tag)
}

impl MPI_Status {
    /// Bytes of data received, or elements as bytes (MPI_Status_set_elements).
    pub fn bytes(&self) -> u64 {
        u64::from(self.MPI_internal[0] as u32) | u64::from(self.MPI_internal[1] as u32) << 32
    }

    /// Stores the byte count.
    #[inline]
    pub fn set_bytes(&mut self, bytes: u64) {
        self.MPI_internal[0] = bytes as c_int;
        self.MPI_internal[1] = (bytes >> 32) as c_int;
    }

    /// Source, tag, count and the cancelled flag of `from`; the error field stays as it is.
    #[inline]
    pub fn fill(&mut self, from: &Status) {
        self.MPI_SOURCE = match from.source() {
            Source::Rank(rank) => rank,
            Source::Any => MPI_ANY_SOURCE,
            Source::ProcNull => MPI_PROC_NULL,
        };
        self.MPI_TAG = from.tag().unwrap_or(MPI_ANY_TAG);
        self.set_bytes(from.bytes());
        self.MPI_internal[2] = from.is_cancelled().into();
    }

    /// What the status says, for the runtime.
    pub fn read(&self) -> Status {
        let (source, tag) = (source_of(self.MPI_SOURCE), any_tag(self.MPI_TAG));
        Status::new(source, tag, self.bytes(), self.MPI_internal[2] != 0)
    }
}

/// Stores a status where the user wants it, if anywhere. MPI_ERROR is left as it is: only calls that complete
/// several operations set it.
#[inline]
pub(crate) fn store(to: Ptr<MPI_Status>, from: &Status) {
    if to.is_null() {
        return;
    }
    if let Ok(mut status) = to.get() {
        status.fill(from);
        to.set_if(status);
    }
}

/// Stores the empty status of a call that had nothing to complete (MPI 5.0, 3.7.3): its error is success.
pub(crate) fn store_empty(to: Ptr<MPI_Status>) {
    let mut status = MPI_Status::default();
    status.fill(&Status::EMPTY);
    if !to.is_null() {
        to.set_if(status);
    }
}

fn change(status: Ptr<MPI_Status>, f: impl FnOnce(&mut MPI_Status)) -> Result<()> {
    if status.is_null() {
        bail!(ERR_ARG, "the status is MPI_STATUS_IGNORE");
    }
    let mut value = status.get()?;
    f(&mut value);
    status.set(value)
}

/// Elements of a status in the type of the caller; MPI_UNDEFINED if there are too many for it.
fn counted<N: Number>(count: Option<i64>) -> N {
    let undefined = || N::fit(MPI_UNDEFINED.into()).expect("every count type holds MPI_UNDEFINED");
    count.and_then(N::fit).unwrap_or_else(undefined)
}

mpi! {
    fn MPI_Get_count<N>(status, datatype, count) on SelfComm {
        let size = types::lookup(datatype)?.size() as i64;
        let bytes = status.get()?.bytes() as i64;
        let whole = match size {
            0 if bytes == 0 => Some(0),
            0 => None,
            size if bytes % size == 0 => Some(bytes / size),
            _ => None,
        };
        count.set(counted(whole))
    }

    fn MPI_Get_elements<N>(status, datatype, count) on SelfComm {
        count.set(counted(elements(status, datatype)?))
    }

    fn MPI_Get_elements_x(status, datatype, count) on SelfComm {
        count.set(counted(elements(status, datatype)?))
    }

    fn MPI_Status_set_elements<N>(status, datatype, count) on SelfComm {
        set_elements(status, datatype, count.into())
    }

    fn MPI_Status_set_elements_x(status, datatype, count) on SelfComm {
        set_elements(status, datatype, count)
    }

    fn MPI_Status_set_cancelled(status, flag) on SelfComm {
        change(status, |status| status.MPI_internal[2] = (flag != 0).into())
    }

    fn MPI_Test_cancelled(status, flag) on SelfComm {
        flag.set((status.get()?.MPI_internal[2] != 0).into())
    }

    fn MPI_Status_get_source(status, source) on SelfComm {
        source.set(status.get()?.MPI_SOURCE)
    }

    fn MPI_Status_get_tag(status, tag) on SelfComm {
        tag.set(status.get()?.MPI_TAG)
    }

    fn MPI_Status_get_error(status, error) on SelfComm {
        error.set(status.get()?.MPI_ERROR)
    }

    fn MPI_Status_set_source(status, source) on SelfComm {
        change(status, |status| status.MPI_SOURCE = source)
    }

    fn MPI_Status_set_tag(status, tag) on SelfComm {
        change(status, |status| status.MPI_TAG = tag)
    }

    fn MPI_Status_set_error(status, error) on SelfComm {
        change(status, |status| status.MPI_ERROR = error)
    }
}

fn elements(status: Ptr<MPI_Status>, datatype: MPI_Datatype) -> Result<Option<i64>> {
    Ok(types::lookup(datatype)?.elements(status.get()?.bytes()).map(|count| count as i64))
}

fn set_elements(status: Ptr<MPI_Status>, datatype: MPI_Datatype, count: i64) -> Result<()> {
    if count < 0 {
        bail!(ERR_COUNT, "the count is {count}");
    }
    let ty = types::lookup(datatype)?;
    let bytes = if ty.size() == 0 { Some(0) } else { ty.bytes_of(count as u64) };
    let Some(bytes) = bytes.filter(|&bytes| bytes <= i64::MAX as u64) else {
        bail!(ERR_COUNT, "{count} elements of the datatype have more than 2^63 - 1 bytes");
    };
    change(status, |status| status.set_bytes(bytes))
}
