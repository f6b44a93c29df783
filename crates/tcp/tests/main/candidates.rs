//! Peers with several addresses, of which some are dead, some belong to other processes, and some fail at first: the one that proves to
//! be the peer is kept, whatever the others do, and errors name them all.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Frames, until};
use banyan_memory::HeapBuffer;
use banyan_tcp::business_card::{Candidate, decode, encode};
use banyan_tcp::{Options, Tcp};
use banyan_topo::NicAddress;
use banyan_transport::{Class, Fabric, Head, Order, Peer, Port, Refusal};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

/// Bytes of a large frame.
const LARGE: usize = 64 << 10;

/// Counts frames and their bytes.
#[derive(Default)]
struct Count {
    bodies: usize,
    bytes: usize,
}

impl Frames for Count {
    fn frame(&mut self, _: Peer, _: &Head, body: &[u8]) {
        assert!(body == b"here" || body.len() == LARGE);
        self.bytes += body.len();
        self.bodies += 1;
    }
}

type Inbox = common::Inbox<Count>;

/// Peer `me` of 3 in the job with this secret, and the address that it listens at.
fn end(me: u32, secret: u8, options: &Options) -> (Tcp, SocketAddr) {
    let (tcp, card) = Tcp::new(Peer(me), 3, 1, [secret; 32], options.clone()).unwrap();
    (tcp, decode(&card).unwrap()[0].address)
}

fn card(addresses: &[SocketAddr]) -> Vec<u8> {
    let candidate = |&address| Candidate { address, prefix: 32, nic: 0, secondary: false, speed: 0 };
    encode(&addresses.iter().map(candidate).collect::<Vec<_>>())
}

/// An address that refuses connections as long as the descriptor is open: it is taken, and nobody listens there.
fn dead_at(ip: [u8; 4]) -> (SocketAddr, OwnedFd) {
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &SocketAddr::from((ip, 0))).unwrap();
    (getsockname(&taken).unwrap().try_into().unwrap(), taken)
}

/// A program that listens at this address, and does this with each connection.
fn program(ip: [u8; 4], mut does: impl FnMut(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::from((ip, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(&mut does));
    address
}

fn dead() -> (SocketAddr, OwnedFd) {
    dead_at([127, 0, 0, 4])
}

const OTHER: [u8; 4] = [127, 0, 0, 5];

fn silent() -> SocketAddr {
    let mut kept = Vec::new();
    program(OTHER, move |socket| kept.push(socket))
}

fn closing() -> SocketAddr {
    program(OTHER, drop)
}

fn babbling() -> SocketAddr {
    program(OTHER, |mut socket| drop(socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n")))
}

/// An address that answers nothing, as one behind a link that is cut: its queue of connections is full, and stays so.
fn drops() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &SocketAddr::from(([127, 0, 0, 6], 0))).unwrap();
    listen(&taken, 0).unwrap();
    let address: SocketAddr = getsockname(&taken).unwrap().try_into().unwrap();
    let soon = Duration::from_millis(200);
    let queued = std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok()).take(8).collect();
    (address, taken.into(), queued)
}

/// A way to another address, whose first connections are closed at once; and the number of bytes that have gone there.
fn relay(ip: [u8; 4], to: SocketAddr, closed: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let (count, mut seen) = (Arc::new(AtomicUsize::new(0)), 0);
    let counted = Arc::clone(&count);
    let address = program(ip, move |socket| {
        seen += 1;
        if seen <= closed {
            return;
        }
        let onward = TcpStream::connect(to).unwrap();
        let back = (onward.try_clone().unwrap(), socket.try_clone().unwrap());
        let count = Arc::clone(&counted);
        thread::spawn(move || forward(socket, onward, &count));
        thread::spawn(move || forward(back.0, back.1, &AtomicUsize::new(0)));
    });
    (address, count)
}

fn forward(mut from: TcpStream, mut to: TcpStream, count: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        count.fetch_add(read, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Sends from peer 0 to peer 1, which is `end`, at these addresses, while `others` run.
fn reaches(addresses: &[SocketAddr], end: &mut Tcp, others: &mut [Tcp], stagger: Duration) {
    let (mut dialer, _) = self::end(0, 9, &Options { stagger, ..Options::default() });
    dialer.connect(Peer(1), &card(addresses)).unwrap();
    let (mut inbox, mut idle) = (Inbox::default(), Inbox::default());
    let mut sent = false;
    until("a frame at the peer", || {
        sent = sent || dialer.send_short(Peer(1), &HEAD, b"here").is_ok();
        dialer.poll(&mut idle);
        end.poll(&mut inbox);
        for other in &mut *others {
            other.poll(&mut idle);
        }
        inbox.frames.bodies == 1
    });
    assert_eq!((idle.lost, inbox.lost, idle.frames.bodies), (vec![], vec![], 0));
    assert_eq!((dialer.connections(), end.connections()), (1, 1));
}

#[test]
fn the_address_that_proves_to_be_the_peer_is_kept() {
    let options = Options::default();
    let (dead, _taken) = dead();
    // One after the other, and all at once.
    for stagger in [Duration::from_millis(20), Duration::ZERO] {
        let wrong: &[&dyn Fn() -> SocketAddr] = &[&|| dead, &silent, &closing, &babbling];
        for wrong in wrong {
            let (mut peer, address) = end(1, 9, &options);
            reaches(&[wrong(), address], &mut peer, &mut [], stagger);
        }
        // A process of another job, and another process of this job, which has the same address in another network.
        let ((mut peer, address), (foreign, one), (sibling, two)) =
            (end(1, 9, &options), end(1, 8, &options), end(2, 9, &options));
        let all = [one, two, dead, silent(), closing(), babbling(), address];
        reaches(&all, &mut peer, &mut [foreign, sibling], stagger);
    }
}

#[test]
fn an_address_that_failed_is_tried_again_beside_a_silent_one() {
    let (mut peer, address) = end(1, 9, &Options::default());
    let (flaky, bytes) = relay(OTHER, address, 3);
    reaches(&[silent(), flaky], &mut peer, &mut [], Duration::from_millis(1));
    assert!(bytes.load(Ordering::Relaxed) > 0);
}

#[test]
fn version_6_is_an_address_like_any() {
    let at = |ip: IpAddr| NicAddress { ip, ..NicAddress::loopback() };
    let listen = vec![at(Ipv6Addr::LOCALHOST.into()), at([127, 0, 0, 1].into())];
    let options = Options { listen, ..Options::default() };
    let (mut peer, address) = end(1, 9, &options);
    if address.is_ipv4() {
        return println!("skipped: this host has no ::1");
    }
    reaches(&[address], &mut peer, &mut [], Duration::ZERO);
}

#[test]
fn errors_name_each_address_and_what_it_said() {
    let patience = Duration::from_millis(20);
    let (mut dialer, _) = end(0, 9, &Options { patience, ..Options::default() });
    let ((dead, _taken), closing, babbling) = (dead(), closing(), babbling());
    dialer.connect(Peer(1), &card(&[dead, closing, babbling])).unwrap();
    let mut inbox = Inbox::default();
    until("it is given up", || {
        dialer.poll(&mut inbox);
        dialer.send_short(Peer(1), &HEAD, b"here") == Err(Refusal::Down)
    });
    dialer.poll(&mut inbox);
    let [(_, cause)] = inbox.lost.try_into().expect("one report");
    assert!(cause.starts_with("not reached within 0.02 s at "), "{cause}");
    assert!(cause.contains(&format!("{dead} (Connection refused")), "{cause}");
    assert!(cause.contains(&format!("{babbling} (it sent a handshake message of")), "{cause}");
    // The connection may be reset before the opening, or closed after it.
    assert!(cause.contains(&format!("{closing} (")), "{cause}");
}

/// A host with network interfaces in two subnets.
fn with_two_nics(me: u32, host: u8, streams: u8) -> (Tcp, Vec<Candidate>) {
    let nic = |net: u8| NicAddress {
        nic: format!("net{net}"),
        ip: Ipv4Addr::new(127, 0, net, host).into(),
        prefix: 24,
        ..NicAddress::loopback()
    };
    // Each stream is to take its own interface, also where the other end is slow to answer.
    let stagger = Duration::from_secs(30);
    let options = Options { listen: vec![nic(1), nic(2)], streams, stagger, ..Options::default() };
    let (tcp, card) = Tcp::new(Peer(me), 3, 1, [9; 32], options).unwrap();
    (tcp, decode(&card).unwrap())
}

#[test]
fn large_messages_use_all_interfaces_that_two_hosts_share() {
    let (mut a, mut card_a) = with_two_nics(0, 1, 0);
    let (mut b, mut card_b) = with_two_nics(1, 2, 0);
    // What goes to either end passes a relay that counts it, one for each interface.
    let mut counts = Vec::new();
    for candidate in card_a.iter_mut().chain(&mut card_b) {
        let IpAddr::V4(ip) = candidate.address.ip() else { panic!("version 4") };
        let [.., net, host] = ip.octets();
        let (address, count) = relay([127, 0, net, host + 10], candidate.address, 0);
        candidate.address = address;
        counts.push(count);
    }
    let memory = HeapBuffer::zeroed(LARGE);
    let body = (&memory, 0, LARGE);
    let (mut at_a, mut at_b) = (Inbox::default(), Inbox::default());
    a.connect(Peer(1), &encode(&card_b)).unwrap();
    // B learns where A listens when it asks for that, as it would of the launcher.
    until("frames each way", || {
        let _ = a.send_from(Peer(1), &HEAD, body, None, Order::Unordered);
        let _ = b.send_from(Peer(0), &HEAD, body, None, Order::Unordered);
        a.poll(&mut at_a);
        b.poll(&mut at_b);
        at_b.wanted.drain(..).for_each(|_| b.connect(Peer(0), &encode(&card_a)).unwrap());
        // To A and to B, by interface.
        let bytes: Vec<usize> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let through = |net: usize| bytes[net] + bytes[2 + net] >= 50 * LARGE;
        through(0) && through(1) && at_a.frames.bytes.min(at_b.frames.bytes) >= 50 * LARGE
    });
    assert_eq!((a.connections(), b.connections()), (2, 2));
    assert_eq!((at_a.lost, at_b.lost), (vec![], vec![]));
}

#[test]
fn a_stream_whose_interface_is_dead_takes_another_one() {
    let ((mut a, _), (mut b, mut card)) = (with_two_nics(0, 1, 0), with_two_nics(1, 2, 0));
    let (dead, _taken) = dead_at([127, 0, 2, 3]);
    card[1].address = dead;
    a.connect(Peer(1), &encode(&card)).unwrap();
    let memory = HeapBuffer::zeroed(LARGE);
    let (mut at_a, mut at_b) = (Inbox::default(), Inbox::default());
    until("two streams", || {
        let _ = a.send_from(Peer(1), &HEAD, (&memory, 0, LARGE), None, Order::Unordered);
        a.poll(&mut at_a);
        b.poll(&mut at_b);
        (a.connections(), b.connections()) == (2, 2) && at_b.frames.bodies > 10
    });
    assert_eq!((at_a.lost, at_b.lost), (vec![], vec![]));
}

#[test]
fn hosts_that_share_one_interface_need_one_stream() {
    // The second peer is on the same host; the third has asked for three streams, as all of its job would.
    for (host, streams, expected) in [(1, 0, 1), (2, 3, 3)] {
        let ((mut a, _), (mut b, card)) = (with_two_nics(0, 1, streams), with_two_nics(1, host, streams));
        a.connect(Peer(1), &encode(&card)).unwrap();
        let memory = HeapBuffer::zeroed(LARGE);
        let (mut at_a, mut at_b) = (Inbox::default(), Inbox::default());
        until("frames", || {
            let _ = a.send_from(Peer(1), &HEAD, (&memory, 0, LARGE), None, Order::Unordered);
            a.poll(&mut at_a);
            b.poll(&mut at_b);
            at_b.frames.bodies > 100 && b.connections() >= expected
        });
        assert_eq!((a.connections(), b.connections()), (expected, expected));
    }
}

/// A rank that dials a peer at these addresses, with this patience, until the peer is given up: what that says.
fn given_up(addresses: &[SocketAddr], patience: Duration, mut also: impl FnMut(&mut Tcp, Peer)) -> String {
    let options = Options { patience, ..Options::default() };
    let (mut tcp, _) = end(0, 1, &options);
    tcp.connect(Peer(1), &card(addresses)).unwrap();
    assert_eq!(tcp.send_short(Peer(1), &HEAD, b"here"), Err(Refusal::Busy));
    let mut inbox = Inbox::default();
    until("to give up", || {
        tcp.poll(&mut inbox);
        std::mem::take(&mut inbox.unreached).into_iter().for_each(|peer| also(&mut tcp, peer));
        !inbox.lost.is_empty()
    });
    assert_eq!(tcp.send_short(Peer(1), &HEAD, b"here"), Err(Refusal::Down));
    inbox.lost.remove(0).1
}

#[test]
fn addresses_that_answer_nothing_are_given_up_after_the_patience() {
    let held = [drops(), drops()];
    let addresses = [held[0].0, held[1].0];
    let start = Instant::now();
    let cause = given_up(&addresses, Duration::from_secs(2), |_, _| {});
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    for address in addresses {
        assert!(cause.contains(&address.to_string()), "{cause}");
    }
}

#[test]
fn a_peer_that_has_ended_is_given_up_when_the_launcher_says_so() {
    // What accepts, and says nothing, may be the peer: only the launcher knows.
    let mut asked = 0;
    let cause = given_up(&[dead().0, silent()], Duration::from_secs(1000), |tcp, peer| {
        asked += 1;
        tcp.peer_died(peer, "it was killed");
    });
    assert_eq!((asked, cause.as_str()), (1, "it was killed"));
}
