//! Types of the C ABI that operations written for C name. No function of C is here.

/// A handle of a datatype. Its value is that of the MPI ABI for a predefined datatype, and 0 for others.
#[expect(non_camel_case_types, reason = "the name is MPI's")]
pub type MPI_Datatype = *mut std::ffi::c_void;
