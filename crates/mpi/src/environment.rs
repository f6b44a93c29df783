//! The start and the end of MPI, and what it says about itself.
//!
//! ```
//! use mpi::environment::{library_version, processor_name};
//!
//! let universe = mpi::initialize().unwrap();
//! println!("{} of {} on {}", universe.world().rank(), universe.world().size(), processor_name().unwrap());
//! assert!(library_version().unwrap().starts_with("Banyan MPI"));
//! # use mpi::traits::*;
//! ```

use std::fmt;
use std::string::FromUtf8Error;
use std::sync::Arc;

use banyan_memory::{DeviceFailure, Serialized};
use banyan_runtime::{Attached, Runtime, Threads};
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::error::expect;
use crate::instance::{self, Instance, Phase};
use crate::simulated;
use crate::topology::SimpleCommunicator;

/// MPI in this process. While there is one, MPI may be used; dropping it finalizes MPI.
///
/// ```
/// let universe = mpi::initialize().unwrap();
/// assert!(mpi::initialize().is_none(), "there is one already");
/// # drop(universe);
/// ```
///
/// What it knows:
/// ```
/// use mpi::environment::Universe;
/// use mpi::traits::*;
///
/// let mut universe: Universe = mpi::initialize().unwrap();
/// assert_eq!(universe.world().size(), 1);
/// assert_eq!((universe.size(), universe.appnum()), (None, None), "there is no launcher");
/// universe.set_buffer_size(4096);
/// universe.world().this_process().buffered_send(&1);
/// assert_eq!(universe.world().this_process().receive::<i32>().0, 1);
/// assert_eq!(universe.buffer_size(), 4096);
/// universe.detach_buffer();
/// assert_eq!(universe.buffer_size(), 0);
/// ```
pub struct Universe {
    buffer_size: usize,
}

impl fmt::Debug for Universe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Universe").field("buffer_size", &self.buffer_size).finish()
    }
}

impl Universe {
    /// For who has begun MPI.
    pub(crate) fn new() -> Universe {
        Universe { buffer_size: 0 }
    }

    /// The communicator of all processes of the job (MPI_COMM_WORLD).
    pub fn world(&self) -> SimpleCommunicator {
        SimpleCommunicator::world()
    }

    /// How many processes the launcher expects at most (MPI_UNIVERSE_SIZE); `None` if there is no launcher.
    pub fn size(&self) -> Option<usize> {
        launched(|runtime| runtime.job().universe_size as usize)
    }

    /// Which of the programs of the command line this is (MPI_APPNUM); `None` if there is no launcher.
    pub fn appnum(&self) -> Option<isize> {
        launched(|runtime| runtime.job().appnum as isize)
    }

    /// Bytes that buffered sends may take in all.
    pub fn buffer_size(&self) -> usize {
        self.buffer_size
    }

    /// Sets how many bytes buffered sends may take in all, 512 of them for each message. The library has the memory: here is
    /// only said how much of it there may be.
    pub fn set_buffer_size(&mut self, size: usize) {
        self.detach_buffer();
        if size > 0 {
            let runtime = runtime();
            expect(runtime.attachment.attach(Attached::new(0, size as u64)));
            self.buffer_size = size;
        }
    }

    /// Waits until all buffered sends have left, and allows none from now on.
    pub fn detach_buffer(&mut self) {
        if std::mem::take(&mut self.buffer_size) > 0 {
            let runtime = runtime();
            runtime.attachment.detach(&runtime);
        }
    }
}

fn runtime() -> Arc<Runtime> {
    instance::with(|instance| instance.runtime.clone())
}

fn launched<T>(what: impl FnOnce(&Runtime) -> T) -> Option<T> {
    instance::with(|instance| instance.runtime.is_launched().then(|| what(&instance.runtime)))
}

impl Drop for Universe {
    fn drop(&mut self) {
        if !instance::is_allowed() && simulated::here().is_none() {
            instance::abort("the Universe was dropped by a thread that may not call MPI");
        }
        let Phase::Running(instance) = instance::change(|phase| std::mem::replace(phase, Phase::After))
        else {
            return;
        };
        let Instance { runtime, world, itself } = instance;
        if std::thread::panicking() {
            // The other ranks may wait for this one: the job ends, as it does when a rank fails.
            instance::close();
            let failed =
                DeviceFailure::that_unwinds().map(|failure| format!("a device has failed: {}", failure.what));
            return runtime.abort(101, failed.as_deref().unwrap_or("a rank panicked"));
        }
        drop(itself);
        let closed = runtime.close(world.comm());
        instance::close();
        expect(closed);
    }
}

/// How threads may call MPI.
///
/// ```
/// use mpi::Threading;
///
/// assert!(Threading::Single < Threading::Funneled && Threading::Serialized < Threading::Multiple);
/// ```
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Threading {
    /// There is one thread.
    Single,
    /// Only the thread that has initialized MPI calls it.
    Funneled,
    /// One thread at a time calls.
    Serialized,
    /// Any thread calls at any time.
    Multiple,
}

const LEVELS: [(Threading, Threads); 4] = [
    (Threading::Single, Threads::Single),
    (Threading::Funneled, Threads::Funneled),
    (Threading::Serialized, Threads::Serialized),
    (Threading::Multiple, Threads::Multiple),
];

/// Begins, for a program with one thread. `None` if MPI has begun before.
///
/// ```
/// let universe = mpi::initialize().expect("MPI is initialized once");
/// # drop(universe);
/// ```
///
/// # Panics
/// If the job cannot be joined.
pub fn initialize() -> Option<Universe> {
    initialize_with_threading(Threading::Single).map(|(universe, _)| universe)
}

/// Begins, for a program whose threads call MPI as `threading` says; gives the level that there is, which is the one asked for.
/// `None` if MPI has begun before.
///
/// Up to [`Threading::Funneled`] a call by another thread panics.
///
/// ```
/// use mpi::Threading;
///
/// let (universe, threading) = mpi::initialize_with_threading(Threading::Multiple).unwrap();
/// assert_eq!(threading, Threading::Multiple);
/// let world = universe.world();
/// std::thread::scope(|scope| {
///     scope.spawn(|| mpi::traits::Communicator::size(&world));
/// });
/// ```
///
/// # Panics
/// If the job cannot be joined.
pub fn initialize_with_threading(threading: Threading) -> Option<(Universe, Threading)> {
    let threads = LEVELS.iter().find(|row| row.0 == threading).expect("each level is in the list").1;
    // Simulated ranks, which may use objects of this universe, are threads of the same process.
    let alone = threading <= Threading::Funneled && !cfg!(feature = "simulated");
    // SAFETY: calls come from one thread alone, as `instance::open` says. At the levels above there is no promise.
    let serialized = alone.then(|| unsafe { Serialized::promise() });
    instance::change(|phase| {
        if !matches!(phase, Phase::Before) {
            return None;
        }
        *phase = Phase::of(expect(Runtime::open(threads, serialized)));
        instance::open(threading);
        Some((Universe::new(), threading))
    })
}

/// The thread level that was given.
///
/// ```
/// use mpi::Threading;
/// use mpi::environment::threading_support;
///
/// let _universe = mpi::initialize_with_threading(Threading::Serialized).unwrap();
/// assert_eq!(threading_support(), Threading::Serialized);
/// ```
///
/// # Panics
/// If MPI is not initialized.
pub fn threading_support() -> Threading {
    let threads = instance::phase(|phase| match phase {
        Phase::Running(instance) => instance.runtime.threads(),
        _ => raise!(ERR_OTHER, "MPI is not initialized: call mpi::initialize first"),
    });
    LEVELS.iter().find(|row| row.1 == threads).expect("each level is in the list").0
}

/// Whether MPI has been initialized, also if it was finalized since.
///
/// ```
/// use mpi::environment::{is_finalized, is_initialized};
///
/// assert!(!is_initialized());
/// let universe = mpi::initialize();
/// assert!(is_initialized() && !is_finalized());
/// drop(universe);
/// assert!(is_initialized() && is_finalized());
/// ```
pub fn is_initialized() -> bool {
    instance::phase(|phase| !matches!(phase, Phase::Before))
}

/// Whether MPI was finalized: it cannot begin again.
pub fn is_finalized() -> bool {
    instance::phase(|phase| matches!(phase, Phase::After))
}

/// The version of the MPI standard.
///
/// ```
/// assert_eq!(mpi::environment::version(), (5, 0));
/// ```
pub fn version() -> (i32, i32) {
    (5, 0)
}

/// The library and its version.
///
/// # Errors
/// None: the result is that of the crate `mpi`.
pub fn library_version() -> Result<String, FromUtf8Error> {
    Ok(concat!("Banyan MPI ", env!("CARGO_PKG_VERSION"), ", MPI 5.0, Rust").to_owned())
}

/// The name of this host.
///
/// # Errors
/// If it is not UTF-8.
pub fn processor_name() -> Result<String, FromUtf8Error> {
    String::from_utf8(rustix::system::uname().nodename().to_bytes().to_vec())
}

/// Seconds since some time in the past, the same for all processes of a host.
///
/// ```
/// let before = mpi::time();
/// assert!(mpi::time() >= before && mpi::time_resolution() > 0.0);
/// ```
pub fn time() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Seconds between two ticks of the clock of [`time`].
///
/// ```
/// assert!(mpi::time_resolution() < 1e-3);
/// ```
pub fn time_resolution() -> f64 {
    let tick = clock_getres(ClockId::Monotonic);
    tick.tv_sec as f64 + tick.tv_nsec as f64 * 1e-9
}
