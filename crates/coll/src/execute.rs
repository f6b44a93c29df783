//! [`Execution`]: carries a schedule out, driven from outside.

use std::sync::Arc;

use banyan_datatype::op::reduce;
use banyan_datatype::{Data, Datatype};
use banyan_memory::Buffer;

use crate::place::{Place, Range, Spare, elements};
use crate::{Algorithm, Buf, Fault, Form, Key, Merge, Messenger, Op, OpId, Published};
use crate::{Round, Shape, Side, Slots, Span, Step, UserOp};

/// A collective under way at this rank. Its owner calls [`Execution::advance`] until it is done; nothing here
/// waits.
pub struct Execution {
    pub(crate) algorithm: &'static Algorithm,
    pub(crate) shape: Shape,
    pub(crate) seq: u32,
    /// Stamp of its phase 0 in the shared slots.
    pub(crate) stamp: u64,
    /// All ranks have released the stamps up to this one, as far as is known here.
    pub(crate) floor: u64,
    /// Other ranks seen to have published phase 0.
    pub(crate) seen: u32,
    /// By [`Buf`].
    pub(crate) places: [Place; 3],
    /// Where Send starts in Recv.
    pub(crate) in_place: Option<u64>,
    /// What it reduces with, and elements of which type.
    pub(crate) op: Option<(Op, Arc<Datatype>)>,
    pub(crate) work: Work,
    /// The next round.
    pub(crate) next: u32,
    /// Rounds in all.
    pub(crate) rounds: u32,
    /// The step whose reduction the owner is to run.
    pub(crate) job: Option<usize>,
    pub(crate) over: Option<Result<(), Fault>>,
}

/// What an execution allocates, to be used again by the next.
#[derive(Debug, Default)]
pub(crate) struct Work {
    round: Round,
    states: Vec<State>,
    left: usize,
    /// Packed copies that stay published until the end.
    kept: Vec<Buffer>,
    pub(crate) spare: Spare,
}

impl Work {
    /// Gets ready for the next execution.
    pub(crate) fn reset(&mut self) {
        self.states.clear();
        self.left = 0;
        while let Some(buffer) = self.kept.pop() {
            self.spare.give(buffer);
        }
        self.spare.trim();
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
    ty: Arc<Datatype>,
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

/// Where incoming elements are.
enum Came {
    /// Where the result belongs.
    InPlace,
    /// In memory of this execution's.
    Landed(Buffer),
    /// In memory that must not be written.
    Seen(Buffer),
}

/// What became of trying a step.
enum Tried {
    Over,
    NotYet,
    Job(Job),
}

impl Execution {
    /// The algorithm that was chosen.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// Goes as far as possible without waiting.
    pub fn advance(&mut self, io: &mut impl Messenger) -> Advance {
        if self.job.is_some() {
            return Advance::Pending;
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

    /// Says that the job which [`Execution::advance`] handed out has run.
    pub fn completed(&mut self, _job: Job) {
        let Some(index) = self.job.take() else { return };
        if let State::Combining(landing) = std::mem::replace(&mut self.work.states[index], State::Over) {
            self.work.left -= 1;
            self.combined(index, landing);
        }
    }

    /// Gives up: nothing of the user's memory is touched any more.
    pub fn cancel(&mut self, io: &mut impl Messenger) {
        for state in &mut self.work.states {
            if let State::Moving(op, _) = std::mem::replace(state, State::Over) {
                io.cancel(op);
            }
        }
        self.work.left = 0;
    }

    fn fail(&mut self, fault: Fault, io: &mut impl Messenger) {
        self.cancel(io);
        // The communicator's later collectives must not wait for this one.
        if let (1.., Some(slots)) = (self.algorithm.phases, io.slots()) {
            slots.release(self.stamp + u64::from(self.algorithm.phases) - 1);
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
        work.states.resize_with(work.round.steps.len(), || State::Open);
        work.left = work.states.len();
    }

    /// Tries all steps of the round that are not over; a job ends that early.
    fn try_steps(&mut self, io: &mut impl Messenger) -> Result<Option<Job>, Fault> {
        for index in 0..self.work.states.len() {
            if matches!(self.work.states[index], State::Over) {
                continue;
            }
            match self.try_step(index, io)? {
                Tried::NotYet => {}
                Tried::Over => {
                    self.work.states[index] = State::Over;
                    self.work.left -= 1;
                }
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
                if slots.released(self.shape.rank) + 1 < self.stamp {
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
        if let State::Moving(op, _) = self.work.states[index] {
            let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
            self.landed(index);
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
        match io.send(to, Key { seq: self.seq, step: key }, &data) {
            Some(op) => {
                self.work.states[index] = State::Moving(op, stage);
                Ok(Tried::NotYet)
            }
            None => {
                stage.into_iter().for_each(|stage| self.work.spare.give(stage));
                Ok(Tried::Over)
            }
        }
    }

    /// The memory that stood in for the user's is free again.
    fn landed(&mut self, index: usize) {
        if let State::Moving(_, Some(stage)) = std::mem::replace(&mut self.work.states[index], State::Open) {
            self.work.spare.give(stage);
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
        if let State::Open = self.work.states[index] {
            let (data, stage) = self.landing(into, merge);
            let op = io.recv(from, Key { seq: self.seq, step: key }, &data);
            self.work.states[index] = State::Moving(op, stage);
        }
        let State::Moving(op, _) = self.work.states[index] else { return Ok(Tried::NotYet) };
        let Some(result) = io.poll(op) else { return Ok(Tried::NotYet) };
        let State::Moving(_, stage) = std::mem::replace(&mut self.work.states[index], State::Open) else {
            return Ok(Tried::NotYet);
        };
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

    /// Where incoming data go first, and the memory for that if it is not where they belong.
    fn landing(&mut self, into: Span, merge: Option<Merge>) -> (Data, Option<Buffer>) {
        if let Some(merge) = merge.filter(|merge| !self.direct(merge)) {
            let (ty, count) = (self.element_type().clone(), merge.into.len);
            let landing = elements(count, &ty, &mut self.work.spare);
            return (Data::typed(landing.clone(), count, &ty), Some(landing));
        }
        let (buf, range) = self.range(into);
        match self.places[buf].data(range) {
            Some(data) => (data, None),
            None => {
                let stage = self.work.spare.take(range.1);
                (Data::bytes(stage.slice(0, range.1 as usize)), Some(stage))
            }
        }
    }

    /// What is incoming can go to the place of the result at once, and be combined there.
    fn direct(&self, merge: &Merge) -> bool {
        merge.side != Side::Left && !self.onto_itself(merge)
    }

    fn onto_itself(&self, merge: &Merge) -> bool {
        self.at(merge.with) == self.at(merge.into)
    }

    fn element_type(&self) -> &Arc<Datatype> {
        match &self.op {
            Some((_, ty)) => ty,
            None => unreachable!("a collective that reduces has an operation"),
        }
    }

    /// Combines what came.
    fn merge(&mut self, index: usize, merge: Merge, came: Came) -> Result<Tried, Fault> {
        let (with, into, count) = (self.elements(merge.with), self.elements(merge.into), merge.into.len);
        let (input, landing) = match came {
            Came::InPlace => return self.combine(index, with, into, count, None),
            Came::Landed(landing) => (landing.clone(), Some(landing)),
            Came::Seen(shared) => (shared, None),
        };
        if self.lands_right(&merge) {
            return self.combine(index, with, input, count, landing);
        }
        if !self.onto_itself(&merge) {
            self.copy(merge.with, merge.into);
        }
        self.combine(index, input, into, count, landing)
    }

    /// The result comes to be where the incoming data landed, and must go from there to its place.
    fn lands_right(&self, merge: &Merge) -> bool {
        merge.side == Side::Right && self.onto_itself(merge)
    }

    /// `inout = input op inout`, here or by the owner. `landing` is kept until that is done.
    fn combine(
        &mut self,
        index: usize,
        input: Buffer,
        inout: Buffer,
        count: u64,
        landing: Option<Buffer>,
    ) -> Result<Tried, Fault> {
        let Some((op, ty)) = &self.op else { unreachable!("a collective that reduces has an operation") };
        match op {
            Op::Builtin(op) => {
                let done = reduce(*op, ty, &input, &inout, count);
                done.map_err(|error| Fault::Operator(error.to_string()))?;
                self.combined(index, landing);
                Ok(Tried::Over)
            }
            Op::User { fun, .. } => {
                let job = Job { fun: fun.clone(), ty: ty.clone(), input, inout, count };
                self.work.states[index] = State::Combining(landing);
                Ok(Tried::Job(job))
            }
        }
    }

    /// After a reduction of what landed.
    fn combined(&mut self, index: usize, landing: Option<Buffer>) {
        let Some(landing) = landing else { return };
        let merge = match self.work.round.steps[index] {
            Step::RecvReduce { merge, .. } | Step::PullReduce { merge, .. } => Some(merge),
            _ => None,
        };
        if let Some(merge) = merge.filter(|merge| self.lands_right(merge)) {
            let result = Data::typed(landing.clone(), merge.into.len, self.element_type());
            let (buf, range) = self.range(merge.into);
            if let Some(data) = self.places[buf].data(range) {
                data.copy_from(&result);
            }
        }
        self.work.spare.give(landing);
    }

    fn copy(&mut self, from: Span, into: Span) {
        if self.in_place.is_some() && from.buf == Buf::Send && into.buf == Buf::Recv {
            return;
        }
        let ((from, from_range), (into, into_range)) = (self.range(from), self.range(into));
        self.places[from].copy(from_range, &self.places[into], into_range, &mut self.work.spare);
    }

    /// Which place a span is in, and where it starts there.
    fn at(&self, span: Span) -> (usize, u64) {
        match (span.buf, self.in_place) {
            (Buf::Send, Some(start)) => (Buf::Recv as usize, start + span.at),
            (buf, _) => (buf as usize, span.at),
        }
    }

    fn range(&self, span: Span) -> (usize, Range) {
        let (place, at) = self.at(span);
        (place, (at, span.len))
    }

    fn elements(&self, span: Span) -> Buffer {
        let (place, at) = self.at(span);
        self.places[place].elements(at)
    }

    fn shared(&mut self, index: usize, step: Step, slots: &mut dyn Slots) -> Result<Tried, Fault> {
        let stamp = |phase: u32| self.stamp + u64::from(phase);
        let over = |yes: bool| if yes { Ok(Tried::Over) } else { Ok(Tried::NotYet) };
        match step {
            Step::Publish { from, phase, form } => over(self.publish(from, stamp(phase), form, slots)),
            Step::Await { rank, phase } => over(self.look(rank, stamp(phase), slots).is_some()),
            Step::Pull { rank, phase, at, into } => {
                let stamp = stamp(phase);
                let Some(published) = self.look(rank, stamp, slots) else { return Ok(Tried::NotYet) };
                self.pull(published, (rank, stamp, at), into, slots)?;
                Ok(Tried::Over)
            }
            Step::PullReduce { rank, phase, at, merge } => {
                let stamp = stamp(phase);
                let Some(published) = self.look(rank, stamp, slots) else { return Ok(Tried::NotYet) };
                self.pull_reduce(index, published, (rank, stamp, at), merge, slots)
            }
            Step::Release { phase } => {
                slots.release(stamp(phase));
                Ok(Tried::Over)
            }
            Step::Drain { rank, phase } => over(slots.released(rank) >= stamp(phase)),
            _ => unreachable!("messages and local steps are tried elsewhere"),
        }
    }

    /// Looks at what a rank published. Schedules look at each rank once in a phase.
    fn look(&mut self, rank: u32, stamp: u64, slots: &mut dyn Slots) -> Option<Published> {
        let published = slots.look(rank, stamp)?;
        if stamp == self.stamp && rank != self.shape.rank {
            self.seen += 1;
            if self.seen + 1 == self.shape.ranks {
                // They all are through with what was before this collective.
                self.floor = self.floor.max(stamp - 1);
            }
        }
        Some(published)
    }

    /// False if not everybody has released what the bank held before.
    fn publish(&mut self, from: Span, stamp: u64, form: Form, slots: &mut dyn Slots) -> bool {
        if self.floor + 2 < stamp {
            let released = (0..self.shape.ranks).map(|rank| slots.released(rank)).min();
            self.floor = released.unwrap_or(self.floor);
            if self.floor + 2 < stamp {
                return false;
            }
        }
        let (buf, range) = self.range(from);
        let direct = self.places[buf].data(range).and_then(|data| data.contiguous());
        let packed = match direct {
            Some(buffer) => buffer,
            None => {
                let bytes = from.len * self.shape.unit;
                let stage = self.work.spare.take(bytes);
                self.places[buf].pack(range, &stage);
                // A region stays published to the end.
                if form == Form::Region {
                    self.work.kept.push(stage.clone());
                    stage.slice(0, bytes as usize)
                } else {
                    let packed = stage.slice(0, bytes as usize);
                    self.work.spare.give(stage);
                    packed
                }
            }
        };
        match form {
            Form::Inline => slots.publish(stamp, &packed),
            Form::Region => slots.publish_region(stamp, &packed),
        }
        true
    }

    /// Packed bytes from unit `at` on, for `into`.
    fn pull(
        &mut self,
        published: Published,
        (rank, stamp, at): (u32, u64, u64),
        into: Span,
        slots: &mut dyn Slots,
    ) -> Result<(), Fault> {
        let (buf, range) = self.range(into);
        let (at, bytes) = (at * self.shape.unit, into.len * self.shape.unit);
        let whole = self.check(&published, rank, at + bytes)?;
        if into.len == 0 {
            return Ok(());
        }
        if let Some(inline) = whole {
            self.places[buf].unpack(range, &inline.slice(inline.lo() + at as isize, bytes as usize));
            return Ok(());
        }
        let direct = self.places[buf].data(range).and_then(|data| data.contiguous());
        let refused = Fault::Unreadable { rank };
        if let Some(memory) = direct {
            return if slots.pull(rank, stamp, at, &memory) { Ok(()) } else { Err(refused) };
        }
        let stage = self.work.spare.take(bytes);
        if !slots.pull(rank, stamp, at, &stage.slice(0, bytes as usize)) {
            return Err(refused);
        }
        self.places[buf].unpack(range, &stage);
        self.work.spare.give(stage);
        Ok(())
    }

    /// The inline bytes, if they are; an error if there is less than `needed`.
    fn check(&self, published: &Published, rank: u32, needed: u64) -> Result<Option<Buffer>, Fault> {
        let (sent, inline) = match published {
            Published::Inline(buffer) => (buffer.len() as u64, Some(buffer.clone())),
            Published::Region(len) => (*len, None),
        };
        if sent < needed {
            return Err(Fault::Length { from: rank, sent, room: needed });
        }
        Ok(inline)
    }

    fn pull_reduce(
        &mut self,
        index: usize,
        published: Published,
        (rank, stamp, at): (u32, u64, u64),
        merge: Merge,
        slots: &mut dyn Slots,
    ) -> Result<Tried, Fault> {
        let unit = self.shape.unit;
        let (at, count) = (at * unit, merge.into.len);
        let inline = self.check(&published, rank, at + count * unit)?;
        let ty = self.element_type().clone();
        let builtin = matches!(self.op, Some((Op::Builtin(_), _)));
        let whole_units = ty.is_dense() && builtin && !self.lands_right(&merge);
        match inline {
            _ if count == 0 => Ok(Tried::Over),
            // Straight out of shared memory; but that is not shown to a user's function.
            Some(inline) if whole_units => {
                let here = inline.slice(inline.lo() + at as isize, (count * unit) as usize);
                self.merge(index, merge, Came::Seen(here))
            }
            // In pieces that stay in the cache between copy and reduction.
            None if whole_units => {
                let piece = (PIECE / unit).max(1);
                for first in (0..count).step_by(piece as usize) {
                    let part =
                        |span: Span| Span { at: span.at + first, len: piece.min(count - first), ..span };
                    let merge = Merge { with: part(merge.with), into: part(merge.into), ..merge };
                    let came = self.fetch(rank, stamp, at + first * unit, None, &merge, slots)?;
                    self.merge(index, merge, came)?;
                }
                Ok(Tried::Over)
            }
            inline => {
                let came = self.fetch(rank, stamp, at, inline, &merge, slots)?;
                self.merge(index, merge, came)
            }
        }
    }

    /// Copies what a rank published, packed bytes from `at` on, to where it is combined.
    fn fetch(
        &mut self,
        rank: u32,
        stamp: u64,
        at: u64,
        inline: Option<Buffer>,
        merge: &Merge,
        slots: &mut dyn Slots,
    ) -> Result<Came, Fault> {
        let (place, landing) = self.landing(merge.into, Some(*merge));
        let bytes = merge.into.len * self.shape.unit;
        let refused = Fault::Unreadable { rank };
        if let Some(inline) = inline {
            place.copy_from(&Data::bytes(inline.slice(inline.lo() + at as isize, bytes as usize)));
        } else if let Some(memory) = place.contiguous() {
            if !slots.pull(rank, stamp, at, &memory) {
                return Err(refused);
            }
        } else {
            let stage = self.work.spare.take(bytes);
            let packed = stage.slice(0, bytes as usize);
            if !slots.pull(rank, stamp, at, &packed) {
                return Err(refused);
            }
            place.copy_from(&Data::bytes(packed));
            self.work.spare.give(stage);
        }
        Ok(landing.map_or(Came::InPlace, Came::Landed))
    }
}

/// Bytes pulled and reduced at a time.
const PIECE: u64 = 1 << 16;
