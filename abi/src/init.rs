//! Start and end of MPI (MPI 5.0, 11.2 to 11.6).

use crate::boundary::{SelfComm, mpi};
use crate::ffi::*;
use crate::instance::{INSTANCE, Phase};
use crate::pointer::Ptr;
use crate::process::{self, Text};
use crate::{attr, comm, env, info};
use banyan_memory::Serialized;
use banyan_runtime::{Result, Runtime, Start, Threads, bail};
use std::fmt::Write;

fn level(threads: Threads) -> c_int {
    match threads {
        Threads::Single => MPI_THREAD_SINGLE,
        Threads::Funneled => MPI_THREAD_FUNNELED,
        Threads::Serialized => MPI_THREAD_SERIALIZED,
        Threads::Multiple => MPI_THREAD_MULTIPLE,
    }
}

/// The name of the thread level of this program.
pub(crate) fn level_name() -> &'static str {
    match INSTANCE.runtime().map(|runtime| runtime.threads()) {
        Ok(Threads::Single) => "MPI_THREAD_SINGLE",
        Ok(Threads::Funneled) => "MPI_THREAD_FUNNELED",
        Ok(Threads::Serialized) => "MPI_THREAD_SERIALIZED",
        Ok(Threads::Multiple) => "MPI_THREAD_MULTIPLE",
        Err(_) => "not known",
    }
}

fn threads(required: c_int) -> Result<Threads> {
    Ok(match required {
        MPI_THREAD_SINGLE => Threads::Single,
        MPI_THREAD_FUNNELED => Threads::Funneled,
        MPI_THREAD_SERIALIZED => Threads::Serialized,
        MPI_THREAD_MULTIPLE => Threads::Multiple,
        other => bail!(ERR_ARG, "the thread level {other} is not one of MPI_THREAD_X"),
    })
}

fn start(required: c_int) -> Result<c_int> {
    match INSTANCE.phase() {
        Phase::Before => {}
        Phase::Running => bail!(
            ERR_OTHER,
            "MPI is initialized already: call MPI_Init once (MPI_Initialized tells whether it was)"
        ),
        Phase::After => bail!(ERR_OTHER, "MPI was finalized; it cannot be initialized again"),
    }
    let threads = threads(required)?;
    // SAFETY: below MPI_THREAD_MULTIPLE the program promises this (MPI 5.0, 11.6).
    let serialized = (threads < Threads::Multiple).then(|| unsafe { Serialized::promise() });
    let is_serialized = serialized.is_some();
    let runtime = Runtime::open(threads, serialized)?;
    runtime.name_calls_by(crate::boundary::last_call);
    let (world, itself) = (runtime.world()?, runtime.itself()?);
    let job = runtime.job();
    let launched = runtime.is_launched();
    attr::open(launched.then_some(job.appnum), launched.then_some(job.universe_size));
    info::START.get_or_init(|| if launched { Start::in_job(job) } else { Start::here() });
    let provided = level(runtime.threads());
    // SAFETY: below MPI_THREAD_MULTIPLE the program promises that calls come one after the other (MPI 5.0, 11.6).
    unsafe { INSTANCE.open(runtime, world, itself, is_serialized) };
    Ok(provided)
}

fn finish() -> Result<()> {
    let (world, itself) = (comm::lookup(MPI_COMM_WORLD)?, comm::lookup(MPI_COMM_SELF)?);
    // First of all, while everything still works (MPI 5.0, 11.2.4).
    itself.attributes.delete_all(MPI_COMM_SELF.0)?;
    world.attributes.delete_all(MPI_COMM_WORLD.0)?;
    // What is enqueued on streams is part of what must be over.
    INSTANCE.streams.close()?;
    INSTANCE.runtime()?.close(&world)?;
    drop((world, itself));
    INSTANCE.close();
    Ok(())
}

/// Asks mpirun to print `text` for the user, once however many ranks send it; false if there is no mpirun.
pub(crate) fn notice(text: &str) -> bool {
    INSTANCE.runtime().is_ok_and(|runtime| runtime.notice(text))
}

/// Ends the job with `code`. Nothing may stop this, not even an engine lock that is held (a call from a signal handler):
/// the launcher is told without a lock, and only then are C's output streams written, which may wait for one. The
/// launcher leaves time for that, and kills what takes longer.
pub(crate) fn abort(code: c_int, message: &str) -> ! {
    INSTANCE.with_runtime_at_hand(|runtime| runtime.abort(code, message));
    // SAFETY: allowed at any time.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    if banyan_memory::forked() {
        process::say("MPI: this child that fork() made of a rank ends alone, the job goes on\n");
    }
    let status = if code & 0xff == 0 { 1 } else { code & 0xff };
    // SAFETY: ends the process at once; no exit handler runs, which might call MPI.
    unsafe { libc::_exit(status) }
}

mpi! {
    fn MPI_Init(_argc, _argv) on SelfComm {
        start(MPI_THREAD_SINGLE).map(drop)
    }

    fn MPI_Init_thread(_argc, _argv, required, provided) on SelfComm {
        let required = env::thread_level(required);
        provided.set(start(required)?)
    }

    fn MPI_Finalize() on SelfComm {
        finish()
    }

    fn MPI_Initialized(flag) on SelfComm {
        flag.set((INSTANCE.phase() != Phase::Before).into())
    }

    fn MPI_Finalized(flag) on SelfComm {
        flag.set((INSTANCE.phase() == Phase::After).into())
    }

    fn MPI_Query_thread(provided) on SelfComm {
        provided.set(level(INSTANCE.runtime()?.threads()))
    }

    fn MPI_Is_thread_main(flag) on SelfComm {
        flag.set(INSTANCE.is_main_thread().into())
    }

    fn MPI_Abort(comm, errorcode) on comm {
        // A signal handler may call this: no memory from the allocator, and no lock.
        let mut message = Text::<128>::new();
        let _ = match comm {
            MPI_COMM_WORLD => write!(message, "MPI_Abort(MPI_COMM_WORLD, {errorcode})"),
            MPI_COMM_SELF => write!(message, "MPI_Abort(MPI_COMM_SELF, {errorcode})"),
            comm => write!(message, "MPI_Abort(communicator {:#x}, {errorcode})", comm.0),
        };
        abort(errorcode, message.as_str())
    }
}
