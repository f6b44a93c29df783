//! Whatever a process does at the listening port, the job goes on. A peer that breaks the protocol or its connection is
//! reported once. These tests have a program to themselves, as one of them counts the descriptors of the process.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use banyan_tcp::handshake::{Answer, Features, Handshake, Heard, Hello, message_length};
use banyan_tcp::{Options, Tcp, business_card, frame};
use banyan_transport::{Class, Fabric, Head, Peer, Port, Refusal};
use common::{Frames, until};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const JOB: u64 = 77;
const SECRET: [u8; 32] = [5; 32];
const HEAD: Head = Head { class: Class::Control, kind: 1, aux: 2, a: 3, b: 4, ctx: 5 };

/// Keeps bodies; all heads are alike.
#[derive(Default)]
struct Bodies(Vec<(Peer, Vec<u8>)>);

impl Frames for Bodies {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        assert_eq!(*head, HEAD);
        self.0.frame(peer, head, body);
    }
}

type Inbox = common::Inbox<Bodies>;

fn end(me: u32, options: &Options) -> (Tcp, SocketAddr, Vec<u8>) {
    let (tcp, business_card) = Tcp::new(Peer(me), 4, JOB, SECRET, options.clone()).unwrap();
    (tcp, business_card::decode(&business_card).unwrap()[0].address, business_card)
}

/// Polls `tcp` while `attack` runs in a thread.
fn during<T: Send>(tcp: &mut Tcp, inbox: &mut Inbox, attack: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let attack = scope.spawn(attack);
        until("an attack", || {
            tcp.poll(inbox);
            attack.is_finished()
        });
        attack.join().unwrap()
    })
}

/// Checks that frames still pass between a fresh endpoint 1 and `tcp`, which is 0, in both directions.
fn assert_alive(tcp: &mut Tcp, business_card: &[u8], inbox: &mut Inbox) {
    let (mut peer, _, _) = end(1, &Options::default());
    peer.connect(Peer(0), business_card).unwrap();
    let mut back = Inbox::default();
    let (mut sent, mut answered) = (false, false);
    let before = inbox.frames.0.len();
    until("a frame of a peer", || {
        sent = sent || peer.send_short(Peer(0), &HEAD, b"here").is_ok();
        answered = answered || sent && tcp.send_short(Peer(1), &HEAD, b"there").is_ok();
        peer.poll(&mut back);
        tcp.poll(inbox);
        inbox.frames.0.len() > before && !back.frames.0.is_empty()
    });
    assert_eq!(inbox.frames.0[before..], [(Peer(1), b"here".to_vec())]);
    assert_eq!(back.frames.0, [(Peer(0), b"there".to_vec())]);
    assert_eq!(inbox.lost, []);
}

/// Waits until the other side closes (or resets) this connection.
fn assert_closed(mut socket: TcpStream) {
    let _ = socket.read_to_end(&mut Vec::new());
}

fn read_message(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 2];
    socket.read_exact(&mut bytes).ok()?;
    let length = message_length(&bytes).ok()??;
    bytes.resize(length, 0);
    socket.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// Makes a proven connection by hand; `None` if the other side refuses it.
fn prove(to: SocketAddr, secret: &[u8; 32], hello: Hello) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(to).unwrap();
    let (mut handshake, opening) = Handshake::connect(secret, hello).unwrap();
    socket.write_all(&opening).unwrap();
    let Ok(Heard::Accepted) = handshake.hear(&read_message(&mut socket)?) else { return None };
    socket.write_all(&handshake.prove(0).unwrap()).unwrap();
    assert!(matches!(handshake.hear(&read_message(&mut socket)?), Ok(Heard::Confirmed(_))));
    Some(socket)
}

fn hello(from: u32) -> Hello {
    let (job, from, to) = (JOB, Peer(from), Peer(0));
    Hello { job, from, to, stream: 0, attempt: 1, features: Features::NONE, answer: Answer::Accept }
}

#[test]
fn random_bytes_and_impossible_lengths_do_no_harm() {
    let (mut tcp, address, business_card) = end(0, &Options::default());
    let mut inbox = Inbox::default();
    let both = std::cell::RefCell::new((&mut tcp, &mut inbox));
    let bytes = proptest::collection::vec(any::<u8>(), 2..300);
    TestRunner::new(Config::with_cases(64))
        .run(&bytes, |bytes| {
            let (tcp, inbox) = &mut *both.borrow_mut();
            during(tcp, inbox, || {
                let mut socket = TcpStream::connect(address).unwrap();
                let _ = socket.write_all(&bytes);
                let _ = socket.shutdown(std::net::Shutdown::Write);
                assert_closed(socket);
            });
            Ok(())
        })
        .unwrap();
    for start in [[0, 0], [0xff, 0xff], [129, 0]] {
        during(&mut tcp, &mut inbox, || {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(&start).unwrap();
            assert_closed(socket);
        });
    }
    assert_alive(&mut tcp, &business_card, &mut inbox);
}

#[test]
fn a_wrong_secret_or_identity_gets_no_connection() {
    let (mut tcp, address, business_card) = end(0, &Options::default());
    let mut inbox = Inbox::default();
    let others = [
        (&[6; 32], hello(1)),
        (&SECRET, Hello { job: JOB + 1, ..hello(1) }),
        (&SECRET, Hello { to: Peer(2), ..hello(1) }),
        (&SECRET, hello(4)),
        (&SECRET, hello(u32::MAX)),
        (&SECRET, hello(0)),
    ];
    for (secret, hello) in others {
        let socket = during(&mut tcp, &mut inbox, || prove(address, secret, hello));
        assert!(socket.is_none(), "{hello:?}");
    }
    assert_alive(&mut tcp, &business_card, &mut inbox);
}

#[test]
fn a_peer_with_another_secret_is_given_up_with_the_reason() {
    let (mut tcp, _, business_card) = end(0, &Options::default());
    let options = Options { patience: Duration::ZERO, ..Options::default() };
    let (mut other, _) = Tcp::new(Peer(1), 4, JOB, [6; 32], options).unwrap();
    other.connect(Peer(0), &business_card).unwrap();
    let (mut inbox, mut lost) = (Inbox::default(), Inbox::default());
    until("the other gives up", || {
        let refused = other.send_short(Peer(0), &HEAD, &[]).unwrap_err();
        tcp.poll(&mut inbox);
        other.poll(&mut lost);
        refused == Refusal::Down
    });
    assert_eq!(lost.lost.len(), 1);
    assert!(lost.lost[0].1.contains("127.0.0.1:"), "{}", lost.lost[0].1);
    assert_alive(&mut tcp, &business_card, &mut inbox);
}

#[test]
fn silent_and_unfinished_connections_do_not_keep_others_out() {
    let options = Options { max_unproven: 8, ..Options::default() };
    let (mut tcp, address, business_card) = end(0, &options);
    let mut inbox = Inbox::default();
    let half = &Handshake::connect(&SECRET, hello(1)).unwrap().1[..20];
    let sockets: Vec<TcpStream> = (0..60)
        .map(|i| {
            let mut socket = TcpStream::connect(address).unwrap();
            if i % 2 == 0 {
                socket.write_all(half).unwrap();
            }
            tcp.poll(&mut inbox);
            socket
        })
        .collect();
    assert_alive(&mut tcp, &business_card, &mut inbox);
    // All but the youngest have been closed to make room.
    for socket in sockets.into_iter().take(50) {
        assert_closed(socket);
    }
}

#[test]
fn ten_thousand_connections_leave_nothing_behind() {
    let (mut tcp, address, business_card) = end(0, &Options::default());
    let mut inbox = Inbox::default();
    let opening = Handshake::connect(&SECRET, hello(1)).unwrap().1;
    let wrong = Handshake::connect(&[6; 32], hello(1)).unwrap().1;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let (mut open, mut most) = (std::collections::VecDeque::new(), 0);
    for number in 0..10_000usize {
        // Nobody waits for an answer, and some connections stay open.
        let mut socket = TcpStream::connect(address).unwrap();
        let said = match number % 100 {
            0 => &opening[..],
            1 => &wrong,
            other => [&opening[..20], b"GET / HTTP/1.0", &[]][other % 3],
        };
        let _ = socket.write_all(said);
        tcp.poll(&mut inbox);
        open.push_back(socket);
        if open.len() > 100 {
            open.pop_front();
        }
        if number.is_multiple_of(500) {
            most = most.max(descriptors());
        }
    }
    // Ours are 101; the listener's are those that are pending, for one stream or unproven.
    assert!(most < before + 101 + 64 + 16 + 64, "{most} descriptors, {before} before");
    assert_alive(&mut tcp, &business_card, &mut inbox);
}

#[test]
fn unproven_connections_have_a_deadline() {
    let options = Options { proof: Duration::from_millis(1), ..Options::default() };
    let (mut tcp, address, _) = end(0, &options);
    let mut inbox = Inbox::default();
    let opening = Handshake::connect(&SECRET, hello(1)).unwrap().1;
    during(&mut tcp, &mut inbox, || {
        for said in [&[][..], &opening[..7], &opening] {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(said).unwrap();
            assert_closed(socket);
        }
    });
    assert_eq!((inbox.lost, tcp.next_deadline()), (vec![], None));
}

#[test]
fn a_replayed_opening_does_not_displace_the_peer() {
    let (mut tcp, address, business_card) = end(0, &Options::default());
    let mut inbox = Inbox::default();
    let recorded = Handshake::connect(&SECRET, hello(1)).unwrap().1;
    let replay = |tcp: &mut Tcp, inbox: &mut Inbox| {
        during(tcp, inbox, || {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(&recorded).unwrap();
            read_message(&mut socket).expect("an answer");
            socket
        })
    };
    // As many are kept as there are addresses: one.
    for before in (0..20).map(|_| replay(&mut tcp, &mut inbox)).collect::<Vec<_>>().into_iter().rev().skip(1)
    {
        assert_closed(before);
    }
    let _before = replay(&mut tcp, &mut inbox);
    assert_alive(&mut tcp, &business_card, &mut inbox);
}

#[test]
fn a_replayed_opening_is_not_answered_while_its_stream_awaits_another_connection() {
    let (mut tcp, address, _) = end(0, &Options { resume: true, ..Options::default() });
    let mut inbox = Inbox::default();
    let first = hello(1);
    let (mut handshake, opening) = Handshake::connect(&SECRET, first).unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let mut ask = |tcp: &mut Tcp, message: &[u8], socket: &mut TcpStream| {
        during(tcp, &mut inbox, || {
            socket.write_all(message).unwrap();
            read_message(socket)
        })
    };
    let answer = ask(&mut tcp, &opening, &mut socket).expect("an answer");
    assert!(matches!(handshake.hear(&answer), Ok(Heard::Accepted)));
    let proof = handshake.prove(0).unwrap();
    ask(&mut tcp, &proof, &mut socket).expect("a confirmation");
    assert_eq!(tcp.connections(), 1);
    drop(socket);
    until("the break is noticed", || {
        tcp.poll(&mut Inbox::default());
        tcp.connections() == 0
    });
    let mut again = TcpStream::connect(address).unwrap();
    assert_eq!(ask(&mut tcp, &opening, &mut again), None, "a recorded opening");
    let next = Handshake::connect(&SECRET, Hello { attempt: 2, ..first }).unwrap().1;
    let mut again = TcpStream::connect(address).unwrap();
    ask(&mut tcp, &next, &mut again).expect("an answer to the next attempt");
}

#[test]
fn a_proven_peer_that_sends_an_impossible_frame_is_down() {
    let mut long = frame::prefix(&HEAD, 0);
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut unknown = frame::prefix(&HEAD, 0);
    unknown[4] = 200;
    for bytes in [long, unknown] {
        let (mut tcp, address, _) = end(0, &Options::default());
        let mut inbox = Inbox::default();
        let mut socket = during(&mut tcp, &mut inbox, || prove(address, &SECRET, hello(1))).unwrap();
        socket.write_all(&bytes).unwrap();
        until("the peer is down", || {
            tcp.poll(&mut inbox);
            !inbox.lost.is_empty()
        });
        let cause = format!("{} sent a frame of ", socket.local_addr().unwrap());
        assert!(inbox.lost.len() == 1 && inbox.lost[0].1.starts_with(&cause), "{:?}", inbox.lost);
        assert_closed(socket);
        assert_eq!(tcp.send_short(Peer(1), &HEAD, &[]), Err(Refusal::Down));
    }
}

#[test]
fn what_came_before_a_reset_or_the_end_arrives() {
    for reset in [false, true] {
        let (mut tcp, address, _) = end(0, &Options::default());
        let mut inbox = Inbox::default();
        let mut socket = during(&mut tcp, &mut inbox, || prove(address, &SECRET, hello(1))).unwrap();
        let whole = [&frame::prefix(&HEAD, 2)[..], b"hi"].concat();
        socket.write_all(&whole.repeat(1000)).unwrap();
        socket.write_all(&whole[..10]).unwrap();
        if reset {
            rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
        let name = socket.local_addr().unwrap().to_string();
        drop(socket);
        until("the peer is down", || {
            tcp.poll(&mut inbox);
            !inbox.lost.is_empty()
        });
        assert_eq!(tcp.poll(&mut inbox), 0);
        assert_eq!(inbox.frames.0.len(), 1000);
        assert!(inbox.lost.len() == 1 && inbox.lost[0].1.contains(&name), "{:?}", inbox.lost);
    }
}

/// A fabric whose peer has connected two streams by hand.
fn two_streams(inbox: &mut Inbox) -> (Tcp, [TcpStream; 2]) {
    let (mut tcp, address, _) = end(0, &Options { streams: 2, ..Options::default() });
    let mut stream =
        |stream| during(&mut tcp, inbox, || prove(address, &SECRET, Hello { stream, ..hello(1) }));
    let sockets = [stream(0), stream(1)].map(|socket| socket.expect("a stream"));
    assert!(stream(2).is_none(), "more streams than there are");
    (tcp, sockets)
}

#[test]
fn a_peer_is_down_when_one_of_its_streams_breaks() {
    let mut inbox = Inbox::default();
    let (mut tcp, [first, second]) = two_streams(&mut inbox);
    drop(second);
    until("the peer is down", || {
        tcp.poll(&mut inbox);
        !inbox.lost.is_empty()
    });
    assert!(inbox.lost.len() == 1 && inbox.lost[0].1.contains("without farewell"), "{:?}", inbox.lost);
    assert_eq!((tcp.send_short(Peer(1), &HEAD, &[]), tcp.connections()), (Err(Refusal::Down), 0));
    assert_closed(first);
}

#[test]
fn a_peer_has_left_when_all_its_streams_have_ended() {
    let mut inbox = Inbox::default();
    let (mut tcp, [mut first, mut second]) = two_streams(&mut inbox);
    first.write_all(&frame::BYE).unwrap();
    drop(first);
    until("the farewell is read", || {
        tcp.poll(&mut inbox);
        tcp.send_short(Peer(1), &HEAD, &[]) == Err(Refusal::Busy)
    });
    assert_eq!(inbox.lost, []);
    second.write_all(&frame::prefix(&HEAD, 0)).unwrap();
    second.write_all(&frame::BYE).unwrap();
    drop(second);
    until("the peer has left", || {
        tcp.poll(&mut inbox);
        !inbox.lost.is_empty()
    });
    assert_eq!(inbox.frames.0, [(Peer(1), vec![])]);
    assert!(inbox.lost.len() == 1 && inbox.lost[0].1.ends_with("it has left the job"), "{:?}", inbox.lost);
    assert_eq!(tcp.send_short(Peer(1), &HEAD, &[]), Err(Refusal::Down));
}

#[test]
fn a_second_connection_of_a_peer_is_refused() {
    let (mut tcp, address, _) = end(0, &Options::default());
    let mut inbox = Inbox::default();
    let mut socket = during(&mut tcp, &mut inbox, || prove(address, &SECRET, hello(1))).unwrap();
    assert!(during(&mut tcp, &mut inbox, || prove(address, &SECRET, hello(1))).is_none());
    socket.write_all(&frame::prefix(&HEAD, 0)).unwrap();
    until("the first connection still works", || {
        tcp.poll(&mut inbox);
        inbox.frames.0.len() == 1
    });
}
