//! Everything that the stand-in knows, behind one lock: devices, contexts, and which one is current on a thread.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::codes::{Handle, INVALID_CONTEXT, INVALID_DEVICE};
use crate::kernels::Kernels;
use crate::memory::Memory;
use crate::nvml::Nvml;
use crate::settings::Settings;
use crate::streams::Streams;

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) initialized: bool,
    pub(crate) contexts: HashMap<Handle, Context>,
    /// The primary context of each device, if it is there, and how often it was retained.
    pub(crate) primary: Vec<(Handle, u32)>,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) kernels: Kernels,
    pub(crate) nvml: Nvml,
    handles: Handle,
}

/// A context, and the contexts of other devices whose memory its kernels may touch.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) peers: Vec<Handle>,
}

thread_local! {
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

impl World {
    /// The world, for one call.
    pub(crate) fn enter() -> MutexGuard<'static, World> {
        static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
        let new = || {
            let settings = Settings::read();
            Mutex::new(World {
                initialized: false,
                contexts: HashMap::new(),
                primary: vec![(0, 0); settings.devices],
                memory: Memory::new(settings.devices, settings.memory),
                streams: Streams::new(settings.seed),
                kernels: Kernels::default(),
                nvml: Nvml::default(),
                handles: 0x1000,
                settings,
            })
        };
        WORLD.get_or_init(new).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other object has.
    pub(crate) fn handle(&mut self) -> Handle {
        self.handles += 16;
        self.handles
    }

    /// The current context and its device.
    pub(crate) fn current(&self) -> Result<(Handle, usize), c_int> {
        let current = current().filter(|&context| context != 0);
        let found = current.and_then(|context| Some((context, self.contexts.get(&context)?.device)));
        found.ok_or(INVALID_CONTEXT)
    }

    /// The primary context of a device, which is made if it is not there.
    pub(crate) fn retain(&mut self, device: usize) -> Result<Handle, c_int> {
        if device >= self.primary.len() {
            return Err(INVALID_DEVICE);
        }
        if self.primary[device].1 == 0 {
            self.primary[device].0 = self.new_context(device);
        }
        self.primary[device].1 += 1;
        Ok(self.primary[device].0)
    }

    pub(crate) fn new_context(&mut self, device: usize) -> Handle {
        let context = self.handle();
        self.contexts.insert(context, Context { device, peers: vec![] });
        context
    }

    /// A context goes, with all that is in it.
    pub(crate) fn destroy(&mut self, context: Handle) -> Result<(), c_int> {
        self.contexts.remove(&context).ok_or(INVALID_CONTEXT)?;
        self.streams.forget(context);
        self.memory.forget(context);
        Ok(())
    }
}

/// The context that is current on this thread; 0 is none.
pub(crate) fn current() -> Option<Handle> {
    CURRENT.with_borrow(|stack| stack.last().copied())
}

pub(crate) fn push(context: Handle) {
    CURRENT.with_borrow_mut(|stack| stack.push(context));
}

pub(crate) fn pop() -> Option<Handle> {
    CURRENT.with_borrow_mut(Vec::pop)
}
