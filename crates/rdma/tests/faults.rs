//! Links that go down, and come up again or not, with messages and transfers under way. `cargo xtask rdma` runs it where there are RDMA
//! devices in software, as root: it takes down the network devices under them.
#![cfg(feature = "verbs")]

mod common;

use std::net::IpAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use banyan_memory::HeapBuffer;
use banyan_rdma::{Counts, Rdma};
use banyan_transport::conformance::introduced;
use banyan_transport::{Access, Fabric, Outcome, Peer, Port, Refusal, Token, Transfer};
use common::{HEAD, Inbox, contents, ends, patient, talking, until};

/// The network device under an RDMA device in software. One test at a time has it; at the end it is up.
struct Link {
    name: String,
    _turn: MutexGuard<'static, ()>,
}

impl Link {
    /// `None` if that of the first device is not to be had.
    fn take() -> Option<Link> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let device = banyan_rdma::devices().into_iter().next()?;
        let shown = Command::new("rdma").args(["link", "show", &format!("{device}/1")]).output().ok()?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let name = shown.split("netdev ").nth(1)?.split_whitespace().next()?;
        let link = Link { name: name.to_owned(), _turn };
        if !link.set("up") {
            eprintln!("not run: {} cannot be taken down", link.name);
            return None;
        }
        Some(link)
    }

    fn set(&self, state: &str) -> bool {
        let done = Command::new("ip").args(["link", "set", &self.name, state]).status();
        done.is_ok_and(|status| status.success())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set("up");
    }
}

/// Streams of numbered frames both ways, and gets, over a link that goes down twice: all frames come once and in order, and all
/// gets bring what they should.
#[test]
fn nothing_is_lost_or_doubled_when_the_link_goes_down_and_up() {
    let Some(link) = Link::take() else { return };
    cut_twice(&link, ends(2, Duration::from_secs(60)), 1 << 16);
}

/// The same, where gets go by two rails.
#[test]
fn nothing_is_lost_or_doubled_when_the_link_of_two_rails_goes_down_and_up() {
    let Some(link) = Link::take() else { return };
    let Some(all) = common::on_rails([2, 2], Duration::from_secs(60)) else { return };
    let counts = cut_twice(&link, all, 1 << 20);
    assert!(counts.striped > 0, "{counts:?}");
}

/// Streams and gets of so many bytes, with two cuts; gives what the end that gets has counted.
fn cut_twice(link: &Link, all: Vec<(Rdma, Vec<u8>)>, part: usize) -> Counts {
    const CUTS: u32 = 2;
    let (mut ends, mut inbox) = talking(introduced(all));
    inbox.iter_mut().for_each(|inbox| inbox.frames.clear());
    let bytes: Vec<u8> = (0..part).map(|at| (at * 7 + at / 251) as u8).collect();
    let (memory, local) = (HeapBuffer::copy_of(&bytes), HeapBuffer::zeroed(part));
    let remote = ends[1].register(Peer(0), &memory, Access::Read).expect("room");
    let (mut sent, mut gets, mut getting) = ([0u32; 2], 0, false);
    let (mut cuts, mut down, mut change) = (0, false, Instant::now() + Duration::from_millis(300));
    let mut quota = [u32::MAX; 2];
    until(&mut ends, &mut inbox, |ends, inbox| {
        for me in 0..2 {
            let body =
                [&sent[me].to_le_bytes()[..], &vec![me as u8; (sent[me] as usize * 37) % 3000]].concat();
            if sent[me] < quota[me] && ends[me].send_short(Peer(1 - me as u32), &HEAD, &body).is_ok() {
                sent[me] += 1;
            }
        }
        if !getting && quota[0] == u32::MAX {
            getting =
                ends[0].get(Peer(1), remote, std::slice::from_ref(&local), Token(1)) == Transfer::Started;
        } else if gets < inbox[0].over.len() {
            assert_eq!(inbox[0].over[gets], (Token(1), Outcome::Done));
            assert!(contents(&local) == bytes, "get {gets}");
            local.write(0, &[0; 4096]);
            (gets, getting) = (gets + 1, false);
        }
        if quota[0] == u32::MAX && Instant::now() > change {
            down = !down;
            assert!(link.set(if down { "down" } else { "up" }));
            cuts += u32::from(down);
            println!("link down: {down}, {sent:?} sent, {:?}", ends[0].counts());
            change = Instant::now() + Duration::from_millis(500);
            if cuts == CUTS && !down {
                quota = sent.map(|sent| sent + 100);
            }
        }
        let all = (0..2).all(|me| inbox[1 - me].frames.len() == quota[me] as usize);
        all && !getting
    });
    for (inbox, quota) in inbox.iter().zip([quota[1], quota[0]]) {
        let numbers =
            inbox.frames.iter().map(|body| u32::from_le_bytes([body[0], body[1], body[2], body[3]]));
        assert!(numbers.eq(0..quota), "each once, in order");
        assert!(inbox.gone.is_empty());
    }
    let counts = ends.iter().map(Rdma::counts).collect::<Vec<_>>();
    println!("{sent:?} frames, {gets} gets, {counts:?}");
    assert!(counts.iter().all(|counts| counts.renewed > 0) && gets > 0, "the connection broke");
    counts[0]
}

/// A link that stays down: after the patience the peer is gone, with the reason.
#[test]
fn a_link_that_stays_down_is_named() {
    let Some(link) = Link::take() else { return };
    let patience = Duration::from_secs(3);
    let (mut ends, mut inbox) = patient(patience);
    assert!(link.set("down"));
    let start = Instant::now();
    let gone = |inbox: &Inbox| !inbox.gone.is_empty();
    until(&mut ends, &mut inbox, |ends, inbox| {
        let _ = ends[0].send_short(Peer(1), &HEAD, b"anybody there?");
        gone(&inbox[0])
    });
    assert!(start.elapsed() >= patience, "not before its time");
    let (peer, why) = &inbox[0].gone[0];
    println!("{why}");
    let device = &banyan_rdma::devices()[0];
    assert!(
        *peer == Peer(1) && why.contains(&format!("port 1 of {device}")) && why.contains("within 3 s"),
        "{why}"
    );
    assert!(
        why.contains("it is down") && why.contains("the device said"),
        "by what the device has told: {why}"
    );
    assert_eq!(ends[0].send_short(Peer(1), &HEAD, b""), Err(Refusal::Down));
}

/// A device that fails ends all that goes by it at once, and nobody is reached by it any more.
#[test]
fn a_device_that_fails_is_told_from_a_peer_that_is_silent() {
    let (mut ends, mut inbox) = patient(Duration::from_secs(60));
    ends[0].device_ended("local catastrophic error");
    until(&mut ends, &mut inbox, |_, inbox| {
        inbox.iter().all(|inbox| !inbox.gone.is_empty()) || !inbox[0].gone.is_empty()
    });
    let (peer, why) = &inbox[0].gone[0];
    let device = &banyan_rdma::devices()[0];
    let named = format!("device {device} of ");
    assert!(
        *peer == Peer(1) && why.starts_with(&named) && why.ends_with("local catastrophic error"),
        "{why}"
    );
    assert_eq!(ends[0].send_short(Peer(1), &HEAD, b""), Err(Refusal::Down));
    assert!(ends[0].connect(Peer(1), &[]).is_err_and(|said| said.contains(why)), "another fabric is tried");
}

/// A peer that no connection comes about to, though its card is there: nothing has left, so it is refused, for another fabric to carry it.
#[test]
fn a_peer_that_the_device_does_not_reach_is_refused() {
    let Some(link) = Link::take() else { return };
    let patience = Duration::from_secs(2);
    let (mut ends, mut inbox) = (introduced(ends(2, patience)), <[Inbox; 2]>::default());
    assert!(link.set("down"));
    let start = Instant::now();
    until(&mut ends, &mut inbox, |ends, inbox| {
        assert_eq!(ends[0].send_short(Peer(1), &HEAD, b"anybody there?"), Err(Refusal::Busy));
        !inbox[0].wanted.is_empty()
    });
    assert!(start.elapsed() >= patience, "not before its time");
    assert_eq!(inbox[0].wanted, [Peer(1)]);
    let why = ends[0].connect(Peer(1), &[]).expect_err("it is refused");
    println!("{why}");
    assert!(why.contains("port 1 of ") && why.contains("within 2 s"), "{why}");
    assert!(inbox[0].gone.is_empty(), "another fabric may reach it");
}

/// Runs `ip` with each of these lines; false if one of them fails.
fn ip(lines: &[&str]) -> bool {
    let run =
        |line: &&str| Command::new("ip").args(line.split(' ')).status().is_ok_and(|done| done.success());
    lines.iter().filter(|line| !run(line)).count() == 0
}

/// Has packets between 10.80.1.1 and 10.80.1.2, both of this machine, leave by the cable, until this ends.
struct ByCable;

impl ByCable {
    fn new() -> ByCable {
        for name in ["all", "end0", "end1"] {
            for (file, value) in [("accept_local", "1"), ("rp_filter", "0")] {
                let file = format!("/proc/sys/net/ipv4/conf/{name}/{file}");
                std::fs::write(file, value).expect("this is root");
            }
        }
        let by_cable = ByCable;
        let all = [
            "rule add pref 100 lookup local",
            "rule del pref 0",
            "rule add pref 10 iif lo from 10.80.1.1 to 10.80.1.2 lookup 110",
            "rule add pref 11 iif lo from 10.80.1.2 to 10.80.1.1 lookup 111",
        ];
        assert!(ip(&all), "this is root");
        by_cable
    }
}

impl Drop for ByCable {
    fn drop(&mut self) {
        ip(&["rule add pref 0 lookup local", "rule del pref 100", "rule del pref 10", "rule del pref 11"]);
        ip(&["addr del 10.80.1.1/24 dev end0", "addr del 10.80.1.2/24 dev end1"]);
    }
}

/// The addresses between which two new ends talk, seen from the first one.
fn talked_between() -> (IpAddr, IpAddr) {
    let (ends, _) = patient(Duration::from_secs(60));
    let [ours, theirs] = [0, 1].map(|me| ends[me].addresses(Peer(1 - me as u32)).expect("contact"));
    assert_eq!(ours, (theirs.1, theirs.0), "both sides take one pair");
    ours
}

/// Waits until the device of this number has an address, which the kernel tells it of.
fn until_has(address: &str, device: usize) {
    let (device, start) = (&banyan_rdma::devices()[device], Instant::now());
    let is = |of: &banyan_rdma::gid::Entry| of.address.ip().to_string() == address;
    while !banyan_rdma::gid::table((device, 1)).iter().any(is) {
        assert!(start.elapsed() < Duration::from_secs(20), "{device} has no {address}");
        std::thread::yield_now();
    }
}

/// Of several addresses of a port those are taken that reach the peer's: first one side alone has one of IPv4, then both have, in one subnet.
#[test]
fn the_addresses_that_route_are_taken() {
    if common::iwarp() {
        return eprintln!("not run: devices of iWARP have one address each");
    }
    let Some(link) = Link::take() else { return };
    if !link.name.starts_with("end") {
        return eprintln!("not run: the cable's ends are not end0 and end1");
    }
    let (before, _by_cable) = (talked_between(), ByCable::new());
    assert!(ip(&["addr add 10.80.1.1/24 dev end0", "route add 10.80.1.2 dev end0 src 10.80.1.1 table 110"]));
    until_has("10.80.1.1", 0);
    assert_eq!(talked_between(), before, "the other side has none of IPv4");
    assert!(ip(&["addr add 10.80.1.2/24 dev end1", "route add 10.80.1.1 dev end1 src 10.80.1.2 table 111"]));
    until_has("10.80.1.2", 1);
    let both = ["10.80.1.1", "10.80.1.2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
    assert_eq!(talked_between(), both.into(), "both are in one subnet");
}
