//! The boundary between C and Rust: the declaration macros, panic containment, and what happens to errors.
//!
//! A call runs in three parts. `body` converts, checks and works; it may panic. Its outcome is reduced to
//! a number, with everything that owns memory gone. Only then, from a frame without destructors, is the
//! error handler called: it may return, longjmp, or throw a C++ exception through us.

use crate::errhandler::{self, Handler};
use crate::ffi::*;
use crate::instance::{INSTANCE, Phase};
use crate::process;
use crate::tables::When;
use banyan_memory::{DeviceFailure, NoMemory, Refused};
use banyan_runtime::{Class, Error, Reason, Result};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// When each function may be called, as constants named like the functions.
#[allow(non_upper_case_globals, dead_code, reason = "one constant per function of the table")]
pub(crate) mod when {
    use crate::tables::When;
    include!(concat!(env!("OUT_DIR"), "/when.rs"));
}

// `typed!`: the types of each function, by the table. `typed! { NAME [N] then! ... }` goes on as `then! { ... [types of the
// parameters] (type of the result) }`; the `N` is that of a function with a `_c` twin.
include!(concat!(env!("OUT_DIR"), "/typed.rs"));
pub(crate) use typed;

/// The object whose error handler is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Calls without a handle: MPI_COMM_SELF (MPI 4.0, 9.3). Windows and sessions too: there are none yet.
    SelfComm,
    Comm(MPI_Comm),
    File(MPI_File),
    /// None: the code is just returned (tool interface).
    Code,
}

/// Names [`Target::SelfComm`] in declarations.
pub(crate) struct SelfComm;
/// Names [`Target::Code`] in declarations.
pub(crate) struct Code;

macro_rules! targets {
    ($($from:ident => |$h:ident| $target:expr;)*) => {$(
        impl From<$from> for Target {
            fn from($h: $from) -> Target {
                $target
            }
        }
    )*};
}

targets! {
    SelfComm => |_h| Target::SelfComm;
    Code => |_h| Target::Code;
    MPI_Comm => |comm| Target::Comm(comm);
    MPI_Win => |_win| Target::SelfComm;
    MPI_File => |file| Target::File(file);
    MPI_Session => |_session| Target::SelfComm;
}

impl<H: Copy + Into<Target>> From<crate::pointer::Ptr<H>> for Target {
    fn from(handle: crate::pointer::Ptr<H>) -> Target {
        handle.get().map_or(Target::SelfComm, Into::into)
    }
}

/// The name of the function that this process has called last, for reports on jobs that hang. A call can spare one store
/// for that; with several threads the name may be that of another thread's call. It is a C string, so that its address is
/// enough: statics of address and length (8 KiB of them) would be written to when a rank loads the library.
static LAST_CALL: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());

/// The function that [`LAST_CALL`] names; empty before the first call.
pub(crate) fn last_call() -> &'static str {
    let name = LAST_CALL.load(Ordering::Relaxed);
    if name.is_null() {
        return "";
    }
    // SAFETY: `boundary` stores the addresses of such strings only, and they are never freed.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

/// A function's name as [`boundary`] takes it, from its text with a NUL behind it.
pub(crate) const fn named(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with its only NUL"),
    }
}

/// Runs the body of a call and returns its MPI error code. If it has failed, `undo` runs before the error handler does.
#[inline(always)]
pub(crate) fn boundary(
    name: &'static CStr,
    when: When,
    target: impl Into<Target>,
    body: impl FnOnce() -> Result<()>,
    undo: impl FnOnce(),
) -> c_int {
    LAST_CALL.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
    match run_contained(name, when, body) {
        Ok(()) => MPI_SUCCESS,
        Err(failed) => {
            undo();
            raise(name, target.into(), failed)
        }
    }
}

/// A C name as a Rust string.
fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("")
}

/// What is left of an error when everything that owns memory is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    code: c_int,
    /// The communicator that the error is about, if it is not the argument that the declaration names.
    about: Option<NonZeroU32>,
}

/// Names the communicator that an error is about, if it is not the argument that the declaration names but the
/// communicator of a request or message.
pub(crate) trait On {
    fn on(self, comm: MPI_Comm) -> Self;
}

impl<T> On for Result<T> {
    #[inline]
    fn on(self, comm: MPI_Comm) -> Self {
        // Handles have 31 bits.
        self.map_err(|error| error.on(comm.0 as u32))
    }
}

/// Runs the body of a call that has no error code: `on_error` is its result if it fails.
pub(crate) fn value<T>(name: &'static str, on_error: T, body: impl FnOnce() -> Result<T>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    match outcome {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            remember(name, error);
            on_error
        }
        Err(_) => on_error,
    }
}

#[inline(always)]
fn run_contained(
    name: &'static CStr,
    when: When,
    body: impl FnOnce() -> Result<()>,
) -> std::result::Result<(), Failed> {
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        check_phase(name, when)?;
        body()
    }));
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(failed(name, error)),
        Err(panic) => Err(failed_by_panic(name, panic)),
    }
}

/// Keeps an error. A function of its own, as code that is inlined into each call is in the library a thousand times.
#[cold]
#[inline(never)]
fn failed(name: &'static CStr, error: Error) -> Failed {
    remember(text(name), error)
}

/// Turns a panic into an error, and keeps it.
#[cold]
#[inline(never)]
fn failed_by_panic(name: &'static CStr, panic: Box<dyn std::any::Any + Send>) -> Failed {
    remember(text(name), panicked(&*panic))
}

#[inline(always)]
fn check_phase(name: &'static CStr, when: When) -> Result<()> {
    match (when, INSTANCE.phase()) {
        (When::Running, Phase::Running) | (When::Always | When::Starts, _) => Ok(()),
        (_, phase) => check_other_phase(name, when, phase),
    }
}

#[cold]
#[inline(never)]
fn check_other_phase(name: &'static CStr, when: When, phase: Phase) -> Result<()> {
    let name = text(name);
    let wrong = match (when, phase) {
        (When::Running, Phase::Before) => "before MPI_Init: call MPI_Init or MPI_Init_thread first",
        (When::Running, Phase::After) if name == "MPI_Finalize" => "a second time",
        (When::Running, Phase::After) => "after MPI_Finalize: call MPI_Finalize last",
        (When::Tool, _) if !crate::tool::running() => {
            return Err(Error::new(Class::T_ERR_NOT_INITIALIZED, "MPI_T_init_thread was not called"));
        }
        _ => return Ok(()),
    };
    Err(Error::new(Class::ERR_OTHER, format!("{name} was called {wrong}")))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    if let Some(NoMemory { bytes }) = panic.downcast_ref() {
        return Error::new(
            Class::ERR_NO_MEM,
            format!("there is no memory for the {bytes} bytes that the call needs"),
        );
    }
    if let Some(DeviceFailure { what }) = panic.downcast_ref() {
        return Error::new(Class::ERR_OTHER, what.clone());
    }
    if let Some(refused) = panic.downcast_ref() {
        return Error::new(Class::ERR_OTHER, why_refused(*refused));
    }
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown");
    Error::new(Class::ERR_INTERN, format!("a fault of the library: {text}; please report it"))
}

/// Why a call was refused the engine lock.
fn why_refused(refused: Refused) -> String {
    match refused {
        Refused::Taken => format!(
            "MPI was called while another call was at work, from another thread or from a signal handler; the thread level \
             of this program is {}. Several threads may call at the same time with MPI_THREAD_MULTIPLE only: ask \
             MPI_Init_thread for it, and look at what it provides",
            crate::init::level_name()
        ),
        Refused::Forked => String::from(
            "this process is a child that fork() made of a rank, and has no part in the job: let the parent call MPI, or \
             execute a program in the child",
        ),
    }
}

thread_local! {
    /// The program asked to raise the error that is returned next.
    static ASKED_FOR: Cell<bool> = const { Cell::new(false) };
    /// Code, function and sentence of the last error on this thread.
    static LAST_ERROR: RefCell<Option<(c_int, &'static str, String)>> = const { RefCell::new(None) };
}

/// Marks the error that is returned next as one that the program asked to raise (MPI_Comm_call_errhandler): after
/// its error handler the call has succeeded.
pub(crate) fn mark_as_asked_for() {
    ASKED_FOR.set(true);
}

/// Keeps the sentence of an error for the error handler and MPI_Error_string.
#[cold]
pub(crate) fn remember(name: &'static str, error: Error) -> Failed {
    let Reason { class, about, what } = error.into_reason();
    LAST_ERROR.with_borrow_mut(|last| *last = Some((class.0, name, what)));
    Failed { code: class.0, about }
}

/// The sentence of the last error on this thread, if it had this code.
pub(crate) fn sentence(code: c_int) -> Option<String> {
    LAST_ERROR.with_borrow(|last| last.as_ref().filter(|last| last.0 == code).map(|last| last.2.clone()))
}

/// Calls the error handler of `target`. No destructor may be pending here or in a caller of this.
#[cold]
#[inline(never)]
pub(crate) fn raise(name: &'static CStr, target: Target, failed: Failed) -> c_int {
    let name = text(name);
    let Failed { code, about } = failed;
    let target = about.map_or(target, |comm| Target::Comm(MPI_Comm(comm.get() as usize)));
    let result = if ASKED_FOR.take() { MPI_SUCCESS } else { code };
    match errhandler::of(target) {
        Handler::Return => result,
        Handler::Fatal => process::abort_all(name, target, code),
        Handler::Abort => process::abort_comm(name, target, code),
        Handler::User(function) => {
            let (mut handle, mut passed) = (errhandler::handle_of(target), code);
            // SAFETY: a function that the user gave to MPI_X_create_errhandler; it gets what MPI says.
            unsafe { function(&raw mut handle, &raw mut passed) };
            result
        }
    }
}

/// Declares MPI functions: each becomes `MPI_X` and `PMPI_X`, and with `<N>` also the `_c` twins, whose counts (all parameters
/// over `N`) have 64 bits. The types are those of the table; `..` stands for the parameters that the body has no use for. `on`
/// names the argument whose error handler is called, and `gives` the handles that the call makes: they are null if it fails.
/// A function whose result is not an error code gives the value after `or` when it has failed.
macro_rules! mpi {
    () => {};
    (
        fn $name:ident $(<$n:ident>)? ($($args:tt)*) on $target:ident $(gives $($given:ident),+)? $body:block
        $($rest:tt)*
    ) => {
        $crate::boundary::typed! {
            $name [$($n)?] mpi! @zip (@call $name [$($n)?] ($target $($($given)+)?) $body) () ($($args)*)
        }
        mpi! { $($rest)* }
    };
    (fn $name:ident($($args:tt)*) or $failed:expr; $body:block $($rest:tt)*) => {
        $crate::boundary::typed! { $name [] mpi! @zip (@value $name ($failed) $body) () ($($args)*) }
        mpi! { $($rest)* }
    };
    // Gives each name its type, one after the other; types without a name are those of ignored parameters.
    (@zip $then:tt ($($known:tt)*) ($arg:ident $(, $($args:tt)*)?) [$type:ty $(, $types:ty)*] $result:tt) => {
        mpi! { @zip $then ($($known)* $arg: $type,) ($($($args)*)?) [$($types),*] $result }
    };
    (@zip ($($then:tt)*) $params:tt () [] ($result:ty)) => { mpi! { $($then)* $params () $result } };
    (@zip ($($then:tt)*) $params:tt (..) [$($ignored:ty),*] ($result:ty)) => {
        mpi! { $($then)* $params ($($ignored),*) $result }
    };
    (@zip (@$then:ident $name:ident $($rest:tt)*) $params:tt $args:tt $types:tt $result:tt) => {
        compile_error!(concat!(stringify!($name), " has other parameters: abi/tables/functions.tsv says which"));
    };
    (@call $name:ident [$($n:ident)?] $ends:tt $body:block $params:tt $ignored:tt $result:ty) => {
        mpi! { @function $name [$($n)?] $ends $body $params $result }
        mpi! { @export $name [""] c_int [$($n)?] $params $ignored $result }
        $(mpi! { @export $name ["_c"] i64 [$n] $params $ignored $result })?
    };
    (
        @function $name:ident [$($n:ident)?] ($target:ident $($given:ident)*) $body:block
        ($($arg:ident: $type:ty,)*) $result:ty
    ) => {
        #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
        #[allow(clippy::extra_unused_type_parameters, reason = "some `_c` twins differ in what they record only")]
        fn $name $(<$n: $crate::ffi::Number>)? ($($arg: $type),*) -> $result {
            // Always inlined: as a function of its own it would have a tenth more instructions of a short message, and the
            // library more code; where the compiler decides, arguments go to the closure that catches panics through memory.
            #[inline(always)]
            fn body $(<$n: $crate::ffi::Number>)? ($($arg: $type),*) -> banyan_runtime::Result<()> $body
            let when = $crate::boundary::when::$name;
            let name = const { $crate::boundary::named(concat!(stringify!($name), "\0")) };
            $crate::boundary::boundary(name, when, $target, move || body $(::<$n>)? ($($arg),*), || {
                $($given.clear();)*
            })
        }
    };
    (@value $name:ident ($failed:expr) $body:block ($($arg:ident: $type:ty,)*) $ignored:tt $result:ty) => {
        fn $name($($arg: $type),*) -> $result {
            $crate::boundary::value(stringify!($name), $failed, || $body)
        }
        mpi! { @export $name [""] c_int [] ($($arg: $type,)*) $ignored $result }
    };
    (
        @export $name:ident [$suffix:literal] $over:ident [$($n:ident)?]
        ($($arg:ident: $type:ty,)*) ($($ignored:ty),*) $result:ty
    ) => {
        const _: () = {
            $(type $n = $over;)?
            // SAFETY (of the name): the table has each name once, and nobody else may define MPI names.
            #[unsafe(export_name = concat!(stringify!($name), $suffix))]
            extern "C-unwind" fn mpi($($arg: $type,)* $(_: $ignored),*) -> $result {
                $name $(::<$n>)? ($($arg),*)
            }
            #[unsafe(export_name = concat!("P", stringify!($name), $suffix))]
            extern "C-unwind" fn pmpi($($arg: $type,)* $(_: $ignored),*) -> $result {
                $name $(::<$n>)? ($($arg),*)
            }
        };
    };
}
pub(crate) use mpi;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let code = boundary(c"MPI_Test", When::Always, Code, || panic!("the table is empty"), || ());
        assert_eq!(code, MPI_ERR_INTERN);
        assert!(sentence(code).unwrap().contains("the table is empty"));
    }

    #[test]
    fn a_lack_of_memory_is_no_fault_of_the_library() {
        let code = boundary(
            c"MPI_Test",
            When::Always,
            Code,
            || {
                banyan_memory::HeapBuffer::zeroed(1 << 50);
                Ok(())
            },
            || (),
        );
        assert_eq!(code, MPI_ERR_NO_MEM);
        assert!(sentence(code).unwrap().contains("1125899906842624 bytes"));
    }

    #[test]
    fn calls_before_init_are_refused_by_name() {
        let failed = run_contained(c"MPI_Send", When::Running, || unreachable!("the body must not run"));
        let code = failed.unwrap_err().code;
        assert_eq!(code, MPI_ERR_OTHER);
        assert_eq!(
            sentence(code).unwrap(),
            "MPI_Send was called before MPI_Init: call MPI_Init or MPI_Init_thread first"
        );
        assert_eq!(sentence(MPI_ERR_RANK), None);
    }

    #[test]
    fn tool_calls_need_the_tool_interface() {
        let code = boundary(c"MPI_T_cvar_get_num", When::Tool, Code, || Ok(()), || ());
        assert_eq!(code, MPI_T_ERR_NOT_INITIALIZED);
    }
}
