//! Types of the C ABI that operations written for C name. No function of C is here.
//!
//! ```
//! use mpi::ffi::MPI_Datatype;
//!
//! fn is_float(datatype: MPI_Datatype) -> bool {
//!     datatype.addr() == 0x210
//! }
//! # assert!(!is_float(std::ptr::null_mut()));
//! ```

/// A handle of a datatype. Its value is that of the MPI ABI for a predefined datatype, and 0 for others.
#[expect(non_camel_case_types, reason = "the name is MPI's")]
pub type MPI_Datatype = *mut std::ffi::c_void;
