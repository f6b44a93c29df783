//! The functions of the CUDA driver that are used here. cudarc finds the library and each function at run time: nothing of CUDA is
//! needed to build.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use super::library::{Failed, MISSING, functions};

/// A `CUcontext`, `CUstream`, `CUevent`, `CUmodule` or `CUfunction`: an address that only the driver goes to.
pub(super) type Handle = usize;
/// A `CUdeviceptr`.
pub(super) type DevicePointer = usize;
/// A handle of memory, which goes by value.
pub(super) use cudarc::driver::sys::CUipcMemHandle as IpcHandle;

pub(super) const NOT_INITIALIZED: c_int = sys::CUresult::CUDA_ERROR_NOT_INITIALIZED as c_int;
pub(super) const DEINITIALIZED: c_int = sys::CUresult::CUDA_ERROR_DEINITIALIZED as c_int;
pub(super) const INVALID_CONTEXT: c_int = sys::CUresult::CUDA_ERROR_INVALID_CONTEXT as c_int;
pub(super) const NOT_READY: c_int = sys::CUresult::CUDA_ERROR_NOT_READY as c_int;
pub(super) const CONTEXT_IS_DESTROYED: c_int = sys::CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as c_int;

/// What is asked of pointers.
mod pointer {
    use super::{c_int, sys::CUpointer_attribute as Attribute};

    pub(super) const CONTEXT: c_int = Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_int;
    pub(super) const MEMORY_TYPE: c_int = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int;
    pub(super) const BUFFER_ID: c_int = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_int;
    pub(super) const IS_MANAGED: c_int = Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int;
    pub(super) const DEVICE_ORDINAL: c_int = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int;
}

/// The type of memory that is not the host's.
const TYPE_DEVICE: c_uint = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
/// The processor may touch managed memory while the device works.
pub(super) const CONCURRENT_MANAGED_ACCESS: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as c_int;
/// The two parts of the compute capability.
pub(super) const COMPUTE_MAJOR: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int;
pub(super) const COMPUTE_MINOR: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_int;
/// What the program does on its default stream has nothing to do with such a stream.
pub(super) const NON_BLOCKING: c_uint = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
/// Also memory of another device is mapped, where devices reach each other.
pub(super) const ENABLE_PEERS: c_uint = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
/// Memory is pinned for all contexts.
pub(super) const REGISTER_PORTABLE: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE;
/// Events are polled, not timed.
pub(super) const NO_TIMING: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
/// Who waits for an event sleeps.
pub(super) const SLEEPS: c_uint = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
/// A stream waits until a number in memory is at least what it was told, where numbers go round.
pub(super) const AT_LEAST: c_uint = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
/// Pinned memory that all devices reach at the host's address.
pub(super) const PORTABLE: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

functions! {
    /// The driver's functions, those that it has.
    Api;
    init = "cuInit" (flags: c_uint);
    error_name = "cuGetErrorName" (error: c_int, name: *mut *const c_char);
    error_text = "cuGetErrorString" (error: c_int, text: *mut *const c_char);
    device = "cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    device_name = "cuDeviceGetName" (name: *mut c_char, len: c_int, device: c_int);
    device_attribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    device_address = "cuDeviceGetPCIBusId" (address: *mut c_char, len: c_int, device: c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" (context: *mut Handle, device: c_int);
    context_push = "cuCtxPushCurrent_v2" (context: Handle);
    context_pop = "cuCtxPopCurrent_v2" (context: *mut Handle);
    context_current = "cuCtxGetCurrent" (context: *mut Handle);
    context_device = "cuCtxGetDevice" (device: *mut c_int);
    pointer_attribute = "cuPointerGetAttribute" (value: *mut c_void, attribute: c_int, pointer: DevicePointer);
    stream_create = "cuStreamCreate" (stream: *mut Handle, flags: c_uint);
    stream_synchronize = "cuStreamSynchronize" (stream: Handle);
    stream_context = "cuStreamGetCtx" (stream: Handle, context: *mut Handle);
    stream_wait = "cuStreamWaitValue32_v2" (stream: Handle, at: DevicePointer, value: c_uint, flags: c_uint);
    event_create = "cuEventCreate" (event: *mut Handle, flags: c_uint);
    event_record = "cuEventRecord" (event: Handle, stream: Handle);
    event_query = "cuEventQuery" (event: Handle);
    event_synchronize = "cuEventSynchronize" (event: Handle);
    event_destroy = "cuEventDestroy_v2" (event: Handle);
    copy = "cuMemcpy" (to: DevicePointer, from: DevicePointer, bytes: usize);
    copy_on = "cuMemcpyAsync" (to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle);
    host_register = "cuMemHostRegister_v2" (pointer: *mut c_void, bytes: usize, flags: c_uint);
    host_alloc = "cuMemHostAlloc" (address: *mut *mut c_void, bytes: usize, flags: c_uint);
    host_free = "cuMemFreeHost" (address: *mut c_void);
    alloc = "cuMemAlloc_v2" (pointer: *mut DevicePointer, bytes: usize);
    free = "cuMemFree_v2" (pointer: DevicePointer);
    address_range = "cuMemGetAddressRange_v2" (start: *mut DevicePointer, bytes: *mut usize, pointer: DevicePointer);
    ipc_handle = "cuIpcGetMemHandle" (handle: *mut IpcHandle, pointer: DevicePointer);
    ipc_open = "cuIpcOpenMemHandle_v2" (pointer: *mut DevicePointer, handle: IpcHandle, flags: c_uint);
    ipc_close = "cuIpcCloseMemHandle" (pointer: DevicePointer);
    module_load = "cuModuleLoadData" (module: *mut Handle, text: *const c_void);
    module_function = "cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    launch = "cuLaunchKernel" (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// Under which names programs load the driver.
const NAMES: [&CStr; 2] = [c"libcuda.so.1", c"libcuda.so"];

/// The driver's library.
enum Library {
    /// The one that cudarc finds.
    Found,
    /// The one that the program has loaded, where cudarc finds another one (such as the stub that CUDA's toolkit links with).
    Own(*mut c_void),
}

impl Library {
    /// The library, if it is in the process; with `load` it is brought there, if the machine has it.
    fn find(load: bool) -> Option<Library> {
        // SAFETY: C strings; nothing is loaded that is not there.
        let there = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        let own = NAMES.into_iter().map(there).find(|library| !library.is_null());
        if own.is_none() && !load {
            return None;
        }
        // SAFETY: what the library does when it is loaded is what a program that uses CUDA wants. Without one cudarc's other functions
        // would panic.
        let found = unsafe { sys::is_culib_present() };
        let of = |library: Library| library.symbol("cuInit\0");
        match own {
            Some(own) if !found || of(Library::Own(own)) != of(Library::Found) => Some(Library::Own(own)),
            _ => found.then_some(Library::Found),
        }
    }

    /// The address of a function; `name` ends with a NUL. NULL: the library does not have it.
    fn symbol(&self, name: &'static str) -> *mut c_void {
        match self {
            Library::Own(library) => {
                // SAFETY: the library is loaded and is never closed, and the name is a C string.
                unsafe { libc::dlsym(*library, name.as_ptr().cast()) }
            }
            Library::Found => {
                // SAFETY: cudarc has found a library, and any symbol is an address.
                let symbol = unsafe { sys::culib().get::<*mut c_void>(name.as_bytes()) };
                symbol.map_or(std::ptr::null_mut(), |symbol| *symbol)
            }
        }
    }
}

impl Api {
    /// The driver's functions, if its library is in the process; with `load` it is brought there, if the machine has it.
    pub(super) fn find(load: bool) -> Option<Api> {
        Library::find(load)
            .map(|library| Api::of(&|name| library.symbol(name)))
            .filter(|api| api.init.is_some())
    }

    /// Works in a context; the one that was current before is so again afterwards. `Err` if the work fails, or the context is refused.
    pub(super) fn within<T>(
        &self,
        context: Handle,
        work: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        // SAFETY: a context that was there once; the driver refuses one that is gone.
        unsafe { self.context_push(context) }?;
        let done = work();
        let mut popped = 0;
        // SAFETY: the context that was pushed above.
        let _ = unsafe { self.context_pop(&raw mut popped) };
        done
    }

    /// An attribute of the memory at an address.
    fn pointer<T: Default>(&self, attribute: c_int, address: DevicePointer) -> Result<T, Failed> {
        let mut value = T::default();
        // SAFETY: `value` has room for the attribute (each caller names one for which it has); the driver does not go to the address.
        unsafe { self.pointer_attribute((&raw mut value).cast(), attribute, address) }.map(|()| value)
    }

    /// The number of the allocation that has an address; one that is freed never comes again under its number.
    pub(super) fn number(&self, address: DevicePointer) -> Result<u64, Failed> {
        self.pointer(pointer::BUFFER_ID, address)
    }

    /// True if the driver knows memory that has no number.
    pub(super) fn knows_without_number(&self, address: DevicePointer) -> bool {
        self.pointer::<c_uint>(pointer::MEMORY_TYPE, address).is_ok()
    }

    /// True of memory that moves between the host and devices.
    pub(super) fn is_managed(&self, address: DevicePointer) -> bool {
        self.pointer::<c_uint>(pointer::IS_MANAGED, address).is_ok_and(|managed| managed != 0)
    }

    /// True of memory that the driver knows, and that is not the host's.
    pub(super) fn is_of_device(&self, address: DevicePointer) -> bool {
        self.pointer(pointer::MEMORY_TYPE, address).is_ok_and(|kind: c_uint| kind == TYPE_DEVICE)
    }

    /// The number of the device that memory is of.
    pub(super) fn ordinal(&self, address: DevicePointer) -> c_int {
        self.pointer(pointer::DEVICE_ORDINAL, address).unwrap_or(0)
    }

    /// The context in which memory was allocated; 0: in none.
    pub(super) fn context(&self, address: DevicePointer) -> Handle {
        self.pointer(pointer::CONTEXT, address).unwrap_or(0)
    }

    /// An attribute of a device; 0 if there is no such. With the driver API a device is its ordinal.
    pub(super) fn attribute(&self, ordinal: c_int, attribute: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: room for an int.
        unsafe { self.device_attribute(&raw mut value, attribute, ordinal) }.map_or(0, |()| value)
    }

    /// The context that is current in this thread, and its device.
    pub(super) fn current(&self) -> Option<(Handle, c_int)> {
        let (mut context, mut ordinal) = (0, 0);
        // SAFETY: room for a context.
        unsafe { self.context_current(&raw mut context) }.ok().filter(|()| context != 0)?;
        // SAFETY: room for a device.
        unsafe { self.context_device(&raw mut ordinal) }.ok()?;
        Some((context, ordinal))
    }

    /// What an error is called, and what it means.
    pub(super) fn describe(&self, error: c_int) -> String {
        if error == MISSING {
            return "the driver has no such function".to_owned();
        }
        let text = |of: &dyn Fn(*mut *const c_char) -> Result<(), Failed>| {
            let mut text = std::ptr::null();
            let good = of(&raw mut text).is_ok() && !text.is_null();
            // SAFETY: the driver gives a C string that stays.
            good.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: `out` is room for one pointer.
        let name = text(&|out| unsafe { self.error_name(error, out) });
        // SAFETY: as above.
        let meaning = text(&|out| unsafe { self.error_text(error, out) });
        match (name, meaning) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            _ => format!("error {error} of the CUDA driver"),
        }
    }
}
