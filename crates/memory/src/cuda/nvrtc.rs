//! CUDA C, compiled on the machine where it runs by NVRTC, a library of CUDA's that needs no driver and no headers. What was compiled is
//! kept in a folder of the user's, by text, architecture and version; files are written whole or not at all, and what cannot be read
//! is compiled again.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the compiler is, and where what it has made is kept.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
    /// The library, if it is to be this one.
    pub library: Option<PathBuf>,
    /// The folder, which is made if it is not there; none: nothing is kept.
    pub kept_in: Option<PathBuf>,
}

static COMPILER: OnceLock<Compiler> = OnceLock::new();
static MAKE: OnceLock<fn() -> Compiler> = OnceLock::new();

impl Compiler {
    /// Devices compile their kernels so from now on. Only the first call in the life of a process counts, and only before a kernel was
    /// compiled.
    pub fn use_from_now_on(self) {
        let _ = COMPILER.set(self);
    }

    /// Devices compile their kernels by what this gives when the first one does, if nobody has said otherwise by then.
    pub fn when_needed(make: fn() -> Compiler) {
        let _ = MAKE.set(make);
    }

    /// Compiles a text for a compute capability (90 stands for 9.0): a CUBIN, or PTX if this NVRTC knows only older devices.
    ///
    /// # Errors
    /// A sentence: what is missing, or what the compiler says of the text.
    pub fn compile(&self, name: &str, source: &str, architecture: u32) -> Result<Vec<u8>, String> {
        let nvrtc = Nvrtc::find(self.library.as_deref())?;
        let target = nvrtc.target(architecture);
        self.compile_by(&nvrtc, name, source, target)
    }

    /// Compiles a text for a target.
    ///
    /// # Errors
    /// As [`Compiler::compile`]; also if the compiler does not know the target.
    pub fn compile_to(&self, name: &str, source: &str, target: Target) -> Result<Vec<u8>, String> {
        self.compile_by(&Nvrtc::find(self.library.as_deref())?, name, source, target)
    }

    fn compile_by(&self, nvrtc: &Nvrtc, name: &str, source: &str, target: Target) -> Result<Vec<u8>, String> {
        let kept = self.kept_in.as_ref().map(|folder| folder.join(nvrtc.file(name, source, target)));
        if let Some(image) = kept.as_deref().and_then(read) {
            return Ok(image);
        }
        let image = nvrtc.compile(name, source, target)?;
        // What cannot be kept is compiled again next time.
        let _ = kept.map(|file| write(&file, &image));
        Ok(image)
    }
}

/// Compiles a text as [`Compiler::use_from_now_on`] said.
pub(super) fn compile(name: &str, source: &str, architecture: u32) -> Result<Vec<u8>, String> {
    COMPILER.get_or_init(|| MAKE.get().map_or_else(Compiler::default, |make| make())).compile(
        name,
        source,
        architecture,
    )
}

/// Under which names the library may be loaded: those of CUDA 11 (from 11.2 on), 12 and 13.
const NAMES: [&CStr; 5] = [
    c"libnvrtc.so.12",
    c"libnvrtc.so.13",
    c"libnvrtc.so.11.2",
    c"libnvrtc.so",
    c"/usr/local/cuda/lib64/libnvrtc.so",
];

type Program = *mut c_void;
type Numbers = unsafe extern "C" fn(*mut c_int) -> c_int;
type Length = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The functions of the library that are used here, with the types of `nvrtc.h`.
struct Nvrtc {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    /// The architectures it knows: how many, and which.
    known: Option<(Numbers, Numbers)>,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log: (Length, Text),
    ptx: (Length, Text),
    cubin: (Length, Text),
}

/// What a text is compiled for: compute capabilities, where 90 stands for 9.0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Devices of this one: the code is a CUBIN.
    Device(u32),
    /// All from this one on, by their driver: the code is PTX.
    Newer(u32),
}

impl Target {
    fn option(self) -> String {
        match self {
            Target::Device(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Target::Newer(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        }
    }
}

/// What the compiler is told besides: 128-bit integers, and products and sums stay apart, as the processor's are.
const OPTIONS: [&CStr; 3] = [c"--std=c++14", c"--device-int128", c"--fmad=false"];

impl Nvrtc {
    fn find(library: Option<&Path>) -> Result<Nvrtc, String> {
        let open = |name: &CStr, how: c_int| {
            // SAFETY: a C string. What the library does when it is loaded is what a program that uses CUDA wants.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | how) };
            (!library.is_null()).then_some(library)
        };
        let found = match library {
            Some(path) => {
                let name = CString::new(path.as_os_str().as_encoded_bytes());
                name.ok().and_then(|name| open(&name, 0)).ok_or_else(|| format!("{} cannot be loaded", path.display()))?
            }
            // One that the program has loaded already, from wherever, comes first.
            None => [libc::RTLD_NOLOAD, 0]
                .into_iter()
                .find_map(|how| NAMES.into_iter().find_map(|name| open(name, how)))
                .ok_or("NVRTC (libnvrtc.so) is not on this machine: install it with CUDA, or as a package of Python's")?,
        };
        // SAFETY: by its name it is NVRTC, and it is never closed.
        unsafe { Nvrtc::of(found) }
            .ok_or_else(|| "the NVRTC on this machine is older than CUDA 11.2".to_owned())
    }

    /// The functions of a library; `None` if it lacks one.
    ///
    /// # Safety
    /// `library` is what `dlopen` gave for an NVRTC, and stays loaded.
    unsafe fn of(library: *mut c_void) -> Option<Nvrtc> {
        /// A function, by its name and the type that it has in `nvrtc.h`.
        unsafe fn get<F>(library: *mut c_void, name: &CStr) -> Option<F> {
            const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
            // SAFETY: the library is loaded, the name is a C string.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            // SAFETY: a pointer of the size of a function's; the caller says which type it has.
            (!symbol.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&symbol) })
        }
        // SAFETY: functions of these names have these types in every NVRTC.
        unsafe {
            Some(Nvrtc {
                version: get(library, c"nvrtcVersion")?,
                known: get(library, c"nvrtcGetNumSupportedArchs")
                    .zip(get(library, c"nvrtcGetSupportedArchs")),
                create: get(library, c"nvrtcCreateProgram")?,
                destroy: get(library, c"nvrtcDestroyProgram")?,
                compile: get(library, c"nvrtcCompileProgram")?,
                log: (get(library, c"nvrtcGetProgramLogSize")?, get(library, c"nvrtcGetProgramLog")?),
                ptx: (get(library, c"nvrtcGetPTXSize")?, get(library, c"nvrtcGetPTX")?),
                cubin: (get(library, c"nvrtcGetCUBINSize")?, get(library, c"nvrtcGetCUBIN")?),
            })
        }
    }

    /// What to compile for, for a device.
    fn target(&self, architecture: u32) -> Target {
        let mut known = vec![];
        if let Some((count, list)) = self.known {
            let mut number = 0;
            // SAFETY: room for a number.
            unsafe { count(&raw mut number) };
            known.resize(number.clamp(0, 1000) as usize, 0);
            // SAFETY: room for as many numbers as there are.
            unsafe { list(known.as_mut_ptr()) };
        }
        let best = known.into_iter().map(|known| known as u32).filter(|&known| known <= architecture).max();
        match best {
            Some(best) if best < architecture => Target::Newer(best),
            _ => Target::Device(architecture),
        }
    }

    /// The name of the file in which a compiled text is kept.
    fn file(&self, name: &str, source: &str, target: Target) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: room for two numbers.
        unsafe { (self.version)(&raw mut major, &raw mut minor) };
        let mut all = hash(FIRST, source.as_bytes());
        OPTIONS.iter().for_each(|option| all = hash(all, option.to_bytes_with_nul()));
        let target = target.option();
        let target = target.rsplit('=').next().unwrap_or_default();
        format!("{name}-{all:016x}-{target}-nvrtc{major}.{minor}")
    }

    fn compile(&self, name: &str, source: &str, target: Target) -> Result<Vec<u8>, String> {
        let nul = |_| "a text for NVRTC has a NUL".to_owned();
        let (source, file) =
            (CString::new(source).map_err(nul)?, CString::new(format!("{name}.cu")).map_err(nul)?);
        let architecture = CString::new(target.option()).map_err(nul)?;
        let options: Vec<*const c_char> =
            OPTIONS.into_iter().chain([&*architecture]).map(CStr::as_ptr).collect();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: C strings that live until the program is destroyed, and no headers.
        let made =
            unsafe { (self.create)(&raw mut program, source.as_ptr(), file.as_ptr(), 0, none, none.cast()) };
        if made != 0 {
            return Err(format!("NVRTC makes no program of the kernels \"{name}\": error {made}"));
        }
        // SAFETY: the program from above, and C strings.
        let result = match unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) } {
            0 => {
                let output = if let Target::Device(_) = target { self.cubin } else { self.ptx };
                // SAFETY: the program from above.
                unsafe { text(program, output) }
                    .ok_or_else(|| format!("NVRTC gives no code for the kernels \"{name}\""))
            }
            error => {
                // SAFETY: the program from above.
                let log = unsafe { text(program, self.log) }.unwrap_or_default();
                let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
                Err(format!(
                    "NVRTC does not compile the kernels \"{name}\" ({}): error {error}: {log}",
                    target.option()
                ))
            }
        };
        // SAFETY: the program from above, which nobody uses any more.
        unsafe { (self.destroy)(&raw mut program) };
        result
    }
}

/// What a program has of some kind.
///
/// # Safety
/// The program is there, and both functions take it.
unsafe fn text(program: Program, (length, get): (Length, Text)) -> Option<Vec<u8>> {
    let mut len = 0;
    // SAFETY: as the caller promises; room for a length.
    if unsafe { length(program, &raw mut len) } != 0 || len == 0 {
        return None;
    }
    let mut bytes = vec![0u8; len];
    // SAFETY: as the caller promises; room for as many bytes as were named.
    (unsafe { get(program, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
}

/// The FNV-1a hash of nothing.
const FIRST: u64 = 0xcbf2_9ce4_8422_2325;

/// The FNV-1a hash of more bytes.
fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What a kept file begins with; the hash of the rest follows.
const MAGIC: &[u8; 8] = b"BANYANK1";

/// The code in a file; `None` if it is not there, or not as it was written.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(file).ok()?;
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (sum, image) = rest.split_first_chunk::<8>()?;
    let whole = magic == MAGIC && u64::from_ne_bytes(*sum) == hash(FIRST, image);
    whole.then(|| bytes.split_off(16))
}

fn write(file: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let draft = file.with_extension(format!("{}.draft", std::process::id()));
    let write = || {
        let mut open = std::fs::File::create_new(&draft)?;
        open.write_all(MAGIC)?;
        open.write_all(&hash(FIRST, image).to_ne_bytes())?;
        open.write_all(image)?;
        open.sync_all()?;
        std::fs::rename(&draft, file)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&draft)))
}
