//! [`INSTANCE`]: what belongs to MPI in this process from its start to its end: the runtime, what the program has promised of
//! its callers, the objects behind handles, and what threads remember of them.
//!
//! The handles of C name no instance, so a process can only have one of this library. It is the only static that
//! relies on the promise.

use crate::comm::Comms;
use crate::kinds::Handles;
use crate::serial::Promise;
use crate::stream::Streams;
use crate::types::Types;
use banyan_runtime::{Comm, Result, Runtime, bail};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::ThreadId;

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

/// The instance of MPI in this process.
pub(crate) static INSTANCE: Instance = Instance::new(&INSTANCE.promise);

/// An instance of MPI as C sees it.
pub(crate) struct Instance {
    phase: AtomicU8,
    promise: Promise,
    runtime: RwLock<Option<Arc<Runtime>>>,
    /// The thread that called MPI_Init.
    main_thread: OnceLock<ThreadId>,
    pub(crate) handles: Handles,
    pub(crate) comms: Comms,
    pub(crate) types: Types,
    pub(crate) streams: Streams,
}

impl Instance {
    const fn new(promise: &'static Promise) -> Instance {
        Instance {
            phase: AtomicU8::new(Phase::Before as u8),
            promise: Promise::none(),
            runtime: RwLock::new(None),
            main_thread: OnceLock::new(),
            handles: Handles::new(promise),
            comms: Comms::new(promise),
            types: Types::new(),
            streams: Streams::new(),
        }
    }

    /// The present phase.
    #[inline(always)]
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Before,
            1 => Phase::Running,
            _ => Phase::After,
        }
    }

    /// The runtime between initialization and finalization.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>> {
        match &*self.runtime.read().unwrap_or_else(PoisonError::into_inner) {
            Some(runtime) => Ok(runtime.clone()),
            None => bail!(ERR_OTHER, "MPI is not initialized"),
        }
    }

    /// Calls `f` on the runtime if there is one, without waiting for a lock.
    pub(crate) fn with_runtime_at_hand(&self, f: impl FnOnce(&Runtime)) {
        if let Ok(runtime) = self.runtime.try_read()
            && let Some(runtime) = &*runtime
        {
            f(runtime);
        }
    }

    /// True if this thread called MPI_Init.
    pub(crate) fn is_main_thread(&self) -> bool {
        self.main_thread.get() == Some(&std::thread::current().id())
    }

    /// Begins: calls other than those that always work are allowed from now on.
    ///
    /// # Safety
    /// If calls are `serialized`, no two threads make one at the same time until [`Instance::close`], and each call happens
    /// before the next one.
    pub(crate) unsafe fn open(
        &self,
        runtime: Arc<Runtime>,
        world: Arc<Comm>,
        itself: Arc<Comm>,
        serialized: bool,
    ) {
        self.comms.open(world, itself);
        let _ = self.main_thread.set(std::thread::current().id());
        *self.runtime.write().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
        if serialized {
            // SAFETY: what the caller says.
            unsafe { self.promise.make() };
        }
        self.phase.store(Phase::Running as u8, Ordering::Release);
    }

    /// Ends: forgets all objects and what threads remember of them, so that the memory and sockets of the job go.
    pub(crate) fn close(&self) {
        self.handles.close();
        self.comms.close();
        *self.runtime.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.promise.end();
        self.phase.store(Phase::After as u8, Ordering::Release);
    }
}
