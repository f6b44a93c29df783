//! Every algorithm, executed on real data in an in-memory world and compared with a naive computation: odd sizes, every
//! root, derived datatypes, in place, operations that do not commute, several collectives at once.

mod trial;

use crate::world::{Net, Port, Random, run};
use banyan_coll::{
    Algorithm, Attempt, Call, Fault, Groups, Kind, Link, Location, Model, Needs, Nodes, Overrides, PlanCache,
    RingOrder, SharedCaps, Topology, Tuning, begin, start,
};
use banyan_memory::HeapBuffer;
use trial::{Layout, Operation, Prepared, Trial};

fn topology(ranks: u32, (inline, scratch): (usize, usize), crowded: bool) -> Topology {
    let shared = (inline > 0).then_some(SharedCaps {
        inline: inline as u64,
        single_copy: true,
        scratch: scratch as u64,
    });
    Topology {
        ranks,
        cores: if crowded { 1 } else { 64 },
        shared,
        levels: Groups::on_nodes(if shared.is_some() { 1 } else { ranks }, ranks),
    }
}

const INLINE: usize = 2048;

/// Bytes of a CICO buffer and of the shared scratch. Where each pair of ranks decides by size, some pairs use the one, some the
/// other, and some send messages.
fn shared_memory_bytes(needs: Needs) -> (usize, usize) {
    match needs {
        Needs::Messages => (0, 0),
        Needs::SubBuffers => (1280, 1 << 16),
        _ => (INLINE, 4096),
    }
}

/// The ranks of a trial, and where they are. Compositions have nodes of several ranks, each with shared buffers.
fn ranks_of(trial: &Trial, needs: Needs, composed: bool) -> (Net, Nodes, Topology) {
    let (inline, scratch) = shared_memory_bytes(needs);
    let topology = topology(trial.ranks, (inline, scratch), !trial.seed.is_multiple_of(3));
    let mut net = Net::new(trial.ranks, trial.seed, inline, true);
    let of_rank = |rank: u32| (u64::from(rank) * 7 + trial.seed) as u32 % if composed { 3 } else { 1 };
    // On every other node they are on two sockets.
    let socket = |rank: u32| rank / 2 % (1 + of_rank(rank) % 2);
    let nodes = Nodes::new((0..trial.ranks).map(|rank| Location([of_rank(rank), socket(rank), 0])));
    let on_node = |node: u32| (0..trial.ranks).filter(|&rank| of_rank(rank) == node).collect::<Vec<_>>();
    net.nodes = (0..3).map(on_node).filter(|ranks| !ranks.is_empty()).collect();
    net.scratch = HeapBuffer::zeroed(scratch * net.nodes.len());
    let topology = match composed {
        true => Topology { levels: nodes.levels(), cores: 64, ..topology },
        false => topology,
    };
    (net, nodes, topology)
}

/// Starts a call at a rank, at random at once as far as it goes or without looking at the other ranks.
fn begin_somehow(call: Call, rank: u32, net: &mut Net, plans: &mut PlanCache, tuning: &Tuning) -> Attempt {
    if !net.random.one_in(2) {
        return Attempt::Pending(start(call, plans, tuning));
    }
    let mut polls = net.random.below(4);
    let mut poll_again = |_| polls.checked_sub(1).map(|left| polls = left).is_some();
    let has_shared = plans.topology().shared.is_some();
    let mut port = Port { net, rank };
    begin(call, None, plans, tuning, has_shared.then_some(&mut port), &mut poll_again)
}

/// Checks what a call has left in a rank's memory.
fn check(prepared: &Prepared, about: &str) {
    if let Some((memory, layout, shape)) = &prepared.recv {
        if let Some(expected) = &prepared.expected {
            let got = memory.words();
            assert!(got[..expected.len()] == expected[..], "{about}: {got:x?}");
        }
        memory.assert_holes(*layout, shape);
    }
    if let Some((memory, words)) = &prepared.send {
        assert!(memory.words() == *words, "{about}: what it sent has changed");
    }
}

/// Trials by so many roots, each twice, so that the second call uses the compiled plan that the first one left.
fn repeated(trial: &Trial, roots: u32) -> Vec<Trial> {
    let by_root =
        |i| Trial { root: (trial.root + i) % trial.ranks, seed: trial.seed + u64::from(i), ..*trial };
    (0..2 * roots).map(|i| by_root(i / 2)).collect()
}

/// Carries a collective out on all ranks, several times at once with changing roots, and checks the results.
fn try_out(algorithm: Option<&Algorithm>, trial: Trial) {
    let about = format!("{algorithm:?}, {trial:?}");
    let overrides = algorithm.map(|row| Overrides::parse(&format!("{row:?}")).unwrap()).unwrap_or_default();
    // A network as quick as memory, on which long data go through the stages of a composition in several chunks.
    let mut model = Model::default();
    model.links[0] = Link { alpha: 1e-6, overhead: 0.1e-6, beta: 1.0 / 12e9, ..model.links[0] };
    // The even ranks, and then the odd ones.
    let order = (0..trial.ranks).step_by(2).chain((1..trial.ranks).step_by(2)).collect();
    let ring = if trial.seed.is_multiple_of(2) { RingOrder::new(order) } else { None };
    let tuning = Tuning { overrides, model, ring, ..Tuning::default() };
    let composed = algorithm.is_some_and(|row| !row.stages.is_empty());
    let needs =
        if composed { Needs::SharedScratch } else { algorithm.map_or(Needs::Messages, |row| row.needs) };
    let (mut net, nodes, topology) = ranks_of(&trial, needs, composed);
    let mut plans: Vec<PlanCache> = (0..trial.ranks)
        .map(|rank| PlanCache::new(rank, topology).on(nodes.clone(), topology.shared, 64))
        .collect();
    let trials = repeated(&trial, if topology.shared.is_some() { 2 } else { 1 });
    let prepared: Vec<Vec<Prepared>> =
        (0..trial.ranks).map(|rank| trials.iter().map(|trial| trial.make(rank)).collect()).collect();
    let mut executions: Vec<Vec<_>> = vec![];
    // The results of calls that were over in their attempt, by rank and call.
    let mut over: Vec<Vec<Option<Result<(), Fault>>>> = vec![];
    for ((rank, prepared), plans) in (0..).zip(&prepared).zip(&mut plans) {
        let (mut started, mut done) = (vec![], vec![]);
        for prepared in prepared {
            done.push(match begin_somehow(prepared.call.clone(), rank, &mut net, plans, &tuning) {
                Attempt::Over(result) => Some(result.map_err(|fault| *fault)),
                Attempt::Pending(execution) => {
                    started.push(execution);
                    None
                }
                Attempt::Due(_) => unreachable!("nothing is measured"),
            });
        }
        executions.push(started);
        over.push(done);
    }
    let has_levels = nodes.number() > 1 && nodes.largest() > 1;
    let moves = trial.pairs > 0 || trial.kind == Kind::Barrier;
    let blocks = match trial.kind {
        Kind::Scatter | Kind::Alltoall | Kind::ReduceScatter | Kind::ReduceScatterBlock => {
            u64::from(trial.ranks)
        }
        _ => 1,
    };
    if let Some(row) = algorithm
        && moves
        && trial.ranks > 1
        && trial.pairs * 16 * blocks <= INLINE as u64
        && over[0][0].is_none()
        && (row.needs != Needs::SharedScratch || trial.operation == Operation::Sum)
        && (!composed || has_levels)
    {
        assert_eq!(executions[0][0].algorithm(), row, "{about}");
    }
    let mut results = run(&mut net, &mut executions);
    for (results, over) in results.iter_mut().zip(over) {
        let mut waited = std::mem::take(results).into_iter();
        results.extend(over.into_iter().filter_map(|over| over.or_else(|| waited.next())));
    }
    for (rank, (results, prepared)) in results.iter().zip(&prepared).enumerate() {
        assert_eq!(results.len(), prepared.len());
        for (i, (result, prepared)) in results.iter().zip(prepared).enumerate() {
            let about = format!("rank {rank}, call {i} of {about}");
            assert_eq!(*result, Ok(()), "{about}");
            check(prepared, &about);
        }
    }
    // A composition goes through the shared buffers of each node, but where messages of long vectors are copied once.
    let reducible = !trial.kind.reduces() || trial.operation == Operation::Sum;
    let long = trial.pairs * 16 * blocks > INLINE as u64;
    let copied_once = long && topology.shared.is_some_and(|shared| shared.single_copy);
    assert!(
        !composed || !has_levels || !moves || !reducible || copied_once || net.publications() > 0,
        "{about}"
    );
    net.assert_empty();
    for (plans, executions) in plans.iter_mut().zip(executions) {
        executions.into_iter().for_each(|execution| plans.recycle(execution));
    }
}

/// A random trial for an algorithm.
fn some_trial(row: &Algorithm, ranks: u32, pairs: u64, random: &mut Random) -> Trial {
    let operation = match random.below(if row.reorders { 2 } else { 3 }) {
        0 => Operation::Sum,
        1 => Operation::Add,
        _ => Operation::Affine,
    };
    let mut layout = || if random.one_in(2) { Layout::Words } else { Layout::Gaps };
    let layouts = [layout(), layout()];
    Trial {
        kind: row.kind,
        ranks,
        root: random.below(u64::from(ranks)) as u32,
        pairs,
        in_place: random.one_in(2),
        layouts,
        operation,
        devices: false,
        seed: random.below(1 << 30),
    }
}

fn try_kinds(kinds: &[Kind]) {
    let seed = 20_261_121;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::all().filter(|row| kinds.contains(&row.kind)) {
        for ranks in 1..=17 {
            for pairs in [1, 0, u64::from(ranks) + 1, 5, 1 + random.below(40)] {
                try_out(Some(row), some_trial(row, ranks, pairs, &mut random));
            }
        }
    }
}

#[test]
fn long_vectors_go_in_segments() {
    let seed = 4711;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::all().filter(|row| row.needs != Needs::Inline) {
        for ranks in [2, 3, 5] {
            let pairs = if row.kind.reduces() { 10_007 } else { 9_001 };
            try_out(Some(row), some_trial(row, ranks, pairs, &mut random));
        }
    }
}

/// The simulated device's memory cannot be touched, and its copies are over some polls after they were started.
#[test]
fn operands_in_memory_of_devices() {
    let seed = 77;
    println!("seed {seed}");
    let mut random = Random(seed);
    for row in banyan_coll::all() {
        for ranks in [1, 2, 3, 6] {
            for pairs in [u64::from(ranks) + 2, 1 + random.below(40)] {
                let trial = some_trial(row, ranks, pairs, &mut random);
                try_out(Some(row), Trial { devices: true, ..trial });
            }
        }
    }
    for row in banyan_coll::all().filter(|row| row.needs == Needs::SharedScratch) {
        let trial = some_trial(row, 3, 1_003, &mut random);
        try_out(Some(row), Trial { devices: true, ..trial });
    }
    let kernels = trial::KERNELS.load(std::sync::atomic::Ordering::Relaxed);
    println!("at least {kernels} kernels");
    assert!(kernels > 500 || trial::kernels_of_tests().is_none(), "{kernels} kernels");
}

#[test]
fn the_tuner_s_own_choices_work_side_by_side() {
    let seed = 99;
    println!("seed {seed}");
    let mut random = Random(seed);
    for (kind, _) in Kind::ALL {
        let row = banyan_coll::of_kind(kind).next().unwrap();
        for ranks in [1, 4, 6] {
            for pairs in [1, 300] {
                try_out(None, some_trial(row, ranks, pairs, &mut random));
            }
        }
    }
}

#[test]
fn broadcasts_and_barriers() {
    try_kinds(&[Kind::Barrier, Kind::Bcast]);
}

#[test]
fn gathers_and_scatters() {
    try_kinds(&[Kind::Gather, Kind::Gatherv, Kind::Scatter, Kind::Scatterv]);
}

#[test]
fn gathers_to_all_and_exchanges() {
    use Kind::*;
    try_kinds(&[Allgather, Allgatherv, Alltoall, Alltoallv, Alltoallw]);
}

#[test]
fn reductions() {
    use Kind::*;
    try_kinds(&[Reduce, Allreduce, ReduceScatter, ReduceScatterBlock, Scan, Exscan]);
}
