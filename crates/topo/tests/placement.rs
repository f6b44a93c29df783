//! Lists of CPUs, and the one rule of placement, on machines that are not at hand.

use banyan_topo::{Cpu, CpuSet, Machine, Unit, place, share};
use proptest::prelude::*;

/// Two sockets, two nodes each, two cores each, two hardware threads each; threads are 8 apart.
fn server() -> Machine {
    let cpus = (0..16).map(|id| Cpu { id, socket: id % 8 / 4, node: id % 8 / 2, core: id % 8 % 4 });
    Machine::of(cpus.collect())
}

fn placed(map_by: Unit, bind_to: Unit, ranks: u32) -> Vec<String> {
    place(&server(), map_by, bind_to, ranks).iter().map(CpuSet::to_string).collect()
}

#[test]
fn ranks_are_dealt_out() {
    assert_eq!(placed(Unit::Core, Unit::Core, 4), ["0,8", "1,9", "2,10", "3,11"]);
    assert_eq!(placed(Unit::Socket, Unit::Socket, 3), ["0-3,8-11", "4-7,12-15", "0-3,8-11"]);
    assert_eq!(placed(Unit::Socket, Unit::Core, 5), ["0,8", "4,12", "1,9", "5,13", "2,10"]);
    assert_eq!(placed(Unit::Node, Unit::Core, 5), ["0,8", "2,10", "4,12", "6,14", "1,9"]);
    assert_eq!(placed(Unit::Core, Unit::Socket, 5)[4], "4-7,12-15");
    assert_eq!(placed(Unit::Core, Unit::Node, 3), ["0-1,8-9", "0-1,8-9", "2-3,10-11"]);
    // More ranks than cores: round again.
    assert_eq!(placed(Unit::Core, Unit::Core, 9)[8], "0,8");
}

#[test]
fn cores_are_shared_out() {
    let shared = |ranks| share(&server(), ranks).iter().map(CpuSet::to_string).collect::<Vec<_>>();
    assert_eq!(shared(2), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(shared(3), ["0-1,8-9", "2-4,10-12", "5-7,13-15"]);
    assert_eq!(shared(8)[7], "7,15");
    assert!(shared(1).is_empty() && shared(9).is_empty());
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
        ranks in 1u32..40, map in 0usize..3, bind in 0usize..3,
    ) {
        let units = [Unit::Core, Unit::Node, Unit::Socket];
        let cpus = cpus.into_iter().zip(0..).map(|((socket, node, core), id)| Cpu { id, socket, node, core });
        let machine = Machine::of(cpus.collect());
        let sets = place(&machine, units[map], units[bind], ranks);
        prop_assert_eq!(sets.len(), ranks as usize);
        prop_assert!(sets.iter().all(|set| !set.is_empty()));
    }
}
