//! The symbolic shared scratch: what its units are, and whether every access comes after those that it depends on.
//!
//! Each rank has a vector clock that counts its acknowledgements and publications. A rank that sees one of them learns
//! the clock which its author had then. Of two accesses to one unit, of which at least one writes, the later must know
//! of the earlier (Lamport 1978, Mattern 1989).

use super::memory::Value;
use crate::Span;

pub(super) struct SharedScratch {
    cells: Vec<Cell>,
    /// By rank, its vector clock: what it knows of each rank.
    clocks: Vec<Vec<u64>>,
    /// The clocks at acknowledgements.
    acks: History,
    /// The clocks at publications.
    publications: History,
}

/// The clocks that ranks had at their acknowledgements, or at their publications.
struct History {
    /// By rank, its sequence numbers, which only grow, with the clock that it had at each.
    at: Vec<Vec<(u64, Vec<u64>)>>,
    /// By rank, and there by other rank, the last of the other's sequence numbers whose clock it has learnt.
    learnt: Vec<u64>,
}

#[derive(Clone, Default)]
struct Cell {
    value: Option<Value>,
    writer: Option<(u32, u64)>,
    /// The reads since the last write.
    readers: Vec<(u32, u64)>,
}

impl SharedScratch {
    pub(super) fn new(ranks: u32, units: u64) -> SharedScratch {
        let ranks = ranks as usize;
        // At first a rank knows its own present, and nothing of the others.
        let clocks = (0..ranks).map(|me| (0..ranks).map(|rank| u64::from(rank == me)).collect()).collect();
        let cells = vec![Cell::default(); units as usize];
        SharedScratch { cells, clocks, acks: History::new(ranks), publications: History::new(ranks) }
    }

    /// A rank acknowledges a sequence number.
    pub(super) fn ack(&mut self, rank: u32, seq: u64) {
        self.acks.record(&mut self.clocks, (rank, seq));
    }

    /// A rank publishes under a sequence number.
    pub(super) fn publish(&mut self, rank: u32, seq: u64) {
        self.publications.record(&mut self.clocks, (rank, seq));
    }

    /// A rank has seen that another acknowledged a sequence number.
    pub(super) fn after(&mut self, rank: u32, other: u32, seq: u64) {
        self.acks.learn(&mut self.clocks, rank, (other, seq));
    }

    /// A rank has seen what another published under a sequence number.
    pub(super) fn access(&mut self, rank: u32, other: u32, seq: u64) {
        self.publications.learn(&mut self.clocks, rank, (other, seq));
    }

    pub(super) fn read(&mut self, rank: u32, span: Span) -> Result<Vec<Value>, String> {
        let clock = &self.clocks[rank as usize];
        let now = (rank, clock[rank as usize]);
        let mut values = vec![];
        for cell in &mut self.cells[span.at as usize..(span.at + span.len) as usize] {
            let Some(value) = cell.value else {
                return Err(format!("rank {rank} reads {span:?} before anything was written there"));
            };
            ordered(clock, rank, cell.writer.iter(), span)?;
            cell.readers.push(now);
            values.push(value);
        }
        Ok(values)
    }

    pub(super) fn write(&mut self, rank: u32, span: Span, values: &[Value]) -> Result<(), String> {
        let clock = &self.clocks[rank as usize];
        let now = (rank, clock[rank as usize]);
        for (cell, value) in self.cells[span.at as usize..].iter_mut().zip(values) {
            ordered(clock, rank, cell.writer.iter().chain(&cell.readers), span)?;
            *cell = Cell { value: Some(*value), writer: Some(now), readers: vec![] };
        }
        Ok(())
    }
}

impl History {
    fn new(ranks: usize) -> History {
        History { at: vec![vec![]; ranks], learnt: vec![0; ranks * ranks] }
    }

    fn record(&mut self, clocks: &mut [Vec<u64>], (rank, seq): (u32, u64)) {
        let clock = &mut clocks[rank as usize];
        self.at[rank as usize].push((seq, clock.clone()));
        clock[rank as usize] += 1;
    }

    /// A rank learns the clock that another had at a sequence number, and none for 0, which stands for no use before.
    fn learn(&mut self, clocks: &mut [Vec<u64>], rank: u32, (other, seq): (u32, u64)) {
        let (rank, other) = (rank as usize, other as usize);
        let learnt = &mut self.learnt[rank * self.at.len() + other];
        if seq <= *learnt {
            return;
        }
        // What a rank looks for is among the last of many.
        let Some((found, theirs)) = self.at[other].iter().rev().take_while(|entry| entry.0 >= seq).last()
        else {
            return;
        };
        *learnt = *found;
        let clock = &mut clocks[rank];
        // Who knows what a rank did later knows all that it knew before.
        if clock[other] < theirs[other] {
            clock.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        }
    }
}

/// Checks that a rank whose clock this is knows of all the accesses before its own.
fn ordered<'a>(
    clock: &[u64],
    rank: u32,
    mut before: impl Iterator<Item = &'a (u32, u64)>,
    span: Span,
) -> Result<(), String> {
    match before.find(|(other, time)| clock[*other as usize] < *time) {
        None => Ok(()),
        Some((other, _)) => {
            Err(format!("nothing orders rank {rank}'s access to {span:?} after rank {other}'s"))
        }
    }
}
