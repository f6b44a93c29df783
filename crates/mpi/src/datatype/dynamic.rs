//! Buffers whose elements have a type that is found out while the program runs.

use std::ffi::c_void;
use std::sync::Arc;

use super::{
    AsDatatype, AsObject, Buffer, BufferMut, Collection, DatatypeRef, Equivalence, Pointer, PointerMut,
    counted,
};
use crate::Count;

/// Elements of a type that [`DynBuffer::downcast`] finds out.
///
/// ```
/// use mpi::datatype::DynBuffer;
/// use mpi::traits::*;
///
/// let numbers = [1.0f64, 2.0];
/// let buffer = DynBuffer::new(&numbers);
/// assert_eq!(buffer.downcast::<i32>(), None);
/// assert_eq!(buffer.downcast::<f64>(), Some(&numbers[..]));
/// assert!(buffer.is::<f64>() && !buffer.is_empty() && buffer.len() == 2);
///
/// // SAFETY: two numbers lie there.
/// let same = unsafe { DynBuffer::from_raw(numbers.as_ptr(), 2, f64::equivalent_datatype()) };
/// assert_eq!(same.as_ptr(), buffer.as_ptr());
/// ```
#[derive(Copy, Clone, Debug)]
pub struct DynBuffer<'a> {
    start: *const c_void,
    len: u64,
    datatype: DatatypeRef<'a>,
}

/// Elements of a type that [`DynBufferMut::downcast`] finds out, which may be written.
///
/// ```
/// use mpi::datatype::{DynBuffer, DynBufferMut};
/// use mpi::traits::*;
///
/// /// Doubles numbers of two types.
/// fn double(mut buffer: DynBufferMut<'_>) {
///     if let Some(numbers) = buffer.reborrow_mut().downcast::<i32>() {
///         numbers.iter_mut().for_each(|number| *number *= 2);
///     } else if buffer.is::<f64>() {
///         buffer.downcast::<f64>().unwrap().iter_mut().for_each(|number| *number *= 2.0);
///     }
/// }
///
/// let (mut whole, mut broken) = ([1, 2], [1.5]);
/// double(DynBufferMut::new(&mut whole));
/// double(DynBufferMut::new(&mut broken));
/// assert_eq!((whole, broken), ([2, 4], [3.0]));
///
/// // SAFETY: two numbers lie there.
/// let mut buffer = unsafe { DynBufferMut::from_raw(whole.as_mut_ptr(), 2, i32::equivalent_datatype()) };
/// assert!(!buffer.is_empty() && buffer.len() == 2);
/// assert_eq!(buffer.as_mut_ptr().cast_const(), buffer.as_ptr());
/// assert_eq!(buffer.reborrow().downcast::<i32>(), Some(&[2, 4][..]));
/// let to_be_read: DynBuffer<'_> = buffer.downgrade();
/// assert_eq!(to_be_read.len(), 2);
/// ```
#[derive(Debug)]
pub struct DynBufferMut<'a> {
    start: *mut c_void,
    len: u64,
    datatype: DatatypeRef<'a>,
}

// SAFETY: it stands for a shared slice of elements that messages are made of, which have no cells.
unsafe impl Send for DynBuffer<'_> {}
// SAFETY: as above.
unsafe impl Sync for DynBuffer<'_> {}
// SAFETY: it stands for a mutable slice of such elements.
unsafe impl Send for DynBufferMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for DynBufferMut<'_> {}

/// Whether elements of this datatype, at this place, are elements of the type.
fn are<T: Equivalence>(start: *const c_void, datatype: DatatypeRef<'_>) -> bool {
    Arc::ptr_eq(datatype.0, T::equivalent_datatype().object()) && start.cast::<T>().is_aligned()
}

macro_rules! dynamic {
    ($name:ident, $pointer:ty) => {
        // SAFETY: the maker has said so.
        unsafe impl Collection for $name<'_> {
            fn count(&self) -> Count {
                counted(self.len, "elements")
            }

            fn elements(&self) -> u64 {
                self.len
            }
        }

        // SAFETY: the maker has said so.
        unsafe impl Pointer for $name<'_> {
            fn pointer(&self) -> *const c_void {
                self.start
            }
        }

        // SAFETY: the maker has said so.
        unsafe impl<'a> AsDatatype for $name<'a> {
            type Out = DatatypeRef<'a>;

            fn as_datatype(&self) -> Self::Out {
                self.datatype
            }
        }

        // SAFETY: the maker has said so.
        unsafe impl Buffer for $name<'_> {}

        impl<'a> $name<'a> {
            /// Whether the elements are of this type.
            pub fn is<T: Equivalence>(&self) -> bool {
                are::<T>(self.start, self.datatype)
            }

            /// So many elements of a datatype at an address.
            ///
            /// # Safety
            /// They are there for `'a`, and not null. If they may be written, nothing else refers to them.
            pub unsafe fn from_raw<T>(start: $pointer, len: Count, datatype: DatatypeRef<'a>) -> Self {
                Self { start: start.cast(), len: len.max(0) as u64, datatype }
            }

            /// How many elements there are.
            pub fn len(&self) -> usize {
                self.len as usize
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// The address of the first one.
            pub fn as_ptr(&self) -> *const c_void {
                self.start
            }
        }
    };
}

dynamic!(DynBuffer, *const T);
dynamic!(DynBufferMut, *mut T);

impl<'a> DynBuffer<'a> {
    /// The elements of a slice.
    pub fn new<T: Equivalence<Out = DatatypeRef<'static>>>(buf: &'a [T]) -> Self {
        Self { start: buf.as_ptr().cast(), len: buf.len() as u64, datatype: T::equivalent_datatype() }
    }

    /// Elements that a reduction combines.
    ///
    /// # Safety
    /// As for [`DynBuffer::from_raw`].
    pub(crate) unsafe fn of_reduction(start: usize, len: u64, datatype: DatatypeRef<'a>) -> Self {
        Self { start: std::ptr::with_exposed_provenance(start), len, datatype }
    }

    /// The elements as a slice, if they are of this type.
    pub fn downcast<T: Equivalence>(self) -> Option<&'a [T]> {
        if !self.is::<T>() {
            return None;
        }
        // SAFETY: the elements are of this type, aligned, and there for 'a.
        Some(unsafe { std::slice::from_raw_parts(self.start.cast(), self.len()) })
    }
}

impl<'a> DynBufferMut<'a> {
    /// The elements of a slice.
    pub fn new<T: Equivalence<Out = DatatypeRef<'static>>>(buf: &'a mut [T]) -> Self {
        Self { start: buf.as_mut_ptr().cast(), len: buf.len() as u64, datatype: T::equivalent_datatype() }
    }

    /// Elements that a reduction combines.
    ///
    /// # Safety
    /// As for [`DynBufferMut::from_raw`].
    pub(crate) unsafe fn of_reduction(start: usize, len: u64, datatype: DatatypeRef<'a>) -> Self {
        Self { start: std::ptr::with_exposed_provenance_mut(start), len, datatype }
    }

    /// The elements as a slice, if they are of this type.
    pub fn downcast<T: Equivalence>(self) -> Option<&'a mut [T]> {
        if !self.is::<T>() {
            return None;
        }
        // SAFETY: the elements are of this type, aligned, there for 'a, and nothing else refers to them.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.len()) })
    }

    /// The address of the first one.
    pub fn as_mut_ptr(&mut self) -> *mut c_void {
        self.start
    }

    /// The elements, for a while.
    pub fn reborrow(&self) -> DynBuffer<'_> {
        DynBuffer { start: self.start, len: self.len, datatype: self.datatype }
    }

    /// The elements, for a while.
    pub fn reborrow_mut(&mut self) -> DynBufferMut<'_> {
        DynBufferMut { ..*self }
    }

    /// The elements, to be read.
    pub fn downgrade(self) -> DynBuffer<'a> {
        DynBuffer { start: self.start, len: self.len, datatype: self.datatype }
    }
}

// SAFETY: the maker has said so.
unsafe impl PointerMut for DynBufferMut<'_> {
    fn pointer_mut(&mut self) -> *mut c_void {
        self.start
    }
}

// SAFETY: the maker has said so.
unsafe impl BufferMut for DynBufferMut<'_> {}
