//! Text from environment variables and from the kernel's files: algorithms, fabrics, sizes, ports, network interfaces, lists of CPUs.
//!
//! Parser: crates/pmi/src/settings.rs crates/topo/src
#![no_main]

use banyan_coll::{Overrides, parse_question};
use banyan_pmi::settings::{bytes, fabrics, ports, streams};
use banyan_topo::{CpuSet, nic_filters};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Overrides::parse(text);
    let _ = parse_question(text);
    let _ = fabrics(text);
    let _ = bytes(text);
    let _ = streams(text);
    if let Ok(ports) = ports(text) {
        assert!(*ports.start() > 0 && !ports.is_empty());
    }
    let _ = nic_filters(text);
    let _ = text.parse::<CpuSet>();
});
