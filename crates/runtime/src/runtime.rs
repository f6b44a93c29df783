//! [`Runtime`]: one instance of MPI in this process: opened, used, closed, opened again.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use banyan_coll::Tuning;
use banyan_memory::{Gate, GateGuard, Serialized};
use banyan_p2p as p2p;
use banyan_pmi::{Client, LastWord};
use banyan_transport::Peer;

use crate::boot::{self, Boot};
use crate::bsend::Attached;
use crate::comm::{Comm, lock};
use crate::engine::Engine;
use crate::error::{Class, Error, Result};
use crate::group::Group;
use crate::slow::{self, Slow, What};
use crate::wait::{Idle, Kick, Rest};

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

/// What is known about the job from the start.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Rank of this process in MPI_COMM_WORLD.
    pub rank: u32,
    /// Processes in MPI_COMM_WORLD.
    pub size: u32,
    /// Number of the program in a job of several programs.
    pub appnum: Option<u32>,
    /// Processes that the job may have in all.
    pub universe_size: Option<u32>,
    /// Number of the host that this process runs on.
    pub node: u32,
    /// All processes run on one host.
    pub one_node: bool,
    /// Cores of this host that the job may use.
    pub cores: u32,
    /// Processes of this host can read each other's memory.
    pub single_copy: bool,
    /// Name of this host.
    pub host: String,
    /// The program, as it was named to the launcher.
    pub command: String,
    /// Processes that run this program.
    pub app_size: u32,
    /// Started by our launcher (otherwise: rank 0 of 1).
    pub launched: bool,
}

/// The runtime. Everything that communicates holds one.
pub struct Runtime {
    pub(crate) gate: Gate<Engine>,
    /// The way to the launcher past the gate.
    last_word: Option<LastWord>,
    pub(crate) tuning: Tuning,
    facts: Facts,
    threads: Threads,
    contexts: AtomicU64,
    /// Contexts of communicators that are gone.
    retired: Mutex<Vec<Retired>>,
    /// The buffer attached for the whole process.
    pub(crate) attached: Mutex<Option<Arc<Attached>>>,
    /// Where the polling thread sleeps, where there are several.
    bed: OnceLock<std::io::Result<(Arc<Kick>, Vec<OwnedFd>)>>,
}

/// The context of a communicator that is gone.
pub(crate) struct Retired {
    pub(crate) ctx: u64,
    /// It asked for shared slots for so many ranks.
    pub(crate) slots: Option<u32>,
    /// Where its sequence of collectives is.
    pub(crate) sequence: Option<u32>,
}

/// Longest a thread waits to be told by the one that polls.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long MPI_Finalize waits before it says for what.
const PATIENT: Duration = Duration::from_secs(1);
/// A sleep that nothing can end.
const NAP: Duration = Duration::from_millis(1);

impl Runtime {
    /// Joins the job that the launcher describes, or starts one of a single process. Without the promise that
    /// calls come one after the other each takes a lock.
    pub fn open(threads: Threads, serialized: Option<Serialized>) -> Result<Arc<Runtime>> {
        let Boot { engine, facts, tuning } = boot::start()?;
        Ok(Arc::new(Runtime {
            last_word: engine.boot.as_ref().map(Client::last_word),
            gate: Gate::new(engine, serialized),
            tuning,
            facts,
            threads,
            contexts: AtomicU64::new(0),
            retired: Mutex::new(Vec::new()),
            attached: Mutex::new(None),
            bed: OnceLock::new(),
        }))
    }

    /// Rank, size, host and the like.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The thread level that was given.
    pub fn threads(&self) -> Threads {
        self.threads
    }

    /// MPI_COMM_WORLD. Call once: each call makes a new object on the same context.
    pub fn world(self: &Arc<Self>) -> Result<Arc<Comm>> {
        let group = Group::contiguous(Peer(0), self.facts.size, Peer(self.facts.rank));
        Comm::make(self, WORLD, group, None, "MPI_COMM_WORLD")
    }

    /// MPI_COMM_SELF. Call once.
    pub fn itself(self: &Arc<Self>) -> Result<Arc<Comm>> {
        let me = Peer(self.facts.rank);
        Comm::make(self, SELF, Group::contiguous(me, 1, me), None, "MPI_COMM_SELF")
    }

    /// Finishes all that was started, in agreement with the others, and leaves the job.
    pub fn close(&self, world: &Comm) -> Result<()> {
        let mut notice = Some(Instant::now() + PATIENT);
        let quiet = |engine: &mut Engine| {
            let over = engine.quiet();
            if !over && notice.take_if(|at| Instant::now() >= *at).is_some() {
                self.say_what_is_unsent(engine);
            }
            over.then_some(())
        };
        self.wait_for(self.gate.enter(), quiet, &slow::all);
        world.run(world.barrier()?)?;
        self.wait_for(self.gate.enter(), |engine| engine.quiet().then_some(()), &slow::all);
        let mut engine = self.gate.enter();
        engine.leave();
        Ok(())
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
            self.facts.rank, self.facts.host
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

    /// Lets the launcher tell the user something, once for all ranks that say the same; false if there is none.
    pub fn notice(&self, text: &str) -> bool {
        !banyan_memory::forked()
            && self.gate.enter().boot.as_mut().is_some_and(|client| client.notice(text).is_ok())
    }

    /// Wakes threads that wait for something that no message brings (a generalized request).
    pub(crate) fn nudge(&self) {
        if self.gate.is_shared() {
            self.nudge_with(&mut self.gate.enter());
        }
    }

    /// The same, from inside the gate: something happened that another thread may wait for.
    pub(crate) fn nudge_with(&self, engine: &mut Engine) {
        if let Some(kick) = engine.resting.take() {
            kick.wake();
        }
        self.gate.notify();
    }

    /// A context id that no other communicator of the universe has.
    pub(crate) fn draw_context(&self) -> u64 {
        let count = self.contexts.fetch_add(1, Ordering::Relaxed) + 1;
        derive_context(u64::from(self.facts.rank) << 32 | 0x5eed, count, Purpose::Drawn, 0)
    }

    pub(crate) fn retire(&self, context: Retired) {
        lock(&self.retired).push(context);
    }

    pub(crate) fn open_context(&self, ctx: u64) {
        let retired = std::mem::take(&mut *lock(&self.retired));
        let mut engine = self.gate.enter();
        let used = |old: &Retired| engine.p2p.is_used(old.ctx);
        let (used, retired): (Vec<_>, Vec<_>) = retired.into_iter().partition(used);
        lock(&self.retired).extend(used);
        for old in retired {
            engine.p2p.close_context(old.ctx);
            engine.names.forget(old.ctx);
            if let (Some(ranks), Some(shm)) = (old.slots, &engine.ports.shm) {
                shm.arena_leave(old.ctx, ranks);
            }
            if let Some(place) = old.sequence {
                engine.sequences.leave(place);
            }
        }
        engine.p2p.open_context(ctx);
    }

    /// As [`Runtime::wait_for`], for what is soon over.
    pub(crate) fn wait<'a, T>(
        &'a self,
        engine: GateGuard<'a, Engine>,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> T {
        self.wait_for(engine, done, &|_| (Vec::new(), 0))
    }

    /// Drives the engine until `done` says so: the one place where this process waits. `what` tells what for, for
    /// people who ask why a job hangs.
    pub(crate) fn wait_for<'a, T>(
        &'a self,
        mut engine: GateGuard<'a, Engine>,
        mut done: impl FnMut(&mut Engine) -> Option<T>,
        what: What<'_>,
    ) -> T {
        let shared = self.gate.is_shared();
        let mut slow = Slow::default();
        let mut idle = Idle::new();
        let mut polling = false;
        let mut beside = Idle::new();
        let mut sleeps = false;
        loop {
            if let Some(value) = done(&mut engine) {
                slow.ended(&engine);
                if polling {
                    engine.polled = false;
                }
                if shared {
                    self.gate.notify();
                }
                return value;
            }
            if let Some((id, job)) = engine.next_job() {
                drop(engine);
                job.run();
                engine = self.gate.enter();
                engine.job_done(id, job);
                idle.reset();
                continue;
            }
            // Another thread polls for all.
            let second = shared && engine.polled && !polling;
            if second && sleeps {
                engine = self.gate.wait(engine, PATIENCE);
                continue;
            }
            if shared && !second {
                engine.polled = true;
                polling = true;
            }
            if engine.progress() > 0 {
                idle.reset();
                beside.reset();
                sleeps = false;
                if shared {
                    self.gate.notify();
                }
                continue;
            }
            let rest = if second {
                beside.beside(Instant::now)
            } else {
                idle.rest(&engine.policy.among_threads(self.gate.is_contended()), Instant::now)
            };
            if second && rest == Rest::Sleep {
                sleeps = true;
                continue;
            }
            if rest == Rest::Sleep {
                slow.sleeps(&engine, shared, what);
            }
            match rest {
                Rest::Spin if !shared => std::hint::spin_loop(),
                Rest::Yield if !shared => std::thread::yield_now(),
                Rest::Sleep if !shared => engine.sleep(),
                // Others must be able to come in while this thread rests.
                Rest::Sleep => engine = self.rest(engine),
                _ => {
                    drop(engine);
                    std::thread::yield_now();
                    engine = self.gate.enter();
                }
            }
            if rest == Rest::Sleep {
                slow.slept();
            }
        }
    }

    /// Sleeps outside the gate: for the thread that polls, where there are several.
    fn rest<'a>(&'a self, mut engine: GateGuard<'a, Engine>) -> GateGuard<'a, Engine> {
        let bed = self.bed.get_or_init(|| Ok((Arc::new(Kick::new()?), engine.ports.bells()?)));
        let Ok((kick, bells)) = bed else {
            // No descriptor is left to sleep on: short naps.
            return self.gate.wait(engine, NAP);
        };
        if engine.ports.arm_bells() && engine.progress() == 0 && !engine.has_jobs() {
            let latest = engine.ports.wake_up_by();
            let until = engine.inquire().map_or(latest, |asks| asks.min(latest));
            engine.resting = Some(kick.clone());
            drop(engine);
            kick.sleep(bells, until);
            engine = self.gate.enter();
            engine.resting = None;
        }
        engine.ports.disarm();
        engine
    }

    /// One look of a program that polls: `look` inside the gate, then user reductions that came due, outside. If it finds
    /// nothing, it may be that somebody else needs the core.
    #[inline]
    pub(crate) fn look_for<T>(&self, look: impl FnOnce(&mut Engine) -> Option<T>) -> Option<T> {
        let mut engine = self.gate.enter();
        let found = look(&mut engine);
        self.looked(engine, Some(found.is_none()));
        found
    }

    /// Ends a look that was in vain or not, or after which another one will tell.
    #[inline]
    pub(crate) fn looked(&self, mut engine: GateGuard<'_, Engine>, in_vain: Option<bool>) {
        if self.gate.is_shared() {
            // What others wait for may have come with it.
            self.gate.notify();
        }
        if engine.has_jobs() {
            return self.run_jobs(engine);
        }
        if engine.policy.spins_freely() {
            return;
        }
        let Engine { looked, policy, .. } = &mut *engine;
        if in_vain.is_some_and(|in_vain| looked.again(policy, in_vain)) {
            drop(engine);
            std::thread::yield_now();
        }
    }

    #[cold]
    fn run_jobs<'a>(&'a self, mut engine: GateGuard<'a, Engine>) {
        while let Some((id, job)) = engine.next_job() {
            drop(engine);
            job.run();
            engine = self.gate.enter();
            engine.job_done(id, job);
        }
    }
}

/// Context of MPI_COMM_WORLD.
const WORLD: u64 = 1;
/// Context of MPI_COMM_SELF: its messages never leave the process.
const SELF: u64 = 2;

/// What a context is for. Two that are made from one parent differ in it, in their count, or in their sibling's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Purpose {
    /// A number that one process draws for others.
    Drawn = 1,
    /// A duplicate.
    Duplicate,
    /// A part; siblings by colour.
    Split,
    /// A subset; siblings by their leader.
    Subset,
    /// A grid.
    Cart,
    /// Both groups of an intercommunicator in one.
    Merged,
    /// A persistent collective.
    Persistent,
    /// Nonblocking collectives.
    Nonblocking,
    /// Messages of MPI_Comm_create_group; by tag.
    GroupLine,
    /// Messages of MPI_Intercomm_create; by tag.
    InterLine,
    /// Messages of MPI_Intercomm_merge.
    MergeLine,
}

impl Purpose {
    /// All that there are.
    #[cfg(test)]
    const ALL: [Purpose; 10] = [
        Purpose::Drawn,
        Purpose::Duplicate,
        Purpose::Split,
        Purpose::Subset,
        Purpose::Cart,
        Purpose::Merged,
        Purpose::Persistent,
        Purpose::GroupLine,
        Purpose::InterLine,
        Purpose::MergeLine,
    ];

    /// A number that no other purpose has, nor another sibling.
    fn number(self, sibling: u32) -> u64 {
        (self as u64) << 32 | u64::from(sibling)
    }
}

/// The id of a communicator that all members derive alike, from their parent, how many were made from it before, what it
/// is for, and what tells its siblings apart. 64 well-mixed bits (SplitMix64's finalizer, three times).
pub(crate) fn derive_context(parent: u64, count: u64, purpose: Purpose, sibling: u32) -> u64 {
    let sibling = purpose.number(sibling);
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let ctx =
        mix(mix(mix(parent.wrapping_add(step)) ^ count.wrapping_mul(step)) ^ sibling.wrapping_add(step));
    // The first numbers are for predefined communicators.
    if ctx < 16 { ctx + 16 } else { ctx }
}

impl Error {
    /// A fault of this library.
    pub(crate) fn intern(what: impl Into<String>) -> Error {
        Error::new(Class::ERR_INTERN, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn derived_contexts_differ() {
        let mut seen = HashSet::new();
        for parent in [WORLD, SELF, derive_context(WORLD, 0, Purpose::Duplicate, 0)] {
            for count in 0..100 {
                for (purpose, sibling) in Purpose::ALL.into_iter().flat_map(|p| (0..20).map(move |s| (p, s)))
                {
                    assert!(seen.insert(derive_context(parent, count, purpose, sibling)));
                }
            }
        }
    }

    /// Siblings are numbered by ranks, sizes, colours and tags: those of one purpose are never those of another.
    #[test]
    fn purposes_share_no_number() {
        let mut seen = HashSet::new();
        for purpose in Purpose::ALL {
            for sibling in (0..=100_000).chain([i32::MAX as u32, u32::MAX - 1, u32::MAX]) {
                assert!(seen.insert(purpose.number(sibling)), "{purpose:?} {sibling}");
            }
        }
    }
}
