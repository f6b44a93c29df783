//! The driver's error codes, and what it calls a handle.

use std::ffi::c_int;

/// A context, stream, event, module or function: numbers that programs take for addresses.
pub(crate) type Handle = usize;

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const ALREADY_MAPPED: c_int = 208;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
pub(crate) const NOT_SUPPORTED: c_int = 801;

/// No error of CUDA's: what the call waits for has not happened yet.
pub(crate) const WAIT: c_int = c_int::MIN;
