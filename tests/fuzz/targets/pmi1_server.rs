//! The server of PMI-1: any bytes of two ranks are answered or refused, and lines that are sent are whole.
#![no_main]

use banyan_launcher::pmi1::{About, Action, Host, Job};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|parts: Vec<(bool, Vec<u8>)>| {
    let about = About { name: "kvs".to_owned(), size: 2, mapping: None };
    let (mut host, mut job) = (Host::new(about, [(0, 0), (1, 0)].into_iter()), Job::new(1));
    for (second, bytes) in parts {
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
