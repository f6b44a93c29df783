//! Sleeps: an arrival ends each of them, and so does the deadline.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::{Inbox, Outbox, PATIENCE, some_length, until};
use crate::random::Random;
use crate::{Fabric, Peer, Wake};

/// Two threads bounce one frame, each sleeping until it comes: no thread sleeps on after an arrival.
pub fn sleep_misses_nothing<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>) {
    bounce(make, Wake::Sleep);
}

/// Two threads bounce one frame, each sleeping on its fabric's descriptor until it comes.
pub fn a_sleep_on_the_descriptor_misses_nothing<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>) {
    bounce(make, Wake::Descriptor);
}

fn bounce<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>, wake: Wake) {
    const BOUNCES: u32 = 1000;
    let ends = make(2);
    std::thread::scope(|scope| {
        for (me, mut end) in ends.into_iter().enumerate() {
            scope.spawn(move || {
                let (mut out, mut inbox) = (Outbox::new(2, 8), Inbox::default());
                let mut random = Random::new(me as u64);
                for turn in 0..BOUNCES {
                    if me == 0 || turn > 0 {
                        until("a bounce", || {
                            let sent = out.send(&mut end, 1 - me, 8, true).is_ok();
                            end.poll(&mut inbox);
                            sent
                        });
                        until("a frame leaves", || {
                            end.unsent().then(|| end.poll(&mut inbox));
                            !end.unsent()
                        });
                    }
                    (0..random.below(300)).for_each(|_| std::hint::spin_loop());
                    sleep_for_frame(&mut end, &mut inbox, (1 - me, turn + 1), wake);
                }
                if me == 1 {
                    until("the last bounce", || out.send(&mut end, 0, 8, true).is_ok());
                    until("the last frame leaves", || {
                        end.poll(&mut inbox);
                        !end.unsent()
                    });
                }
            });
        }
    });
}

/// Sleeps until so many frames have come from a peer.
fn sleep_for_frame(end: &mut impl Fabric, inbox: &mut Inbox, (from, frames): (usize, u32), wake: Wake) {
    let start = Instant::now();
    let descriptor = end.descriptor().expect("a descriptor");
    while inbox.from(from) < frames {
        end.arm(wake);
        if end.poll(inbox) == 0 {
            nap(end, &descriptor, wake);
        }
        end.disarm();
        end.poll(inbox);
        assert!(start.elapsed() < PATIENCE, "frame {frames} was slept through");
    }
}

/// Endpoints that poll only when something wakes them exchange frames of all lengths, beginning with the first contact: room for what
/// was refused, bytes that have not left, and moments at which a fabric wants to be polled end a sleep as well as frames do.
pub fn polls_only_when_woken<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>) {
    const ENDS: usize = 3;
    for wake in [Wake::Sleep, Wake::Descriptor] {
        let ends = make(ENDS);
        std::thread::scope(|scope| {
            let drowsy = |(me, end)| scope.spawn(move || exchange_drowsily(me, end, ENDS, wake));
            let threads: Vec<_> = ends.into_iter().enumerate().map(drowsy).collect();
            // No endpoint goes before all are through.
            let _ends: Vec<F> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        });
    }
}

fn exchange_drowsily<F: Fabric>(me: usize, mut end: F, ends: usize, wake: Wake) -> F {
    const FRAMES: u32 = 100;
    let others: Vec<usize> = (0..ends).filter(|&other| other != me).collect();
    let (mut out, mut inbox) = (Outbox::new(ends, 11), Inbox::default());
    let mut random = Random::new(me as u64);
    let descriptor = end.descriptor().expect("a descriptor");
    let through = |end: &F, out: &Outbox, inbox: &Inbox| {
        !end.unsent() && others.iter().all(|&to| out.next[to] == FRAMES && inbox.from(to) == FRAMES)
    };
    while !through(&end, &out, &inbox) {
        end.arm(wake);
        let mut events = end.poll(&mut inbox);
        for &to in &others {
            let max = end.caps(Peer(to as u32)).max_bcopy;
            while out.next[to] < FRAMES {
                let len = if random.once_in(2) { max } else { some_length(&mut random, max) };
                if out.send(&mut end, to, len, true).is_err() {
                    break;
                }
                events += 1;
            }
        }
        if events == 0 {
            nap(&mut end, &descriptor, wake);
        }
        end.disarm();
    }
    // From here on only what it owes its peers wakes it, by a deadline.
    let mut awake = true;
    while awake {
        end.arm(wake);
        if end.poll(&mut inbox) == 0 {
            awake = end.next_deadline().is_some();
            awake.then(|| nap(&mut end, &descriptor, wake));
        }
        end.disarm();
    }
    end
}

/// Sleeps, after arming and a poll that found nothing, until something happens.
pub(super) fn nap(end: &mut impl Fabric, descriptor: &OwnedFd, wake: Wake) {
    let start = Instant::now();
    let patience = start + PATIENCE;
    let deadline = end.next_deadline().map_or(patience, |at| at.min(patience));
    match wake {
        Wake::Sleep => end.sleep(Some(deadline)),
        Wake::Descriptor if end.has_news() => {}
        Wake::Descriptor => wait_readable(descriptor, deadline),
    }
    assert!(start.elapsed() < PATIENCE, "nothing has ended a sleep");
}

fn wait_readable(descriptor: &OwnedFd, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let _ = poll(&mut [PollFd::new(descriptor, PollFlags::IN)], left.try_into().ok().as_ref());
}

/// A sleep without arrivals ends, at the latest, at its deadline.
pub fn sleep_ends_at_the_deadline<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let mut ends = make(2);
    let mut inbox = Inbox::default();
    let deadline = Instant::now() + Duration::from_millis(20);
    while Instant::now() < deadline {
        ends[0].arm(Wake::Sleep);
        if ends[0].poll(&mut inbox) == 0 {
            ends[0].sleep(Some(deadline));
        }
        ends[0].disarm();
    }
    ends[0].arm(Wake::Sleep);
    ends[0].sleep(Some(deadline));
    ends[0].disarm();
    assert!(deadline.elapsed() < PATIENCE, "the sleep went on after its deadline");
}
