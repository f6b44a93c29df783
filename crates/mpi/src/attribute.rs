//! Values that programs attach to communicators.
//!
//! ```
//! use mpi::traits::*;
//!
//! /// How often something was done on a communicator.
//! #[derive(Clone)]
//! struct Calls(std::sync::Arc<std::sync::atomic::AtomicU32>);
//! impl CommAttribute for Calls {}
//!
//! let universe = mpi::initialize().unwrap();
//! let mut world = universe.world();
//! world.set_attr(Calls(Default::default()));
//! assert!(world.get_attr::<Calls>().is_some() && world.duplicate().get_attr::<Calls>().is_none());
//! ```

use std::any::{Any, TypeId};
use std::sync::Mutex;

/// The trait of attributes.
pub mod traits {
    pub use super::CommAttribute;
}

/// A type whose values can be attached to a communicator: one of each type.
///
/// ```
/// use mpi::traits::*;
///
/// #[derive(Clone, PartialEq, Debug)]
/// struct Depth(u32);
/// impl CommAttribute for Depth {
///     const CLONE_ON_DUP: bool = true;
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let mut world = universe.world();
/// world.set_attr(Depth(3));
/// assert_eq!(world.duplicate().get_attr(), Some(&Depth(3)));
/// ```
pub trait CommAttribute: 'static + Sized + Clone + Send + Sync {
    /// A duplicate of the communicator gets a clone of the value.
    const CLONE_ON_DUP: bool = false;
}

/// A value, and what a duplicate of its communicator gets.
struct Entry {
    kind: TypeId,
    value: Box<dyn Any + Send + Sync>,
    copied: fn(&(dyn Any + Send + Sync)) -> Option<Box<dyn Any + Send + Sync>>,
}

fn copied<A: CommAttribute>(value: &(dyn Any + Send + Sync)) -> Option<Box<dyn Any + Send + Sync>> {
    let value = value.downcast_ref::<A>().filter(|_| A::CLONE_ON_DUP)?;
    Some(Box::new(value.clone()))
}

/// The values that are attached to a communicator. A value that another one replaces stays until the communicator goes, as there
/// may be references to it.
#[derive(Default)]
pub(crate) struct Attributes(Mutex<Vec<Entry>>);

impl Attributes {
    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub(crate) fn set<A: CommAttribute>(&self, value: A) {
        let (kind, value) = (TypeId::of::<A>(), Box::new(value));
        self.entries().push(Entry { kind, value, copied: copied::<A> });
    }

    pub(crate) fn get<A: CommAttribute>(&self) -> Option<&A> {
        let entries = self.entries();
        let value =
            entries.iter().rev().find(|entry| entry.kind == TypeId::of::<A>())?.value.downcast_ref::<A>()?;
        let value: *const A = value;
        // SAFETY: the value is in a box of its own, which stays where it is until this object goes, and is not written.
        Some(unsafe { &*value })
    }

    /// What a duplicate of the communicator gets.
    pub(crate) fn copies(&self) -> Attributes {
        let mut copies: Vec<Entry> = vec![];
        for Entry { kind, value, copied } in self.entries().iter().rev() {
            if copies.iter().all(|copy| copy.kind != *kind)
                && let Some(value) = copied(&**value)
            {
                copies.push(Entry { kind: *kind, value, copied: *copied });
            }
        }
        Attributes(Mutex::new(copies))
    }
}
