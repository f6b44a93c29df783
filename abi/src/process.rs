//! What belongs to the whole process: whether MPI runs, and how it ends when an error is fatal.

use crate::boundary::{Target, sentence};
use crate::errhandler;
use crate::ffi::*;
use banyan_runtime::Class;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where the process is in the life of MPI (world model).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Phase {
    /// MPI_Init was not called yet.
    Before,
    /// Between MPI_Init and MPI_Finalize.
    Running,
    /// MPI_Finalize was called.
    After,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Before as u8);

/// The present phase.
#[inline]
pub(crate) fn phase() -> Phase {
    match PHASE.load(Ordering::Acquire) {
        0 => Phase::Before,
        1 => Phase::Running,
        _ => Phase::After,
    }
}

/// Enters a phase.
pub(crate) fn set_phase(phase: Phase) {
    PHASE.store(phase as u8, Ordering::Release);
}

/// MPI_ERRORS_ARE_FATAL: says what happened and ends the job.
pub(crate) fn abort_all(name: &str, target: Target, code: c_int) -> ! {
    let text = report(name, target, code);
    match crate::init::runtime() {
        // mpirun shows it, once for all ranks that say the same.
        Ok(runtime) if runtime.facts().launched => {}
        _ => say(&text),
    }
    crate::init::abort(code, &text)
}

/// MPI_ERRORS_ABORT: as MPI_Abort on the communicator; every job here is one unit, so all of it ends.
pub(crate) fn abort_comm(name: &str, target: Target, code: c_int) -> ! {
    abort_all(name, target, code)
}

/// One block for stderr: call, object, rank, host, class, what, way out.
fn report(name: &str, target: Target, code: c_int) -> String {
    let class = banyan_runtime::error_codes().class(code).map_or(Class(code), Class);
    let own = || banyan_runtime::error_codes().string(code).unwrap_or_default();
    let what = sentence(code).unwrap_or_else(own);
    let block = || {
        format!(
            "\nMPI error in {name}\n  where : {}, on {}\n  class : {} ({}): {}\n  what  : {what}\n  \
         way out: the job ends here because the error handler is MPI_ERRORS_ARE_FATAL; \
         set MPI_ERRORS_RETURN to handle errors in the program\n",
            crate::env::whereabouts(),
            errhandler::describe(target),
            class.name(),
            code,
            class.text().unwrap_or("added by the program"),
        )
    };
    // Without a communicator there is nothing more to say than what failed.
    let line = || format!("{name}: {what} ({})\n", crate::env::whereabouts());
    if crate::comm::world_place().is_some() { block() } else { line() }
}

/// Writes a text to stderr, after what the program has printed.
fn say(text: &str) {
    // SAFETY: writes a buffer of ours; flushes C's streams, which is allowed at any time.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::write(2, text.as_ptr().cast(), text.len());
    }
}
