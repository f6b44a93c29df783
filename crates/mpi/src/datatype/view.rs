//! Views: a buffer's memory with another datatype.

use std::ffi::c_void;

use super::{AsDatatype, Buffer, BufferMut, Collection, Datatype, FixedBuffer, Pointer, PointerMut};
use crate::Count;

/// A buffer's memory, with another datatype and number of elements.
pub struct View<'d, 'b, D, B: ?Sized> {
    datatype: &'d D,
    count: Count,
    buffer: &'b B,
}

/// A buffer's memory, with another datatype and number of elements, to be written.
///
/// ```
/// use mpi::datatype::{MutView, UserDatatype};
/// use mpi::traits::*;
///
/// let universe = mpi::initialize().unwrap();
/// let world = universe.world();
/// // A column of a matrix with two rows.
/// let (mut matrix, column) = ([[0; 3]; 2], UserDatatype::vector(2, 1, 3, &i32::equivalent_datatype()));
/// world.this_process().send(&[7, 8]);
/// // SAFETY: the column lies within the matrix.
/// let mut view = unsafe { MutView::with_count_and_datatype(matrix.as_flattened_mut(), 1, &column) };
/// world.any_process().receive_into(&mut view);
/// assert_eq!(matrix, [[7, 0, 0], [8, 0, 0]]);
/// ```
pub struct MutView<'d, 'b, D, B: ?Sized> {
    datatype: &'d D,
    count: Count,
    buffer: &'b mut B,
}

impl<'d, 'b, D: Datatype, B: Pointer + ?Sized> View<'d, 'b, D, B> {
    /// So many elements of a datatype at the start of the buffer.
    ///
    /// # Safety
    /// They lie within the buffer, and are initialized.
    pub unsafe fn with_count_and_datatype(buffer: &'b B, count: Count, datatype: &'d D) -> Self {
        View { datatype, count, buffer }
    }
}

impl<'d, 'b, D: Datatype, B: PointerMut + ?Sized> MutView<'d, 'b, D, B> {
    /// So many elements of a datatype at the start of the buffer.
    ///
    /// # Safety
    /// They lie within the buffer, and may have any value.
    pub unsafe fn with_count_and_datatype(buffer: &'b mut B, count: Count, datatype: &'d D) -> Self {
        MutView { datatype, count, buffer }
    }
}

macro_rules! views {
    ($($name:ident: $bound:ident)*) => {$(
        // SAFETY: the maker has said so.
        unsafe impl<'d, D: Datatype, B: $bound + ?Sized> AsDatatype for $name<'d, '_, D, B> {
            type Out = &'d D;

            fn as_datatype(&self) -> Self::Out {
                self.datatype
            }
        }

        // SAFETY: the maker has said so.
        unsafe impl<D: Datatype, B: $bound + ?Sized> Collection for $name<'_, '_, D, B> {
            fn count(&self) -> Count {
                self.count
            }
        }
    )*};
}

views! { View: Pointer MutView: PointerMut }

// SAFETY: the buffer is borrowed for as long.
unsafe impl<D: Datatype, B: Pointer + ?Sized> Pointer for View<'_, '_, D, B> {
    fn pointer(&self) -> *const c_void {
        self.buffer.pointer()
    }
}

// SAFETY: the maker has said so.
unsafe impl<D: Datatype, B: Pointer + ?Sized> Buffer for View<'_, '_, D, B> {}

// SAFETY: the buffer is borrowed for as long.
unsafe impl<D: Datatype, B: PointerMut + ?Sized> PointerMut for MutView<'_, '_, D, B> {
    fn pointer_mut(&mut self) -> *mut c_void {
        self.buffer.pointer_mut()
    }
}

// SAFETY: the maker has said so.
unsafe impl<D: Datatype, B: PointerMut + ?Sized> BufferMut for MutView<'_, '_, D, B> {}

// SAFETY: the buffer is borrowed for as long.
unsafe impl<D: Datatype, B: Pointer + PointerMut + ?Sized> Pointer for MutView<'_, '_, D, B> {
    fn pointer(&self) -> *const c_void {
        self.buffer.pointer()
    }
}

// SAFETY: the maker has said so; what may be written can be read, as a buffer's memory is initialized.
unsafe impl<D: Datatype, B: Pointer + PointerMut + ?Sized> Buffer for MutView<'_, '_, D, B> {}

// SAFETY: the memory is that of a fixed buffer, and the rest of the view stays as it is.
unsafe impl<D: Datatype, B: FixedBuffer + ?Sized> FixedBuffer for MutView<'_, '_, D, B> {
    type Data = B::Data;

    fn data(&mut self) -> &mut B::Data {
        self.buffer.data()
    }
}
