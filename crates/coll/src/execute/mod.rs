//! [`Execution`]: carries a schedule out, driven by its owner.

pub(crate) mod contiguous;
mod device;
mod messages;
mod mirror;
mod packed;
pub(crate) mod plan;
mod ranges;
mod run;
mod seqs;
mod step;
mod waits;
mod work;

use std::sync::Arc;

use banyan_datatype::TypeArc;
use banyan_memory::{Buffer, DeviceFailure};

use self::mirror::Mirror;
use self::packed::Packed;
use self::plan::Plan;
use self::step::{Tried, local, step};
use self::work::{StepState, Work};
use crate::ledger::Said;
use crate::sections::Cut;
use crate::view::View;
use crate::{Algorithm, Fault, Key, Messenger, Needs, Op, Shape, SharedBuffers, Step, UserOp};

pub(crate) use self::run::Cursor;
pub(crate) use self::seqs::SeqWindow;

/// A collective under way at this rank. Its owner calls [`Execution::advance`] until it is done; no method of it
/// waits.
pub struct Execution(pub(crate) Box<ExecutionState>);

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

    /// True if no message is under way, so that polling the CICO buffers again may be enough to get on.
    pub fn polls_shared(&self) -> bool {
        !self.0.work.entries().any(|state| matches!(state, StepState::AwaitMessage(..)))
    }

    /// True if something is copied, by a device or in pieces: nobody says when that is over, so it is to be advanced until then.
    pub fn awaits_copies(&self) -> bool {
        let in_pieces = |state: &StepState| matches!(state, StepState::Copying(_));
        self.0.work.entries().any(in_pieces)
            || self.0.mirror.as_ref().is_some_and(|mirror| mirror.awaits_copies())
    }

    /// To be called when the reduction that [`Execution::advance`] handed out has run.
    pub fn completed(&mut self, _reduction: UserReduction) {
        self.0.completed();
    }

    /// Gives the collective up: none of its messages touches the user's memory any more.
    pub fn cancel(&mut self, io: &mut impl Messenger) {
        self.0.cancel(io);
    }
}

/// Shows the algorithm, the round, and the first step that is not over.
impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Debug for ExecutionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ExecutionState { algorithm, next, rounds, .. } = self;
        write!(f, "{algorithm:?}, round {next} of {rounds}")?;
        match self.work.open().next() {
            Some((_, step)) => write!(f, ", waits in {step:?}"),
            None => Ok(()),
        }
    }
}

/// What is behind an [`Execution`]. It is in a box because executions are moved about, and is reused.
#[derive(Default)]
pub(crate) struct ExecutionState {
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) shape: Shape,
    /// The number of the call on its communicator.
    pub(crate) number: u64,
    /// How many sequence numbers it uses up.
    pub(crate) phases: u32,
    /// Its sequence numbers, and how far it is along its compiled plan.
    pub(crate) cursor: Cursor,
    /// If it goes by rounds, the sequence numbers and the place of each of its [uses](crate::sections::SharedUse) of the shared buffers, and how
    /// that cuts the shared scratch; the cursor has those of the present one, and `cut` goes with them.
    pub(crate) windows: Vec<(Cursor, Cut)>,
    pub(crate) cut: Cut,
    window: u32,
    /// The memory behind the buffers that the schedule names, in the order of [`Buf`](crate::Buf).
    pub(crate) views: [View; 4],
    /// Where Send starts in Recv, if the call is in place.
    pub(crate) in_place: Option<u64>,
    /// In place, where the same memory holds what goes to other ranks and what comes from them.
    pub(crate) in_place_exchange: bool,
    /// The operation, and the type of the elements, if it reduces.
    pub(crate) op: Option<(Op, TypeArc)>,
    /// The plan that `cursor` runs along; `None` without one, and once it has run to its end.
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) work: Work,
    /// The operands that are a device's, for which `views` has others.
    pub(crate) mirror: Option<Box<Mirror>>,
    /// The next round.
    pub(crate) next: u32,
    /// Rounds in all.
    pub(crate) rounds: u32,
    /// The step of this round whose reduction the owner is running.
    pub(crate) user_reduction: Option<usize>,
    /// Why it is to fail: a fault of the call itself, or one that other ranks tell of.
    pub(crate) refused: Option<Fault>,
    pub(crate) over: Option<Result<(), Fault>>,
}

impl ExecutionState {
    /// Gets ready for the next collective, when this one is done.
    pub(crate) fn reset(&mut self) {
        (self.plan, self.in_place, self.in_place_exchange, self.op) = (None, None, false, None);
        self.windows.clear();
        (self.phases, self.window) = (0, 0);
        // The rest is set only where a call is bound, and not repeated along a compiled plan.
        if self.rounds > 0 || self.shape != Shape::NOTHING {
            self.clear();
        }
        let [send, recv, ..] = &mut self.views;
        (*send, *recv) = (View::Nothing, View::Nothing);
        (self.refused, self.over) = (None, None);
    }

    fn clear(&mut self) {
        self.shape = Shape::NOTHING;
        let [_, _, temp, scratch] = &mut self.views;
        *scratch = View::Nothing;
        let work = &mut self.work;
        if let View::Elements { base, .. } | View::Bytes(base) = std::mem::replace(temp, View::Nothing) {
            work.spare.give(base);
        }
        let offered = work.offered.drain(..).map(|(_, buffer)| buffer);
        work.kept.drain(..).chain(offered).for_each(|buffer| work.spare.give(buffer));
        work.spare.trim();
        work.states.clear();
        work.round.steps.clear();
        work.lanes.restart();
        (work.first, work.left) = (0, 0);
        (self.next, self.rounds, self.user_reduction, self.mirror) = (0, 0, None, None);
    }
}

/// How far [`Execution::advance`] came.
pub enum Advance {
    /// The collective is over at this rank. Its memory is the user's again.
    Done(Result<(), Fault>),
    /// Nothing more can be done now: advance again later.
    Pending,
    /// The owner must run this reduction, with no lock held, then call [`Execution::completed`] and advance again.
    UserOp(UserReduction),
}

/// A reduction by a function of the user's.
pub struct UserReduction {
    fun: Arc<dyn UserOp>,
    ty: TypeArc,
    input: Buffer,
    inout: Buffer,
    count: u64,
}

impl UserReduction {
    /// Calls the user's function.
    pub fn run(&self) {
        self.fun.apply(&self.input, &self.inout, self.count, &self.ty);
    }
}

impl ExecutionState {
    fn advance(&mut self, io: &mut impl Messenger) -> Advance {
        match self.mirror {
            None => self.go_on(io),
            Some(_) => self.go_on_mirrored(io),
        }
    }

    /// Goes on where operands are a device's, which may fail in the middle of any step: that ends this collective alone.
    #[cold]
    #[inline(never)]
    fn go_on_mirrored(&mut self, io: &mut impl Messenger) -> Advance {
        DeviceFailure::caught(|| self.go_on(io)).unwrap_or_else(|failure| {
            self.device_failed(failure);
            // From now on no device is asked for anything.
            self.go_on(io)
        })
    }

    /// It is to fail, as a device has. Its turn may be to come.
    pub(super) fn device_failed(&mut self, failure: DeviceFailure) {
        let said = Said { rank: self.shape.rank, about: self.about() };
        self.refused.get_or_insert(Fault::Device { said, what: failure.what });
    }

    fn go_on(&mut self, io: &mut impl Messenger) -> Advance {
        if self.user_reduction.is_some() {
            return Advance::Pending;
        }
        if self.refused.is_none()
            && let Some(over) = self.advance_plan(io)
        {
            return over;
        }
        if (self.algorithm.needs == Needs::SubBuffers || self.on_scratch())
            && let (View::Nothing, Some(shared)) = (&self.views[3], io.shared())
        {
            self.views[3] = View::shared(shared.scratch(), self.op.as_ref().map(|(_, ty)| ty));
        }
        if let Some(fault) = self.refused.take() {
            if let Some(compiled) = self.plan.as_ref().and_then(|plan| plan.compiled.as_ref()) {
                self.phases = compiled.phases;
            }
            // A call that fails acknowledges its sequence numbers, too: it waits for its turn like any other.
            if io.shared().is_some_and(|shared| !self.cursor.seqs.turn(shared)) {
                self.refused = Some(fault);
                return Advance::Pending;
            }
            self.plan = None;
            self.fail(fault, io);
        }
        loop {
            if let Some(result) = &self.over {
                return Advance::Done(result.clone());
            }
            if !self.is_mirrored() {
                return Advance::Pending;
            }
            if self.may_begin() {
                self.begin_round();
                continue;
            }
            match self.try_steps(io) {
                Ok(Some(reduction)) => return Advance::UserOp(reduction),
                Ok(None) if !self.may_begin() => return Advance::Pending,
                Ok(None) => {}
                Err(Fault::Device { what, .. }) => {
                    self.device_failed(DeviceFailure { what });
                    return self.go_on(io);
                }
                Err(fault) => self.fail(fault, io),
            }
        }
    }

    /// True if it goes over the shared scratch, so that an acknowledgement says that work there is done.
    fn on_scratch(&self) -> bool {
        match &self.shape.composition {
            None => self.algorithm.needs == Needs::SharedScratch,
            Some(composition) => composition.on_scratch(),
        }
    }

    /// The rank of the communicator that a rank of the shared buffers is.
    fn local(&self, index: u32) -> u32 {
        self.shape.composition.as_ref().map_or(index, |composition| composition.local(index))
    }

    /// A message may be the rest of a block whose length its owner has published before: then this length is what differs.
    #[cold]
    fn of_whole_block(&mut self, fault: Fault, io: &mut impl Messenger) -> Fault {
        let Fault::Length { from, .. } = fault else { return fault };
        let unpack = self.work.open().find(|(_, step)| {
            matches!(step, Step::Unpack { rank, sub_buffer: Some(_), .. } if self.local(*rank) == from)
        });
        let index = unpack.map(|(index, _)| index);
        index.and_then(|index| self.try_step(index, io).err()).unwrap_or(fault)
    }

    /// The key of the message that belongs to a step.
    fn key(&self, step: u32) -> Key {
        Key { call: (self.number as u32) << 16 | self.cursor.seqs.tag(), step }
    }

    fn completed(&mut self) {
        let Some(index) = self.user_reduction.take() else { return };
        let StepState::AwaitUserOp(landing) = self.work.change(index, StepState::Open) else { return };
        let written = DeviceFailure::caught(|| {
            self.combined(index, landing);
            self.write_back(index)
        });
        match written {
            Ok(true) => self.work.close(index),
            Ok(false) => {}
            Err(failure) => self.device_failed(failure),
        }
    }

    fn cancel(&mut self, io: &mut impl Messenger) {
        for state in &mut self.work.states {
            if let StepState::AwaitMessage(op, _) = std::mem::replace(state, StepState::Over) {
                io.cancel(op);
            }
        }
        self.work.left = 0;
        self.mirror = None;
    }

    fn fail(&mut self, fault: Fault, io: &mut impl Messenger) {
        self.cancel(io);
        if let Some(shared) = io.shared() {
            let seqs = self.windows.first().map_or(&self.cursor.seqs, |(part, _)| &part.seqs);
            seqs.give_up(self.phases, self.on_scratch(), shared);
        }
        self.over = Some(Err(fault));
    }

    /// True if a round can begin, or all are over.
    fn may_begin(&self) -> bool {
        let composition = self.shape.composition.as_ref();
        self.work.left == 0 || composition.is_some_and(|made| made.next(&self.work.lanes).is_some())
    }

    fn begin_round(&mut self) {
        if self.next == self.rounds {
            self.over = Some(Ok(()));
            return;
        }
        if self.work.left == 0 {
            self.begin_mirrored();
            self.work.round.begin(self.next);
            self.work.states.clear();
            self.work.first = 0;
        }
        let work = &mut self.work;
        let before = work.round.steps.len();
        match &self.shape.composition {
            None => (self.algorithm.round)(&self.shape, self.next, &mut work.round),
            Some(composition) => {
                let next = composition
                    .next(&work.lanes)
                    .expect("a lane waits for nothing when no step is under way");
                let shared = composition.begin(next.0, &mut work.lanes, &mut work.round);
                if let Some(window) = shared.filter(|&window| window != self.window) {
                    let before = self.cursor.seqs;
                    (self.cursor, self.cut) = self.windows[window as usize];
                    self.cursor.seqs = self.cursor.seqs.after(&before);
                    self.window = window;
                }
            }
        }
        self.next += 1;
        work.left += work.round.steps.len() - before;
    }

    /// Tries all steps of the round that are not over; returns early with a reduction.
    fn try_steps(&mut self, io: &mut impl Messenger) -> Result<Option<UserReduction>, Fault> {
        for index in self.work.first..self.work.round.steps.len() {
            if matches!(self.work.state(index), StepState::Over) {
                continue;
            }
            let tried = match self.mirror {
                None => self.try_step(index, io),
                Some(_) => self.try_mirrored(index, io),
            };
            match tried? {
                Tried::NotYet => {}
                Tried::Over => self.work.close(index),
                Tried::UserReduction(reduction) => {
                    self.user_reduction = Some(index);
                    return Ok(Some(reduction));
                }
            }
        }
        Ok(None)
    }

    fn try_step(&mut self, index: usize, io: &mut impl Messenger) -> Result<Tried<UserReduction>, Fault> {
        match self.work.round.steps[index] {
            Step::Send { to, from, key } => self.send(index, to, from, key, io),
            Step::Recv { from, into, key } => {
                self.receive(index, from, into, None, key, io).map_err(|fault| self.of_whole_block(fault, io))
            }
            Step::RecvReduce { from, merge, key } => {
                self.receive(index, from, merge.into, Some(merge), key, io)
            }
            next @ (Step::Copy { .. } | Step::Reduce { .. }) => {
                local(&next, &mut Packed { state: self, index })
            }
            next => {
                let Some(shared) = io.shared() else {
                    unreachable!("its algorithm is chosen with shared buffers")
                };
                // Only one collective at a time: what other ranks conclude from a sequence number rests on it.
                if !self.cursor.seqs.turn(shared) {
                    return Ok(Tried::NotYet);
                }
                let Cursor { mut seqs, allotment, .. } = self.cursor;
                let tried = step(&next, &mut Packed { state: self, index }, (&mut seqs, &allotment), shared);
                self.cursor.seqs = seqs;
                tried.map_err(|fault| fault.renamed(|index| self.local(index)))
            }
        }
    }
}
