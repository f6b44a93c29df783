//! Operations that are functions as C has them.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::sync::Arc;

use banyan_datatype as dt;
use banyan_memory::Buffer as RawBuffer;
use banyan_runtime::{self as rt, UserOp};

use super::Operation;
use super::operation::AsOp;
use crate::ffi::MPI_Datatype;

/// A function as MPI_Op_create takes it: elements, those that they are combined with in place, how many, their datatype. An example is
/// at [`UnsafeUserOperation`].
pub type UnsafeUserFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut MPI_Datatype);

/// An operation that is a function as C has it.
///
/// ```
/// use std::ffi::{c_int, c_void};
///
/// use mpi::collective::{UnsafeUserFunction, UnsafeUserOperation, reduce_local_into};
/// use mpi::ffi::MPI_Datatype;
///
/// unsafe extern "C" fn add(from: *mut c_void, to: *mut c_void, len: *mut c_int, _: *mut MPI_Datatype) {
///     // SAFETY: so many elements lie at both addresses, and they are of the type that the operation is used with, i32.
///     unsafe {
///         let from = std::slice::from_raw_parts(from.cast::<i32>(), *len as usize);
///         let to = std::slice::from_raw_parts_mut(to.cast::<i32>(), *len as usize);
///         to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
///     }
/// }
///
/// let function: UnsafeUserFunction = add;
/// // SAFETY: the function is used with i32 alone.
/// let sums = unsafe {
///     [UnsafeUserOperation::new(true, function), UnsafeUserOperation::commutative(add), UnsafeUserOperation::associative(add)]
/// };
/// let mut sum = 1;
/// sums.iter().for_each(|op| reduce_local_into(&2, &mut sum, op));
/// assert_eq!(sum, 7);
/// ```
#[derive(Clone, Copy)]
pub struct UnsafeUserOperation {
    commutative: bool,
    function: UnsafeUserFunction,
}

impl fmt::Debug for UnsafeUserOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsafeUserOperation").field("commutative", &self.commutative).finish()
    }
}

impl UnsafeUserOperation {
    /// An operation that is associative.
    ///
    /// # Safety
    /// As for [`UnsafeUserOperation::new`].
    pub unsafe fn associative(function: UnsafeUserFunction) -> Self {
        UnsafeUserOperation { commutative: false, function }
    }

    /// An operation that is associative and commutative.
    ///
    /// # Safety
    /// As for [`UnsafeUserOperation::new`].
    pub unsafe fn commutative(function: UnsafeUserFunction) -> Self {
        UnsafeUserOperation { commutative: true, function }
    }

    /// An operation that is associative; whether it commutes is said.
    ///
    /// # Safety
    /// The function may be called on elements of each datatype that the operation is used with, by any thread.
    pub unsafe fn new(commute: bool, function: UnsafeUserFunction) -> Self {
        UnsafeUserOperation { commutative: commute, function }
    }
}

impl UserOp for UnsafeUserOperation {
    fn apply(&self, input: &RawBuffer, inout: &RawBuffer, count: u64, ty: &Arc<dt::Datatype>) {
        let mut datatype = std::ptr::without_provenance_mut(ty.code().unwrap_or(0).into());
        let mut done = 0;
        while done < count {
            let at = (done as i64 * ty.extent()) as isize;
            let mut len = (count - done).min(c_int::MAX as u64) as c_int;
            done += len as u64;
            let (from, to) = (input.address(at), inout.address(at));
            let (from, to) =
                (std::ptr::with_exposed_provenance_mut(from), std::ptr::with_exposed_provenance_mut(to));
            // SAFETY: the maker has said that the function may be called on such elements, and they are there.
            unsafe { (self.function)(from, to, &raw mut len, &raw mut datatype) };
        }
    }
}

impl AsOp for &UnsafeUserOperation {
    fn object(&self) -> rt::Op {
        rt::Op::User { commutative: self.commutative, fun: Arc::new(**self) }
    }
}

impl Operation for &UnsafeUserOperation {}
