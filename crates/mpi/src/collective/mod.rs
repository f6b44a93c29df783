//! Collectives: communication of all processes of a communicator.
//!
//! Each is there in three forms: `..._into` panics if it fails, `try_..._into` returns the error, `immediate_..._into` starts it.
//!
//! ```
//! use mpi::collective::{SystemOperation, UserOperation};
//! use mpi::traits::*;
//!
//! let universe = mpi::initialize().unwrap();
//! let world = universe.world();
//! let mut squares = vec![0; world.size() as usize];
//! world.all_gather_into(&(world.rank() * world.rank()), &mut squares[..]);
//!
//! let mut largest = 0;
//! world.all_reduce_into(&world.rank(), &mut largest, SystemOperation::max());
//! assert_eq!(largest, world.size() - 1);
//!
//! let longest = UserOperation::commutative(|given, mut so_far| {
//!     let (given, so_far) = (given.downcast::<i32>().unwrap(), so_far.reborrow_mut().downcast::<i32>().unwrap());
//!     so_far.iter_mut().zip(given).for_each(|(a, b)| *a = (*a).max(*b));
//! });
//! let mut again = 0;
//! world.all_reduce_into(&world.rank(), &mut again, &longest);
//! assert_eq!(again, largest);
//! ```

#[macro_use]
mod forms;
mod communicator;
mod operation;
mod root;
mod signed;
mod unsafe_operation;

pub use communicator::CommunicatorCollectives;
pub use operation::{Operation, SystemOperation, UserOperation, reduce_local_into};
pub use root::Root;
pub use unsafe_operation::{UnsafeUserFunction, UnsafeUserOperation};

/// The traits of collectives.
pub mod traits {
    pub use super::{CommunicatorCollectives, Operation, Root};
}
