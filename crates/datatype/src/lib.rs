//! MPI datatypes: typemaps, resumable pack and unpack, external32, and reductions.
//!
//! A [`Datatype`] says which bytes, relative to an address, belong to a message and in which order
//! (MPI 5.0, chapter 5). [`Data`] is a number of them in memory; a [`Cursor`] moves its bytes to or
//! from packed fragments and can be put anywhere. [`op`] combines elements (MPI 5.0, 6.9.2), and [`device`] has what devices do so
//! with.

mod array;
pub mod basic;
mod bounds;
mod carried;
mod construct;
mod data;
mod datatype;
pub mod device;
mod draft;
mod envelope;
mod error;
pub mod external32;
pub mod fortran;
mod kinds;
mod layout;
pub mod op;
mod signature;
mod walk;

pub use array::{DEFAULT_BLOCK, Distribution, Order};
pub use carried::TypeArc;
pub use data::{Cursor, Data};
pub use datatype::{Datatype, Span};
pub use envelope::{Combiner, Envelope};
pub use error::Error;
