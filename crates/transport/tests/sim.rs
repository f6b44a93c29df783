//! The simulated network passes the suite of the real fabrics, under several options.

use banyan_transport::sim::{Net, Options, Reads, SimFabric};
use banyan_transport::{Class, Fabric, Head, Peer, Port, Refusal, conformance};

fn ends(n: usize, options: Options) -> Vec<SimFabric> {
    Net::new(n, 42, options).endpoints()
}

banyan_transport::conformance!(calm, |n| ends(n, Options::default()));
banyan_transport::conformance!(cramped, |n| ends(n, Options::cramped()));
banyan_transport::conformance!(late, |n| ends(
    n,
    Options { max_delay: 100, get: Reads::Later, ..Options::default() }
));

#[test]
fn reads_end_in_every_way() {
    for get in [Reads::Off, Reads::Impossible, Reads::ImpossibleLater, Reads::Mixed] {
        conformance::reads(&|n| ends(n, Options { get, ..Options::default() }));
    }
}

#[test]
fn a_dead_endpoint_is_reported() {
    let net = Net::new(3, 1, Options::default());
    conformance::down(&|_| net.endpoints(), |_| net.kill(2, "killed by the test"));
}

#[test]
fn business_cards_are_wanted_once() {
    let mut all = ends(2, Options { business_cards: true, ..Options::default() });
    let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
    for _ in 0..2 {
        assert_eq!(all[0].send_short(Peer(1), &head, &[]), Err(Refusal::Busy));
    }
    assert_eq!(all[0].wanted(), Some(Peer(1)));
    assert_eq!(all[0].wanted(), None);
    assert!(all[0].connect(Peer(1), b"junk").is_err());
    all[0].connect(Peer(1), &1u32.to_le_bytes()).expect("a good business card");
    assert_eq!(all[0].send_short(Peer(1), &head, &[]), Ok(()));
}

#[test]
fn links_break_at_random() {
    let net = Net::new(2, 9, Options { break_once_in: 10, ..Options::default() });
    let mut end = net.endpoint(0);
    let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
    let sent = (0..64).take_while(|_| end.send_short(Peer(1), &head, &[]).is_ok()).count();
    assert!(sent < 64, "one in ten breaks the link");
}
