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

use banyan_topo::Way;

use crate::lockstep::{Access, Counters, Lane, Machine, Operation, lockstep};
use crate::model::way_beside;
use crate::verify::{Trial, shape};
use crate::{
    Algorithm, Case, Explanation, Form, Kind, Merge, Model, Needs, NodeRanks, Nodes, Round, Shape, Span,
    Step, SubBuffer, Topology, Tuning,
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
        let cores = !self.topology.crowded();
        // Nothing simulates the copies to and from the host.
        let here = |row: &Algorithm| tuning.staged.is_none() || row.needs == Needs::Messages;
        for row in
            self.candidates.iter_mut().filter(|row| row.unfit.is_none() && cores && here(row.algorithm))
        {
            let simulation = Simulation::new(row.algorithm, self.bytes, (&self.topology, None), tuning);
            let classes = simulation.classes();
            row.simulated = (simulation.rounds(classes) <= MOST_ROUNDS)
                .then(|| simulation.time(classes).expect("the verifier has proved the schedule"));
        }
        self
    }
}

/// The ranks of other ranks that a round of a rank's has messages to and from.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Messages {
    /// To these.
    pub to: Vec<u32>,
    /// From these.
    pub from: Vec<u32>,
}

/// The schedules of all ranks for a collective of `bytes` bytes as the tuner chooses it, as far as they are messages.
pub struct Schedules<'a>(Simulation<'a>);

impl<'a> Schedules<'a> {
    /// Of ranks on these nodes.
    pub fn new(kind: Kind, bytes: u64, on: (&'a Topology, &Nodes), tuning: &'a Tuning) -> Schedules<'a> {
        let case = Case::plain(bytes as f64, on.0.ranks);
        let algorithm = tuning.choose(kind, Some(case), true, on.0);
        Schedules(Simulation::new(algorithm, bytes, (on.0, Some(on.1)), tuning))
    }

    /// The algorithm that is chosen.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.0.algorithm
    }

    /// The messages of each round of a rank.
    pub fn messages(&self, rank: u32) -> Vec<Messages> {
        let shape = self.0.shape(rank);
        let round = |index: u32| {
            let (mut round, mut messages) = (Round::default(), Messages::default());
            round.begin(index);
            self.0.algorithm.add_round(&shape, index, &mut round);
            for step in round.steps {
                match step {
                    Step::Send { to, .. } => messages.to.push(to),
                    Step::Recv { from, .. } | Step::RecvReduce { from, .. } => messages.from.push(from),
                    _ => {}
                }
            }
            messages
        };
        (0..self.0.algorithm.rounds(&shape)).map(round).collect()
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
            longest_copied: tuning.model.longest_copied(algorithm.kind, topology) as u64,
            products: tuning.model.products(topology),
            crowded: topology.crowded(),
            single_copy: topology.shared.is_some_and(|shared| shared.single_copy),
            ring: false,
            nodes: 0,
        };
        let nodes = nodes.cloned().unwrap_or_else(|| Nodes::in_a_row(topology));
        let chunks = tuning.chunks(algorithm, Some(Case::plain(bytes as f64, ranks)), topology);
        Simulation { algorithm, trial, topology, nodes: Arc::new(nodes), tuning, chunks }
    }

    /// The shape of a rank.
    fn shape(&self, rank: u32) -> Shape {
        let ring = self.tuning.ring.clone();
        let shape = Shape { ring, ..shape(self.algorithm.kind, rank, &self.trial) };
        let nodes = self.nodes.apart();
        if self.algorithm.stages.is_empty() || nodes.number() == 1 {
            return shape;
        }
        let (row, here) = ((self.algorithm, self.chunks), self.topology.within(&nodes, rank));
        let made = self.tuning.compose(row, &shape, true, (&nodes, self.topology, &here));
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
            beside: way_beside(self.algorithm.kind, self.topology),
            copy_between: self.tuning.model.copy_between(self.topology),
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
    /// By cell, the last publication: when it was made, of how many units is the range that it exposes, and how many ranks have read
    /// it.
    published: [(f64, Option<u64>, u32); CELLS as usize],
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
    /// The way that messages between ranks of a node take beside the ring.
    beside: Way,
    /// A byte copied into a CICO buffer, or out of one.
    copy_between: f64,
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

    /// The outermost level at which two ranks are apart.
    fn between(&self, (one, other): (u32, u32)) -> usize {
        self.nodes.between(one, other)
    }

    /// Transfer of a cache line from one rank's core to that of another.
    fn transfer(&self, from: u32, to: u32) -> f64 {
        self.model.links[self.between((from, to))].transfer
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
        let (between, lane) = (self.between(ends), self.lane);
        let (near, link) = (between > 0, self.model.links[between]);
        let ready = self.at(ends.0).round[lane].max(self.at(ends.1).round[lane]);
        let beside = if near { self.beside } else { Way::Ring };
        let sent = self.model.sent(&link, (1.0, 0.0), self.bytes(into), beside);
        let occupied = link.overhead + sent;
        let leaves = ready.max(self.ports(ends.0, near).out);
        let lands = ready.max(self.ports(ends.1, near).into);
        let arrives = leaves.max(lands) + link.alpha + sent;
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
        let copied = if sub_buffer.holds(from.len) { self.bytes(from) * self.copy_between } else { 0.0 };
        self.work(rank, 0.0, copied);
        Ok(())
    }

    fn publish(&mut self, _: usize, rank: u32, seq: u64, from: Span, form: Form) {
        let copied = if form == Form::Inline { self.bytes(from) * self.copy_between } else { 0.0 };
        self.work(rank, 0.0, copied);
        let times = self.at(rank);
        times.published[(seq % CELLS) as usize] =
            (times.core, (form == Form::Exposed).then_some(from.len), 0);
    }

    fn access(&mut self, _: usize, rank: u32, access: Access) -> Result<(), String> {
        // What it has published itself is in its own cache.
        let transfer = if access.publisher == rank { 0.0 } else { self.transfer(access.publisher, rank) };
        let publisher = &mut self.ranks[access.publisher as usize];
        let (published, exposed, readers) = &mut publisher.published[(access.seq % CELLS) as usize];
        if access.into.is_none() {
            // A bare wait costs one transfer, like a look at an acknowledgement: no data follow.
            let published = *published;
            self.work(rank, published, transfer);
            return Ok(());
        }
        let (served, exposed) = (*published + f64::from(*readers) * transfer / 8.0, *exposed);
        let alone = *readers == 0;
        *readers += 1;
        let bytes = access.moved().map_or(0.0, |into| self.bytes(into));
        let model = self.model;
        let read = match exposed {
            _ if access.moved().is_none() => 0.0,
            Some(units) => {
                let whole = access.moved().is_some_and(|into| into.len == units);
                let shared = if whole && !alone { bytes * model.shared_byte } else { 0.0 };
                model.get + model.got(1.0, bytes) + shared
            }
            // A reduction reads its operand where it lies.
            None if access.merge.is_some() => 0.0,
            None => bytes * self.copy_between,
        };
        let reduced = if access.merge.is_some() { bytes * model.gamma } else { 0.0 };
        self.work(rank, served, transfer + read + reduced);
        Ok(())
    }

    fn offer(&mut self, _: usize, rank: u32, _: u64, _: (Span, bool), _: SubBuffer) -> Result<(), String> {
        self.work(rank, 0.0, 0.0);
        Ok(())
    }

    fn take(&mut self, op: usize, rank: u32, place: (u32, u64, SubBuffer), into: Span) -> Result<(), String> {
        self.put(op, rank, place, into)
    }

    fn put(&mut self, _: usize, rank: u32, _: (u32, u64, SubBuffer), from: Span) -> Result<(), String> {
        let copied = self.model.get + self.model.got(1.0, self.bytes(from));
        self.work(rank, 0.0, copied);
        Ok(())
    }

    fn landed(&mut self, _: u32, _: u32, _: Span) -> Result<(), String> {
        Ok(())
    }

    fn ack_seen(&mut self, _: usize, rank: u32, other: u32, seq: u64) {
        let (acked, transfer) = (self.ranks[other as usize].acked[seq as usize], self.transfer(other, rank));
        self.work(rank, acked, transfer);
    }

    fn ack(&mut self, _: usize, rank: u32, seq: u64) {
        self.work(rank, 0.0, 0.0);
        let times = self.at(rank);
        times.acked.resize(seq as usize + 1, times.core);
    }

    fn reusable(&mut self, rank: u32, _: NodeRanks<'_>, _: u64) {
        let transfer = self.transfer(rank, rank);
        self.work(rank, 0.0, transfer);
    }

    fn end(&mut self, _: usize, _: u32) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
