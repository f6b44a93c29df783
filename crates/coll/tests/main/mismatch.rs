//! Calls that differ between ranks, by every algorithm: a rank whose call succeeds has the right data, a rank that cannot have
//! them gets an error, and no rank waits for ever.

use crate::world::{Net, Random, run_asking};
use banyan_coll::{
    Algorithm, Call, Difference, Fault, Kind, Needs, Nodes, Op, Operand, Overrides, PlanCache, SharedCaps,
    Topology, Tuning, all, difference, start,
};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Datatype, TypeArc};
use banyan_memory::{Buffer, HeapBuffer};

/// What a rank calls, with `len` words in the vector or in each block.
#[derive(Clone, Copy, PartialEq, Debug)]
struct RankCall {
    kind: Kind,
    root: u32,
    len: u64,
}

/// Calls of all ranks; one may differ from the others.
struct Trial {
    ranks: u32,
    all: RankCall,
    odd: (u32, RankCall),
    seed: u64,
}

struct Prepared {
    call: Call,
    recv: Buffer,
}

const WORD: usize = 8;
/// A word of memory that nothing was written to.
const FILL: u64 = 0xeeee_eeee_eeee_eeee;

fn ty() -> TypeArc {
    Datatype::builtin(0x259).unwrap().clone().into()
}

/// Word `i` of what rank `from` has for rank `to` (for rank 0 where it has one vector, not blocks).
fn given(from: u32, to: u32, i: u64) -> u64 {
    Random(u64::from(from) << 40 ^ u64::from(to) << 20 ^ i).below(1 << 40)
}

fn words(values: impl Iterator<Item = u64>) -> Buffer {
    let bytes: Vec<u8> = values.flat_map(u64::to_ne_bytes).collect();
    HeapBuffer::copy_of(&bytes).slice(0, bytes.len())
}

fn word(buffer: &Buffer, i: u64) -> u64 {
    let mut bytes = [0; WORD];
    buffer.read((i * WORD as u64) as isize, &mut bytes);
    u64::from_ne_bytes(bytes)
}

impl RankCall {
    fn uniform(&self, base: Buffer, blocks: u64) -> Operand {
        Operand::Uniform { base, count: self.len * blocks, ty: ty() }
    }

    fn blocks(&self, base: Buffer, ranks: u32) -> Operand {
        let counts = vec![self.len; ranks as usize];
        Operand::Vector {
            base,
            counts,
            displs: (0..i64::from(ranks)).map(|i| i * self.len as i64).collect(),
            ty: ty(),
        }
    }

    fn wide(&self, base: Buffer, ranks: u32) -> Operand {
        let displs = (0..i64::from(ranks)).map(|i| i * (self.len * 8) as i64).collect();
        Operand::Wide {
            base,
            counts: vec![self.len; ranks as usize],
            displs,
            types: vec![ty(); ranks as usize],
        }
    }

    fn make(&self, me: u32, ranks: u32) -> Prepared {
        use Kind::*;
        let (all, root) = (u64::from(ranks), me == self.root);
        let blocks = |many| {
            (0..if many { ranks } else { 1 }).flat_map(|to| (0..self.len).map(move |i| given(me, to, i)))
        };
        let spread = matches!(
            self.kind,
            Scatter | Scatterv | Alltoall | Alltoallv | Alltoallw | ReduceScatter | ReduceScatterBlock
        );
        let gathers =
            matches!(self.kind, Gather | Gatherv | Allgather | Allgatherv | Alltoall | Alltoallv | Alltoallw);
        let send = words(blocks(spread));
        let recv = words((0..self.len * if gathers { all } else { 1 }).map(|_| FILL));
        let nothing = || Operand::Nothing;
        let got = recv.clone();
        let (give, take) = match self.kind {
            Barrier => return Prepared { call: Call::barrier(), recv },
            Bcast => {
                if root {
                    (0..self.len).for_each(|i| got.write((8 * i) as isize, &given(me, 0, i).to_ne_bytes()));
                }
                (nothing(), self.uniform(got, 1))
            }
            Gather => (self.uniform(send, 1), if root { self.uniform(got, 1) } else { nothing() }),
            Gatherv => (self.uniform(send, 1), if root { self.blocks(got, ranks) } else { nothing() }),
            Scatter => (if root { self.uniform(send, 1) } else { nothing() }, self.uniform(got, 1)),
            Scatterv => (if root { self.blocks(send, ranks) } else { nothing() }, self.uniform(got, 1)),
            Allgather | Alltoall => (self.uniform(send, 1), self.uniform(got, 1)),
            Allgatherv => (self.uniform(send, 1), self.blocks(got, ranks)),
            Alltoallv => (self.blocks(send, ranks), self.blocks(got, ranks)),
            Alltoallw => (self.wide(send, ranks), self.wide(got, ranks)),
            Reduce => (self.uniform(send, 1), if root { self.uniform(got, 1) } else { nothing() }),
            Allreduce | Scan | Exscan => (self.uniform(send, 1), self.uniform(got, 1)),
            ReduceScatterBlock => (self.uniform(send, all), self.uniform(got, 1)),
            ReduceScatter => {
                let counts = vec![self.len; ranks as usize];
                (self.uniform(send, all), Operand::Vector { base: got, counts, displs: vec![], ty: ty() })
            }
        };
        let call = match self.kind.reduces() {
            true => Call::reduction(self.kind, give, take, Op::Builtin(Builtin::Sum), self.root),
            false => Call::data_movement(self.kind, give, take, self.root),
        };
        Prepared {
            call: if self.kind == Bcast { Call { send: Operand::Nothing, ..call } } else { call },
            recv,
        }
    }

    /// Checks the memory of a rank whose call succeeded.
    fn check(&self, me: u32, ranks: u32, recv: &Buffer, about: &str) {
        use Kind::*;
        let sum = |mut ranks: std::ops::Range<u32>, to: u32, i: u64| {
            ranks.try_fold(0u64, |sum, from| sum.checked_add(given(from, to, i))).unwrap()
        };
        let gets_nothing = matches!(self.kind, Gather | Gatherv | Reduce) && me != self.root;
        if self.kind == Barrier || gets_nothing || (self.kind == Exscan && me == 0) {
            return;
        }
        for i in 0..self.len {
            let expected = match self.kind {
                Bcast => given(self.root, 0, i),
                Scatter | Scatterv => given(self.root, me, i),
                Reduce | Allreduce => sum(0..ranks, 0, i),
                ReduceScatter | ReduceScatterBlock => sum(0..ranks, me, i),
                Scan => sum(0..me + 1, 0, i),
                Exscan => sum(0..me, 0, i),
                _ => {
                    for from in 0..ranks {
                        let to = if matches!(self.kind, Alltoall | Alltoallv | Alltoallw) { me } else { 0 };
                        let got = word(recv, u64::from(from) * self.len + i);
                        assert_eq!(got, given(from, to, i), "rank {me}, word {i} of rank {from}: {about}");
                    }
                    continue;
                }
            };
            assert_eq!(word(recv, i), expected, "rank {me}, word {i}: {about}");
        }
    }
}

const INLINE: usize = 2048;

/// Runs a collective that one rank calls differently, and a barrier after it. Returns the results of the first, by rank.
fn run(row: Option<&Algorithm>, trial: &Trial) -> Vec<Result<(), Fault>> {
    let Trial { ranks, all, odd, seed } = *trial;
    let about = format!("{row:?}, {ranks} ranks, {all:?}, rank {} {:?}, seed {seed}", odd.0, odd.1);
    let overrides = row.map(|row| Overrides::parse(&format!("{row:?}")).unwrap()).unwrap_or_default();
    let tuning = Tuning { overrides, ..Tuning::default() };
    let composed = row.is_some_and(|row| !row.stages.is_empty());
    let has_shared =
        (composed || row.is_none_or(|row| row.needs != Needs::Messages)) && !seed.is_multiple_of(5);
    let scratch = 1 << 14;
    let shared = has_shared.then_some(SharedCaps { inline: INLINE as u64, single_copy: true, scratch });
    let cores = if seed.is_multiple_of(3) { 1 } else { 64 };
    // For compositions there are three ranks on each node; else ranks without shared buffers are on nodes of their own.
    let of_rank = |rank: u32| match (composed, has_shared) {
        (true, _) => rank / 3,
        (_, true) => 0,
        _ => rank,
    };
    let nodes = Nodes::new((0..ranks).map(of_rank));
    let topology = Topology { ranks, cores, shared, levels: nodes.levels() };
    let mut net = Net::new(ranks, seed, if has_shared { INLINE } else { 0 }, true);
    if composed {
        net.nodes = (0..nodes.number())
            .map(|node| (0..ranks).filter(|&rank| of_rank(rank) == node).collect())
            .collect();
    }
    (net.scratch, net.differ) = (HeapBuffer::zeroed(scratch as usize * net.nodes.len()), true);
    let mut plans: Vec<PlanCache> =
        (0..ranks).map(|rank| PlanCache::new(rank, topology).on(nodes.clone(), shared, cores)).collect();
    let call_of = |rank: u32| if rank == odd.0 { odd.1 } else { all };
    let prepared: Vec<Prepared> = (0..ranks).map(|rank| call_of(rank).make(rank, ranks)).collect();
    let mut executions: Vec<_> = prepared
        .iter()
        .zip(&mut plans)
        .map(|(prepared, plans)| {
            [prepared.call.clone(), Call::barrier()].map(|call| start(call, plans, &tuning)).into()
        })
        .collect();
    let results = run_asking(&mut net, &mut plans, &mut executions);
    // A rank that reads what one rank has written to the shared scratch polls no other rank: it does not notice that a third one
    // calls differently.
    let one_sided =
        matches!(all.kind, Kind::Bcast | Kind::Scatter | Kind::Scatterv | Kind::Scan | Kind::Exscan);
    let crossed = one_sided
        && (all.kind, all.root) != (odd.1.kind, odd.1.root)
        && row.is_none_or(|row| matches!(row.needs, Needs::SharedScratch | Needs::SubBuffers));
    let first: Vec<_> = results.into_iter().map(|mut results| results.swap_remove(0)).collect();
    for (rank, (result, prepared)) in (0..).zip(first.iter().zip(&prepared)) {
        if result.is_ok() && !crossed {
            call_of(rank).check(rank, ranks, &prepared.recv, &about);
        }
    }
    first
}

fn some_error(results: &[Result<(), Fault>]) -> Option<&Fault> {
    results.iter().find_map(|result| result.as_ref().err())
}

#[test]
fn counts_that_differ_are_an_error_and_never_wrong_data() {
    let mut random = Random(20_261_122);
    for row in all().filter(|row| row.kind != Kind::Barrier) {
        for ranks in 2..=16 {
            const LENS: [(u64, u64); 8] =
                [(5, 3), (3, 5), (1, 300), (300, 1), (40, 41), (700, 699), (0, 4), (4, 0)];
            {
                // By this algorithm, and by the one that each rank chooses for itself.
                for by in [Some(row), None] {
                    let (len, other) = LENS[random.below(LENS.len() as u64) as usize];
                    let all = RankCall { kind: row.kind, root: random.below(ranks.into()) as u32, len };
                    let odd = (random.below(ranks.into()) as u32, RankCall { len: other, ..all });
                    let trial = Trial { ranks, all, odd, seed: random.below(1 << 30) };
                    let results = run(by, &trial);
                    let error = some_error(&results);
                    // A rank that expects nothing need not notice.
                    let both_expect_data = len > 0 && other > 0;
                    assert!(
                        error.is_some() || !both_expect_data,
                        "{by:?}, {ranks} ranks, {all:?}, {odd:?}: no rank has noticed"
                    );
                    if let Some(Fault::Differ { said }) = error {
                        assert_eq!(difference(said), Difference::Count);
                        assert!(
                            said.iter().any(|said| said.rank == odd.0),
                            "{error:?}: it is rank {}",
                            odd.0
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_rank_that_waits_for_another_collective_is_told_so() {
    let mut random = Random(4711);
    for row in all() {
        for ranks in 2..=16 {
            let all = RankCall { kind: row.kind, root: 0, len: 6 };
            let kind = loop {
                let kind = Kind::ALL[random.below(17) as usize].0;
                if kind != row.kind {
                    break kind;
                }
            };
            let odd = (random.below(ranks.into()) as u32, RankCall { kind, ..all });
            run(Some(row), &Trial { ranks, all, odd, seed: random.below(1 << 30) });
        }
    }
    // Every rank waits for all others: every rank gets an error that names the two calls.
    let all = RankCall { kind: Kind::Allreduce, root: 0, len: 6 };
    let odd = (2, RankCall { kind: Kind::Allgather, ..all });
    for seed in 0..20 {
        let results = run(None, &Trial { ranks: 4, all, odd, seed });
        for result in results {
            let Err(Fault::Differ { said }) = result else { panic!("{result:?}") };
            assert_eq!(difference(&said), Difference::Kind);
            assert!(said.iter().any(|said| said.rank == 2), "{said:?}");
        }
    }
}

#[test]
fn roots_that_differ_end_in_no_endless_wait() {
    let mut random = Random(42);
    for row in all().filter(|row| row.kind.rooted()) {
        for ranks in 2..=16 {
            let all = RankCall { kind: row.kind, root: 0, len: 6 };
            let odd = (random.below(ranks.into()) as u32, RankCall { root: 1, ..all });
            run(Some(row), &Trial { ranks, all, odd, seed: random.below(1 << 30) });
        }
    }
    // Each of two ranks waits for the other one as the root.
    let all = RankCall { kind: Kind::Bcast, root: 1, len: 6 };
    for seed in 0..20 {
        let results = run(None, &Trial { ranks: 2, all, odd: (1, RankCall { root: 0, ..all }), seed });
        for result in results {
            let Err(Fault::Differ { said }) = result else { panic!("{result:?}") };
            assert_eq!(difference(&said), Difference::Root);
            let text = Fault::Differ { said }.to_string();
            assert!(text.contains("rank 0 called MPI_Bcast with root 1 and 48 bytes"), "{text}");
            assert!(text.contains("rank 1 called MPI_Bcast with root 0 and 48 bytes"), "{text}");
        }
    }
}
