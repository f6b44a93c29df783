//! The algorithms, a file per family. Each is a constant [`Algorithm`](crate::Algorithm) and a row in
//! [`ALL`](crate::ALL).

pub(crate) mod allgather;
pub(crate) mod allreduce;
pub(crate) mod alltoall;
pub(crate) mod barrier;
pub(crate) mod bcast;
pub(crate) mod between;
pub(crate) mod board;
pub(crate) mod gather;
pub(crate) mod group;
pub(crate) mod pockets;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;
pub(crate) mod scan;
pub(crate) mod scatter;
pub(crate) mod shared;

use crate::{Chunks, Shape};

/// Messages to or from one rank that are under way at once in linear algorithms.
const WINDOW: u32 = 32;

fn no_chunks(_: &Shape) -> Chunks {
    Chunks::NONE
}

fn no_temp(_: &Shape) -> u64 {
    0
}

/// Cuts the vector into segments of about `bytes` bytes, at most `most` of them: units of each but the last,
/// and their number (at least 1).
fn segments(shape: &Shape, bytes: u64, most: u64) -> (u64, u32) {
    let size = (bytes / shape.unit.max(1)).max(shape.len.div_ceil(most)).max(1);
    (size, shape.len.div_ceil(size).max(1) as u32)
}
