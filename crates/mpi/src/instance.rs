//! The instance of MPI in this process, and the check that a thread may use it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use banyan_runtime::Runtime;

use crate::environment::Threading;
use crate::error::expect;
use crate::simulated;
use crate::topology::handle::Handle;

/// What belongs to MPI from its start to its end.
pub(crate) struct Instance {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) world: Handle,
    pub(crate) itself: Handle,
}

/// Where this process is: before, during or after MPI.
pub(crate) enum Phase {
    Before,
    Running(Instance),
    After,
}

static PHASE: RwLock<Phase> = RwLock::new(Phase::Before);

/// Which threads may use MPI at the moment.
static ALLOWED: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const MAIN: u8 = 1;
const ANY: u8 = 2;

thread_local! {
    /// This thread has initialized MPI.
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

impl Phase {
    /// MPI has begun.
    pub(crate) fn of(runtime: Arc<Runtime>) -> Phase {
        let world = Handle::new(expect(runtime.world()));
        let itself = Handle::new(expect(runtime.itself()));
        Phase::Running(Instance { runtime, world, itself })
    }
}

/// Looks where this process is, or the simulated rank that this thread is.
pub(crate) fn phase<T>(look: impl FnOnce(&Phase) -> T) -> T {
    let rank = simulated::here();
    let phase = rank.as_ref().map_or(&PHASE, |rank| rank.phase());
    look(&phase.read().unwrap_or_else(PoisonError::into_inner))
}

/// For the start and the end of MPI.
pub(crate) fn change<T>(change: impl FnOnce(&mut Phase) -> T) -> T {
    let rank = simulated::here();
    let phase = rank.as_ref().map_or(&PHASE, |rank| rank.phase());
    change(&mut phase.write().unwrap_or_else(PoisonError::into_inner))
}

/// MPI has begun: this thread is the main thread, and others may use MPI as `threading` says.
///
/// Up to [`Threading::Funneled`] that is no thread but this one. So the promise that the runtime gets for these levels, calls
/// that come one after the other, is kept by [`is_allowed`], which each use of the runtime asks.
pub(crate) fn open(threading: Threading) {
    IS_MAIN.set(true);
    ALLOWED.store(if threading <= Threading::Funneled { MAIN } else { ANY }, Ordering::Release);
}

/// From now on no thread may use MPI.
pub(crate) fn close() {
    if simulated::here().is_none() {
        ALLOWED.store(NONE, Ordering::Release);
    }
}

/// This thread may use MPI now.
#[inline(always)]
pub(crate) fn is_allowed() -> bool {
    if let Some(rank) = simulated::here() {
        return !rank.has_ended() || std::thread::panicking();
    }
    match ALLOWED.load(Ordering::Acquire) {
        ANY => true,
        MAIN => IS_MAIN.get(),
        _ => false,
    }
}

/// Checks that this thread may use MPI now.
///
/// # Panics
/// If it may not.
#[track_caller]
#[inline(always)]
pub(crate) fn enter() {
    if !is_allowed() {
        refuse();
    }
}

#[cold]
#[track_caller]
fn refuse() -> ! {
    let why = phase(|phase| match phase {
        Phase::Before => "MPI is not initialized: call mpi::initialize first",
        Phase::After => "MPI was finalized: the Universe was dropped before this call",
        Phase::Running(_) => {
            "a thread other than the one that initialized MPI calls it, which the thread level does not allow: call \
             mpi::initialize_with_threading(Threading::Multiple)"
        }
    });
    raise!(ERR_OTHER, "{why}")
}

/// Leaves the thread of a simulated rank whose universe has ended.
pub(crate) fn leave_if_ended() {
    if let Some(rank) = simulated::here().filter(|rank| rank.has_ended()) {
        rank.leave();
    }
}

/// The instance, for a thread that may use it.
///
/// # Panics
/// If there is none, or this thread may not use it.
#[track_caller]
pub(crate) fn with<T>(f: impl FnOnce(&Instance) -> T) -> T {
    enter();
    phase(|phase| match phase {
        Phase::Running(instance) => f(instance),
        _ => refuse(),
    })
}

/// Ends the job and this process at once, where memory that the library may still write is about to go.
#[cold]
pub(crate) fn abort(why: &str) -> ! {
    eprintln!("banyan: {why}");
    phase(|phase| {
        if let Phase::Running(instance) = phase {
            instance.runtime.abort(1, why);
        }
    });
    std::process::abort()
}
