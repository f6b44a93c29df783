//! Forms over the board, memory that the ranks of a node share. Long data go in chunks, through the two halves of
//! the board in turn, so that one half is filled while the other is read.

mod chain;
mod pool;
mod streams;
mod turns;

pub(crate) use self::chain::{EXSCAN, SCAN};
pub(crate) use self::pool::{ALLREDUCE_POOL, REDUCE_POOL, REDUCE_SCATTER_BLOCK_POOL, REDUCE_SCATTER_POOL};
pub(crate) use self::streams::{ALLGATHER, ALLGATHERV, ALLTOALL, BCAST, GATHER, SCATTER};
pub(crate) use self::turns::{ALLREDUCE, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK};
use crate::{Blocks, Buf, Form, Round, Shape, Span, Step};

/// About half the bytes of a board where ranks take turns.
const HALF: u64 = 16 << 20;

/// How many chunks of at most so many bytes there are, with the usual board.
fn chunks_of(bytes: f64, most: u64) -> f64 {
    (bytes / most.min(HALF) as f64).ceil().max(1.0)
}

/// The least bytes of a piece, which a reader copies while the next is written: a copy of less takes longer for what
/// it is, and many small ones do where cores hand lines over slowly.
const PIECE: u64 = 1 << 14;
/// The most pieces of a chunk.
const PIECES: u64 = 8;

/// Into how many pieces so many bytes are cut.
fn pieces_of(bytes: f64) -> f64 {
    (bytes / PIECE as f64).ceil().clamp(1.0, PIECES as f64)
}

/// Units of a piece of an area of so many, and how many there are. Where ranks take turns on a core, each piece would
/// be one more turn.
fn piece(shape: &Shape, area: u64) -> (u64, u32) {
    let least = area.div_ceil(PIECES).max(PIECE / shape.unit.max(1));
    let units = if shape.crowded { area } else { shape.grained(least).clamp(1, area) };
    (units, area.div_ceil(units) as u32)
}

/// Units of a chunk of at most so many bytes.
fn chunk(shape: &Shape, most: u64) -> u64 {
    shape.half().min(most / shape.unit.max(1)).max(1)
}

/// Where the half of the board starts that a chunk goes through.
fn half(shape: &Shape, chunk: u32) -> u64 {
    u64::from(chunk % 2) * shape.half()
}

/// The units of each of `number` areas of a chunk.
fn area(shape: &Shape, most: u64, number: u32) -> u64 {
    shape.grained(chunk(shape, most) / u64::from(number)).max(1)
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

/// Says that what this rank has put onto the board up to a phase is there. The first time it says what the call is about, too.
fn show(phase: u32, round: &mut Round) {
    round.push(match phase {
        0 => Step::Publish { from: Span::new(Buf::Send, (0, 0)), phase, form: Form::Inline },
        _ => Step::Release { phase },
    });
}

/// Waits until a rank has [shown](show) that.
fn seen(rank: u32, phase: u32, round: &mut Round) {
    round.push(if phase == 0 { Step::Await { rank, phase } } else { Step::Drain { rank, phase } });
}

/// What two ranges have in common: start and length.
fn common((a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> (u64, u64) {
    let start = a.max(b);
    (start, (a + a_len).min(b + b_len).saturating_sub(start))
}
