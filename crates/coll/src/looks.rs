//! [`Looks`]: by which algorithms collectives go, as measured on the calls themselves.
//!
//! The cost model knows the machine, and not how far from each other two cores are at the moment, which core has a program's buffers in its
//! caches, or who was the root of the call before. So calls that take some time try the algorithms that the model thinks are near to the best
//! one, in turns; the quickest of them is kept, until there is another look. By how much the model is wrong of an algorithm, the others that
//! [need](crate::Needs) the same have in common with it, so that only the best of these are tried, and so have longer calls and shorter ones, so that calls
//! of another size begin with what is known of those.
//!
//! All ranks must choose alike. They do, as they count the calls of a [class](Class) alike, and add their times up (a small allreduce, by the
//! owner, before another such call: [`Looks::due`]) before they decide. So only calls that all ranks wait for take part: a rank in a nonblocking call
//! could not wait for the sum. Nor do short calls, which a program may expect to be over at a rank before others have come to them.

use std::fmt;
use std::time::Instant;

use crate::{Algorithm, Case, Kind, Topology, Tuning};

/// Calls that go by the same algorithm.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Class {
    kind: Kind,
    /// The power of two of their bytes.
    size: u32,
    plain: bool,
    commutative: bool,
}

/// What is known of a class.
#[derive(Debug)]
struct Known {
    class: Class,
    /// The root of its last call.
    root: u32,
    /// Of calls whose root is another one than that of the call before, and of those with the same: which way bytes went last decides where the
    /// cache lines are that they meet. None if there is nothing to choose.
    tracks: Option<[Track; 2]>,
}

/// What is known of all classes of a communicator.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    known: Vec<Known>,
    /// The track on which ranks must [agree](Looks::due) before the next call that is looked at.
    due: Option<Due>,
    /// The track and the algorithm of the call under way, and when it began, if it is timed.
    began: Option<(Due, usize, Instant)>,
}

/// What [`Looks`] know a call by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Looked {
    class: usize,
    root: u32,
}

impl Looked {
    /// The same as a number, which ranks in step have alike.
    pub(crate) fn number(self) -> u64 {
        self.class as u64 + 1
    }
}

/// Seconds from which on a call takes part: what it takes to read a clock twice should not matter to it.
const LEAST: f64 = 1e-6;

/// Bytes (of a block, where there are blocks) from which on a call takes part.
const LEAST_BYTES: f64 = 8192.0;

/// How much slower than the best algorithm another one may be by the model to be tried. Where cores are as far from each other as they can be, what
/// goes over the shared scratch takes four times as long as the model thinks of near ones.
const NEAR: f64 = 4.0;
/// The same on more ranks than cores, where a look takes long, as ranks take turns, and how far two cores are from each other matters little.
const NEAR_CROWDED: f64 = 1.5;
/// How much slower than the best of those that need the same. With one root a reduction by halves takes half as long again as by a tree, where the
/// model, which does not know that the other ranks run ahead, has it take 0.86 of that.
const ALIKE: f64 = 1.2;

/// By how many powers of two the bytes of two calls may differ for one to begin with what is known of the other.
const NEARBY: u32 = 3;

/// Those of some algorithms, the best by the model first, that are tried, each with the seconds that it takes by the model.
fn near(all: Vec<(&'static Algorithm, f64)>, crowded: bool) -> Vec<(&'static Algorithm, f64)> {
    let most = all.first().map_or(0.0, |best| best.1) * if crowded { NEAR_CROWDED } else { NEAR };
    let mut near: Vec<(&'static Algorithm, f64)> = vec![];
    for (row, time) in all.into_iter().take_while(|row| row.1 <= most) {
        let mut alike = near.iter().filter(|other| other.0.needs == row.needs).map(|other| other.1);
        // What takes just as long with the same needs is the same schedule.
        let is_new = alike.clone().all(|other| other < time);
        if is_new && alike.next().is_none_or(|best| time <= ALIKE * best) {
            near.push((row, time));
        }
    }
    near
}

impl Looks {
    /// What such a call is known by; `None` if there is no choice to make. All ranks ask alike.
    pub(crate) fn of(
        &mut self,
        (kind, root): (Kind, u32),
        case: Option<Case>,
        commutative: bool,
        (tuning, topology): (&Tuning, &Topology),
    ) -> Option<Looked> {
        let case = case.filter(|case| case.bytes >= LEAST_BYTES)?;
        // Of more than two operands each order has bits of its own in its sums.
        if kind.combines(topology.ranks) && (topology.ranks > 2 || !case.plain) || topology.ranks < 2 {
            return None;
        }
        let class = Class { kind, size: (case.bytes as u64).ilog2(), plain: case.plain, commutative };
        let at = self.known.iter().position(|known| known.class == class).unwrap_or_else(|| {
            let crowded = topology.crowded();
            let near = near(tuning.ranked(kind, case, commutative, topology), crowded);
            let run = Run::new(topology.ranks, crowded);
            let matters = near.first().is_some_and(|best| best.1 >= LEAST) && near.len() > 1;
            let tracks =
                matters.then(|| [0, 1].map(|index| Track::new(&near, self.nearest(class, index), run)));
            self.known.push(Known { class, root, tracks });
            self.known.len() - 1
        });
        self.known[at].tracks.is_some().then_some(Looked { class: at, root })
    }

    /// What is known of such calls of the next size of which something is.
    fn nearest(&self, class: Class, index: usize) -> Option<&Track> {
        let like = |known: &&Known| Class { size: class.size, ..known.class } == class;
        let measured = self.known.iter().filter(like).filter_map(|known| {
            let track = &known.tracks.as_ref()?[index];
            track.best.map(|_| (known.class.size.abs_diff(class.size), track))
        });
        let nearest = measured.min_by_key(|(far, _)| *far)?;
        (nearest.0 <= NEARBY).then_some(nearest.1)
    }

    /// By which algorithm the next call goes; `None` if there is nothing to choose.
    pub(crate) fn algorithm(&self, Looked { class, root }: Looked) -> Option<&'static Algorithm> {
        let known = &self.known[class];
        Some(known.tracks.as_ref()?[usize::from(known.root == root)].algorithm())
    }

    /// A call begins.
    #[inline(never)]
    pub(crate) fn begin(&mut self, Looked { class, root }: Looked) {
        let known = &mut self.known[class];
        let index = usize::from(known.root == root);
        known.root = root;
        let at = Due { class, index };
        let Some(track) = self.track(at) else { return };
        let (timed, last) = track.count();
        if last {
            self.due = Some(at);
        }
        self.began = timed.map(|candidate| (at, candidate, Instant::now()));
    }

    /// The call that was begun last is over.
    #[inline(never)]
    pub(crate) fn end(&mut self) {
        if let Some((at, candidate, began)) = self.began.take()
            && let Some(track) = self.track(at)
        {
            track.all[candidate].took += began.elapsed().as_nanos() as u64;
        }
    }

    fn track(&mut self, Due { class, index }: Due) -> Option<&mut Track> {
        self.known[class].tracks.as_mut().map(|tracks| &mut tracks[index])
    }

    /// What looks have found.
    pub(crate) fn found(&self) -> Vec<Found> {
        let mut all = vec![];
        for Known { class, tracks, .. } in &self.known {
            for (again, track) in [false, true].into_iter().zip(tracks.iter().flatten()) {
                all.extend(track.best.map(|best| Found {
                    kind: class.kind,
                    bytes: 1 << class.size,
                    again,
                    algorithm: track.all[best].algorithm,
                    times: track.all.iter().map(|row| (row.algorithm, track.seconds(row))).collect(),
                }));
            }
        }
        all
    }

    /// True if the next call goes by this algorithm, and ranks need not agree before it.
    #[inline(never)]
    pub(crate) fn are_current(&self, call: Looked, algorithm: Option<&'static Algorithm>) -> bool {
        self.due.is_none() && self.algorithm(call) == algorithm
    }

    /// What this rank has measured, if ranks must agree before the next call that is looked at: the sums of all are to be told by [`Looks::agreed`].
    pub(crate) fn due(&mut self) -> Option<(Vec<u64>, Due)> {
        let at = self.due.take()?;
        Some((self.track(at)?.times(), at))
    }

    /// The sums of what all ranks have measured.
    pub(crate) fn agreed(&mut self, due: Due, sums: &[u64]) {
        if let Some(track) = self.track(due) {
            track.agreed(sums);
        }
    }
}

/// What the last look at some calls has found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The collective.
    pub kind: Kind,
    /// The least bytes of such calls, of which the others have less than twice as many.
    pub bytes: u64,
    /// The root was that of the call before.
    pub again: bool,
    /// By which algorithm they go now.
    pub algorithm: &'static Algorithm,
    /// The mean time that a rank is in such a call, in seconds, by each algorithm that was tried.
    pub times: Vec<(&'static Algorithm, f64)>,
}

/// Such as "bcast from 262144 bytes, same root: binomial, as scratch_pipeline 67.1 us, binomial 23.3 us, single_copy 39.0 us".
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { kind, bytes, again, algorithm, times } = self;
        let root = match kind.rooted() {
            true if *again => ", same root",
            true => ", another root",
            false => "",
        };
        write!(f, "{} from {bytes} bytes{root}: {}, as ", kind.name(), algorithm.name)?;
        let times = times.iter().map(|(row, time)| format!("{} {:.1} us", row.name, 1e6 * time));
        f.write_str(&times.collect::<Vec<_>>().join(", "))
    }
}

/// On which calls ranks agree: a track, by its class and its place there.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    class: usize,
    index: usize,
}

/// What is known of calls of one class.
#[derive(Debug)]
struct Track {
    /// The best by what is known at first is the first one.
    all: Vec<Candidate>,
    /// The best by the last look.
    best: Option<usize>,
    stage: Stage,
    run: Run,
    /// Calls until the next look, at the end of this stage.
    left: u32,
    /// Nanoseconds that the timed calls of a run are expected to take at all ranks together.
    expected: f64,
    /// Calls, as of the best algorithm, that the present look has cost more than they needed.
    cost: f64,
}

/// The calls in a row that an algorithm has in a round.
#[derive(Clone, Copy, Debug)]
struct Run {
    ranks: u32,
    /// Enough that each of some ranks is the root, and takes its turn on a core.
    calls: u32,
    /// The first ones of them find what the algorithm before has left, and are not timed.
    settle: u32,
}

impl Run {
    /// Where ranks share cores, parts of the scratch that were not used for some time have left the caches, and it takes a round of them until all are back.
    const fn new(ranks: u32, crowded: bool) -> Run {
        let (calls, settle) = if crowded { (48, 24) } else { (16, 4) };
        Run { ranks, calls, settle }
    }

    /// How many times all ranks together measure.
    fn times(self) -> f64 {
        f64::from((self.calls - self.settle) * self.ranks)
    }
}

/// One algorithm that is tried.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    algorithm: &'static Algorithm,
    /// Seconds that a call takes by the model.
    model: f64,
    /// It has a run in this round.
    tried: bool,
    /// Nanoseconds that the timed calls of its last run took at this rank.
    took: u64,
    /// Nanoseconds of a run of it at all ranks together, the best one of the last look.
    best: u64,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many calls are not timed.
    Rest(u32),
    /// The algorithm whose run it is, and how many calls of it there were.
    Run(Round, usize, u32),
    /// The ranks add their times up.
    Sum(Round),
}

/// Runs after which the ranks agree.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Round {
    /// Of the algorithm in use alone: does it take as long as it should? So many times in a row it did not.
    Watch(u32),
    /// Of all candidates.
    First,
    /// Of those that were near to the best, and the one in use.
    Second,
}

impl Track {
    /// What takes this much longer than the best is not tried twice.
    const HOPELESS: f64 = 1.3;
    /// Another algorithm takes the place of the one in use if its time is at most this part of that one's.
    const MARGIN: f64 = 0.92;
    /// What looks may cost, as a part of the time of all calls.
    const PRICE: f64 = 0.01;
    /// What the first one may cost by the model, as a part of the time of the calls before it.
    const FIRST_PRICE: f64 = 0.03;
    /// The least calls between looks, and between a look and a watch.
    const BETWEEN: u32 = 256;
    /// Watches between two looks.
    const WATCHES: u32 = 8;
    /// Two watches in a row that find calls to take so many times as long as they should, or as short, are followed by a look.
    const ALARM: f64 = 1.5;
    /// The same before the first look, where the model says how long they should take.
    const FIRST_ALARM: f64 = 2.0;

    /// These algorithms take these seconds by the model; calls `nearby` say by how much the model is wrong of them.
    fn new(candidates: &[(&'static Algorithm, f64)], nearby: Option<&Track>, run: Run) -> Track {
        let wrong = |algorithm| nearby.map_or(1.0, |track| track.wrong(algorithm));
        let expect = |&(algorithm, model)| (algorithm, model, model * wrong(algorithm));
        let mut candidates: Vec<_> = candidates.iter().map(expect).collect();
        candidates.sort_by(|one, other| one.2.total_cmp(&other.2));
        let least = candidates[0].2;
        let extra: f64 = candidates.iter().map(|row| row.2 / least - 1.0).sum();
        let left = (extra * f64::from(run.calls) / Track::FIRST_PRICE) as u32;
        let begin = |(algorithm, model, _)| Candidate { algorithm, model, tried: true, took: 0, best: 0 };
        let all = candidates.into_iter().map(begin).collect();
        let expected = 1e9 * least * run.times();
        Track { all, best: None, stage: Stage::Rest(run.calls), run, left, expected, cost: 0.0 }
    }

    /// How many times as long as by the model calls take by this algorithm, or else by one that needs the same, by the last look.
    fn wrong(&self, algorithm: &Algorithm) -> f64 {
        let measured = || self.all.iter().filter(|row| row.best > 0);
        let itself = measured().find(|row| row.algorithm == algorithm);
        let alike = || measured().find(|row| row.algorithm.needs == algorithm.needs);
        itself.or_else(alike).map_or(1.0, |row| self.seconds(row) / row.model)
    }

    /// By which algorithm the next call goes.
    fn algorithm(&self) -> &'static Algorithm {
        let at = match self.stage {
            Stage::Run(Round::First | Round::Second, at, _) => at,
            _ => self.best.unwrap_or(0),
        };
        self.all[at].algorithm
    }

    /// Counts a call. Its candidate, if it is timed, and whether it is the last one before the ranks must agree.
    fn count(&mut self) -> (Option<usize>, bool) {
        match &mut self.stage {
            Stage::Rest(left) => {
                *left -= 1;
                if *left == 0 {
                    self.go(if self.left == 0 { Round::First } else { Round::Watch(0) });
                }
                (None, false)
            }
            Stage::Run(round, at, calls) => {
                let (round, at) = (*round, *at);
                *calls += 1;
                if *calls == 1 {
                    self.all[at].took = 0;
                }
                let timed = (*calls > self.run.settle).then_some(at);
                if *calls == self.run.calls {
                    self.stage = match self.next(at + 1) {
                        Some(next) => Stage::Run(round, next, 0),
                        None => Stage::Sum(round),
                    };
                }
                (timed, matches!(self.stage, Stage::Sum(_)))
            }
            Stage::Sum(_) => (None, false),
        }
    }

    /// The first candidate from this one on that is tried.
    fn next(&self, from: usize) -> Option<usize> {
        (from..self.all.len()).find(|&at| self.all[at].tried)
    }

    /// The mean time of a call by a candidate at a rank, by the best run of the last look.
    fn seconds(&self, candidate: &Candidate) -> f64 {
        1e-9 * candidate.best as f64 / self.run.times()
    }

    /// Begins a round.
    fn go(&mut self, round: Round) {
        let current = self.best.unwrap_or(0);
        for (at, row) in self.all.iter_mut().enumerate() {
            row.tried = match round {
                Round::Watch(_) => at == current,
                Round::First => true,
                Round::Second => row.tried,
            };
        }
        let first = self.next(0).expect("the algorithm in use is tried");
        self.stage = Stage::Run(round, first, 0);
    }

    /// Goes on without a look for the rest of the calls, up to the next watch.
    fn rest(&mut self) {
        let watch = (self.left / Track::WATCHES).max(Track::BETWEEN);
        let next = if self.left < 2 * watch { self.left.max(1) } else { watch };
        self.left -= next.min(self.left);
        self.stage = Stage::Rest(next);
    }

    /// What the runs of this round took at this rank.
    fn times(&self) -> Vec<u64> {
        self.all.iter().filter(|row| row.tried).map(|row| row.took).collect()
    }

    /// What they took at all ranks together.
    fn agreed(&mut self, sums: &[u64]) {
        let Stage::Sum(round) = self.stage else { return };
        for (row, &sum) in self.all.iter_mut().filter(|row| row.tried).zip(sums) {
            row.took = sum;
            row.best = if round == Round::Second { row.best.min(sum) } else { sum };
        }
        match round {
            Round::Watch(before) => self.watched(before),
            _ => self.looked(round),
        }
    }

    fn watched(&mut self, before: u32) {
        let took = self.all[self.best.unwrap_or(0)].took as f64;
        let alarm = match self.best {
            None => took > Track::FIRST_ALARM * self.expected,
            Some(_) => took > Track::ALARM * self.expected || took < self.expected / Track::ALARM,
        };
        match (alarm, before) {
            (false, _) => self.rest(),
            (true, 0) => self.go(Round::Watch(1)),
            (true, _) => self.go(Round::First),
        }
    }

    /// Those that were near to the best, and the one in use, get another run; then the best is known.
    fn looked(&mut self, round: Round) {
        let current = self.best.unwrap_or(0);
        let tried = || self.all.iter().enumerate().filter(|(_, row)| row.tried);
        let best = tried().map(|(at, row)| (at, row.best)).min_by_key(|row| row.1);
        let (quickest, least) = best.expect("the algorithm in use was tried");
        let extra = |row: &Candidate| row.took as f64 / least.max(1) as f64 - 1.0;
        self.cost += tried().map(|(_, row)| extra(row)).sum::<f64>() * f64::from(self.run.calls);
        let near = |row: &Candidate| row.best as f64 <= Track::HOPELESS * least as f64;
        for (at, row) in self.all.iter_mut().enumerate() {
            row.tried &= near(row) || at == current;
        }
        if round == Round::First && self.all.iter().filter(|row| row.tried).count() > 1 {
            return self.go(Round::Second);
        }
        let better = (least as f64) < Track::MARGIN * self.all[current].best as f64;
        let best = if better { quickest } else { current };
        (self.best, self.expected) = (Some(best), self.all[best].best as f64);
        let rest = std::mem::take(&mut self.cost) / Track::PRICE;
        self.left = (rest as u32).max(Track::BETWEEN);
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use banyan_transport::random::Random;

    use super::*;
    use crate::{Needs, of_kind};

    /// Of two ranks with a core each.
    const PAIR: Run = Run::new(2, false);

    /// Three algorithms that need different things, with the seconds that they take by the model.
    fn all() -> [(&'static Algorithm, f64); 3] {
        let named = |name| of_kind(Kind::Bcast).find(|row| row.name == name).expect("there is one");
        [(named("scratch_pipeline"), 10e-6), (named("binomial"), 12e-6), (named("single_copy"), 30e-6)]
    }

    /// Tracks of some ranks, on which calls by the algorithms take so many nanoseconds, more or less, and not the same at all ranks.
    struct Ranks {
        tracks: Vec<Track>,
        random: Random,
        /// What all calls took, beside what they had taken by the best algorithm.
        spent: [f64; 2],
    }

    impl Ranks {
        fn new(number: usize, seed: u64) -> Ranks {
            let tracks =
                (0..number).map(|_| Track::new(&all(), None, Run::new(number as u32, false))).collect();
            Ranks { tracks, random: Random::new(seed), spent: [0.0; 2] }
        }

        fn call(&mut self, took: [u64; 3], noise: usize) {
            let algorithm = self.tracks[0].algorithm();
            assert!(self.tracks.iter().all(|track| track.algorithm() == algorithm), "ranks choose alike");
            let at = all().iter().position(|row| row.0 == algorithm).expect("one of them");
            let mut due = vec![];
            for track in &mut self.tracks {
                let (timed, last) = track.count();
                let nanos = took[at] + self.random.below(1 + noise * took[at] as usize / 100) as u64;
                if let Some(candidate) = timed {
                    track.all[candidate].took += nanos;
                }
                due.push(last);
            }
            self.spent[0] += took[at] as f64;
            self.spent[1] += *took.iter().min().unwrap() as f64;
            assert!(due.iter().all(|&last| last == due[0]));
            if due[0] {
                let times: Vec<Vec<u64>> = self.tracks.iter().map(Track::times).collect();
                let sums: Vec<u64> =
                    (0..times[0].len()).map(|at| times.iter().map(|times| times[at]).sum()).collect();
                self.tracks.iter_mut().for_each(|track| track.agreed(&sums));
            }
        }

        fn calls(&mut self, number: u32, took: [u64; 3], noise: usize) -> f64 {
            self.spent = [0.0; 2];
            (0..number).for_each(|_| self.call(took, noise));
            self.spent[0] / self.spent[1]
        }
    }

    /// Whatever the model thinks, the quickest algorithm is found, also once it is another one, and looks take little time.
    #[test]
    fn the_quickest_algorithm_is_found_by_all_ranks_alike() {
        let mut random = Random::new(5);
        for seed in 0..30 {
            let mut ranks = Ranks::new(2 + random.below(7), seed);
            for _ in 0..4 {
                let mut took = [0; 3].map(|_| 5_000 + random.below(100_000) as u64);
                let quickest = random.below(3);
                took[quickest] = took.iter().min().unwrap() * 3 / 4;
                let slowest = *took.iter().max().unwrap() as f64 / took[quickest] as f64;
                // Until the next look, which follows the more seldom the more the last one cost.
                ranks.calls((2_000.0 + 20_000.0 * 3.0 * slowest) as u32, took, 15);
                let share = ranks.calls(20_000, took, 15);
                assert_eq!(ranks.tracks[0].best, Some(quickest), "seed {seed}: {took:?}");
                assert!(share < 1.04, "seed {seed}: {share} times the time of {took:?}");
            }
        }
    }

    /// On 16 ranks of 2 cores others would take nearly twice as long by the model: a run of each is not worth it.
    #[test]
    fn where_ranks_share_cores_only_what_is_nearly_as_quick_is_tried() {
        let tuning = Tuning::default();
        let case = Some(Case::plain((256 << 10) as f64, 16));
        let choice = |cores: u32| {
            let topology = Topology::assumed(16, true, cores);
            Looks::default().of((Kind::Scatter, 0), case, false, (&tuning, &topology)).is_some()
        };
        assert!(choice(16) && !choice(2));
    }

    /// With one root what is quicker of two that the model has nearly alike depends on what it does not know; of schedules that are the same one is tried.
    #[test]
    fn of_those_that_need_the_same_near_ones_are_tried_once_each() {
        let profile = banyan_topo::Profile::named("zen3").expect("it is built in");
        let tuning = Tuning { model: crate::Model::of(&profile, 1), ..Tuning::default() };
        let tried = |kind, bytes: f64| {
            let topology = Topology::assumed(2, true, 2);
            let all = near(tuning.ranked(kind, Case::plain(bytes, 2), true, &topology), false);
            all.into_iter()
                .filter(|row| row.0.needs == Needs::Messages)
                .map(|row| row.0.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(tried(Kind::Reduce, 1_048_576.0), ["rabenseifner", "binomial"]);
        assert_eq!(tried(Kind::Alltoall, 1_048_576.0), ["pairwise"], "it is as spread on two ranks");
    }

    /// An algorithm that is not better by more than noise is not taken for another one.
    #[test]
    fn what_is_as_quick_is_not_changed() {
        for seed in 0..50 {
            let mut ranks = Ranks::new(4, seed);
            ranks.calls(20_000, [10_000, 10_300, 10_200], 4);
            assert_eq!(ranks.tracks[0].best, Some(0), "seed {seed}");
        }
    }

    /// Before the first look there are calls enough that it does not matter to a program that ends soon, but where calls take much longer than they should.
    #[test]
    fn the_first_look_waits_for_calls_that_it_may_cost_unless_there_is_an_alarm() {
        let expected = all().map(|row| (1e9 * row.1) as u64);
        let mut ranks = Ranks::new(2, 1);
        // Two others, 0.2 and twice the time of the best longer: for 16 calls each.
        assert_eq!(ranks.tracks[0].left, 1_173);
        assert!(ranks.calls(2_000, expected, 0) < 1.04);
        assert!(ranks.tracks[0].best.is_some());
        let mut ranks = Ranks::new(2, 1);
        ranks.calls(150, [3 * expected[0], expected[1], expected[2]], 0);
        assert_eq!(ranks.tracks[0].best, Some(1));
        // It is known as soon that another one has become better.
        ranks.calls(1_500, [expected[0], 2 * expected[1], expected[2]], 0);
        assert_eq!(ranks.tracks[0].best, Some(0));
    }

    /// Calls of another size begin with the algorithm that should be the best one if the model is as wrong of all as it is of those nearby.
    #[test]
    fn calls_of_another_size_begin_with_what_is_known_of_those_nearby() {
        let mut ranks = Ranks::new(2, 1);
        ranks.calls(2_000, [30_000, 12_000, 15_000], 0);
        let class = |size| Class { kind: Kind::Bcast, size, plain: true, commutative: true };
        let [same, other] = [ranks.tracks.remove(0), Track::new(&all(), None, PAIR)];
        let known = vec![Known { class: class(15), root: 0, tracks: Some([other, same]) }];
        let looks = Looks { known, ..Looks::default() };
        // The model is wrong by 3, 1 and 0.5 times.
        let eight = all().map(|(algorithm, time)| (algorithm, 8.0 * time));
        let begin = |class, index| Track::new(&eight, looks.nearest(class, index), PAIR);
        let track = begin(class(18), 1);
        let order: Vec<&str> = track.all.iter().map(|row| row.algorithm.name).collect();
        assert_eq!(order, ["binomial", "single_copy", "scratch_pipeline"]);
        assert_eq!(track.algorithm().name, "binomial");
        let expected = 8.0 * 12_000.0 * PAIR.times();
        assert!((track.expected / expected - 1.0).abs() < 0.01, "{} ns", track.expected);
        // Nothing is known of calls with another root, of much longer ones, and of other kinds.
        let gather = Class { kind: Kind::Gather, ..class(15) };
        for track in [begin(class(18), 0), begin(class(19), 1), begin(gather, 1)] {
            assert_eq!(track.algorithm().name, "scratch_pipeline");
        }
    }
}
