//! Forms over the board, memory that the ranks of a node share. Long data go in chunks, through the two halves of
//! the board in turn, so that one half is filled while the other is read.

mod pool;
mod streams;
mod turns;

pub(crate) use self::pool::{ALLREDUCE_POOL, REDUCE_POOL, REDUCE_SCATTER_BLOCK_POOL, REDUCE_SCATTER_POOL};
pub(crate) use self::streams::{ALLGATHER, ALLGATHERV, ALLTOALL, BCAST, GATHER, SCATTER};
pub(crate) use self::turns::{ALLREDUCE, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK};
use crate::{Blocks, Shape};

/// About half the bytes of a board.
const HALF: u64 = 2 << 20;

/// How many chunks of at most so many bytes there are, with the usual board.
fn chunks_of(bytes: f64, most: u64) -> f64 {
    (bytes / most.min(HALF) as f64).ceil().max(1.0)
}

/// Units of a chunk of at most so many bytes.
fn chunk(shape: &Shape, most: u64) -> u64 {
    (shape.board / 2).min(most / shape.unit.max(1)).max(1)
}

/// Where the half of the board starts that a chunk goes through.
fn half(shape: &Shape, chunk: u32) -> u64 {
    u64::from(chunk % 2) * (shape.board / 2)
}

/// The units of each of `number` areas of a chunk.
fn area(shape: &Shape, most: u64, number: u32) -> u64 {
    let units = chunk(shape, most) / u64::from(number);
    // Areas begin with cache lines.
    let line = (64 / shape.unit.max(1)).max(1);
    if units < line { units.max(1) } else { units - units % line }
}

/// Part `index` of `len` units cut into `number`: where it starts.
fn cut(index: u32, number: u32, len: u64) -> u64 {
    (u128::from(len) * u128::from(index) / u128::from(number)) as u64
}

fn longest(blocks: &Blocks, ranks: u32) -> u64 {
    match blocks {
        Blocks::Even(len) => *len,
        Blocks::Starts(_) => (0..ranks).map(|rank| blocks.block(rank).1).max().unwrap_or(0),
    }
}

/// What two ranges have in common: start and length.
fn common((a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> (u64, u64) {
    let start = a.max(b);
    (start, (a + a_len).min(b + b_len).saturating_sub(start))
}
