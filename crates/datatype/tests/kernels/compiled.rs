//! The kernels, compiled for the processor and loaded into this process.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::OnceLock;

use banyan_datatype::device::{FOR_THE_PROCESSOR, Run, THREADS};
use cuda_double::kernels::Find;

/// The library, compiled if it is not yet. `None`, and a line that says why: there is no compiler.
pub(crate) fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<std::path::PathBuf>> = OnceLock::new();
    let made = LIBRARY.get_or_init(|| {
        let made = cuda_double::compile::library(FOR_THE_PROCESSOR, Path::new(env!("CARGO_TARGET_TMPDIR")));
        made.inspect_err(|why| eprintln!("skipped: {why}")).ok()
    });
    made.as_deref()
}

/// The loaded library.
pub(crate) struct Compiled(Find);

impl Compiled {
    /// `None` where there is no library.
    pub(crate) fn new() -> Option<Compiled> {
        let path = CString::new(library()?.to_str().unwrap()).unwrap();
        // SAFETY: a C string; the library's constructors register its kernels.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?}");
        // SAFETY: a library that stays, and a C string.
        let find = unsafe { libc::dlsym(library, c"banyan_double_kernel".as_ptr()) };
        assert!(!find.is_null());
        // SAFETY: a function of that name has that type.
        Some(Compiled(unsafe { std::mem::transmute::<*mut c_void, Find>(find) }))
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// What it reads and writes at the addresses is there.
    pub(crate) unsafe fn run(&self, run: &Run, addresses: [usize; 3]) {
        // SAFETY: the library takes a C string, and gives NULL or a constant of its own.
        let kernel = unsafe { (self.0)(run.kernel.as_ptr()).as_ref() };
        let kernel = kernel.unwrap_or_else(|| panic!("there is no {:?}", run.kernel));
        // SAFETY: as many sizes as there are parameters.
        let sizes = unsafe { std::slice::from_raw_parts(kernel.sizes, kernel.parameters as usize) };
        assert_eq!(sizes, [8, 8, 8, run.values.len() as u32], "{:?}", run.kernel);
        // As CUDA has it: values are aligned for what they are.
        let mut values: Vec<u64> =
            run.values.chunks(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect();
        let mut parameters: Vec<*mut c_void> =
            addresses.iter().map(|address| (&raw const *address).cast_mut().cast()).collect();
        parameters.push(values.as_mut_ptr().cast());
        let (grid, block) = ([run.blocks, 1, 1], [THREADS, 1, 1]);
        // SAFETY: the parameters are those of the kernel, and the memory is there, as the caller promises.
        unsafe { (kernel.run)(grid.as_ptr(), block.as_ptr(), 0, parameters.as_mut_ptr()) };
    }
}
