//! Memory of requests that were given up: nothing is written to it, nothing is read from it, and no other request is harmed.

use super::*;

/// What the user writes to memory that the library has given back.
const MINE: u8 = 0x5a;

fn reuse(data: &Data) {
    let memory = data.buffer();
    memory.write(memory.lo(), &vec![MINE; memory.len()]);
}

fn is_mine(data: &Data) -> bool {
    let memory = data.buffer();
    let mut bytes = vec![0; memory.len()];
    memory.read(memory.lo(), &mut bytes);
    bytes.iter().all(|&byte| byte == MINE)
}

/// A message of some length between two ends over some network, and some turns before it is given up.
struct Case {
    world: World,
    random: Random,
    sent: Vec<u8>,
    scattered: bool,
    keyed: bool,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut random = Random::new(seed);
        let options = any_network(|n| random.below(n));
        let config = Config { choice: choice(random.below(CHOICES)), ..Config::new(1 << 20, 2) };
        let world = World::new(2, random.word(), options, config);
        let len = [8, 300, 5000, 40_000, 400_000][random.below(5)];
        let sent = pattern(seed, len);
        let (scattered, keyed) = (random.once_in(3), random.once_in(2));
        Case { world, random, sent, scattered, keyed }
    }

    /// Memory with the message in it.
    fn source(&self) -> Data {
        if self.scattered { holey_with(&self.sent) } else { filled(&self.sent) }
    }

    fn target(&self) -> Data {
        if self.scattered { holey(self.sent.len()) } else { room(self.sent.len()) }
    }

    fn send(&mut self, data: &Data) -> Started {
        if !self.keyed {
            return self.world.send(0, 1, 5, Mode::Standard, data);
        }
        let End { p2p, port } = &mut self.world.ends[0];
        let started = p2p.send_keyed(port, Peer(1), 1, 77, data);
        settled(p2p, started, data)
    }

    fn recv(&mut self, data: &Data) -> Started {
        if !self.keyed {
            return self.world.recv(1, Some(0), Some(5), data);
        }
        let End { p2p, port } = &mut self.world.ends[1];
        p2p.recv_keyed(port, Peer(0), 1, 77, data)
    }

    fn some_turns(&mut self) {
        let turns = [0, 1, 3, 10, 60, 200][self.random.below(6)];
        (0..self.random.below(turns + 1)).for_each(|_| self.world.turn());
    }

    fn abandon(&mut self, at: usize, id: ReqId) {
        let End { p2p, port } = &mut self.world.ends[at];
        p2p.abandon(port, id);
    }

    /// No request is left, and the two can still talk.
    fn finish(mut self, seed: u64) {
        let (hello, heard) = (filled(b"hello"), room(5));
        let received = self.world.recv(1, Some(0), Some(6), &heard);
        let sent = self.world.send(0, 1, 6, Mode::Sync, &hello);
        assert_eq!(self.world.wait(1, received).fault, None, "seed {seed}");
        assert_eq!(self.world.wait(0, sent).fault, None, "seed {seed}");
        assert_eq!(contents(&heard, 5), b"hello");
        self.world.settle();
        for end in &self.world.ends {
            assert_eq!(end.p2p.waits().next(), None, "seed {seed}");
        }
    }
}

#[test]
fn nothing_is_written_to_the_memory_of_a_receive_that_was_given_up() {
    let mut in_the_middle = 0;
    for seed in 0..1500 {
        let mut case = Case::new(seed);
        let (source, target) = (case.source(), case.target());
        let sent_first = case.random.once_in(2);
        let sent = sent_first.then(|| case.send(&source));
        if sent_first {
            case.some_turns();
        }
        let Started::Pending(id) = case.recv(&target) else { continue };
        let sent = sent.unwrap_or_else(|| case.send(&source));
        case.some_turns();
        let waits = case.world.ends[1].p2p.waits().find(|wait| wait.id == id);
        let matched = waits.is_none_or(|wait| wait.state.contains("matched"));
        in_the_middle += u32::from(matched);
        case.abandon(1, id);
        reuse(&target);
        if !matched && !case.keyed {
            // Another receive gets the message.
            let other = case.target();
            let started = case.recv(&other);
            assert_eq!(case.world.wait(1, started).fault, None, "seed {seed}");
            assert_eq!(contents(&other, case.sent.len()), case.sent, "seed {seed}");
        }
        assert_eq!(case.world.wait(0, sent).fault, None, "seed {seed}");
        case.world.settle();
        assert!(is_mine(&target), "seed {seed}: something was written after the receive was given up");
        case.finish(seed);
    }
    assert!(in_the_middle > 80, "only {in_the_middle} were matched");
}

#[test]
fn a_message_whose_send_was_given_up_arrives_as_it_was() {
    let mut under_way = 0;
    for seed in 0..1500 {
        let mut case = Case::new(seed);
        let (source, target) = (case.source(), case.target());
        let posted_first = case.random.once_in(2);
        let received = posted_first.then(|| case.recv(&target));
        let Started::Pending(id) = case.send(&source) else { continue };
        case.some_turns();
        let wait = case.world.ends[0].p2p.waits().find(|wait| wait.id == id);
        let left = wait.is_none_or(|wait| wait.state != "send: waits for room in the fabric");
        let dropped = case.random.once_in(2);
        if dropped {
            let End { p2p, port } = &mut case.world.ends[0];
            p2p.disown(port, id);
        } else {
            case.abandon(0, id);
        }
        reuse(&source);
        if !left && !dropped {
            // The message was never announced: the receive takes another one.
            let again = case.source();
            case.send(&again);
        }
        under_way += u32::from(left);
        let received = received.unwrap_or_else(|| case.recv(&target));
        assert_eq!(case.world.wait(1, received).fault, None, "seed {seed}");
        assert_eq!(contents(&target, case.sent.len()), case.sent, "seed {seed}");
        case.world.settle();
        if left {
            assert!(is_mine(&source));
        }
        case.finish(seed);
    }
    assert!(under_way > 80, "only {under_way} were under way");
}

#[test]
fn memory_named_for_a_body_is_not_named_after_the_receive_is_given_up() {
    for keyed in [false, true] {
        let mut case = Case { keyed, ..Case::new(1) };
        case.sent = pattern(1, 5000);
        let target = room(5000);
        let id = pending(case.recv(&target));
        let head = match keyed {
            true => crate::wire::keyed(crate::wire::Kind::Eager, 1, 77),
            false => crate::wire::tagged(crate::wire::Kind::Eager, 1, 5, 0),
        };
        let p2p = &mut case.world.ends[1].p2p;
        assert!(banyan_transport::Sink::landing(p2p, Peer(0), &head, 5000).is_some());
        case.abandon(1, id);
        reuse(&target);
        let p2p = &mut case.world.ends[1].p2p;
        assert!(banyan_transport::Sink::landing(p2p, Peer(0), &head, 5000).is_none());
        banyan_transport::Sink::landed(p2p, Peer(0), &head, 5000);
        assert!(is_mine(&target));
        assert_eq!(p2p.waits().next(), None);
    }
}

#[test]
fn a_send_is_over_when_the_fabric_has_told_or_was_asked_for_its_memory() {
    for peer_is_judged in [false, true] {
        let options = Options { holds: true, get: OneSided::Off, ..Options::default() };
        let mut world = World::new(2, 5, options, Config::new(1 << 20, 2));
        let sent = pattern(1, 40_000);
        let (source, target) = (filled(&sent), room(sent.len()));
        let received = pending(world.recv(1, Some(0), Some(5), &target));
        let id = pending(world.send(0, 1, 5, Mode::Standard, &source));
        let waits = |world: &World| world.ends[0].p2p.wait_of(id).map(|wait| wait.state);
        world.run(|world| waits(world) == Some("send: waits until its last data have left"));
        if peer_is_judged {
            let End { p2p, port } = &mut world.ends[0];
            p2p.peer_down(Peer(1), "judged by the test");
            assert!(!p2p.is_done(id), "the fabric still has the memory");
            p2p.progress(port);
        } else {
            world.ends[0].turn();
        }
        let outcome = world.ends[0].p2p.test(id).expect("the memory is free");
        assert_eq!((outcome.bytes, outcome.fault), (40_000, None), "all had left before");
        reuse(&source);
        world.run(|world| world.ends[1].p2p.is_done(received));
        assert_eq!(contents(&target, sent.len()), sent);
    }
}
