//! PMIx, by the library `libpmix.so.2` that the launcher's side brought: loaded when a job needs it, so that nothing of it is
//! needed to build or to run elsewhere. All `unsafe` of the crate is here and in `inherit.rs`.
//!
//! The types are those of the headers of OpenPMIx 4.2, which 5.0 kept; the names of functions and keys are those of the PMIx
//! standard. Calls wait for the library's own thread; only the thread that holds the connection makes them, and one that ends the
//! job ([`Pmix::last_word`]), as `PMIx_Abort` may not be called in a signal handler.
#![allow(unsafe_code, reason = "functions of C that are found at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};
use thiserror::Error;

use crate::client;
use crate::kvs::{Kvs, Place};
use crate::last_word::LastWord;

/// The library's name, the same for OpenPMIx 4 and 5.
const LIBRARY: &CStr = c"libpmix.so.2";
const SUCCESS: c_int = 0;
const NOT_FOUND: c_int = -46;
/// All ranks of a job, where a rank is asked for.
const WILDCARD: u32 = u32::MAX - 1;
/// Who may see a value: all.
const GLOBAL: u8 = 3;
const BOOL: u16 = 1;
const STRING: u16 = 3;
const INT: u16 = 6;
const UINT32: u16 = 14;
/// Seconds that the library may look for a value.
const TIMEOUT: c_int = 60;
/// Bytes of a value: servers pass on more, but what is long is better sent in parts.
const LONGEST_VALUE: usize = 4096;

/// Why PMIx cannot be used.
#[derive(Debug, Error)]
pub enum PmixError {
    /// The library is not there, or lacks a function.
    #[error("its library cannot be loaded: {0}")]
    Library(String),
    /// A function failed.
    #[error("{function} says {status} ({code})")]
    Call {
        /// The function.
        function: &'static str,
        /// What the library calls its status.
        status: String,
        /// Its status.
        code: c_int,
    },
    /// The launcher does not tell something that it must.
    #[error("the launcher does not tell {0}")]
    Untold(&'static str),
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [c_char; 256],
    rank: u32,
}

/// The part of `pmix_value_t` that depends on its type.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    string: *mut c_char,
    int: c_int,
    uint32: u32,
    room: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);

impl Info {
    fn new(key: &CStr, value: Value) -> Info {
        let mut info = Info { key: [0; 512], flags: 0, value };
        for (to, from) in info.key.iter_mut().zip(key.to_bytes()) {
            *to = from.cast_signed() as c_char;
        }
        info
    }
}

macro_rules! functions {
    ($($field:ident $name:literal: fn($($argument:ty),*);)+) => {
        /// The library's functions.
        #[derive(Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)+
            error_string: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        impl Functions {
            fn load() -> Result<Functions, PmixError> {
                // SAFETY: runs the initialization of the library that the launcher's environment leads to, which the user
                // started this program under.
                let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
                if library.is_null() {
                    return Err(PmixError::Library(last_error()));
                }
                // SAFETY: the functions have these types in PMIx 4 and 5. The library is never unloaded.
                unsafe {
                    Ok(Functions {
                        $($field: std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                            symbol(library, $name)?,
                        ),)+
                        error_string: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *const c_char>(
                            symbol(library, c"PMIx_Error_string")?,
                        ),
                    })
                }
            }
        }
    };
}

functions! {
    init c"PMIx_Init": fn(*mut Proc, *mut Info, usize);
    finalize c"PMIx_Finalize": fn(*const Info, usize);
    put c"PMIx_Put": fn(u8, *const c_char, *mut Value);
    commit c"PMIx_Commit": fn();
    fence c"PMIx_Fence": fn(*const Proc, usize, *const Info, usize);
    get c"PMIx_Get": fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value);
    abort c"PMIx_Abort": fn(c_int, *const c_char, *mut Proc, usize);
}

/// Finds a function.
fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, PmixError> {
    // SAFETY: the library is loaded, and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(PmixError::Library(last_error())) } else { Ok(found) }
}

/// What the loader says of its last failure.
fn last_error() -> String {
    // SAFETY: gives null, or a string that lives until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above; copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Functions {
    fn check(&self, function: &'static str, code: c_int) -> Result<(), PmixError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes a plain number, and gives a string that lives for ever, or null.
        let text = unsafe { (self.error_string)(code) };
        let status = match text.is_null() {
            true => String::new(),
            // SAFETY: a string, by the line above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(PmixError::Call { function, status, code })
    }
}

/// A connection to a PMIx server.
pub(crate) struct Pmix {
    functions: Functions,
    me: Proc,
    place: Place,
    /// Leads to the thread that ends the job.
    last_word: LastWord,
}

impl std::fmt::Debug for Pmix {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Pmix").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Pmix {
    /// Joins the job that the launcher's variables name.
    ///
    /// # Errors
    /// If there is no library, or no server.
    pub(crate) fn join() -> Result<Pmix, PmixError> {
        let functions = Functions::load()?;
        let mut me = Proc { namespace: [0; 256], rank: 0 };
        // SAFETY: `me` is ours to be written; there are no infos.
        let code = unsafe { (functions.init)(&raw mut me, ptr::null_mut(), 0) };
        functions.check("PMIx_Init", code)?;
        let last_word = end_jobs(functions, me.rank)?;
        let place = Place { rank: me.rank, size: 1, appnum: 0, universe_size: 1 };
        let mut pmix = Pmix { functions, me, place, last_word };
        let size = pmix.number(WILDCARD, c"pmix.job.size")?.filter(|&size| size > me.rank);
        pmix.place.size = size.ok_or(PmixError::Untold("how many ranks there are (pmix.job.size)"))?;
        pmix.place.appnum = pmix.number(me.rank, c"pmix.appnum")?.unwrap_or(0);
        pmix.place.universe_size =
            pmix.number(WILDCARD, c"pmix.univ.size")?.unwrap_or(1).max(pmix.place.size);
        Ok(pmix)
    }

    /// A value of a rank; `None` if there is none.
    fn value(&self, rank: u32, key: &CStr, optional: bool) -> Result<Option<Value>, PmixError> {
        let of = Proc { rank, ..self.me };
        let timeout = Info::new(c"pmix.timeout", Value { kind: INT, data: Data { int: TIMEOUT } });
        // What the launcher tells of its own accord is here; otherwise the server would go and ask.
        let local = Info::new(c"pmix.optional", Value { kind: BOOL, data: Data { flag: optional } });
        let infos = [timeout, local];
        let mut found: *mut Value = ptr::null_mut();
        // SAFETY: the key is a C string, the arrays are as long as said and live during the call, which sets `found` to a
        // value that is ours if it succeeds.
        let code = unsafe {
            (self.functions.get)(&raw const of, key.as_ptr(), infos.as_ptr(), infos.len(), &raw mut found)
        };
        if code == NOT_FOUND || (code == SUCCESS && found.is_null()) {
            return Ok(None);
        }
        self.functions.check("PMIx_Get", code)?;
        // SAFETY: a value, by the call above. Its 32 bytes are not given back, as the library may keep them in one block with
        // others.
        Ok(Some(unsafe { *found }))
    }

    /// A number that the launcher tells.
    fn number(&self, rank: u32, key: &CStr) -> Result<Option<u32>, PmixError> {
        let value = match self.value(rank, key, true) {
            // Which status stands for what a server does not know differs from one to the other.
            Err(PmixError::Call { .. }) => None,
            other => other?,
        };
        // SAFETY: the type says which part is valid.
        Ok(value.filter(|value| value.kind == UINT32).map(|value| unsafe { value.data.uint32 }))
    }

    /// A text that a rank has put.
    fn text(&self, rank: u32, key: &CStr) -> Result<Option<String>, PmixError> {
        let Some(value) = self.value(rank, key, false)? else { return Ok(None) };
        // SAFETY: the type says which part is valid.
        let string = unsafe { value.data.string };
        if value.kind != STRING || string.is_null() {
            return Ok(None);
        }
        // SAFETY: a C string that is ours, and which is not used after it is freed.
        unsafe {
            let text = CStr::from_ptr(string).to_string_lossy().into_owned();
            libc::free(string.cast());
            Ok(Some(text))
        }
    }

    fn store(&self, key: &CStr, value: &CStr) -> Result<(), PmixError> {
        let mut value = Value { kind: STRING, data: Data { string: value.as_ptr().cast_mut() } };
        // SAFETY: C strings, which the call copies.
        let code = unsafe { (self.functions.put)(GLOBAL, key.as_ptr(), &raw mut value) };
        self.functions.check("PMIx_Put", code)
    }

    fn meet(&self) -> Result<(), PmixError> {
        // SAFETY: takes nothing.
        self.functions.check("PMIx_Commit", unsafe { (self.functions.commit)() })?;
        let all = Proc { rank: WILDCARD, ..self.me };
        let collect = Info::new(c"pmix.collect", Value { kind: BOOL, data: Data { flag: true } });
        // SAFETY: one process and one info, which live during the call.
        let code = unsafe { (self.functions.fence)(&raw const all, 1, &raw const collect, 1) };
        self.functions.check("PMIx_Fence", code)
    }
}

/// Starts the thread that ends the job, and gives what tells it to.
fn end_jobs(functions: Functions, rank: u32) -> Result<LastWord, PmixError> {
    let (code, to_thread) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let (from_thread, done) = pipe_with(PipeFlags::CLOEXEC).map_err(std::io::Error::from)?;
    let wait = move || {
        block_signals();
        let mut bytes = [0; 4];
        if std::fs::File::from(code).read_exact(&mut bytes).is_ok() {
            // SAFETY: a C string; no list of processes means all of this job.
            unsafe { (functions.abort)(c_int::from_ne_bytes(bytes), c"".as_ptr(), ptr::null_mut(), 0) };
        }
        drop::<OwnedFd>(done);
    };
    std::thread::Builder::new().name("banyan-abort".to_owned()).stack_size(128 << 10).spawn(wait)?;
    Ok(LastWord::by_pmix(rank, Arc::new(to_thread), Arc::new(from_thread)))
}

/// Leaves all signals to the threads of the program.
fn block_signals() {
    // SAFETY: an all-zero set is overwritten by sigfillset.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, ptr::null_mut());
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text).expect("keys and chunks hold no null byte")
}

impl Kvs for Pmix {
    fn place(&self) -> Place {
        self.place
    }

    fn nodes(&mut self) -> Result<Option<Vec<u32>>, client::Error> {
        let node = |rank| self.number(rank, c"pmix.nodeid");
        Ok((0..self.place.size).map(node).collect::<Result<Option<_>, _>>()?)
    }

    /// Open MPI's mpirun tells them in the environment.
    fn memory_alloc_kinds(&mut self) -> Result<Option<String>, client::Error> {
        Ok(None)
    }

    fn longest_value(&self) -> usize {
        LONGEST_VALUE
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), client::Error> {
        Ok(self.store(&c_string(key), &c_string(value))?)
    }

    fn fence(&mut self) -> Result<(), client::Error> {
        Ok(self.meet()?)
    }

    fn get(&mut self, rank: u32, key: &str) -> Result<Option<String>, client::Error> {
        Ok(self.text(rank, &c_string(key))?)
    }

    /// With a fence: the calls of ranks that still look something up would hang if this one were gone.
    fn leave(&mut self) -> Result<(), client::Error> {
        self.meet()?;
        // SAFETY: no infos. Nothing of the library is called after this but, to end the job, `PMIx_Abort`, which then says no.
        let code = unsafe { (self.functions.finalize)(ptr::null(), 0) };
        Ok(self.functions.check("PMIx_Finalize", code)?)
    }

    fn last_word(&self) -> LastWord {
        self.last_word.clone()
    }
}
