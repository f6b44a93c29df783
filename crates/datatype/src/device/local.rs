//! A reduction at one rank, whose operands may be memory of devices.

use std::sync::Arc;

use banyan_memory::{Buffer, DeviceFailure, HeapBuffer, Scratch};

use super::Reduction;
use crate::op::{self, Builtin};
use crate::{Data, Datatype, Error};

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
    match Reduction::find(op, ty).filter(|_| on_device).map(|found| by_kernel(&found, input, inout, count)) {
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

/// Does something to elements on the host: to copies of those that a device has. What it leaves in the second one goes back there.
pub fn on_host(
    ty: &Arc<Datatype>,
    input: &Buffer,
    inout: &Buffer,
    count: u64,
    work: impl FnOnce(&Buffer, &Buffer),
) {
    let data = |memory: &Buffer| Data::typed(memory.clone(), count, ty);
    let here = |memory: &Buffer| match memory.kind().is_host_accessible() {
        true => memory.clone(),
        false => {
            let (lo, hi) = ty.span(count).map_or((0, 0), |span| (span.lo as isize, span.hi as isize));
            let copy = HeapBuffer::zeroed((hi - lo) as usize).rebased(-lo);
            data(&copy).copy_from(&data(memory));
            copy
        }
    };
    let (input, result) = (here(input), here(inout));
    work(&input, &result);
    if !inout.kind().is_host_accessible() {
        data(inout).copy_from(&data(&result));
    }
}
