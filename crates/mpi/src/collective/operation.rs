//! Operations of reductions.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use banyan_datatype as dt;
use banyan_datatype::op::Builtin;
use banyan_memory::Buffer as RawBuffer;
use banyan_runtime::{self as rt, UserMemory, UserOp, check_op};

use crate::datatype::{Buffer, BufferMut, DatatypeRef, DynBuffer, DynBufferMut, Memory};
use crate::error::{Result, expect};
use crate::{instance, simulated};

/// What has an operation of the runtime.
pub trait AsOp {
    #[doc(hidden)]
    fn object(&self) -> rt::Op;
}

/// An operation that combines elements. It is associative.
///
/// ```
/// use mpi::collective::{Operation, SystemOperation, UserOperation};
///
/// fn may_reorder(op: impl Operation) -> bool {
///     op.is_commutative()
/// }
///
/// assert!(may_reorder(SystemOperation::sum()));
/// assert!(!may_reorder(&UserOperation::associative(|_, _| {})));
/// ```
pub trait Operation: AsOp {
    /// Whether the order of the elements does not matter.
    fn is_commutative(&self) -> bool {
        self.object().commutative()
    }
}

impl<T: AsOp> AsOp for &T {
    fn object(&self) -> rt::Op {
        (**self).object()
    }
}

impl<T: Operation> Operation for &T {}

/// An operation that the library has.
///
/// ```
/// use mpi::collective::{SystemOperation, reduce_local_into};
///
/// let of = |op, mut so_far: u8, given: u8| {
///     reduce_local_into(&given, &mut so_far, op);
///     so_far
/// };
/// assert_eq!((of(SystemOperation::max(), 5, 6), of(SystemOperation::min(), 5, 6)), (6, 5));
/// assert_eq!((of(SystemOperation::sum(), 5, 6), of(SystemOperation::product(), 5, 6)), (11, 30));
/// assert_eq!(of(SystemOperation::bitwise_and(), 5, 6), 4);
/// assert_eq!(of(SystemOperation::bitwise_or(), 5, 6), 7);
/// assert_eq!(of(SystemOperation::bitwise_xor(), 5, 6), 3);
/// let of = |op, mut so_far: bool, given: bool| {
///     reduce_local_into(&given, &mut so_far, op);
///     so_far
/// };
/// assert!(!of(SystemOperation::logical_and(), true, false));
/// assert!(of(SystemOperation::logical_or(), true, false));
/// assert!(!of(SystemOperation::logical_xor(), true, true));
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SystemOperation(Builtin);

macro_rules! operations {
    ($($name:ident = $builtin:ident $what:literal;)*) => {
        impl SystemOperation {
            $(
                #[doc = $what]
                pub fn $name() -> SystemOperation {
                    SystemOperation(Builtin::$builtin)
                }
            )*
        }
    };
}

operations! {
    max = Max "The largest.";
    min = Min "The smallest.";
    sum = Sum "The sum.";
    product = Prod "The product.";
    logical_and = Land "Whether all are true.";
    bitwise_and = Band "The bits that are set in all.";
    logical_or = Lor "Whether any is true.";
    bitwise_or = Bor "The bits that are set in any.";
    logical_xor = Lxor "Whether an odd number is true.";
    bitwise_xor = Bxor "The bits that are set in an odd number.";
}

impl AsOp for SystemOperation {
    fn object(&self) -> rt::Op {
        rt::Op::Builtin(self.0)
    }
}

impl Operation for SystemOperation {}

/// An operation that is a function of the program.
///
/// The function gets elements, and those that it is to combine them with, in place: `so_far = given op so_far`.
///
/// ```
/// use mpi::collective::{UserOperation, reduce_local_into};
///
/// // The composition of linear functions, each a pair of factor and summand, depends on their order.
/// let then = UserOperation::associative(|given, mut so_far| {
///     let first = given.downcast::<f64>().unwrap().chunks(2);
///     let last = so_far.reborrow_mut().downcast::<f64>().unwrap().chunks_mut(2);
///     first.zip(last).for_each(|(first, last)| {
///         last[1] += last[0] * first[1];
///         last[0] *= first[0];
///     });
/// });
/// let mut line = [3.0, 1.0];
/// reduce_local_into(&[2.0, 5.0], &mut line, &then);
/// assert_eq!(line, [6.0, 16.0]);
///
/// let larger = |given: mpi::datatype::DynBuffer<'_>, so_far: mpi::datatype::DynBufferMut<'_>| {
///     let (given, so_far) = (given.downcast::<i32>().unwrap(), so_far.downcast::<i32>().unwrap());
///     so_far.iter_mut().zip(given).for_each(|(a, b)| *a = (*a).max(*b));
/// };
/// let mut largest = 3;
/// reduce_local_into(&4, &mut largest, &UserOperation::commutative(larger));
/// reduce_local_into(&5, &mut largest, &UserOperation::new(true, larger));
/// assert_eq!(largest, 5);
/// ```
pub struct UserOperation<'a> {
    commutative: bool,
    function: Box<dyn Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'a>,
}

impl fmt::Debug for UserOperation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOperation").field("commutative", &self.commutative).finish()
    }
}

impl<'a> UserOperation<'a> {
    /// An operation that is associative.
    pub fn associative<F: Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'a>(function: F) -> Self {
        Self::new(false, function)
    }

    /// An operation that is associative and commutative.
    pub fn commutative<F: Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'a>(function: F) -> Self {
        Self::new(true, function)
    }

    /// An operation that is associative; whether it commutes is said.
    pub fn new<F: Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'a>(commute: bool, function: F) -> Self {
        UserOperation { commutative: commute, function: Box::new(function) }
    }
}

/// The address of a function of the program. It has nothing to drop: the runtime may keep it for longer than there is a function.
struct Function(*const (dyn Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'static));

// SAFETY: the function may be called by several threads.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl UserOp for Function {
    fn apply(&self, input: &RawBuffer, inout: &RawBuffer, count: u64, ty: &Arc<dt::Datatype>) {
        // The runtime's memory is not the program's: its addresses are all that there is of it.
        let (given, so_far) = (input.address(0), inout.address(0));
        let datatype = DatatypeRef(ty);
        // SAFETY: so many elements of the type lie at these addresses for the time of the call, and the latter belong to the
        // reduction alone.
        let (given, so_far) = unsafe {
            (
                DynBuffer::of_reduction(given, count, datatype),
                DynBufferMut::of_reduction(so_far, count, datatype),
            )
        };
        // SAFETY: the runtime calls it during a collective only, and the operation is borrowed for that long: by the call, or by
        // the request.
        let combined = catch_unwind(AssertUnwindSafe(|| unsafe { (*self.0)(given, so_far) }));
        if let Err(panic) = combined {
            // The caller's buffers would go while the collective is under way.
            match simulated::here() {
                Some(rank) => rank.end_by(&*panic),
                None => instance::abort("the function of an operation panicked"),
            }
        }
    }
}

impl AsOp for &UserOperation<'_> {
    fn object(&self) -> rt::Op {
        let function: *const (dyn Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + '_) = &*self.function;
        // SAFETY: the lifetime of what a pointer points to says nothing; `Function::apply` argues for each use.
        let function = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + '_),
                *const (dyn Fn(DynBuffer<'_>, DynBufferMut<'_>) + Sync + 'static),
            >(function)
        };
        rt::Op::User { commutative: self.commutative, fun: Arc::new(Function(function)) }
    }
}

impl Operation for &UserOperation<'_> {}

/// Combines two buffers of this process: `inoutbuf = inbuf op inoutbuf`.
///
/// ```
/// use mpi::collective::{SystemOperation, reduce_local_into};
/// let mut bits = 0b0011u8;
/// reduce_local_into(&0b0110u8, &mut bits, SystemOperation::bitwise_or());
/// assert_eq!(bits, 0b0111);
/// ```
///
/// # Panics
/// If the buffers differ in type or length, or the operation is not defined on the type.
#[track_caller]
pub fn reduce_local_into<S, R, O>(inbuf: &S, inoutbuf: &mut R, op: O)
where
    S: Buffer + ?Sized,
    R: BufferMut + ?Sized,
    O: Operation,
{
    // SAFETY: the reduction is over when it returns.
    let (input, inout) = unsafe { (Memory::of(inbuf), Memory::of_mut(inoutbuf)) };
    expect(reduce_local(&input, &inout, &op.object()));
}

fn reduce_local(input: &Memory, inout: &Memory, op: &rt::Op) -> Result<()> {
    let (count, ty) = input.alike(inout)?;
    check_op(op, &ty)?;
    let span = ty.span(count)?;
    let (input, inout) = (input.region(span)?, inout.region(span)?);
    if span.bytes == 0 {
        return Ok(());
    }
    Ok(op.reduce_local(&input, &inout, count, &ty)?)
}
