//! Runs schedules against a virtual clock: how long an algorithm takes by the [`Model`], with everything that
//! a closed formula leaves out (which rank waits for which, and ports that are busy).
//!
//! A message leaves when both ends have come to it. Each rank has a port out and a port in (and each node a pair for
//! messages to other nodes, if it is known which ranks it has), which carry one message
//! after the other: a message occupies both ports for its handling and its bytes, and arrives one latency later. A
//! cache line serves its readers one after the other. Each rank has a core of its own.
//!
//! # Ranks that are alike
//!
//! Many schedules *rotate* ([`Algorithm::rotates`]), among them most of those that have a round for each rank: what rank `r` does
//! with rank `r + d`, every other rank does with the one that is `d` behind it.
//! Then ranks that lie alike on their nodes are one class, and one of each class stands for all: the ranks of the first node, if
//! all nodes have equally many ranks in a row, or rank 0 alone, if each is on a node of its own or all are on one. A message to
//! any rank goes to the one that stands for its class. The time is exactly that of all ranks together, but where a rank has
//! many messages in a round and shares ports with the other ranks of its node: these messages may go in another order, which changes
//! the time by a percent. Schedules that do not rotate are run at each rank, round by round as they are made: in trees and in
//! doubling no two ranks have the same past.

use std::sync::Arc;

use crate::lockstep::{Access, Counters, Lane, Machine, Operation, lockstep};
use crate::verify::{Trial, shape};
use crate::{
    Algorithm, Case, Explanation, Form, Merge, Model, Needs, Nodes, Shape, Span, Step, SubBuffer, Topology,
    Tuning,
};

/// Seconds until the last rank is through with a collective of `bytes` bytes (of the vector, or of a block),
/// rooted at rank 0. Each message takes the link between its two ranks, which are on these `nodes`, or else on nodes of
/// [`Topology::per_node`] ranks in a row. A composition is what the model chooses.
///
/// # Errors
/// If the schedule is wrong (see [`crate::verify`]).
pub fn simulate(
    algorithm: &'static Algorithm,
    bytes: u64,
    (topology, nodes): (&Topology, Option<&Nodes>),
    model: &Model,
) -> Result<f64, String> {
    let tuning = Tuning { model: *model, ..Tuning::default() };
    let simulation = Simulation::new(algorithm, bytes, (topology, nodes), &tuning);
    simulation.time(simulation.classes())
}

impl Explanation {
    /// The same with the simulated times of the candidates that can be used, but of those that would take too long to simulate.
    /// Without a core for each rank there are none.
    #[must_use]
    pub fn simulated(mut self, tuning: &Tuning) -> Explanation {
        let cores = self.topology.per_node <= self.topology.cores;
        for row in self.candidates.iter_mut().filter(|row| row.unfit.is_none() && cores) {
            let simulation = Simulation::new(row.algorithm, self.bytes, (&self.topology, None), tuning);
            let classes = simulation.classes();
            row.simulated = (simulation.rounds(classes) <= MOST_ROUNDS)
                .then(|| simulation.time(classes).expect("the verifier has proved the schedule"));
        }
        self
    }
}

/// The most rounds, of all ranks together, of a schedule that is simulated to explain a choice: they take a second or two.
const MOST_ROUNDS: u64 = 1 << 22;

/// One collective that is to be simulated.
#[derive(Clone)]
struct Simulation<'a> {
    algorithm: &'static Algorithm,
    trial: Trial,
    topology: &'a Topology,
    nodes: Arc<Nodes>,
    tuning: &'a Tuning,
    /// Of a composition.
    chunks: u64,
}

impl<'a> Simulation<'a> {
    /// A composition is in as many chunks as the model chooses.
    fn new(
        algorithm: &'static Algorithm,
        bytes: u64,
        (topology, nodes): (&'a Topology, Option<&Nodes>),
        tuning: &'a Tuning,
    ) -> Simulation<'a> {
        let (ranks, unit) = (topology.ranks, if algorithm.kind.reduces() { 8 } else { 1 });
        let blocks = if algorithm.kind.scatters_result() { u64::from(ranks) } else { 1 };
        let trial = Trial {
            ranks,
            root: 0,
            len: bytes.div_ceil(unit).div_ceil(blocks),
            unit,
            in_place: false,
            commutative: true,
            even: true,
            seed: 0,
            scratch: topology.shared.map_or(0, |shared| shared.scratch) / unit,
            cells: CELLS,
            cell_bytes: topology.shared.map_or(0, |shared| shared.inline),
            crowded: topology.per_node > topology.cores,
            nodes: 0,
        };
        let size = match topology.nodes {
            1 => ranks,
            nodes if nodes == ranks => 1,
            _ => topology.per_node,
        };
        let nodes = nodes.cloned().unwrap_or_else(|| Nodes::new((0..ranks).map(|rank| rank / size)));
        let chunks = tuning.chunks(algorithm, Some(Case::plain(bytes as f64, ranks)), topology);
        Simulation { algorithm, trial, topology, nodes: Arc::new(nodes), tuning, chunks }
    }

    /// The shape of a rank.
    fn shape(&self, rank: u32) -> Shape {
        let shape = shape(self.algorithm.kind, rank, &self.trial);
        if self.algorithm.stages.is_empty() || self.nodes.number() == 1 {
            return shape;
        }
        let ranks = self.nodes.ranks(self.nodes.of(rank)).len() as u32;
        let here = Topology { ranks, nodes: 1, per_node: ranks, ..*self.topology };
        let row = (self.algorithm, self.chunks);
        let made = self.tuning.compose(row, &shape, true, (&self.nodes, self.topology, &here));
        Shape { composition: Some(Arc::new(made)), ..shape }
    }

    /// The number of ranks, from rank 0 on, that stand for all: rank `r` is like rank `r` modulo that number.
    fn classes(&self) -> u32 {
        match self.algorithm.rotates(&self.shape(0)) {
            true => self.nodes.period(),
            false => self.trial.ranks,
        }
    }

    /// Rounds that so many ranks go through together. In a round on shared buffers a rank may read from all others.
    fn rounds(&self, classes: u32) -> u64 {
        let rounds = match self.algorithm.needs {
            Needs::Messages => self.algorithm.rounds(&self.shape(0)),
            _ => self.algorithm.rounds(&self.shape(0)).max(self.trial.ranks),
        };
        u64::from(rounds) * u64::from(classes)
    }

    /// Seconds until the last rank is through, where the first `classes` ranks stand for all.
    fn time(&self, classes: u32) -> Result<f64, String> {
        let shapes: Vec<_> = (0..classes).map(|rank| self.shape(rank)).collect();
        let windows = shapes.iter().map(|shape| Counters::new().take(self.algorithm, shape)).collect();
        let mut clock = Clock {
            model: self.tuning.model,
            nodes: &self.nodes,
            node_ports: vec![Ports::default(); self.nodes.number() as usize],
            unit: self.trial.unit as f64,
            ranks: vec![Times::default(); classes as usize],
            two_lanes: !self.algorithm.stages.is_empty(),
            lane: 0,
        };
        let (order, op) =
            (Vec::from_iter(0..classes), Operation { algorithm: self.algorithm, shapes, windows });
        lockstep(&[op], &mut clock, (&order, &self.nodes), CELLS)?;
        Ok(clock.ranks.iter().flat_map(|times| times.end).fold(0.0, f64::max))
    }
}

/// Cells of a CICO buffer.
const CELLS: u64 = 16;

/// A port out and a port in: when each is free.
#[derive(Clone, Copy, Default)]
struct Ports {
    out: f64,
    into: f64,
}

/// Virtual times of one rank.
#[derive(Clone, Default)]
struct Times {
    /// By lane, when the present round began.
    round: [f64; 2],
    /// By lane, when the last step so far was over.
    end: [f64; 2],
    /// By lane and number of a round, when it began.
    began: [Vec<f64>; 2],
    /// When the core is free.
    core: f64,
    ports: Ports,
    /// By cell, the last publication: when it was made, whether it is an exposed range, and how many ranks have read
    /// it.
    published: [(f64, bool, u32); CELLS as usize],
    /// By sequence number, when this rank acknowledged it.
    acked: Vec<f64>,
}

impl Times {
    /// The core works on a step of a lane for `seconds`, from `ready` at the earliest.
    fn work(&mut self, lane: usize, ready: f64, seconds: f64) {
        self.core = self.core.max(self.round[lane]).max(ready) + seconds;
        self.end[lane] = self.end[lane].max(self.core);
    }

    /// When so many rounds of a lane were over.
    fn over(&self, lane: usize, rounds: u32) -> f64 {
        match self.began[lane].get(rounds as usize) {
            _ if rounds == 0 => 0.0,
            Some(next) => *next,
            None => self.end[lane],
        }
    }
}

struct Clock<'a> {
    model: Model,
    nodes: &'a Nodes,
    /// By node.
    node_ports: Vec<Ports>,
    unit: f64,
    ranks: Vec<Times>,
    /// The schedules are those of a composition.
    two_lanes: bool,
    /// The lane of the step that is carried out.
    lane: usize,
}

impl Clock<'_> {
    fn bytes(&self, span: Span) -> f64 {
        span.len as f64 * self.unit
    }

    /// True if two ranks are on one node.
    fn is_near(&self, (one, other): (u32, u32)) -> bool {
        self.nodes.of(one) == self.nodes.of(other)
    }

    /// The ports that a rank's message goes through: to other nodes all ranks of a node share a pair.
    fn ports(&mut self, rank: u32, near: bool) -> &mut Ports {
        let class = rank % self.ranks.len() as u32;
        match near {
            true => &mut self.ranks[class as usize].ports,
            false => &mut self.node_ports[self.nodes.of(class) as usize],
        }
    }

    /// A rank's core works on the present step for `seconds`, from `ready` at the earliest.
    fn work(&mut self, rank: u32, ready: f64, seconds: f64) {
        let lane = self.lane;
        self.at(rank).work(lane, ready, seconds);
    }

    /// The times of a rank: those of the one that stands for it.
    fn at(&mut self, rank: u32) -> &mut Times {
        let class = rank as usize % self.ranks.len();
        &mut self.ranks[class]
    }
}

impl Machine for Clock<'_> {
    fn begin(&mut self, _: usize, rank: u32, _: &[Step], lane: Lane) -> Result<(), String> {
        let two_lanes = self.two_lanes;
        let times = self.at(rank);
        let round = times.end[lane.index].max(times.over(1 - lane.index, lane.after));
        // Schedules of one lane may have a round for each rank, and nobody asks when it began.
        if two_lanes {
            times.began[lane.index].push(round);
        }
        (times.round[lane.index], times.end[lane.index]) = (round, round);
        Ok(())
    }

    fn enter(&mut self, lane: usize) {
        self.lane = lane;
    }

    fn when(&self, ends: (u32, u32)) -> (f64, u32) {
        let began = |rank: u32| self.ranks[rank as usize % self.ranks.len()].round[self.lane];
        (began(ends.0).max(began(ends.1)), self.nodes.index(ends.0))
    }

    fn message(&mut self, _: usize, ends: (u32, u32), _: Span, into: Span, merge: Option<Merge>) {
        let (near, lane) = (self.is_near(ends), self.lane);
        let (alpha, overhead, beta) = self.model.link(near);
        let ready = self.at(ends.0).round[lane].max(self.at(ends.1).round[lane]);
        let occupied = overhead + self.bytes(into) * beta;
        let leaves = ready.max(self.ports(ends.0, near).out);
        let lands = ready.max(self.ports(ends.1, near).into);
        let arrives = leaves.max(lands) + alpha + self.bytes(into) * beta;
        let reduced = if merge.is_some() { self.bytes(into) * self.model.gamma } else { 0.0 };
        self.ports(ends.0, near).out = leaves + occupied;
        self.ports(ends.1, near).into = lands + occupied;
        let sender = self.at(ends.0);
        sender.end[lane] = sender.end[lane].max(leaves + occupied);
        let receiver = self.at(ends.1);
        receiver.end[lane] = receiver.end[lane].max(arrives);
        if reduced > 0.0 {
            receiver.work(lane, arrives, reduced);
        }
    }

    fn local(&mut self, _: usize, rank: u32, step: &Step) -> Result<(), String> {
        let seconds = match *step {
            Step::Reduce { into, .. } => self.bytes(into) * self.model.gamma,
            Step::Copy { into, .. } => self.bytes(into) * self.model.copy,
            _ => 0.0,
        };
        self.work(rank, 0.0, seconds);
        Ok(())
    }

    fn pack(&mut self, _: usize, rank: u32, _: u64, from: Span, sub_buffer: SubBuffer) -> Result<(), String> {
        let copied = if sub_buffer.holds(from.len) { self.bytes(from) * self.model.copy } else { 0.0 };
        self.work(rank, 0.0, copied);
        Ok(())
    }

    fn publish(&mut self, _: usize, rank: u32, seq: u64, from: Span, form: Form) {
        let copied = if form == Form::Inline { self.bytes(from) * self.model.copy } else { 0.0 };
        self.work(rank, 0.0, copied);
        let times = self.at(rank);
        times.published[(seq % CELLS) as usize] = (times.core, form == Form::Exposed, 0);
    }

    fn access(&mut self, _: usize, rank: u32, access: Access) -> Result<(), String> {
        let publisher = &mut self.ranks[access.publisher as usize];
        let (published, exposed, readers) = &mut publisher.published[(access.seq % CELLS) as usize];
        if access.into.is_none() {
            // A bare wait costs one transfer, like a look at an acknowledgement: no data follow.
            let (published, transfer) = (*published, self.model.transfer);
            self.work(rank, published, transfer);
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
        self.work(rank, served, model.transfer + read + reduced);
        Ok(())
    }

    fn ack_seen(&mut self, _: usize, rank: u32, other: u32, seq: u64) {
        let (acked, transfer) = (self.ranks[other as usize].acked[seq as usize], self.model.transfer);
        self.work(rank, acked, transfer);
    }

    fn ack(&mut self, _: usize, rank: u32, seq: u64) {
        self.work(rank, 0.0, 0.0);
        let times = self.at(rank);
        times.acked.resize(seq as usize + 1, times.core);
    }

    fn reusable(&mut self, rank: u32, _: &[u32], _: u64) {
        let transfer = self.model.transfer;
        self.work(rank, 0.0, transfer);
    }

    fn end(&mut self, _: usize, _: u32) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ALL, Kind, SharedCaps};

    /// Algorithms are chosen by the formulas, which must not be far from what the schedules really do.
    #[test]
    fn formulas_agree_with_schedules() {
        let model = Model::default();
        let mut wrong = vec![];
        for &row in ALL.iter().filter(|row| row.stages.is_empty()) {
            for ranks in [2, 3, 4, 7, 8, 13, 16, 33, 64] {
                for bytes in [64, 4096, 65536, 1 << 20] {
                    let topology = Topology::assumed(ranks, true, ranks);
                    let cell_bytes = topology.shared.map_or(0.0, |shared| shared.inline as f64);
                    let case = Case { cell_bytes, ..Case::plain(bytes as f64, ranks) };
                    let formula = model.time(&(row.cost)(&case), &topology);
                    let simulated = simulate(row, bytes, (&topology, None), &model)
                        .unwrap_or_else(|why| panic!("{row:?}, {ranks} ranks, {bytes} bytes: {why}"));
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
        let topology = Topology::assumed(1000, false, 1);
        let model = Model::default();
        let time =
            simulate(&crate::algorithms::barrier::DISSEMINATION, 0, (&topology, None), &model).unwrap();
        assert!((time / model.alpha - 10.0).abs() < 1e-6, "{time}");
    }

    /// One rank of each class stands for all of it: on nodes of equal sizes, on uneven ones, on one and on as many as ranks, with
    /// vectors that can be cut into equal parts for all ranks and with others.
    #[test]
    fn ranks_that_are_alike_are_simulated_once() {
        let tuning = Tuning::default();
        let (mut wrong, mut folded) = (vec![], std::collections::BTreeSet::new());
        for ranks in 1..=64u32 {
            for size in (1..=ranks).filter(|&size| ranks % size == 0 || size % 5 == 3) {
                let topology = Topology {
                    nodes: ranks.div_ceil(size),
                    per_node: size,
                    shared: Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 }),
                    ..Topology::assumed(ranks, false, ranks)
                };
                for (&row, bytes) in ALL.iter().flat_map(|row| [8 * ranks, 4100].map(|bytes| (row, bytes))) {
                    let simulation = Simulation::new(row, u64::from(bytes), (&topology, None), &tuning);
                    let classes = simulation.classes();
                    if classes == ranks || !row.stages.is_empty() && !topology.has_levels() {
                        continue;
                    }
                    let times = [classes, ranks].map(|classes| simulation.time(classes).unwrap());
                    folded.insert(format!("{row:?}"));
                    // Where messages of one round and of several ranks share ports, they may take turns in another order.
                    let far = if row.name == "spread" && simulation.nodes.period() > 1 { 0.02 } else { 1e-9 };
                    if (times[0] - times[1]).abs() > far * times[1] {
                        wrong.push(format!(
                            "{row:?}, {ranks} ranks, {size} on a node, {bytes} bytes: {times:?}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
        assert!(folded.len() >= 10, "only these were folded: {folded:?}");
    }

    #[test]
    fn a_ring_of_a_hundred_thousand_ranks_is_that_of_one() {
        let ranks = 100_000;
        let topology = Topology::assumed(ranks, false, 1);
        let model = Model::default();
        let ring = crate::of_kind(Kind::Allgather).find(|row| row.name == "ring").unwrap();
        let time = simulate(ring, 1000, (&topology, None), &model).unwrap();
        let formula = model.time(&(ring.cost)(&Case::plain(1000.0, ranks)), &topology);
        assert!((time / formula - 1.0).abs() < 1e-3, "{time}, by the formula {formula}");
    }

    /// Ranks on nodes of several sizes, block by block or dealt out in turn.
    fn uneven(ranks: u32, nodes: u32, in_turn: bool) -> (Topology, Nodes) {
        let node = |rank: u32| if in_turn { rank % nodes } else { (rank * rank * nodes) / (ranks * ranks) };
        let nodes = Nodes::new((0..ranks).map(node));
        let shared = Some(SharedCaps { inline: 4096, single_copy: true, scratch: 32 << 20 });
        let topology =
            Topology { ranks, nodes: nodes.number(), cores: ranks, per_node: nodes.largest(), shared };
        (topology, nodes)
    }

    #[test]
    fn compositions_cost_about_what_their_stages_do_and_less_than_flat_ones() {
        let tuning = crate::Tuning::default();
        let mut wrong = vec![];
        for (ranks, nodes) in [(16, 2), (24, 3), (32, 4), (64, 8), (61, 5)] {
            for (bytes, in_turn) in [(8, true), (8, false), (4096, true), (65536, false), (1 << 20, false)] {
                let (topology, nodes) = uneven(ranks, nodes, in_turn);
                for kind in [Kind::Barrier, Kind::Bcast, Kind::Reduce, Kind::Allreduce, Kind::Allgather] {
                    let time = |row| simulate(row, bytes, (&topology, Some(&nodes)), &tuning.model).unwrap();
                    let rows = || crate::of_kind(kind).filter(|row| row.needs == crate::Needs::Messages);
                    let best = |composed: bool| {
                        let rows = rows().filter(|row| row.stages.is_empty() != composed).map(time);
                        rows.fold(f64::INFINITY, f64::min) * 1e6
                    };
                    let (flat, composed) = (best(false), best(true));
                    // Long vectors are for what shares them out among the ranks of a node; a binomial tree over nodes that
                    // have their ranks in a row is as good as one over their leaders.
                    if bytes <= 4096 && composed > 1.05 * flat {
                        wrong.push(format!(
                            "{kind:?} {ranks} ranks {bytes} bytes: {composed} us, flat {flat}"
                        ));
                    }
                    for row in rows().filter(|row| !row.stages.is_empty()) {
                        let case = Case::plain(bytes as f64, ranks);
                        let formula = tuning.predict(row, &case, &topology) * 1e6;
                        let simulated = time(row) * 1e6;
                        if !(0.55..1.8).contains(&(formula / simulated)) {
                            wrong.push(format!(
                                "{row:?} {ranks} {bytes}: {formula} us, simulated {simulated}"
                            ));
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }

    /// While a chunk is between nodes, others are within them: over TCP, and over a network as quick as memory.
    #[test]
    fn levels_overlap_on_long_data() {
        let quick = Model { alpha: 2e-6, overhead: 0.3e-6, beta: 1.0 / 12e9, ..Model::default() };
        let mut wrong = vec![];
        for (model, most) in [(Model::default(), 0.98), (quick, 0.9)] {
            let tuning = Tuning { model, ..Tuning::default() };
            let (topology, nodes) = uneven(30, 4, model.beta < Model::default().beta);
            for kind in [Kind::Bcast, Kind::Reduce, Kind::Allreduce] {
                let row = crate::of_kind(kind).find(|row| !row.stages.is_empty()).unwrap();
                for bytes in [1 << 20, 8 << 20] {
                    let case = Case::plain(bytes as f64, topology.ranks);
                    let chunks = tuning.chunks(row, Some(case), &topology);
                    let simulation = Simulation::new(row, bytes, (&topology, Some(&nodes)), &tuning);
                    let time = |chunks| Simulation { chunks, ..simulation.clone() }.time(topology.ranks);
                    let [whole, chunked] = [1, chunks].map(|chunks| time(chunks).unwrap() * 1e6);
                    let formula = tuning.predict(row, &case, &topology) * 1e6;
                    let most = if bytes == 1 << 20 { 1.03 } else { most };
                    if chunks == 1 || chunked > most * whole || !(0.8..1.2).contains(&(formula / chunked)) {
                        wrong.push(format!(
                            "{kind:?} of {bytes}: {whole} us, in {chunks} chunks {chunked}, formula {formula}"
                        ));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
