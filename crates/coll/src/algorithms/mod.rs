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

use crate::segments::{self, Products};
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

/// The most segments of a vector that a chain passes on.
const MOST_SEGMENTS: u32 = 4096;

/// Segments of a vector of so many bytes that go through so many messages, one after the other.
fn segments_of(bytes: u64, products: &Products, stages: u32) -> u32 {
    segments::number(bytes, products.message, stages, MOST_SEGMENTS)
}

/// The same as a schedule has it: the units of each segment but the last, which may be shorter, and their number.
fn segments(shape: &Shape, stages: u32) -> (u64, u32) {
    let bytes = shape.len.saturating_mul(shape.unit);
    let size = shape.len.div_ceil(segments_of(bytes, &shape.products, stages).into()).max(1);
    (size, shape.len.div_ceil(size).max(1) as u32)
}

/// What that costs: rounds, and the bytes of all of them. A segment that no other one follows only goes through so many `hops`.
fn pipelined(case: &Case, stages: u32, hops: u32) -> (f64, f64) {
    let segments = f64::from(segments_of(case.bytes as u64, &case.products, stages));
    let through = if segments > 1.0 { stages } else { hops };
    let rounds = segments + f64::from(through.saturating_sub(1));
    (rounds, rounds * case.bytes / segments)
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
