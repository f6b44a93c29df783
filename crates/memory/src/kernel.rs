//! Kernels: code that a device runs on its own memory, started like a copy and polled like one.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Buffer;
use crate::device::{Copying, DeviceFailure, Held};
use crate::stats;

/// Code for devices. A device loads it when it first runs a kernel of it, and keeps it.
#[derive(Debug)]
pub struct Module {
    code: Code,
    /// No other module of the process has it.
    id: u64,
}

#[derive(Debug)]
pub(crate) enum Code {
    /// PTX with a NUL behind it, or a CUBIN.
    Image(Vec<u8>),
    /// CUDA C, and a name for it.
    Source(&'static str, &'static str),
}

impl Module {
    /// PTX or a CUBIN; a NUL behind it is not needed.
    pub fn new(image: impl Into<Vec<u8>>) -> Module {
        let mut image = image.into();
        image.push(0);
        Self::of(Code::Image(image))
    }

    /// CUDA C that includes nothing: it is compiled for each device that runs it. `name`: letters.
    pub fn of_source(name: &'static str, source: &'static str) -> Module {
        Self::of(Code::Source(name, source))
    }

    fn of(code: Code) -> Module {
        static MODULES: AtomicU64 = AtomicU64::new(0);
        Module { code, id: MODULES.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn code(&self) -> &Code {
        &self.code
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// What a kernel is given as one of its parameters.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// The address of so many bytes (the last number) at an offset of memory of the device.
    Memory(&'a Buffer, isize, usize),
    /// A value as it lies in memory, as long as the parameter is.
    Value(&'a [u8]),
}

/// One run of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The code that has it.
    pub module: &'a Module,
    /// Its name there (`extern "C"`).
    pub name: &'a CStr,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Its parameters, in order.
    pub args: &'a [Arg<'a>],
}

/// A parameter as the driver takes it: where its value lies.
pub(crate) enum Value<'a> {
    Address(*mut u8),
    Bytes(&'a [u8]),
}

impl Launch<'_> {
    /// Starts it on the device that has the first memory among its parameters. It has no order with copies and other kernels
    /// that are under way: what it reads must be there, and who needs its results waits for it.
    ///
    /// # Errors
    /// Why the device does not run it; also if no parameter is memory of a device, or one is not memory of that device.
    ///
    /// # Safety
    /// The kernel has these parameters, touches no memory but what it is given here, within the lengths, and ends.
    ///
    /// # Panics
    /// If memory is outside its buffer's bounds.
    pub unsafe fn start(&self) -> Result<Copying, DeviceFailure> {
        // SAFETY: as the caller promises.
        unsafe { self.try_start() }.inspect_err(|_| stats::count(&stats::KERNELS_REFUSED))
    }

    /// # Safety
    /// As for [`Launch::start`].
    unsafe fn try_start(&self) -> Result<Copying, DeviceFailure> {
        let mut held = Vec::new();
        let values: Vec<Value<'_>> = self
            .args
            .iter()
            .map(|arg| match *arg {
                Arg::Value(bytes) => Value::Bytes(bytes),
                Arg::Memory(buffer, at, len) => {
                    let part = buffer.slice(at, len);
                    let address = part.first();
                    held.push(part);
                    Value::Address(address)
                }
            })
            .collect();
        let owner = held.iter().find_map(Buffer::device_owner).cloned();
        let owner = owner.ok_or_else(|| self.refused("none of its parameters is memory of a device"))?;
        let Some(device) = owner.device() else { return Err(self.refused("there is no device")) };
        let is_its_own = |part: &Buffer| part.device_owner().is_some_and(|other| Arc::ptr_eq(other, &owner));
        if !held.iter().all(|part| part.is_empty() || is_its_own(part)) {
            return Err(self.refused("one of its parameters is not memory of its device"));
        }
        // SAFETY: the caller promises it; all memory is within bounds and kept until the kernel has ended.
        let number = unsafe { device.launch(self, &values) }?;
        Ok(Copying::new(owner, number, Held::Parts(held)))
    }

    fn refused(&self, why: &str) -> DeviceFailure {
        DeviceFailure { what: format!("the kernel {} cannot run: {why}", self.name.to_string_lossy()) }
    }
}
