//! Algorithms over the shared scratch, memory that all ranks of a node may read and write. Long data go in chunks,
//! through the two halves of the shared scratch alternately, so that one half is filled while the other is read.

pub(crate) mod chain;
pub(crate) mod pipeline;
pub(crate) mod ring;
pub(crate) mod split;

use crate::segments::{self, Products};
use crate::{Blocks, Buf, Form, Round, Shape, Span, Step};

/// About half the bytes of the shared scratch where ranks share cores, for costs.
const HALF: u64 = 16 << 20;

/// Into how many chunks of at most `most` bytes so many bytes are cut, with a shared scratch of the usual size.
fn chunks_of(bytes: f64, most: u64) -> f64 {
    (bytes / most.min(HALF) as f64).ceil().max(1.0)
}

/// The most pieces of a chunk: each has steps of its own in a plan.
const PIECES: u32 = 16;

/// Into how many pieces an area of so many bytes is cut that so many ranks copy in or out one after the other: one copies a piece while
/// the one before writes the next.
fn pieces_of(bytes: u64, products: &Products, ranks: u32) -> u32 {
    segments::number(bytes, products.scratch, ranks, PIECES)
}

/// Units of a piece of an area of `area` units, and the number of pieces. One piece where ranks share cores: there each
/// piece would cost one more turn on the core.
fn piece(shape: &Shape, area: u64, ranks: u32) -> (u64, u32) {
    let number = pieces_of(area.saturating_mul(shape.unit), &shape.products, ranks);
    let units =
        if shape.crowded { area } else { shape.round_up(area.div_ceil(number.into())).clamp(1, area) };
    (units, area.div_ceil(units) as u32)
}

/// Units of a chunk of at most `most` bytes.
fn chunk(shape: &Shape, most: u64) -> u64 {
    shape.half().min(most / shape.unit.max(1)).max(1)
}

/// The first unit of the half of the shared scratch that a chunk goes through.
fn half(shape: &Shape, chunk: u32) -> u64 {
    u64::from(chunk % 2) * shape.half()
}

/// Units of each of the `number` areas of a chunk of at most `most` bytes.
fn area(shape: &Shape, most: u64, number: u32) -> u64 {
    shape.round_down(chunk(shape, most) / u64::from(number)).max(1)
}

/// As [`area`], but no longer than the longest stretch that goes into one, in whole cache lines: so a short collective takes few
/// sections, and the places that it goes through take turns.
fn area_for(shape: &Shape, most: u64, number: u32, longest: u64) -> u64 {
    area(shape, most, number).min(longest.next_multiple_of(64)).max(1)
}

/// Where part `index` starts if `len` units are cut into `number` parts.
fn cut(index: u32, number: u32, len: u64) -> u64 {
    (u128::from(len) * u128::from(index) / u128::from(number)) as u64
}

/// Units of the longest block.
fn longest(blocks: &Blocks, ranks: u32) -> u64 {
    match blocks {
        Blocks::Even(len) => *len,
        Blocks::Starts(_) => (0..ranks).map(|rank| blocks.block(rank).1).max().unwrap_or(0),
    }
}

/// Tells the other ranks that this rank's data of a phase are on the shared scratch. In phase 0 this is a publication,
/// which also carries the tag of the call; later an acknowledgement is enough.
fn announce(phase: u32, round: &mut Round) {
    round.push(match phase {
        0 => Step::Publish { from: Span::new(Buf::Send, (0, 0)), phase, form: Form::Inline },
        _ => Step::Ack { phase },
    });
}

/// Waits until a rank has [announced](announce) a phase.
fn await_announced(rank: u32, phase: u32, round: &mut Round) {
    round.push(if phase == 0 { Step::Await { rank, phase } } else { Step::WaitAck { rank, phase } });
}

/// Start and length of the units that two ranges have in common.
fn common((a, a_len): (u64, u64), (b, b_len): (u64, u64)) -> (u64, u64) {
    let start = a.max(b);
    (start, (a + a_len).min(b + b_len).saturating_sub(start))
}
