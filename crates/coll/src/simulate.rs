//! Runs schedules against a virtual clock: how long an algorithm takes by the [`Model`], with everything that
//! a closed formula leaves out (who waits for whom, and ports that are busy).
//!
//! A message goes when both ends have come to it; each of the two ports carries its messages one after the
//! other, and is taken by one for its handling and its bytes. It is there one latency later. A cache line
//! serves its readers one after the other. Each rank has a core of its own.

use crate::sections::Taken;
use crate::verify::{Trial, shape};
use crate::walk::{Look, Machine, Operation, walk};
use crate::{Algorithm, Facts, Form, Kind, Merge, Model, Pocket, Span, Step};

/// Seconds until the last rank is through with a collective of `bytes` bytes (of the vector, or of a block),
/// rooted at rank 0.
///
/// # Errors
/// If the schedule is wrong (see [`crate::verify`]).
pub fn simulate(
    algorithm: &'static Algorithm,
    bytes: u64,
    facts: &Facts,
    model: &Model,
) -> Result<f64, String> {
    let unit = if algorithm.kind.reduces() { 8 } else { 1 };
    let ranks = facts.ranks;
    let blocks = matches!(algorithm.kind, Kind::ReduceScatter | Kind::ReduceScatterBlock);
    let len = bytes.div_ceil(unit).div_ceil(if blocks { u64::from(ranks) } else { 1 });
    let board = facts.slots.map_or(0, |slots| slots.board) / unit;
    let slot = facts.slots.map_or(0, |slots| slots.inline);
    let crowded = facts.per_node > facts.cores;
    let trial = Trial {
        ranks,
        root: 0,
        len,
        unit,
        in_place: false,
        commutative: true,
        even: true,
        seed: 0,
        board,
        banks: BANKS,
        slot,
        crowded,
    };
    let shapes = (0..ranks).map(|rank| shape(algorithm.kind, rank, &trial)).collect();
    let (alpha, overhead, beta) = model.link(facts);
    let mut clock = Clock {
        model: *model,
        alpha,
        overhead,
        beta,
        unit: unit as f64,
        ranks: vec![Times::default(); ranks as usize],
    };
    let order: Vec<u32> = (0..ranks).collect();
    let taken = Taken::default();
    walk(&[Operation { algorithm, shapes, first: 1, taken }], &mut clock, &order, BANKS)?;
    Ok(clock.ranks.iter().map(|times| times.end).fold(0.0, f64::max))
}

/// Of a slot.
const BANKS: u64 = 16;

/// Virtual times of one rank.
#[derive(Clone, Default)]
struct Times {
    /// The present round began.
    round: f64,
    /// The last step so far was over.
    end: f64,
    /// The core is free.
    core: f64,
    /// The ports are free.
    out: f64,
    into: f64,
    /// By phase: when, whether a region, and by how many it was read.
    published: [(f64, bool, u32); BANKS as usize],
    /// By stamp.
    released: Vec<f64>,
}

impl Times {
    /// The core works for `seconds`, not before `ready`.
    fn work(&mut self, ready: f64, seconds: f64) {
        self.core = self.core.max(self.round).max(ready) + seconds;
        self.end = self.end.max(self.core);
    }
}

struct Clock {
    model: Model,
    alpha: f64,
    overhead: f64,
    beta: f64,
    unit: f64,
    ranks: Vec<Times>,
}

impl Clock {
    fn bytes(&self, span: Span) -> f64 {
        span.len as f64 * self.unit
    }

    fn at(&mut self, rank: u32) -> &mut Times {
        &mut self.ranks[rank as usize]
    }
}

impl Machine for Clock {
    fn begin(&mut self, _: usize, rank: u32, steps: &[Step]) -> Result<(), String> {
        // An empty round costs nothing.
        if !steps.is_empty() {
            let times = self.at(rank);
            times.round = times.end;
        }
        Ok(())
    }

    fn message(&mut self, _: usize, ends: (u32, u32), _: Span, into: Span, merge: Option<Merge>) {
        let (sender, receiver) = (&self.ranks[ends.0 as usize], &self.ranks[ends.1 as usize]);
        let ready = sender.round.max(receiver.round);
        let (leaves, lands) = (ready.max(sender.out), ready.max(receiver.into));
        let taken = self.overhead + self.bytes(into) * self.beta;
        let there = leaves.max(lands) + self.alpha + self.bytes(into) * self.beta;
        let reduced = if merge.is_some() { self.bytes(into) * self.model.gamma } else { 0.0 };
        let sender = self.at(ends.0);
        sender.out = leaves + taken;
        sender.end = sender.end.max(sender.out);
        let receiver = self.at(ends.1);
        receiver.into = lands + taken;
        receiver.end = receiver.end.max(there);
        if reduced > 0.0 {
            receiver.work(there, reduced);
        }
    }

    fn local(&mut self, _: usize, rank: u32, step: &Step) -> Result<(), String> {
        let seconds = match *step {
            Step::Reduce { into, .. } => self.bytes(into) * self.model.gamma,
            Step::Copy { into, .. } => self.bytes(into) * self.model.copy,
            _ => 0.0,
        };
        self.at(rank).work(0.0, seconds);
        Ok(())
    }

    fn lay(&mut self, _: usize, rank: u32, _: u64, from: Span, pocket: Pocket) -> Result<(), String> {
        let copied = if pocket.holds(from.len) { self.bytes(from) * self.model.copy } else { 0.0 };
        self.at(rank).work(0.0, copied);
        Ok(())
    }

    fn publish(&mut self, _: usize, rank: u32, stamp: u64, from: Span, form: Form) {
        let copied = if form == Form::Inline { self.bytes(from) * self.model.copy } else { 0.0 };
        let times = self.at(rank);
        times.work(0.0, copied);
        times.published[(stamp % BANKS) as usize] = (times.core, form == Form::Region, 0);
    }

    fn look(&mut self, _: usize, rank: u32, look: Look) -> Result<(), String> {
        let publisher = &mut self.ranks[look.publisher as usize];
        let (published, region, readers) = &mut publisher.published[(look.stamp % BANKS) as usize];
        if look.into.is_none() {
            // As a look at what it released: there is nothing behind it.
            let (published, hop) = (*published, self.model.hop);
            self.at(rank).work(published, hop);
            return Ok(());
        }
        let (served, region) = (*published + f64::from(*readers) * self.model.hop / 8.0, *region);
        *readers += 1;
        let bytes = look.taken().map_or(0.0, |into| self.bytes(into));
        let model = self.model;
        let fetched = match region {
            _ if look.taken().is_none() => 0.0,
            true => model.pull + bytes * model.pull_byte,
            false => bytes * model.copy,
        };
        let reduced = if look.merge.is_some() { bytes * model.gamma } else { 0.0 };
        self.at(rank).work(served, model.hop + fetched + reduced);
        Ok(())
    }

    fn drained(&mut self, _: usize, rank: u32, other: u32, stamp: u64) {
        let (released, hop) = (self.ranks[other as usize].released[stamp as usize], self.model.hop);
        self.at(rank).work(released, hop);
    }

    fn release(&mut self, _: usize, rank: u32, stamp: u64) {
        let times = self.at(rank);
        times.work(0.0, 0.0);
        times.released.resize(stamp as usize + 1, times.core);
    }

    fn settled(&mut self, _: usize, rank: u32, _: u64) {
        let hop = self.model.hop;
        self.at(rank).work(0.0, hop);
    }

    fn end(&mut self, _: usize, _: u32) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALL, Case};

    /// The formulas choose; they must not be far from what the schedules really do.
    #[test]
    fn formulas_agree_with_schedules() {
        let model = Model::default();
        let mut wrong = vec![];
        for &row in ALL {
            for ranks in [2, 3, 4, 7, 8, 13, 16, 33, 64] {
                for bytes in [64, 4096, 65536, 1 << 20] {
                    let facts = Facts::supposed(ranks, true, ranks);
                    let slot = facts.slots.map_or(0.0, |slots| slots.inline as f64);
                    let case = Case { slot, ..Case::plain(bytes as f64, ranks) };
                    let formula = model.time(&(row.cost)(&case), &facts);
                    let simulated = simulate(row, bytes, &facts, &model).unwrap();
                    if !(0.55..1.8).contains(&(formula / simulated)) {
                        let (formula, simulated) = (formula * 1e6, simulated * 1e6);
                        wrong.push(format!(
                            "{row:?}, {ranks} ranks, {bytes} bytes: {formula:.2} us, simulated {simulated:.2}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn a_barrier_on_a_thousand_ranks_takes_ten_latencies() {
        let facts = Facts::supposed(1000, false, 1);
        let model = Model::default();
        let time = simulate(&crate::algorithms::barrier::DISSEMINATION, 0, &facts, &model).unwrap();
        assert!((time / model.alpha - 10.0).abs() < 1e-6, "{time}");
    }
}
