//! Forms over the board, memory that the ranks of a node share: a vector is combined there part by part, each by
//! one rank after the other, and then copied out by all.
//!
//! A part starts at the rank of its number and goes around, so that every element is combined in one way only,
//! and ranks that take turns on few cores get far in each turn. Long vectors go in chunks, through the two
//! halves of the board in turn.

use super::no_temp;
use crate::{Algorithm, Buf, Case, Cost, Kind, Needs, Round, Shape, Span, Step};

pub(crate) const ALLREDUCE: Algorithm = Algorithm {
    kind: Kind::Allreduce,
    name: "board",
    about: "all add their parts up in shared memory in turn, then copy the sum: large vectors on one node",
    needs: Needs::Board,
    reorders: true,
    phases: |shape| chunks(shape) * (shape.ranks + 1),
    temp: no_temp,
    rounds: |shape| chunks(shape) * rounds(shape),
    round,
    cost: |case: &Case| {
        let share = (case.p() - 1.0) / case.p();
        let chunks = (case.bytes / HALF).ceil();
        Cost {
            hops: 1.0 + chunks * 2.0 * (case.p() - 1.0),
            reduced: share * case.bytes,
            copied: (2.0 - share) * case.bytes,
            waits: 3.0 * chunks,
            ..Cost::default()
        }
    },
};

/// About half the bytes of a board.
const HALF: f64 = (2 << 20) as f64;

fn chunks(shape: &Shape) -> u32 {
    shape.len.div_ceil((shape.board / 2).max(1)) as u32
}

/// Rounds of one chunk: a guard, two for each part, copy, release.
fn rounds(shape: &Shape) -> u32 {
    2 * shape.ranks + 3
}

/// One chunk: where it is in the vector, and in which half of the board.
fn round(shape: &Shape, index: u32, round: &mut Round) {
    let (me, ranks, all) = (shape.rank, shape.ranks, chunks(shape));
    let (chunk, index) = (index / rounds(shape), index % rounds(shape));
    let cut = |i: u64, n: u64, len: u64| (u128::from(len) * u128::from(i) / u128::from(n)) as u64;
    let edge = |chunk: u32| cut(u64::from(chunk), u64::from(all), shape.len);
    let (start, len) = (edge(chunk), edge(chunk + 1) - edge(chunk));
    let half = u64::from(chunk % 2) * (shape.board / 2);
    let span = |buf, first: u32, end: u32| {
        let [first, end] = [first, end].map(|part| cut(u64::from(part), u64::from(ranks), len));
        Span::new(buf, (if buf == Buf::Board { half } else { start } + first, end - first))
    };
    let part = |buf, part: u32| span(buf, part, part + 1);
    let phase = |step: u32| chunk * (ranks + 1) + step;
    let others = (1..ranks).map(|distance| shape.after(me, distance));
    let behind = shape.before(me, 1);
    // In step s this rank works on the part that the one before it worked on in step s - 1.
    let turn = |step: u32| shape.before(me, step);
    match index {
        0 if chunk == 0 => round.push(Step::Settle),
        // The chunk that was in this half before has been copied out.
        0 => {
            if let Some(before) = chunk.checked_sub(2) {
                let phase = before * (ranks + 1) + ranks;
                others.for_each(|rank| round.push(Step::Drain { rank, phase }));
            }
        }
        1 => round.copy(part(Buf::Send, me), part(Buf::Board, me)),
        _ if index == 2 * ranks => {
            round.push(Step::Release { phase: phase(ranks - 1) });
            others.for_each(|rank| round.push(Step::Drain { rank, phase: phase(ranks - 1) }));
        }
        _ if index == 2 * ranks + 1 => round.copy(span(Buf::Board, 0, ranks), span(Buf::Recv, 0, ranks)),
        _ if index == 2 * ranks + 2 => round.push(Step::Release { phase: phase(ranks) }),
        _ if index.is_multiple_of(2) => {
            let done = phase(index / 2 - 1);
            round.push(Step::Release { phase: done });
            round.push(Step::Drain { rank: behind, phase: done });
        }
        _ => round.reduce(part(Buf::Send, turn(index / 2)), part(Buf::Board, turn(index / 2))),
    }
}
