//! Machines that are not here, read from files such as their kernels have: cores and their caches, who shares what, and where ranks
//! go.

use std::path::Path;

use crate::machines::{MACHINES, machine, read};
use banyan_topo::{Bound, Kept, Mapping, Profile, Unit, bound, place, share};

/// Sockets, NUMA nodes, cores, CPUs.
fn parts(name: &str) -> (usize, usize, usize, usize) {
    let machine = machine(name);
    let [sockets, nodes, cores] = [Unit::Socket, Unit::Node, Unit::Core].map(|unit| unit.count(&machine));
    (sockets, nodes, cores, machine.cpus().len())
}

#[test]
fn machines_have_their_parts() {
    assert_eq!(parts("laptop"), (1, 1, 14, 20));
    assert_eq!(parts("epyc"), (1, 1, 64, 128));
    assert_eq!(parts("xeon"), (2, 2, 56, 112));
    assert_eq!(parts("arm"), (2, 2, 160, 160));
    assert_eq!(parts("board"), (1, 1, 8, 8));
}

/// The last-level cache of the first and last CPU, and the sizes of the first one's caches.
#[test]
fn caches_are_found_where_they_are() {
    let caches = |name: &str| {
        let machine = machine(name);
        let ends = [machine.cpus()[0].id, machine.cpus()[machine.cpus().len() - 1].id];
        let sizes: Vec<u64> = machine.caches(ends[0]).iter().map(|cache| cache.bytes >> 10).collect();
        (ends.map(|cpu| machine.last_level_cache(cpu).to_string()), sizes)
    };
    let list = |[first, last]: [&str; 2]| [first.to_owned(), last.to_owned()];
    assert_eq!(caches("laptop"), (list(["0-19", "0-19"]), vec![48, 1280, 24 << 10]));
    assert_eq!(caches("epyc"), (list(["0-7,64-71", "56-63,120-127"]), vec![512, 32 << 10]));
    assert_eq!(caches("xeon"), (list(["0-27,56-83", "28-55,84-111"]), vec![1280, 42 << 10]));
    assert_eq!(caches("arm"), (list(["0", "159"]), vec![64, 1024]));
    // The fast cores come first.
    assert_eq!(caches("board"), (list(["4-7", "0-3"]), vec![32, 2048]));
}

/// How many groups of ranks there are by socket and by cache where each has its share of the cores.
fn groups(name: &str, ranks: u32) -> [usize; 2] {
    let machine = machine(name);
    let bound = bound(&machine, &share(&machine, ranks, Unit::Core));
    let number = |part: fn(&Bound) -> u32| {
        let mut parts: Vec<u32> = bound.iter().map(part).collect();
        parts.sort_unstable();
        parts.dedup();
        parts.len()
    };
    [number(|bound| bound.socket), number(|bound| bound.cache)]
}

#[test]
fn ranks_are_grouped_by_what_they_may_share() {
    // All cores of the laptop share a cache.
    assert_eq!([2, 6, 14].map(|ranks| groups("laptop", ranks)), [[1, 1]; 3]);
    // Two ranks of the EPYC have four caches each, sixteen share eight; of three, the second one shares with both others.
    assert_eq!(
        [2, 3, 8, 16, 64].map(|ranks| groups("epyc", ranks)),
        [[1, 2], [1, 1], [1, 8], [1, 8], [1, 8]]
    );
    assert_eq!([2, 3, 56].map(|ranks| groups("xeon", ranks)), [[2, 2], [1, 1], [2, 2]]);
    assert_eq!([2, 160].map(|ranks| groups("arm", ranks)), [[2, 2], [2, 160]]);
    // Each of four ranks has a fast and a slow core, each of eight one or the other.
    assert_eq!([4, 8].map(|ranks| groups("board", ranks)), [[1, 1], [1, 2]]);
}

#[test]
fn each_rank_has_a_fast_core_if_there_are_enough() {
    let shares = |name: &str, ranks| -> Vec<String> {
        share(&machine(name), ranks, Unit::Core).iter().map(ToString::to_string).collect()
    };
    assert_eq!(shares("laptop", 2), ["0-5,12-15", "6-11,16-19"]);
    assert_eq!(shares("laptop", 6)[5], "10-11,18-19");
    assert_eq!(shares("laptop", 7)[6], "18-19", "there are six");
    assert_eq!(shares("board", 2), ["0-1,4-5", "2-3,6-7"]);
    assert_eq!(shares("board", 8), ["4", "5", "6", "7", "0", "1", "2", "3"]);
    let by_core = place(&machine("board"), &Mapping::in_turn(Unit::Core, Unit::Core), 2);
    assert_eq!(by_core.iter().map(ToString::to_string).collect::<Vec<_>>(), ["4", "5"]);
}

/// No two of the machines are taken for one another, and each gets the built-in profile of its family, with its own last-level cache; but the Arm server,
/// which says of no cache that cores share it.
#[test]
fn profiles_are_kept_apart() {
    let kept = |name: &str| Kept::of((read, Path::new(name)), "6.18", None);
    let mut names: Vec<String> = MACHINES.map(|(name, _)| kept(name).machine().to_owned()).into();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), MACHINES.len(), "{names:?}");
    let built_in = MACHINES.map(|(name, _)| kept(name).built_in());
    let family = |(name, kib): (&str, u64)| {
        Some(Profile::named(name)?.with([("last_level_cache", (kib << 10) as f64)]))
    };
    let expected =
        [("xeon", 24 << 10), ("zen3", 32 << 10), ("xeon", 42 << 10), ("epyc", 32 << 10), ("epyc", 512)];
    assert_eq!(built_in.map(Some), expected.map(family));
}
