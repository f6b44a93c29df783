//! Collectives asked for again and again, as the C face asks for them: what was worked out for one call serves the next only if
//! all is the same that matters, whatever the buffers. Ranks are simulated; results are held against a plain computation.

mod asking;
#[path = "../world/mod.rs"]
mod world;

use asking::{APART, Asking, Passed, Type};
use banyan_coll::{
    Attempt, Execution, Facts, Given, Kind, Lists, Overrides, PlanCache, SlotFacts, Tuning, attempt, repeat,
    start,
};
use banyan_datatype::op::Builtin;
use banyan_memory::Scratch;
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
        const INLINE: usize = 4096;
        const BOARD: usize = 1 << 16;
        let slots = Some(SlotFacts { inline: INLINE as u64, regions: true, board: BOARD as u64 });
        let facts = Facts { ranks, shared: true, cores: 64, per_node: ranks, slots };
        let mut net = Net::new(ranks, u64::from(ranks), INLINE, true);
        net.board = Scratch::zeroed(BOARD);
        // With many ranks those of messages would be chosen, for which nothing is kept.
        let shared = if ranks > 8 { "gather=board,reduce=board" } else { "" };
        let tuning = Tuning { overrides: Overrides::parse(shared).unwrap(), ..Tuning::default() };
        World { net, tuning, plans: (0..ranks).map(|rank| PlanCache::new(rank, facts)).collect(), turn: 0 }
    }

    /// Carries it out at all ranks, with buffers of its own, and looks at what came of it; gives how many ranks knew it.
    fn ask(&mut self, asking: &Asking) -> u32 {
        self.turn += 1;
        let passed: Vec<Passed> = (0..asking.ranks).map(|rank| asking.pass(self.turn, rank)).collect();
        let mut known = 0;
        let mut executions: Vec<Vec<Execution>> = vec![];
        for (rank, passed) in (0..).zip(&passed) {
            let (attempt, repeated) = self.attempt(rank, passed);
            known += u32::from(repeated);
            executions.push(match attempt {
                Some(Attempt::Over(result)) => result.map(|()| vec![]).unwrap(),
                Some(Attempt::Begun(execution)) => vec![execution],
                None => {
                    let plans = &mut self.plans[rank as usize];
                    vec![start(passed.call.clone(), plans, &self.tuning)]
                }
            });
        }
        for result in run(&mut self.net, &mut executions).concat() {
            assert_eq!(result, Ok(()), "{asking:?}");
        }
        for (plans, executions) in self.plans.iter_mut().zip(executions) {
            executions.into_iter().for_each(|execution| plans.recycle(execution));
        }
        for (rank, passed) in (0..).zip(&passed) {
            self.check(asking, rank, passed);
        }
        self.net.assert_empty();
        known
    }

    /// As the runtime does it; also whether it was known.
    fn attempt(&mut self, rank: u32, passed: &Passed) -> (Option<Attempt>, bool) {
        let plans = &mut self.plans[rank as usize];
        let mut looks = self.net.random.below(4);
        let mut again = || looks.checked_sub(1).map(|left| looks = left).is_some();
        let mut port = Port { net: &mut self.net, rank };
        let addresses = passed.asked.buffers.map(|buffer| buffer.0);
        match plans.known(passed.asked, &passed.lists) {
            Some(place) => (repeat(place, addresses, plans, &mut port, &mut again), true),
            None => {
                let asked = Some((passed.asked, &passed.lists as &dyn Lists));
                (attempt(&passed.call, asked, plans, &self.tuning, &mut port, &mut again), false)
            }
        }
    }

    fn check(&self, asking: &Asking, rank: u32, passed: &Passed) {
        let in_place = asking.is_in_place(rank);
        let keeps = matches!(asking.kind, Kind::Scatter | Kind::Scatterv) && in_place;
        if let Some(wanted) = asking.wanted(self.turn, rank).filter(|_| !keeps) {
            let got = asking.read(&passed.recv, &asking.gets(rank));
            assert!(got == wanted.concat(), "rank {rank} of {asking:?}: {got:x?}, not {wanted:x?}");
        }
        if !in_place || keeps {
            let sent = asking.read(&passed.send, &asking.gives(rank));
            let given = asking.inputs(self.turn, rank).concat();
            assert!(sent.is_empty() || sent == given, "rank {rank} of {asking:?}: what it gave has changed");
        }
    }

    /// One call and another one again and again, of which `lasts` tells whether they are kept.
    fn alternate(&mut self, one: Asking, other: Asking, lasts: bool) {
        for asking in [one, other, one] {
            let known: Vec<u32> = (0..4).map(|_| self.ask(&asking)).collect();
            let wanted = if lasts { asking.ranks } else { 0 };
            assert_eq!(
                known[3], wanted,
                "{asking:?} was known to so many ranks, beside {one:?} and {other:?}"
            );
        }
        for asking in [other, one, other, one, one, other] {
            self.ask(&asking);
        }
    }
}

/// Those that have elements of one type.
fn all_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().map(|row| row.0).filter(|kind| !matches!(kind, Kind::Barrier | Kind::Alltoallw))
}

/// Calls of each kind beside what `vary` makes of them, at `ranks` ranks.
fn try_out(ranks: &[u32], kinds: impl Fn(&Kind) -> bool, lasts: bool, vary: impl Fn(Asking) -> [Asking; 2]) {
    for &ranks in ranks {
        for kind in all_kinds().filter(&kinds) {
            let [one, other] = vary(Asking::new(kind, ranks));
            World::new(ranks).alternate(one, other, lasts);
        }
    }
}

const FEW: [u32; 2] = [2, 5];

#[test]
fn other_counts() {
    // By 16 elements or bytes, too: the line of the other one takes the place of the first one's.
    for more in [APART, 16, 1] {
        try_out(&FEW, |_| true, true, |one| [one, Asking { count: one.count + more, ..one }]);
    }
    try_out(
        &FEW,
        |_| true,
        true,
        |one| {
            let one = Asking { ty: Type::Half, count: 4, ..one };
            [one, Asking { count: 8, ..one }]
        },
    );
}

#[test]
fn other_types() {
    try_out(&FEW, |_| true, true, |one| [one, Asking { ty: Type::Half, ..one }]);
}

#[test]
fn other_operations() {
    try_out(&FEW, |kind| kind.reduces(), true, |one| [one, Asking { op: Builtin::Max, ..one }]);
}

#[test]
fn other_roots() {
    try_out(&FEW, |kind| kind.rooted(), true, |one| [one, Asking { root: 1, ..one }]);
    try_out(&[33], |kind| kind.rooted(), true, |one| [one, Asking { root: APART as u32, ..one }]);
    // Root and count change places.
    try_out(
        &[5],
        |kind| kind.rooted(),
        true,
        |one| [Asking { root: 1, count: 2, ..one }, Asking { root: 2, count: 1, ..one }],
    );
}

#[test]
fn in_place_and_not() {
    try_out(&FEW, |&kind| kind != Kind::Bcast, true, |one| [one, Asking { in_place: true, ..one }]);
}

#[test]
fn other_values_in_lists() {
    try_out(&FEW, |kind| kind.uneven(), true, |one| [one, Asking { step: 1, ..one }]);
    let placed = |kind: &Kind| kind.uneven() && *kind != Kind::ReduceScatter;
    try_out(&FEW, placed, true, |one| [one, Asking { gap: 2, ..one }]);
}

#[test]
fn other_kinds() {
    try_out(&FEW, |_| true, true, |one| [one, Asking { kind: Kind::Scan, ..one }]);
}

#[test]
fn handles_that_may_mean_something_else_are_not_relied_on() {
    try_out(
        &FEW,
        |kind| !kind.reduces(),
        false,
        |one| [Asking { ty: Type::Made(1), ..one }, Asking { ty: Type::Made(2), ..one }],
    );
    try_out(
        &FEW,
        |_| true,
        false,
        |one| {
            let one = Asking { ty: Type::Fortran, ..one };
            [one, Asking { count: 2, ..one }]
        },
    );
}

#[test]
fn wrong_buffers_are_looked_at_again() {
    for kind in all_kinds() {
        let (mut world, asking) = (World::new(2), Asking::new(kind, 2));
        let times: Vec<u32> = (0..3).map(|_| world.ask(&asking)).collect();
        // What is asked for the first time may never be again.
        assert_eq!(times, [0, 0, 2], "{kind:?}");
        let passed = asking.pass(1, 0);
        let known = |buffers| {
            let mut asked = passed.asked;
            asked.buffers = buffers;
            world.plans[0].known(asked, &passed.lists)
        };
        let [send, recv] = passed.asked.buffers;
        assert!(known([send, recv]).is_some(), "{kind:?}");
        assert!(known([send, (recv.0, Given::Other)]).is_none(), "{kind:?}: NULL to receive in");
        if kind != Kind::Bcast {
            assert!(known([(send.0, Given::Other), recv]).is_none(), "{kind:?}: NULL to send from");
            assert!(known([send, send]).is_none(), "{kind:?}: one memory for both");
        }
    }
}
