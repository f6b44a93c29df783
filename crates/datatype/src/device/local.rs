//! A reduction at one rank, whose operands may be memory of devices.

use std::sync::Arc;

use banyan_memory::{Buffer, DeviceFailure, Scratch};

use super::Reduction;
use crate::op::{self, Builtin};
use crate::{Datatype, Error};

/// [`op::reduce`], by a kernel of the device that has `inout`, if it is a device's and there is a kernel for this.
///
/// # Errors
/// As for [`op::reduce`].
///
/// # Panics
/// If the elements are not inside the buffers' bounds.
pub fn reduce(
    op: Builtin,
    ty: &Arc<Datatype>,
    input: &Buffer,
    inout: &Buffer,
    count: u64,
) -> Result<(), Error> {
    let on_device = !inout.kind().is_host_accessible();
    let found = if on_device { Reduction::find(op, ty) } else { None };
    match found.map(|found| by_kernel(&found, input, inout, count)) {
        Some(Ok(())) => Ok(()),
        // On the host, by copies of what a device has.
        Some(Err(_)) | None => op::reduce(op, ty, input, inout, count),
    }
}

fn by_kernel(reduction: &Reduction, input: &Buffer, inout: &Buffer, count: u64) -> Result<(), DeviceFailure> {
    if input.shares_device(inout) {
        return reduction.start([input, inout, inout], count).map(drop);
    }
    let reach = reduction.reach(count);
    let scratch = Scratch::beside(inout, reach)?;
    scratch.memory().copy_from(0, input, 0, reach);
    reduction.start([scratch.memory(), inout, inout], count).map(drop)
}
