//! Reduction operations (MPI 5.0, 6.9): predefined ones by their handle, the user's functions by a table.

use crate::boundary::{SelfComm, mpi};
use crate::buffers::count;
use crate::ffi::*;
use crate::instance::INSTANCE;
use crate::pointer::Ptr;
use crate::types;
use banyan_datatype::Datatype;
use banyan_datatype::op::Builtin;
use banyan_memory::Buffer;
use banyan_runtime::{Op, Result, UserMemory, UserOp, bail, check_op};
use std::sync::Arc;

/// A function of the user, of the type that MPI_Op_create or MPI_Op_create_c takes.
#[derive(Clone, Copy)]
enum Function {
    Small(MPI_User_function),
    Large(MPI_User_function_c),
}

/// An operation that the user made.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    function: Function,
    commutative: bool,
}

/// An operation of the user on elements of one datatype; its function gets the handle that the user passed.
struct Bound {
    function: Function,
    datatype: MPI_Datatype,
}

impl UserOp for Bound {
    fn apply(&self, input: &Buffer, inout: &Buffer, count: u64, ty: &Arc<Datatype>) {
        // The user may have freed the handle since the call; the type itself is still there.
        let own = types::is(self.datatype, ty);
        let datatype = if own { Ok(self.datatype) } else { types::handle(ty) };
        let Ok(mut datatype) = datatype else { return };
        let (from, to, step) = (input.address(0), inout.address(0), ty.extent());
        let mut done = 0;
        while done < count {
            done += self.piece(from, to, done as i64 * step, count - done, &mut datatype);
        }
        if !own && !ty.is_predefined() {
            types::forget(datatype);
        }
    }
}

impl Bound {
    /// Calls the function on as many elements as its count can express, and returns how many.
    fn piece(&self, from: usize, to: usize, at: i64, count: u64, datatype: &mut MPI_Datatype) -> u64 {
        let from = from.wrapping_add(at as usize) as *mut c_void;
        let to = to.wrapping_add(at as usize) as *mut c_void;
        match self.function {
            Function::Small(function) => {
                let mut len = count.min(c_int::MAX as u64) as c_int;
                let now = len as u64;
                // SAFETY: the user's function, with elements of the datatype in both buffers.
                unsafe { function(from, to, &raw mut len, datatype) };
                now
            }
            Function::Large(function) => {
                let mut len = count as MPI_Count;
                // SAFETY: as above.
                unsafe { function(from, to, &raw mut len, datatype) };
                count
            }
        }
    }
}

/// The operation of a handle, to be used on elements of `datatype`.
#[inline]
pub(crate) fn lookup(op: MPI_Op, datatype: MPI_Datatype) -> Result<Op> {
    if op.0 >= 0x1000 {
        let Entry { function, commutative } = INSTANCE.handles.ops.lookup(op.0)?;
        return Ok(Op::User { commutative, fun: Arc::new(Bound { function, datatype }) });
    }
    Ok(Op::Builtin(builtin(op)?))
}

#[inline]
fn builtin(op: MPI_Op) -> Result<Builtin> {
    match u16::try_from(op.0).ok().and_then(Builtin::from_code) {
        Some(builtin) => Ok(builtin),
        None if op == MPI_OP_NULL => bail!(ERR_OP, "the operation is MPI_OP_NULL"),
        None => bail!(ERR_OP, "handle {:#x} is not a reduction operation", op.0),
    }
}

fn create(
    function: Callback,
    make: impl FnOnce(Callback) -> Function,
    commute: c_int,
    op: Ptr<MPI_Op>,
) -> Result<()> {
    if function == 0 {
        bail!(ERR_ARG, "the reduction function is NULL");
    }
    let made = Entry { function: make(function), commutative: commute != 0 };
    op.set(MPI_Op(INSTANCE.handles.ops.insert(made)?))
}

mpi! {
    fn MPI_Op_create<N>(user_fn, commute, op) on SelfComm gives op {
        let make = |function| match N::LARGE {
            // SAFETY: by MPI's contract the user passes a function of the type that this form wants.
            false => Function::Small(unsafe { std::mem::transmute::<usize, MPI_User_function>(function) }),
            // SAFETY: as above.
            true => Function::Large(unsafe { std::mem::transmute::<usize, MPI_User_function_c>(function) }),
        };
        create(user_fn, make, commute, op)
    }

    fn MPI_Op_free(op) on SelfComm {
        let old = op.get()?;
        if old.0 < 0x1000 {
            builtin(old)?;
            bail!(ERR_OP, "a predefined operation cannot be freed");
        }
        INSTANCE.handles.ops.remove(old.0)?;
        op.set(MPI_OP_NULL)
    }

    fn MPI_Op_commutative(op, commute) on SelfComm {
        let commutes = match op.0 >= 0x1000 {
            true => INSTANCE.handles.ops.lookup(op.0)?.commutative,
            false => builtin(op)?.is_commutative(),
        };
        commute.set(commutes.into())
    }

    fn MPI_Reduce_local<N>(inbuf, inoutbuf, count, datatype, op) on SelfComm {
        let count = self::count(count)?;
        let ty = types::committed(datatype)?;
        let operation = lookup(op, datatype)?;
        check_op(&operation, &ty)?;
        let span = ty.span(count)?;
        let (input, inout) = (inbuf.region(span)?, inoutbuf.region(span)?);
        if span.bytes == 0 {
            return Ok(());
        }
        if inbuf.address() == inoutbuf.address() && !inbuf.is_null() {
            bail!(ERR_BUFFER, "inbuf and inoutbuf are the same memory, at {:#x}: each needs its own", inbuf.address());
        }
        Ok(operation.reduce_local(&input, &inout, count, &ty)?)
    }
}
