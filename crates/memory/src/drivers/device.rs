//! One device as it is used in one context: its streams, and the events by which what is under way is polled.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::{self, Api, Handle, IpcHandle};
use super::library::Failed;
use super::mapped::{self, Asked};
use super::{Platform, compiler, stream};
use crate::device::{Device, DeviceFailure, Direction};
use crate::dma_buf::{Allocation, PciAddress};
use crate::kernel::{Code, Launch, Value};
use crate::scratch::Spare;
use crate::shared::Exported;
use crate::stats;

/// Streams that work goes to in turn: a device has two copy engines or more, and a small copy need not wait for a large one.
const STREAMS: usize = 4;
/// Allocations of which is remembered what other processes were told; then all are forgotten.
const MOST_EXPORTED: usize = 1024;

/// A device in a context: the primary one, or that in which the program has allocated the memory.
pub(super) struct DriverDevice {
    api: &'static Api,
    name: String,
    address: PciAddress,
    ordinal: c_int,
    context: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made as they are needed.
    streams: Vec<Handle>,
    /// The stream of copies that are waited for, which so wait for no others.
    now: Option<Handle>,
    /// Pieces of work that were started.
    started: u64,
    /// The events of those that are under way.
    under_way: HashMap<u64, Handle>,
    /// Events that are used again.
    events: Vec<Handle>,
    /// Modules that were loaded, by their numbers; or why that cannot be.
    modules: HashMap<u64, Result<Handle, String>>,
    /// Memory of the device that is not in use.
    spare: Spare,
    /// What other processes were told of allocations, by the driver's numbers for these.
    exported: HashMap<u64, Option<Exported>>,
}

/// Other processes are told numbers of allocations, which no two of this process may share: those of HIP have this bit, up to which no driver
/// counts.
const HIP: u64 = 1 << 63;
/// The least scratch memory that is allocated.
const LEAST_SCRATCH: usize = 1 << 16;
/// The most pieces of scratch memory that are kept while nobody uses them.
const MOST_SPARE: usize = 4;

impl DriverDevice {
    pub(super) fn new(api: &'static Api, ordinal: c_int, context: Handle) -> DriverDevice {
        let mut text = [0; 128];
        // SAFETY: room for 127 characters and a NUL; with the driver API a device is its ordinal.
        let named = unsafe { api.device_name(text.as_mut_ptr(), 127, ordinal) }.is_ok();
        // SAFETY: the driver has written a C string, or nothing: the last byte is a NUL in either case.
        let model = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        let platform = api.platform().name();
        let name = format!("{platform} device {ordinal}{}{model}", if named { ", " } else { "" });
        let address = PciAddress::new(&api.pci_address(ordinal).unwrap_or_default());
        DriverDevice { api, name, address, ordinal, context, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works in the device's context; the program's own is current again afterwards.
    fn within<T>(&self, work: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
        self.api.within(self.context, work)
    }

    /// Starts work on one of the streams, and returns its number. The context is the device's.
    fn start(&self, work: impl FnOnce(Handle) -> Result<(), Failed>) -> Result<u64, Failed> {
        let mut state = self.lock();
        let (stream, event) = (self.stream(&mut state)?, self.event(&mut state)?);
        if let Err(error) = work(stream) {
            state.events.push(event);
            return Err(error);
        }
        state.started += 1;
        let number = state.started;
        // SAFETY: an event and a stream of this context.
        if unsafe { self.api.event_record(event, stream) }.is_ok() {
            state.under_way.insert(number, event);
            return Ok(number);
        }
        // What cannot be polled is waited for.
        state.events.push(event);
        // SAFETY: a stream of this context.
        unsafe { self.api.stream_synchronize(stream) }.map(|()| number)
    }

    /// The stream whose turn it is.
    fn stream(&self, state: &mut State) -> Result<Handle, Failed> {
        if state.streams.len() < STREAMS {
            let mut stream = 0;
            // SAFETY: room for a stream, which belongs to the current context.
            match unsafe { self.api.stream_create(&raw mut stream, api::NON_BLOCKING) } {
                Ok(()) => {
                    state.streams.push(stream);
                    return Ok(stream);
                }
                Err(failed) if state.streams.is_empty() => return Err(failed),
                Err(_) => {}
            }
        }
        Ok(state.streams[state.started as usize % state.streams.len()])
    }

    /// The stream of copies that are waited for. The context is the device's.
    fn stream_of_now(&self) -> Result<Handle, Failed> {
        let now = self.lock().now;
        if let Some(stream) = now {
            return Ok(stream);
        }
        let mut stream = 0;
        // SAFETY: room for a stream, which belongs to the current context.
        unsafe { self.api.stream_create(&raw mut stream, api::NON_BLOCKING) }?;
        Ok(*self.lock().now.get_or_insert(stream))
    }

    /// Copies on this stream, and waits until that is over.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    unsafe fn copy_on_stream(
        &self,
        stream: Handle,
        to: usize,
        from: usize,
        len: usize,
    ) -> Result<(), Failed> {
        // SAFETY: the caller promises both ranges, and the driver looks whether it takes the stream here.
        unsafe { self.api.copy_on(to, from, len, stream) }?;
        // SAFETY: a stream that is there.
        let wait = || unsafe { self.api.stream_synchronize(stream) };
        // A stream that has failed does no more.
        wait().or_else(|_| self.within(wait)).inspect_err(|_| self.lock().now = None)
    }

    /// [`DriverDevice::copy_on_stream`] in whatever context is current, as CUDA has copies go by their stream: to change the context, and back, would be two
    /// more calls. False: nothing was copied.
    ///
    /// # Safety
    /// As for [`Device::copy`].
    unsafe fn copy_in_any_context(&self, to: usize, from: usize, len: usize) -> bool {
        let stream = self.lock().now.filter(|_| self.api.platform() == Platform::Cuda);
        // SAFETY: as the caller promises.
        stream.is_some_and(|stream| unsafe { self.copy_on_stream(stream, to, from, len) }.is_ok())
    }

    fn event(&self, state: &mut State) -> Result<Handle, Failed> {
        if let Some(event) = state.events.pop() {
            return Ok(event);
        }
        let mut event = 0;
        // SAFETY: room for an event, which belongs to the current context.
        unsafe { self.api.event_create(&raw mut event, api::NO_TIMING) }?;
        Ok(event)
    }

    /// A kernel of a module, which is compiled and loaded if it is not yet.
    fn kernel(&self, launch: &Launch<'_>) -> Result<Handle, DeviceFailure> {
        let module = self.lock().modules.get(&launch.module.id()).cloned();
        let module = module.unwrap_or_else(|| {
            let loaded = self.load(launch.module.code()).map_err(|failure| failure.what);
            loaded.as_ref().err().into_iter().for_each(|why| stats::keep_why_no_kernels(why));
            self.lock().modules.entry(launch.module.id()).or_insert(loaded).clone()
        });
        let module = module.map_err(|what| DeviceFailure { what })?;
        let mut function = 0;
        // SAFETY: a module of this context and a C string.
        let got = unsafe { self.api.module_function(&raw mut function, module, launch.name.as_ptr()) };
        let what = || format!("the kernel {}", launch.name.to_string_lossy());
        got.map(|()| function).map_err(|failed| self.failure(&what(), failed))
    }

    fn load(&self, code: &Code) -> Result<Handle, DeviceFailure> {
        let compiled;
        let image = match code {
            Code::Image(image) => image,
            Code::Source(name, source) => {
                let made = compiler::compile(self.api, self.ordinal, name, source);
                let mut made = made.map_err(|why| DeviceFailure {
                    what: format!("{} runs no kernels of this library: {why}", self.name),
                })?;
                made.push(0);
                compiled = made;
                &compiled
            }
        };
        let mut module = 0;
        // SAFETY: PTX with a NUL behind it, or a CUBIN, which knows its length.
        let loaded = unsafe { self.api.module_load(&raw mut module, image.as_ptr().cast::<c_void>()) };
        loaded.map(|()| module).map_err(|failed| self.failure("loading kernels", failed))
    }

    /// What the numbers of allocations have in common that are of this platform.
    fn mark(&self) -> u64 {
        if self.api.platform() == Platform::Hip { HIP } else { 0 }
    }

    fn copy_failure(&self, to: usize, from: usize, len: usize, error: Failed) -> DeviceFailure {
        self.failure(&format!("the copy of {len} bytes from {from:#x} to {to:#x}"), error)
    }

    fn failure(&self, what: &str, Failed { call, error }: Failed) -> DeviceFailure {
        let advice = match error {
            api::INVALID_CONTEXT | api::CONTEXT_IS_DESTROYED => {
                "; a context in which memory was allocated must be there until MPI is done with that memory"
            }
            _ => "; memory must be allocated until the operation is over, and large enough for it",
        };
        DeviceFailure {
            what: format!("{what} on {} failed: {call} says {}{advice}", self.name, self.api.describe(error)),
        }
    }
}

impl Asked for DriverDevice {
    fn number(&self, address: usize) -> Option<u64> {
        self.api.number(address).ok()
    }

    fn prepared(&self, address: usize) -> Option<Range<usize>> {
        if self.api.is_managed(address) {
            return None;
        }
        let Allocation { start, len, .. } = self.allocation(address)?;
        // Copies of the driver's that are not waited for would not be seen by the processor.
        let _ = self.within(|| self.api.synchronize_copies(address));
        Some(start as usize..(start + len) as usize)
    }

    fn within<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let done = DriverDevice::within(self, || Ok(work()));
        done.map_err(|failed| self.failure("mapping memory", failed).what).flatten()
    }
}

impl Device for DriverDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn driver(&self) -> &'static str {
        self.api.platform().name()
    }

    // Addresses are unified, and where one device does not reach the other one the driver goes by the host.
    fn reaches(&self, other: &dyn Device) -> bool {
        other.driver() == self.driver()
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> Result<u64, DeviceFailure> {
        let (to, from) = (to as usize, from as usize);
        let done = self.within(|| {
            let started = self.start(|stream| {
                // SAFETY: the caller promises both ranges; the stream is of the current context.
                unsafe { self.api.copy_on(to, from, len, stream) }
            });
            started.or_else(|_| {
                // Without a stream or an event it is waited for.
                // SAFETY: as above.
                unsafe { self.api.copy(to, from, len) }?;
                stats::count(&stats::COPIES_WAITED);
                Ok(0)
            })
        });
        stats::count(&stats::COPIES);
        done.map_err(|error| self.copy_failure(to, from, len, error))
    }

    unsafe fn copy_now(&self, to: *mut u8, from: *const u8, len: usize) -> Result<(), DeviceFailure> {
        let (to, from) = (to as usize, from as usize);
        stats::count(&stats::COPIES);
        // SAFETY: as the caller promises.
        if unsafe { self.copy_in_any_context(to, from, len) } {
            return Ok(());
        }
        let done = self.within(|| {
            // SAFETY: as the caller promises.
            let copied =
                self.stream_of_now().and_then(|now| unsafe { self.copy_on_stream(now, to, from, len) });
            copied.or_else(|_| {
                stats::count(&stats::COPIES_WAITED);
                // SAFETY: as above.
                unsafe { self.api.copy(to, from, len) }
            })
        });
        done.map_err(|error| self.copy_failure(to, from, len, error))
    }

    unsafe fn copy_mapped(&self, direction: Direction, there: *mut u8, here: *mut u8, len: usize) -> bool {
        // SAFETY: as the caller promises.
        mapped::is_short(direction, len)
            && self.api.platform() == Platform::Cuda
            && unsafe { mapped::copy(self, direction, there as usize, here, len) }
    }

    fn pin(&self, address: *mut u8, len: usize) -> bool {
        let pinned = self.within(|| {
            // SAFETY: memory that stays mapped until `unpin`; the driver refuses what it cannot pin.
            unsafe { self.api.host_register(address.cast(), len, api::REGISTER_PORTABLE) }
        });
        pinned.is_ok()
    }

    fn unpin(&self, address: *mut u8) {
        // Where the context is gone so is what was pinned in it.
        // SAFETY: memory that `pin` has pinned, and that nothing copies any more.
        let _ = self.within(|| unsafe { self.api.host_unregister(address.cast()) });
    }

    unsafe fn launch(&self, launch: &Launch<'_>, values: &[Value<'_>]) -> Result<u64, DeviceFailure> {
        // The driver takes the addresses of values.
        let addresses: Vec<*mut u8> = values
            .iter()
            .map(|value| if let Value::Address(address) = value { *address } else { std::ptr::null_mut() })
            .collect();
        let mut parameters: Vec<*mut c_void> = values
            .iter()
            .zip(&addresses)
            .map(|(value, address)| match value {
                Value::Address(_) => std::ptr::from_ref(address).cast_mut().cast(),
                Value::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
            })
            .collect();
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let within = self.within(|| Ok(self.kernel(launch)));
        let kernel = within.map_err(|error| self.failure("kernels", error)).flatten()?;
        let done = self.within(|| {
            self.start(|stream| {
                let (list, none) = (parameters.as_mut_ptr(), std::ptr::null_mut());
                // SAFETY: the caller promises that the kernel has these parameters, which the driver copies.
                unsafe { self.api.launch(kernel, gx, gy, gz, bx, by, bz, launch.shared, stream, list, none) }
            })
        });
        done.inspect(|_| stats::count(&stats::KERNELS))
            .map_err(|error| self.failure(&format!("the kernel {}", launch.name.to_string_lossy()), error))
    }

    fn allocate(&self, len: usize) -> Result<(*mut u8, usize), DeviceFailure> {
        let len = Spare::room(len, LEAST_SCRATCH);
        let mut state = self.lock();
        if let Some(address) = state.spare.take(len) {
            return Ok((address, len));
        }
        drop(state);
        let mut address = 0;
        // SAFETY: room for an address.
        let done = self.within(|| unsafe { self.api.alloc(&raw mut address, len) });
        done.map_err(|error| self.failure(&format!("taking {len} bytes"), error))?;
        Ok((address as *mut u8, len))
    }

    unsafe fn free(&self, address: *mut u8, len: usize) {
        let mut state = self.lock();
        state.spare.put(address, len);
        // To free memory waits for what the device does, which may wait for us.
        let least = if stream::is_waiting() { None } else { state.spare.least_used(MOST_SPARE) };
        drop(state);
        if let Some(address) = least {
            // SAFETY: memory of `allocate` that nobody uses any more.
            let _ = self.within(|| unsafe { self.api.free(address) });
        }
    }

    fn export(&self, address: usize) -> Option<Exported> {
        let id = self.api.number(address).ok()?;
        if let Some(exported) = self.lock().exported.get(&id) {
            return *exported;
        }
        let exported = self
            .within(|| {
                let (mut start, mut len, mut handle) = (0, 0, IpcHandle { reserved: [0; 64] });
                // SAFETY: room for what is asked; the address is in an allocation, by the number above.
                unsafe { self.api.address_range(&raw mut start, &raw mut len, address) }?;
                // SAFETY: as above.
                unsafe { self.api.ipc_handle(&raw mut handle, start) }?;
                Ok(Exported {
                    handle: handle.reserved.map(c_char::cast_unsigned),
                    start: start as u64,
                    len: len as u64,
                    id: id | self.mark(),
                })
            })
            .ok();
        let exports = &mut self.lock().exported;
        if exports.len() >= MOST_EXPORTED {
            exports.clear();
        }
        exports.insert(id, exported);
        exported
    }

    fn allocation(&self, address: usize) -> Option<Allocation> {
        let id = self.api.number(address).ok()? | self.mark();
        let (mut start, mut len) = (0, 0);
        // SAFETY: room for what is asked; the address is in an allocation, by the number above.
        let found = || unsafe { self.api.address_range(&raw mut start, &raw mut len, address) };
        self.within(found).ok()?;
        Some(Allocation { id, start: start as u64, len: len as u64, device: self.address })
    }

    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        let exported = self.within(|| self.api.dma_buf(pages.start, pages.len()));
        exported.map_err(|Failed { call, error }| DeviceFailure {
            what: format!("{} exports no dma-buf: {call} says {}", self.name, self.api.describe(error)),
        })
    }

    fn settle(&self) -> Result<(), DeviceFailure> {
        let settled = self.within(|| self.api.settle(self.ordinal));
        settled.map_err(|failed| self.failure("seeing what was written to memory", failed))
    }

    fn import(&self, exported: &Exported) -> Result<*mut u8, DeviceFailure> {
        if exported.id & HIP != self.mark() {
            let what =
                format!("memory of another process is not mapped: {} has no part in that device", self.name);
            return Err(DeviceFailure { what });
        }
        let mut start = 0;
        let handle = IpcHandle { reserved: exported.handle.map(u8::cast_signed) };
        let opened = self.within(|| {
            // SAFETY: room for an address; the driver checks the handle.
            unsafe { self.api.ipc_open(&raw mut start, handle, api::ENABLE_PEERS) }
        });
        opened.map_err(|error| self.failure("mapping memory of another process", error))?;
        Ok(start as *mut u8)
    }

    fn close(&self, start: *mut u8) {
        let closed = self.within(|| {
            // SAFETY: an address that `import` gave, and that nobody uses any more.
            unsafe { self.api.ipc_close(start as usize) }
        });
        debug_assert!(closed.is_ok() || std::thread::panicking(), "{closed:?}");
    }

    fn is_over(&self, number: u64) -> Result<bool, DeviceFailure> {
        let mut state = self.lock();
        let Some(&event) = state.under_way.get(&number) else { return Ok(true) };
        // SAFETY: an event that was recorded.
        let Err(failed) = (unsafe { self.api.event_query(event) }) else {
            state.under_way.remove(&number);
            state.events.push(event);
            return Ok(true);
        };
        if failed.error == api::NOT_READY {
            return Ok(false);
        }
        state.under_way.remove(&number);
        // SAFETY: nobody uses the event any more.
        let _ = unsafe { self.api.event_destroy(event) };
        Err(self.failure("a copy or a kernel", failed))
    }
}
