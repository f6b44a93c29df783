//! Tests of `topology.rs`.

use super::*;

#[test]
fn groups_lie_in_groups() {
    // Host 7: ranks 0, 2, 3, 5, on sockets 1, 1, 0, 1, where ranks 0 and 2 have one cache, and rank 5 another one.
    let at = [[7, 1, 4], [3, 0, 0], [7, 1, 4], [7, 0, 4], [3, 0, 1], [7, 1, 9]];
    let nodes = Nodes::new(at.map(Location));
    let ranks = |nodes: &Nodes, node| nodes.ranks(node).iter().collect::<Vec<u32>>();
    assert_eq!((ranks(&nodes, 0), ranks(&nodes, 1)), (vec![0, 2, 3, 5], vec![1, 4]));
    let between = [(0, 1), (0, 3), (0, 2), (0, 5), (1, 4)].map(|(one, other)| nodes.between(one, other));
    assert_eq!(between, [0, 1, LEVELS, 2, 2]);
    let groups = |pairs: [(u32, u32); LEVELS]| pairs.map(|(number, largest)| Groups { number, largest });
    assert_eq!(nodes.levels(), groups([(2, 4), (2, 3), (2, 2)]));
    let inner = nodes.inner(0).unwrap();
    assert_eq!((ranks(inner, 0), inner.levels()), (vec![0, 1, 3], groups([(1, 4), (2, 3), (2, 2)])));

    let topology = Topology { levels: nodes.levels(), ..Topology::assumed(6, true, 12) };
    let (members, leaders) = (topology.members(), topology.leaders());
    assert_eq!((members.ranks, members.levels), (4, groups([(1, 4), (2, 3), (2, 2)])));
    assert_eq!((leaders.ranks, leaders.levels), (2, groups([(2, 1), (1, 1), (1, 1)])));
    let within = members.within(inner, 0);
    assert_eq!((within.ranks, within.levels), (3, groups([(1, 3), (1, 3), (2, 2)])));
    assert_eq!((members.shared.is_some(), within.shared.is_some(), within.cores), (true, false, 9));
    assert_eq!((topology.span(), members.span(), within.span(), leaders.has_levels()), (0, 1, 2, false));
}

#[test]
fn rules_say_what_lists_say() {
    let dealt = |size: u32| (1..5u32).flat_map(move |each| (1..6u32).map(move |nodes| (each, nodes, size)));
    for (each, nodes, size) in [1, 2, 6, 7, 12, 24, 41].into_iter().flat_map(dealt) {
        for (parts, slip) in [(1, size), (2, size), (3, size), (1, size / 2), (2, size - 1)] {
            let at = |rank: u32| {
                let node = if rank == slip { 0 } else { rank / each % nodes };
                let index = rank / (each * nodes) * each + rank % each;
                Location([node * 3, index / 2 % parts, index % parts])
            };
            let all: Vec<Location> = (0..size).map(at).collect();
            let (found, listed) = (Nodes::new(all.iter().copied()), Nodes::listed(0, &all));
            let known = matches!(found.members, Members::Dealt { .. });
            assert!(known || parts > 1 || slip < size, "{each} to each of {nodes}: {found:?}");
            say_the_same(&found, &listed, &format!("{size}: {each} to each of {nodes}, {parts}, {slip}"));
        }
    }
}

fn say_the_same(found: &Nodes, listed: &Nodes, case: &str) {
    let all = |nodes: &Nodes| (nodes.levels(), nodes.number(), nodes.largest(), nodes.are_in_order());
    assert_eq!(all(found), all(listed), "{case}");
    for rank in 0..found.size {
        let of = |nodes: &Nodes| (nodes.of(rank), nodes.index(rank), nodes.position(rank));
        assert_eq!(of(found), of(listed), "{case}");
        let inner = |nodes: &Nodes| nodes.inner(rank).map(|inner| inner.levels());
        let between = |nodes: &Nodes| nodes.between(rank, found.size - 1);
        assert_eq!((inner(found), between(found)), (inner(listed), between(listed)), "{case}");
    }
    for node in 0..found.number() {
        let [one, other] = [found, listed].map(|nodes| nodes.ranks(node).iter().collect::<Vec<u32>>());
        let ranks = found.ranks(node);
        assert!((0..).zip(&one).all(|(index, &rank)| ranks.at(index) == rank), "{case}");
        assert_eq!((ranks.count() as usize, found.start(node)), (one.len(), listed.start(node)), "{case}");
        assert_eq!(one, other, "{case}");
    }
}
