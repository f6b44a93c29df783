//! The verifier proves every algorithm right for every rank count up to 64, and finds the [mistakes] in wrong ones. With `BANYAN_VERIFY=all`
//! on each of them with each of the [sizes](odd_sizes), which `cargo xtask conformance verifier` does.

mod mistakes;

use banyan_coll::verify::{Trial, check, check_between};
use banyan_coll::{Algorithm, BETWEEN, Kind, Needs, Products, SubBuffer, all};

fn odd_sizes(algorithm: &Algorithm, ranks: u32) -> Vec<u64> {
    use Kind::*;
    let p = u64::from(ranks);
    match algorithm.kind {
        Barrier => vec![0],
        Bcast | Reduce | Allreduce | Scan | Exscan if ranks > 20 => vec![0, 1, p - 1, p, 67],
        Bcast | Reduce | Allreduce | Scan | Exscan => vec![0, 1, p - 1, p, p + 1, 2 * p + 3, 7, 67],
        _ if ranks > 40 => vec![1, 2],
        _ => vec![0, 1, 3],
    }
}

/// The sizes that are tried, with their numbers: one on many ranks takes as long as all on a few, so that there it is every second one, by
/// turns, unless all are asked for.
fn some_sizes(algorithm: &Algorithm, ranks: u32) -> impl Iterator<Item = (usize, u64)> {
    let sizes = odd_sizes(algorithm, ranks);
    let all =
        ranks <= 20 || sizes.len() == 1 || std::env::var("BANYAN_VERIFY").is_ok_and(|which| which == "all");
    sizes
        .into_iter()
        .enumerate()
        .filter(move |(number, _)| all || (number + ranks as usize / 2).is_multiple_of(2))
}

fn some_roots(algorithm: &Algorithm, ranks: u32) -> Vec<u32> {
    match algorithm.kind.rooted() {
        false => vec![0],
        true if ranks <= 9 => (0..ranks).collect(),
        true if ranks <= 20 => vec![0, 1, ranks / 2, ranks - 1],
        true => vec![0, (ranks * 7 / 11) ^ 1],
    }
}

/// What cuts pipelines into few, some or many segments.
fn products(turn: usize) -> Products {
    let [message, scratch] = [[20_000, 3_000], [300, 200], [u64::MAX, 1]][turn % 3];
    Products { message, scratch }
}

/// Units of a shared scratch: its halves have `room` units for each pair of ranks that may use them, or few for each rank, and
/// sometimes so many that a chunk takes only some of the sections.
fn scratch(algorithm: &Algorithm, (ranks, len): (u32, u64), room: u64) -> u64 {
    let p = u64::from(ranks);
    let few = match algorithm.kind {
        Kind::Gatherv | Kind::Scatterv => 2 * (p - 1) * room,
        Kind::Alltoallv | Kind::Alltoallw => 2 * p * (p - 1) * room,
        // More for many ranks, so that there are not too many chunks: four to twelve.
        _ => 2 * p * if p > 16 { 1 + p / 3 } else { 1 },
    };
    few + len / 3 + if room == 1 && ranks <= 16 { 4096 * p } else { 0 }
}

/// Bytes of a CICO buffer whose sub-buffers hold `room` bytes each, or an offer: what is longer goes over the shared scratch or by message.
fn cell_bytes(algorithm: &Algorithm, ranks: u32, room: u64) -> u64 {
    let room = if algorithm.needs == Needs::Offers { SubBuffer::OFFER } else { room };
    let sub_buffers = if algorithm.kind == Kind::Gatherv { 1 } else { u64::from(ranks.max(2) - 1) };
    sub_buffers * (SubBuffer::HEAD + room)
}

fn check_all(algorithms: impl Iterator<Item = &'static Algorithm>) {
    let (mut trials, mut wrong) = (0, vec![]);
    for algorithm in algorithms {
        for ranks in 1..=64 {
            for (i, len) in some_sizes(algorithm, ranks) {
                for (j, root) in some_roots(algorithm, ranks).into_iter().enumerate() {
                    // The two values of each choice alternate, so that each meets every kind of size and root.
                    let (bits, odd) = (i + j, ranks as usize);
                    let trial = Trial {
                        ranks,
                        root,
                        len,
                        // Large units make short vectors long enough to be cut into segments.
                        unit: [1, 20_000][(i + odd) % 2],
                        in_place: bits % 2 == 1,
                        even: (bits + odd) % 5 == 4,
                        commutative: algorithm.reorders || (bits / 2 + odd) % 2 == 1,
                        seed: bits as u64,
                        scratch: scratch(algorithm, (ranks, len), (i + j + odd) as u64 % 4),
                        cells: [2, 16][(i / 2 + j) % 2],
                        cell_bytes: cell_bytes(algorithm, ranks, (i + 2 * j) as u64 % 4),
                        longest_copied: [u64::MAX, 1][(i + j / 3) % 2],
                        products: products(i + j + bits),
                        crowded: (i + j / 2 + odd) % 3 == 0,
                        single_copy: true,
                        ring: (i + j / 2) % 2 == 1,
                        nodes: 0,
                    };
                    trials += 1;
                    if let Err(what) = check(algorithm, &trial) {
                        wrong.push(format!("{algorithm:?}, {trial:?}: {what}"));
                    }
                }
            }
        }
    }
    println!("{trials} trials");
    let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
}

/// Blocks that are longer than their sub-buffers, some of which go between two ranks' memory.
#[test]
fn blocks_that_are_put_or_taken_are_right() {
    let mut wrong = vec![];
    let long = |row: &&Algorithm| matches!(row.needs, Needs::SubBuffers | Needs::Offers);
    for algorithm in all().filter(long) {
        for ranks in 2..=10 {
            for root in some_roots(algorithm, ranks) {
                for (i, longest_copied) in [1, 1, 330, 330].into_iter().enumerate() {
                    let trial = Trial {
                        ranks,
                        root,
                        len: 400,
                        unit: 1,
                        in_place: i % 2 == 0,
                        even: (root + ranks) % 3 == 0,
                        commutative: true,
                        seed: u64::from(root + ranks) + i as u64,
                        scratch: 2 * 400 * u64::from(ranks * ranks),
                        cells: [2, 16][(ranks as usize + i / 2) % 2],
                        cell_bytes: (SubBuffer::HEAD + SubBuffer::OFFER) * u64::from(ranks - 1),
                        longest_copied,
                        products: products(0),
                        crowded: true,
                        single_copy: true,
                        ring: false,
                        nodes: 0,
                    };
                    wrong.extend(
                        check(algorithm, &trial).err().map(|why| format!("{algorithm:?}, {trial:?}: {why}")),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, first {}", wrong.len(), wrong[0]);
}

/// Each composition on every number of ranks, dealt out over nodes, sockets and caches at random, in up to four chunks. Each group
/// takes any of the algorithms for its stages, those over the shared buffers of its node and compositions among them.
#[test]
fn compositions_are_right_on_uneven_nodes() {
    let mut wrong = vec![];
    for algorithm in all().filter(|row| !row.stages.is_empty()) {
        for ranks in 1..=64 {
            for nodes in [1, 2, 3, 16] {
                for (i, len) in some_sizes(algorithm, ranks) {
                    for root in some_roots(algorithm, ranks) {
                        let trial = Trial {
                            ranks,
                            root,
                            len,
                            unit: [1, 20_000][i % 2],
                            in_place: (i + nodes as usize) % 2 == 1,
                            even: true,
                            commutative: true,
                            seed: u64::from(root + ranks) + i as u64,
                            scratch: 4 * u64::from(ranks) + len / 3,
                            cells: [2, 16][(ranks as usize + i) % 2],
                            cell_bytes: (8 * len).max([0, 32 * 64][i % 2]),
                            longest_copied: u64::MAX,
                            products: products(i + ranks as usize),
                            crowded: (i + ranks as usize).is_multiple_of(3),
                            single_copy: true,
                            ring: (i + root as usize) % 2 == 1,
                            nodes,
                        };
                        if trial.nodes().is_none() {
                            continue;
                        }
                        wrong.extend(
                            check(algorithm, &trial)
                                .err()
                                .map(|why| format!("{algorithm:?}, {trial:?}: {why}")),
                        );
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong, first {}", wrong.len(), wrong[0]);
}

/// A test for each collective. One that has none does not compile.
macro_rules! algorithms_are_right {
    ($($name:ident $kind:ident)*) => {
        $(#[test]
        fn $name() {
            super::check_all(of_kind(Kind::$kind).filter(|row| row.stages.is_empty()));
        })*
        const _: fn(Kind) = |kind| match kind { $(Kind::$kind => (),)* };
    };
}

mod right {
    use banyan_coll::{Kind, of_kind};

    algorithms_are_right! {
        barrier Barrier
        bcast Bcast
        gather Gather
        gatherv Gatherv
        scatter Scatter
        scatterv Scatterv
        allgather Allgather
        allgatherv Allgatherv
        alltoall Alltoall
        alltoallv Alltoallv
        alltoallw Alltoallw
        reduce Reduce
        allreduce Allreduce
        reduce_scatter ReduceScatter
        reduce_scatter_block ReduceScatterBlock
        scan Scan
        exscan Exscan
    }
}

#[test]
fn larger_rank_counts_are_no_different() {
    for algorithm in all() {
        for ranks in [127, 128, 129, 200] {
            let commutative = algorithm.reorders || ranks % 2 == 1;
            let len = if algorithm.kind.reduces() && ranks != 200 { 3 } else { 1 };
            let trial = Trial {
                ranks,
                root: 77,
                len,
                unit: 1,
                in_place: ranks == 129,
                even: true,
                commutative,
                seed: u64::from(ranks),
                scratch: 2 * u64::from(ranks) * 25 + 1,
                cells: 16,
                cell_bytes: cell_bytes(algorithm, ranks, u64::from(ranks) % 2),
                longest_copied: u64::MAX,
                products: products(0),
                crowded: ranks == 200,
                single_copy: true,
                ring: ranks % 2 == 0,
                nodes: if algorithm.stages.is_empty() { 0 } else { 9 },
            };
            assert_eq!(check(algorithm, &trial), Ok(()), "{algorithm:?}, {trial:?}");
        }
    }
}

/// Between groups of all sizes up to 8, and some larger ones, with every root.
#[test]
fn algorithms_between_groups_are_right() {
    let (mut trials, mut wrong) = (0, vec![]);
    let small = (1..=8).flat_map(|one| (1..=8).map(move |other| (one, other)));
    for (split, other) in small.chain([(1, 40), (33, 2), (40, 70)]) {
        let ranks = split + other;
        for &algorithm in BETWEEN {
            let roots = if algorithm.kind.rooted() { ranks.min(16) } else { 1 };
            for (i, root) in (0..roots).map(|i| i * ranks / roots).enumerate() {
                for len in if ranks > 16 { vec![1] } else { vec![0, 1, 5] } {
                    let trial = Trial {
                        ranks,
                        root,
                        len,
                        unit: 1,
                        in_place: false,
                        even: i % 3 == 2,
                        commutative: (root + split) % 2 == 1,
                        seed: u64::from(root) + len,
                        scratch: 0,
                        cells: 2,
                        cell_bytes: 0,
                        longest_copied: 0,
                        products: products(0),
                        crowded: false,
                        single_copy: true,
                        ring: false,
                        nodes: 0,
                    };
                    trials += 1;
                    if let Err(what) = check_between(algorithm, &trial, split) {
                        wrong.push(format!("{algorithm:?}, {split} and {other}, {trial:?}: {what}"));
                    }
                }
            }
        }
    }
    println!("{trials} trials");
    let shown: Vec<_> = wrong.iter().take(20).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), shown.join("\n"));
}
