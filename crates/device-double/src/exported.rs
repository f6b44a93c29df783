//! The functions of the driver.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::codes::{
    Handle, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_INITIALIZED,
    NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, PEER_ACCESS_ALREADY_ENABLED, WAIT,
};
use crate::ipc::IpcHandle;
use crate::memory::{Kind, PAGE};
use crate::streams::Work;
use crate::world::{self, World};

pub(crate) type Done = Result<(), c_int>;

/// Declares functions of a driver: each counts as called, fails if a test asks for that, and is a method of the world. `$start` says whether the
/// driver takes calls, and `$end` sees what is returned. One that says [`WAIT`] is asked again, and other threads meanwhile.
macro_rules! driver {
    ($start:path, $end:path; $(fn $name:ident = $symbol:literal ($world:ident $(, $arg:ident: $type:ty)*) $body:block)+) => {
        #[allow(unused_variables, clippy::too_many_arguments, reason = "not all need it; the parameters are the driver's")]
        impl $crate::world::World {$(
            pub(crate) fn $name(&mut self $(, $arg: $type)*) -> $crate::exported::Done {
                let $world = self;
                $body
            }
        )+}
        $(
            #[unsafe(export_name = $symbol)]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> std::ffi::c_int {
                let mut entered = $crate::world::World::enter();
                let asked = entered.settings.called(stringify!($name));
                let may = if asked == 0 { $start(&mut entered, stringify!($name)) } else { Err(asked) };
                if let Err(error) = may {
                    return $end(error);
                }
                loop {
                    match entered.$name($($arg),*) {
                        Err($crate::codes::WAIT) => {
                            drop(entered);
                            std::thread::yield_now();
                            entered = $crate::world::World::enter();
                        }
                        done => return $end(done.err().unwrap_or(0)),
                    }
                }
            }
        )+
    };
}
pub(crate) use driver;

/// CUDA's driver takes calls once it was started.
fn started(world: &mut World, function: &str) -> Done {
    if world.initialized || function == "cuInit" { Ok(()) } else { Err(NOT_INITIALIZED) }
}

/// Writes a result of the driver.
pub(crate) fn put<T>(to: *mut T, value: T) -> Done {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program gives room for it.
    unsafe { to.write(value) };
    Ok(())
}

/// Copies and fills that are over when the call returns.
fn at_once(world: &mut World, work: Work) -> Done {
    world.current()?;
    match work {
        Work::Copy { to, from, len } => world.memory.copy(to, from, len),
        Work::Fill { to, byte, len } => {
            let to = world.memory.real(to, len)?;
            // SAFETY: memory of ours inside its bounds, or what the program names as its own.
            unsafe { std::ptr::write_bytes(to, byte, len) };
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Work on a stream of the current context; on the default stream it is over at once.
pub(crate) fn on_stream(world: &mut World, stream: Handle, work: Work) -> Done {
    let (context, _) = world.current()?;
    match &work {
        Work::Copy { to, from, len } => {
            world.memory.real(*to, *len)?;
            world.memory.real(*from, *len)?;
        }
        Work::Fill { to, len, .. } => drop(world.memory.real(*to, *len)?),
        _ => {}
    }
    match stream {
        0 => at_once(world, work),
        _ if world.streams.context(stream).ok_or(INVALID_HANDLE)? != context => Err(INVALID_CONTEXT),
        stream => world.streams.start(stream, work),
    }
}

driver! {
    started, std::convert::identity;
    fn cuInit = "cuInit" (world, _flags: c_uint) {
        world.initialized = true;
        if world.primary.is_empty() { Err(100) } else { Ok(()) }
    }
    fn cuDriverGetVersion = "cuDriverGetVersion" (world, version: *mut c_int) {
        put(version, 12080)
    }
    fn cuDeviceGetCount = "cuDeviceGetCount" (world, count: *mut c_int) {
        put(count, world.primary.len() as c_int)
    }
    fn cuDeviceGet = "cuDeviceGet" (world, device: *mut c_int, ordinal: c_int) {
        if ordinal < 0 || ordinal as usize >= world.primary.len() { Err(INVALID_DEVICE) } else { put(device, ordinal) }
    }
    fn cuDeviceGetName = "cuDeviceGetName" (world, name: *mut c_char, len: c_int, _device: c_int) {
        let text = c"stand-in of the driver".to_bytes_with_nul();
        if (len as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: room for `len` characters.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    }
    fn cuDeviceGetPCIBusId = "cuDeviceGetPCIBusId" (world, address: *mut c_char, len: c_int, device: c_int) {
        if device < 0 || device as usize >= world.primary.len() {
            return Err(INVALID_DEVICE);
        }
        let text = format!("0000:{:02x}:00.0\0", 0x13 + 0x10 * device);
        if (len as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: room for `len` characters.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), address, text.len()) };
        Ok(())
    }
    fn cuDeviceGetAttribute = "cuDeviceGetAttribute" (world, value: *mut c_int, attribute: c_int, device: c_int) {
        if device < 0 || device as usize >= world.primary.len() {
            return Err(INVALID_DEVICE);
        }
        put(value, match attribute {
            41 => 1,
            75 => 9,
            76 => 0,
            89 => c_int::from(world.settings.shared),
            16 => 4,
            _ => 0,
        })
    }
    fn cuDeviceCanAccessPeer = "cuDeviceCanAccessPeer" (world, can: *mut c_int, device: c_int, peer: c_int) {
        put(can, c_int::from(world.settings.peers && device != peer))
    }
    fn cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" (world, context: *mut Handle, device: c_int) {
        let retained = world.retain(device as usize)?;
        put(context, retained)
    }
    fn cuDevicePrimaryCtxRelease = "cuDevicePrimaryCtxRelease_v2" (world, device: c_int) {
        let (context, retained) = *world.primary.get(device as usize).ok_or(INVALID_DEVICE)?;
        if retained == 0 {
            return Err(INVALID_CONTEXT);
        }
        world.primary[device as usize].1 -= 1;
        if retained == 1 { world.destroy(context) } else { Ok(()) }
    }
    fn cuCtxCreate = "cuCtxCreate_v2" (world, context: *mut Handle, _flags: c_uint, device: c_int) {
        if device < 0 || device as usize >= world.primary.len() {
            return Err(INVALID_DEVICE);
        }
        let new = world.new_context(device as usize);
        world::push(new);
        put(context, new)
    }
    fn cuCtxDestroy = "cuCtxDestroy_v2" (world, context: Handle) {
        world.destroy(context)?;
        if world::current() == Some(context) {
            world::pop();
        }
        Ok(())
    }
    fn cuCtxSetCurrent = "cuCtxSetCurrent" (world, context: Handle) {
        world::pop();
        if context != 0 {
            world.contexts.get(&context).ok_or(INVALID_CONTEXT)?;
            world::push(context);
        }
        Ok(())
    }
    fn cuCtxGetCurrent = "cuCtxGetCurrent" (world, context: *mut Handle) {
        put(context, world::current().unwrap_or(0))
    }
    fn cuCtxGetDevice = "cuCtxGetDevice" (world, device: *mut c_int) {
        let current = world.current()?.1;
        put(device, current as c_int)
    }
    fn cuCtxPushCurrent = "cuCtxPushCurrent_v2" (world, context: Handle) {
        world.contexts.get(&context).ok_or(INVALID_CONTEXT)?;
        world::push(context);
        Ok(())
    }
    fn cuCtxPopCurrent = "cuCtxPopCurrent_v2" (world, context: *mut Handle) {
        let popped = world::pop().ok_or(INVALID_CONTEXT)?;
        if context.is_null() { Ok(()) } else { put(context, popped) }
    }
    fn cuCtxSynchronize = "cuCtxSynchronize" (world) {
        world.current()?;
        world.streams.finish_all(&world.memory)
    }
    fn cuCtxEnablePeerAccess = "cuCtxEnablePeerAccess" (world, peer: Handle, _flags: c_uint) {
        let (context, _) = world.current()?;
        world.contexts.get(&peer).ok_or(INVALID_CONTEXT)?;
        if !world.settings.peers {
            return Err(217);
        }
        let peers = &mut world.contexts.get_mut(&context).ok_or(INVALID_CONTEXT)?.peers;
        if peers.contains(&peer) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer);
        Ok(())
    }
    fn cuMemAlloc = "cuMemAlloc_v2" (world, pointer: *mut usize, len: usize) {
        let current = world.current()?;
        let new = world.memory.allocate(Kind::Device, len, current)?;
        put(pointer, new)
    }
    fn cuMemAllocManaged = "cuMemAllocManaged" (world, pointer: *mut usize, len: usize, _flags: c_uint) {
        let current = world.current()?;
        let new = world.memory.allocate(Kind::Managed, len, current)?;
        put(pointer, new)
    }
    fn cuMemHostAlloc = "cuMemHostAlloc" (world, pointer: *mut usize, len: usize, _flags: c_uint) {
        let current = world.current()?;
        let new = world.memory.allocate(Kind::Pinned, len, current)?;
        put(pointer, new)
    }
    fn cuMemFree = "cuMemFree_v2" (world, pointer: usize) {
        world.streams.finish_all(&world.memory)?;
        world.memory.free(pointer, |a| a.kind != Kind::Pinned && a.imported.is_none())
    }
    fn cuMemFreeHost = "cuMemFreeHost" (world, pointer: usize) {
        world.streams.finish_all(&world.memory)?;
        world.memory.free(pointer, |a| a.kind == Kind::Pinned)
    }
    fn cuMemHostRegister = "cuMemHostRegister_v2" (world, pointer: usize, len: usize, _flags: c_uint) {
        let current = world.current()?;
        world.memory.register(pointer, len, current)
    }
    fn cuMemHostUnregister = "cuMemHostUnregister" (world, pointer: usize) {
        world.streams.finish_all(&world.memory)?;
        world.memory.free(pointer, |a| a.kind == Kind::Pinned)
    }
    fn cuMemGetAddressRange = "cuMemGetAddressRange_v2" (world, start: *mut usize, len: *mut usize, pointer: usize) {
        let allocation = world.memory.at(pointer).ok_or(NOT_FOUND)?;
        put(start, allocation.start)?;
        put(len, allocation.len)
    }
    // Its descriptor is that of the memory's file, in the place of a dma-buf, and stands at the first byte of the range.
    fn cuMemGetHandleForAddressRange = "cuMemGetHandleForAddressRange" (
        world, handle: *mut c_int, pointer: usize, len: usize, kind: c_int, flags: c_ulonglong
    ) {
        const DMA_BUF: c_int = 1;
        if kind != DMA_BUF || flags != 0 || len == 0 || !pointer.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(INVALID_VALUE);
        }
        put(handle, world.memory.file_at(pointer, len)?)
    }
    fn cuPointerSetAttribute = "cuPointerSetAttribute" (
        world, value: *const c_void, attribute: c_int, pointer: usize
    ) {
        const SYNC_MEMOPS: c_int = 6;
        let known = world.memory.at(pointer).is_some_and(|memory| memory.kind == Kind::Device);
        if known && attribute == SYNC_MEMOPS && !value.is_null() { Ok(()) } else { Err(INVALID_VALUE) }
    }
    // Memory is one for all that read it: there is nothing to do, but tests count calls.
    fn cuFlushGPUDirectRDMAWrites = "cuFlushGPUDirectRDMAWrites" (world, target: c_int, scope: c_int) {
        world.current()?;
        if target == 0 && matches!(scope, 100 | 200) { Ok(()) } else { Err(INVALID_VALUE) }
    }
    fn cuPointerGetAttribute = "cuPointerGetAttribute" (world, value: *mut c_void, attribute: c_int, pointer: usize) {
        let allocation = world.memory.at(pointer).ok_or(INVALID_VALUE)?;
        let kind = match allocation.kind {
            Kind::Pinned => 1,
            Kind::Device | Kind::Managed => 2,
        };
        match attribute {
            1 => put(value.cast::<Handle>(), allocation.context),
            2 => put(value.cast::<c_uint>(), kind),
            7 => put(value.cast::<u64>(), allocation.id),
            8 => put(value.cast::<c_uint>(), c_uint::from(allocation.kind == Kind::Managed)),
            9 => put(value.cast::<c_int>(), allocation.device as c_int),
            10 => put(value.cast::<c_int>(), c_int::from(allocation.descriptor().is_some())),
            11 => put(value.cast::<usize>(), allocation.start),
            12 => put(value.cast::<usize>(), allocation.len),
            _ => Err(NOT_SUPPORTED),
        }
    }
    fn cuMemcpy = "cuMemcpy" (world, to: usize, from: usize, len: usize) {
        at_once(world, Work::Copy { to, from, len })
    }
    fn cuMemcpyHtoD = "cuMemcpyHtoD_v2" (world, to: usize, from: usize, len: usize) {
        at_once(world, Work::Copy { to, from, len })
    }
    fn cuMemcpyDtoH = "cuMemcpyDtoH_v2" (world, to: usize, from: usize, len: usize) {
        at_once(world, Work::Copy { to, from, len })
    }
    fn cuMemcpyDtoD = "cuMemcpyDtoD_v2" (world, to: usize, from: usize, len: usize) {
        at_once(world, Work::Copy { to, from, len })
    }
    fn cuMemsetD8 = "cuMemsetD8_v2" (world, to: usize, byte: u8, len: usize) {
        at_once(world, Work::Fill { to, byte, len })
    }
    fn cuMemcpyAsync = "cuMemcpyAsync" (world, to: usize, from: usize, len: usize, stream: Handle) {
        on_stream(world, stream, Work::Copy { to, from, len })
    }
    fn cuMemsetD8Async = "cuMemsetD8Async" (world, to: usize, byte: u8, len: usize, stream: Handle) {
        on_stream(world, stream, Work::Fill { to, byte, len })
    }
    fn cuStreamCreate = "cuStreamCreate" (world, stream: *mut Handle, _flags: c_uint) {
        let ((context, _), new) = (world.current()?, world.handle());
        world.streams.add(new, context);
        put(stream, new)
    }
    fn cuStreamDestroy = "cuStreamDestroy_v2" (world, stream: Handle) {
        world.streams.remove(&world.memory, stream)
    }
    fn cuStreamSynchronize = "cuStreamSynchronize" (world, stream: Handle) {
        if stream == 0 { Ok(()) } else { world.streams.finish(&world.memory, stream) }
    }
    fn cuStreamQuery = "cuStreamQuery" (world, stream: Handle) {
        match world.streams.query_stream(&world.memory, stream) {
            0 => Ok(()),
            error => Err(error),
        }
    }
    fn cuStreamGetCtx = "cuStreamGetCtx" (world, stream: Handle, context: *mut Handle) {
        let of = world.streams.context(stream).ok_or(INVALID_HANDLE)?;
        put(context, of)
    }
    fn cuStreamWaitValue32 = "cuStreamWaitValue32_v2" (world, stream: Handle, at: usize, value: c_uint, flags: c_uint) {
        let pinned = world.memory.at(at).is_some_and(|memory| memory.kind == Kind::Pinned);
        if flags != 0 || !pinned || !at.is_multiple_of(4) {
            return Err(INVALID_VALUE);
        }
        on_stream(world, stream, Work::AwaitValue(at, value))
    }
    fn cuStreamWaitEvent = "cuStreamWaitEvent" (world, stream: Handle, event: Handle, _flags: c_uint) {
        world.streams.wait_for(stream, event)
    }
    fn cuEventCreate = "cuEventCreate" (world, event: *mut Handle, _flags: c_uint) {
        let ((context, _), new) = (world.current()?, world.handle());
        world.streams.add_event(new, context);
        put(event, new)
    }
    fn cuEventDestroy = "cuEventDestroy_v2" (world, event: Handle) {
        world.streams.remove_event(event)
    }
    fn cuEventRecord = "cuEventRecord" (world, event: Handle, stream: Handle) {
        world.streams.record(event, stream)
    }
    fn cuEventQuery = "cuEventQuery" (world, event: Handle) {
        match world.streams.query(&world.memory, event) {
            0 => Ok(()),
            error => Err(error),
        }
    }
    fn cuEventSynchronize = "cuEventSynchronize" (world, event: Handle) {
        match world.streams.query(&world.memory, event) {
            0 => Ok(()),
            NOT_READY => Err(WAIT),
            error => Err(error),
        }
    }
    fn cuIpcGetMemHandle = "cuIpcGetMemHandle" (world, handle: *mut IpcHandle, pointer: usize) {
        let got = world.ipc_handle(pointer)?;
        put(handle, got)
    }
    fn cuIpcOpenMemHandle = "cuIpcOpenMemHandle_v2" (world, pointer: *mut usize, handle: IpcHandle, _flags: c_uint) {
        let opened = world.ipc_open(handle)?;
        put(pointer, opened)
    }
    fn cuIpcCloseMemHandle = "cuIpcCloseMemHandle" (world, pointer: usize) {
        world.streams.finish_all(&world.memory)?;
        world.memory.free(pointer, |a| a.imported.is_some())
    }
    fn cuModuleLoadData = "cuModuleLoadData" (world, module: *mut Handle, text: *const c_void) {
        world.current()?;
        if text.is_null() {
            return Err(INVALID_VALUE);
        }
        let new = world.handle();
        put(module, new)
    }
    fn cuModuleUnload = "cuModuleUnload" (world, _module: Handle) {
        Ok(())
    }
    fn cuModuleGetFunction = "cuModuleGetFunction" (world, function: *mut Handle, _module: Handle, name: *const c_char) {
        let new = world.handle();
        // SAFETY: the program gives a C string.
        let name = unsafe { CStr::from_ptr(name) };
        world.kernels.add(world.settings.kernels.as_deref(), name, new)?;
        put(function, new)
    }
    fn cuLaunchKernel = "cuLaunchKernel" (
        world, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, parameters: *mut *mut c_void, _extra: *mut *mut c_void
    ) {
        let (context, _) = world.current()?;
        let mut contexts = world.contexts.get(&context).ok_or(INVALID_CONTEXT)?.peers.clone();
        contexts.push(context);
        let shape = [[gx, gy, gz], [bx, by, bz]];
        // SAFETY: the program gives the addresses of the kernel's parameters.
        let run = unsafe { world.kernels.launch(function, shape, shared, parameters, contexts) }?;
        if stream == 0 {
            run.run(&world.memory);
            return Ok(());
        }
        on_stream(world, stream, Work::Kernel(run))
    }
}

/// How often a function was called in this process, by its name here (`cuMemcpyAsync`, without a version); with an empty name, all of
/// them together. No driver has this: a test asks.
///
/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn banyan_double_calls(name: *const c_char) -> u64 {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    World::enter().settings.calls(&name.to_string_lossy())
}

/// From now on a function fails with this error in this process; with 0 it does not any more. No driver has this: a test asks.
///
/// # Safety
/// The name is a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn banyan_double_fail(name: *const c_char, error: c_int) {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    World::enter().settings.fail(&name.to_string_lossy(), error);
}

/// The name of an error and a sentence about it.
fn text_of(error: c_int) -> Option<[&'static CStr; 2]> {
    Some(match error {
        0 => [c"CUDA_SUCCESS", c"no error"],
        INVALID_VALUE => [c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"],
        OUT_OF_MEMORY => [c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"],
        NOT_INITIALIZED => [c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"],
        100 => [c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"],
        INVALID_DEVICE => [c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"],
        INVALID_CONTEXT => [c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"],
        INVALID_HANDLE => [c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"],
        NOT_FOUND => [c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"],
        NOT_READY => [c"CUDA_ERROR_NOT_READY", c"device not ready"],
        700 => [c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"],
        709 => [c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"],
        NOT_SUPPORTED => [c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"],
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    text_of(error).map_or(INVALID_VALUE, |[text, _]| put(name, text.as_ptr()).err().unwrap_or(0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    text_of(error).map_or(INVALID_VALUE, |[_, meaning]| put(text, meaning.as_ptr()).err().unwrap_or(0))
}
