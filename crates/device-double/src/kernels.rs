//! Kernels: host code from a library, which is the code for devices compiled for the host. `BANYAN_TEST_CUDA_KERNELS` names that library. It exports
//!
//! ```c
//! struct DoubleKernel { // one kernel
//!     void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared, void **parameters);
//!     unsigned parameters;   // their number
//!     const unsigned *sizes; // and the bytes of each
//! };
//! const struct DoubleKernel *banyan_double_kernel(const char *name); // NULL: there is none of that name
//! ```
//!
//! `run` runs all threads of all blocks; `parameters` are the addresses of values, as in `cuLaunchKernel`. While it runs the memory of
//! the context, and of those contexts whose memory it may touch, is open to the processor.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::codes::{Handle, INVALID_VALUE, NOT_FOUND};
use crate::memory::Memory;

/// What a library says of a kernel.
#[repr(C)]
pub struct DoubleKernel {
    /// Runs all threads of a grid.
    pub run: unsafe extern "C" fn(*const c_uint, *const c_uint, c_uint, *mut *mut c_void),
    /// Number of parameters.
    pub parameters: c_uint,
    /// Bytes of each.
    pub sizes: *const c_uint,
}

/// How a library is asked for a kernel.
pub type Find = unsafe extern "C" fn(*const c_char) -> *const DoubleKernel;

#[derive(Default)]
pub(crate) struct Kernels {
    find: Option<Find>,
    /// By the handles of functions.
    functions: HashMap<Handle, &'static DoubleKernel>,
}

// SAFETY: the library's functions and constants may be used by any thread.
unsafe impl Send for Kernels {}

/// A kernel that was started.
pub(crate) struct Run {
    kernel: &'static DoubleKernel,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    values: Vec<Vec<u8>>,
    contexts: Vec<Handle>,
}

// SAFETY: as above.
unsafe impl Send for Run {}

impl Kernels {
    /// Makes a kernel known by a handle.
    pub(crate) fn add(&mut self, library: Option<&str>, name: &CStr, handle: Handle) -> Result<(), c_int> {
        if self.find.is_none() {
            self.find = Some(load(library.ok_or(NOT_FOUND)?)?);
        }
        let find = self.find.ok_or(NOT_FOUND)?;
        // SAFETY: the library's function takes a C string.
        let kernel = unsafe { find(name.as_ptr()) };
        // SAFETY: NULL, or a constant of the library, which stays loaded.
        let kernel = unsafe { kernel.as_ref() }.ok_or(NOT_FOUND)?;
        self.functions.insert(handle, kernel);
        Ok(())
    }

    /// A run of a function on copies of its parameters.
    ///
    /// # Safety
    /// `parameters` are the addresses of as many values as the kernel has parameters.
    pub(crate) unsafe fn launch(
        &self,
        function: Handle,
        [grid, block]: [[c_uint; 3]; 2],
        shared: c_uint,
        parameters: *mut *mut c_void,
        contexts: Vec<Handle>,
    ) -> Result<Run, c_int> {
        let kernel: &'static DoubleKernel = self.functions.get(&function).ok_or(INVALID_VALUE)?;
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        if grid.contains(&0) || threads == 0 || threads > 1024 || shared > 48 << 10 {
            return Err(INVALID_VALUE);
        }
        let value = |at: usize| {
            // SAFETY: the library says how many parameters there are and how long; the caller has given as many.
            unsafe {
                let size = *kernel.sizes.add(at) as usize;
                std::slice::from_raw_parts((*parameters.add(at)).cast::<u8>(), size).to_vec()
            }
        };
        let values = (0..kernel.parameters as usize).map(value).collect();
        Ok(Run { kernel, grid, block, shared, values, contexts })
    }
}

impl Run {
    pub(crate) fn run(mut self, memory: &Memory) {
        let mut parameters: Vec<*mut c_void> =
            self.values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        memory.opened(&self.contexts, || {
            // SAFETY: the kernel's own parameters, and the program's promise that it may touch the memory which they name.
            unsafe {
                (self.kernel.run)(
                    self.grid.as_ptr(),
                    self.block.as_ptr(),
                    self.shared,
                    parameters.as_mut_ptr(),
                );
            }
        });
    }
}

fn load(library: &str) -> Result<Find, c_int> {
    let path = CString::new(library).map_err(|_| INVALID_VALUE)?;
    // SAFETY: the tests' own library.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(NOT_FOUND);
    }
    // SAFETY: the library is loaded.
    let find = unsafe { libc::dlsym(library, c"banyan_double_kernel".as_ptr()) };
    // SAFETY: a function of that name has that type; NULL is `None`.
    unsafe { std::mem::transmute::<*mut c_void, Option<Find>>(find) }.ok_or(NOT_FOUND)
}
