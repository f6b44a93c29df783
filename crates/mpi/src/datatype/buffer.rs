//! [`Buffer`]: memory, how many elements lie there, and their datatype.

use std::ffi::c_void;

use super::{Datatype, Equivalence};
use crate::Count;

/// What has a datatype.
///
/// ```
/// use mpi::traits::*;
///
/// fn same<A: AsDatatype>(a: &A, b: &A) -> [A::Out; 2] {
///     [a.as_datatype(), b.as_datatype()]
/// }
/// let _: [mpi::datatype::SystemDatatype; 2] = same(&[1, 2], &[3, 4]);
/// ```
///
/// # Safety
/// The datatype is that of the elements.
pub unsafe trait AsDatatype {
    /// The type of its datatype.
    type Out: Datatype;
    /// Its datatype.
    fn as_datatype(&self) -> Self::Out;
}

/// What has a number of elements.
///
/// ```
/// use mpi::traits::*;
///
/// assert_eq!((7.count(), [1, 2].count(), vec![1u8; 3].elements()), (1, 2, 3));
/// fn is_empty(of: &impl Collection) -> bool {
///     of.elements() == 0
/// }
/// assert!(is_empty(&[0u8; 0]));
/// ```
///
/// # Safety
/// There are as many elements.
pub unsafe trait Collection {
    /// How many elements there are.
    ///
    /// # Panics
    /// If there are more than a [`Count`] can tell.
    fn count(&self) -> Count;

    /// How many elements there are, of which there may be more than a [`Count`] can tell: messages are not limited by that.
    fn elements(&self) -> u64 {
        self.count().max(0) as u64
    }
}

/// A number of these things as a [`Count`].
#[track_caller]
pub(crate) fn counted(number: u64, things: &str) -> Count {
    match Count::try_from(number) {
        Ok(count) => count,
        Err(_) => raise!(
            ERR_COUNT,
            "{number} {things} are more than a Count can tell, which ends at {}",
            Count::MAX
        ),
    }
}

/// What has an address.
///
/// ```
/// use mpi::traits::*;
///
/// fn starts_at(of: &impl Pointer, address: *const i32) -> bool {
///     of.pointer() == address.cast()
/// }
///
/// let numbers = [1, 2];
/// assert!(starts_at(&numbers, &numbers[0]));
/// ```
///
/// # Safety
/// The elements lie there, and stay there while the value is borrowed.
pub unsafe trait Pointer {
    /// The address of the first element.
    fn pointer(&self) -> *const c_void;
}

/// What has an address to write to.
///
/// ```
/// use mpi::traits::*;
///
/// fn address(of: &mut impl PointerMut) -> *mut i32 {
///     of.pointer_mut().cast()
/// }
///
/// let mut number = 1;
/// // SAFETY: a number lies there.
/// unsafe { *address(&mut number) = 2 };
/// assert_eq!(number, 2);
/// ```
///
/// # Safety
/// The elements lie there, may be written, and stay there while the value is borrowed.
pub unsafe trait PointerMut {
    /// The address of the first element.
    fn pointer_mut(&mut self) -> *mut c_void;
}

/// Memory that can be sent.
///
/// ```
/// use mpi::traits::*;
///
/// fn to_all(root: &impl Root, given: &(impl Buffer + BufferMut + Clone)) {
///     root.broadcast_into(&mut given.clone());
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// to_all(&world.process_at_rank(0), &[1.5, 2.5]);
/// to_all(&world.process_at_rank(0), &true);
/// ```
///
/// # Safety
/// The elements may be read while the value is borrowed.
pub unsafe trait Buffer: Pointer + Collection + AsDatatype {}

/// Memory that can be received into.
///
/// ```
/// use mpi::traits::*;
///
/// fn next_into(from: &impl Source, into: &mut (impl BufferMut + ?Sized)) -> mpi::Tag {
///     from.receive_into(into).tag()
/// }
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// world.this_process().send_with_tag(&7u16, 4);
/// let mut got = 0u16;
/// assert_eq!((next_into(&world.any_process(), &mut got), got), (4, 7));
/// ```
///
/// # Safety
/// The elements may be written while the value is borrowed mutably.
pub unsafe trait BufferMut: PointerMut + Collection + AsDatatype {}

/// Memory that stays where it is while its elements are changed: a value, an array or a slice (a vector may move its elements), and what is
/// laid over such. [`crate::request::PersistentRequest`] lends it between two starts.
///
/// ```
/// use mpi::datatype::FixedBuffer;
///
/// fn clear<B: FixedBuffer<Data = [u8; 2]>>(buffer: &mut B) {
///     *buffer.data() = [0; 2];
/// }
///
/// let mut pair = [1, 2];
/// clear(&mut pair);
/// assert_eq!(pair, [0, 0]);
/// ```
///
/// # Safety
/// Whatever is done with `data`, the address, number and datatype of the elements stay the same.
pub unsafe trait FixedBuffer {
    /// What the elements are changed by.
    type Data: ?Sized;
    /// The elements, to be changed.
    fn data(&mut self) -> &mut Self::Data;
}

macro_rules! fixed {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        // SAFETY: the elements lie within what the reference refers to.
        unsafe impl<$($generics)*> FixedBuffer for $type {
            type Data = Self;

            fn data(&mut self) -> &mut Self {
                self
            }
        }
    )*};
}

fixed! {
    [T: Equivalence] T;
    [T: Equivalence] [T];
    [T: Equivalence, const N: usize] [T; N];
}

macro_rules! buffers {
    ($([$($generics:tt)*] $type:ty, |$of:ident| $start:expr, $start_mut:expr, $len:expr;)*) => {$(
        // SAFETY: the datatype is that of T.
        unsafe impl<$($generics)*> AsDatatype for $type {
            type Out = T::Out;

            #[inline]
            fn as_datatype(&self) -> Self::Out {
                T::equivalent_datatype()
            }
        }

        // SAFETY: the number is that of the elements.
        unsafe impl<$($generics)*> Collection for $type {
            fn count(&self) -> Count {
                counted(self.elements(), "elements")
            }

            #[inline]
            fn elements(&self) -> u64 {
                let $of = self;
                let len: usize = $len;
                len as u64
            }
        }

        // SAFETY: the elements lie where the value says.
        unsafe impl<$($generics)*> Pointer for $type {
            #[inline]
            fn pointer(&self) -> *const c_void {
                let $of = self;
                $start.cast()
            }
        }

        // SAFETY: as above, and the value is borrowed mutably.
        unsafe impl<$($generics)*> PointerMut for $type {
            #[inline]
            fn pointer_mut(&mut self) -> *mut c_void {
                let $of = self;
                $start_mut.cast()
            }
        }

        // SAFETY: elements of an equivalent type are initialized.
        unsafe impl<$($generics)*> Buffer for $type {}
        // SAFETY: any elements that a message brings are values of an equivalent type.
        unsafe impl<$($generics)*> BufferMut for $type {}
    )*};
}

buffers! {
    [T: Equivalence] T, |one| std::ptr::from_ref(one), std::ptr::from_mut(one), { let _ = one; 1 };
    [T: Equivalence] [T], |several| several.as_ptr(), several.as_mut_ptr(), several.len();
    [T: Equivalence] Vec<T>, |several| several.as_ptr(), several.as_mut_ptr(), several.len();
    [T: Equivalence, const N: usize] [T; N], |several| several.as_ptr(), several.as_mut_ptr(), several.len();
}
