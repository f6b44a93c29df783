//! Fabrics in libraries of their own (plugins), for what takes a system library to build and to start that is not everywhere.
//!
//! Such a library says [`export!`] of its fabric, and so has one symbol, which gives a [`Table`] of C functions: what
//! [`Port`](banyan_transport::Port) and [`Fabric`](banyan_transport::Fabric) say, call by call. The process loads it as a [`Loaded`],
//! a fabric like any other. Both sides hold the table's version against their own, since they may be of different releases.
//!
//! Nothing is allocated on one side and freed on the other, and no panic crosses: one of the fabric ends the process, one of a sink
//! goes on behind the call that led there. The only crate that knows both sides; all of its `unsafe` is the crossing.

mod export;
mod library;
mod loaded;
mod table;

pub use library::{Library, find};
pub use loaded::Loaded;
pub use table::Table;

/// Makes a library's entry point, from the type of its fabric.
#[macro_export]
macro_rules! export {
    ($fabric:ty) => {
        /// The fabric of this library.
        // SAFETY: no other symbol of a process has this name but those of such libraries, which are loaded without making their
        // symbols known to others.
        #[unsafe(no_mangle)]
        pub extern "C" fn banyan_fabric() -> *const $crate::Table {
            static TABLE: $crate::Table = $crate::Table::of::<$fabric>();
            &TABLE
        }
    };
}
