//! [`Execution`]: carries a schedule out, driven from outside.

pub(crate) mod flat;
pub(crate) mod hops;
pub(crate) mod line;
mod merge;
mod shared;
mod waits;

use std::sync::Arc;

use banyan_datatype::{Data, TypeArc};
use banyan_memory::Buffer;

use self::hops::Begun;
use self::line::Line;
use self::merge::Came;
use crate::place::{Place, Spare};
use crate::{
    ALL, Algorithm, Fault, Key, Merge, Messenger, Needs, Op, OpId, Round, Shape, Span, Step, UserOp,
};

pub(crate) use self::shared::Stamps;

/// A collective under way at this rank. Its owner calls [`Execution::advance`] until it is done; nothing here
/// waits.
pub struct Execution(pub(crate) Box<Running>);

impl Execution {
    /// The algorithm that was chosen.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.0.algorithm
    }

    /// Goes as far as possible without waiting.
    #[inline]
    pub fn advance(&mut self, io: &mut impl Messenger) -> Advance {
        self.0.advance(io)
    }

    /// True if nothing under way is a message, so that looking at the slots again may be all that it takes.
    pub fn looks_at_slots(&self) -> bool {
        !self.0.work.states.iter().any(|state| matches!(state, State::Moving(..)))
    }

    /// Says that the job which [`Execution::advance`] handed out has run.
    pub fn completed(&mut self, _job: Job) {
        self.0.completed();
    }

    /// Gives up: none of its messages touches the user's memory any more.
    pub fn cancel(&mut self, io: &mut impl Messenger) {
        self.0.cancel(io);
    }
}

/// Which algorithm, how far it is, and the first step that it waits for.
impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Running { algorithm, next, rounds, .. } = self;
        write!(f, "{algorithm:?}, round {next} of {rounds}")?;
        let steps = self.work.round.steps.iter().enumerate();
        let mut open = steps.filter(|&(index, _)| !matches!(self.work.state(index), State::Over));
        match open.next() {
            Some((_, step)) => write!(f, ", waits in {step:?}"),
            None => Ok(()),
        }
    }
}

/// What is behind an [`Execution`]; in a box, because it goes from hand to hand, and is used again and again.
pub(crate) struct Running {
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) shape: Shape,
    /// Of the call on its communicator.
    pub(crate) number: u64,
    /// Stamps that it uses up.
    pub(crate) phases: u32,
    /// Where it is in the order of stamps, and how far along its line.
    pub(crate) begun: Begun,
    /// By `Buf`.
    pub(crate) places: [Place; 4],
    /// Where Send starts in Recv.
    pub(crate) in_place: Option<u64>,
    /// What it reduces with, and elements of which type.
    pub(crate) op: Option<(Op, TypeArc)>,
    /// For the straight-line interpreter; gone at the end.
    pub(crate) line: Option<Arc<Line>>,
    pub(crate) work: Work,
    /// The next round.
    pub(crate) next: u32,
    /// Rounds in all.
    pub(crate) rounds: u32,
    /// The step whose reduction the owner is to run.
    pub(crate) job: Option<usize>,
    /// Why it is to fail: what is wrong with the call itself, or what others say.
    pub(crate) refused: Option<Fault>,
    pub(crate) over: Option<Result<(), Fault>>,
}

/// What an execution allocates, to be used again by the next.
#[derive(Debug, Default)]
pub(crate) struct Work {
    round: Round,
    /// Steps at the beginning of the round that are over.
    first: usize,
    /// Steps of the round that are not over.
    left: usize,
    /// Of the steps of the round; beyond its end, and in it up to `first`, it does not count.
    states: Vec<State>,
    /// Packed copies that stay published until the end.
    kept: Vec<Buffer>,
    pub(crate) spare: Spare,
}

impl Default for Running {
    fn default() -> Running {
        Running {
            algorithm: ALL[0],
            shape: Shape::NOTHING,
            number: 0,
            phases: 0,
            begun: Begun::default(),
            places: [const { Place::Nothing }; 4],
            in_place: None,
            op: None,
            line: None,
            work: Work::default(),
            next: 0,
            rounds: 0,
            job: None,
            refused: None,
            over: None,
        }
    }
}

impl Running {
    /// Gets ready for the next collective, when this one is done.
    pub(crate) fn reset(&mut self) {
        (self.line, self.in_place, self.op) = (None, None, None);
        // The rest is for what does not go along a line.
        if self.shape.ranks > 0 {
            self.clear();
        }
        let [send, recv, ..] = &mut self.places;
        (*send, *recv) = (Place::Nothing, Place::Nothing);
        (self.refused, self.over) = (None, None);
    }

    fn clear(&mut self) {
        self.shape = Shape::NOTHING;
        let [_, _, temp, board] = &mut self.places;
        *board = Place::Nothing;
        let work = &mut self.work;
        if let Place::Elements { base, .. } | Place::Bytes(base) = std::mem::replace(temp, Place::Nothing) {
            work.spare.give(base);
        }
        while let Some(buffer) = work.kept.pop() {
            work.spare.give(buffer);
        }
        work.spare.trim();
        work.states.clear();
        work.round.steps.clear();
        (work.first, work.left) = (0, 0);
        (self.next, self.rounds, self.job) = (0, 0, None);
    }
}

impl Work {
    fn state(&self, index: usize) -> &State {
        match index < self.first {
            true => &State::Over,
            false => self.states.get(index).unwrap_or(&State::Open),
        }
    }

    /// Changes a state, and returns what it was. Most steps are over at once, in turn, and need none.
    fn change(&mut self, index: usize, state: State) -> State {
        if self.states.len() <= index {
            self.states.resize_with(index + 1, || State::Open);
        }
        std::mem::replace(&mut self.states[index], state)
    }

    fn close(&mut self, index: usize) {
        self.left -= 1;
        if index == self.first {
            self.first += 1;
        } else {
            self.change(index, State::Over);
        }
    }
}

/// Where a step is.
#[derive(Debug)]
enum State {
    Open,
    /// Under way; the memory that stands in for the user's, if the message cannot use that.
    Moving(OpId, Option<Buffer>),
    /// Incoming elements are here, and the owner runs the user's function on them.
    Combining(Option<Buffer>),
    Over,
}

/// What [`Execution::advance`] came to.
pub enum Advance {
    /// The collective is over at this rank. Its memory is the user's again.
    Done(Result<(), Fault>),
    /// Nothing more can be done now.
    Pending,
    /// The owner must run this, with no lock held, then call [`Execution::completed`] and advance again.
    UserOp(Job),
}

/// A reduction by a function of the user's.
pub struct Job {
    fun: Arc<dyn UserOp>,
    ty: TypeArc,
    input: Buffer,
    inout: Buffer,
    count: u64,
}

impl Job {
    /// Calls the user's function.
    pub fn run(&self) {
        self.fun.apply(&self.input, &self.inout, self.count, &self.ty);
    }
}

/// What became of trying a step.
enum Tried {
    Over,
    NotYet,
    Job(Job),
}

impl Running {
    fn advance(&mut self, io: &mut impl Messenger) -> Advance {
        if self.job.is_some() {
            return Advance::Pending;
        }
        if self.refused.is_none()
            && let Some(over) = self.advance_line(io)
        {
            return over;
        }
        if let (Needs::Board | Needs::Pockets, Place::Nothing, Some(slots)) =
            (self.algorithm.needs, &self.places[3], io.slots())
        {
            self.places[3] = Place::shared(slots.board(), self.op.as_ref().map(|(_, ty)| ty));
        }
        if let Some(fault) = self.refused.take() {
            if let Some(line) = &self.line {
                self.phases = line.phases;
            }
            // Its stamps are released in order, too.
            if io.slots().is_some_and(|slots| !self.begun.stamps.turn(slots)) {
                self.refused = Some(fault);
                return Advance::Pending;
            }
            self.line = None;
            self.fail(fault, io);
        }
        loop {
            if let Some(result) = &self.over {
                return Advance::Done(result.clone());
            }
            if self.work.left == 0 {
                self.begin_round();
                continue;
            }
            match self.try_steps(io) {
                Ok(Some(job)) => return Advance::UserOp(job),
                Ok(None) if self.work.left > 0 => return Advance::Pending,
                Ok(None) => {}
                Err(fault) => self.fail(fault, io),
            }
        }
    }

    /// The key of a message.
    fn key(&self, step: u32) -> Key {
        Key { seq: (self.number as u32) << 16 | self.begun.stamps.tag(), step }
    }

    fn completed(&mut self) {
        let Some(index) = self.job.take() else { return };
        if let State::Combining(landing) = self.work.change(index, State::Over) {
            self.work.close(index);
            self.combined(index, landing);
        }
    }

    fn cancel(&mut self, io: &mut impl Messenger) {
        for state in &mut self.work.states {
            if let State::Moving(op, _) = std::mem::replace(state, State::Over) {
                io.cancel(op);
            }
        }
        self.work.left = 0;
    }

    fn fail(&mut self, fault: Fault, io: &mut impl Messenger) {
        self.cancel(io);
        if let Some(slots) = io.slots() {
            self.begun.stamps.give_up(self.phases, self.algorithm.needs == Needs::Board, slots);
        }
        self.over = Some(Err(fault));
    }

    fn begin_round(&mut self) {
        if self.next == self.rounds {
            self.over = Some(Ok(()));
            return;
        }
        let work = &mut self.work;
        work.round.begin(self.next);
        (self.algorithm.round)(&self.shape, self.next, &mut work.round);
        self.next += 1;
        work.states.clear();
        (work.first, work.left) = (0, work.round.steps.len());
    }

    /// Tries all steps of the round that are not over; a job ends that early.
    fn try_steps(&mut self, io: &mut impl Messenger) -> Result<Option<Job>, Fault> {
        for index in self.work.first..self.work.round.steps.len() {
            if matches!(self.work.state(index), State::Over) {
                continue;
            }
            match self.try_step(index, io)? {
                Tried::NotYet => {}
                Tried::Over => self.work.close(index),
                Tried::Job(job) => {
                    self.job = Some(index);
                    return Ok(Some(job));
                }
            }
        }
        Ok(None)
    }

    fn try_step(&mut self, index: usize, io: &mut impl Messenger) -> Result<Tried, Fault> {
        match self.work.round.steps[index] {
            Step::Send { to, from, key } => self.send(index, to, from, key, io),
            Step::Recv { from, into, key } => self.receive(index, from, into, None, key, io),
            Step::RecvReduce { from, merge, key } => {
                self.receive(index, from, merge.into, Some(merge), key, io)
            }
            Step::Copy { from, into } => {
                self.copy(from, into);
                Ok(Tried::Over)
            }
            Step::Reduce { from, into } => {
                let (buf, at) = self.at(from);
                let (input, inout) = (self.places[buf].elements(at), self.elements(into));
                self.combine(index, input, inout, into.len, None)
            }
            step => {
                let Some(slots) = io.slots() else { unreachable!("shared forms are chosen with slots") };
                // One collective after the other: what others may conclude from a stamp rests on it.
                if !self.begun.stamps.turn(slots) {
                    return Ok(Tried::NotYet);
                }
                self.shared(index, step, slots)
            }
        }
    }

    fn send(
        &mut self,
        index: usize,
        to: u32,
        from: Span,
        key: u32,
        io: &mut impl Messenger,
    ) -> Result<Tried, Fault> {
        if let State::Moving(op, _) = *self.work.state(index) {
            let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
            if let State::Moving(_, Some(stage)) = self.work.change(index, State::Open) {
                self.work.spare.give(stage);
            }
            return result.map(|_| Tried::Over);
        }
        let (buf, range) = self.range(from);
        let (data, stage) = match self.places[buf].data(range) {
            Some(data) => (data, None),
            None => {
                let stage = self.work.spare.take(range.1);
                self.places[buf].pack(range, &stage);
                (Data::bytes(stage.slice(0, range.1 as usize)), Some(stage))
            }
        };
        match io.send(to, self.key(key), &data) {
            Some(op) => {
                self.work.change(index, State::Moving(op, stage));
                Ok(Tried::NotYet)
            }
            None => {
                stage.into_iter().for_each(|stage| self.work.spare.give(stage));
                Ok(Tried::Over)
            }
        }
    }

    fn receive(
        &mut self,
        index: usize,
        from: u32,
        into: Span,
        merge: Option<Merge>,
        key: u32,
        io: &mut impl Messenger,
    ) -> Result<Tried, Fault> {
        if let State::Open = self.work.state(index) {
            let (data, stage) = self.landing(into, merge);
            let op = io.recv(from, self.key(key), &data);
            self.work.change(index, State::Moving(op, stage));
        }
        let State::Moving(op, _) = *self.work.state(index) else { return Ok(Tried::NotYet) };
        let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
        let State::Moving(_, stage) = self.work.change(index, State::Open) else {
            return Ok(Tried::NotYet);
        };
        let result = result.map_err(|fault| match fault {
            // Messages do not know ranks.
            Fault::Length { sent, room, .. } => Fault::Length { from, sent, room },
            other => other,
        });
        let (sent, room) = (result?, into.len * self.shape.unit);
        if sent != room {
            return Err(Fault::Length { from, sent, room });
        }
        if let Some(merge) = merge {
            let came = stage.map_or(Came::InPlace, Came::Landed);
            return self.merge(index, merge, came);
        }
        if let Some(stage) = stage {
            let (buf, range) = self.range(into);
            self.places[buf].unpack(range, &stage);
            self.work.spare.give(stage);
        }
        Ok(Tried::Over)
    }
}
