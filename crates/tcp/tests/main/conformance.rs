//! The suite that every fabric passes, over loopback connections.

use banyan_tcp::{Options, Tcp};
use banyan_topo::NicAddress;
use banyan_transport::Peer;
use banyan_transport::conformance::{down, gone_before_contact, introduced};

fn ends(n: usize, options: &Options) -> Vec<(Tcp, Vec<u8>)> {
    let make = |me| Tcp::new(Peer(me), n as u32, 77, [5; 32], options.clone()).expect("a fabric");
    (0..n as u32).map(make).collect()
}

/// Each end is a host of its own, with a network interface in each of two subnets.
fn hosts_with_two_nics(n: usize) -> Vec<(Tcp, Vec<u8>)> {
    let host = |me: u32| {
        let nic = |net: u8| NicAddress {
            nic: format!("net{net}"),
            ip: [127, 0, net, 1 + me as u8].into(),
            prefix: 24,
            ..NicAddress::loopback()
        };
        let options = Options { listen: vec![nic(1), nic(2)], streams: 0, ..Options::default() };
        Tcp::new(Peer(me), n as u32, 77, [5; 32], options).expect("a fabric")
    };
    (0..n as u32).map(host).collect()
}

banyan_transport::conformance!(plain, |n| ends(n, &Options::default()));
banyan_transport::conformance!(four_streams, |n| ends(n, &Options { streams: 4, ..Options::default() }));
banyan_transport::conformance!(two_nics, hosts_with_two_nics);
banyan_transport::conformance!(resumable, |n| ends(n, &Options { resume: true, ..Options::default() }));
banyan_transport::conformance!(encrypted, |n| ends(n, &Options { encrypt: true, ..Options::default() }));
banyan_transport::conformance!(small_queue, |n| ends(n, &Options { queue: 1, ..Options::default() }));

#[test]
fn a_peer_that_goes_is_reported_once() {
    for streams in [1, 4] {
        let options = Options { streams, ..Options::default() };
        down(&|n| introduced(ends(n, &options)), |ends| drop(ends.pop()));
    }
}

#[test]
fn a_peer_that_is_gone_already_is_reported() {
    let options = Options { patience: std::time::Duration::from_millis(200), ..Options::default() };
    gone_before_contact(&|n| introduced(ends(n, &options)), |ends| drop(ends.pop()));
}
