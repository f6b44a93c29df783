//! Runs the schedules of all ranks in lockstep, without data: what the verifier and the simulator have in
//! common. Sends are synchronous: a message moves when both ends have come to it.

use crate::schedule::Guard;
use crate::sections::Allotment;
use crate::{Algorithm, Form, Merge, Needs, Round, Shape, Span, Step, SubBuffer};

/// One collective of all ranks.
pub(crate) struct Operation {
    pub(crate) algorithm: &'static Algorithm,
    /// Its shape at each rank.
    pub(crate) shapes: Vec<Shape>,
    /// The sequence number of phase 0.
    pub(crate) first: u64,
    /// The sections of the shared scratch that its chunks take.
    pub(crate) allotment: Allotment,
}

/// Carries out the steps, in symbols or in time. `op` is the number of the operation that a rank is in.
pub(crate) trait Machine {
    /// A rank begins a round of these steps.
    fn begin(&mut self, op: usize, rank: u32, steps: &[Step]) -> Result<(), String>;
    /// A message moves; `ends` are sender and receiver.
    fn message(&mut self, op: usize, ends: (u32, u32), from: Span, into: Span, merge: Option<Merge>);
    /// A copy or a reduction within a rank.
    fn local(&mut self, op: usize, rank: u32, step: &Step) -> Result<(), String>;
    /// A rank packs a block into a sub-buffer of its cell.
    fn pack(
        &mut self,
        op: usize,
        rank: u32,
        seq: u64,
        from: Span,
        sub_buffer: SubBuffer,
    ) -> Result<(), String>;
    /// A rank publishes.
    fn publish(&mut self, op: usize, rank: u32, seq: u64, from: Span, form: Form);
    /// A rank has seen that another one published, and reads the publication.
    fn access(&mut self, op: usize, rank: u32, access: Access) -> Result<(), String>;
    /// A rank has seen that another one acknowledged a sequence number.
    fn ack_seen(&mut self, op: usize, rank: u32, other: u32, seq: u64);
    /// A rank has seen that all ranks acknowledged a sequence number of an earlier operation.
    fn reusable(&mut self, op: usize, rank: u32, seq: u64);
    /// A rank acknowledges a sequence number.
    fn ack(&mut self, op: usize, rank: u32, seq: u64);
    /// A rank is through with an operation.
    fn end(&mut self, op: usize, rank: u32) -> Result<(), String>;
}

/// How a rank reads a publication.
#[derive(Clone, Copy, Default)]
pub(crate) struct Access {
    pub(crate) publisher: u32,
    pub(crate) seq: u64,
    pub(crate) at: u64,
    /// `None` if the rank only waits for the publication.
    pub(crate) into: Option<Span>,
    pub(crate) merge: Option<Merge>,
    /// The sub-buffer that it reads, if any: `into` is as long as the block.
    pub(crate) sub_buffer: Option<SubBuffer>,
}

impl Access {
    /// The range that data are copied to or combined into; `None` if none are, as the block goes by message.
    pub(crate) fn moved(&self) -> Option<Span> {
        self.into.filter(|into| self.sub_buffer.is_none_or(|sub_buffer| sub_buffer.holds(into.len)))
    }
}

struct RankState {
    /// The operation that the rank is in.
    op: usize,
    /// The number of the next round.
    next: u32,
    /// The present round.
    round: Round,
    /// By step of the round, whether it is not over.
    open: Vec<bool>,
    /// How many steps of the round are not over.
    left: usize,
    /// The last sequence number that the rank published under.
    published: u64,
    /// The last sequence number that the rank acknowledged.
    acked: u64,
}

/// Runs the operations, one after the other at each rank, without waiting between them; `order` is
/// the order in which ranks get their turns.
pub(crate) fn lockstep(
    ops: &[Operation],
    machine: &mut impl Machine,
    order: &[u32],
    cells: u64,
) -> Result<(), String> {
    let fresh = || RankState {
        op: 0,
        next: 0,
        round: Round::default(),
        open: vec![],
        left: 0,
        published: 0,
        acked: 0,
    };
    let pairs =
        if ops.iter().any(|op| op.algorithm.needs != Needs::Messages) { order.len().pow(2) } else { 0 };
    let states = order.iter().map(|_| fresh()).collect();
    let mut lockstep = Lockstep { ops, machine, states, last_accessed: vec![0; pairs], cells };
    loop {
        let mut progress = false;
        for &rank in order {
            while lockstep.turn(rank)? {
                progress = true;
            }
        }
        if lockstep.states.iter().all(|state| state.op == ops.len()) {
            return Ok(());
        }
        if !progress {
            return Err(lockstep.deadlock());
        }
    }
}

struct Lockstep<'a, M> {
    ops: &'a [Operation],
    machine: &'a mut M,
    states: Vec<RankState>,
    /// By reader and publisher, the last sequence number that the reader accessed; empty if CICO buffers are not used.
    last_accessed: Vec<u64>,
    /// Cells of a CICO buffer.
    cells: u64,
}

impl<M: Machine> Lockstep<'_, M> {
    /// Does what a rank can do now; false if that is nothing.
    fn turn(&mut self, rank: u32) -> Result<bool, String> {
        let state = &mut self.states[rank as usize];
        if state.op == self.ops.len() {
            return Ok(false);
        }
        if state.left > 0 {
            return self.try_steps(rank);
        }
        let (op, here) = (state.op, &self.ops[state.op]);
        let shape = &here.shapes[rank as usize];
        if state.next == here.algorithm.rounds(shape) {
            (state.op, state.next) = (op + 1, 0);
            self.machine.end(op, rank)?;
            return Ok(true);
        }
        state.round.begin(state.next);
        here.algorithm.round(shape, state.next, &mut state.round);
        state.next += 1;
        state.left = state.round.steps.len();
        state.open.clear();
        state.open.resize(state.left, true);
        self.machine.begin(op, rank, &state.round.steps)?;
        Ok(true)
    }

    /// Tries all open steps of a rank's round; false if none is over.
    fn try_steps(&mut self, rank: u32) -> Result<bool, String> {
        let mut progress = false;
        for index in 0..self.states[rank as usize].open.len() {
            if self.states[rank as usize].open[index] && self.step(rank, index)? {
                self.close(rank, index);
                progress = true;
            }
        }
        Ok(progress)
    }

    fn close(&mut self, rank: u32, index: usize) {
        let state = &mut self.states[rank as usize];
        debug_assert!(state.open[index]);
        state.open[index] = false;
        state.left -= 1;
    }

    /// True if the step is over.
    fn step(&mut self, rank: u32, index: usize) -> Result<bool, String> {
        let (op, step) = {
            let state = &self.states[rank as usize];
            (state.op, state.round.steps[index])
        };
        if !self.may(op, rank, step.guard()) {
            return Ok(false);
        }
        let seq = |phase: u32| self.ops[op].first + u64::from(phase);
        match step {
            Step::Send { to, from, key } => {
                let Some((other, into, merge)) = self.partner(op, to, rank, key) else { return Ok(false) };
                if into.len != from.len {
                    return Err(format!("rank {rank} sends {} units to rank {to}: {into:?}", from.len));
                }
                self.machine.message(op, (rank, to), from, into, merge);
                self.close(to, other);
            }
            // The message moves when the sender has its turn.
            Step::Recv { .. } | Step::RecvReduce { .. } => return Ok(false),
            Step::Reduce { .. } | Step::Copy { .. } => self.machine.local(op, rank, &step)?,
            Step::Pack { from, phase, sub_buffer } => {
                self.unpublished(rank, seq(phase))?;
                self.machine.pack(op, rank, seq(phase), from, sub_buffer)?;
            }
            Step::Publish { from, phase, form } => {
                self.unpublished(rank, seq(phase))?;
                self.machine.publish(op, rank, seq(phase), from, form);
                self.states[rank as usize].published = seq(phase);
            }
            Step::Await { rank: publisher, phase } => {
                self.access(op, rank, Access { publisher, seq: seq(phase), ..Access::default() })?;
            }
            Step::Unpack { rank: publisher, phase, sub_buffer, into } => {
                let (seq, into, sub_buffer) = (seq(phase), Some(into), Some(sub_buffer));
                self.access(op, rank, Access { publisher, seq, into, sub_buffer, ..Access::default() })?;
            }
            Step::Get { rank: publisher, phase, at, into } => {
                let (seq, into) = (seq(phase), Some(into));
                self.access(op, rank, Access { publisher, seq, at, into, ..Access::default() })?;
            }
            Step::GetReduce { rank: publisher, phase, at, merge } => {
                let (seq, into, merge) = (seq(phase), Some(merge.into), Some(merge));
                self.access(op, rank, Access { publisher, seq, at, into, merge, sub_buffer: None })?;
            }
            Step::Ack { phase } => {
                self.states[rank as usize].acked = seq(phase);
                self.machine.ack(op, rank, seq(phase));
            }
            Step::WaitAck { rank: other, phase } => self.machine.ack_seen(op, rank, other, seq(phase)),
            Step::WaitReuse { chunk } => {
                self.machine.reusable(op, rank, self.ops[op].allotment.used(chunk));
            }
        }
        Ok(true)
    }

    /// True if a rank may carry out a step with this guard.
    fn may(&self, op: usize, rank: u32, guard: Guard) -> bool {
        let (first, acked) = (self.ops[op].first, |rank: u32| self.states[rank as usize].acked);
        let seq = |phase: u32| first + u64::from(phase);
        let all = |least: u64| self.states.iter().all(|state| state.acked >= least);
        let turn = acked(rank) + 1 >= first;
        match guard {
            Guard::Free | Guard::Message(_) => true,
            Guard::Turn => turn,
            Guard::CellFree(phase) => turn && all(seq(phase).saturating_sub(self.cells)),
            Guard::Published(other, phase) => turn && self.states[other as usize].published >= seq(phase),
            Guard::Acked(other, phase) => turn && acked(other) >= seq(phase),
            Guard::Reusable(chunk) => turn && all(self.ops[op].allotment.used(chunk)),
        }
    }

    fn unpublished(&self, rank: u32, seq: u64) -> Result<(), String> {
        match self.states[rank as usize].published >= seq {
            true => Err(format!("rank {rank} publishes {seq} too late")),
            false => Ok(()),
        }
    }

    /// Reads a publication that is there.
    fn access(&mut self, op: usize, rank: u32, access: Access) -> Result<(), String> {
        if self.states[rank as usize].acked >= access.seq {
            return Err(format!(
                "rank {rank} looks at sequence number {}, which it has acknowledged",
                access.seq
            ));
        }
        let index = rank as usize * self.states.len() + access.publisher as usize;
        if std::mem::replace(&mut self.last_accessed[index], access.seq) == access.seq {
            return Err(format!("rank {rank} looks at rank {} twice in a phase", access.publisher));
        }
        self.machine.access(op, rank, access)
    }

    /// The open receive at `to` of a message from `sender`.
    fn partner(&self, op: usize, to: u32, sender: u32, key: u32) -> Option<(usize, Span, Option<Merge>)> {
        let state = self.states.get(to as usize).filter(|state| state.op == op)?;
        let open = state.round.steps.iter().enumerate().filter(|&(index, _)| state.open[index]);
        open.filter_map(|(index, step)| match *step {
            Step::Recv { from, into, key: k } if (from, k) == (sender, key) => Some((index, into, None)),
            Step::RecvReduce { from, merge, key: k } if (from, k) == (sender, key) => {
                Some((index, merge.into, Some(merge)))
            }
            _ => None,
        })
        .next()
    }

    /// Says what the first ranks that are stuck wait for.
    fn deadlock(&self) -> String {
        let stuck = self.states.iter().enumerate().filter(|(_, state)| state.left > 0);
        let lines = stuck.take(4).map(|(rank, state)| {
            let open = state.round.steps.iter().zip(&state.open).filter(|(_, open)| **open);
            let open: Vec<_> = open.map(|(step, _)| step).take(3).collect();
            format!("rank {rank} before round {} waits in {open:?}", state.next)
        });
        format!("deadlock: {}", lines.collect::<Vec<_>>().join("; "))
    }
}
