//! mpirun's own input: host lists, host files, rank files and the command line.
//!
//! Parser: launcher/src/hosts.rs launcher/src/options.rs launcher/src/rankfile.rs
#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use banyan_launcher::{hosts, options, rankfile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = hosts::parse_list(text);
        let _ = hosts::parse_file(text);
        let _ = rankfile::parse(text);
    }
    // Arguments never hold null bytes: they part them here.
    let arguments = bytes.split(|&byte| byte == 0).take(64).map(|part| OsString::from_vec(part.to_vec()));
    let _ = options::parse(arguments.collect());
});
