//! What the devices do for the fabric, by its counts and by the kernel's; and what the suite of all fabrics does not look at.
//! `cargo xtask rdma` runs it where there are RDMA devices.
#![cfg(feature = "verbs")]

mod common;

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_memory::{Allocation, Buffer, DeviceFailure, Exporter, HeapBuffer, PciAddress};
use banyan_rdma::settings::Settings;
use banyan_rdma::{Options, RailOptions, Rdma};
use banyan_transport::conformance::introduced;
use banyan_transport::{
    Access, DeviceMoves, Fabric, Outcome, Peer, Port, RegisterError, Remote, Token, Transfer,
};
use common::{HEAD, Inbox, contents, ends, pair, send, until};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Longest work of a transfer.
const PIECE: usize = 128 << 10;
const MIB: usize = 1 << 20;
const PART: usize = MIB / 4;
/// Addresses where memory is mapped, each by one test.
const PLACES: [usize; 3] = [0x7000_0000_0000, 0x7000_1000_0000, 0x7000_2000_0000];

/// Memory of end 1 that end 0 may reach.
fn exposed(ends: &mut [Rdma], bytes: &[u8]) -> (Buffer, Remote) {
    let memory = HeapBuffer::copy_of(bytes);
    let remote = ends[1].register(Peer(0), &memory, Access::ReadWrite).expect("room");
    (memory, remote)
}

/// Memory that is mapped at an address of its own, and unmapped with this. What the heap gives may have been used, and be watched still, by the
/// fabrics of other tests of this process.
struct Mapped {
    buffer: Buffer,
    at: *mut c_void,
}

impl Mapped {
    #[allow(unsafe_code, reason = "maps memory")]
    fn new(at: usize, len: usize) -> Mapped {
        let (wanted, flags) =
            (std::ptr::with_exposed_provenance_mut(at), MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: one of `PLACES`, where nothing else is mapped in this program.
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

/// The driver of GPUs at these PCI addresses, each of which has one allocation, of [`PART`] bytes: its file is no dma-buf.
struct Gpus<'a>(&'a [&'static str]);

const GPU_MEMORY: usize = 0x7000_3000_0000;

impl Exporter for Gpus<'static> {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        let number = (address - GPU_MEMORY) / PART;
        let start = (GPU_MEMORY + number * PART) as u64;
        let device = PciAddress::new(self.0.get(number)?);
        Some(Allocation { id: number as u64, start, len: PART as u64, device })
    }

    fn dma_buf(&self, pages: &Range<usize>) -> Result<OwnedFd, DeviceFailure> {
        let file = rustix::fs::memfd_create("gpu", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, pages.len() as u64).expect("room");
        Ok(file)
    }
}

/// A host whose RDMA devices are on PCIe switches of one root port, beside GPU 11; GPU 12 is below another host bridge.
fn with_gpus() -> String {
    let mut text = "[[host]]\nnic = [\n".to_owned();
    for (at, device) in banyan_rdma::devices().iter().enumerate() {
        text += &format!(
            "{{ name = \"{device}:1\", rdma = \"RoCE\", speed = 1000, at = \"pci0000:01/0000:01:00.0/0000:02:00.0/0000:03:0{at}.0/0000:1{at}:00.0\" }},\n"
        );
    }
    text += "]\ngpu = [\n";
    for (at, path) in ["0000:02:00.0/0000:03:09.0/0000:b1:00.0", "0000:b2:00.0"].iter().enumerate() {
        let root = ["pci0000:01/0000:01:00.0", "pci0000:80/0000:80:00.0"][at];
        text += &format!("{{ name = \"GPU{at}\", model = \"a test\", at = \"{root}/{path}\" }},\n");
    }
    text + "]\n"
}

/// Software devices register no dma-buf, and none registers memory that is none: it is staged, and so is what is far, or of which nothing says where it
/// is. After three allocations nothing is tried.
#[test]
fn memory_of_gpus_that_is_refused_is_staged() {
    let options = |settings| {
        let port = RailOptions { device: banyan_rdma::devices()[0].clone(), port: 1, settings };
        let (ports, subnets, topology) = (vec![port], Vec::new(), with_gpus());
        Options { ports, subnets, topology, patience: Duration::from_secs(60) }
    };
    let start = |settings| Rdma::new(Peer(0), 2, 77, [5; 32], &options(settings)).expect("a fabric").0;
    let drivers: Arc<dyn Exporter> = Arc::new(Gpus(&["0000:b1:00.0", "0000:b2:00.0", "0000:b3:00.0"]));
    let memory = |gpu: usize| {
        let start = std::ptr::with_exposed_provenance_mut(GPU_MEMORY + gpu * PART);
        Buffer::elsewhere(start, PART, drivers.clone())
    };
    let staged = |end: &mut Rdma, gpu: usize| {
        let registered = end.register(Peer(1), &memory(gpu), Access::Read);
        assert_eq!(registered, Err(RegisterError::Unsupported));
        let said = end.account().unwrap_or_default();
        said.split_once("memory of GPUs is staged: ").expect("a reason").1.to_owned()
    };
    let (mut end, device) = (start(Settings::default()), banyan_rdma::devices()[0].clone());
    let first = std::ptr::with_exposed_provenance_mut(GPU_MEMORY);
    let too_long = Buffer::elsewhere(first, PART + 1, drivers.clone());
    assert_eq!(end.register(Peer(1), &too_long, Access::Read), Err(RegisterError::Unsupported));
    assert!(end.account().is_some_and(|said| !said.contains("staged")), "that says nothing of the memory");
    assert_eq!(end.device_moves(Peer(1)), DeviceMoves::ByNetwork);
    let why = staged(&mut end, 0);
    assert!(why.starts_with("no registration of a dma-buf: "), "{why}");
    let far = format!("the GPU at 0000:b2:00.0 is SYS from {device}:1, too far for GPUDirect RDMA");
    assert_eq!(staged(&mut end, 1), far);
    assert_eq!(staged(&mut end, 2), "nothing says where the GPU at 0000:b3:00.0 is");
    assert_eq!(end.device_moves(Peer(1)), DeviceMoves::Never, "nothing was taken");
    let mut off = start(Settings { gpudirect: Some(false), ..Settings::default() });
    assert_eq!(off.device_moves(Peer(1)), DeviceMoves::Never);
    assert_eq!(staged(&mut off, 0), "BANYAN_RDMA says gpudirect=0");
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

/// Who waits for one fabric alone hears of what comes from looks alone, and buffers do not run out meanwhile.
#[test]
fn lingering_hands_over_what_comes() {
    if common::iwarp() {
        return eprintln!("not run: sockets of iWARP want polls");
    }
    let (mut ends, mut inbox) = pair();
    for round in 0..100_u8 {
        let (from, to) = (usize::from(round % 2), usize::from(1 - round % 2));
        let before = inbox[to].frames.len();
        while ends[from].send_short(Peer(to as u32), &HEAD, &[round; 8]).is_err() {
            ends[from].linger(16, &mut inbox[from]);
        }
        let start = Instant::now();
        while inbox[to].frames.len() == before {
            ends[to].linger(16, &mut inbox[to]);
            assert!(start.elapsed() < Duration::from_secs(60), "stuck");
        }
        assert_eq!(inbox[to].frames.last().map(Vec::as_slice), Some(&[round; 8][..]));
    }
}

/// Gets of more than a network holds at once: so much of them is read at a time, and what else there is to do does not wait for them.
#[test]
fn long_gets_go_in_pieces_of_which_few_are_under_way() {
    const GETS: u64 = 3;
    let (mut ends, mut inbox) = pair();
    let bytes: Vec<u8> = (0..3 * MIB + 5).map(|at| (at * 7 + at / 251) as u8).collect();
    let (_memory, remote) = exposed(&mut ends, &bytes);
    let (_other, word) = exposed(&mut ends, &[0; 8]);
    let local: Vec<_> = (0..GETS).map(|_| HeapBuffer::zeroed(bytes.len())).collect();
    let (mut started, mut put, mut most) = (0, false, 0);
    until(&mut ends, &mut inbox, |ends, inbox| {
        if started < GETS {
            let of = std::slice::from_ref(&local[started as usize]);
            started += u64::from(ends[0].get(Peer(1), remote, of, Token(started)) == Transfer::Started);
        }
        if started == 1 && !put {
            put = ends[0].put(Peer(1), word, &[HeapBuffer::copy_of(&[7; 8])], Token(99)) == Transfer::Started;
        }
        most = most.max(ends[0].works_under_way());
        inbox[0].over.len() as u64 == GETS + 1
    });
    assert!(most <= MIB / 2 / PIECE + 1, "{most} works at a time");
    let order: Vec<u64> = inbox[0].over.iter().map(|(token, _)| token.0).collect();
    assert_eq!(order, [99, 0, 1, 2], "the put has not waited for the rest of the get");
    assert!(local.iter().all(|local| contents(local) == bytes));
}

#[test]
fn a_transfer_is_one_work_and_a_buffer_is_registered_once() {
    const TIMES: u64 = 5;
    let (mut ends, mut inbox) = pair();
    let bytes: Vec<u8> = (0..MIB).map(|at| (at * 7 + at / 251) as u8).collect();
    let (memory, local) = (Mapped::new(PLACES[1], MIB), Mapped::new(PLACES[2], MIB));
    let (memory, local) = (&memory.buffer, &local.buffer);
    memory.write(0, &bytes);
    let devices = banyan_rdma::devices();
    let (before, left) = (ends[0].counts(), packets(&devices[1 % devices.len()]));
    for round in 0..TIMES {
        let remote = ends[1].register(Peer(0), memory, Access::Read).expect("room");
        local.write(0, &vec![0; MIB]);
        let started = ends[0].get(Peer(1), remote, std::slice::from_ref(local), Token(round));
        assert_eq!(started, Transfer::Started);
        until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
        assert_eq!(inbox[0].over.drain(..).collect::<Vec<_>>(), [(Token(round), Outcome::Done)]);
        assert!(contents(local) == bytes);
        ends[1].withdraw(Peer(0), remote);
    }
    let after = ends[0].counts();
    let moved = (after.transfers - before.transfers, after.moved - before.moved);
    let works = TIMES * (MIB / PIECE) as u64;
    assert_eq!(moved, (works, TIMES * MIB as u64));
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
        let memory = Mapped::new(PLACES[0], PART);
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

/// A transfer that may not be is refused; the connection is made anew, and others go on. Both sides' memory is as it was.
#[test]
fn what_is_revoked_cannot_be_reached() {
    let (mut ends, mut inbox) = pair();
    let (memory, remote) = exposed(&mut ends, &[1; 64]);
    let (_other, elsewhere) = exposed(&mut ends, &[3; 64]);
    ends[1].revoke(Peer(0), remote);
    let local = HeapBuffer::copy_of(&[2; 64]);
    for round in 0..3 {
        let tokens = [1, 2, 3].map(|token| Token(10 * round + token));
        for token in tokens {
            let of = std::slice::from_ref(&local);
            until(&mut ends, &mut inbox, |ends, _| {
                ends[0].put(Peer(1), remote, of, token) == Transfer::Started
            });
        }
        ends[0].reclaim(Peer(1), tokens[1]);
        let of_frame =
            |ends: &mut [Rdma], me: usize| ends[me].send_short(Peer(1 - me as u32), &HEAD, b"meanwhile");
        let before = inbox[0].frames.len() + inbox[1].frames.len();
        let sent = (0..10).filter(|at| of_frame(&mut ends, at % 2).is_ok()).count();
        until(&mut ends, &mut inbox, |_, inbox| inbox[0].over.len() == 2);
        let mut over: Vec<(Token, Outcome)> = inbox[0].over.drain(..).collect();
        over.sort_by_key(|(token, _)| token.0);
        assert_eq!(over, [(tokens[0], Outcome::Impossible), (tokens[2], Outcome::Impossible)]);
        assert_eq!((contents(&memory), contents(&local)), (vec![1; 64], vec![2; 64]));
        let target = HeapBuffer::zeroed(64);
        let of = std::slice::from_ref(&target);
        until(&mut ends, &mut inbox, |ends, _| {
            ends[0].get(Peer(1), elsewhere, of, Token(4)) == Transfer::Started
        });
        until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
        assert_eq!(inbox[0].over.drain(..).collect::<Vec<_>>(), [(Token(4), Outcome::Done)]);
        assert_eq!(contents(&target), [3; 64]);
        until(&mut ends, &mut inbox, |_, inbox| {
            inbox[0].frames.len() + inbox[1].frames.len() == before + sent
        });
        for me in 0..2 {
            send(&mut ends, &mut inbox, me, b"messages go on");
        }
    }
    assert!(ends.iter().all(|end| end.counts().renewed >= 3), "{:?}", ends[0].counts());
    assert!(inbox.iter().all(|inbox| inbox.gone.is_empty()), "nobody is gone");
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

/// More peers than connections may stand: those that were not used for longest rest, and come back. All frames come once and in order, and
/// gets bring what they should.
#[test]
fn connections_rest_where_there_are_more_peers() {
    const PEERS: usize = 5;
    const MOST: usize = 2;
    let mut ends = introduced(ends(PEERS + 1, Duration::from_secs(60)));
    let mut inbox: Vec<Inbox> = (0..=PEERS).map(|_| Inbox::default()).collect();
    ends[0].limit_connections(MOST);
    let shown: Vec<(Buffer, Remote)> = (1..=PEERS)
        .map(|peer| {
            let memory = HeapBuffer::copy_of(&[peer as u8; 64]);
            let remote = ends[peer].register(Peer(0), &memory, Access::Read).expect("room");
            (memory, remote)
        })
        .collect();
    let start = Instant::now();
    let mut poll_all = |ends: &mut [Rdma]| {
        ends.iter_mut().zip(&mut inbox).for_each(|(end, inbox)| _ = end.poll(inbox));
        assert!(ends[0].connections() <= MOST, "bounded");
        assert!(start.elapsed() < Duration::from_secs(120), "stuck");
        (
            inbox[0].frames.len(),
            inbox.iter().skip(1).map(|inbox| inbox.frames.len()).sum::<usize>(),
            inbox[0].over.len(),
        )
    };
    let mut expected = Vec::new();
    for round in 0..6u8 {
        for peer in 1..=PEERS {
            let number = [round, peer as u8];
            while ends[0].send_short(Peer(peer as u32), &HEAD, &number).is_err() {
                poll_all(&mut ends);
            }
            while ends[peer].send_short(Peer(0), &HEAD, &number).is_err() {
                poll_all(&mut ends);
            }
            expected.push(number.to_vec());
            let local = HeapBuffer::zeroed(64);
            let of = std::slice::from_ref(&local);
            while ends[0].get(Peer(peer as u32), shown[peer - 1].1, of, Token(0)) != Transfer::Started {
                poll_all(&mut ends);
            }
            while poll_all(&mut ends) != (expected.len(), expected.len(), expected.len()) {}
            assert_eq!(contents(&local), [peer as u8; 64]);
        }
    }
    assert_eq!(inbox[0].frames, expected);
    let rested: u64 = ends[0].counts().rested;
    assert!(rested >= 20, "{rested}");
    assert!(inbox.iter().all(|inbox| inbox.gone.is_empty()));
    assert_eq!(ends[0].counts().renewed, 0, "none broke");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let options = Options::on("no_such_device", 1, Duration::from_secs(1));
    let refused = Rdma::new(Peer(0), 2, 1, [0; 32], &options).err().expect("no such device");
    assert!(refused.contains("no RDMA device no_such_device"), "{refused}");
}

/// Connections are as the user says: here by the packets that the devices count.
#[test]
fn packets_are_as_short_as_the_user_says() {
    if common::iwarp() {
        return eprintln!("not run: iWARP has nothing of these");
    }
    let settings = Settings::read("mtu=256,sl=3,traffic_class=8,pkey=0x7fff,connections=1").expect("right");
    let all = common::ends_as(2, Duration::from_secs(60), settings);
    let (mut ends, mut inbox) = common::talking(introduced(all));
    let (_memory, remote) = exposed(&mut ends, &[7; PART]);
    let devices = banyan_rdma::devices();
    let theirs = &devices[1 % devices.len()];
    let (before, local) = (packets(theirs), HeapBuffer::zeroed(PART));
    assert_eq!(ends[0].get(Peer(1), remote, std::slice::from_ref(&local), Token(1)), Transfer::Started);
    until(&mut ends, &mut inbox, |_, inbox| !inbox[0].over.is_empty());
    assert!(contents(&local) == [7; PART]);
    if let (Some(before), Some(after)) = (before, packets(theirs)) {
        assert!(after - before >= (PART / 256) as u64, "{} packets for {PART} bytes", after - before);
    }
}

#[test]
fn what_a_port_has_not_is_named() {
    let refusals = [
        ("gid_index=254", "gid_index=254: the port has no such address; it has "),
        ("pkey=0x1234", "pkey=0x1234: the port is not in this partition; its keys are 0xffff"),
    ];
    let of_iwarp = [("mtu=256", "mtu=256: the device is one of iWARP")];
    for (text, why) in if common::iwarp() { &of_iwarp[..] } else { &refusals } {
        let settings = Settings::read(text).expect("right");
        let port = RailOptions { device: banyan_rdma::devices().swap_remove(0), port: 1, settings };
        let options = Options {
            ports: vec![port],
            subnets: Vec::new(),
            topology: String::new(),
            patience: Duration::from_secs(1),
        };
        let refused = Rdma::new(Peer(0), 2, 1, [0; 32], &options).err().expect(text);
        assert!(refused.contains(why), "{refused}");
    }
}

/// Carries out so many long gets and puts of end 0 at a time, and sees that all bytes have arrived; `meanwhile` is called at each step.
fn move_both_ways(
    ends: &mut [Rdma],
    inbox: &mut [Inbox; 2],
    times: u64,
    mut meanwhile: impl FnMut(&mut [Rdma], u64),
) {
    let bytes: Vec<u8> = (0..2 * MIB + 77).map(|at| (at * 7 + at / 251) as u8).collect();
    let (_read, from) = exposed(ends, &bytes);
    let (written, to) = exposed(ends, &vec![0; bytes.len()]);
    let (source, target) = (HeapBuffer::copy_of(&bytes), HeapBuffer::zeroed(bytes.len()));
    let before = inbox[0].over.len();
    let (mut begun, mut got) = ([0; 2], 0);
    until(ends, inbox, |ends, inbox| {
        let over = inbox[0].over.len() - before;
        for (way, begun) in begun.iter_mut().enumerate() {
            // One of each at a time, as they move the same memory.
            let done =
                inbox[0].over[before..].iter().filter(|(token, _)| token.0 % 2 == way as u64).count() as u64;
            if *begun == done && *begun < times {
                let token = Token(2 * *begun + way as u64);
                let started = match way {
                    0 => ends[0].get(Peer(1), from, std::slice::from_ref(&target), token),
                    _ => ends[0].put(Peer(1), to, std::slice::from_ref(&source), token),
                };
                *begun += u64::from(started == Transfer::Started);
            }
        }
        while got < over {
            assert_eq!(inbox[0].over[before + got].1, Outcome::Done);
            got += 1;
        }
        meanwhile(ends, over as u64);
        over as u64 == 2 * times
    });
    assert!(contents(&target) == bytes && contents(&written) == bytes, "all has arrived");
    assert!(inbox.iter().all(|inbox| inbox.gone.is_empty()), "nobody is gone");
}

/// With two ports at each end long transfers go by both, in either direction, and by one where only one end has two.
#[test]
fn long_transfers_go_by_two_rails() {
    let patience = Duration::from_secs(60);
    for rails in [[2, 2], [2, 1], [1, 2]] {
        let Some(all) = common::on_rails(rails, patience) else { return };
        let (mut ends, mut inbox) = common::talking(introduced(all));
        let before = inbox[0].frames.len();
        move_both_ways(&mut ends, &mut inbox, 2, |_, _| {});
        send(&mut ends, &mut inbox, 1, b"frames go by the first");
        assert_eq!(inbox[0].frames.len(), before + 1);
        let counts = ends[0].counts();
        println!("{rails:?}: {} of {} bytes by the second rail", counts.striped, counts.moved);
        let share = counts.striped as f64 / counts.moved as f64;
        let expected = if rails == [2, 2] { 0.2..0.8 } else { 0.0..1e-9 };
        assert!(expected.contains(&share), "{rails:?}: {share}");
    }
}

/// A rail that fails with transfers under way leaves them to the other one: all arrives, and nobody is gone.
#[test]
fn a_rail_that_fails_leaves_its_work_to_the_other() {
    let Some(all) = common::on_rails([2, 2], Duration::from_secs(60)) else { return };
    let (mut ends, mut inbox) = common::talking(introduced(all));
    let mut failed = None;
    move_both_ways(&mut ends, &mut inbox, 4, |ends, over| {
        if over >= 2 && failed.is_none() && ends[0].counts().striped > 0 {
            ends[0].rail_ended(1, "local catastrophic error");
            failed = Some(ends[0].counts().striped);
        }
    });
    let counts = ends[0].counts();
    println!("{counts:?}, {failed:?} when it failed");
    assert!(failed.is_some() && counts.renewed > 0, "the connection was made anew");
    let before = counts.striped;
    move_both_ways(&mut ends, &mut inbox, 1, |_, _| {});
    assert_eq!(ends[0].counts().striped, before, "nothing goes by what has failed");
}
