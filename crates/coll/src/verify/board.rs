//! The board, symbolically: what is in it, and whether every access comes after those that it depends on.
//!
//! Each rank has a vector clock that counts what it releases and publishes. Who sees that learns the clock of who did;
//! an access must know of every earlier access to the same unit of which one writes (Lamport 1978, Mattern 1989).

use super::memory::Value;
use crate::Span;

pub(super) struct Board {
    cells: Vec<Cell>,
    /// By rank, what it knows of each rank.
    clocks: Vec<Vec<u64>>,
    /// By rank, its stamps and what it knew when it released them.
    releases: Told,
    /// The same, when it published under them.
    shown: Told,
}

#[derive(Clone, Default)]
struct Cell {
    value: Option<Value>,
    writer: Option<(u32, u64)>,
    /// Since the last write.
    readers: Vec<(u32, u64)>,
}

impl Board {
    pub(super) fn new(ranks: u32, units: u64) -> Board {
        let ranks = ranks as usize;
        // A rank knows its own present, and of the others nothing.
        let clocks = (0..ranks).map(|me| (0..ranks).map(|rank| u64::from(rank == me)).collect()).collect();
        let cells = vec![Cell::default(); units as usize];
        Board { cells, clocks, releases: vec![vec![]; ranks], shown: vec![vec![]; ranks] }
    }

    pub(super) fn release(&mut self, rank: u32, stamp: u64) {
        tell(&mut self.releases, &mut self.clocks, (rank, stamp));
    }

    pub(super) fn publish(&mut self, rank: u32, stamp: u64) {
        tell(&mut self.shown, &mut self.clocks, (rank, stamp));
    }

    /// A rank has seen that another released a stamp.
    pub(super) fn after(&mut self, rank: u32, other: u32, stamp: u64) {
        learn(&self.releases, &mut self.clocks, rank, (other, stamp));
    }

    /// A rank has seen what another published under a stamp.
    pub(super) fn look(&mut self, rank: u32, other: u32, stamp: u64) {
        learn(&self.shown, &mut self.clocks, rank, (other, stamp));
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

type Told = Vec<Vec<(u64, Vec<u64>)>>;

fn tell(told: &mut Told, clocks: &mut [Vec<u64>], (rank, stamp): (u32, u64)) {
    let clock = &mut clocks[rank as usize];
    told[rank as usize].push((stamp, clock.clone()));
    clock[rank as usize] += 1;
}

fn learn(told: &Told, clocks: &mut [Vec<u64>], rank: u32, (other, stamp): (u32, u64)) {
    let told = &told[other as usize];
    let index = told.partition_point(|told| told.0 < stamp);
    let Some((_, known)) = told.get(index).filter(|_| stamp > 0) else { return };
    for (mine, theirs) in clocks[rank as usize].iter_mut().zip(known) {
        *mine = (*mine).max(*theirs);
    }
}

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
