//! The functions of HIP's runtime, on the same devices: those that take the same do the same. HIP has no contexts but one for each device, of which
//! one is current from the beginning, and starts with the first call. A thread's last error is kept.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::codes::{
    Handle, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::exported::{Done, driver, on_stream, put};
use crate::ipc::IpcHandle;
use crate::memory::Kind;
use crate::streams::Work;
use crate::world::{self, World};

thread_local! {
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// The runtime takes all calls; the first device is current where none is.
fn started(world: &mut World, _function: &str) -> Done {
    world.initialized = true;
    if world.current().is_err() && !world.primary.is_empty() {
        use_device(world, 0)?;
    }
    Ok(())
}

fn use_device(world: &mut World, device: usize) -> Done {
    let context = world.retain(device)?;
    world::pop();
    world::push(context);
    Ok(())
}

fn ended(error: c_int) -> c_int {
    if error != 0 {
        LAST_ERROR.set(error);
    }
    error
}

/// Copies go where the addresses say (`hipMemcpyDefault`): all that is used here.
fn by_address(kind: c_int) -> Done {
    if kind == 4 { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// A device's structure of properties: all zeros but for its name for the compiler.
fn put_properties(world: &World, properties: *mut u8, device: c_int, len: usize, name_at: usize) -> Done {
    if device < 0 || device as usize >= world.primary.len() {
        return Err(INVALID_DEVICE);
    }
    let name = c"gfx90a:sramecc+:xnack-".to_bytes_with_nul();
    // SAFETY: the program gives room for the structure.
    unsafe {
        properties.write_bytes(0, len);
        properties.add(name_at).copy_from(name.as_ptr(), name.len());
    }
    Ok(())
}

driver! {
    started, ended;
    fn hipInit = "hipInit" (world, flags: c_uint) { world.cuInit(flags) }
    fn hipRuntimeGetVersion = "hipRuntimeGetVersion" (world, version: *mut c_int) { put(version, 60_399_999) }
    fn hipGetDeviceCount = "hipGetDeviceCount" (world, count: *mut c_int) { world.cuDeviceGetCount(count) }
    fn hipGetDevice = "hipGetDevice" (world, device: *mut c_int) { world.cuCtxGetDevice(device) }
    fn hipSetDevice = "hipSetDevice" (world, device: c_int) {
        use_device(world, usize::try_from(device).map_err(|_| INVALID_DEVICE)?)
    }
    fn hipDeviceGetName = "hipDeviceGetName" (world, name: *mut c_char, len: c_int, device: c_int) {
        world.cuDeviceGetName(name, len, device)
    }
    fn hipDeviceGetPCIBusId = "hipDeviceGetPCIBusId" (world, address: *mut c_char, len: c_int, device: c_int) {
        world.cuDeviceGetPCIBusId(address, len, device)
    }
    fn hipDeviceGetAttribute = "hipDeviceGetAttribute" (world, value: *mut c_int, attribute: c_int, _device: c_int) {
        put(value, match attribute {
            9 => c_int::from(world.settings.shared),
            10013 => 1,
            _ => 0,
        })
    }
    fn hipGetDevicePropertiesR0600 = "hipGetDevicePropertiesR0600" (world, properties: *mut u8, device: c_int) {
        put_properties(world, properties, device, 1472, 1160)
    }
    fn hipGetDeviceProperties = "hipGetDeviceProperties" (world, properties: *mut u8, device: c_int) {
        put_properties(world, properties, device, 792, 396)
    }
    fn hipDeviceSynchronize = "hipDeviceSynchronize" (world) { world.cuCtxSynchronize() }
    fn hipMalloc = "hipMalloc" (world, pointer: *mut usize, len: usize) { world.cuMemAlloc(pointer, len) }
    fn hipMallocManaged = "hipMallocManaged" (world, pointer: *mut usize, len: usize, flags: c_uint) {
        world.cuMemAllocManaged(pointer, len, flags)
    }
    // Memory of the host that a stream can wait for (`hipMallocSignalMemory`), and nothing else.
    fn hipExtMallocWithFlags = "hipExtMallocWithFlags" (world, pointer: *mut usize, len: usize, flags: c_uint) {
        if flags != 2 || len != 8 {
            return Err(INVALID_VALUE);
        }
        world.cuMemHostAlloc(pointer, len, 0)
    }
    fn hipHostMalloc = "hipHostMalloc" (world, pointer: *mut usize, len: usize, flags: c_uint) {
        world.cuMemHostAlloc(pointer, len, flags)
    }
    fn hipFree = "hipFree" (world, pointer: usize) {
        match world.memory.at(pointer) {
            Some(memory) if memory.kind == Kind::Pinned && memory.len == 8 => world.cuMemFreeHost(pointer),
            _ => world.cuMemFree(pointer),
        }
    }
    fn hipHostFree = "hipHostFree" (world, pointer: usize) { world.cuMemFreeHost(pointer) }
    fn hipHostRegister = "hipHostRegister" (world, pointer: usize, len: usize, flags: c_uint) {
        world.cuMemHostRegister(pointer, len, flags)
    }
    fn hipHostUnregister = "hipHostUnregister" (world, pointer: usize) { world.cuMemHostUnregister(pointer) }
    fn hipMemGetAddressRange = "hipMemGetAddressRange" (world, start: *mut usize, len: *mut usize, pointer: usize) {
        world.cuMemGetAddressRange(start, len, pointer)
    }
    fn hipPointerGetAttribute = "hipPointerGetAttribute" (world, value: *mut c_void, attribute: c_int, pointer: usize) {
        let memory = world.memory.at(pointer).ok_or(INVALID_VALUE)?;
        match attribute {
            4 if memory.kind == Kind::Device => Err(INVALID_VALUE),
            4 => put(value.cast::<usize>(), pointer),
            7 => put(value.cast::<u32>(), memory.id as u32),
            8 => put(value.cast::<bool>(), memory.kind == Kind::Managed),
            9 => put(value.cast::<c_int>(), memory.device as c_int),
            _ => Err(NOT_SUPPORTED),
        }
    }
    fn hipMemcpy = "hipMemcpy" (world, to: usize, from: usize, len: usize, kind: c_int) {
        by_address(kind)?;
        world.cuMemcpy(to, from, len)
    }
    fn hipMemcpyAsync = "hipMemcpyAsync" (world, to: usize, from: usize, len: usize, kind: c_int, stream: Handle) {
        by_address(kind)?;
        world.cuMemcpyAsync(to, from, len, stream)
    }
    fn hipMemcpyHtoD = "hipMemcpyHtoD" (world, to: usize, from: usize, len: usize) { world.cuMemcpyHtoD(to, from, len) }
    fn hipMemcpyDtoH = "hipMemcpyDtoH" (world, to: usize, from: usize, len: usize) { world.cuMemcpyDtoH(to, from, len) }
    fn hipMemsetD8Async = "hipMemsetD8Async" (world, to: usize, byte: u8, len: usize, stream: Handle) {
        world.cuMemsetD8Async(to, byte, len, stream)
    }
    fn hipStreamCreateWithFlags = "hipStreamCreateWithFlags" (world, stream: *mut Handle, flags: c_uint) {
        world.cuStreamCreate(stream, flags)
    }
    fn hipStreamSynchronize = "hipStreamSynchronize" (world, stream: Handle) { world.cuStreamSynchronize(stream) }
    fn hipStreamGetDevice = "hipStreamGetDevice" (world, stream: Handle, device: *mut c_int) {
        let context = world.streams.context(stream).ok_or(INVALID_HANDLE)?;
        let of = world.contexts.get(&context).ok_or(INVALID_HANDLE)?.device;
        put(device, of as c_int)
    }
    fn hipStreamWaitValue64 = "hipStreamWaitValue64" (
        world, stream: Handle, at: usize, value: u64, flags: c_uint, mask: u64
    ) {
        let waits = world.memory.at(at).is_some_and(|memory| memory.kind == Kind::Pinned && memory.len == 8);
        if flags != 0 || !waits || mask != u64::MAX {
            return Err(INVALID_VALUE);
        }
        on_stream(world, stream, Work::AwaitWide(at, value))
    }
    fn hipEventCreateWithFlags = "hipEventCreateWithFlags" (world, event: *mut Handle, flags: c_uint) {
        world.cuEventCreate(event, flags)
    }
    fn hipEventDestroy = "hipEventDestroy" (world, event: Handle) { world.cuEventDestroy(event) }
    fn hipEventRecord = "hipEventRecord" (world, event: Handle, stream: Handle) { world.cuEventRecord(event, stream) }
    fn hipEventQuery = "hipEventQuery" (world, event: Handle) { world.cuEventQuery(event) }
    fn hipEventSynchronize = "hipEventSynchronize" (world, event: Handle) { world.cuEventSynchronize(event) }
    fn hipIpcGetMemHandle = "hipIpcGetMemHandle" (world, handle: *mut IpcHandle, pointer: usize) {
        world.cuIpcGetMemHandle(handle, pointer)
    }
    fn hipIpcOpenMemHandle = "hipIpcOpenMemHandle" (world, pointer: *mut usize, handle: IpcHandle, flags: c_uint) {
        world.cuIpcOpenMemHandle(pointer, handle, flags)
    }
    fn hipIpcCloseMemHandle = "hipIpcCloseMemHandle" (world, pointer: usize) { world.cuIpcCloseMemHandle(pointer) }
    fn hipMemGetHandleForAddressRange = "hipMemGetHandleForAddressRange" (
        world, handle: *mut c_int, pointer: usize, len: usize, kind: c_int, flags: c_ulonglong
    ) {
        world.cuMemGetHandleForAddressRange(handle, pointer, len, kind, flags)
    }
    fn hipModuleLoadData = "hipModuleLoadData" (world, module: *mut Handle, image: *const c_void) {
        world.cuModuleLoadData(module, image)
    }
    fn hipModuleGetFunction = "hipModuleGetFunction" (
        world, function: *mut Handle, module: Handle, name: *const c_char
    ) {
        world.cuModuleGetFunction(function, module, name)
    }
    fn hipModuleLaunchKernel = "hipModuleLaunchKernel" (
        world, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    ) {
        world.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
    }
}

/// The thread's last error, which is forgotten with this.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipGetLastError() -> c_int {
    LAST_ERROR.take()
}

fn text_of(error: c_int) -> Option<&'static CStr> {
    Some(match error {
        0 => c"hipSuccess",
        INVALID_VALUE => c"hipErrorInvalidValue",
        OUT_OF_MEMORY => c"hipErrorOutOfMemory",
        100 => c"hipErrorNoDevice",
        INVALID_DEVICE => c"hipErrorInvalidDevice",
        INVALID_HANDLE => c"hipErrorInvalidHandle",
        NOT_FOUND => c"hipErrorNotFound",
        NOT_READY => c"hipErrorNotReady",
        NOT_SUPPORTED => c"hipErrorNotSupported",
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDrvGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    text_of(error).map_or(INVALID_VALUE, |text| put(name, text.as_ptr()).err().unwrap_or(0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDrvGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    text_of(error).map_or(INVALID_VALUE, |_| put(text, c"as the name says".as_ptr()).err().unwrap_or(0))
}
