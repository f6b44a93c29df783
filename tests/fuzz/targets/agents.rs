//! What the agents of a job's hosts say to each other, behind whatever a remote shell says before.
//!
//! Parser: launcher/src/frames.rs
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| banyan_launcher::any_bytes(bytes));
