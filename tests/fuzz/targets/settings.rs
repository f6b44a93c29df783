//! Text from environment variables and from the kernel's files: algorithms, fabrics, sizes, lists of CPUs.
#![no_main]

use banyan_coll::{Overrides, parse_question};
use banyan_pmi::settings::{bytes, fabrics};
use banyan_topo::CpuSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Overrides::parse(text);
    let _ = parse_question(text);
    let _ = fabrics(text);
    let _ = bytes(text);
    let _ = text.parse::<CpuSet>();
});
