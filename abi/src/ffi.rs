//! The types and constants of `mpi.h` as Rust sees them.
#![allow(non_camel_case_types, missing_docs, reason = "names and meaning are those of mpi.h")]

pub use std::ffi::{c_char, c_int, c_void};

/// Address-sized integer; this and the two types below are one machine type on LP64.
pub type MPI_Aint = i64;
pub type MPI_Count = i64;
pub type MPI_Offset = i64;

/// A function pointer as a number: NULL, a constant such as MPI_COMM_DUP_FN, or the address of a function.
pub type Callback = usize;

/// The two integer types that counts and displacements come in.
pub trait Number: Copy + Into<i64> + 'static {
    /// True in the `_c` forms.
    const LARGE: bool;

    /// The value in this type, if it fits.
    fn fit(value: i64) -> Option<Self>;
}

impl Number for c_int {
    const LARGE: bool = false;

    fn fit(value: i64) -> Option<Self> {
        value.try_into().ok()
    }
}

impl Number for i64 {
    const LARGE: bool = true;

    fn fit(value: i64) -> Option<Self> {
        Some(value)
    }
}

/// A type of handles.
pub trait Handle {
    /// The null handle.
    const NULL: Self;
}

macro_rules! handles {
    ($($name:ident $null:ident)*) => {$(
        /// A handle: a pointer in C, of which only the number matters.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl Handle for $name {
            const NULL: Self = $null;
        }

        impl From<i32> for $name {
            fn from(number: i32) -> Self {
                Self(number as isize as usize)
            }
        }

        impl From<$name> for usize {
            fn from(handle: $name) -> usize {
                handle.0
            }
        }
    )*};
}

handles! {
    MPI_Comm MPI_COMM_NULL
    MPI_Datatype MPI_DATATYPE_NULL
    MPI_Errhandler MPI_ERRHANDLER_NULL
    MPI_File MPI_FILE_NULL
    MPI_Group MPI_GROUP_NULL
    MPI_Info MPI_INFO_NULL
    MPI_Message MPI_MESSAGE_NULL
    MPI_Op MPI_OP_NULL
    MPI_Request MPI_REQUEST_NULL
    MPI_Session MPI_SESSION_NULL
    MPI_Win MPI_WIN_NULL
}

/// Status of a message or of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct MPI_Status {
    pub MPI_SOURCE: c_int,
    pub MPI_TAG: c_int,
    pub MPI_ERROR: c_int,
    /// Words 0 and 1: the byte count, low half first; word 2: 1 if cancelled.
    pub MPI_internal: [c_int; 5],
}

pub type MPI_User_function =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_int, *mut MPI_Datatype);
pub type MPI_User_function_c =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut MPI_Count, *mut MPI_Datatype);

pub type MPI_Grequest_query_function = unsafe extern "C-unwind" fn(*mut c_void, *mut MPI_Status) -> c_int;
pub type MPI_Grequest_free_function = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
pub type MPI_Grequest_cancel_function = unsafe extern "C-unwind" fn(*mut c_void, c_int) -> c_int;

/// Copy callback of an attribute; the first argument is a communicator, datatype or window handle.
pub type CopyFunction =
    unsafe extern "C-unwind" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// Delete callback of an attribute.
pub type DeleteFunction = unsafe extern "C-unwind" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

/// Error handler function: pointer to the handle, pointer to the code, then nothing that MPI defines.
pub type ErrhandlerFunction = unsafe extern "C-unwind" fn(*mut usize, *mut c_int, ...);

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
