//! Functions of the ABI that are not built yet: exported, and an error that names them.

use crate::boundary::{SelfComm, boundary, when};
use crate::ffi::*;
use crate::pointer::Ptr;
use banyan_runtime::{Class, Error};

/// A function that is in the library but only raises MPI_ERR_UNSUPPORTED_OPERATION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Name of the function.
    pub name: &'static str,
    /// What has to be there first, in words.
    pub waits_for: &'static str,
}

fn not_built(name: &str, waits_for: &str) -> Error {
    let what = format!("{name} is not built yet: it needs {waits_for}");
    Error::new(Class::ERR_UNSUPPORTED_OPERATION, what)
}

macro_rules! not_built {
    ($(fn $name:ident($($arg:ident: $type:ty),*) on $target:ident, waits for $why:literal;)*) => {$(
        const _: () = {
            #[unsafe(export_name = stringify!($name))]
            #[allow(unused_variables, clippy::too_many_arguments, reason = "MPI's parameters")]
            extern "C-unwind" fn mpi($($arg: $type),*) -> c_int {
                let name = stringify!($name);
                boundary(name, when::$name, $target, || Err(not_built(name, $why)))
            }
            #[unsafe(export_name = concat!("P", stringify!($name)))]
            #[allow(clippy::too_many_arguments, reason = "MPI's parameters")]
            extern "C-unwind" fn pmpi($($arg: $type),*) -> c_int {
                mpi($($arg),*)
            }
        };
    )*};
}

include!(concat!(env!("OUT_DIR"), "/not_built.rs"));
