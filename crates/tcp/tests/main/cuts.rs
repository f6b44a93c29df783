//! Connections that break: fabrics talk through proxies that forward bytes until they are told to cut, stall or refuse. Nothing is
//! lost or doubled, and the order is kept; a peer that stays away is given up after the patience.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{self, Frames, until};
use banyan_memory::HeapBuffer;
use banyan_tcp::{Options, Tcp, business_card};
use banyan_transport::conformance::{in_order_once_and_whole, memory_is_lent_until_told, two_threads};
use banyan_transport::random::Random;
use banyan_transport::{Class, Fabric, Head, Order, Peer, Port, Refusal, Sent, Token};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

/// What the proxies of a test do.
#[derive(Default)]
struct Weather {
    /// Bytes that pass, in both directions together, before a connection is cut; none is cut at 0.
    until_cut: AtomicU64,
    /// What `until_cut` begins with after each cut.
    every: AtomicU64,
    /// Connections that were cut.
    cuts: AtomicU64,
    /// A bit of what passes is changed in the place of a cut.
    damages: AtomicBool,
    /// Connections are taken, and forwarded to nobody: their ends are closed at once.
    refuse: AtomicBool,
    /// Nothing passes, and nothing is said.
    stall: AtomicBool,
    over: AtomicBool,
}

impl Weather {
    /// Counts bytes that are to pass; gives how many of them do.
    fn pass(&self, bytes: usize) -> (usize, bool) {
        let before = self.until_cut.load(Relaxed);
        if before == 0 {
            return (bytes, false);
        }
        let left = before.saturating_sub(bytes as u64);
        self.until_cut.store(if left == 0 { self.every.load(Relaxed) } else { left }, Relaxed);
        (bytes.min(before as usize), left == 0)
    }
}

/// Ends the proxies of a test.
struct Proxies(Arc<Weather>);

impl Drop for Proxies {
    fn drop(&mut self) {
        self.0.over.store(true, Relaxed);
    }
}

/// A proxy in front of an address, as a thread; gives its own address.
fn proxy(target: SocketAddr, weather: Arc<Weather>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || forward(&listener, target, &weather));
    address
}

fn forward(listener: &TcpListener, target: SocketAddr, weather: &Weather) {
    let mut pairs: Vec<[TcpStream; 2]> = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while !weather.over.load(Relaxed) {
        if weather.refuse.load(Relaxed) {
            pairs.clear();
        }
        while let Ok((near, _)) = listener.accept() {
            if !weather.refuse.load(Relaxed)
                && let Ok(far) = TcpStream::connect(target)
            {
                for end in [&near, &far] {
                    end.set_nonblocking(true).and(end.set_nodelay(true)).unwrap();
                }
                pairs.push([near, far]);
            }
        }
        let mut moved = false;
        if !weather.stall.load(Relaxed) {
            pairs.retain_mut(|pair| {
                let [near, far] = pair;
                carry(near, far, weather, &mut buffer, &mut moved)
                    && carry(far, near, weather, &mut buffer, &mut moved)
            });
        }
        if !moved {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Carries what has come; false if the connection is over, or cut now. What was read and not written is lost, as in a router that
/// goes.
fn carry(
    from: &mut TcpStream,
    to: &mut TcpStream,
    weather: &Weather,
    buffer: &mut [u8],
    moved: &mut bool,
) -> bool {
    let read = match from.read(buffer) {
        Ok(0) => return false,
        Ok(read) => read,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    };
    *moved = true;
    let (mut passing, mut cut) = weather.pass(read);
    if cut && weather.damages.load(Relaxed) {
        buffer[passing - 1] ^= 1;
        (passing, cut) = (read, false);
        weather.cuts.fetch_add(1, Relaxed);
    }
    let mut rest = &buffer[..passing];
    while !rest.is_empty() && !weather.over.load(Relaxed) {
        match to.write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock && !cut => std::thread::yield_now(),
            Err(_) => return false,
        }
    }
    weather.cuts.fetch_add(u64::from(cut), Relaxed);
    !cut
}

fn options() -> Options {
    Options { resume: true, ..Options::default() }
}

fn encrypted() -> Options {
    Options { encrypt: true, ..options() }
}

/// Endpoints each of which the others reach only through a proxy.
fn ends(n: u32, options: &Options) -> (Vec<Tcp>, Arc<Weather>, Proxies) {
    let weather = Arc::new(Weather::default());
    let make = |me| Tcp::new(Peer(me), n, 3, [4; 32], options.clone()).unwrap();
    let (mut ends, cards): (Vec<Tcp>, Vec<Vec<u8>>) = (0..n).map(make).unzip();
    for (of, card) in cards.iter().enumerate() {
        let mut candidates = business_card::decode(card).unwrap();
        for candidate in &mut candidates {
            candidate.address = proxy(candidate.address, Arc::clone(&weather));
        }
        let card = business_card::encode(&candidates);
        for (me, end) in ends.iter_mut().enumerate().filter(|(me, _)| *me != of) {
            end.connect(Peer(of as u32), &card).unwrap_or_else(|error| panic!("{me}: {error}"));
        }
    }
    (ends, Arc::clone(&weather), Proxies(weather))
}

/// Checks that the frames of the peer carry their numbers, in order, and the bytes that go with them.
#[derive(Default)]
struct Numbered(u32);

impl Frames for Numbered {
    fn frame(&mut self, _: Peer, head: &Head, body: &[u8]) {
        assert_eq!(head.a, self.0, "a frame is lost, doubled or out of order");
        assert!(body.iter().all(|&byte| byte == head.a as u8), "frame {} has other bytes", head.a);
        self.0 += 1;
    }
}

type Inbox = common::Inbox<Numbered>;

/// An inbox that awaits frames from this number on.
fn after(next: u32) -> Inbox {
    Inbox { frames: Numbered(next), ..Inbox::default() }
}

/// Sends frame `number`, of a length that follows from it, to the other end; true if it was accepted.
fn send(end: &mut Tcp, to: u32, number: u32, random: &mut Random, lent: &mut usize) -> bool {
    let head = Head { a: number, ..HEAD };
    let len = match random.below(8) {
        0 => 300_000,
        1 => 70_000,
        2 => 20_000,
        _ => random.below(2000),
    };
    if random.once_in(2) {
        return end.send_bcopy(Peer(to), &head, len, &mut |body| body.fill(number as u8)).is_ok();
    }
    let memory = HeapBuffer::copy_of(&vec![number as u8; len]);
    let token = Token(number.into());
    match end.send_from(Peer(to), &head, (&memory, 0, len), Some(token), Order::Ordered) {
        Ok(sent) => {
            *lent += usize::from(sent == Sent::Started);
            true
        }
        Err(refusal) => {
            assert_eq!(refusal, Refusal::Busy);
            false
        }
    }
}

/// Two ends exchange `frames` frames while connections are cut after so many bytes, or what passes is changed there, again and again. Of
/// what is changed a length may be, and its receiver waits for a longer record then: so those ends send on until all has come, and as much again
/// with nothing changed.
fn exchange(
    options: &Options,
    damages: bool,
    seed: u64,
    frames: u32,
    until_cut: impl Fn(&mut Random) -> usize,
) {
    println!("seed {seed}");
    let (mut ends, weather, _proxies) = ends(2, options);
    weather.damages.store(damages, Relaxed);
    let mut random = Random::new(seed);
    let mut inbox = [Inbox::default(), Inbox::default()];
    let (mut next, mut lent) = ([0; 2], [0; 2]);
    let mut last = [if damages { u32::MAX } else { frames }; 2];
    until(&format!("an exchange through cuts, seed {seed}"), || {
        if weather.until_cut.load(Relaxed) == 0 {
            weather.until_cut.store(until_cut(&mut random) as u64, Relaxed);
        }
        for me in 0..2 {
            for _ in 0..random.below(4) {
                if next[me] == last[me]
                    || !send(&mut ends[me], 1 - me as u32, next[me], &mut random, &mut lent[me])
                {
                    break;
                }
                next[me] += 1;
            }
            ends[me].poll(&mut inbox[me]);
        }
        if inbox.iter().all(|inbox| inbox.frames.0 >= frames) && weather.damages.swap(false, Relaxed) {
            last = next.map(|next| next + frames);
        }
        (0..2).all(|me| inbox[1 - me].frames.0 == last[me] && !ends[me].unsent())
    });
    for (inbox, lent) in inbox.iter().zip(lent) {
        assert_eq!((&inbox.lost, inbox.sent.len()), (&vec![], lent), "what was lent is told of once");
    }
    assert!(weather.cuts.load(Relaxed) > 2, "only {} cuts", weather.cuts.load(Relaxed));
}

/// Bytes until the next cut, in handshakes (which take some 300 bytes), or later.
fn anywhere(random: &mut Random) -> usize {
    match random.once_in(3) {
        true => 1 + random.below(600),
        false => 1 + random.below(1_500_000),
    }
}

#[test]
fn nothing_is_lost_or_doubled_through_cuts() {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    for seed in [1, 2, 3, fresh] {
        let options = if seed % 2 == 0 { encrypted() } else { options() };
        exchange(&options, false, seed, 400, |random| 1 + random.below(4_000_000));
    }
}

#[test]
fn a_connection_that_breaks_at_any_byte_is_made_again() {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 1);
    for (seed, options) in [(4, options()), (fresh, encrypted())] {
        exchange(&options, false, seed, 60, anywhere);
    }
}

#[test]
fn what_is_changed_on_the_path_of_an_encrypted_stream_costs_only_connections() {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 2);
    for seed in [5, fresh] {
        exchange(&encrypted(), true, seed, 200, anywhere);
    }
}

/// Endpoints for the conformance suite, whose connections are cut again and again.
fn cut_ends(n: usize) -> Vec<Tcp> {
    let (ends, weather, proxies) = ends(n as u32, &encrypted());
    weather.every.store(2_500_000, Relaxed);
    weather.until_cut.store(1000, Relaxed);
    // The proxies end with the process.
    std::mem::forget(proxies);
    ends
}

#[test]
fn the_contract_holds_through_cuts() {
    in_order_once_and_whole(&cut_ends);
    two_threads(&cut_ends);
    memory_is_lent_until_told(&cut_ends);
}

/// Two ends that have talked, with their proxies.
fn talking(patience: Duration) -> ([Tcp; 2], Arc<Weather>, Proxies) {
    let (ends, weather, proxies) = ends(2, &Options { patience, ..options() });
    let mut ends: [Tcp; 2] = ends.try_into().unwrap_or_else(|_| unreachable!("two were made"));
    let mut inbox = [Inbox::default(), Inbox::default()];
    let mut sent = [false; 2];
    until("first contact", || {
        for me in 0..2 {
            sent[me] = sent[me] || ends[me].send_short(Peer(1 - me as u32), &HEAD, &[0]).is_ok();
            ends[me].poll(&mut inbox[me]);
        }
        inbox.iter().all(|inbox| inbox.frames.0 == 1) && ends.iter().all(|end| !end.unsent())
    });
    (ends, weather, proxies)
}

/// Polls both ends until each has lost the other; gives what they were told, and how long it took.
fn lost([a, b]: &mut [Tcp; 2]) -> ([String; 2], Duration) {
    let start = Instant::now();
    let mut inbox = [Inbox::default(), Inbox::default()];
    until("both give up", || {
        a.poll(&mut inbox[0]);
        b.poll(&mut inbox[1]);
        inbox.iter().all(|inbox| !inbox.lost.is_empty())
    });
    assert!(inbox.iter().all(|inbox| inbox.lost.len() == 1), "each is told once");
    (inbox.map(|mut inbox| inbox.lost.remove(0).1), start.elapsed())
}

#[test]
fn a_link_that_stays_cut_is_given_up_after_the_patience() {
    let patience = Duration::from_millis(400);
    let (mut ends, weather, _proxies) = talking(patience);
    weather.refuse.store(true, Relaxed);
    let (causes, took) = lost(&mut ends);
    assert!(took >= patience, "given up after {took:?}");
    for cause in causes {
        assert!(
            cause.contains("broke") && cause.contains("127.0.0.1:") && cause.contains("0.4 s"),
            "{cause}"
        );
    }
    assert_eq!(ends[0].send_short(Peer(1), &HEAD, &[]), Err(Refusal::Down));
}

#[test]
fn a_peer_that_leaves_is_told_from_one_that_dies() {
    let ([a, mut b], _weather, _proxies) = talking(Duration::from_millis(300));
    let mut inbox = after(1);
    drop(a);
    until("the farewell", || {
        b.poll(&mut inbox);
        !inbox.lost.is_empty()
    });
    assert!(inbox.lost[0].1.ends_with("it has left the job"), "{:?}", inbox.lost);
}

#[test]
fn what_was_sent_while_the_link_was_down_arrives_when_it_heals() {
    let ([mut a, mut b], weather, _proxies) = talking(Duration::from_secs(30));
    let (mut idle, mut inbox) = (Inbox::default(), after(1));
    // A link that says nothing: what leaves is in the proxy, which then loses it.
    weather.stall.store(true, Relaxed);
    let mut sent = 1;
    while sent < 50 && a.send_short(Peer(1), &Head { a: sent, ..HEAD }, &[sent as u8; 100]).is_ok() {
        sent += 1;
    }
    for _ in 0..100 {
        a.poll(&mut idle);
        b.poll(&mut inbox);
    }
    assert_eq!((sent, inbox.frames.0), (50, 1));
    assert!(a.unsent(), "nobody has acknowledged it");
    weather.refuse.store(true, Relaxed);
    until("the break is noticed", || {
        a.poll(&mut idle);
        a.connections() == 0
    });
    assert_eq!(a.send_short(Peer(1), &HEAD, &[]), Err(Refusal::Busy));
    weather.refuse.store(false, Relaxed);
    weather.stall.store(false, Relaxed);
    until("all arrives", || {
        a.poll(&mut idle);
        b.poll(&mut inbox);
        inbox.frames.0 == sent && !a.unsent()
    });
    assert_eq!((idle.lost, inbox.lost), (vec![], vec![]));
}

#[test]
fn a_peer_that_does_not_read_holds_its_senders_back() {
    let ([mut a, mut b], _weather, _proxies) = talking(Duration::from_secs(30));
    let (mut idle, mut inbox) = (Inbox::default(), after(1));
    let (mut random, mut sent, mut lent) = (Random::new(5), 1, 0);
    let mut refused = 0;
    while refused < 200 {
        assert!(sent < 2000, "nothing holds it back");
        let accepted = send(&mut a, 1, sent, &mut random, &mut lent);
        sent += u32::from(accepted);
        refused = if accepted { 0 } else { refused + 1 };
        a.poll(&mut idle);
    }
    until("all arrives", || {
        a.poll(&mut idle);
        b.poll(&mut inbox);
        inbox.frames.0 == sent && !a.unsent()
    });
    assert_eq!((idle.sent.len(), idle.lost), (lent, vec![]));
}
