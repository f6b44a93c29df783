//! Walks the schedules of all ranks together, without data: what the verifier and the simulator have in
//! common. Sends are synchronous: a message moves when both sides have come to it.

use crate::sections::Taken;
use crate::{Algorithm, Form, Merge, Needs, Pocket, Round, Shape, Span, Step};

/// One collective of all ranks.
pub(crate) struct Operation {
    pub(crate) algorithm: &'static Algorithm,
    /// By rank.
    pub(crate) shapes: Vec<Shape>,
    /// The stamp of its phase 0.
    pub(crate) first: u64,
    /// Where on the board its chunks go.
    pub(crate) taken: Taken,
}

/// What becomes of the steps; `op` is the number of the operation that a rank is in.
pub(crate) trait Machine {
    /// A rank comes to a round of these steps.
    fn begin(&mut self, op: usize, rank: u32, steps: &[Step]) -> Result<(), String>;
    /// A message moves.
    fn message(&mut self, op: usize, ends: (u32, u32), from: Span, into: Span, merge: Option<Merge>);
    /// A copy or a reduction within a rank.
    fn local(&mut self, op: usize, rank: u32, step: &Step) -> Result<(), String>;
    /// A rank lays something into its slot.
    fn lay(&mut self, op: usize, rank: u32, stamp: u64, from: Span, pocket: Pocket) -> Result<(), String>;
    /// A rank publishes.
    fn publish(&mut self, op: usize, rank: u32, stamp: u64, from: Span, form: Form);
    /// A rank saw that another published, and takes something out of it.
    fn look(&mut self, op: usize, rank: u32, look: Look) -> Result<(), String>;
    /// A rank saw that another released a stamp.
    fn drained(&mut self, op: usize, rank: u32, other: u32, stamp: u64);
    /// A rank saw that all have released a stamp of an operation before its own.
    fn settled(&mut self, op: usize, rank: u32, stamp: u64);
    /// A rank released a stamp.
    fn release(&mut self, op: usize, rank: u32, stamp: u64);
    /// A rank is through with an operation.
    fn end(&mut self, op: usize, rank: u32) -> Result<(), String>;
}

/// What a rank takes out of a publication.
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    pub(crate) publisher: u32,
    pub(crate) stamp: u64,
    pub(crate) at: u64,
    /// Nothing, if it only waits.
    pub(crate) into: Option<Span>,
    pub(crate) merge: Option<Merge>,
    /// It takes it out of that, and knows how much there is.
    pub(crate) pocket: Option<Pocket>,
}

impl Look {
    /// What is copied or combined.
    pub(crate) fn taken(&self) -> Option<Span> {
        self.into.filter(|into| self.pocket.is_none_or(|pocket| pocket.holds(into.len)))
    }
}

struct Node {
    op: usize,
    next: u32,
    round: Round,
    open: Vec<bool>,
    left: usize,
    published: u64,
    released: u64,
}

/// Walks all the operations, one after the other at each rank, without waiting between them; `order` is
/// the order in which ranks get their turns.
pub(crate) fn walk(
    ops: &[Operation],
    machine: &mut impl Machine,
    order: &[u32],
    banks: u64,
) -> Result<(), String> {
    let fresh =
        || Node { op: 0, next: 0, round: Round::default(), open: vec![], left: 0, published: 0, released: 0 };
    let pairs =
        if ops.iter().any(|op| op.algorithm.needs != Needs::Messages) { order.len().pow(2) } else { 0 };
    let nodes = order.iter().map(|_| fresh()).collect();
    let mut walk = Walk { ops, machine, nodes, looked: vec![0; pairs], banks };
    loop {
        let mut moved = false;
        for &rank in order {
            while walk.turn(rank)? {
                moved = true;
            }
        }
        if walk.nodes.iter().all(|node| node.op == ops.len()) {
            return Ok(());
        }
        if !moved {
            return Err(walk.deadlock());
        }
    }
}

struct Walk<'a, M> {
    ops: &'a [Operation],
    machine: &'a mut M,
    nodes: Vec<Node>,
    /// The last stamp that each rank looked at in each other's slot, if slots are used.
    looked: Vec<u64>,
    /// Of a slot.
    banks: u64,
}

impl<M: Machine> Walk<'_, M> {
    /// Does what can be done at a rank; false if that is nothing.
    fn turn(&mut self, rank: u32) -> Result<bool, String> {
        let node = &mut self.nodes[rank as usize];
        if node.op == self.ops.len() {
            return Ok(false);
        }
        if node.left > 0 {
            return self.tries(rank);
        }
        let (op, here) = (node.op, &self.ops[node.op]);
        let shape = &here.shapes[rank as usize];
        if node.next == (here.algorithm.rounds)(shape) {
            (node.op, node.next) = (op + 1, 0);
            self.machine.end(op, rank)?;
            return Ok(true);
        }
        node.round.begin(node.next);
        (here.algorithm.round)(shape, node.next, &mut node.round);
        node.next += 1;
        node.left = node.round.steps.len();
        node.open.clear();
        node.open.resize(node.left, true);
        self.machine.begin(op, rank, &node.round.steps)?;
        Ok(true)
    }

    fn tries(&mut self, rank: u32) -> Result<bool, String> {
        let mut moved = false;
        for index in 0..self.nodes[rank as usize].open.len() {
            if self.nodes[rank as usize].open[index] && self.step(rank, index)? {
                self.close(rank, index);
                moved = true;
            }
        }
        Ok(moved)
    }

    fn close(&mut self, rank: u32, index: usize) {
        let node = &mut self.nodes[rank as usize];
        debug_assert!(node.open[index]);
        node.open[index] = false;
        node.left -= 1;
    }

    /// True if the step is over.
    fn step(&mut self, rank: u32, index: usize) -> Result<bool, String> {
        let (op, step) = {
            let node = &self.nodes[rank as usize];
            (node.op, node.round.steps[index])
        };
        let stamp = |phase: u32| self.ops[op].first + u64::from(phase);
        match step {
            Step::Send { to, from, key } => {
                let Some((other, into, merge)) = self.partner(op, to, rank, key) else { return Ok(false) };
                if into.len != from.len {
                    return Err(format!("rank {rank} sends {} units to rank {to}: {into:?}", from.len));
                }
                self.machine.message(op, (rank, to), from, into, merge);
                self.close(to, other);
            }
            // The sender finds the receiver, when its turn comes.
            Step::Recv { .. } | Step::RecvReduce { .. } => return Ok(false),
            Step::Reduce { .. } | Step::Copy { .. } => self.machine.local(op, rank, &step)?,
            Step::Lay { phase, .. } | Step::Publish { phase, .. } => {
                let stamp = stamp(phase);
                let clear = self.nodes.iter().all(|node| node.released + self.banks >= stamp);
                let turn = self.nodes[rank as usize].released + 1 >= self.ops[op].first;
                if !clear || !turn {
                    return Ok(false);
                }
                if self.nodes[rank as usize].published >= stamp {
                    return Err(format!("rank {rank} publishes {stamp} too late"));
                }
                match step {
                    Step::Lay { from, pocket, .. } => self.machine.lay(op, rank, stamp, from, pocket)?,
                    Step::Publish { from, form, .. } => {
                        self.machine.publish(op, rank, stamp, from, form);
                        self.nodes[rank as usize].published = stamp;
                    }
                    _ => {}
                }
            }
            Step::Await { rank: publisher, phase } => {
                let stamp = stamp(phase);
                return self.look(op, rank, Look { publisher, stamp, ..Look::default() });
            }
            Step::Fetch { rank: publisher, phase, pocket, into } => {
                let (stamp, into, pocket) = (stamp(phase), Some(into), Some(pocket));
                return self.look(op, rank, Look { publisher, stamp, into, pocket, ..Look::default() });
            }
            Step::Pull { rank: publisher, phase, at, into } => {
                let (stamp, into) = (stamp(phase), Some(into));
                return self.look(op, rank, Look { publisher, stamp, at, into, ..Look::default() });
            }
            Step::PullReduce { rank: publisher, phase, at, merge } => {
                let (stamp, into, merge) = (stamp(phase), Some(merge.into), Some(merge));
                let look = Look { publisher, stamp, at, into, merge, pocket: None };
                return self.look(op, rank, look);
            }
            Step::Release { phase } => {
                let node = &mut self.nodes[rank as usize];
                if node.released + 1 < self.ops[op].first {
                    return Ok(false);
                }
                node.released = self.ops[op].first + u64::from(phase);
                self.machine.release(op, rank, node.released);
            }
            Step::Drain { rank: other, phase } => {
                let stamp = stamp(phase);
                if self.nodes[other as usize].released < stamp {
                    return Ok(false);
                }
                self.machine.drained(op, rank, other, stamp);
            }
            Step::Settle { chunk } => {
                let before = self.ops[op].taken.used(chunk);
                if self.nodes.iter().any(|node| node.released < before) {
                    return Ok(false);
                }
                self.machine.settled(op, rank, before);
            }
        }
        Ok(true)
    }

    fn look(&mut self, op: usize, rank: u32, look: Look) -> Result<bool, String> {
        if self.nodes[rank as usize].released >= look.stamp {
            return Err(format!("rank {rank} looks at stamp {}, which it has released", look.stamp));
        }
        let turn = self.nodes[rank as usize].released + 1 >= self.ops[op].first;
        if !turn || self.nodes[look.publisher as usize].published < look.stamp {
            return Ok(false);
        }
        let place = (rank as usize, look.publisher as usize);
        if std::mem::replace(&mut self.looked[place.0 * self.nodes.len() + place.1], look.stamp) == look.stamp
        {
            return Err(format!("rank {rank} looks at rank {} twice in a phase", look.publisher));
        }
        self.machine.look(op, rank, look)?;
        Ok(true)
    }

    /// The open receive at `to` of a message from `sender`.
    fn partner(&self, op: usize, to: u32, sender: u32, key: u32) -> Option<(usize, Span, Option<Merge>)> {
        let node = self.nodes.get(to as usize).filter(|node| node.op == op)?;
        let open = node.round.steps.iter().enumerate().filter(|&(index, _)| node.open[index]);
        open.filter_map(|(index, step)| match *step {
            Step::Recv { from, into, key: k } if (from, k) == (sender, key) => Some((index, into, None)),
            Step::RecvReduce { from, merge, key: k } if (from, k) == (sender, key) => {
                Some((index, merge.into, Some(merge)))
            }
            _ => None,
        })
        .next()
    }

    fn deadlock(&self) -> String {
        let stuck = self.nodes.iter().enumerate().filter(|(_, node)| node.left > 0);
        let lines = stuck.take(4).map(|(rank, node)| {
            let open = node.round.steps.iter().zip(&node.open).filter(|(_, open)| **open);
            let open: Vec<_> = open.map(|(step, _)| step).take(3).collect();
            format!("rank {rank} before round {} waits in {open:?}", node.next)
        });
        format!("deadlock: {}", lines.collect::<Vec<_>>().join("; "))
    }
}
