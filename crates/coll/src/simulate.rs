//! Runs schedules against a virtual clock: how long an algorithm takes by the [`Model`], with everything that
//! a closed formula leaves out (which rank waits for which, and ports that are busy).
//!
//! A message leaves when both ends have come to it. Each rank has a port out and a port in, which carry one message
//! after the other: a message occupies both ports for its handling and its bytes, and arrives one latency later. A
//! cache line serves its readers one after the other. Each rank has a core of its own.

use crate::lockstep::{Access, Machine, Operation, lockstep};
use crate::sections::Allotment;
use crate::verify::{Trial, shape};
use crate::{Algorithm, Form, Kind, Merge, Model, Span, Step, SubBuffer, Topology};

/// Seconds until the last rank is through with a collective of `bytes` bytes (of the vector, or of a block),
/// rooted at rank 0.
///
/// # Errors
/// If the schedule is wrong (see [`crate::verify`]).
pub fn simulate(
    algorithm: &'static Algorithm,
    bytes: u64,
    topology: &Topology,
    model: &Model,
) -> Result<f64, String> {
    let unit = if algorithm.kind.reduces() { 8 } else { 1 };
    let ranks = topology.ranks;
    let blocks = matches!(algorithm.kind, Kind::ReduceScatter | Kind::ReduceScatterBlock);
    let len = bytes.div_ceil(unit).div_ceil(if blocks { u64::from(ranks) } else { 1 });
    let scratch = topology.shared.map_or(0, |shared| shared.scratch) / unit;
    let cell_bytes = topology.shared.map_or(0, |shared| shared.inline);
    let crowded = topology.per_node > topology.cores;
    let trial = Trial {
        ranks,
        root: 0,
        len,
        unit,
        in_place: false,
        commutative: true,
        even: true,
        seed: 0,
        scratch,
        cells: CELLS,
        cell_bytes,
        crowded,
    };
    let shapes = (0..ranks).map(|rank| shape(algorithm.kind, rank, &trial)).collect();
    let (alpha, overhead, beta) = model.link(topology);
    let mut clock = Clock {
        model: *model,
        alpha,
        overhead,
        beta,
        unit: unit as f64,
        ranks: vec![Times::default(); ranks as usize],
    };
    let order: Vec<u32> = (0..ranks).collect();
    let allotment = Allotment::default();
    lockstep(&[Operation { algorithm, shapes, first: 1, allotment }], &mut clock, &order, CELLS)?;
    Ok(clock.ranks.iter().map(|times| times.end).fold(0.0, f64::max))
}

/// Cells of a CICO buffer.
const CELLS: u64 = 16;

/// Virtual times of one rank.
#[derive(Clone, Default)]
struct Times {
    /// When the present round began.
    round: f64,
    /// When the last step so far was over.
    end: f64,
    /// When the core is free.
    core: f64,
    /// When the port out is free.
    out: f64,
    /// When the port in is free.
    into: f64,
    /// By cell, the last publication: when it was made, whether it is an exposed range, and how many ranks have read
    /// it.
    published: [(f64, bool, u32); CELLS as usize],
    /// By sequence number, when this rank acknowledged it.
    acked: Vec<f64>,
}

impl Times {
    /// The core works for `seconds`, from `ready` at the earliest.
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
        let occupied = self.overhead + self.bytes(into) * self.beta;
        let arrives = leaves.max(lands) + self.alpha + self.bytes(into) * self.beta;
        let reduced = if merge.is_some() { self.bytes(into) * self.model.gamma } else { 0.0 };
        let sender = self.at(ends.0);
        sender.out = leaves + occupied;
        sender.end = sender.end.max(sender.out);
        let receiver = self.at(ends.1);
        receiver.into = lands + occupied;
        receiver.end = receiver.end.max(arrives);
        if reduced > 0.0 {
            receiver.work(arrives, reduced);
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

    fn pack(&mut self, _: usize, rank: u32, _: u64, from: Span, sub_buffer: SubBuffer) -> Result<(), String> {
        let copied = if sub_buffer.holds(from.len) { self.bytes(from) * self.model.copy } else { 0.0 };
        self.at(rank).work(0.0, copied);
        Ok(())
    }

    fn publish(&mut self, _: usize, rank: u32, seq: u64, from: Span, form: Form) {
        let copied = if form == Form::Inline { self.bytes(from) * self.model.copy } else { 0.0 };
        let times = self.at(rank);
        times.work(0.0, copied);
        times.published[(seq % CELLS) as usize] = (times.core, form == Form::Exposed, 0);
    }

    fn access(&mut self, _: usize, rank: u32, access: Access) -> Result<(), String> {
        let publisher = &mut self.ranks[access.publisher as usize];
        let (published, exposed, readers) = &mut publisher.published[(access.seq % CELLS) as usize];
        if access.into.is_none() {
            // A bare wait costs one transfer, like a look at an acknowledgement: no data follow.
            let (published, transfer) = (*published, self.model.transfer);
            self.at(rank).work(published, transfer);
            return Ok(());
        }
        let (served, exposed) = (*published + f64::from(*readers) * self.model.transfer / 8.0, *exposed);
        *readers += 1;
        let bytes = access.moved().map_or(0.0, |into| self.bytes(into));
        let model = self.model;
        let read = match exposed {
            _ if access.moved().is_none() => 0.0,
            true => model.get + bytes * model.single_copy_byte,
            false => bytes * model.copy,
        };
        let reduced = if access.merge.is_some() { bytes * model.gamma } else { 0.0 };
        self.at(rank).work(served, model.transfer + read + reduced);
        Ok(())
    }

    fn ack_seen(&mut self, _: usize, rank: u32, other: u32, seq: u64) {
        let (acked, transfer) = (self.ranks[other as usize].acked[seq as usize], self.model.transfer);
        self.at(rank).work(acked, transfer);
    }

    fn ack(&mut self, _: usize, rank: u32, seq: u64) {
        let times = self.at(rank);
        times.work(0.0, 0.0);
        times.acked.resize(seq as usize + 1, times.core);
    }

    fn reusable(&mut self, _: usize, rank: u32, _: u64) {
        let transfer = self.model.transfer;
        self.at(rank).work(0.0, transfer);
    }

    fn end(&mut self, _: usize, _: u32) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALL, Case};

    /// Algorithms are chosen by the formulas, which must not be far from what the schedules really do.
    #[test]
    fn formulas_agree_with_schedules() {
        let model = Model::default();
        let mut wrong = vec![];
        for &row in ALL {
            for ranks in [2, 3, 4, 7, 8, 13, 16, 33, 64] {
                for bytes in [64, 4096, 65536, 1 << 20] {
                    let topology = Topology::supposed(ranks, true, ranks);
                    let cell_bytes = topology.shared.map_or(0.0, |shared| shared.inline as f64);
                    let case = Case { cell_bytes, ..Case::plain(bytes as f64, ranks) };
                    let formula = model.time(&(row.cost)(&case), &topology);
                    let simulated = simulate(row, bytes, &topology, &model).unwrap();
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
        let topology = Topology::supposed(1000, false, 1);
        let model = Model::default();
        let time = simulate(&crate::algorithms::barrier::DISSEMINATION, 0, &topology, &model).unwrap();
        assert!((time / model.alpha - 10.0).abs() < 1e-6, "{time}");
    }
}
