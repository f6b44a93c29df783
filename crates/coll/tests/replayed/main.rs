//! Collectives called again and again, as the C ABI calls them: what was worked out for one call is replayed for the next only
//! if all arguments that matter are equal, whatever the buffers. Ranks are simulated; results are compared with a plain computation.

mod scenario;
#[path = "../world/mod.rs"]
mod world;

use banyan_coll::{
    ArgKind, Attempt, Due, Execution, Groups, Kind, Lists, Model, Needs, Overrides, PlanCache, SharedCaps,
    Topology, Tuning, begin, replay,
};
use banyan_datatype::op::Builtin;
use banyan_memory::HeapBuffer;
use banyan_topo::Profile;
use scenario::{APART, Arguments, Scenario, Type};
use world::{Net, Port, run};

/// A communicator of simulated ranks.
struct World {
    net: Net,
    tuning: Tuning,
    plans: Vec<PlanCache>,
    turn: u64,
}

impl World {
    fn new(ranks: u32) -> World {
        const INLINE: usize = 1 << 13;
        const SCRATCH: usize = 1 << 16;
        let shared = Some(SharedCaps { inline: INLINE as u64, single_copy: true, scratch: SCRATCH as u64 });
        let topology = Topology { ranks, cores: 64, shared, levels: Groups::on_nodes(1, ranks) };
        let mut net = Net::new(ranks, u64::from(ranks), INLINE, true);
        net.scratch = HeapBuffer::zeroed(SCRATCH);
        // With many ranks the tuner would choose algorithms of messages, which have no compiled plans to replay.
        let overrides = if ranks > 8 { "gather=scratch_pipeline,reduce=scratch_ring" } else { "" };
        let tuning = Tuning { overrides: Overrides::parse(overrides).unwrap(), ..Tuning::default() };
        World { net, tuning, plans: (0..ranks).map(|rank| PlanCache::new(rank, topology)).collect(), turn: 0 }
    }

    /// Carries the scenario out at all ranks, with new buffers, and checks the results; returns how many ranks replayed it.
    fn carry_out(&mut self, scenario: &Scenario) -> u32 {
        self.turn += 1;
        let arguments: Vec<Arguments> =
            (0..scenario.ranks).map(|rank| scenario.arguments(self.turn, rank)).collect();
        let mut replays = 0;
        let mut executions: Vec<Vec<Execution>> = vec![];
        let mut all_due = vec![];
        for (rank, arguments) in (0..).zip(&arguments) {
            let (attempt, replayed) = self.attempt(rank, arguments);
            replays += u32::from(replayed);
            executions.push(match attempt {
                Attempt::Over(result) => result.map(|()| vec![]).unwrap(),
                Attempt::Pending(execution) => vec![execution],
                Attempt::Due(postponed) => {
                    all_due.push((postponed.times, postponed.due));
                    vec![]
                }
            });
        }
        if !all_due.is_empty() {
            self.agree(all_due);
            return self.carry_out(scenario);
        }
        for result in run(&mut self.net, &mut executions).concat() {
            assert_eq!(result, Ok(()), "{scenario:?}");
        }
        for (plans, executions) in self.plans.iter_mut().zip(executions) {
            executions.into_iter().for_each(|execution| plans.recycle(execution));
        }
        for (rank, arguments) in (0..).zip(&arguments) {
            self.check(scenario, rank, arguments);
        }
        self.net.assert_empty();
        replays
    }

    /// Tells all ranks the sums of what is due at each of them, which are made up.
    fn agree(&mut self, all: Vec<(Vec<u64>, Due)>) {
        assert_eq!(all.len(), self.plans.len(), "ranks count alike");
        let sums: Vec<u64> = all[0].0.iter().map(|_| 1 + self.net.random.below(1 << 40)).collect();
        for (plans, (_, due)) in self.plans.iter_mut().zip(all) {
            plans.agreed(due, &sums);
        }
    }

    /// Attempts the call as the runtime does, and says whether it was replayed.
    fn attempt(&mut self, rank: u32, arguments: &Arguments) -> (Attempt, bool) {
        let plans = &mut self.plans[rank as usize];
        let mut polls = self.net.random.below(4);
        let mut poll_again = |_| polls.checked_sub(1).map(|left| polls = left).is_some();
        let mut port = Port { net: &mut self.net, rank };
        match plans.replayable(arguments.signature, &arguments.lists) {
            Some((index, bounds)) => {
                let buffers = arguments.buffers(bounds);
                let attempt = replay(index, &buffers, plans, &mut port, &mut poll_again);
                (attempt.expect("it is there"), true)
            }
            None => {
                let signature = Some((arguments.signature, &arguments.lists as &dyn Lists));
                let call = arguments.call.clone();
                (begin(call, signature, plans, &self.tuning, Some(&mut port), &mut poll_again), false)
            }
        }
    }

    fn check(&self, scenario: &Scenario, rank: u32, arguments: &Arguments) {
        let in_place = scenario.is_in_place(rank);
        let keeps_its_block = matches!(scenario.kind, Kind::Scatter | Kind::Scatterv) && in_place;
        if let Some(expected) = scenario.expected(self.turn, rank).filter(|_| !keeps_its_block) {
            let got = scenario.read(&arguments.recv, &scenario.gets(rank));
            assert!(got == expected.concat(), "rank {rank} of {scenario:?}: {got:x?}, not {expected:x?}");
        }
        if !in_place || keeps_its_block {
            let sent = scenario.read(&arguments.send, &scenario.gives(rank));
            let given = scenario.inputs(self.turn, rank).concat();
            assert!(
                sent.is_empty() || sent == given,
                "rank {rank} of {scenario:?}: what it sent has changed"
            );
        }
    }

    /// Carries two scenarios out again and again; `lasts`: their calls are to be replayed.
    fn alternate(&mut self, one: Scenario, other: Scenario, lasts: bool) {
        for scenario in [one, other, one] {
            let replays: Vec<u32> = (0..4).map(|_| self.carry_out(&scenario)).collect();
            let expected = if lasts { scenario.ranks } else { 0 };
            assert_eq!(
                replays[3], expected,
                "so many ranks replayed {scenario:?}, beside {one:?} and {other:?}"
            );
        }
        for scenario in [other, one, other, one, one, other] {
            self.carry_out(&scenario);
        }
    }
}

/// The collectives that have elements of one type.
fn all_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().map(|row| row.0).filter(|kind| !matches!(kind, Kind::Barrier | Kind::Alltoallw))
}

/// Alternates the two scenarios that `vary` makes for each of the `kinds`, at so many ranks.
fn try_out(
    ranks: &[u32],
    kinds: impl Fn(&Kind) -> bool,
    lasts: bool,
    vary: impl Fn(Scenario) -> [Scenario; 2],
) {
    for &ranks in ranks {
        for kind in all_kinds().filter(&kinds) {
            let [one, other] = vary(Scenario::new(kind, ranks));
            World::new(ranks).alternate(one, other, lasts);
        }
    }
}

const FEW: [u32; 2] = [2, 5];

#[test]
fn other_counts() {
    // By 16 elements or bytes, too: the compiled plans of both calls then go to one entry.
    for more in [APART, 16, 1] {
        try_out(&FEW, |_| true, true, |one| [one, Scenario { count: one.count + more, ..one }]);
    }
    try_out(
        &FEW,
        |_| true,
        true,
        |one| {
            let one = Scenario { ty: Type::Half, count: 4, ..one };
            [one, Scenario { count: 8, ..one }]
        },
    );
}

#[test]
fn other_types() {
    try_out(&FEW, |_| true, true, |one| [one, Scenario { ty: Type::Half, ..one }]);
}

#[test]
fn other_operations() {
    try_out(&FEW, |kind| kind.reduces(), true, |one| [one, Scenario { op: Builtin::Max, ..one }]);
}

#[test]
fn other_roots() {
    try_out(&FEW, |kind| kind.rooted(), true, |one| [one, Scenario { root: 1, ..one }]);
    try_out(&[65], |kind| kind.rooted(), true, |one| [one, Scenario { root: APART as u32, ..one }]);
    // Root and count change places.
    try_out(
        &[5],
        |kind| kind.rooted(),
        true,
        |one| [Scenario { root: 1, count: 2, ..one }, Scenario { root: 2, count: 1, ..one }],
    );
}

#[test]
fn in_place_and_not() {
    try_out(&FEW, |&kind| kind != Kind::Bcast, true, |one| [one, Scenario { in_place: true, ..one }]);
}

#[test]
fn other_values_in_lists() {
    try_out(&FEW, |kind| kind.uneven(), true, |one| [one, Scenario { step: 1, ..one }]);
    let placed = |kind: &Kind| kind.uneven() && *kind != Kind::ReduceScatter;
    try_out(&FEW, placed, true, |one| [one, Scenario { gap: 2, ..one }]);
}

#[test]
fn other_kinds() {
    try_out(&FEW, |_| true, true, |one| [one, Scenario { kind: Kind::Scan, ..one }]);
}

#[test]
fn calls_with_handles_that_may_change_their_meaning_are_not_replayed() {
    try_out(
        &FEW,
        |kind| !kind.reduces(),
        false,
        |one| [Scenario { ty: Type::Derived(1), ..one }, Scenario { ty: Type::Derived(2), ..one }],
    );
    try_out(
        &FEW,
        |_| true,
        false,
        |one| {
            let one = Scenario { ty: Type::Fortran, ..one };
            [one, Scenario { count: 2, ..one }]
        },
    );
}

/// The compiled plan of the same call would touch memory that cannot be touched.
#[test]
fn plans_for_host_memory_are_not_replayed_for_a_device_s() {
    for kind in all_kinds() {
        let (mut world, host) = (World::new(2), Scenario::new(kind, 2));
        let device = Scenario { device: true, ..host };
        let replays: Vec<u32> =
            [host, host, device, device, host, host].iter().map(|one| world.carry_out(one)).collect();
        assert_eq!(replays, [0, 2, 0, 0, 0, 2], "{kind:?}");
    }
}

#[test]
fn wrong_buffers_are_not_replayed() {
    for kind in all_kinds() {
        let (mut world, scenario) = (World::new(2), Scenario::new(kind, 2));
        let replays: Vec<u32> = (0..3).map(|_| world.carry_out(&scenario)).collect();
        assert_eq!(replays, [0, 2, 2], "{kind:?}");
        let arguments = scenario.arguments(1, 0);
        let replayable = |buffers| {
            let mut signature = arguments.signature;
            signature.buffers = buffers;
            world.plans[0].replayable(signature, &arguments.lists)
        };
        let [send, recv] = arguments.signature.buffers;
        assert!(replayable([send, recv]).is_some(), "{kind:?}");
        assert!(replayable([send, (recv.0, ArgKind::Other)]).is_none(), "{kind:?}: NULL to receive in");
        if kind != Kind::Bcast {
            assert!(replayable([(send.0, ArgKind::Other), recv]).is_none(), "{kind:?}: NULL to send from");
            assert!(replayable([send, send]).is_none(), "{kind:?}: one memory for both");
        }
    }
}

/// Calls that measure themselves go now by this algorithm, now by that, at all ranks alike, and between others. Ranks that were out of step would wait for
/// ever, or find wrong data.
#[test]
fn calls_that_are_measured_change_their_algorithms_at_all_ranks_alike() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = world::Random(seed);
    // A machine on which calls of few bytes take long enough to be measured.
    let mut slow = Profile::default();
    let seconds = slow.figures().into_iter().filter(|(name, _)| name != "last_level_cache");
    seconds.for_each(|(_, figure)| *figure *= 10.0);
    let model = Model::of(&slow, 1);
    let mut found = vec![];
    for kind in all_kinds() {
        for ranks in [2, 5] {
            let mut world = World::new(ranks);
            world.tuning.model = model;
            world.plans = world.plans.into_iter().map(PlanCache::measured).collect();
            let one = Scenario { count: 1_100, ..Scenario::new(kind, ranks) };
            let all = [
                one,
                one,
                one,
                Scenario { root: 1, ..one },
                Scenario { in_place: true, ..one },
                Scenario { count: 1, ..one },
            ];
            for _ in 0..500 {
                let scenario = all[random.below(all.len() as u64) as usize];
                world.carry_out(&scenario);
            }
            let here: Vec<_> = world.plans.iter().map(PlanCache::found).collect();
            let chosen = |rank: usize| here[rank].iter().map(|found| found.algorithm).collect::<Vec<_>>();
            assert!((0..ranks as usize).all(|rank| chosen(rank) == chosen(0)), "{kind:?}: {here:?}");
            found.extend(here[0].iter().map(|found| (kind, ranks, found.algorithm.needs)));
        }
    }
    println!("{found:?}");
    let means = [Needs::Messages, Needs::SharedScratch, Needs::SingleCopy, Needs::Offers];
    assert!(found.len() > 20 && means.iter().all(|means| found.iter().any(|found| found.2 == *means)));
    // More than two operands have an order, and where ranks do not know each other's lengths nothing is measured.
    assert!(
        found.iter().all(|&(kind, ranks, _)| !kind.size_unknown(ranks) && (ranks == 2 || !kind.reduces()))
    );
}
