//! The simulated network passes the suite of the real fabrics, under several options.

use banyan_memory::HeapBuffer;
use banyan_transport::sim::{Net, OneSided, Options, SimFabric};
use banyan_transport::{
    Access, Atomic, Class, Fabric, Fetch, Head, Peer, Port, Refusal, Token, Transfer, conformance,
};

fn ends(n: usize, options: Options) -> Vec<SimFabric> {
    Net::new(n, 42, options).endpoints()
}

banyan_transport::conformance!(calm, |n| ends(n, Options::default()));
banyan_transport::conformance!(cramped, |n| ends(n, Options::cramped()));
banyan_transport::conformance!(late, |n| ends(
    n,
    Options {
        max_delay: 100,
        get: OneSided::Later,
        put: OneSided::Later,
        atomics: OneSided::Later,
        ..Options::default()
    }
));

#[test]
fn transfers_end_in_every_way() {
    for how in OneSided::ALL {
        for refuse_once_in in [0, 2] {
            let options = Options { get: how, put: how, atomics: how, refuse_once_in, ..Options::default() };
            conformance::reads(&|n| ends(n, options.clone()));
            conformance::puts(&|n| ends(n, options.clone()));
            conformance::atomics(&|n| ends(n, options.clone()));
        }
    }
}

#[test]
fn an_endpoint_reaches_itself() {
    conformance::to_itself(&|| ends(1, Options::default()).remove(0));
    let options = Options { put: OneSided::Later, atomics: OneSided::Mixed, ..Options::cramped() };
    conformance::to_itself(&|| ends(1, options.clone()).remove(0));
}

#[test]
fn registrations_are_refused_at_random() {
    let options = Options { refuse_registration_once_in: 2, ..Options::default() };
    conformance::reads(&|n| ends(n, options.clone()));
    let mut end = ends(1, options).remove(0);
    let memory = HeapBuffer::zeroed(8);
    let refused = (0..1000).filter(|_| end.register(Peer(0), &memory, Access::Read).is_err()).count();
    assert!((300..700).contains(&refused), "{refused} of 1000");
}

#[test]
fn memory_that_is_registered_for_reading_is_not_written() {
    let mut all = ends(2, Options::default());
    let (memory, local) = (HeapBuffer::zeroed(8), HeapBuffer::copy_of(&[1; 8]));
    let remote = all[1].register(Peer(0), &memory, Access::Read).unwrap();
    assert_eq!(all[0].put(Peer(1), remote, std::slice::from_ref(&local), Token(0)), Transfer::Impossible);
    let op = Atomic::Fetch(Fetch::Swap, 7);
    assert_eq!(all[0].atomic(Peer(1), remote, op, &local, Token(1)), Transfer::Impossible);
    assert_eq!(all[0].get(Peer(1), remote, &[local], Token(2)), Transfer::Done);
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
