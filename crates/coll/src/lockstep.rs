//! Runs the schedules of all ranks in lockstep, without data: what the verifier and the simulator have in
//! common. Sends are synchronous: a message moves when both ends have come to it, and of several messages the one that can be the
//! first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::lanes::Lanes;
use crate::schedule::Guard;
use crate::sections::{Allotment, Cut, Sections, SharedUse};
use crate::{Algorithm, Buf, Form, Merge, NodeRanks, Nodes, Round, Shape, Span, Step, SubBuffer};

/// One collective of all ranks.
pub(crate) struct Operation {
    pub(crate) algorithm: &'static Algorithm,
    /// Its shape at each rank.
    pub(crate) shapes: Vec<Shape>,
    /// What each rank uses of its shared buffers, one after the other.
    pub(crate) windows: Vec<Vec<Window>>,
}

/// The part of the shared buffers that a collective uses, or one stage of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The sequence number of phase 0.
    pub(crate) first: u64,
    pub(crate) phases: u32,
    /// The sections of the shared scratch that its chunks take.
    allotment: Allotment,
    cut: Cut,
}

/// Where the ranks that share buffers are in the order of sequence numbers.
pub(crate) struct Counters {
    seq: u64,
    sections: Sections,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters { seq: 1, sections: Sections::default() }
    }

    /// What the next collective uses at a rank of this shape.
    pub(crate) fn take(&mut self, algorithm: &Algorithm, shape: &Shape) -> Vec<Window> {
        let mut windows = vec![];
        algorithm.shared_uses(shape, |SharedUse { phases, chunks, cut }| {
            let (first, allotment) = (self.seq, self.sections.take(chunks, (self.seq, phases)));
            windows.push(Window { first, phases, allotment, cut });
            self.seq += u64::from(phases);
        });
        windows
    }
}

/// Carries out the steps, in symbols or in time. `op` is the number of the operation that a rank is in.
pub(crate) trait Machine {
    /// A rank begins a round of these steps.
    fn begin(&mut self, op: usize, rank: u32, steps: &[Step], lane: Lane) -> Result<(), String>;
    /// What follows is about steps of this lane.
    fn enter(&mut self, _lane: usize) {}
    /// When a message can move whose ends, sender and receiver, have come to it in the present lane: the least goes first.
    fn when(&self, _ends: (u32, u32)) -> (f64, u32) {
        (0.0, 0)
    }
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
    /// A rank offers a range in a sub-buffer of its cell.
    fn offer(
        &mut self,
        op: usize,
        rank: u32,
        seq: u64,
        range: (Span, bool),
        sub_buffer: SubBuffer,
    ) -> Result<(), String>;
    /// A rank takes what another one has offered.
    fn take(&mut self, op: usize, rank: u32, place: (u32, u64, SubBuffer), into: Span) -> Result<(), String>;
    /// A rank puts a block to where another one has offered it.
    fn put(&mut self, op: usize, rank: u32, place: (u32, u64, SubBuffer), from: Span) -> Result<(), String>;
    /// A rank has seen that another one published, and has what that one has put.
    fn landed(&mut self, rank: u32, other: u32, into: Span) -> Result<(), String>;
    /// A rank publishes.
    fn publish(&mut self, op: usize, rank: u32, seq: u64, from: Span, form: Form);
    /// A rank has seen that another one published, and reads the publication.
    fn access(&mut self, op: usize, rank: u32, access: Access) -> Result<(), String>;
    /// A rank has seen that another one acknowledged a sequence number.
    fn ack_seen(&mut self, op: usize, rank: u32, other: u32, seq: u64);
    /// A rank has seen that all `ranks` that share buffers acknowledged a sequence number of an earlier operation.
    fn reusable(&mut self, rank: u32, ranks: NodeRanks<'_>, seq: u64);
    /// A rank acknowledges a sequence number.
    fn ack(&mut self, op: usize, rank: u32, seq: u64);
    /// A rank is through with an operation.
    fn end(&mut self, op: usize, rank: u32) -> Result<(), String>;
}

/// The lane that a rank begins a round in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lane {
    pub(crate) index: usize,
    /// Rounds of the other lane that must have been over.
    pub(crate) after: u32,
    /// The other lane has a round under way.
    pub(crate) beside: bool,
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
    /// All that was published is one block, and `into` is as long.
    pub(crate) whole: bool,
}

impl Access {
    /// The range that data are copied to or combined into; `None` if none are, as the block goes by message.
    pub(crate) fn moved(&self) -> Option<Span> {
        self.into.filter(|into| !SubBuffer::leaves_out(self.sub_buffer, into.len))
    }
}

#[derive(Default)]
struct RankState {
    /// The operation that the rank is in.
    op: usize,
    /// The number of the next round.
    next: u32,
    /// The present round, or, in a composition, those of both lanes.
    round: Round,
    lanes: Lanes,
    /// Which part of what it uses of shared buffers.
    window: u32,
    /// By step of the round, whether it is not over, nor a message whose other end is there.
    open: Vec<bool>,
    /// How many steps of the round are not over.
    left: usize,
    /// The last sequence number that the rank published under.
    published: u64,
    /// The last sequence number that the rank acknowledged.
    acked: u64,
}

/// Runs the operations, one after the other at each rank, without waiting between them; `order` is
/// the order in which ranks get their turns. Ranks on one node share buffers. If there are fewer than `nodes` have, each of them
/// stands for all ranks that have the same remainder by their number, and what is for one of those is for it; those that share
/// buffers with it are all there.
pub(crate) fn lockstep(
    ops: &[Operation],
    machine: &mut impl Machine,
    (order, nodes): (&[u32], &Nodes),
    cells: u64,
) -> Result<(), String> {
    let pairs = if ops.iter().any(|op| op.windows.iter().any(|windows| !windows.is_empty())) {
        order.len().pow(2)
    } else {
        0
    };
    let states = order.iter().map(|_| RankState::default()).collect();
    let (last_accessed, messages) = (vec![0; pairs], BinaryHeap::new());
    let mut lockstep = Lockstep { ops, machine, nodes, states, messages, met: 0, last_accessed, cells };
    loop {
        let mut progress = false;
        for &rank in order {
            progress |= lockstep.go_on(rank)?;
        }
        while let Some(Reverse(message)) = lockstep.messages.pop() {
            lockstep.move_message(message)?;
            progress |= lockstep.go_on(message.sender)? | lockstep.go_on(message.receiver)?;
        }
        if lockstep.states.iter().all(|state| state.op == ops.len()) {
            return Ok(());
        }
        if !progress {
            return Err(lockstep.deadlock());
        }
    }
}

/// Puts the ranges on the shared scratch where they really lie.
fn on_scratch(steps: &mut [Step], allotment: &Allotment, cut: &Cut) {
    let place = |span: Span| match span.buf {
        Buf::SharedScratch if span.len > 0 => Span { at: allotment.at(span.at, cut), ..span },
        _ => span,
    };
    for step in steps {
        *step = step.over(1, |span| Some(place(span))).unwrap_or(*step);
    }
}

/// A message that both ends have come to: the ranks that stand for its ends, each with the place of its step, and the rank that it
/// is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    /// When it can move (the bits of a time, then some order), and which one of those found so far it is.
    when: (u64, u32),
    number: u64,
    sender: u32,
    send: usize,
    receiver: u32,
    recv: usize,
    to: u32,
}

struct Lockstep<'a, M> {
    ops: &'a [Operation],
    machine: &'a mut M,
    nodes: &'a Nodes,
    states: Vec<RankState>,
    /// Those that can move.
    messages: BinaryHeap<Reverse<Message>>,
    /// How many messages both ends have come to so far.
    met: u64,
    /// By reader and publisher, the last sequence number that the reader accessed; empty if CICO buffers are not used.
    last_accessed: Vec<u64>,
    /// Cells of a CICO buffer.
    cells: u64,
}

impl<M: Machine> Lockstep<'_, M> {
    /// Does all that a rank can do without a message; false if that is nothing.
    fn go_on(&mut self, rank: u32) -> Result<bool, String> {
        let mut progress = false;
        while self.turn(rank)? {
            progress = true;
        }
        Ok(progress)
    }

    /// Does what a rank can do now; false if that is nothing.
    fn turn(&mut self, rank: u32) -> Result<bool, String> {
        let state = &mut self.states[rank as usize];
        if state.op == self.ops.len() {
            return Ok(false);
        }
        let (op, here) = (state.op, &self.ops[state.op]);
        let shape = &here.shapes[rank as usize];
        let next = match &shape.composition {
            Some(composition) => composition.next(&state.lanes),
            None => (state.left == 0 && state.next < here.algorithm.rounds(shape)).then_some((0, 0)),
        };
        let Some((lane, after)) = next else {
            if state.left > 0 {
                return self.try_steps(rank);
            }
            (state.op, state.next) = (op + 1, 0);
            state.lanes.restart();
            self.machine.end(op, rank)?;
            return Ok(true);
        };
        if state.left == 0 {
            state.round.begin(state.next);
            state.open.clear();
        }
        let before = state.round.steps.len();
        let window = match &shape.composition {
            Some(composition) => composition.begin(lane, &mut state.lanes, &mut state.round),
            None => {
                (here.algorithm.round)(shape, state.next, &mut state.round);
                Some(0)
            }
        };
        state.window = window.unwrap_or(state.window);
        if let Some(Window { allotment, cut, .. }) = here.windows[rank as usize].get(state.window as usize) {
            on_scratch(&mut state.round.steps[before..], allotment, cut);
        }
        let strange = |step: &&Step| matches!(step.guard(), Guard::Message(peer) if peer >= shape.ranks);
        if let Some(step) = state.round.steps[before..].iter().find(strange) {
            return Err(format!("rank {rank} has {step:?} among {} ranks", shape.ranks));
        }
        state.next += 1;
        state.left += state.round.steps.len() - before;
        state.open.resize(state.round.steps.len(), true);
        let lane = Lane { index: lane, after, beside: state.lanes.is_open(1 - lane) };
        self.machine.begin(op, rank, &state.round.steps[before..], lane)?;
        (before..self.states[rank as usize].round.steps.len())
            .try_for_each(|index| self.meet(rank, index))?;
        Ok(true)
    }

    /// If a step is a message that the other end has come to before, it can move.
    fn meet(&mut self, rank: u32, index: usize) -> Result<(), String> {
        let state = &self.states[rank as usize];
        let step = state.round.steps[index];
        let Guard::Message(peer) = step.guard() else { return Ok(()) };
        let at = peer % self.states.len() as u32;
        let Some(found) = self.counterpart((rank, &step), at).filter(|_| state.open[index]) else {
            return Ok(());
        };
        let other = self.states[at as usize].round.steps[found];
        let ((sender, send), (receiver, recv), to) = match other {
            Step::Send { to, .. } => ((at, found), (rank, index), to),
            _ => ((rank, index), (at, found), peer),
        };
        let [sent, room] = [(sender, send), (receiver, recv)].map(|(rank, index)| {
            self.states[rank as usize].round.steps[index].range().map_or(0, |range| range.len)
        });
        if sent != room {
            return Err(format!("rank {sender} sends {sent} units to rank {to}, which expects {room}"));
        }
        self.states[rank as usize].open[index] = false;
        self.states[at as usize].open[found] = false;
        self.machine.enter(self.states[sender as usize].lanes.of(send));
        let (time, order) = self.machine.when((sender, to));
        // The bits of times are in the order of times, as none is negative.
        let (when, number) = ((time.to_bits(), order), self.met);
        self.messages.push(Reverse(Message { when, number, sender, send, receiver, recv, to }));
        self.met += 1;
        Ok(())
    }

    /// The open step at a rank that is the other end of a message.
    fn counterpart(&self, (rank, step): (u32, &Step), at: u32) -> Option<usize> {
        let end = |step: &Step| match *step {
            Step::Send { to, key, .. } => Some((true, to, key)),
            Step::Recv { from, key, .. } | Step::RecvReduce { from, key, .. } => Some((false, from, key)),
            _ => None,
        };
        let (sends, _, key) = end(step)?;
        let fits = |(other_sends, peer, other_key)| {
            other_sends != sends && (peer % self.states.len() as u32, other_key) == (rank, key)
        };
        let other = &self.states[at as usize];
        let mut steps = other.round.steps.iter().zip(&other.open);
        let same = self.states[rank as usize].op == other.op;
        same.then(|| steps.position(|(step, open)| *open && end(step).is_some_and(fits))).flatten()
    }

    fn move_message(
        &mut self,
        Message { sender, send, receiver, recv, to, .. }: Message,
    ) -> Result<(), String> {
        let (from, into) = (&self.states[sender as usize], &self.states[receiver as usize]);
        let merge = match into.round.steps[recv] {
            Step::RecvReduce { merge, .. } => Some(merge),
            _ => None,
        };
        let ranges = (from.round.steps[send].range(), into.round.steps[recv].range());
        let (Some(source), Some(place)) = ranges else { unreachable!("messages have ranges") };
        self.machine.enter(from.lanes.of(send));
        self.machine.message(from.op, (sender, to), source, place, merge);
        self.close(sender, send);
        self.close(receiver, recv);
        Ok(())
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
        state.open[index] = false;
        state.left -= 1;
        state.lanes.close(index);
    }

    /// True if the step is over.
    fn step(&mut self, rank: u32, index: usize) -> Result<bool, String> {
        let (op, step) = {
            let state = &self.states[rank as usize];
            (state.op, state.round.steps[index])
        };
        self.machine.enter(self.states[rank as usize].lanes.of(index));
        let window = self.window(rank);
        if !self.may(rank, window, step.guard()) {
            return Ok(false);
        }
        let seq = |phase: u32| window.map_or(0, |window| window.first) + u64::from(phase);
        let ranks = self.nodes.ranks(self.nodes.of(rank));
        match step {
            Step::Send { .. } | Step::Recv { .. } | Step::RecvReduce { .. } => return Ok(false),
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
                let publisher = ranks.at(publisher);
                self.access(op, rank, Access { publisher, seq: seq(phase), ..Access::default() })?;
            }
            Step::Unpack { rank: publisher, phase, sub_buffer, into } => {
                let (seq, into, publisher) = (seq(phase), Some(into), ranks.at(publisher));
                let whole = sub_buffer.is_none();
                let access = Access { publisher, seq, into, sub_buffer, whole, ..Access::default() };
                self.access(op, rank, access)?;
            }
            Step::Get { rank: publisher, phase, at, into } => {
                let (seq, into, publisher) = (seq(phase), Some(into), ranks.at(publisher));
                self.access(op, rank, Access { publisher, seq, at, into, ..Access::default() })?;
            }
            Step::GetReduce { rank: publisher, phase, at, merge } => {
                let (seq, into, merge) = (seq(phase), Some(merge.into), Some(merge));
                let publisher = ranks.at(publisher);
                self.access(op, rank, Access { publisher, seq, at, into, merge, ..Access::default() })?;
            }
            Step::Ack { phase } => {
                self.states[rank as usize].acked = seq(phase);
                self.machine.ack(op, rank, seq(phase));
            }
            Step::WaitAck { rank: other, phase } => {
                self.machine.ack_seen(op, rank, ranks.at(other), seq(phase));
            }
            Step::Offer { range, gives, phase, sub_buffer } => {
                self.unpublished(rank, seq(phase))?;
                self.machine.offer(op, rank, seq(phase), (range, gives), sub_buffer)?;
            }
            Step::Take { rank: publisher, phase, sub_buffer, into } => {
                let (seq, publisher) = (seq(phase), ranks.at(publisher));
                self.access(op, rank, Access { publisher, seq, ..Access::default() })?;
                self.machine.take(op, rank, (publisher, seq, sub_buffer), into)?;
            }
            Step::Put { rank: publisher, phase, sub_buffer, from } => {
                let (seq, publisher) = (seq(phase), ranks.at(publisher));
                self.access(op, rank, Access { publisher, seq, ..Access::default() })?;
                self.unpublished(rank, seq)?;
                self.machine.put(op, rank, (publisher, seq, sub_buffer), from)?;
                self.machine.publish(op, rank, seq, Span { len: 0, ..from }, Form::Inline);
                self.states[rank as usize].published = seq;
            }
            Step::AwaitPut { rank: publisher, phase, into } => {
                let (seq, publisher) = (seq(phase), ranks.at(publisher));
                self.access(op, rank, Access { publisher, seq, ..Access::default() })?;
                self.machine.landed(rank, publisher, into)?;
            }
            Step::WaitReuse { chunk } => {
                let used = window.map_or(0, |window| window.allotment.used(chunk));
                self.machine.reusable(rank, ranks, used);
            }
        }
        Ok(true)
    }

    /// What the steps of a rank's round use of the shared buffers; `None` if nothing.
    fn window(&self, rank: u32) -> Option<Window> {
        let state = &self.states[rank as usize];
        self.ops[state.op].windows[rank as usize].get(state.window as usize).copied()
    }

    /// True if a rank may carry out a step with this guard.
    fn may(&self, rank: u32, window: Option<Window>, guard: Guard) -> bool {
        if let Guard::Free | Guard::Message(_) = guard {
            return true;
        }
        let Some(Window { first, allotment, .. }) = window else { return false };
        let ranks = self.nodes.ranks(self.nodes.of(rank));
        let state = |index: u32| &self.states[ranks.at(index) as usize];
        let seq = |phase: u32| first + u64::from(phase);
        let all = |least: u64| ranks.iter().all(|rank| self.states[rank as usize].acked >= least);
        let turn = self.states[rank as usize].acked + 1 >= first;
        turn && match guard {
            Guard::Free | Guard::Message(_) | Guard::Turn => true,
            Guard::CellFree(phase) => all(seq(phase).saturating_sub(self.cells)),
            Guard::Published(other, phase) => state(other).published >= seq(phase),
            Guard::Acked(other, phase) => state(other).acked >= seq(phase),
            Guard::Reusable(chunk) => all(allotment.used(chunk)),
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
