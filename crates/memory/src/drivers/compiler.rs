//! CUDA C, compiled on the machine where it runs: by NVRTC, a library of CUDA's that needs no driver and no headers, which cudarc finds, or by
//! hipRTC, which is HIP's and has the same functions. What was compiled is kept in a folder of the user's, by text, architecture and version; files
//! are written whole or not at all, and what cannot be read is compiled again.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::nvrtc::sys::{self, nvrtcProgram};

use super::Platform;
use super::api::{Api, opened, symbol_in};
use super::library::{Failed, MISSING, functions};

/// The compiler, and where what it has made is kept.
#[derive(Clone, Debug, Default)]
pub struct Compiler {
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
        let nvrtc = Rtc::find(Platform::Cuda)?;
        let target = nvrtc.target(architecture);
        self.compile_by(&nvrtc, name, source, &target)
    }

    /// Compiles a text for a target.
    ///
    /// # Errors
    /// As [`Compiler::compile`]; also if the compiler does not know the target.
    pub fn compile_to(&self, name: &str, source: &str, target: &Target) -> Result<Vec<u8>, String> {
        self.compile_by(&Rtc::find(target.platform())?, name, source, target)
    }

    fn compile_by(&self, rtc: &Rtc, name: &str, source: &str, target: &Target) -> Result<Vec<u8>, String> {
        let kept = self.kept_in.as_ref().map(|folder| folder.join(rtc.file(name, source, target)));
        if let Some(image) = kept.as_deref().and_then(read) {
            return Ok(image);
        }
        let image = rtc.compile(name, source, target)?;
        // What cannot be kept is compiled again next time.
        let _ = kept.map(|file| write(&file, &image));
        Ok(image)
    }
}

/// Compiles a text for a device of a driver, as [`Compiler::use_from_now_on`] said.
pub(super) fn compile(api: &Api, ordinal: c_int, name: &str, source: &str) -> Result<Vec<u8>, String> {
    let compiler = COMPILER.get_or_init(|| MAKE.get().map_or_else(Compiler::default, |make| make()));
    match api.platform() {
        Platform::Cuda => compiler.compile(name, source, api.compute_capability(ordinal)),
        Platform::Hip => {
            let told = api.architecture(ordinal);
            let (architecture, runtime) =
                told.map_err(|failed| format!("{} says {}", failed.call, api.describe(failed.error)))?;
            compiler.compile_to(name, source, &Target::Amd { architecture, runtime })
        }
    }
}

functions! {
    /// The functions of NVRTC or hipRTC that are used here.
    Rtc;
    version = "nvrtcVersion" | "" (major: *mut c_int, minor: *mut c_int);
    number_of_architectures = "nvrtcGetNumSupportedArchs" | "" (number: *mut c_int);
    architectures = "nvrtcGetSupportedArchs" | "" (list: *mut c_int);
    create = "nvrtcCreateProgram" | "hiprtcCreateProgram" (
        program: *mut nvrtcProgram, source: *const c_char, name: *const c_char, headers: c_int, texts: *const *const c_char,
        names: *const *const c_char
    );
    destroy = "nvrtcDestroyProgram" | "hiprtcDestroyProgram" (program: *mut nvrtcProgram);
    compile_program = "nvrtcCompileProgram" | "hiprtcCompileProgram" (
        program: nvrtcProgram, number: c_int, options: *const *const c_char
    );
    log_len = "nvrtcGetProgramLogSize" | "hiprtcGetProgramLogSize" (program: nvrtcProgram, len: *mut usize);
    log_text = "nvrtcGetProgramLog" | "hiprtcGetProgramLog" (program: nvrtcProgram, text: *mut c_char);
    ptx_len = "nvrtcGetPTXSize" | "" (program: nvrtcProgram, len: *mut usize);
    ptx = "nvrtcGetPTX" | "" (program: nvrtcProgram, text: *mut c_char);
    code_len = "nvrtcGetCUBINSize" | "hiprtcGetCodeSize" (program: nvrtcProgram, len: *mut usize);
    code = "nvrtcGetCUBIN" | "hiprtcGetCode" (program: nvrtcProgram, code: *mut c_char);
}

/// Under which names hipRTC is looked for. In ROCm before 5.3 it is part of the runtime.
const HIPRTC: [&CStr; 7] = [
    c"libhiprtc.so",
    c"libhiprtc.so.7",
    c"libhiprtc.so.6",
    c"libhiprtc.so.5",
    c"libamdhip64.so.6",
    c"libamdhip64.so.5",
    c"libamdhip64.so",
];

/// What a text is compiled for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Devices of this compute capability, where 90 stands for 9.0: the code is a CUBIN.
    Device(u32),
    /// All from this one on, by their driver: the code is PTX.
    Newer(u32),
    /// Devices of AMD's.
    Amd {
        /// As `gfx90a:sramecc+:xnack-`.
        architecture: String,
        /// The version of HIP's runtime, which stands for that of the compiler: hipRTC tells none.
        runtime: c_int,
    },
}

impl Target {
    fn platform(&self) -> Platform {
        match self {
            Target::Device(_) | Target::Newer(_) => Platform::Cuda,
            Target::Amd { .. } => Platform::Hip,
        }
    }

    fn option(&self) -> String {
        match self {
            Target::Device(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Target::Newer(architecture) => format!("--gpu-architecture=compute_{architecture}"),
            Target::Amd { architecture, .. } => format!("--offload-arch={architecture}"),
        }
    }
}

/// What a compiler is told besides: products and sums stay apart, as the processor's are; NVRTC has 128-bit integers only if it is told.
const fn options(platform: Platform) -> &'static [&'static CStr] {
    match platform {
        Platform::Cuda => &[c"--std=c++14", c"--device-int128", c"--fmad=false"],
        Platform::Hip => &[c"-std=c++14", c"-ffp-contract=off"],
    }
}

impl Rtc {
    /// The functions of the library.
    fn find(platform: Platform) -> Result<Rtc, String> {
        match platform {
            Platform::Cuda => Self::nvrtc(),
            Platform::Hip => {
                let library = opened(&HIPRTC, 0).ok_or_else(|| {
                    "hipRTC (libhiprtc.so) is not on this machine: install it with ROCm, and name its folder in LD_LIBRARY_PATH"
                        .to_owned()
                })?;
                // SAFETY: the library is never closed.
                Ok(Rtc::of(platform, &|name| unsafe { symbol_in(library, name) }))
            }
        }
    }

    fn nvrtc() -> Result<Rtc, String> {
        // SAFETY: what the library does when it is loaded is what a program that uses CUDA wants. Without one cudarc's other functions
        // would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err("NVRTC (libnvrtc.so) is not on this machine: install it with CUDA, or as a package of Python's, and name its \
                        folder in LD_LIBRARY_PATH"
                .to_owned());
        }
        Ok(Rtc::of(Platform::Cuda, &|name| {
            // SAFETY: cudarc has found a library, and any symbol is an address.
            let symbol = unsafe { sys::culib().get::<*mut c_void>(name.as_bytes()) };
            symbol.map_or(std::ptr::null_mut(), |symbol| *symbol)
        }))
    }

    /// What messages call it.
    fn name(&self) -> &'static str {
        match self.platform {
            Platform::Cuda => "NVRTC",
            Platform::Hip => "hipRTC",
        }
    }

    /// A function has failed: neither compiler keeps that for the program.
    #[expect(clippy::unused_self, reason = "tables have it")]
    fn failed(&self) {}

    /// What to compile for, for a device.
    fn target(&self, architecture: u32) -> Target {
        let mut number = 0;
        // SAFETY: room for a number.
        let told = unsafe { self.number_of_architectures(&raw mut number) }.is_ok();
        let mut known = vec![0; if told { number.clamp(0, 1000) as usize } else { 0 }];
        // SAFETY: room for as many numbers as there are.
        if !known.is_empty() && unsafe { self.architectures(known.as_mut_ptr()) }.is_err() {
            known.clear();
        }
        let best = known.into_iter().map(|known| known as u32).filter(|&known| known <= architecture).max();
        match best {
            Some(best) if best < architecture => Target::Newer(best),
            _ => Target::Device(architecture),
        }
    }

    /// The name of the file in which a compiled text is kept.
    fn file(&self, name: &str, source: &str, target: &Target) -> String {
        let mut all = hash(FIRST, source.as_bytes());
        options(self.platform).iter().for_each(|option| all = hash(all, option.to_bytes_with_nul()));
        let option = target.option();
        let compiled_for = option.rsplit('=').next().unwrap_or_default();
        let version = match target {
            Target::Amd { runtime, .. } => format!("hiprtc{runtime}"),
            Target::Device(_) | Target::Newer(_) => {
                let (mut major, mut minor) = (0, 0);
                // SAFETY: room for two numbers.
                let _ = unsafe { self.version(&raw mut major, &raw mut minor) };
                format!("nvrtc{major}.{minor}")
            }
        };
        format!("{name}-{all:016x}-{compiled_for}-{version}")
    }

    fn compile(&self, name: &str, source: &str, target: &Target) -> Result<Vec<u8>, String> {
        let rtc = self.name();
        let nul = |_| format!("a text for {rtc} has a NUL");
        let (source, file) =
            (CString::new(source).map_err(nul)?, CString::new(format!("{name}.cu")).map_err(nul)?);
        let architecture = CString::new(target.option()).map_err(nul)?;
        let options: Vec<*const c_char> =
            options(self.platform).iter().copied().chain([&*architecture]).map(CStr::as_ptr).collect();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: C strings that live until the program is destroyed, and no headers.
        let made =
            unsafe { self.create(&raw mut program, source.as_ptr(), file.as_ptr(), 0, none, none.cast()) };
        if let Err(failed) = made {
            return Err(format!("{rtc} makes no program of the kernels \"{name}\": {}", self.reason(failed)));
        }
        // SAFETY: the program from above, and C strings.
        let result = match unsafe { self.compile_program(program, options.len() as c_int, options.as_ptr()) }
        {
            Ok(()) => {
                // SAFETY: the program from above.
                unsafe { self.compiled(program, target) }
                    .ok_or_else(|| format!("{rtc} gives no code for the kernels \"{name}\""))
            }
            Err(failed) => {
                // SAFETY: the program from above.
                let log = unsafe { self.log(program) }.unwrap_or_default();
                let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
                let (target, why) = (target.option(), self.reason(failed));
                Err(format!("{rtc} does not compile the kernels \"{name}\" ({target}): {why}: {log}"))
            }
        };
        // SAFETY: the program from above, which nobody uses any more.
        let _ = unsafe { self.destroy(&raw mut program) };
        result
    }

    fn reason(&self, Failed { error, .. }: Failed) -> String {
        match (error, self.platform) {
            (MISSING, Platform::Cuda) => "it is older than CUDA 11.2".to_owned(),
            (MISSING, Platform::Hip) => "it lacks functions".to_owned(),
            _ => format!("error {error}"),
        }
    }

    /// What a program was compiled to.
    ///
    /// # Safety
    /// The program is there.
    unsafe fn compiled(&self, program: nvrtcProgram, target: &Target) -> Option<Vec<u8>> {
        // SAFETY: as the caller promises; `text` gives room for what the functions write.
        unsafe {
            match target {
                Target::Device(_) | Target::Amd { .. } => {
                    text(|len| self.code_len(program, len), |code| self.code(program, code))
                }
                Target::Newer(_) => text(|len| self.ptx_len(program, len), |code| self.ptx(program, code)),
            }
        }
    }

    /// What the compiler says of a program.
    ///
    /// # Safety
    /// The program is there.
    unsafe fn log(&self, program: nvrtcProgram) -> Option<Vec<u8>> {
        // SAFETY: as the caller promises; `text` gives room for what the functions write.
        unsafe { text(|len| self.log_len(program, len), |log| self.log_text(program, log)) }
    }
}

/// Bytes whose number one function gives, and they themselves another one.
fn text(
    length: impl FnOnce(*mut usize) -> Result<(), Failed>,
    get: impl FnOnce(*mut c_char) -> Result<(), Failed>,
) -> Option<Vec<u8>> {
    let mut len = 0;
    length(&raw mut len).ok().filter(|()| len > 0)?;
    let mut bytes = vec![0u8; len];
    get(bytes.as_mut_ptr().cast()).ok().map(|()| bytes)
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
