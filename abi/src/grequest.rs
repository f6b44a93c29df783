//! Generalized requests (MPI 5.0, 13.2): the user's callbacks behind `runtime::Generalized`.

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::request;
use banyan_runtime::{Class, Error, Generalized, Operation, Outcome, Result, Status, bail, error_codes};

struct Callbacks {
    query: MPI_Grequest_query_function,
    free: MPI_Grequest_free_function,
    cancel: MPI_Grequest_cancel_function,
    extra_state: usize,
}

fn outcome_of(what: &str, code: c_int) -> Result<()> {
    if code == MPI_SUCCESS {
        return Ok(());
    }
    let class = if error_codes().class(code).is_ok() { Class(code) } else { Class::ERR_OTHER };
    Err(Error::new(class, format!("the {what} function of a generalized request returned {code}")))
}

impl Generalized for Callbacks {
    fn query(&self) -> Outcome {
        let mut status = MPI_Status::default();
        status.fill(&Status::EMPTY);
        // SAFETY: the user's function with its own extra state and a status of ours.
        let code = unsafe { (self.query)(self.extra_state as *mut c_void, &raw mut status) };
        Outcome { status: status.read(), error: outcome_of("query", code).err() }
    }

    fn free(&self) -> Result<()> {
        // SAFETY: as above.
        outcome_of("free", unsafe { (self.free)(self.extra_state as *mut c_void) })
    }

    fn cancel(&self, complete: bool) -> Result<()> {
        // SAFETY: as above.
        outcome_of("cancel", unsafe { (self.cancel)(self.extra_state as *mut c_void, complete.into()) })
    }
}

mpi! {
    fn MPI_Grequest_start(query_fn, free_fn, cancel_fn, extra_state, request) on SelfComm gives request {
        if [query_fn, free_fn, cancel_fn].contains(&0) {
            bail!(ERR_ARG, "a function of the generalized request is NULL");
        }
        // SAFETY: by MPI's contract the user passes functions of these types; none is null.
        let callbacks = unsafe {
            Callbacks {
                query: std::mem::transmute::<usize, MPI_Grequest_query_function>(query_fn),
                free: std::mem::transmute::<usize, MPI_Grequest_free_function>(free_fn),
                cancel: std::mem::transmute::<usize, MPI_Grequest_cancel_function>(cancel_fn),
                extra_state: extra_state.address(),
            }
        };
        let new = Operation::general(&crate::instance::INSTANCE.runtime()?, Box::new(callbacks));
        request::give(request, new, MPI_COMM_SELF)
    }
}
