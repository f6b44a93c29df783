//! The server of PMI-1: any bytes of two ranks are answered or refused, and lines that are sent are whole.
//!
//! Parser: launcher/src/pmi1.rs
#![no_main]

use banyan_launcher::pmi1::{About, Action, Host, Job};
use libfuzzer_sys::fuzz_target;

/// How requests begin.
const COMMANDS: [&str; 12] = [
    "",
    "cmd=",
    "cmd=init pmi_version=",
    "cmd=get key=",
    "cmd=put key=",
    "cmd=barrier_in group=",
    "cmd=barrier_in\n",
    "cmd=publish_name service=",
    "cmd=lookup_name service=",
    "cmd=unpublish_name service=",
    "cmd=abort exitcode=",
    "mcmd=spawn\n",
];

fuzz_target!(|parts: Vec<(bool, u8, Vec<u8>)>| {
    let about = About { name: "kvs".to_owned(), size: 2, mapping: None };
    let (mut host, mut job) = (Host::new(about, [(0, 0), (1, 0)].into_iter()), Job::new(1));
    for (second, command, mut bytes) in parts {
        let command = COMMANDS[usize::from(command) % COMMANDS.len()].as_bytes();
        bytes.splice(0..0, command.iter().copied());
        let mut actions = host.receive(second.into(), &bytes, true);
        while let Some(action) = actions.pop() {
            match action {
                Action::Reply(rank, line) => {
                    assert!(rank < 2 && line.ends_with('\n') && line.matches('\n').count() == 1)
                }
                Action::Up(up) => {
                    actions.extend(job.receive(0, up).into_iter().flat_map(|(_, down)| host.deliver(down)))
                }
                _ => {}
            }
        }
    }
});
