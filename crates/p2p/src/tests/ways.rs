//! [`Ways`] on made-up machines, under seeds: it finds the better way in spite of noise, and what looks cost is bounded.

use std::collections::VecDeque;

use banyan_topo::{KnownWay, Profile};
use banyan_transport::random::Random;

use crate::ways::{Arrived, CLASSES, Found, MARGIN, PRICE, Preference, Traffic, Way, Ways, class};
use crate::wire::Cause;

/// A machine: ns of a message by a way.
type Machine = fn(Way, u64, Traffic) -> f64;

/// As an EPYC: the ring is best but for the longest messages.
fn ring_is_best(way: Way, len: u64, _: Traffic) -> f64 {
    let bytes = len as f64;
    match way {
        Way::Ring => 300.0 + bytes / if len >= 4 << 20 { 10.0 } else { 50.0 },
        Way::Read => 900.0 + bytes / 12.0,
        Way::Write => 900.0 + bytes / 11.0,
        Way::Both => 1200.0 + bytes / 22.0,
        Way::NonTemporal => 300.0 + bytes / if len >= 4 << 20 { 8.0 } else { 30.0 },
    }
}

/// As a Xeon: single copies are better, from both ends from 64 KiB on, and by the receiver if messages go both ways.
fn single_copy_is_best(way: Way, len: u64, traffic: Traffic) -> f64 {
    let bytes = len as f64;
    match way {
        Way::Ring => 300.0 + bytes / 13.0,
        Way::Read => 500.0 + bytes / 25.0,
        Way::Write => 700.0 + bytes / 25.0,
        Way::Both if traffic == Traffic::BothWays => 1200.0 + bytes / 20.0,
        Way::Both => 900.0 + bytes / 55.0,
        Way::NonTemporal => 300.0 + bytes / 11.0,
    }
}

/// As an EPYC with small caches and windows of fresh memory: copies past them are better from 64 KiB on.
fn nontemporal_is_best(way: Way, len: u64, _: Traffic) -> f64 {
    let bytes = len as f64;
    match way {
        Way::Ring if len < 64 << 10 => 300.0 + bytes / 20.0,
        Way::Ring => 300.0 + bytes / 6.5,
        Way::Read | Way::Write => 900.0 + bytes / 4.5,
        Way::Both => 1200.0 + bytes / 6.7,
        Way::NonTemporal => 300.0 + bytes / 17.0,
    }
}

/// By what things take on a machine with this profile, between cores that share a cache.
fn by_profile(profile: Profile, way: Way, len: u64) -> f64 {
    1e9 * profile.way(way, 2, len as f64)
}

fn named(name: &str) -> Profile {
    Profile::named(name).expect("a built-in profile")
}

fn epyc(way: Way, len: u64, _: Traffic) -> f64 {
    by_profile(named("epyc"), way, len)
}

fn xeon(way: Way, len: u64, _: Traffic) -> f64 {
    by_profile(named("xeon"), way, len)
}

/// A Xeon in a sandbox that looks at each system call.
fn sandbox(way: Way, len: u64, _: Traffic) -> f64 {
    by_profile(named("xeon").with([("system_call", 50e-6)]), way, len)
}

fn best(machine: Machine, len: u64, traffic: Traffic) -> f64 {
    Way::ALL.into_iter().map(|way| machine(way, len, traffic)).fold(f64::INFINITY, f64::min)
}

/// A pair of processes: what the receiver has told travels for as long as `depth` messages are under way.
struct Pair {
    ways: Ways,
    random: Random,
    told: [Way; CLASSES],
    news: VecDeque<(usize, usize, Way)>,
    sent: usize,
    depth: usize,
    cause: Cause,
}

impl Pair {
    fn new(seed: u64, depth: usize) -> Self {
        Self::knowing(&[], seed, depth)
    }

    fn knowing(known: &[(KnownWay, Found)], seed: u64, depth: usize) -> Self {
        println!("seed {seed}, depth {depth}");
        let (random, ways) = (Random::new(seed), Ways::new(known));
        let told = std::array::from_fn(|class| ways.first(class).way);
        Self { ways, random, told, news: VecDeque::new(), sent: 0, depth, cause: Cause::Long }
    }

    /// What a job hands on, as the next one on the same machine gets it.
    fn learnt(&self) -> Vec<(KnownWay, Found)> {
        let here = self.ways.known().filter(|(.., found)| *found == Found::Here);
        here.map(|(class, traffic, way, times, _)| {
            let times = times.map(|time| Some(time? * 1e-9));
            (KnownWay { distance: 2, class, traffic, way, times }, Found::Before)
        })
        .collect()
    }

    /// One message; gives its way and what it takes but for noise. Times are off by up to 5 %; one in 16 is of a process that had
    /// no core for a while, one in `late` does not count.
    fn message(&mut self, machine: Machine, len: u64, traffic: Traffic, late: u32) -> (Way, f64) {
        let way = self.told[class(len).expect("a long message")];
        let true_time = machine(way, len, traffic);
        let mut time = true_time * (0.95 + self.random.below(1000) as f64 * 1e-4);
        if self.random.once_in(16) {
            time += 1e3 * self.random.below(5000) as f64;
        }
        let counts = !self.random.once_in(late);
        let traffic = self.ways.traffic(class(len).expect("a long message"), traffic, self.cause);
        let time = counts.then_some(time / len as f64);
        let arrived = Arrived { len, traffic, by: way, time, cause: self.cause };
        if let Some((class, Preference { way, .. })) = self.ways.over(&arrived, true, 1) {
            self.news.push_back((self.sent + self.depth, class, way));
        }
        self.sent += 1;
        while let Some((_, class, way)) = self.news.pop_front_if(|(due, ..)| *due <= self.sent) {
            self.told[class] = way;
        }
        (way, true_time)
    }

    /// So many messages; gives what they took, as a multiple of what the best way takes, and the way that such messages take in the end, but
    /// for looks.
    fn run(&mut self, machine: Machine, len: u64, traffic: Traffic, messages: u32) -> (f64, Way) {
        let took: f64 = (0..messages).map(|_| self.message(machine, len, traffic, 10).1).sum();
        let is_it = |&(at, of, ..): &(usize, Traffic, Way, [Option<f64>; 5], Found)| {
            Some(at) == class(len) && of == traffic
        };
        let way = self.ways.known().find(is_it).map_or(Way::Ring, |(_, _, way, ..)| way);
        (took / (f64::from(messages) * best(machine, len, traffic)), way)
    }
}

const LENGTHS: [u64; 6] = [16 << 10, 40_000, 100_000, 256 << 10, 1 << 20, 5 << 20];
const TRAFFIC: [Traffic; 3] = Traffic::ALL;

#[test]
fn the_better_way_is_found_and_looks_cost_little() {
    let machines = [ring_is_best as Machine, single_copy_is_best, nontemporal_is_best];
    for (at, machine) in machines.into_iter().enumerate() {
        for (seed, len) in (1..).zip(LENGTHS) {
            for (traffic, depth) in
                [0, 64, 8].into_iter().flat_map(|depth| TRAFFIC.map(|traffic| (traffic, depth)))
            {
                let mut pair = Pair::new(100 * at as u64 + seed, depth);
                let start = pair.run(machine, len, traffic, 2000).0;
                let (later, way) = pair.run(machine, len, traffic, 30_000);
                // The way that is taken may be worse than the best one by the margin.
                let time = machine(way, len, traffic) / best(machine, len, traffic);
                println!("machine {at}, {len} bytes, {traffic:?}: {way:?}, {start:.3}, later {later:.4}");
                // The noise of two times comes on top, and once in a while an alarm that is nothing but noise.
                assert!(time < 1.04 / MARGIN, "{way:?}");
                assert!(later < time * (1.0 + 2.2 * PRICE), "{later}");
            }
        }
    }
}

/// Profiles of unlike machines in the place of one another: other ways are found.
#[test]
fn ways_follow_from_the_profile() {
    // Lengths at which the best way is better than the others by more than what is no reason to change.
    let found = |machine: Machine| {
        [48 << 10, 64 << 10, 1 << 20].map(|len| {
            let mut pair = Pair::new(len, 8);
            pair.run(machine, len, Traffic::OneWay, 2000);
            let way = pair.run(machine, len, Traffic::OneWay, 2000).1;
            println!(
                "{len} bytes: {}, {:?} us",
                way.name(),
                Way::ALL.map(|way| machine(way, len, Traffic::OneWay) / 1e3)
            );
            way
        })
    };
    assert_eq!(found(epyc), [Way::Ring, Way::Ring, Way::Both]);
    assert_eq!(found(xeon), [Way::Both; 3]);
    assert_eq!(found(sandbox), [Way::Ring; 3]);
}

/// A job that nothing was learnt for begins with what the profile says is best, although all times are others; where it is wrong that shows.
#[test]
fn a_job_begins_with_the_best_way_of_the_profile() {
    let expected = |profile: Profile| profile.ways(2).map(|row| (row, Found::NotYet)).collect::<Vec<_>>();
    let slower: Machine = |way, len, traffic| 2.4 * xeon(way, len, traffic);
    let other: Machine = |way, len, traffic| 8.0 * xeon(way, len, traffic);
    for (seed, len) in (1..).zip([256 << 10, 1 << 20, 4 << 20]) {
        let mut pair = Pair::knowing(&expected(named("xeon")), seed, 0);
        let (took, way) = pair.run(slower, len, Traffic::OneWay, 16);
        assert!(way == Way::Both && took < 1.001, "{way:?}, {took}");
        let took = pair.run(slower, len, Traffic::OneWay, 200).0;
        assert!(took < 1.3, "{took}");
        let (took, way) = pair.run(slower, len, Traffic::OneWay, 3000);
        assert!(way == Way::Both && took < 1.0 + 4.0 * PRICE, "{way:?}, {took}");
        // As if it were an EPYC.
        let mut misled = Pair::knowing(&expected(named("epyc")), seed, 0);
        let way = misled.run(slower, len, Traffic::OneWay, 1000).1;
        let time = slower(way, len, Traffic::OneWay) / best(slower, len, Traffic::OneWay);
        assert!(time < 1.04 / MARGIN, "{way:?}");
        // So far off that it shows at once; a ring has to be warm.
        let mut misled = Pair::knowing(&expected(named("epyc")), seed, 0);
        let way = misled.run(other, len, Traffic::OneWay, (4 << 20) / len as u32 + 50).1;
        let time = other(way, len, Traffic::OneWay) / best(other, len, Traffic::OneWay);
        assert!(time < 1.04 / MARGIN, "{way:?}");
    }
}

/// Where cores are much farther from each other than the profile has them, single copies are better by so much that a few messages show it.
#[test]
fn a_way_that_is_clearly_better_is_taken_without_more_ado() {
    let expected = |profile: Profile| profile.ways(2).map(|row| (row, Found::NotYet)).collect::<Vec<_>>();
    let far: Machine = |way, len, _| len as f64 / [4.5, 7.1, 5.0, 6.0, 5.0][way as usize];
    for (seed, len) in (1..).zip([64 << 10, 256 << 10, 1 << 20]) {
        for (profile, traffic) in ["epyc", "zen"].into_iter().flat_map(|name| TRAFFIC.map(|of| (name, of))) {
            let mut pair = Pair::knowing(&expected(named(profile)), seed, 0);
            // The ring gets warm and the first look is waited for; then five or four messages by the ring, and not many by single copies.
            let messages = 32 + (4 << 20) / len as u32 + 64 + 10;
            let way = pair.run(far, len, traffic, messages).1;
            assert!(!way.in_frames(), "{len} bytes, {traffic:?}: {way:?}");
        }
    }
}

/// What shorter messages have found decides how longer ones begin, whatever the profile says of these: few messages are enough to gain by it.
#[test]
fn a_class_begins_with_what_one_nearby_has_found() {
    let expected = |profile: Profile| profile.ways(2).map(|row| (row, Found::NotYet)).collect::<Vec<_>>();
    // As a Xeon of model 207, of which the profile has all single copies alike.
    let alike: Machine = |way, len, _| len as f64 / [5.0, 4.2, 6.6, 8.2, 4.0][way as usize];
    // As an EPYC of family 23 whose cores are far from each other, of which the profile has the ring for the best of long messages.
    let far: Machine = |way, len, _| len as f64 / [4.5, 7.1, 5.0, 11.0, 5.0][way as usize];
    let slow_copies: Machine = |way, len, _| len as f64 / [8.0, 4.0, 4.0, 4.0, 7.0][way as usize];
    let cases = [
        ("xeon", alike, Way::Both),
        ("zen", far, Way::Both),
        ("epyc", far, Way::Both),
        ("xeon", slow_copies, Way::Ring),
    ];
    for (profile, machine, found) in cases {
        for (seed, traffic) in (1..6).flat_map(|seed| TRAFFIC.map(|traffic| (seed, traffic))) {
            let mut pair = Pair::knowing(&expected(named(profile)), seed, 0);
            assert_eq!(pair.run(machine, 1 << 20, traffic, 3000).1, found, "{profile}, {traffic:?}");
            // The last one is as far from the first as what is found reaches.
            for len in [2 << 20, 4 << 20, 8 << 20] {
                let (took, way) = pair.run(machine, len, traffic, 20);
                assert!(way == found && took < 1.25, "{profile}, {len} bytes, {traffic:?}: {way:?}, {took}");
            }
        }
    }
}

/// Messages that go whole stay in the ring although single copies are somewhat quicker. Longer ones, which take half as long again there, do not wait for
/// their first look as long as behind a guess that counts.
#[test]
fn what_goes_whole_is_no_guess_for_longer_messages() {
    let expected: Vec<_> = named("xeon").ways(2).map(|row| (row, Found::NotYet)).collect();
    let machine: Machine = |way, len, traffic| match way {
        Way::Ring if len > 16 << 10 => 1.5 * xeon(way, len, traffic),
        _ => xeon(way, len, traffic),
    };
    for seed in 1..6 {
        let mut pair = Pair::knowing(&expected, seed, 0);
        pair.cause = Cause::Way;
        assert_eq!(pair.run(machine, 16 << 10, Traffic::OneWay, 3000).1, Way::Ring);
        pair.cause = Cause::Long;
        let took = pair.run(machine, 32 << 10, Traffic::OneWay, 320).0;
        assert!(took < 1.5, "{took}");
    }
}

/// What one size has found is no more than a guess for another: looks follow, and find what is better there.
#[test]
fn a_wrong_guess_is_found_out() {
    let expected: Vec<_> = named("epyc").ways(2).map(|row| (row, Found::NotYet)).collect();
    let machine: Machine = |way, len, traffic| match len >= 1 << 20 {
        true => single_copy_is_best(way, len, traffic),
        false => len as f64 / [8.0, 4.0, 4.0, 4.0, 7.0][way as usize],
    };
    for (seed, traffic) in (1..6).flat_map(|seed| TRAFFIC.map(|traffic| (seed, traffic))) {
        let mut pair = Pair::knowing(&expected, seed, 0);
        assert_eq!(pair.run(machine, 512 << 10, traffic, 3000).1, Way::Ring);
        let way = pair.run(machine, 1 << 20, traffic, 2000).1;
        let time = machine(way, 1 << 20, traffic) / best(machine, 1 << 20, traffic);
        assert!(time < 1.04 / MARGIN, "{traffic:?}: {way:?}");
    }
}

/// A guess that is far off shows at once: messages that are too long for swap blocks took 3.4 times as long by the ring where cores are far.
#[test]
fn a_guess_that_is_far_off_is_left_at_once() {
    let expected: Vec<_> = named("zen3").ways(2).map(|row| (row, Found::NotYet)).collect();
    let machine: Machine = |way, len, _| {
        let ring = if len > 64 << 10 { 3.4 } else { 10.0 };
        len as f64 / [ring, 4.0, 5.0, 7.0, ring][way as usize]
    };
    for seed in 1..6 {
        let mut pair = Pair::knowing(&expected, seed, 0);
        assert_eq!(pair.run(machine, 64 << 10, Traffic::OneWay, 3000).1, Way::Ring);
        // The ring gets warm, and each way that is compared takes five messages.
        let len = 128 << 10;
        let way = pair.run(machine, len, Traffic::OneWay, 32 + 60).1;
        assert!(
            machine(way, len, Traffic::OneWay) < 1.04 / MARGIN * best(machine, len, Traffic::OneWay),
            "{way:?}"
        );
    }
}

/// A message takes the best way unless there is a look: outside of looks none is slower by more than margin and noise.
#[test]
fn outside_of_looks_no_message_is_slow() {
    for seed in 1..20 {
        let mut pair = Pair::new(seed, 0);
        let len = LENGTHS[seed as usize % LENGTHS.len()];
        let machine: Machine = if seed % 2 == 0 { ring_is_best } else { single_copy_is_best };
        pair.run(machine, len, Traffic::OneWay, 200);
        let (mut slow, messages) = (0.0, 20_000);
        for _ in 0..messages {
            let looked = pair.ways.is_looking(len);
            let (_, time) = pair.message(machine, len, Traffic::OneWay, 10);
            let ratio = time / best(machine, len, Traffic::OneWay);
            assert!(looked || ratio < 1.1 / MARGIN, "{ratio}");
            slow += if looked { (ratio - 1.0).max(0.0) } else { 0.0 };
        }
        assert!(slow < 2.0 * PRICE * f64::from(messages), "looks cost {slow} messages");
    }
}

#[test]
fn a_machine_that_changes_its_mind_is_followed() {
    for seed in 1..10 {
        let mut pair = Pair::new(seed, 4);
        let (len, traffic) = (1 << 20, Traffic::OneWay);
        let ways = [ring_is_best as Machine, single_copy_is_best, ring_is_best].map(|machine| {
            pair.run(machine, len, traffic, 20_000);
            pair.run(machine, len, traffic, 200).1
        });
        assert_eq!(ways, [Way::Ring, Way::Both, Way::Ring]);
    }
}

/// As an EPYC in its slow state, in which lines go from one core to another at a tenth of their speed.
fn ring_is_slow(way: Way, len: u64, traffic: Traffic) -> f64 {
    ring_is_best(way, len, traffic) * if way == Way::Ring { 10.0 } else { 1.3 }
}

/// A job that begins with what one before it has kept does not take a way for long that has become slow.
#[test]
fn a_way_that_became_slow_is_left_at_once() {
    for (seed, len) in (1..).zip(LENGTHS) {
        for (traffic, depth) in TRAFFIC.into_iter().flat_map(|traffic| [0, 8].map(|depth| (traffic, depth))) {
            let mut pair = Pair::new(seed, depth);
            pair.run(ring_is_best, len, traffic, 5000);
            let mut next = Pair::knowing(&pair.learnt(), seed, depth);
            // The first ones warm the ring, and make the kind of traffic known.
            let warm = 32 + (4 << 20) / len as u32;
            next.run(ring_is_best, len, traffic, warm);
            next.run(ring_is_slow, len, traffic, 60 + 8 * depth as u32);
            let (_, way) = next.run(ring_is_slow, len, traffic, 1);
            let time = ring_is_slow(way, len, traffic) / best(ring_is_slow, len, traffic);
            assert!(time < 1.04 / MARGIN, "{way:?}");
        }
    }
}

/// Where all ways are slow for a while, again and again, looks find nothing, and still cost little.
#[test]
fn alarms_in_vain_cost_little() {
    for seed in 1..20 {
        let mut pair = Pair::new(seed, 0);
        let len = LENGTHS[seed as usize % LENGTHS.len()];
        let traffic = Traffic::OneWay;
        let machine: Machine = if seed % 2 == 0 { ring_is_best } else { single_copy_is_best };
        let slow: Machine = match seed % 2 == 0 {
            true => |way, len, traffic| 4.0 * ring_is_best(way, len, traffic),
            false => |way, len, traffic| 4.0 * single_copy_is_best(way, len, traffic),
        };
        pair.run(machine, len, traffic, 2000);
        let (mut lost, mut looked, messages) = (0.0, 0, 20_000);
        for at in 0..messages {
            let now = if at % 100 < 50 { machine } else { slow };
            looked += u32::from(pair.ways.is_looking(len));
            let (_, time) = pair.message(now, len, traffic, 10);
            lost += time / best(now, len, traffic) - 1.0;
        }
        println!("{len} bytes: looks {looked}, lost {:.4}", lost / f64::from(messages));
        assert!(lost < 4.0 * PRICE * f64::from(messages), "{lost}");
    }
}

/// The next job on a machine begins with what was best for the one before, and hands on nothing that it has not seen itself. On another
/// machine it is misled, and finds out.
#[test]
fn what_an_earlier_job_found_is_the_first_guess() {
    for (seed, len) in (1..).zip(LENGTHS) {
        for traffic in TRAFFIC {
            let mut pair = Pair::new(seed, 8);
            assert_eq!(pair.learnt(), []);
            pair.run(single_copy_is_best, len, traffic, 5000);
            let (_, way) = pair.run(single_copy_is_best, len, traffic, 100);
            let learnt = pair.learnt();
            assert!(learnt.iter().any(|(row, _)| row.traffic == traffic && row.way == way), "{learnt:?}");
            let begun = |machine| {
                let mut next = Pair::knowing(&learnt, seed, 8);
                next.run(machine, len, traffic, 12);
                assert_eq!(next.learnt(), []);
                next
            };
            let mut next = begun(single_copy_is_best);
            let (took, next_way) = next.run(single_copy_is_best, len, traffic, 150);
            assert_eq!(way, next_way);
            assert!(took < 1.04 / MARGIN, "{took}");
            let mut misled = begun(ring_is_best);
            misled.run(ring_is_best, len, traffic, 20_000);
            let (_, way) = misled.run(ring_is_best, len, traffic, 1);
            let time = ring_is_best(way, len, traffic) / best(ring_is_best, len, traffic);
            assert!(time < 1.04 / MARGIN, "{way:?}");
        }
    }
}

#[test]
fn traffic_has_ways_of_its_own() {
    let mut pair = Pair::new(5, 0);
    let (machine, len) = (single_copy_is_best as Machine, 256 << 10);
    for _ in 0..20 {
        for traffic in TRAFFIC {
            pair.run(machine, len, traffic, 300);
        }
    }
    let ways = TRAFFIC.map(|traffic| {
        pair.run(machine, len, traffic, 40);
        pair.run(machine, len, traffic, 1).1
    });
    assert_eq!(ways, [Way::Both, Way::Both, Way::Read]);
    // Single messages of another kind between them change nothing.
    for _ in 0..1000 {
        assert_eq!(pair.ways.traffic(4, Traffic::OneWay, Cause::Long), Traffic::BothWays);
        pair.message(machine, len, Traffic::BothWays, 10);
    }
}

/// Where all receives come late no look ends with a choice, and each ends soon.
#[test]
fn late_receives_leave_things_as_they_are() {
    let mut pair = Pair::new(9, 2);
    let mut others = 0;
    for _ in 0..10_000 {
        others += u32::from(pair.message(single_copy_is_best, 1 << 20, Traffic::OneWay, 1).0 != Way::Ring);
    }
    assert_eq!(others, 0);
}

#[test]
fn a_refused_way_is_not_taken() {
    let mut pair = Pair::new(3, 0);
    let len = 1 << 20;
    assert_eq!(pair.run(single_copy_is_best, len, Traffic::OneWay, 5000).1, Way::Both);
    pair.ways.refuse(Way::Both);
    pair.ways.refuse(Way::Write);
    pair.message(single_copy_is_best, len, Traffic::OneWay, 10);
    for _ in 0..5000 {
        let (way, _) = pair.message(single_copy_is_best, len, Traffic::OneWay, 10);
        assert!(way.in_frames() || way == Way::Read, "{way:?}");
    }
    assert_eq!(pair.run(single_copy_is_best, len, Traffic::OneWay, 10).1, Way::Read);
}
