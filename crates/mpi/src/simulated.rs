//! [`Universe::simulated`]: a universe whose ranks are threads of this process, over a simulated network, for tests.

use std::any::Any;
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread;

use banyan_memory::DeviceFailure;
use banyan_runtime::{Job, Net, NetOptions, OneSided, Runtime, Threads};

use crate::environment::Universe;
use crate::error::expect;
use crate::instance::{self, Phase};

thread_local! {
    /// The simulated rank that this thread is.
    static HERE: RefCell<Option<Rc<SimulatedRank>>> = const { RefCell::new(None) };
}

/// The simulated rank that this thread is, if it is one.
pub(crate) fn here() -> Option<Rc<SimulatedRank>> {
    HERE.with_borrow(Option::clone)
}

/// A rank that is a thread.
pub(crate) struct SimulatedRank {
    rank: u32,
    phase: RwLock<Phase>,
    job: Arc<SimulatedJob>,
}

/// What the ranks of a simulated universe have in common.
#[derive(Default)]
struct SimulatedJob {
    /// Those of the ranks that have begun.
    runtimes: Mutex<Vec<Arc<Runtime>>>,
    /// The rank that panicked first.
    ended_by: OnceLock<u32>,
    /// What it died of.
    why: OnceLock<String>,
}

/// What the thread of a rank unwinds with when another rank has ended the universe.
struct Ended;

impl SimulatedRank {
    /// What stands for the phase of the process at this rank.
    pub(crate) fn phase(&self) -> &RwLock<Phase> {
        &self.phase
    }

    /// A rank has panicked.
    pub(crate) fn has_ended(&self) -> bool {
        self.job.ended_by.get().is_some()
    }

    /// Ends the universe, as this rank panics.
    pub(crate) fn end(&self) {
        self.job.end(self.rank);
    }

    /// Ends the universe because of a panic of this rank that goes no further.
    pub(crate) fn end_by(&self, panic: &(dyn Any + Send)) {
        self.end();
        self.job.explain(self.rank, panic);
    }

    /// Leaves the thread of this rank, whose universe has ended.
    pub(crate) fn leave(&self) -> ! {
        resume_unwind(Box::new(Ended))
    }
}

impl SimulatedJob {
    fn runtimes(&self) -> MutexGuard<'_, Vec<Arc<Runtime>>> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank begins.
    fn join(&self, runtime: &Arc<Runtime>) {
        self.runtimes().push(runtime.clone());
        if let Some(rank) = self.ended_by.get() {
            runtime.end(&cause(*rank));
        }
    }

    /// A rank panics: what is under way at any rank is over, and nobody waits any more.
    fn end(&self, rank: u32) {
        if self.ended_by.set(rank).is_ok() {
            self.runtimes().iter().for_each(|runtime| runtime.end(&cause(rank)));
        }
    }

    /// Keeps the message of a panic, if it is what the universe ended by.
    fn explain(&self, rank: u32, panic: &(dyn Any + Send)) {
        if self.ended_by.get() == Some(&rank) && !panic.is::<Ended>() {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let text =
                text.or_else(|| panic.downcast_ref::<DeviceFailure>().map(|failure| failure.what.as_str()));
            // The first one counts.
            let _ = self.why.set(text.unwrap_or("with a value that is no text").to_owned());
        }
    }

    /// Is a rank, which this thread is from now on; `None` if the universe ends early.
    fn run<T>(self: &Arc<Self>, job: &Job, net: &Net, body: impl FnOnce(&mut Universe) -> T) -> Option<T> {
        let rank = SimulatedRank { rank: job.rank, phase: RwLock::new(Phase::Before), job: self.clone() };
        HERE.set(Some(Rc::new(rank)));
        let run = || {
            let end = net.endpoint(job.rank as usize);
            // Another thread may end the universe: the engine lock is to be a real one.
            let runtime = expect(Runtime::open_over(end, None, job, Threads::Funneled, None));
            self.join(&runtime);
            instance::change(|phase| *phase = Phase::of(runtime));
            body(&mut Universe::new())
        };
        let over = catch_unwind(AssertUnwindSafe(run));
        if let Err(panic) = &over {
            self.end(job.rank);
            self.explain(job.rank, &**panic);
        }
        over.ok()
    }
}

fn cause(rank: u32) -> String {
    format!("rank {rank} panicked")
}

impl Universe {
    /// Runs a function as each rank of a universe, and gives the results in the order of ranks: for tests, which need no launcher
    /// then. The ranks are threads, and messages go over a simulated network, which delays them at random: messages of
    /// different ranks overtake each other. Needs the feature `simulated`.
    ///
    /// ```
    /// use mpi::environment::Universe;
    /// use mpi::traits::*;
    ///
    /// let sums = Universe::simulated(4, |universe| {
    ///     let mut sum = 0;
    ///     let world = universe.world();
    ///     world.all_reduce_into(&world.rank(), &mut sum, mpi::collective::SystemOperation::sum());
    ///     sum
    /// });
    /// assert_eq!(sums, [6; 4]);
    /// ```
    ///
    /// A rank is one thread: others that it makes may not call MPI. In it [`initialize`](crate::initialize) gives `None`.
    ///
    /// # Panics
    /// If a rank panics, with its number and message. That ends the other ranks in what they wait for, or when they call MPI again.
    ///
    /// ```should_panic
    /// use mpi::environment::Universe;
    /// use mpi::traits::*;
    ///
    /// Universe::simulated(3, |universe| {
    ///     let world = universe.world();
    ///     assert_ne!(world.rank(), 1, "rank 1 has a bug");
    ///     world.barrier();
    /// });
    /// ```
    #[track_caller]
    pub fn simulated<T: Send>(ranks: u32, body: impl Fn(&mut Universe) -> T + Sync) -> Vec<T> {
        assert!(ranks > 0, "a universe has at least one rank");
        // Users' memory is touched by its own thread alone.
        let (get, put, atomics) = (OneSided::Off, OneSided::Off, OneSided::Off);
        let options = NetOptions { get, put, atomics, ..NetOptions::default() };
        let net = Net::new(ranks as usize, RandomState::new().hash_one(0), options);
        let simulated = Arc::new(SimulatedJob::default());
        let values: Option<Vec<T>> = thread::scope(|scope| {
            let begin = |rank| {
                // They share one core: ranks yield to each other.
                let alone = Job::singleton(1);
                let job =
                    Job { rank, size: ranks, local_rank: rank, local_size: ranks, app_size: ranks, ..alone };
                let (job_of_all, net, body) = (simulated.clone(), &net, &body);
                let run = move || job_of_all.run(&job, net, body);
                let thread = thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run);
                // The others would wait for it.
                thread.inspect_err(|error| {
                    simulated.end(rank);
                    simulated.explain(rank, &format!("no thread: {error}"));
                })
            };
            let threads: Vec<_> = (0..ranks).map(begin).collect();
            threads.into_iter().map(|thread| thread.ok()?.join().ok()?).collect()
        });
        if let Some(rank) = simulated.ended_by.get() {
            let why = simulated.why.get().map_or("", String::as_str);
            panic!("rank {rank} of {ranks} panicked: {why}");
        }
        values.expect("each rank has ended well")
    }
}
