//! [`Flow`]: what a byte takes in messages of which several may be under way at a time. Pure: times come in.
//!
//! The messages of a window, and those both ways, are not over one after the other at an even pace: what waits for the memory of
//! the other process is over in bursts. So messages are measured in *stretches*, from the moment the first one can begin until
//! the last one is over. A message that is under way alone is a stretch. Both ways all time counts: of two processes that each copy
//! what they receive, one may do so while the other waits for its turn. So does all time since the message before where the receive waited already then: by
//! the ring a message is announced when those before it are there, and what its sender takes until then is a part of what it takes.

use crate::ways::{Traffic, Way, pace};

/// When both the announcement of a message and its receive were there, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ready {
    /// The receive did not come late.
    At(u64),
    /// The receive waited already when the message before it came: it counts from the end of that one.
    Follows,
    /// The receive came then, long after the announcement: the message counts only beside others that are under way.
    Late(u64),
    /// The time of this message says nothing of its way.
    Unknown,
}

/// Messages of one class, way and traffic that follow each other.
#[derive(Debug)]
pub(crate) struct Flow {
    of: (usize, Way, Traffic),
    /// From when on the stretch counts, ns.
    since: u64,
    /// When its last message was over, ns.
    over: u64,
    bytes: u64,
    messages: u32,
    /// Such messages that are over.
    passed: u32,
    /// With how many messages it counts if nothing was under way before it.
    alone: Option<u32>,
    /// Most messages that were under way together.
    pub(crate) window: u32,
}

impl Flow {
    /// Nothing before `now` counts.
    pub(crate) fn new(of: (usize, Way, Traffic), now: u64) -> Self {
        Self { of, since: now, over: now, bytes: 0, messages: 0, passed: 0, alone: None, window: 1 }
    }

    /// Nothing before `now` counts, but that messages which went by this way have left their memory where it leaves it.
    pub(crate) fn restart(&mut self, of: (usize, Way, Traffic), now: u64) {
        let passed = if of == self.of { self.passed } else { 0 };
        *self = Self { passed, ..Self::new(of, now) };
    }

    /// A message of `len` bytes is over; with it so many of the peer were `under_way`. Gives the time of a byte, ns, in the stretch that
    /// ended before it. The clock is read where the time makes a difference.
    pub(crate) fn over(
        &mut self,
        clock: impl FnOnce() -> u64,
        of: (usize, Way, Traffic),
        len: u64,
        ready: Ready,
        under_way: u32,
    ) -> Option<f64> {
        let (same, both) = (of == self.of, of.2 == Traffic::BothWays);
        self.window = self.window.max(under_way);
        let (window, pace) = (self.window, pace(of.0, of.2, self.window));
        if same && both && self.messages + 1 < pace.stretch {
            // In the middle of a stretch, and all time counts.
            (self.bytes, self.messages, self.passed) = (self.bytes + len, self.messages + 1, self.passed + 1);
            return None;
        }
        let now = clock();
        let (at, alone) = match ready {
            // What a process does between the messages that it receives may be to send its own.
            _ if both => (Some(0), None),
            Ready::Follows => (Some(0), None),
            Ready::At(at) => (Some(at), Some(1)),
            Ready::Late(at) => (Some(at), Some(2)),
            Ready::Unknown => (None, None),
        };
        let together = both || at.is_some_and(|at| at < self.over);
        let mut stretch = None;
        if !(same && together) || self.messages >= pace.stretch {
            // A rest of a window says little, as it depends on where its bursts end.
            let most = if both { pace.stretch } else { pace.stretch / 2 + 1 };
            let counts = self.messages >= self.alone.unwrap_or(most);
            let warm = self.messages == 1 || self.passed > pace.warm;
            if same && counts && warm {
                stretch = Some((self.over - self.since) as f64 / self.bytes as f64);
            }
            let (since, alone) = match at {
                Some(_) if together && same => (self.over, None),
                Some(at) if !together => (at, alone),
                _ => {
                    let passed = if same { self.passed + 1 } else { 0 };
                    *self = Self { passed, window, ..Self::new(of, now) };
                    return stretch;
                }
            };
            let passed = if same { self.passed } else { 0 };
            *self = Self { of, since, alone, passed, window, ..Self::new(of, now) };
        }
        (self.over, self.bytes, self.messages) = (now, self.bytes + len, self.messages + 1);
        self.passed += 1;
        stretch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: (usize, Way, Traffic) = (6, Way::Read, Traffic::OneWay);

    /// Windows of 22 messages are announced together and take 50 ns each, four of them over at a time.
    #[test]
    fn a_window_is_measured_in_stretches_though_it_ends_in_bursts() {
        for late in [false, true] {
            let mut flow = Flow::new(OF, 0);
            let mut times = Vec::new();
            for window in 1..=10 {
                let start = 10_000 * window;
                for message in 1..=22 {
                    let now = start + 200 * u64::div_ceil(message, 4);
                    let ready = if late { Ready::Late(start) } else { Ready::At(start) };
                    times.extend(flow.over(|| now, OF, 1 << 20, ready, 23 - message as u32));
                }
            }
            let wrong = times
                .iter()
                .filter(|time| !(4.0..6.7).contains(&(*time * 1e-1 * f64::from(1 << 20))))
                .count();
            assert!(times.len() >= 15 && wrong == 0, "{times:?}");
        }
    }

    #[test]
    fn one_message_at_a_time_counts_from_when_it_could_begin_unless_its_receive_came_late() {
        let mut flow = Flow::new(OF, 500);
        assert_eq!(flow.over(|| 700, OF, 100, Ready::At(600), 1), None);
        assert_eq!(flow.over(|| 950, OF, 100, Ready::Late(900), 1), Some(1.0));
        assert_eq!(flow.over(|| 1200, OF, 100, Ready::At(1000), 1), None);
        assert_eq!(flow.over(|| 1300, OF, 100, Ready::Unknown, 1), Some(2.0));
        assert_eq!(flow.over(|| 1500, OF, 100, Ready::At(1400), 1), None);
        // What another way left behind says nothing.
        let both = (6, Way::Both, Traffic::OneWay);
        assert_eq!(flow.over(|| 1600, both, 100, Ready::At(1450), 1), None);
        assert_eq!(flow.over(|| 1700, both, 100, Ready::At(1650), 1), None);
        assert_eq!(flow.over(|| 1800, both, 100, Ready::At(1750), 1), Some(0.5));
    }

    /// By the ring each message is announced when the one before it is over, however long its sender takes for it: where its receive waits, that
    /// counts. Only the first one of a window has a receive that came late.
    #[test]
    fn what_a_sender_takes_counts_where_receives_wait() {
        let ring = (6, Way::Ring, Traffic::Window);
        let mut flow = Flow::new(ring, 0);
        let mut times = Vec::new();
        for window in 1..=10 {
            let start = 10_000 * window;
            for message in 0..22 {
                let (announced, over) = (start + 100 * message, start + 100 * message + 20);
                let ready = if message == 0 { Ready::At(announced) } else { Ready::Follows };
                times.extend(flow.over(|| over, ring, 1 << 20, ready, 1));
            }
        }
        let wrong = times.iter().filter(|time| !(90.0..101.0).contains(&(*time * f64::from(1 << 20))));
        assert!(times.len() > 10 && wrong.count() == 0, "{times:?}");
    }

    /// A process receives all 16 messages of a window, 100 ns each, and then sends its own for as long: all of that counts.
    #[test]
    fn both_ways_what_is_between_the_messages_counts() {
        let read = (6, Way::Read, Traffic::BothWays);
        let mut flow = Flow::new(read, 0);
        let mut times = Vec::new();
        for window in 0..20 {
            for message in 1..=16 {
                let now = 3200 * window + 100 * message;
                times.extend(flow.over(|| now, read, 1 << 20, Ready::At(3200 * window), 17 - message as u32));
            }
        }
        assert!(times.len() > 15, "{times:?}");
        assert!(times.iter().all(|time| (time * f64::from(1 << 20) - 200.0).abs() < 15.0), "{times:?}");
    }

    /// Receives that fetch their messages while they are posted are all over at once, when the program waits for them.
    #[test]
    fn receives_that_come_late_and_are_over_together_count_from_the_first_one() {
        let both = (6, Way::Both, Traffic::OneWay);
        let mut flow = Flow::new(OF, 1000);
        let late = |message: u64| Ready::Late(2000 + 100 * message);
        let times: Vec<_> =
            (0..9).filter_map(|at| flow.over(|| 2800 + at, both, 4 << 20, late(at), 4)).collect();
        assert_eq!(times, [807.0 / f64::from(32 << 20)]);
    }
}
