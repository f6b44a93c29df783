//! MPI objects and their semantics: communicators, groups, requests, progress and waiting.
#![forbid(unsafe_code)]

mod attr;
mod cart;
mod errcode;
mod error;
mod group;
mod info;

pub use attr::{Attributes, CopyFn, CopyRule, DeleteFn, Keyvals, Value};
pub use cart::{Cart, dims_create};
pub use errcode::{ErrorCodes, MAX_ERROR_STRING, error_codes};
pub use error::{Class, Error, Result};
pub use group::{Comparison, Group, PROC_NULL, UNDEFINED};
pub use info::{Env, Info, MAX_INFO_KEY, MAX_INFO_VALUE};
