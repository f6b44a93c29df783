//! [`Runtime`]: one instance of MPI in this process: opened, used, closed, opened again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use banyan_coll::Tuning;
use banyan_memory::{EngineGuard, EngineLock, Serialized};
use banyan_p2p as p2p;
use banyan_pmi::{Client, Job, LastWord};
use banyan_transport::Peer;

use crate::boot::{self, Boot};
use crate::bsend::Attachment;
use crate::comm::{Comm, Inherited};
use crate::context::{Purpose, Retired, SELF, WORLD, derive_context};
use crate::engine::Engine;
use crate::error::{Class, Result};
use crate::gpu;
use crate::group::Group;
use crate::lock;
use crate::long;
use crate::slow::{self, DescribeWait, Slow};
use crate::wait::{Backoff, Idle, Waker};
use crate::watcher::Watcher;

/// How threads may call MPI (MPI 5.0, 11.6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Threads {
    /// Only one thread exists.
    Single,
    /// Only the thread that initialized calls.
    Funneled,
    /// One thread at a time calls.
    Serialized,
    /// Any thread, at any time.
    Multiple,
}

/// The runtime. Everything that communicates holds one.
pub struct Runtime {
    pub(crate) engine_lock: EngineLock<Engine>,
    /// Tells the launcher of MPI_Abort without the engine lock.
    last_word: Option<LastWord>,
    pub(crate) tuning: Tuning,
    job: Job,
    /// Processes of one host share memory, on each host that has the means: all settings of the job allow it.
    pub(crate) shares_memory: bool,
    threads: Threads,
    contexts: AtomicU64,
    /// Contexts of communicators that are gone.
    retired: Mutex<Vec<Retired>>,
    /// Where the buffer for buffered sends of the whole process is attached.
    pub attachment: Attachment,
    /// What wakes the polling thread if several threads use MPI.
    sleeper: OnceLock<std::io::Result<Arc<Waker>>>,
    /// The thread that sleeps for tasks, from the first one on that awaits a request.
    pub(crate) watcher: Mutex<Option<Watcher>>,
}

/// Longest that a thread waits for word from the thread that polls.
const MAX_WAIT_FOR_POLLER: Duration = Duration::from_millis(100);
/// How long MPI_Finalize waits before it reports what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(1);
/// The sleep of a polling thread that has no descriptor to be woken by.
const SHORT_SLEEP: Duration = Duration::from_millis(1);

impl Runtime {
    /// Joins the job that the launcher describes, or starts one of a single process. Without the promise that
    /// calls come one after the other (`serialized`) each call takes a lock.
    pub fn open(threads: Threads, serialized: Option<Serialized>) -> Result<Arc<Runtime>> {
        let runtime = Self::with(boot::start()?, threads, serialized);
        gpu::look(runtime.job())?;
        if !runtime.engine_lock.enter().policy.spins_freely() {
            // The rank yields and sleeps: beside a busy process each yield or sleep would cost the rest of a long slice.
            banyan_shm::shorten_slices();
        }
        Ok(runtime)
    }

    /// Joins `job`, which no launcher knows, over an endpoint of a simulated network (rank i has endpoint i) and the shared memory
    /// of its node, if there is any. So a process can hold all ranks of a job, each with a runtime of its own. Settings are those
    /// of `job`.
    #[cfg(feature = "sim")]
    pub fn open_over(
        sim: banyan_transport::sim::SimFabric,
        node_memory: Option<std::os::fd::OwnedFd>,
        job: &Job,
        threads: Threads,
        serialized: Option<Serialized>,
    ) -> Result<Arc<Runtime>> {
        Ok(Self::with(boot::start_over(sim, node_memory, job)?, threads, serialized))
    }

    // Not inlined, nor are the parts of `boot`: their copies of the engine would lie on the stack at the same time, in pages that
    // nothing needs later.
    #[inline(never)]
    fn with(boot: Boot, threads: Threads, serialized: Option<Serialized>) -> Arc<Runtime> {
        let Boot { engine, job, shares_memory, tuning } = boot;
        Arc::new(Runtime {
            last_word: engine.launcher.client.as_ref().map(Client::last_word),
            engine_lock: EngineLock::new(engine, serialized),
            tuning,
            job,
            shares_memory,
            threads,
            contexts: AtomicU64::new(0),
            retired: Mutex::new(Vec::new()),
            attachment: Attachment::default(),
            sleeper: OnceLock::new(),
            watcher: Mutex::new(None),
        })
    }

    /// Sets the function that names the MPI function that was called last, for reports on jobs that hang.
    pub fn name_calls_by(&self, caller: fn() -> &'static str) {
        self.engine_lock.enter().caller = caller;
    }

    /// The job as this process sees it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// True if our launcher started the process; otherwise it is rank 0 of 1.
    pub fn is_launched(&self) -> bool {
        self.last_word.is_some()
    }

    /// The thread level that was given.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// MPI_COMM_WORLD. Call once: each call makes a new object on the same context.
    pub fn world(self: &Arc<Self>) -> Result<Arc<Comm>> {
        let group = Group::contiguous(Peer(0), self.job.size, Peer(self.job.rank));
        self.predefined(WORLD, group, "MPI_COMM_WORLD")
    }

    /// MPI_COMM_SELF. Call once.
    pub fn itself(self: &Arc<Self>) -> Result<Arc<Comm>> {
        let me = Peer(self.job.rank);
        self.predefined(SELF, Group::contiguous(me, 1, me), "MPI_COMM_SELF")
    }

    fn predefined(self: &Arc<Self>, ctx: u64, group: Group, name: &'static str) -> Result<Arc<Comm>> {
        Comm::make(self, ctx, (group, None), Inherited { name, ..Inherited::default() })
    }

    /// Waits for all operations of this process, meets the other ranks in a barrier, and leaves the job (MPI_Finalize).
    pub fn close(&self, world: &Comm) -> Result<()> {
        let mut notice = Some(Instant::now() + NOTICE_AFTER);
        let ready_to_leave = |engine: &mut Engine| {
            let drained = engine.drained();
            if !drained && notice.take_if(|at| Instant::now() >= *at).is_some() {
                self.say_what_is_unsent(engine);
            }
            drained.then_some(())
        };
        self.wait_for(self.engine_lock.enter(), ready_to_leave, &slow::all);
        *lock(&self.watcher) = None;
        self.meet(world)?;
        self.wait_for(self.engine_lock.enter(), |engine| engine.drained().then_some(()), &slow::all);
        let mut engine = self.engine_lock.enter();
        let Engine { p2p, ports, .. } = &mut *engine;
        if let Some(measured) = long::shown(&self.job, p2p, || ports.accounts()) {
            eprintln!("{measured}");
        }
        if self.tuning.overrides.show() {
            let rank = self.job.rank;
            engine.colls.sequences.found().for_each(|found| eprintln!("banyan: rank {rank}: {found}"));
        }
        if let Some(why) = banyan_memory::why_no_kernels().filter(|_| self.job.rank == 0) {
            let refused = banyan_memory::device_stats().kernels_refused;
            eprintln!(
                "banyan: rank 0 on {}: the host did the work of {refused} kernels: {why}",
                self.job.host
            );
        }
        if let Some(learnt) = long::learnt(&self.job, &engine.p2p) {
            engine.launcher.tell_measured(learnt);
        }
        // First of all the farewell: the launcher may hold this process until all ranks are here, and one of them may still wait
        // for a word of this one, such as an acknowledgement, which only a poll would send.
        engine.ports.close();
        engine.launcher.leave();
        Ok(())
    }

    /// Meets the other ranks before it leaves. If one has failed, and the job goes on, nobody waits for the others.
    fn meet(&self, world: &Comm) -> Result<()> {
        let has_failed = |engine: &mut Engine| engine.colls.failures.any().then_some(());
        if has_failed(&mut self.engine_lock.enter()).is_some() {
            return Ok(());
        }
        match world.run(world.barrier()) {
            Err(error) if error.class == Class::ERR_PROC_ABORTED => {
                // The launcher's word comes by itself, or never.
                let until = Instant::now() + NOTICE_AFTER;
                let known = |engine: &mut Engine| match has_failed(engine) {
                    None if Instant::now() >= until => Some(Err(error.clone())),
                    known => known.map(Ok),
                };
                self.wait(self.engine_lock.enter(), known)
            }
            met => met,
        }
    }

    /// Names a send that keeps this process from leaving, if there is one.
    #[cold]
    fn say_what_is_unsent(&self, engine: &Engine) {
        let mut sends = engine.p2p.waits().filter(|wait| wait.state.starts_with("send"));
        let Some(first) = sends.next() else { return };
        let p2p::Wait { peer, tag, bytes, ctx, .. } = first;
        let more = match sends.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let whose = match ctx {
            WORLD => "MPI_COMM_WORLD",
            SELF => "MPI_COMM_SELF",
            _ => "another communicator",
        };
        let to = peer.map_or(0, |peer| peer.0);
        let what = tag.map_or("of a collective".to_owned(), |tag| format!("with tag {tag}"));
        eprintln!(
            "banyan: rank {} on {}: MPI_Finalize waits for a send {what} of {bytes} bytes to rank {to} of MPI_COMM_WORLD, on \
             {whose}{more}: nobody has received it. Receive it there, or cancel and complete it before MPI_Finalize",
            self.job.rank, self.job.host
        );
    }

    /// Tells the launcher to end the job with `code`, for the reason given. The caller then ends the process. Takes no
    /// lock and no memory: a signal handler may call it, whatever it interrupted.
    ///
    /// In a child that `fork` made of the process it does nothing: the job is not the child's to end.
    pub fn abort(&self, code: i32, message: &str) {
        if banyan_memory::forked() {
            return;
        }
        if let Some(last_word) = &self.last_word {
            last_word.abort(code, message);
        }
    }

    /// Ends what is under way, and what will be started, as if all processes of the job had failed for this reason.
    #[cfg(feature = "sim")]
    pub fn end(&self, cause: &str) {
        let mut engine = self.engine_lock.enter();
        let Engine { p2p, colls, .. } = &mut *engine;
        for peer in (0..self.job.size).map(Peer) {
            p2p.peer_down(peer, cause);
            colls.process_failed(peer, cause, p2p);
        }
        self.wake_poller_with(&mut engine);
    }

    /// Asks the launcher to print `text` for the user, once however many ranks send it; false if there is none that does.
    pub fn notice(&self, text: &str) -> bool {
        !banyan_memory::forked()
            && self
                .engine_lock
                .enter()
                .launcher
                .client
                .as_mut()
                .is_some_and(|client| client.notice(text).unwrap_or(false))
    }

    /// Wakes threads that wait for something that no message brings (a generalized request).
    pub(crate) fn wake_poller(&self) {
        if self.engine_lock.is_multi_threaded() {
            self.wake_poller_with(&mut self.engine_lock.enter());
        }
    }

    /// Wakes the threads that wait, from inside the engine lock: something happened that one of them may wait for.
    pub(crate) fn wake_poller_with(&self, engine: &mut Engine) {
        engine.wake_sleepers();
        self.engine_lock.notify();
    }

    /// A context id that no other communicator of the universe has.
    pub(crate) fn draw_context(&self) -> u64 {
        let count = self.contexts.fetch_add(1, Ordering::Relaxed) + 1;
        derive_context(u64::from(self.job.rank) << 32 | 0x5eed, count, Purpose::Drawn, 0)
    }

    /// There is a communicator on a context that was opened, with these senders.
    pub(crate) fn enter_communicator(&self, ctx: u64, senders: &Group) {
        let Engine { colls, p2p, .. } = &mut *self.engine_lock.enter();
        colls.failures.enter(ctx, senders, p2p);
    }

    pub(crate) fn retire(&self, context: Retired) {
        lock(&self.retired).push(context);
    }

    pub(crate) fn open_context(&self, ctx: u64) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        let mut engine = self.engine_lock.enter();
        let used = |old: &Retired| engine.p2p.is_used(old.ctx);
        let (used, retired): (Vec<_>, Vec<_>) = retired.into_iter().partition(used);
        lock(&self.retired).extend(used);
        for old in retired {
            engine.p2p.close_context(old.ctx);
            engine.names.forget(old.ctx);
            engine.colls.failures.leave(old.ctx);
            if let (Some(ranks), Some(shm)) = (old.arena_ranks, &engine.ports.shm) {
                shm.arena_leave(old.ctx, ranks);
            }
            if let Some(index) = old.sequence {
                engine.colls.sequences.leave(index);
            }
        }
        engine.p2p.open_context(ctx);
    }

    /// [`Runtime::wait_for`] without a description of the wait: for waits that are short.
    pub(crate) fn wait<'a, T>(
        &'a self,
        engine: EngineGuard<'a, Engine>,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> T {
        self.wait_for(engine, done, &|_| (Vec::new(), 0))
    }

    /// Drives the engine until `done` returns a value: the one place where this process waits. `describe` tells what it
    /// waits for, for reports on jobs that hang.
    pub(crate) fn wait_for<'a, T>(
        &'a self,
        mut engine: EngineGuard<'a, Engine>,
        mut done: impl FnMut(&mut Engine) -> Option<T>,
        describe: DescribeWait<'_>,
    ) -> T {
        let multithreaded = self.engine_lock.is_multi_threaded();
        let mut slow = Slow::default();
        let mut idle = Idle::new();
        let mut polling = false;
        let mut follower_idle = Idle::new();
        let mut follower_sleeps = false;
        loop {
            if let Some(value) = done(&mut engine) {
                slow.ended(&engine);
                if polling {
                    engine.has_poller = false;
                }
                if multithreaded {
                    self.engine_lock.notify();
                }
                return value;
            }
            if let Some((id, reduction)) = engine.colls.next_user_reduction() {
                drop(engine);
                reduction.run();
                engine = self.engine_lock.enter();
                engine.user_reduction_done(id, reduction);
                idle.reset();
                continue;
            }
            // Another thread polls for all threads of this process.
            let follower = multithreaded && engine.has_poller && !polling;
            if follower && follower_sleeps {
                engine = self.engine_lock.wait(engine, MAX_WAIT_FOR_POLLER);
                continue;
            }
            if multithreaded && !follower {
                engine.has_poller = true;
                polling = true;
            }
            if engine.progress() > 0 {
                idle.reset();
                follower_idle.reset();
                follower_sleeps = false;
                if multithreaded {
                    self.engine_lock.notify();
                }
                continue;
            }
            let backoff = if follower {
                follower_idle.after_poll_of_follower(Instant::now)
            } else {
                let policy = engine.policy.among_threads(self.engine_lock.is_contended());
                idle.after_poll(&policy, Instant::now)
            };
            if follower && backoff == Backoff::Sleep {
                follower_sleeps = true;
                continue;
            }
            if backoff == Backoff::Sleep {
                slow.before_sleep(&engine, multithreaded, describe);
            }
            match backoff {
                Backoff::Spin if !multithreaded => engine.linger(&mut idle),
                Backoff::Yield if !multithreaded => std::thread::yield_now(),
                Backoff::Sleep if !multithreaded => engine.sleep(),
                // Other threads must be able to enter while this one sleeps.
                Backoff::Sleep => engine = self.sleep_unlocked(engine),
                _ => {
                    drop(engine);
                    std::thread::yield_now();
                    engine = self.engine_lock.enter();
                }
            }
            if backoff == Backoff::Sleep {
                slow.after_sleep();
            }
        }
    }

    /// Sleeps outside the engine lock: for the polling thread, if several threads use MPI.
    fn sleep_unlocked<'a>(&'a self, mut engine: EngineGuard<'a, Engine>) -> EngineGuard<'a, Engine> {
        let Ok(waker) = self.sleeper.get_or_init(|| Waker::new().map(Arc::new)) else {
            // The process has no descriptor left to be woken by.
            return self.engine_lock.wait(engine, SHORT_SLEEP);
        };
        if let Some(sleep) = engine.prepare_sleep() {
            engine.add_sleeper(waker);
            drop(engine);
            waker.sleep(&sleep);
            engine = self.engine_lock.enter();
            engine.remove_sleeper(waker);
        }
        engine.disarm();
        engine
    }

    /// One poll of a program that polls (MPI_Testall and its kin): after it `find` runs inside the engine lock, and the
    /// user reductions that came due outside. After a fruitless poll the core may be yielded to another rank.
    #[inline]
    pub(crate) fn poll_once<T>(&self, find: impl FnOnce(&mut Engine) -> Option<T>) -> Option<T> {
        let mut engine = self.engine_lock.enter();
        engine.progress();
        let found = find(&mut engine);
        self.end_poll(engine, Some(found.is_none()));
        found
    }

    /// [`Runtime::poll_once`], but for what is there already (MPI_Test, MPI_Iprobe).
    #[inline]
    pub(crate) fn poll_for<T>(&self, mut find: impl FnMut(&mut Engine) -> Option<T>) -> Option<T> {
        let mut engine = self.engine_lock.enter();
        let found = find(&mut engine).or_else(|| {
            engine.progress();
            find(&mut engine)
        });
        self.end_poll(engine, Some(found.is_none()));
        found
    }

    /// Ends one poll of a program that polls. `fruitless`: whether it found nothing; `None`: the poll that follows tells.
    #[inline]
    pub(crate) fn end_poll(&self, mut engine: EngineGuard<'_, Engine>, fruitless: Option<bool>) {
        if self.engine_lock.is_multi_threaded() {
            // The poll may have brought what other threads wait for.
            self.engine_lock.notify();
        }
        if engine.colls.has_user_reductions() {
            return self.run_user_reductions(engine);
        }
        if fruitless == Some(true) {
            engine.polled_in_vain();
        }
        if engine.policy.spins_freely() {
            return;
        }
        let Engine { fruitless_polls, policy, .. } = &mut *engine;
        if fruitless.is_some_and(|fruitless| fruitless_polls.must_yield(policy, fruitless)) {
            drop(engine);
            std::thread::yield_now();
        }
    }

    #[cold]
    fn run_user_reductions<'a>(&'a self, mut engine: EngineGuard<'a, Engine>) {
        while let Some((id, reduction)) = engine.colls.next_user_reduction() {
            drop(engine);
            reduction.run();
            engine = self.engine_lock.enter();
            engine.user_reduction_done(id, reduction);
        }
    }
}
