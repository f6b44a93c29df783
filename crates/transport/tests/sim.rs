//! The simulated network passes the suite of the real fabrics, under several options.

use std::time::Duration;

use banyan_memory::HeapBuffer;
use banyan_transport::sim::{Clock, LinkCost, Net, OneSided, Options, SimFabric};
use banyan_transport::{
    Access, Atomic, Class, Fabric, Fetch, Head, Outcome, Peer, Port, Sink, Token, Transfer, Wake, conformance,
};

fn ends(n: usize, options: Options) -> Vec<SimFabric> {
    Net::new(n, 42, options).endpoints()
}

/// Endpoints with their business cards.
fn strangers(n: usize) -> Vec<(SimFabric, Vec<u8>)> {
    let cards = (0..n as u32).map(|peer| peer.to_le_bytes().to_vec());
    ends(n, Options { business_cards: true, ..Options::default() }).into_iter().zip(cards).collect()
}

banyan_transport::conformance!(calm, strangers);
banyan_transport::conformance!(cramped, |n| conformance::without_cards(ends(n, Options::cramped())));
banyan_transport::conformance!(late, |n| conformance::without_cards(ends(
    n,
    Options {
        max_delay: 100,
        get: OneSided::Later,
        put: OneSided::Later,
        atomics: OneSided::Later,
        handovers: 5,
        ..Options::default()
    }
)));

#[test]
fn transfers_end_in_every_way() {
    for how in OneSided::ALL {
        for refuse_once_in in [0, 2] {
            let options = Options { get: how, put: how, atomics: how, refuse_once_in, ..Options::default() };
            conformance::reads(&|n| ends(n, options.clone()));
            conformance::reads_together(&|n| ends(n, options.clone()));
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
    let net = Net::new(3, 2, Options::default());
    conformance::gone_before_contact(&|_| net.endpoints(), |_| net.kill(2, "killed by the test"));
}

#[test]
fn links_break_at_random() {
    let net = Net::new(2, 9, Options { break_once_in: 10, ..Options::default() });
    let mut end = net.endpoint(0);
    let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
    let sent = (0..64).take_while(|_| end.send_short(Peer(1), &head, &[]).is_ok()).count();
    assert!(sent < 64, "one in ten breaks the link");
}

/// Endpoints 0 and 1 on one node, 2 on another. Near a byte takes 1 ns and a frame 100 more; far 10, and 1000.
fn with_a_clock() -> Net {
    let cost = |latency, per_byte| LinkCost { latency, overhead: 0.0, per_byte };
    let clock = Clock { nodes: vec![0, 0, 1], near: cost(100e-9, 1e-9), far: cost(1e-6, 10e-9) };
    Net::new(3, 1, Options { clock: Some(clock), ..Options::default() })
}

/// Who sent frames, and how many bytes.
#[derive(Default)]
struct Heard(Vec<(u32, usize)>);

impl Sink for Heard {
    fn frame(&mut self, peer: Peer, _: &Head, body: &[u8]) {
        self.0.push((peer.0, body.len()));
    }

    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
    }

    fn down(&mut self, _: Peer, cause: &str) {
        panic!("{cause}");
    }
}

/// All wait; gives what arrives then, by receiver.
fn all_wait(ends: &mut [SimFabric]) -> Vec<(usize, u32, usize)> {
    ends.iter_mut().for_each(|end| end.arm(Wake::Sleep));
    let mut all = vec![];
    for (me, end) in ends.iter_mut().enumerate() {
        let mut heard = Heard::default();
        end.poll(&mut heard);
        end.disarm();
        all.extend(heard.0.into_iter().map(|(from, len)| (me, from, len)));
    }
    all
}

#[test]
fn time_goes_on_when_all_wait_and_not_before() {
    let net = with_a_clock();
    let mut ends = net.endpoints();
    let head = |class| Head { class, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
    let send = |end: &mut SimFabric, to: u32, len: usize| {
        end.send_bcopy(Peer(to), &head(Class::P2p), len, &mut |_| ()).expect("nothing is refused");
    };
    // Both share the port of their node: the second frame leaves after the first.
    send(&mut ends[1], 2, 80);
    send(&mut ends[0], 2, 180);
    send(&mut ends[0], 1, 30);
    ends[2].arm(Wake::Sleep);
    assert_eq!(ends[2].poll(&mut Heard::default()), 0, "endpoint 0 still works");
    ends[2].disarm();
    assert_eq!(net.time(), Duration::ZERO);
    assert_eq!(all_wait(&mut ends), [(1, 0, 30)]);
    assert_eq!(net.time(), Duration::from_nanos(20 + 30 + 100));
    assert_eq!(all_wait(&mut ends), [(2, 0, 180)]);
    assert_eq!(net.time(), Duration::from_nanos(2000 + 1000));
    assert_eq!(all_wait(&mut ends), [(2, 1, 80)]);
    assert_eq!(net.time(), Duration::from_nanos(3000 + 1000));
    // Who is gone is not waited for.
    send(&mut ends[2], 0, 30);
    send(&mut ends[0], 2, 30);
    drop(ends.pop());
    assert_eq!(all_wait(&mut ends), [(0, 2, 30)]);
    assert_eq!(net.time(), Duration::from_nanos(5500));
}

#[test]
fn transfers_take_time_and_control_frames_take_none() {
    let net = with_a_clock();
    let mut ends = net.endpoints();
    let (memory, local) = (HeapBuffer::copy_of(&[7; 80]), HeapBuffer::zeroed(80));
    let remote = ends[2].register(Peer(0), &memory, Access::Read).expect("there is room");
    assert_eq!(ends[0].get(Peer(2), remote, &[local], Token(0)), Transfer::Started);
    let head = Head { class: Class::Control, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
    ends[0].send_short(Peer(1), &head, &[]).expect("nothing is refused");
    assert_eq!(all_wait(&mut ends), [(1, 0, 0)]);
    assert_eq!(net.time(), Duration::ZERO);
    all_wait(&mut ends);
    assert_eq!(net.time(), Duration::from_nanos(1000 + 1000 + 1000), "the request, the bytes, their way");
}
