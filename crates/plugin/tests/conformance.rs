//! The suite that every fabric passes, on the simulated network behind a table: what goes through one keeps the contract. And what
//! crosses besides: starts, errors and panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use banyan_plugin::{Library, Loaded, Table};
use banyan_tcp::Tcp;
use banyan_transport::conformance::without_cards;
use banyan_transport::sim::{Net, OneSided, Options};
use banyan_transport::{Class, Fabric, Head, Joining, NotStarted, Outcome, Peer, Port, Sink, Token};

/// A library that is nowhere.
struct Nowhere;

impl Library for Nowhere {
    const FILE: &str = "libbanyan_nowhere.so";
    const REMEDY: &str = "nothing helps";

    fn nics(joining: &Joining<'_>) -> Result<Option<String>, NotStarted> {
        Ok((joining.size > 1).then(|| "first:1".to_owned()))
    }
}

type Behind = Loaded<Nowhere>;

fn ends(n: usize, options: Options) -> Vec<Behind> {
    Net::new(n, 42, options).endpoints().into_iter().map(Behind::around).collect()
}

/// Ends with their business cards.
fn strangers(n: usize) -> Vec<(Behind, Vec<u8>)> {
    let cards = (0..n as u32).map(|peer| peer.to_le_bytes().to_vec());
    ends(n, Options { business_cards: true, ..Options::default() }).into_iter().zip(cards).collect()
}

fn late() -> Options {
    let how = OneSided::Later;
    Options { get: how, put: how, atomics: how, max_delay: 100, ..Options::default() }
}

banyan_transport::conformance!(calm, strangers);
banyan_transport::conformance!(late_ends, |n| without_cards(ends(n, late())));

#[test]
fn a_dead_end_is_reported() {
    let net = Net::new(3, 1, Options::default());
    let around = |_| net.endpoints().into_iter().map(Behind::around).collect::<Vec<_>>();
    banyan_transport::conformance::down(&around, |_| net.kill(2, "killed by the test"));
}

fn joining(size: u32, nics: &str) -> Joining<'_> {
    Joining {
        me: Peer(0),
        size,
        job: 1,
        secret: [1; 32],
        node: vec![Peer(0)],
        nodes: size,
        crowded: false,
        single_copy: false,
        streams: 1,
        nics,
        rdma: "",
        turn: 0,
        topology: "",
        ports: None,
        patience: Duration::from_secs(30),
        encrypt: false,
        reached: false,
        node_memory: Box::leak(Box::new(|| Ok(None))),
    }
}

#[test]
fn a_library_that_is_not_there_is_named() {
    use banyan_transport::Member;
    let Err(NotStarted::Broken(why)) = Behind::start(joining(2, "")).map(drop) else {
        panic!("it is to be said, and others go on")
    };
    assert!(why.contains("libbanyan_nowhere.so: ") && why.contains("(nothing helps)"), "{why}");
    assert!(matches!(Behind::start(joining(1, "")), Ok(None)), "not looked for");
}

#[test]
fn a_start_and_its_errors_cross() {
    static TABLE: Table = Table::of::<Tcp>();
    let Ok(Some((started, card))) = Behind::start_by(&TABLE, &joining(2, ""), "127.0.0.1") else {
        panic!("the loopback is always there")
    };
    assert!(!card.is_empty() && started.reaches(Peer(1)) && !started.reaches(Peer(0)));
    let Err(NotStarted::Fatal(why)) = Behind::start_by(&TABLE, &joining(2, ""), "no-such-nic").map(drop)
    else {
        panic!("the user is to know")
    };
    assert!(why.contains("BANYAN_NIC=no-such-nic"), "{why}");
}

/// Panics at each frame.
struct Afraid;

impl Sink for Afraid {
    fn frame(&mut self, _peer: Peer, _head: &Head, _body: &[u8]) {
        panic!("of a frame")
    }
    fn sent(&mut self, _token: Token) {}
    fn completed(&mut self, _token: Token, _outcome: Outcome) {}
    fn down(&mut self, _peer: Peer, _cause: &str) {}
}

#[test]
fn panics_of_this_side_go_on_behind_the_library() {
    let head = Head { class: Class::P2p, kind: 1, aux: 2, a: 3, b: 4, ctx: 5 };
    let mut ends = ends(2, Options { max_delay: 0, ..Options::default() });
    let text = |panic: Box<dyn std::any::Any + Send>| *panic.downcast::<&str>().expect("a text");
    let filled = AssertUnwindSafe(|| ends[0].send_bcopy(Peer(1), &head, 8, &mut |_| panic!("of a body")));
    assert_eq!(catch_unwind(filled).map_err(text), Err("of a body"));
    ends[0].send_short(Peer(1), &head, b"boo").expect("room");
    let polled = catch_unwind(AssertUnwindSafe(|| while ends[1].poll(&mut Afraid) == 0 {}));
    assert_eq!(polled.map_err(text), Err("of a frame"));
}
