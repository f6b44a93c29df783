//! Functions of the ABI that are not built yet: exported, and an error that names them. Where the program's error
//! handler lets errors pass, as that of files does from the start, the first call says so on stderr.

use crate::boundary::{SelfComm, Target, boundary, named, when};
use crate::errhandler::{self, Handler};
use crate::ffi::*;
use crate::pointer::Ptr;
use crate::tables::When;
use banyan_runtime::{Class, Error};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A function that is in the library but only raises MPI_ERR_UNSUPPORTED_OPERATION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the function.
    pub name: &'static str,
    /// What has to be there first, in words.
    pub waits_for: &'static str,
}

/// What all these functions do. It is one function for all of them, as there are hundreds.
#[cold]
#[inline(never)]
fn refuse(name: &'static CStr, when: When, waits_for: &str, target: Target, said: &AtomicBool) -> c_int {
    let error = || Err(not_built(name.to_str().unwrap_or_default(), waits_for, target, said));
    boundary(name, when, target, error, || ())
}

fn not_built(name: &str, waits_for: &str, target: Target, said: &AtomicBool) -> Error {
    let ends = matches!(errhandler::of(target), Handler::Fatal | Handler::Abort);
    if !ends && !said.swap(true, Ordering::Relaxed) {
        let text = format!(
            "{name} is not built yet (it needs {waits_for}): it returns MPI_ERR_UNSUPPORTED_OPERATION, and the \
             error handler lets that pass"
        );
        if !crate::init::notice(&text) {
            let location = crate::env::whereabouts();
            crate::process::say(&format!("banyan: {text} ({location}; said once)\n"));
        }
    }
    let what = format!("{name} is not built yet: it needs {waits_for}");
    Error::new(Class::ERR_UNSUPPORTED_OPERATION, what)
}

macro_rules! not_built {
    ($(fn $name:ident($($arg:ident: $type:ty),*) on $target:ident, waits for $why:literal;)*) => {$(
        const _: () = {
            #[allow(unused_variables, clippy::too_many_arguments, reason = "MPI's parameters")]
            #[inline(never)]
            fn here($($arg: $type),*) -> c_int {
                static SAID: AtomicBool = AtomicBool::new(false);
                let name = const { named(concat!(stringify!($name), "\0")) };
                refuse(name, when::$name, $why, Target::from($target), &SAID)
            }
            #[unsafe(export_name = stringify!($name))]
            #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
            extern "C-unwind" fn mpi($($arg: $type),*) -> c_int {
                here($($arg),*)
            }
            // Not by way of the other one, whose name a tool may take for a function that calls this.
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
            extern "C-unwind" fn pmpi($($arg: $type),*) -> c_int {
                here($($arg),*)
            }
        };
    )*};
}

include!(concat!(env!("OUT_DIR"), "/not_built.rs"));
