//! The functions of drivers that are used here, CUDA's and HIP's: most of them take the same on both, with the same numbers for flags and
//! errors, and where they differ a method of the table says how. The libraries are found at run time: nothing of either is needed to build. HIP's
//! numbers are those of its headers from ROCm 5.6 to 6.3.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use cudarc::driver::sys;

use super::Platform;
use super::library::{Failed, MISSING, Symbol, functions};

/// A `CUstream`, `CUevent`, `CUmodule` or `CUfunction`, or HIP's: an address that only the driver goes to. So is a `CUcontext`; in HIP a device has
/// one context, whose handle here is the device's number plus one. 0 is none.
pub(super) type Handle = usize;
/// A `CUdeviceptr` or `hipDeviceptr_t`.
pub(super) type DevicePointer = usize;
/// A handle of memory, which goes by value: 64 bytes on both.
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
    pub(super) const SYNC_MEMOPS: c_int = Attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as c_int;
    pub(super) const HOST_POINTER: c_int = Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER as c_int;
}

/// Numbers of HIP's that CUDA has otherwise, or not at all.
mod hip {
    use super::{c_int, c_uint};

    /// `hipDeviceAttributeConcurrentManagedAccess`.
    pub(super) const CONCURRENT_MANAGED_ACCESS: c_int = 9;
    /// `hipDeviceAttributeCanUseStreamWaitValue`.
    pub(super) const CAN_WAIT_FOR_VALUES: c_int = 10013;
    /// `hipMemcpyDefault`: where a copy leads is told by the addresses.
    pub(super) const BY_ADDRESS: c_int = 4;
    /// `hipMallocSignalMemory`: eight bytes that a stream can wait for, and that the processor may write.
    pub(super) const SIGNAL: c_uint = 2;
    /// Where a `hipDeviceProp_t` has `gcnArchName`, in the structure that came with ROCm 6 and in the one before.
    pub(super) const ARCHITECTURE_6: usize = 1160;
    pub(super) const ARCHITECTURE_5: usize = 396;
    /// Bytes of that name.
    pub(super) const ARCHITECTURE_LEN: usize = 256;
}

/// The type of memory that is not the host's.
const TYPE_DEVICE: c_uint = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
/// The processor may touch managed memory while the device works.
const CONCURRENT_MANAGED_ACCESS: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as c_int;
/// The two parts of the compute capability, of CUDA's.
const COMPUTE_MAJOR: c_int = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int;
const COMPUTE_MINOR: c_int = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_int;
/// What the program does on its default stream has nothing to do with such a stream.
pub(super) const NON_BLOCKING: c_uint = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
/// Also memory of another device is mapped, where devices reach each other.
pub(super) const ENABLE_PEERS: c_uint = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
/// What the driver exports is a dma-buf.
pub(super) const DMA_BUF: c_int = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as c_int;
/// Whether a CUDA device sees what others have written when it begins its next work: from `SEES_WRITES` on it does.
const WRITES_ORDERING: c_int =
    sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING as c_int;
const SEES_WRITES: c_int =
    sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as c_int;
/// Writes to memory of the current context's device are there for this device.
const OF_CONTEXT: c_int = 0;
const FOR_OWNER: c_int =
    sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER as c_int;
/// Memory is pinned for all contexts.
pub(super) const REGISTER_PORTABLE: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE;
/// Events are polled, not timed.
pub(super) const NO_TIMING: c_uint = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
/// Who waits for an event sleeps.
pub(super) const SLEEPS: c_uint = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
/// A stream waits until a number in memory is at least what it was told, where numbers go round.
const AT_LEAST: c_uint = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
/// Pinned memory that all devices reach at the host's address.
const PORTABLE: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;

functions! {
    /// The driver's functions, those that it has.
    Api;
    init = "cuInit" | "hipInit" (flags: c_uint);
    error_name = "cuGetErrorName" | "hipDrvGetErrorName" (error: c_int, name: *mut *const c_char);
    error_text = "cuGetErrorString" | "hipDrvGetErrorString" (error: c_int, text: *mut *const c_char);
    #[expect(dead_code, reason = "is called past this, as what it returns is no error of its own")]
    last_error = "" | "hipGetLastError" ();
    runtime_version = "" | "hipRuntimeGetVersion" (version: *mut c_int);
    device = "cuDeviceGet" | "" (device: *mut c_int, ordinal: c_int);
    device_name = "cuDeviceGetName" | "hipDeviceGetName" (name: *mut c_char, len: c_int, device: c_int);
    device_attribute = "cuDeviceGetAttribute" | "hipDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    device_address = "cuDeviceGetPCIBusId" | "hipDeviceGetPCIBusId" (address: *mut c_char, len: c_int, device: c_int);
    properties_6 = "" | "hipGetDevicePropertiesR0600" (properties: *mut c_void, device: c_int);
    properties_5 = "" | "hipGetDeviceProperties" (properties: *mut c_void, device: c_int);
    primary_retain = "cuDevicePrimaryCtxRetain" | "" (context: *mut Handle, device: c_int);
    context_push = "cuCtxPushCurrent_v2" | "" (context: Handle);
    context_pop = "cuCtxPopCurrent_v2" | "" (context: *mut Handle);
    context_current = "cuCtxGetCurrent" | "" (context: *mut Handle);
    current_device = "cuCtxGetDevice" | "hipGetDevice" (device: *mut c_int);
    set_device = "" | "hipSetDevice" (device: c_int);
    pointer_attribute = "cuPointerGetAttribute" | "hipPointerGetAttribute" (
        value: *mut c_void, attribute: c_int, pointer: DevicePointer
    );
    stream_create = "cuStreamCreate" | "hipStreamCreateWithFlags" (stream: *mut Handle, flags: c_uint);
    stream_synchronize = "cuStreamSynchronize" | "hipStreamSynchronize" (stream: Handle);
    stream_context = "cuStreamGetCtx" | "" (stream: Handle, context: *mut Handle);
    stream_device = "" | "hipStreamGetDevice" (stream: Handle, device: *mut c_int);
    wait_for_32 = "cuStreamWaitValue32_v2" | "" (stream: Handle, at: DevicePointer, value: c_uint, flags: c_uint);
    wait_for_64 = "" | "hipStreamWaitValue64" (stream: Handle, at: DevicePointer, value: u64, flags: c_uint, mask: u64);
    event_create = "cuEventCreate" | "hipEventCreateWithFlags" (event: *mut Handle, flags: c_uint);
    event_record = "cuEventRecord" | "hipEventRecord" (event: Handle, stream: Handle);
    event_query = "cuEventQuery" | "hipEventQuery" (event: Handle);
    event_synchronize = "cuEventSynchronize" | "hipEventSynchronize" (event: Handle);
    event_destroy = "cuEventDestroy_v2" | "hipEventDestroy" (event: Handle);
    cuda_copy = "cuMemcpy" | "" (to: DevicePointer, from: DevicePointer, bytes: usize);
    hip_copy = "" | "hipMemcpy" (to: DevicePointer, from: DevicePointer, bytes: usize, kind: c_int);
    cuda_copy_on = "cuMemcpyAsync" | "" (to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle);
    hip_copy_on = "" | "hipMemcpyAsync" (to: DevicePointer, from: DevicePointer, bytes: usize, kind: c_int, stream: Handle);
    host_register = "cuMemHostRegister_v2" | "hipHostRegister" (pointer: *mut c_void, bytes: usize, flags: c_uint);
    host_unregister = "cuMemHostUnregister" | "hipHostUnregister" (pointer: *mut c_void);
    host_alloc = "cuMemHostAlloc" | "" (address: *mut DevicePointer, bytes: usize, flags: c_uint);
    host_free = "cuMemFreeHost" | "" (address: DevicePointer);
    alloc = "cuMemAlloc_v2" | "hipMalloc" (pointer: *mut DevicePointer, bytes: usize);
    alloc_with = "" | "hipExtMallocWithFlags" (pointer: *mut DevicePointer, bytes: usize, flags: c_uint);
    free = "cuMemFree_v2" | "hipFree" (pointer: DevicePointer);
    address_range = "cuMemGetAddressRange_v2" | "hipMemGetAddressRange" (
        start: *mut DevicePointer, bytes: *mut usize, pointer: DevicePointer
    );
    ipc_handle = "cuIpcGetMemHandle" | "hipIpcGetMemHandle" (handle: *mut IpcHandle, pointer: DevicePointer);
    ipc_open = "cuIpcOpenMemHandle_v2" | "hipIpcOpenMemHandle" (pointer: *mut DevicePointer, handle: IpcHandle, flags: c_uint);
    range_handle = "cuMemGetHandleForAddressRange" | "hipMemGetHandleForAddressRange" (
        handle: *mut c_void, pointer: DevicePointer, bytes: usize, kind: c_int, flags: c_ulonglong
    );
    set_pointer_attribute = "cuPointerSetAttribute" | "" (value: *const c_void, attribute: c_int, pointer: DevicePointer);
    flush_writes = "cuFlushGPUDirectRDMAWrites" | "" (target: c_int, scope: c_int);
    ipc_close = "cuIpcCloseMemHandle" | "hipIpcCloseMemHandle" (pointer: DevicePointer);
    module_load = "cuModuleLoadData" | "hipModuleLoadData" (module: *mut Handle, text: *const c_void);
    module_function = "cuModuleGetFunction" | "hipModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    launch = "cuLaunchKernel" | "hipModuleLaunchKernel" (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// The driver's library.
enum Library {
    /// The one of CUDA's that cudarc finds.
    Found,
    /// One that the program has loaded, where cudarc finds another one (such as the stub that CUDA's toolkit links with), or one of HIP's.
    Own(*mut c_void),
}

impl Library {
    /// The library, if it is in the process; with `load` it is brought there, if the machine has it.
    fn find(platform: Platform, load: bool) -> Option<Library> {
        let own = opened(platform.libraries(), libc::RTLD_NOLOAD);
        if own.is_none() && !load {
            return None;
        }
        if platform == Platform::Hip {
            return own.or_else(|| opened(platform.libraries(), 0)).map(Library::Own);
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
                // SAFETY: the library is never closed.
                unsafe { symbol_in(*library, name) }
            }
            Library::Found => {
                // SAFETY: cudarc has found a library, and any symbol is an address.
                let symbol = unsafe { sys::culib().get::<*mut c_void>(name.as_bytes()) };
                symbol.map_or(std::ptr::null_mut(), |symbol| *symbol)
            }
        }
    }
}

/// The first of these libraries that the linker has, or finds.
pub(super) fn opened(names: &[&CStr], flags: c_int) -> Option<*mut c_void> {
    // SAFETY: C strings. What a driver's library does when it is loaded is what a program wants that uses its devices.
    let open = |name: &&CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    names.iter().map(open).find(|library| !library.is_null())
}

/// The address of a function in a library, by a name that ends with a NUL.
///
/// # Safety
/// The library stays loaded.
pub(super) unsafe fn symbol_in(library: *mut c_void, name: &'static str) -> *mut c_void {
    // SAFETY: as the caller promises, and the name is a C string.
    unsafe { libc::dlsym(library, name.as_ptr().cast()) }
}

impl Api {
    /// The driver's functions, if its library is in the process; with `load` it is brought there, if the machine has it.
    pub(super) fn find(platform: Platform, load: bool) -> Option<Api> {
        let library = Library::find(platform, load)?;
        let symbol: Symbol<'_> = &|name| library.symbol(name);
        Some(Api::of(platform, symbol)).filter(|api| api.init.is_some())
    }

    pub(super) fn platform(&self) -> Platform {
        self.platform
    }

    /// A function has failed, or was not ready. HIP keeps that for the thread's next `hipGetLastError`: the program is not to find there what it did
    /// not do.
    fn failed(&self) {
        if let Some(last_error) = self.last_error {
            // SAFETY: it takes nothing.
            unsafe { last_error() };
        }
    }

    /// Works in a context; the one that was current before is so again afterwards. `Err` if the work fails, or the context is refused.
    pub(super) fn within<T>(
        &self,
        context: Handle,
        work: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        match self.platform {
            Platform::Cuda => {
                // SAFETY: a context that was there once; the driver refuses one that is gone.
                unsafe { self.context_push(context) }?;
                let done = work();
                let mut popped = 0;
                // SAFETY: the context that was pushed above.
                let _ = unsafe { self.context_pop(&raw mut popped) };
                done
            }
            Platform::Hip => {
                let (mut before, device) = (0, context as c_int - 1);
                // SAFETY: room for a device.
                unsafe { self.current_device(&raw mut before) }?;
                if before == device {
                    return work();
                }
                // SAFETY: the driver refuses what is no device.
                unsafe { self.set_device(device) }?;
                let done = work();
                // SAFETY: the device from above.
                let _ = unsafe { self.set_device(before) };
                done
            }
        }
    }

    /// The context in which memory is allocated that the program names none for, CUDA's primary one. It is kept for the life of the process.
    pub(super) fn primary(&self, ordinal: c_int) -> Result<Handle, Failed> {
        if self.platform == Platform::Hip {
            return Ok(context_of(ordinal));
        }
        let (mut device, mut context) = (0, 0);
        // SAFETY: room for a device.
        unsafe { self.device(&raw mut device, ordinal) }?;
        // SAFETY: room for a context.
        unsafe { self.primary_retain(&raw mut context, device) }.map(|()| context)
    }

    /// The context that is current in this thread, and its device.
    pub(super) fn current(&self) -> Option<(Handle, c_int)> {
        let (mut context, mut ordinal) = (0, 0);
        if self.platform == Platform::Cuda {
            // SAFETY: room for a context.
            unsafe { self.context_current(&raw mut context) }.ok().filter(|()| context != 0)?;
        }
        // SAFETY: room for a device.
        unsafe { self.current_device(&raw mut ordinal) }.ok()?;
        Some((if self.platform == Platform::Cuda { context } else { context_of(ordinal) }, ordinal))
    }

    /// Copies, and returns when that is over.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges are valid, and nobody else writes to them.
    pub(super) unsafe fn copy(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
    ) -> Result<(), Failed> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.platform {
                Platform::Cuda => self.cuda_copy(to, from, bytes),
                Platform::Hip => self.hip_copy(to, from, bytes, hip::BY_ADDRESS),
            }
        }
    }

    /// Starts to copy on a stream.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges are valid, and nobody else writes to them, until the stream has copied.
    pub(super) unsafe fn copy_on(
        &self,
        to: DevicePointer,
        from: DevicePointer,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), Failed> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.platform {
                Platform::Cuda => self.cuda_copy_on(to, from, bytes, stream),
                Platform::Hip => self.hip_copy_on(to, from, bytes, hip::BY_ADDRESS, stream),
            }
        }
    }

    /// An attribute of the memory at an address.
    fn pointer<T: Default>(&self, attribute: c_int, address: DevicePointer) -> Result<T, Failed> {
        let mut value = T::default();
        // SAFETY: `value` has room for the attribute (each caller names one for which it has); the driver does not go to the address.
        unsafe { self.pointer_attribute((&raw mut value).cast(), attribute, address) }.map(|()| value)
    }

    /// The number of the allocation that has an address; one that is freed never comes again under its number. In HIP it has 32 bits and
    /// counts all that the runtime has made.
    pub(super) fn number(&self, address: DevicePointer) -> Result<u64, Failed> {
        self.pointer(pointer::BUFFER_ID, address)
    }

    /// True if the driver knows memory that has no number. HIP knows none, and must not be asked: for the type of memory that it does not know
    /// it goes to the address, as that may be one of its arrays.
    pub(super) fn knows_without_number(&self, address: DevicePointer) -> bool {
        self.platform == Platform::Cuda && self.pointer::<c_uint>(pointer::MEMORY_TYPE, address).is_ok()
    }

    /// True of memory that moves between the host and devices.
    pub(super) fn is_managed(&self, address: DevicePointer) -> bool {
        self.pointer::<c_uint>(pointer::IS_MANAGED, address).is_ok_and(|managed| managed != 0)
    }

    /// True of memory that the driver knows, and that is not the host's. What the type of HIP's memory is called differs between ROCm 5 and 6: there
    /// memory of the host is what has an address for the processor.
    pub(super) fn is_of_device(&self, address: DevicePointer) -> bool {
        match self.platform {
            Platform::Cuda => {
                self.pointer(pointer::MEMORY_TYPE, address).is_ok_and(|kind: c_uint| kind == TYPE_DEVICE)
            }
            Platform::Hip => self.pointer::<usize>(pointer::HOST_POINTER, address).is_err(),
        }
    }

    /// The number of the device that memory is of.
    pub(super) fn ordinal(&self, address: DevicePointer) -> c_int {
        self.pointer(pointer::DEVICE_ORDINAL, address).unwrap_or(0)
    }

    /// The context in which memory was allocated; 0: in none.
    pub(super) fn context(&self, address: DevicePointer) -> Handle {
        match self.platform {
            Platform::Cuda => self.pointer(pointer::CONTEXT, address).unwrap_or(0),
            Platform::Hip => 0,
        }
    }

    /// The PCI address of a device, such as `0000:18:00.0`.
    pub(super) fn pci_address(&self, ordinal: c_int) -> Option<String> {
        let mut text = [0; 32];
        // SAFETY: room for 31 characters and a NUL.
        unsafe { self.device_address(text.as_mut_ptr(), 31, ordinal) }.ok()?;
        // SAFETY: the driver has written a C string.
        Some(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().to_lowercase())
    }

    /// From now on copies of the driver's that the program takes for over are: those of an allocation, which others than its device go to.
    ///
    /// # Errors
    /// What the driver says: it has no such attribute, as HIP has none.
    pub(super) fn synchronize_copies(&self, address: DevicePointer) -> Result<(), Failed> {
        let yes: c_uint = 1;
        // SAFETY: a number of the attribute's type; the driver refuses an address that is none of its own.
        unsafe { self.set_pointer_attribute((&raw const yes).cast(), pointer::SYNC_MEMOPS, address) }
    }

    /// A dma-buf of whole pages of one allocation.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn dma_buf(&self, start: DevicePointer, bytes: usize) -> Result<OwnedFd, Failed> {
        let mut descriptor: c_int = -1;
        // Where the driver has no such attribute there is nothing to say.
        let _ = self.synchronize_copies(start);
        // SAFETY: room for a descriptor, which is what is asked for; the driver checks the range.
        unsafe { self.range_handle((&raw mut descriptor).cast(), start, bytes, DMA_BUF, 0) }?;
        // SAFETY: a descriptor that the driver gives away.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// What others have written to memory of a device, the current context's, is there for what it begins from now on. Of HIP nothing is known.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn settle(&self, ordinal: c_int) -> Result<(), Failed> {
        if self.platform == Platform::Hip || self.attribute(ordinal, WRITES_ORDERING) >= SEES_WRITES {
            return Ok(());
        }
        // SAFETY: numbers of the driver's lists.
        unsafe { self.flush_writes(OF_CONTEXT, FOR_OWNER) }
    }

    /// An attribute of a device; 0 if there is no such. With the driver API a device is its ordinal.
    pub(super) fn attribute(&self, ordinal: c_int, attribute: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: room for an int.
        unsafe { self.device_attribute(&raw mut value, attribute, ordinal) }.map_or(0, |()| value)
    }

    /// True if the processor may touch managed memory while the device works.
    pub(super) fn shares_managed(&self, ordinal: c_int) -> bool {
        let attribute = match self.platform {
            Platform::Cuda => CONCURRENT_MANAGED_ACCESS,
            Platform::Hip => hip::CONCURRENT_MANAGED_ACCESS,
        };
        self.attribute(ordinal, attribute) != 0
    }

    /// The compute capability of a CUDA device: 90 stands for 9.0.
    pub(super) fn compute_capability(&self, ordinal: c_int) -> u32 {
        let part = |attribute| self.attribute(ordinal, attribute).max(0) as u32;
        part(COMPUTE_MAJOR) * 10 + part(COMPUTE_MINOR)
    }

    /// What HIP's compiler calls a device (`gfx90a:sramecc+:xnack-`), and the runtime's version.
    pub(super) fn architecture(&self, ordinal: c_int) -> Result<(String, c_int), Failed> {
        // More than any version of the structure takes.
        let mut properties = [0u64; 1024];
        let at = properties.as_mut_ptr().cast::<c_void>();
        // SAFETY: room for the structure.
        let new = unsafe { self.properties_6(at, ordinal) }.map(|()| hip::ARCHITECTURE_6);
        // SAFETY: as above.
        let first =
            new.or_else(|_| unsafe { self.properties_5(at, ordinal) }.map(|()| hip::ARCHITECTURE_5))?;
        // SAFETY: bytes of the array.
        let name = unsafe {
            std::slice::from_raw_parts(properties.as_ptr().cast::<u8>().add(first), hip::ARCHITECTURE_LEN)
        };
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let mut version = 0;
        // SAFETY: room for a number.
        let _ = unsafe { self.runtime_version(&raw mut version) };
        Ok((String::from_utf8_lossy(name).into_owned(), version))
    }

    /// The context of a stream.
    ///
    /// # Errors
    /// What the driver says: it knows no such stream.
    pub(super) fn of_stream(&self, stream: Handle) -> Result<Handle, Failed> {
        let (mut context, mut device) = (0, 0);
        if self.platform == Platform::Hip {
            // SAFETY: room for a device; the driver checks the stream.
            return unsafe { self.stream_device(stream, &raw mut device) }.map(|()| context_of(device));
        }
        // SAFETY: room for a context; the driver checks the stream.
        unsafe { self.stream_context(stream, &raw mut context) }.map(|()| context)
    }

    /// True if streams of a context wait for numbers in memory. CUDA's do, or say that they do not.
    pub(super) fn waits_for_numbers(&self, context: Handle) -> bool {
        self.platform == Platform::Cuda || self.attribute(context as c_int - 1, hip::CAN_WAIT_FOR_VALUES) != 0
    }

    /// A number, 0 first, that the processor writes and that streams of the current context can wait for: its address.
    ///
    /// # Errors
    /// What the driver says.
    pub(super) fn number_for_streams(&self) -> Result<*mut u64, Failed> {
        let mut address = 0;
        // SAFETY: room for an address.
        unsafe {
            match self.platform {
                Platform::Cuda => self.host_alloc(&raw mut address, size_of::<u64>(), PORTABLE),
                Platform::Hip => self.alloc_with(&raw mut address, size_of::<u64>(), hip::SIGNAL),
            }
        }?;
        let number = address as *mut u64;
        // SAFETY: new memory of that size, which the processor may write.
        unsafe { number.write(0) };
        Ok(number)
    }

    /// Frees memory of [`Api::number_for_streams`].
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// No stream waits for it, and nobody uses it any more.
    pub(super) unsafe fn free_number(&self, number: *mut u64) -> Result<(), Failed> {
        // SAFETY: as the caller promises.
        unsafe {
            match self.platform {
                Platform::Cuda => self.host_free(number as usize),
                Platform::Hip => self.free(number as usize),
            }
        }
    }

    /// From here on a stream waits until a number is at least this. CUDA's streams look at its lower half, which goes round, HIP's at all of it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The number is one of [`Api::number_for_streams`], which stays.
    pub(super) unsafe fn wait_for(&self, stream: Handle, number: *mut u64, least: u64) -> Result<(), Failed> {
        const { assert!(cfg!(target_endian = "little"), "the lower half comes first") }
        // SAFETY: as the caller promises; the driver checks the stream.
        unsafe {
            match self.platform {
                Platform::Cuda => self.wait_for_32(stream, number as usize, least as c_uint, AT_LEAST),
                Platform::Hip => self.wait_for_64(stream, number as usize, least, AT_LEAST, u64::MAX),
            }
        }
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
            _ => format!("error {error} of the {} driver", self.platform.name()),
        }
    }
}

/// The handle of the only context of a device of HIP's.
fn context_of(ordinal: c_int) -> Handle {
    ordinal.max(0) as Handle + 1
}
