//! Ends for tests on the RDMA devices of this machine: each uses one of them in turn, as if it were on a host of its own.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::time::{Duration, Instant};

use banyan_memory::Buffer;
use banyan_rdma::settings::Settings;
use banyan_rdma::{Options, RailOptions, Rdma};
use banyan_transport::conformance::introduced;
use banyan_transport::{Class, Fabric, Head, Outcome, Peer, Port, Sink, Token};

/// True if the devices are of iWARP.
pub(crate) fn iwarp() -> bool {
    let kind = |device: &String| std::fs::read_to_string(format!("/sys/class/infiniband/{device}/node_type"));
    banyan_rdma::devices()
        .first()
        .and_then(|device| kind(device).ok())
        .is_some_and(|kind| kind.contains("RNIC"))
}

/// `n` ends that do not know each other, with their business cards.
pub(crate) fn ends(n: usize, patience: Duration) -> Vec<(Rdma, Vec<u8>)> {
    ends_as(n, patience, Settings::default())
}

/// The same, with connections as a user says.
pub(crate) fn ends_as(n: usize, patience: Duration, settings: Settings) -> Vec<(Rdma, Vec<u8>)> {
    let devices = banyan_rdma::devices();
    assert!(!devices.is_empty(), "no RDMA device here: cargo xtask rdma");
    let make = |me: u32| {
        let device = devices[me as usize % devices.len()].clone();
        let port = RailOptions { device, port: 1, settings };
        let options = Options { ports: vec![port], subnets: Vec::new(), topology: String::new(), patience };
        Rdma::new(Peer(me), n as u32, 77, [5; 32], &options).expect("a fabric")
    };
    (0..n as u32).map(make).collect()
}

/// Two ends with so many ports each, of which the first one of an end is on the cable with the first one of the other; `None` where that cannot be.
pub(crate) fn on_rails(rails: [usize; 2], patience: Duration) -> Option<Vec<(Rdma, Vec<u8>)>> {
    let devices = banyan_rdma::devices();
    if iwarp() || devices.len() != 2 {
        eprintln!("not run: it takes two devices, and not of iWARP");
        return None;
    }
    Some((0..2).map(|me| by_rails(me, 2, rails[me as usize], patience)).collect())
}

/// As [`ends`], with two ports each.
pub(crate) fn on_two_rails(n: usize, patience: Duration) -> Vec<(Rdma, Vec<u8>)> {
    (0..n as u32).map(|me| by_rails(me, n as u32, 2, patience)).collect()
}

/// One of so many ends, with so many ports, of which the first is that which it has in [`ends`].
fn by_rails(me: u32, size: u32, rails: usize, patience: Duration) -> (Rdma, Vec<u8>) {
    let devices = banyan_rdma::devices();
    let device = |at: usize| devices[(me as usize + at) % devices.len()].clone();
    let port = |at: usize| RailOptions { device: device(at), port: 1, settings: Settings::default() };
    let options = Options {
        ports: (0..rails).map(port).collect(),
        subnets: Vec::new(),
        topology: String::new(),
        patience,
    };
    Rdma::new(Peer(me), size, 77, [5; 32], &options).expect("a fabric")
}

/// What has come.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) over: Vec<(Token, Outcome)>,
    pub(crate) gone: Vec<(Peer, String)>,
    pub(crate) wanted: Vec<Peer>,
}

impl Sink for Inbox {
    fn frame(&mut self, _peer: Peer, _head: &Head, body: &[u8]) {
        assert!(self.gone.is_empty(), "a frame of a peer that was reported gone");
        self.frames.push(body.to_vec());
    }
    fn sent(&mut self, _token: Token) {}
    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.over.push((token, outcome));
    }
    fn down(&mut self, peer: Peer, cause: &str) {
        self.gone.push((peer, cause.to_owned()));
    }
    fn wanted(&mut self, peer: Peer) {
        self.wanted.push(peer);
    }
}

/// Two ends that have talked, so that their connection stands.
pub(crate) fn pair() -> (Vec<Rdma>, [Inbox; 2]) {
    patient(Duration::from_secs(60))
}

/// The same, with this patience.
pub(crate) fn patient(patience: Duration) -> (Vec<Rdma>, [Inbox; 2]) {
    talking(introduced(ends(2, patience)))
}

/// Two ends that know each other, when they have talked.
pub(crate) fn talking(mut ends: Vec<Rdma>) -> (Vec<Rdma>, [Inbox; 2]) {
    let mut inbox = <[Inbox; 2]>::default();
    for me in 0..2 {
        send(&mut ends, &mut inbox, me, b"hello");
    }
    until(&mut ends, &mut inbox, |ends, _| ends.iter().all(|end| end.works_under_way() == 0));
    (ends, inbox)
}

pub(crate) const HEAD: Head = Head { class: Class::P2p, kind: 1, aux: 2, a: 3, b: 4, ctx: 5 };

/// Polls both ends until something is so.
pub(crate) fn until(
    ends: &mut [Rdma],
    inbox: &mut [Inbox; 2],
    mut so: impl FnMut(&mut [Rdma], &[Inbox; 2]) -> bool,
) {
    let start = Instant::now();
    while !so(ends, inbox) {
        for (end, inbox) in ends.iter_mut().zip(inbox.iter_mut()) {
            end.poll(inbox);
        }
        assert!(start.elapsed() < Duration::from_secs(120), "stuck");
    }
}

/// Sends a frame to the other end, and waits until it is there.
pub(crate) fn send(ends: &mut [Rdma], inbox: &mut [Inbox; 2], me: usize, body: &[u8]) {
    let (to, before) = (Peer(1 - me as u32), inbox[1 - me].frames.len());
    until(ends, inbox, |ends, _| ends[me].send_short(to, &HEAD, body).is_ok());
    until(ends, inbox, |_, inbox| inbox[1 - me].frames.len() > before);
    assert_eq!(inbox[1 - me].frames.last().map(Vec::as_slice), Some(body));
}

/// The bytes of a buffer.
pub(crate) fn contents(memory: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}
