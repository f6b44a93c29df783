//! The kernels, compiled for the processor by a C++ compiler after `device::SHIM`, and loaded into this process.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use banyan_datatype::device::{Run, SHIM, TEXTS, THREADS, Text};

type Kernel = unsafe extern "C" fn(*mut *mut c_void);
type Address = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Launch = unsafe extern "C" fn(Kernel, c_uint, c_uint, *mut *mut c_void, Address);

/// The loaded objects of all texts.
pub(crate) struct Compiled(Vec<usize>);

unsafe extern "C" fn same(address: *mut c_void) -> *mut c_void {
    address
}

impl Compiled {
    /// Compiles the texts that are not compiled yet. `None`, and a line that says why: there is no compiler.
    pub(crate) fn new() -> Option<&'static Compiled> {
        static COMPILED: OnceLock<Option<Compiled>> = OnceLock::new();
        COMPILED.get_or_init(Self::compile).as_ref()
    }

    fn compile() -> Option<Compiled> {
        if let Err(error) = Command::new("g++").arg("--version").output() {
            eprintln!("skipped: g++ does not start: {error}");
            return None;
        }
        let objects: Vec<PathBuf> = std::thread::scope(|scope| {
            let all: Vec<_> = TEXTS.iter().map(|text| scope.spawn(|| compile(text))).collect();
            all.into_iter().map(|one| one.join().expect("a text that compiles")).collect()
        });
        Some(Compiled(objects.iter().map(|object| load(object)).collect()))
    }

    fn find(&self, text: &Text, name: &CStr) -> Option<*mut c_void> {
        let index = TEXTS.iter().position(|each| std::ptr::eq(each, text)).expect("one of the texts");
        // SAFETY: a library that stays, and a C string.
        let found = unsafe { libc::dlsym(self.0[index] as *mut c_void, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// What it reads and writes at the addresses is there.
    pub(crate) unsafe fn run(&self, run: &Run, addresses: [usize; 3]) {
        let find = |name: &CStr| self.find(run.text, name).unwrap_or_else(|| panic!("there is no {name:?}"));
        let (launch, kernel) = (find(c"banyan_launch"), find(&run.kernel));
        // SAFETY: `shim.h` gives both these types.
        let (launch, kernel) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Launch>(launch),
                std::mem::transmute::<*mut c_void, Kernel>(kernel),
            )
        };
        // As CUDA has it: values are aligned for what they are.
        let mut values: Vec<u64> =
            run.values.chunks(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect();
        let mut parameters: Vec<*mut c_void> =
            addresses.iter().map(|address| (&raw const *address).cast_mut().cast()).collect();
        parameters.push(values.as_mut_ptr().cast());
        // SAFETY: the parameters are those of the kernel, and the memory is there, as the caller promises.
        unsafe { launch(kernel, run.blocks, THREADS, parameters.as_mut_ptr(), same) };
    }
}

/// Compiles a text, unless that was done before.
fn compile(text: &Text) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, object) =
        (folder.join(format!("{}.cpp", text.name)), folder.join(format!("{}.so", text.name)));
    let code = format!("{SHIM}{}", text.source);
    if object.exists() && std::fs::read_to_string(&source).is_ok_and(|last| last == code) {
        return object;
    }
    let _ = std::fs::remove_file(&object);
    std::fs::write(&source, code).unwrap();
    let began = std::time::Instant::now();
    let done = Command::new("g++")
        .args([
            "-O1",
            "-std=c++14",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-fPIC",
            "-shared",
        ])
        // What NVRTC is told, too: products and sums stay apart. The kernels take memory as words of any type.
        .args(["-ffp-contract=off", "-fno-strict-aliasing", "-o"])
        .args([&object, &source])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}: {}", text.name, String::from_utf8_lossy(&done.stderr));
    eprintln!("g++ took {:.1} s for the text {}", began.elapsed().as_secs_f64(), text.name);
    object
}

fn load(object: &Path) -> usize {
    let path = CString::new(object.to_str().unwrap()).unwrap();
    const HOW: c_int = libc::RTLD_NOW | libc::RTLD_LOCAL;
    // SAFETY: a C string; the library has no constructors that matter.
    let library = unsafe { libc::dlopen(path.as_ptr(), HOW) };
    // SAFETY: the last error of this thread, a C string.
    let why = || unsafe { CStr::from_ptr(libc::dlerror().cast::<c_char>()) };
    assert!(!library.is_null(), "{:?}", why());
    library as usize
}
