//! MPI for Rust: safe, straight over the runtime of Banyan MPI, with no C in between.
//!
//! Names and signatures are those of the `mpi` crate 0.8, so that programs written for it build with this one. What differs is in
//! the chapter "Rust" of the guide.
//!
//! ```
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let world = universe.world();
//! let mut sum = 0;
//! world.all_reduce_into(&(world.rank() + 1), &mut sum, mpi::collective::SystemOperation::sum());
//! assert_eq!(sum, world.size() * (world.size() + 1) / 2);
//! ```
//!
//! # Errors
//!
//! A call that fails panics, with the error's sentence as its message. A [`environment::Universe`] that a panic drops ends
//! the job, so that no other rank waits for this one. The forms `try_...` return the [`Error`] instead, and [`attempt`] returns that of any
//! call in a function.

#[macro_use]
mod error;

pub mod attribute;
pub mod collective;
pub mod datatype;
#[doc(hidden)]
pub mod entry;
pub mod environment;
pub mod ffi;
mod instance;
pub mod point_to_point;
pub mod request;
#[cfg_attr(not(feature = "simulated"), path = "not_simulated.rs")]
mod simulated;
#[cfg(feature = "test")]
mod test_job;
pub mod topology;
#[cfg(feature = "serde")]
pub mod value;

pub use environment::{Threading, initialize, initialize_with_threading, time, time_resolution};
pub use error::{Error, ErrorClass, Result, attempt};
/// ```
/// use mpi::topology::SimpleCommunicator;
/// use mpi::traits::*;
///
/// #[mpi::main]
/// fn main(world: SimpleCommunicator) -> Result<(), std::num::ParseIntError> {
///     let number: i32 = "1".parse()?;
///     assert_eq!(world.size(), number);
///     Ok(())
/// }
/// ```
///
/// ```should_panic
/// #[mpi::main]
/// fn main() -> Result<(), String> {
///     Err("what went wrong".to_owned())
/// }
/// ```
#[cfg(feature = "derive")]
pub use mpi_derive::main;
/// ```
/// # mod tests {
/// use mpi::topology::SimpleCommunicator;
/// use mpi::traits::*;
///
/// #[mpi::test(ranks = [1, 4], timeout = 10)]
/// fn everybody_is_counted(world: SimpleCommunicator) {
///     let mut count = 0;
///     world.all_reduce_into(&1, &mut count, mpi::collective::SystemOperation::sum());
///     assert_eq!(count, world.size());
/// }
/// # }
/// ```
#[cfg(feature = "test")]
pub use mpi_derive::test;
pub use topology::Rank;

/// How many elements a message has.
///
/// ```
/// use mpi::datatype::Collection;
///
/// let three: mpi::Count = [1, 2, 3].count();
/// assert_eq!(three, 3);
/// ```
pub type Count = i32;
/// What a message is marked with, so that its receiver can tell it from others.
///
/// ```
/// use mpi::traits::*;
///
/// const QUESTION: mpi::Tag = 1;
/// const ANSWER: mpi::Tag = 2;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// world.this_process().send_with_tag(&0, QUESTION);
/// world.this_process().send_with_tag(&42, ANSWER);
/// assert_eq!(world.any_process().receive_with_tag::<i32>(ANSWER).0, 42);
/// # world.any_process().receive::<i32>();
/// ```
pub type Tag = i32;
/// An address in memory, or the distance between two.
///
/// ```
/// let byte = 7u8;
/// let place: mpi::Address = mpi::datatype::address_of(&byte);
/// assert_ne!(place, 0);
/// ```
pub type Address = isize;

/// All traits, and the macro that derives [`datatype::Equivalence`].
///
/// ```
/// use mpi::traits::*;
///
/// #[derive(Equivalence, Default, PartialEq, Debug)]
/// struct Particle {
///     position: [f64; 3],
///     spin: (bool, u8),
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// let mut particle = Particle::default();
/// world.process_at_rank(0).broadcast_into(&mut particle);
/// assert_eq!(world.pack(&particle).len(), 26, "padding is not sent");
/// ```
pub mod traits {
    #[cfg(feature = "derive")]
    pub use mpi_derive::Equivalence;

    pub use crate::attribute::traits::*;
    pub use crate::collective::traits::*;
    pub use crate::datatype::traits::*;
    pub use crate::point_to_point::traits::*;
    pub use crate::topology::traits::*;
    #[cfg(feature = "serde")]
    pub use crate::value::traits::*;
}
