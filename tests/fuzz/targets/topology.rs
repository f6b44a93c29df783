//! Topology files, which users write and programs of others may have written.
//!
//! Parser: crates/topo/src/map.rs crates/topo/src/place.rs
#![no_main]

use banyan_topo::HardwareMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(map) = HardwareMap::parse(text) else { return };
    assert_eq!(HardwareMap::parse(&map.text()).as_ref(), Ok(&map));
    map.levels();
    for host in &map.hosts {
        host.tree();
        host.gpus.iter().for_each(|gpu| _ = host.nic_of(gpu));
    }
});
