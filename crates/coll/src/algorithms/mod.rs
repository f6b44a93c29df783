//! The algorithms, a file per family. Each is a constant [`Algorithm`](crate::Algorithm) and a row in
//! [`ALL`](crate::ALL).

pub(crate) mod allgather;
pub(crate) mod allreduce;
pub(crate) mod alltoall;
pub(crate) mod barrier;
pub(crate) mod bcast;
pub(crate) mod between;
pub(crate) mod cico;
pub(crate) mod gather;
pub(crate) mod group;
pub(crate) mod nodes;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod scratch;
pub(crate) mod sub_buffers;

use crate::Shape;

/// The most messages to or from one rank that are under way at once in algorithms with a message for each rank.
const WINDOW: u32 = 32;

/// Cuts the vector into segments of about `bytes` bytes, at most `most` of them: returns the units of each segment but
/// the last, which may be shorter, and the number of segments (at least 1).
fn segments(shape: &Shape, bytes: u64, most: u64) -> (u64, u32) {
    let size = (bytes / shape.unit.max(1)).max(shape.len.div_ceil(most)).max(1);
    (size, shape.len.div_ceil(size).max(1) as u32)
}
