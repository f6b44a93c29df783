//! MPI objects and their semantics: communicators, groups, requests, progress and waiting.
#![forbid(unsafe_code)]

mod error;

pub use error::{Class, Error, Result};
