//! What there is of NVRTC and hipRTC: NVRTC takes any text for devices of compute capability 9.0 and older and gives an image that names it, as the
//! kernels are host code from elsewhere; hipRTC does so for any of AMD's. A text with the word `#error` is refused, as a compiler does.

use std::ffi::{CStr, c_char, c_int};

/// A text, and what it was compiled to.
pub struct Program {
    source: Vec<u8>,
    image: Vec<u8>,
    log: &'static CStr,
}

const INVALID_INPUT: c_int = 3;
const COMPILATION: c_int = 6;
const KNOWN: [c_int; 3] = [75, 80, 90];

/// Writes a value where the program wants it.
unsafe fn put<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the program gives room for the value.
    unsafe { to.write(value) };
    0
}

/// Compiles a program for a target that is known.
fn compiled(program: &mut Program, target: Option<String>) -> c_int {
    let Some(target) = target else {
        program.log = c"no such architecture";
        return INVALID_INPUT;
    };
    if program.source.windows(6).any(|word| word == b"#error") {
        program.log = c"#error directive";
        return COMPILATION;
    }
    program.image = format!("{target}: {} bytes", program.source.len()).into_bytes();
    0
}

macro_rules! nvrtc {
    ($($(#[$about:meta])* fn $name:ident($($arg:ident: $type:ty),*) $body:block)+) => {
        $(
            $(#[$about])*
            ///
            /// # Safety
            /// As the documentation of that function says.
            #[allow(non_snake_case, reason = "the names of NVRTC")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                // SAFETY: what the program promises.
                unsafe { $body }
            }
        )+
    };
}

nvrtc! {
    /// As NVRTC's.
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        put(major, 12);
        put(minor, 99)
    }
    /// As NVRTC's.
    fn nvrtcGetNumSupportedArchs(number: *mut c_int) {
        put(number, KNOWN.len() as c_int)
    }
    /// As NVRTC's.
    fn nvrtcGetSupportedArchs(list: *mut c_int) {
        KNOWN.iter().enumerate().for_each(|(at, &known)| list.add(at).write(known));
        0
    }
    /// As NVRTC's, without headers.
    fn nvrtcCreateProgram(
        program: *mut *mut Program, source: *const c_char, _name: *const c_char, headers: c_int, _texts: *const *const c_char,
        _names: *const *const c_char
    ) {
        if source.is_null() || headers != 0 {
            return INVALID_INPUT;
        }
        let source = CStr::from_ptr(source).to_bytes().to_vec();
        put(program, Box::into_raw(Box::new(Program { source, image: vec![], log: c"" })))
    }
    /// As NVRTC's.
    fn nvrtcDestroyProgram(program: *mut *mut Program) {
        drop(Box::from_raw(*program));
        put(program, std::ptr::null_mut())
    }
    /// As NVRTC's: the architecture must be named.
    fn nvrtcCompileProgram(program: *mut Program, count: c_int, options: *const *const c_char) {
        let program = &mut *program;
        let options = (0..count as usize).map(|at| CStr::from_ptr(*options.add(at)).to_string_lossy());
        let wanted = options.filter_map(|option| Some(option.strip_prefix("--gpu-architecture=")?.to_owned())).next_back();
        let known = |number: &str| KNOWN.iter().any(|known| known.to_string() == number);
        compiled(program, wanted.filter(|target| target.rsplit('_').next().is_some_and(known)))
    }
    /// As hipRTC's.
    fn hiprtcCreateProgram(
        program: *mut *mut Program, source: *const c_char, name: *const c_char, headers: c_int, texts: *const *const c_char,
        names: *const *const c_char
    ) {
        nvrtcCreateProgram(program, source, name, headers, texts, names)
    }
    /// As hipRTC's.
    fn hiprtcDestroyProgram(program: *mut *mut Program) {
        nvrtcDestroyProgram(program)
    }
    /// As hipRTC's: the architecture must be named.
    fn hiprtcCompileProgram(program: *mut Program, count: c_int, options: *const *const c_char) {
        let options = (0..count as usize).map(|at| CStr::from_ptr(*options.add(at)).to_string_lossy());
        let mut wanted = options.filter_map(|option| Some(option.strip_prefix("--offload-arch=")?.to_owned()));
        compiled(&mut *program, wanted.next().filter(|target| target.starts_with("gfx")))
    }
    /// As hipRTC's.
    fn hiprtcGetProgramLogSize(program: *mut Program, len: *mut usize) {
        nvrtcGetProgramLogSize(program, len)
    }
    /// As hipRTC's.
    fn hiprtcGetProgramLog(program: *mut Program, text: *mut c_char) {
        nvrtcGetProgramLog(program, text)
    }
    /// As hipRTC's.
    fn hiprtcGetCodeSize(program: *mut Program, len: *mut usize) {
        nvrtcGetCUBINSize(program, len)
    }
    /// As hipRTC's.
    fn hiprtcGetCode(program: *mut Program, text: *mut c_char) {
        nvrtcGetCUBIN(program, text)
    }
    /// As NVRTC's.
    fn nvrtcGetProgramLogSize(program: *mut Program, len: *mut usize) {
        put(len, (*program).log.to_bytes_with_nul().len())
    }
    /// As NVRTC's.
    fn nvrtcGetProgramLog(program: *mut Program, text: *mut c_char) {
        let log = (*program).log.to_bytes_with_nul();
        text.copy_from(log.as_ptr().cast(), log.len());
        0
    }
    /// As NVRTC's.
    fn nvrtcGetPTXSize(program: *mut Program, len: *mut usize) {
        put(len, (*program).image.len())
    }
    /// As NVRTC's.
    fn nvrtcGetPTX(program: *mut Program, text: *mut c_char) {
        let image = &(*program).image;
        text.copy_from(image.as_ptr().cast(), image.len());
        0
    }
    /// As NVRTC's.
    fn nvrtcGetCUBINSize(program: *mut Program, len: *mut usize) {
        put(len, (*program).image.len())
    }
    /// As NVRTC's.
    fn nvrtcGetCUBIN(program: *mut Program, text: *mut c_char) {
        let image = &(*program).image;
        text.copy_from(image.as_ptr().cast(), image.len());
        0
    }
}
