//! [`PlanCache`]: what a communicator keeps between its collectives; [`start`] begins one.

use std::sync::Arc;

use banyan_memory::Address;

use crate::execute::Stamps;
use crate::execute::flat::Flat;
use crate::execute::hops::Begun;
use crate::execute::line::{Line, Outline};
use crate::ledger::{About, Ledger, Used};
use crate::place::Place;
use crate::repeat::Repeated;
use crate::sections::Sections;
use crate::{Algorithm, Asked, Call, Case, Chunks, Execution, Fault, Kind, Lists, Slots, Tuning, between};

/// What is known of a communicator's ranks. All of them must have the same.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Facts {
    /// How many they are.
    pub ranks: u32,
    /// They are all on one node.
    pub shared: bool,
    /// The fewest cores that the ranks on a node have between them.
    pub cores: u32,
    /// The most ranks on one node.
    pub per_node: u32,
    /// They have shared slots.
    pub slots: Option<SlotFacts>,
}

/// What all ranks know of their shared slots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotFacts {
    /// Bytes that a publication can carry inline.
    pub inline: u64,
    /// Every rank can pull regions of every other.
    pub regions: bool,
    /// Bytes of the board.
    pub board: u64,
}

/// What a communicator keeps between its collectives: one per communicator and rank.
#[derive(Debug)]
pub struct PlanCache {
    facts: Facts,
    /// As in [`Shape`](crate::Shape).
    split: u32,
    course: Course,
    /// The last choice of each kind.
    choices: [Option<Choice>; Kind::ALL.len()],
    lines: Lines,
    repeated: Repeated,
    /// Ready for the next executions.
    idle: Vec<Execution>,
}

/// Where a communicator is in the order of stamps.
#[derive(Debug)]
struct Course {
    rank: u32,
    ranks: u32,
    /// The next stamp of the shared slots. All ranks start their collectives in one order and choose alike,
    /// so they count alike.
    stamp: u64,
    sections: Sections,
    /// All ranks have released the stamps up to this one, as far as is known here. (Not beside the stamp: both were
    /// written just now, and to be read as one they would first have to leave, behind the message.)
    floor: u64,
    ledger: Ledger,
}

impl Course {
    /// The stamps of the next collective, which has so many phases, and chunks on the board.
    #[inline(always)]
    fn next(&mut self, about: About, used: Used, phases: u32, chunks: Chunks) -> Stamps {
        let tag = self.ledger.enter(about, used);
        let taken = self.sections.take(chunks, (self.stamp, phases));
        let stamps = Stamps::new((self.rank, self.ranks), (self.stamp, tag), self.floor, taken);
        self.stamp += u64::from(phases);
        stamps
    }

    /// What a collective has found out.
    #[inline]
    fn learn(&mut self, stamps: &Stamps) {
        self.floor = self.floor.max(stamps.floor);
    }
}

/// The last lines of each kind, by [`Outline::place`]; none until there is one.
#[derive(Debug, Default)]
struct Lines {
    kept: [Vec<Option<Arc<Line>>>; Kind::ALL.len()],
    /// How many were made.
    made: u64,
}

impl Lines {
    #[inline(always)]
    fn at(&self, (kind, place): (Kind, usize)) -> Option<&Arc<Line>> {
        self.kept[kind as usize].get(place)?.as_ref()
    }

    fn keep(&mut self, (kind, place): (Kind, usize), mut line: Line) {
        self.made += 1;
        line.number = self.made;
        let lines = &mut self.kept[kind as usize];
        lines.resize(Outline::PLACES, None);
        lines[place] = Some(Arc::new(line));
    }
}

#[derive(Clone, Copy, Debug)]
struct Choice {
    case: Option<Case>,
    commutative: bool,
    algorithm: &'static Algorithm,
}

impl Facts {
    /// Of `ranks` ranks on one node of `cores` cores with slots about as the runtime makes them, or on nodes of
    /// their own: what models and tests assume.
    pub fn supposed(ranks: u32, shared: bool, cores: u32) -> Facts {
        let slots = shared.then_some(SlotFacts { inline: 4096, regions: true, board: 32 << 20 });
        Facts { ranks, shared, cores, per_node: if shared { ranks } else { 1 }, slots }
    }
}

impl PlanCache {
    /// For `rank` of a new communicator.
    pub fn new(rank: u32, facts: Facts) -> PlanCache {
        let ledger = Ledger::new(rank);
        let course =
            Course { rank, ranks: facts.ranks, stamp: 1, floor: 0, sections: Sections::default(), ledger };
        let (choices, repeated) = ([None; Kind::ALL.len()], Repeated::default());
        PlanCache { facts, split: 0, course, choices, lines: Lines::default(), repeated, idle: vec![] }
    }

    /// The same for an intercommunicator: its ranks are those of both groups, with the `split` ranks of the one whose
    /// first rank is the lower process before the others. They need no slots.
    pub fn between(rank: u32, facts: Facts, split: u32) -> PlanCache {
        PlanCache { split, ..PlanCache::new(rank, Facts { slots: None, ..facts }) }
    }

    /// What all ranks know.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Takes back what an execution that is done had allocated, for the next one.
    pub fn recycle(&mut self, mut execution: Execution) {
        self.course.learn(&execution.0.begun.stamps);
        if self.idle.len() < 2 {
            execution.0.reset();
            self.idle.push(execution);
        }
    }

    /// What is known of the communicator's calls.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.course.ledger
    }

    /// The same, when there are no more calls: ranks that are still in one of them may ask.
    pub fn into_ledger(self) -> Ledger {
        self.course.ledger.close()
    }

    /// Where what was worked out for these arguments is kept, to be [repeated](repeat). All checks of arguments are in it.
    #[inline(always)]
    pub fn known(&self, asked: Asked, lists: &impl Lists) -> Option<usize> {
        let (place, known) = self.repeated.find(asked, lists)?;
        let (at, number) = known.line;
        (self.lines.at((asked.kind, at))?.number == number).then_some(place)
    }

    /// Sees to it that the line for a call is kept; false if it cannot be carried out along one.
    #[inline(always)]
    fn has_line(&mut self, kind: Kind, flat: &Flat<'_>, tuning: &Tuning) -> bool {
        let Some(slots) = self.facts.slots else { return false };
        if flat.largest() > slots.inline.max(slots.board) || self.facts.ranks > Line::RANKS {
            return false;
        }
        let place = (kind, flat.outline.place());
        if self.lines.at(place).is_none_or(|line| !flat.is_on(line)) {
            self.draw(kind, flat, tuning);
        }
        self.lines.at(place).is_some_and(|line| flat.can_walk(line))
    }

    /// Makes the line for a call.
    #[cold]
    fn draw(&mut self, kind: Kind, flat: &Flat<'_>, tuning: &Tuning) {
        let shape = flat.shape(kind, self.course.rank, &self.facts);
        let algorithm = tuning.choose(kind, shape.case(kind, true), shape.commutative, &self.facts);
        self.lines.keep((kind, flat.outline.place()), flat.line(algorithm, &shape));
    }

    fn choose(
        &mut self,
        kind: Kind,
        case: Option<Case>,
        commutative: bool,
        tuning: &Tuning,
    ) -> &'static Algorithm {
        let kept = &mut self.choices[kind as usize];
        if let Some(kept) = kept
            && (kept.case, kept.commutative) == (case, commutative)
        {
            return kept.algorithm;
        }
        let algorithm = tuning.choose(kind, case, commutative, &self.facts);
        *kept = Some(Choice { case, commutative, algorithm });
        algorithm
    }
}

/// What became of an [`attempt`].
pub enum Attempt {
    /// The collective is over.
    Over(Result<(), Box<Fault>>),
    /// It has begun, and would have to wait now.
    Begun(Execution),
}

/// Carries a collective out on the spot, if it is of few bytes in one piece that go through shared slots, and the
/// other ranks are there while it looks `again`, which may take a rest first. `None`: it is another, to be [started](start).
/// What was `asked` may be [repeated](repeat).
#[inline(always)]
pub fn attempt(
    call: &Call,
    asked: Option<(Asked, &dyn Lists)>,
    plans: &mut PlanCache,
    tuning: &Tuning,
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Option<Attempt> {
    let flat = match call.kind.uneven() {
        // Apart, so that what is to be known of blocks that differ is not in the way of the others.
        true => Flat::uneven(call, plans.course.rank),
        false => Flat::even(call, (plans.course.rank, plans.facts.ranks)),
    }?;
    let made = plans.lines.made;
    if !plans.has_line(call.kind, &flat, tuning) {
        return None;
    }
    let place = flat.outline.place();
    let line = plans.lines.at((call.kind, place))?;
    // What is asked for the first time may never be again.
    if let Some(asked) = asked.filter(|_| made == plans.lines.made) {
        plans.repeated.keep(asked, call, &flat, (place, line.number));
    }
    Some(walk(&flat, line, (&mut plans.course, &mut plans.idle), slots, again))
}

/// As [`attempt`], for a call that [is known](PlanCache::known) to be at that place.
#[inline(always)]
pub fn repeat(
    place: usize,
    [send, recv]: [Address; 2],
    plans: &mut PlanCache,
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Option<Attempt> {
    let known = plans.repeated.at(place)?;
    let line = plans.lines.at((known.kind, known.line.0))?;
    let (send, recv) = (known.buffer(0, send), known.buffer(1, recv));
    let flat = known.flat(line, [&send, &recv]);
    Some(walk(&flat, line, (&mut plans.course, &mut plans.idle), slots, again))
}

#[inline(always)]
fn walk(
    flat: &Flat<'_>,
    line: &Arc<Line>,
    (course, idle): (&mut Course, &mut Vec<Execution>),
    slots: &mut impl Slots,
    again: &mut impl FnMut() -> bool,
) -> Attempt {
    let mut begun = Begun::new(course.next(flat.about(line), line.used, line.phases, line.chunks));
    match begun.walk(flat, line, slots, again) {
        None => Attempt::Begun(follow(idle, flat, line.clone(), begun, course.ledger.last())),
        Some(result) => {
            course.learn(&begun.stamps);
            Attempt::Over(result)
        }
    }
}

/// An execution of a call that has come so far along its line.
#[cold]
fn follow(
    idle: &mut Vec<Execution>,
    flat: &Flat<'_>,
    line: Arc<Line>,
    begun: Begun,
    number: u64,
) -> Execution {
    let mut execution = ready(idle);
    execution.0.number = number;
    execution.0.flatten(flat, line, begun);
    execution
}

/// An execution that is ready to be used.
fn ready(idle: &mut Vec<Execution>) -> Execution {
    idle.pop().unwrap_or_else(|| Execution(Box::default()))
}

/// Begins a collective. Nothing is sent before the first [`Execution::advance`].
pub fn start(call: Call, plans: &mut PlanCache, tuning: &Tuning) -> Execution {
    let kind = call.kind;
    let (rank, ranks) = (plans.course.rank, plans.facts.ranks);
    if plans.split == 0
        && let Some(flat) = Flat::of(&call, (rank, ranks))
        && plans.has_line(kind, &flat, tuning)
        && let Some(line) = plans.lines.at((kind, flat.outline.place()))
    {
        let begun = Begun::new(plans.course.next(flat.about(line), line.used, line.phases, line.chunks));
        return follow(&mut plans.idle, &flat, line.clone(), begun, plans.course.ledger.last());
    }
    let mut execution = ready(&mut plans.idle);
    let running = &mut *execution.0;
    running.shape.split = plans.split;
    running.refused = running.arrange(call, rank, ranks).err();
    running.shape.on(&plans.facts);
    let algorithm = match plans.split {
        0 => plans.choose(kind, running.case(kind), running.shape.commutative, tuning),
        _ => between(kind).expect("there are no scans between groups"),
    };
    running.algorithm = algorithm;
    running.rounds = (algorithm.rounds)(&running.shape);
    let (temp, ty) = ((algorithm.temp)(&running.shape), running.op.as_ref().map(|(_, ty)| ty));
    if temp > 0 {
        running.places[2] = Place::scratch(temp, ty, &mut running.work.spare);
    }
    let (chunks, phases) = ((algorithm.chunks)(&running.shape), (algorithm.phases)(&running.shape));
    let op = running.op.as_ref().map(|(op, _)| op);
    let about = About::of(kind, &running.shape).with_any(op, running.shape.split > 0);
    let used = Used::of(about, phases, chunks.number);
    running.begun.stamps = plans.course.next(about, used, phases, chunks);
    (running.phases, running.number) = (phases, plans.course.ledger.last());
    execution
}
