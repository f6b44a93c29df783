//! Lists of CPUs, and mapping and binding, on made-up machines.

use banyan_topo::{Cpu, CpuSet, Machine, Mapping, Unit, place, share, slots};
use proptest::prelude::*;

/// Two sockets, two nodes each, two cores each, two hardware threads each; threads are 8 apart.
fn server() -> Machine {
    let cpus = (0..16).map(|id| Cpu { id, socket: id % 8 / 4, node: id % 8 / 2, core: id % 8 % 4 });
    Machine::of(cpus.collect())
}

fn mapped_in_turn(map_by: Unit, bind_to: Unit, ranks: u32) -> Vec<String> {
    mapped(Mapping::in_turn(map_by, bind_to), ranks)
}

fn mapped(mapping: Mapping, ranks: u32) -> Vec<String> {
    place(&server(), &mapping, ranks).iter().map(CpuSet::to_string).collect()
}

#[test]
fn ranks_are_mapped_in_turn() {
    assert_eq!(mapped_in_turn(Unit::Core, Unit::Core, 4), ["0,8", "1,9", "2,10", "3,11"]);
    assert_eq!(mapped_in_turn(Unit::Socket, Unit::Socket, 3), ["0-3,8-11", "4-7,12-15", "0-3,8-11"]);
    assert_eq!(mapped_in_turn(Unit::Socket, Unit::Core, 5), ["0,8", "4,12", "1,9", "5,13", "2,10"]);
    assert_eq!(mapped_in_turn(Unit::Node, Unit::Core, 5), ["0,8", "2,10", "4,12", "6,14", "1,9"]);
    assert_eq!(mapped_in_turn(Unit::Core, Unit::Socket, 5)[4], "4-7,12-15");
    assert_eq!(mapped_in_turn(Unit::Core, Unit::Node, 3), ["0-1,8-9", "0-1,8-9", "2-3,10-11"]);
    // With more ranks than cores, mapping begins again.
    assert_eq!(mapped_in_turn(Unit::Core, Unit::Core, 9)[8], "0,8");
}

#[test]
fn several_ranks_are_mapped_to_each_unit() {
    let mapping = |map_by, bind_to, each, cores| Mapping { map_by, bind_to, each: Some(each), cores };
    let two_a_socket = mapped(mapping(Unit::Socket, Unit::Core, 2, 1), 5);
    assert_eq!(two_a_socket, ["0,8", "1,9", "4,12", "5,13", "2,10"]);
    let sockets = mapped(mapping(Unit::Socket, Unit::Socket, 2, 1), 4);
    assert_eq!(sockets, ["0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"]);
    assert_eq!(mapped(mapping(Unit::Machine, Unit::Core, 3, 1), 3), ["0,8", "1,9", "2,10"]);
    assert_eq!(mapped(mapping(Unit::Node, Unit::Node, 1, 1), 3), ["0-1,8-9", "2-3,10-11", "4-5,12-13"]);
}

#[test]
fn several_cores_for_each_rank() {
    let mapping = |map_by, cores| Mapping { cores, ..Mapping::in_turn(map_by, Unit::Core) };
    assert_eq!(mapped(mapping(Unit::Machine, 2), 3), ["0-1,8-9", "2-3,10-11", "4-5,12-13"]);
    assert_eq!(mapped(mapping(Unit::Core, 2), 2), ["0-1,8-9", "2-3,10-11"]);
    assert_eq!(mapped(mapping(Unit::Socket, 3), 3), ["0-2,8-10", "4-6,12-14", "0-2,8-10"]);
    // A rank that asks for more cores than a unit has gets all of them.
    assert_eq!(mapped(mapping(Unit::Node, 4), 1), ["0-1,8-9"]);
}

#[test]
fn slots_name_cores_of_the_machine_or_of_a_socket() {
    let cpus = |text: &str| slots(&server(), text).map(|set| set.to_string());
    assert_eq!(cpus("0-1,4").unwrap(), "0-1,4,8-9,12");
    assert_eq!(cpus("1:0-2").unwrap(), "4-6,12-14");
    assert_eq!(cpus("0:3;1:*").unwrap(), "3-7,11-15");
    assert_eq!(cpus("*").unwrap(), "0-15");
    for (bad, why) in [
        ("8", "there is no core 8: this machine has 8 "),
        ("1:4", "there is no core 4: socket 1 has 4 "),
        ("2:0", "there is no socket 2: this machine has 2"),
        ("", "no core is named"),
        ("0:", "no core is named"),
        ("x:0", "'x' is not the number of a socket"),
        ("a", "'a' is not a list of cores"),
    ] {
        let said = cpus(bad).unwrap_err();
        assert!(said.starts_with(why), "{bad}: {said}");
    }
}

#[test]
fn cores_are_shared_evenly() {
    let shares_in = |ranks, parts| share(&server(), ranks, parts).iter().map(CpuSet::to_string).collect();
    let shares = |ranks| -> Vec<String> { shares_in(ranks, Unit::Core) };
    assert_eq!(shares(2), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(shares(3), ["0-1,8-9", "2-4,10-12", "5-7,13-15"]);
    assert_eq!(shares(8)[7], "7,15");
    assert!(shares(1).is_empty() && shares(9).is_empty());
    let by_node: Vec<String> = shares_in(3, Unit::Node);
    assert_eq!(by_node, ["0-1,8-9", "2-5,10-13", "4-7,12-15"]);
}

#[test]
fn lists_are_read_strictly() {
    let parse = |text: &str| text.parse::<CpuSet>();
    assert_eq!(parse("0-3,8\n").unwrap().iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8]);
    assert!(parse("").unwrap().is_empty());
    for bad in ["a", "1-", "-1", "3-1", "1,,2", "0-4294967295", "1024", "+1", "1 2", "0-3-5"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn lists_survive_writing(cpus in prop::collection::btree_set(0u32..1024, 0..64)) {
        let set: CpuSet = cpus.iter().copied().collect();
        prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
    }

    #[test]
    fn any_text_is_handled(text in "[0-9,\\-\\s]{0,40}|.{0,40}") {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }

    #[test]
    fn every_rank_gets_cpus(
        cpus in prop::collection::vec((0u32..3, 0u32..4, 0u32..4), 1..20),
        ranks in 1u32..40, map in 0usize..4, bind in 0usize..4, each in prop::option::of(1u32..5), cores in 1u32..4,
    ) {
        let units = [Unit::Core, Unit::Node, Unit::Socket, Unit::Machine];
        let cpus = cpus.into_iter().zip(0..).map(|((socket, node, core), id)| Cpu { id, socket, node, core });
        let machine = Machine::of(cpus.collect());
        let sets = place(&machine, &Mapping { map_by: units[map], bind_to: units[bind], each, cores }, ranks);
        prop_assert_eq!(sets.len(), ranks as usize);
        prop_assert!(sets.iter().all(|set| !set.is_empty()));
    }
}
