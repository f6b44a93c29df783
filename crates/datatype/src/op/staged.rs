//! Operands that the processor may not touch.

use std::sync::Arc;

use banyan_memory::{Buffer, HeapBuffer};

use crate::{Data, Datatype};

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
