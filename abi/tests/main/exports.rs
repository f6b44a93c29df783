//! What the library exports, by `nm` and `readelf`: each name of the ABI twice, and those of mpi-ext.h.

use crate::common::{library_folder, run};
use mpi_abi::not_built::MISSING;
use mpi_abi::tables::{functions, reasons};
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_function_and_its_pmpi_twin_and_those_of_mpi_ext() {
    let library = library_folder().join("libmpi_abi.so");
    let listing = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let exported: BTreeSet<&str> =
        listing.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let functions = functions();
    let twins: Vec<String> = functions.iter().map(|f| format!("P{}", f.name)).collect();
    let ours = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/include/mpi-ext.h")).unwrap();
    let ours: Vec<&str> = ours
        .lines()
        .filter_map(|line| line.strip_prefix("int ")?.split_once('(').map(|(name, _)| name))
        .collect();
    assert_eq!(ours.len(), 14, "{ours:?}");
    let wanted = functions.iter().map(|f| f.name).chain(twins.iter().map(String::as_str));
    let wanted = wanted.chain(ours.iter().copied()).collect();
    assert_eq!(exported, wanted);
    assert_eq!(wanted.len(), 2 * 664 + ours.len());
}

#[test]
fn the_library_has_its_soname() {
    let library = library_folder().join("libmpi_abi.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(library));
    assert!(dynamic.contains("Library soname: [libmpi_abi.so.1]"), "{dynamic}");
}

#[test]
fn what_is_not_built_has_a_reason_and_no_reason_is_left_over() {
    for missing in MISSING {
        assert_ne!(missing.waits_for, "a later version", "{} needs a row in not-built.tsv", missing.name);
    }
    let functions = functions();
    let missing = |name: &str| MISSING.iter().any(|missing| missing.name == name);
    for (what, _) in reasons() {
        let group = functions.iter().filter(|f| f.group == what).any(|f| missing(f.name));
        assert!(group || missing(what), "the row {what} of not-built.tsv is not needed any more");
    }
}
