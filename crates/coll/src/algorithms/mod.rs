//! The algorithms, a file per family. Each algorithm is an [`Algorithm`] in
//! the table `ROWS` of its family.

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
pub(crate) mod single_copy;
pub(crate) mod sub_buffers;

use crate::{Algorithm, Buf, Case, Cost, Kind, Round, Shape, Span};

/// The rows of all families. Those of a kind are in the order in which they are named to users, and tried.
pub(crate) const FAMILIES: &[&[&Algorithm]] = &[
    barrier::ROWS,
    bcast::ROWS,
    gather::ROWS,
    scatter::ROWS,
    allgather::ROWS,
    alltoall::ROWS,
    reduce::ROWS,
    allreduce::ROWS,
    reduce_scatter::ROWS,
    scan::ROWS,
    nodes::ROWS,
    cico::ROWS,
    single_copy::ROWS,
    scratch::pipeline::ROWS,
    scratch::ring::ROWS,
    scratch::split::ROWS,
    scratch::chain::ROWS,
    sub_buffers::ROWS,
];

/// The most messages to or from one rank that are under way at once in algorithms with a message for each rank.
const WINDOW: u32 = 32;

/// Rounds in which each rank has a message for each other one, and one from it.
fn spread_rounds(shape: &Shape) -> u32 {
    (shape.ranks - 1).div_ceil(WINDOW).max(1)
}

/// The partners in such a round, the nearest first: whom this rank sends to, and whom it receives from.
fn others(shape: &Shape, index: u32) -> impl Iterator<Item = (u32, u32)> {
    let first = 1 + index * WINDOW;
    let distances = first..(first + WINDOW).min(shape.ranks);
    distances.map(|distance| (shape.after(shape.rank, distance), shape.before(shape.rank, distance)))
}

/// What these rounds cost, with messages of so many bytes and a copy of this rank's own.
fn spread_cost(case: &Case, bytes: f64) -> Cost {
    let others = case.p() - 1.0;
    let windows = (others / f64::from(WINDOW)).ceil();
    // Crowding: several messages of a window may arrive at one receiver at a time.
    let sent = bytes * others * if windows > 1.0 { 1.25 } else { 1.0 };
    Cost { extra: others - windows, copied: bytes, ..Cost::rounds(windows, sent) }
}

/// Cuts the vector into segments of about `bytes` bytes, at most `most` of them: returns the units of each segment but
/// the last, which may be shorter, and the number of segments (at least 1).
fn segments(shape: &Shape, bytes: u64, most: u64) -> (u64, u32) {
    let size = (bytes / shape.unit.max(1)).max(shape.len.div_ceil(most)).max(1);
    (size, shape.len.div_ceil(size).max(1) as u32)
}

/// Copies what this rank gives to itself, if it is a rank that gives and gets.
fn own(shape: &Shape, round: &mut Round) {
    use Kind::*;
    let &Shape { kind, rank, root, len, .. } = shape;
    if kind.rooted() && rank != root {
        return;
    }
    let from = match kind {
        Scatter | Scatterv | Alltoall | Alltoallv | Alltoallw => shape.sends.block(rank),
        _ => (0, len),
    };
    let into = if let Scatter | Scatterv = kind { (0, len) } else { shape.recvs.block(rank) };
    // If the user's two counts for this rank itself differ, only the shorter length is copied.
    let len = from.1.min(into.1);
    round.copy(Span::new(Buf::Send, (from.0, len)), Span::new(Buf::Recv, (into.0, len)));
}
