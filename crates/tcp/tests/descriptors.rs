//! A process without free descriptors waits for some instead of failing. The test is alone in its file because the limit
//! on descriptors holds for the whole process.

use std::fs::File;
use std::time::{Duration, Instant};

use banyan_tcp::{Options, Tcp};
use banyan_transport::{Class, Fabric, Head, Outcome, Peer, Port, Sink, Token};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

#[derive(Default)]
struct Count(usize);

impl Sink for Count {
    fn frame(&mut self, _: Peer, _: &Head, _: &[u8]) {
        self.0 += 1;
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?}: {cause}");
    }
}

#[test]
fn descriptors_that_run_out_only_delay() {
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    let make = |me| Tcp::new(Peer(me), 2, 1, [9; 32], options.clone()).unwrap();
    let ((mut a, _), (mut b, business_card)) = (make(0), make(1));
    a.connect(Peer(1), &business_card).unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let (mut from_a, mut from_b) = (Count(0), Count(0));
    let mut sent = false;
    let mut turns = |a: &mut Tcp, b: &mut Tcp, turns: usize| {
        for _ in 0..turns {
            sent = sent || a.send_short(Peer(1), &HEAD, &[]).is_ok();
            a.poll(&mut from_b);
            b.poll(&mut from_a);
        }
        from_a.0 == 1
    };
    // No descriptor for the connecting side; then one, which leaves none for the accepting side.
    assert!(!turns(&mut a, &mut b, 1000));
    hoard.pop();
    let start = Instant::now();
    while File::open("/dev/null").is_ok() {
        assert!(!turns(&mut a, &mut b, 1));
        assert!(start.elapsed() < Duration::from_secs(30), "the connecting side does not take it");
    }
    assert!(!turns(&mut a, &mut b, 1000));
    hoard.clear();
    let start = Instant::now();
    while !turns(&mut a, &mut b, 1) {
        assert!(start.elapsed() < Duration::from_secs(30), "stuck");
        std::thread::yield_now();
    }
}
