//! The functions of the CUDA driver that are used here. They are looked up in the library that is in the process already, or was
//! loaded at run time: nothing of CUDA is needed to build. Results are plain numbers, as a newer driver may return some that no
//! list has. All types and numbers are those of `cuda.h` (CUDA 12; older drivers have what is not optional here since CUDA 7).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A `CUcontext`, `CUstream`, `CUevent`, `CUmodule` or `CUfunction`: an address that only the driver goes to.
pub(super) type Handle = usize;
/// A `CUdeviceptr`.
pub(super) type DevicePointer = usize;

pub(super) const SUCCESS: c_int = 0;
pub(super) const NOT_INITIALIZED: c_int = 3;
pub(super) const DEINITIALIZED: c_int = 4;
pub(super) const INVALID_CONTEXT: c_int = 201;
pub(super) const NOT_FOUND: c_int = 500;
pub(super) const NOT_READY: c_int = 600;
pub(super) const CONTEXT_IS_DESTROYED: c_int = 709;

/// `CUpointer_attribute`.
pub(super) mod pointer {
    pub(in crate::cuda) const CONTEXT: i32 = 1;
    pub(in crate::cuda) const MEMORY_TYPE: i32 = 2;
    pub(in crate::cuda) const BUFFER_ID: i32 = 7;
    pub(in crate::cuda) const IS_MANAGED: i32 = 8;
    pub(in crate::cuda) const DEVICE_ORDINAL: i32 = 9;
}

/// `CUmemorytype`: what is not the host's.
pub(super) const TYPE_DEVICE: c_uint = 2;
/// `CUdevice_attribute`: the processor may touch managed memory while the device works.
pub(super) const CONCURRENT_MANAGED_ACCESS: c_int = 89;
/// `CUdevice_attribute`: the two parts of the compute capability.
pub(super) const COMPUTE_MAJOR: c_int = 75;
pub(super) const COMPUTE_MINOR: c_int = 76;
/// `CU_STREAM_NON_BLOCKING`: what the program does on its default stream has nothing to do with it.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(super) const NO_TIMING: c_uint = 2;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ident: $type:ty),*);)+) => {
        /// The driver's functions, those that it has.
        #[allow(non_snake_case, reason = "the names of CUDA")]
        pub(super) struct Api {
            $($name: Option<unsafe extern "C" fn($($type),*) -> c_int>,)+
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the names and parameters of CUDA")]
        impl Api {
            /// The functions of a library.
            ///
            /// # Safety
            /// `library` is what `dlopen` gave for a CUDA driver, and stays loaded.
            unsafe fn of(library: *mut c_void) -> Api {
                $(
                    // SAFETY: the library is loaded, the name is a C string.
                    let symbol = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast()) };
                    // SAFETY: a function of this name has this type in every CUDA driver, and NULL is `None`.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> c_int>>(symbol)
                    };
                )+
                Api { $($name),+ }
            }

            $(
                /// The driver's function of that name; [`NOT_FOUND`] if it has none.
                ///
                /// # Safety
                /// As CUDA's documentation of that function says.
                pub(super) unsafe fn $name(&self, $($arg: $type),*) -> c_int {
                    // SAFETY: as the caller promises.
                    self.$name.map_or(NOT_FOUND, |function| unsafe { function($($arg),*) })
                }
            )+
        }
    };
}

functions! {
    cuInit = "cuInit" (flags: c_uint);
    cuGetErrorName = "cuGetErrorName" (error: c_int, name: *mut *const c_char);
    cuGetErrorString = "cuGetErrorString" (error: c_int, text: *mut *const c_char);
    cuDeviceGet = "cuDeviceGet" (device: *mut c_int, ordinal: c_int);
    cuDeviceGetName = "cuDeviceGetName" (name: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetAttribute = "cuDeviceGetAttribute" (value: *mut c_int, attribute: c_int, device: c_int);
    cuDevicePrimaryCtxRetain = "cuDevicePrimaryCtxRetain" (context: *mut Handle, device: c_int);
    cuCtxPushCurrent = "cuCtxPushCurrent_v2" (context: Handle);
    cuCtxPopCurrent = "cuCtxPopCurrent_v2" (context: *mut Handle);
    cuPointerGetAttribute = "cuPointerGetAttribute" (value: *mut c_void, attribute: c_int, pointer: DevicePointer);
    cuStreamCreate = "cuStreamCreate" (stream: *mut Handle, flags: c_uint);
    cuEventCreate = "cuEventCreate" (event: *mut Handle, flags: c_uint);
    cuEventRecord = "cuEventRecord" (event: Handle, stream: Handle);
    cuEventQuery = "cuEventQuery" (event: Handle);
    cuEventDestroy = "cuEventDestroy_v2" (event: Handle);
    cuStreamSynchronize = "cuStreamSynchronize" (stream: Handle);
    cuMemcpy = "cuMemcpy" (to: DevicePointer, from: DevicePointer, bytes: usize);
    cuMemcpyAsync = "cuMemcpyAsync" (to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle);
    cuMemAlloc = "cuMemAlloc_v2" (pointer: *mut DevicePointer, bytes: usize);
    cuMemFree = "cuMemFree_v2" (pointer: DevicePointer);
    cuModuleLoadData = "cuModuleLoadData" (module: *mut Handle, text: *const c_void);
    cuModuleGetFunction = "cuModuleGetFunction" (function: *mut Handle, module: Handle, name: *const c_char);
    cuLaunchKernel = "cuLaunchKernel" (
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// Under which names programs load the driver.
const NAMES: [&CStr; 2] = [c"libcuda.so.1", c"libcuda.so"];

impl Api {
    /// The driver's functions, if its library is in the process; with `load` it is brought there, if the machine has it.
    pub(super) fn find(load: bool) -> Option<Api> {
        let how = libc::RTLD_NOW | libc::RTLD_LOCAL | if load { 0 } else { libc::RTLD_NOLOAD };
        NAMES.into_iter().find_map(|name| {
            // SAFETY: a C string. What the library does when it is loaded is what a program that uses CUDA wants.
            let library = unsafe { libc::dlopen(name.as_ptr(), how) };
            // It is never closed, so it stays.
            // SAFETY: by its name it is a CUDA driver.
            (!library.is_null()).then(|| unsafe { Api::of(library) }).filter(|api| api.cuInit.is_some())
        })
    }

    /// What an error is called, and what it means.
    pub(super) fn describe(&self, error: c_int) -> String {
        if error == NOT_FOUND {
            return "the driver has no such function, or does not find what was asked for".to_owned();
        }
        let text = |of: &dyn Fn(*mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            let good = of(&raw mut text) == SUCCESS && !text.is_null();
            // SAFETY: the driver gives a C string that stays.
            good.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        // SAFETY: `out` is room for one pointer.
        let name = text(&|out| unsafe { self.cuGetErrorName(error, out) });
        // SAFETY: as above.
        let meaning = text(&|out| unsafe { self.cuGetErrorString(error, out) });
        match (name, meaning) {
            (Some(name), Some(meaning)) => format!("{name} ({meaning})"),
            _ => format!("error {error} of the CUDA driver"),
        }
    }
}
