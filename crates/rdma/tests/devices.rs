//! What the devices do for the fabric, by its counts and by the kernel's; and what the suite of all fabrics does not look at.
//! `cargo xtask rdma` runs it where there are RDMA devices.
#![cfg(feature = "verbs")]

mod common;

use std::ffi::c_void;
use std::time::{Duration, Instant};

use banyan_memory::{Buffer, HeapBuffer};
use banyan_rdma::Rdma;
use banyan_transport::conformance::introduced;
use banyan_transport::{Access, Class, Fabric, Head, Outcome, Peer, Port, Remote, Sink, Token, Transfer};
use common::ends;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const MIB: usize = 1 << 20;
const PART: usize = MIB / 4;

/// What has come.
#[derive(Default)]
struct Inbox {
    frames: Vec<Vec<u8>>,
    over: Vec<(Token, Outcome)>,
    gone: Vec<(Peer, String)>,
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
}

/// Two ends that have talked, so that their connection stands.
fn pair() -> (Vec<Rdma>, [Inbox; 2]) {
    let (mut ends, mut inbox) = (introduced(ends(2, Duration::from_secs(60))), <[Inbox; 2]>::default());
    for me in 0..2 {
        send(&mut ends, &mut inbox, me, b"hello");
    }
    until(&mut ends, &mut inbox, |ends, _| ends.iter().all(|end| end.works_under_way() == 0));
    (ends, inbox)
}

const HEAD: Head = Head { class: Class::P2p, kind: 1, aux: 2, a: 3, b: 4, ctx: 5 };

/// Polls both ends until something is so.
fn until(ends: &mut [Rdma], inbox: &mut [Inbox; 2], mut so: impl FnMut(&mut [Rdma], &[Inbox; 2]) -> bool) {
    let start = Instant::now();
    while !so(ends, inbox) {
        for (end, inbox) in ends.iter_mut().zip(inbox.iter_mut()) {
            end.poll(inbox);
        }
        assert!(start.elapsed() < Duration::from_secs(120), "stuck");
    }
}

/// Sends a frame to the other end, and waits until it is there.
fn send(ends: &mut [Rdma], inbox: &mut [Inbox; 2], me: usize, body: &[u8]) {
    let (to, before) = (Peer(1 - me as u32), inbox[1 - me].frames.len());
    until(ends, inbox, |ends, _| ends[me].send_short(to, &HEAD, body).is_ok());
    until(ends, inbox, |_, inbox| inbox[1 - me].frames.len() > before);
    assert_eq!(inbox[1 - me].frames.last().map(Vec::as_slice), Some(body));
}

/// Memory of end 1 that end 0 may reach.
fn exposed(ends: &mut [Rdma], bytes: &[u8]) -> (Buffer, Remote) {
    let memory = HeapBuffer::copy_of(bytes);
    let remote = ends[1].register(Peer(0), &memory, Access::ReadWrite).expect("room");
    (memory, remote)
}

fn contents(memory: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

/// Memory that is mapped at one address, and unmapped with this.
struct Mapped {
    buffer: Buffer,
    at: *mut c_void,
}

impl Mapped {
    #[allow(unsafe_code, reason = "maps memory")]
    fn new(len: usize) -> Mapped {
        let (wanted, flags) =
            (std::ptr::with_exposed_provenance_mut(0x7000_0000_0000), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: an address where nothing else is mapped in this program.
        let at = unsafe { mmap_anonymous(wanted, len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .expect("memory");
        // SAFETY: it is mapped until this ends, and nobody else uses it.
        Mapped { buffer: unsafe { Buffer::new(at.cast(), len) }, at }
    }
}

impl Drop for Mapped {
    #[allow(unsafe_code, reason = "unmaps memory")]
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the buffer ends with this.
        unsafe { munmap(self.at, self.buffer.len()) }.expect("it is mapped");
    }
}

/// Packets that have left by a device, as the kernel counts them; `None` if it does not.
fn packets(device: &str) -> Option<u64> {
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let counters = ["hw_counters/sent_pkts", "counters/port_xmit_packets"];
    counters
        .iter()
        .find_map(|name| std::fs::read_to_string(format!("{port}/{name}")).ok()?.trim().parse().ok())
}

#[test]
fn a_frame_is_one_work_and_what_leaves_does_so_by_the_devices() {
    const FRAMES: u64 = 200;
    let (mut ends, mut inbox) = pair();
    let devices = banyan_rdma::devices();
    let left = || devices.iter().map(|device| packets(device)).sum::<Option<u64>>();
    let (before, packets) = ([ends[0].counts(), ends[1].counts()], left());
    for round in 0..FRAMES {
        send(&mut ends, &mut inbox, (round % 2) as usize, &vec![round as u8; 20 * round as usize]);
    }
    until(&mut ends, &mut inbox, |ends, _| ends.iter().all(|end| end.works_under_way() == 0));
    let after = [ends[0].counts(), ends[1].counts()];
    for me in 0..2 {
        let (before, after) = (before[me], after[me]);
        assert_eq!(after.frames - before.frames, FRAMES / 2, "one work each");
        assert_eq!(after.credits, before.credits, "credits travel with frames the other way");
        let over = after.completions - before.completions;
        assert_eq!(over, FRAMES, "one completion for each that left, and one for each that came");
        assert_eq!(after.registrations, 0, "none for frames");
    }
    if let (Some(before), Some(after)) = (packets, left()) {
        assert!(after - before >= FRAMES, "{} packets for {FRAMES} frames", after - before);
    }
}

#[test]
fn a_transfer_is_one_work_and_a_buffer_is_registered_once() {
    const TIMES: u64 = 5;
    let (mut ends, mut inbox) = pair();
    let bytes: Vec<u8> = (0..MIB).map(|at| (at * 7 + at / 251) as u8).collect();
    let (memory, local) = (HeapBuffer::copy_of(&bytes), HeapBuffer::zeroed(MIB));
    let devices = banyan_rdma::devices();
    let (before, left) = (ends[0].counts(), packets(&devices[1 % devices.len()]));
    for round in 0..TIMES {
        let remote = ends[1].register(Peer(0), &memory, Access::Read).expect("room");
        local.write(0, &vec![0; MIB]);
        let started = ends[0].get(Peer(1), remote, std::slice::from_ref(&local), Token(round));
        assert_eq!(started, Transfer::Started);
        until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
        assert_eq!(inbox[0].over.drain(..).collect::<Vec<_>>(), [(Token(round), Outcome::Done)]);
        assert!(contents(&local) == bytes);
        ends[1].withdraw(Peer(0), remote);
    }
    let after = ends[0].counts();
    let moved = (after.transfers - before.transfers, after.moved - before.moved);
    assert_eq!(moved, (TIMES, TIMES * MIB as u64));
    assert_eq!(
        (after.registrations - before.registrations, ends[1].counts().registrations),
        (1, 1),
        "the first time"
    );
    if let (Some(before), Some(after)) = (left, packets(&devices[1 % devices.len()])) {
        assert!(after - before >= TIMES * (MIB / 4096) as u64, "{} packets for {TIMES} MiB", after - before);
    }
}

#[test]
fn a_short_transfer_takes_no_registration() {
    let (mut ends, mut inbox) = pair();
    let (memory, remote) = exposed(&mut ends, &[5; 8192]);
    let local = HeapBuffer::copy_of(&[6; 8192]);
    let parts = [local.slice(4096, 1000), local.slice(0, 0), local.slice(0, 96)];
    let part = Remote { addr: remote.addr + 100, len: 1096, ..remote };
    assert_eq!(ends[0].get(Peer(1), part, &parts, Token(1)), Transfer::Started);
    until(&mut ends, &mut inbox, |_, inbox| inbox[0].over.len() == 1);
    assert_eq!(
        ends[0].put(Peer(1), Remote { len: 4000, ..remote }, &[local.slice(96, 4000)], Token(2)),
        Transfer::Started
    );
    until(&mut ends, &mut inbox, |_, inbox| inbox[0].over.len() == 2);
    let counts = ends[0].counts();
    assert_eq!((counts.transfers, counts.registrations), (2, 0));
    assert_eq!(contents(&local), [vec![5; 96], vec![6; 4000], vec![5; 1000], vec![6; 3096]].concat());
    assert_eq!(contents(&memory), [vec![6; 4000], vec![5; 4192]].concat());
}

/// Memory that is freed, and mapped again at the same address, is what peers read: never what was there before.
#[test]
fn memory_that_is_mapped_again_is_registered_again() {
    let (mut ends, mut inbox) = pair();
    let local = HeapBuffer::zeroed(PART);
    for round in 0..20u8 {
        let memory = Mapped::new(PART);
        memory.buffer.write(0, &[round; PART]);
        let remote = ends[1].register(Peer(0), &memory.buffer, Access::Read).expect("room");
        assert_eq!(ends[0].get(Peer(1), remote, std::slice::from_ref(&local), Token(1)), Transfer::Started);
        until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
        assert_eq!(inbox[0].over.drain(..).collect::<Vec<_>>(), [(Token(1), Outcome::Done)]);
        assert!(contents(&local) == [round; PART], "round {round}");
        ends[1].withdraw(Peer(0), remote);
    }
    assert_eq!(ends[1].counts().registrations, 20);
}

#[test]
fn memory_that_is_taken_back_is_left_alone() {
    let (mut ends, mut inbox) = pair();
    let (_memory, remote) = exposed(&mut ends, &vec![1; PART]);
    for round in 0..20 {
        let local = HeapBuffer::zeroed(PART);
        let (of, token) = (std::slice::from_ref(&local), Token(round));
        let put = round % 2 == 1;
        let started = if put {
            ends[0].put(Peer(1), remote, of, token)
        } else {
            ends[0].get(Peer(1), remote, of, token)
        };
        assert_eq!(started, Transfer::Started);
        ends[0].reclaim(Peer(1), token);
        local.write(0, &vec![9; PART]);
        send(&mut ends, &mut inbox, 0, b"after it");
        send(&mut ends, &mut inbox, 1, b"and back");
        assert!(contents(&local).iter().all(|&byte| byte == 9), "round {round}");
    }
    assert_eq!(inbox[0].over, [], "nobody hears of them");
    // The connection is as good as before.
    let local = HeapBuffer::zeroed(8);
    assert_eq!(ends[0].get(Peer(1), Remote { len: 8, ..remote }, &[local], Token(99)), Transfer::Started);
    until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
    assert_eq!(inbox[0].over, [(Token(99), Outcome::Done)]);
}

/// A transfer that may not be is refused, in words of the contract, and with it all others of the pair from then on: messages go on.
/// Both sides' memory is as it was.
#[test]
fn what_is_revoked_cannot_be_reached() {
    let (mut ends, mut inbox) = pair();
    let (memory, remote) = exposed(&mut ends, &[1; 64]);
    let (_other, elsewhere) = exposed(&mut ends, &[3; 64]);
    ends[1].revoke(Peer(0), remote);
    let local = HeapBuffer::copy_of(&[2; 64]);
    for token in [1, 2, 3] {
        let started = ends[0].put(Peer(1), remote, std::slice::from_ref(&local), Token(token));
        assert_eq!(started, Transfer::Started);
    }
    ends[0].reclaim(Peer(1), Token(2));
    until(&mut ends, &mut inbox, |_, inbox| inbox[0].over.len() == 2);
    inbox[0].over.sort_by_key(|(token, _)| token.0);
    assert_eq!(inbox[0].over, [(Token(1), Outcome::Impossible), (Token(3), Outcome::Impossible)]);
    assert_eq!((contents(&memory), contents(&local)), (vec![1; 64], vec![2; 64]));
    let get = ends[0].get(Peer(1), elsewhere, std::slice::from_ref(&local), Token(4));
    assert_eq!((get, ends[0].counts().refusing), (Transfer::Impossible, 1));
    for round in 0..100 {
        send(&mut ends, &mut inbox, round % 2, b"messages go on");
    }
    // The other side learns of it by its own transfers.
    let remote = ends[0].register(Peer(1), &local, Access::Read).expect("room");
    if ends[1].get(Peer(0), remote, std::slice::from_ref(&memory), Token(5)) == Transfer::Started {
        until(&mut ends, &mut inbox, |_, inbox| !inbox[1].over.is_empty());
        assert_eq!(inbox[1].over, [(Token(5), Outcome::Impossible)]);
    }
    assert_eq!(contents(&memory), [1; 64]);
    for round in 0..100 {
        send(&mut ends, &mut inbox, round % 2, b"messages go on");
    }
    assert!(
        ends.iter().all(|end| end.works_under_way() < 4) && inbox.iter().all(|inbox| inbox.gone.is_empty())
    );
}

#[test]
fn what_a_peer_sent_before_it_died_is_handed_over() {
    let (mut ends, mut inbox) = pair();
    let before = inbox[0].frames.len();
    let sent = (0..100).filter(|_| ends[1].send_short(Peer(0), &HEAD, b"last words").is_ok()).count();
    assert!(sent > 10);
    let mut deaf = Inbox::default();
    while ends[1].works_under_way() > 0 {
        ends[1].poll(&mut deaf);
    }
    // It ends without a word, as a process does that is killed.
    let dead = ends.pop().expect("two");
    ends[0].peer_died(Peer(1), "it was killed by signal 9");
    let start = Instant::now();
    while inbox[0].gone.is_empty() && start.elapsed() < Duration::from_secs(120) {
        ends[0].poll(&mut inbox[0]);
    }
    assert_eq!(inbox[0].frames.len() - before, sent);
    assert!(inbox[0].gone.len() == 1 && inbox[0].gone[0].1.contains("signal 9"), "{:?}", inbox[0].gone);
    drop(dead);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let options = banyan_rdma::Options { device: "no_such_device".into(), patience: Duration::from_secs(1) };
    let refused = Rdma::new(Peer(0), 2, 1, [0; 32], &options).err().expect("no such device");
    assert!(refused.contains("no RDMA device no_such_device"), "{refused}");
}
