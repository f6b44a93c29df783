//! Handover buffers: who pins them, and what becomes of them when somebody goes.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, Inbox, fresh, head};
use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};
use banyan_shm::{Shm, SingleCopy};
use banyan_transport::{Fabric, Handed, Handover, Peer, Port, Wake};

/// The memory of a device, and its driver.
fn device() -> (SimulatedDevice, Buffer) {
    let device = SimulatedDevice::new(64, 1);
    let memory = device.alloc(8);
    (device, memory)
}

/// Hands over one byte, and finds it.
fn hand_over(all: &mut [Shm], handover: &Handover, near: &Buffer) -> Buffer {
    all[0].hand_over(Peer(1), &head(0), handover, 1).expect("room for one frame");
    let mut inbox = Inbox::default();
    all[1].poll(&mut inbox);
    let handed = Handed::decode(&inbox.bodies[0]).expect("what was sent");
    all[1].handed(Peer(0), handed, near).expect("it was handed over")
}

#[test]
fn both_ends_pin_what_is_handed_over_for_as_long_as_they_are_there() {
    let mut all = fresh(2, SingleCopy::Auto);
    let [(one, near_one), (other, near_other)] = [device(), device()];
    for _ in 0..3 {
        let handover = all[0].handover(Peer(1), &near_one).expect("one is free");
        handover.memory.copy_from(0, &near_one, 0, 8);
        drop(hand_over(&mut all, &handover, &near_other));
        // The next one is the same, and is pinned.
        assert_eq!((handover.number, one.pinned(), other.pinned()), (0, 1, 1));
    }
    // A buffer keeps the memory, and what is pinned of it, though the fabric is gone.
    let handover = all[0].handover(Peer(1), &near_one).expect("one is free");
    drop(all);
    handover.memory.write(0, &[1; 8]);
    assert_eq!((one.pinned(), other.pinned()), (1, 0));
    drop(handover);
    assert_eq!(one.pinned(), 0);
}

#[test]
fn without_a_driver_that_pins_memory_is_handed_over_from_and_to_the_host_alone() {
    let mut all = fresh(2, SingleCopy::Auto);
    let (device, near) = device();
    device.fail();
    assert!(all[0].handover(Peer(1), &near).is_none());
    let handover = all[0].handover(Peer(1), &HeapBuffer::zeroed(1)).expect("the host pins nothing");
    let got = hand_over(&mut all, &handover, &near);
    assert_eq!((got.len(), device.pinned()), (1, 0), "its copies are slower");
}

#[test]
fn what_a_dead_peer_has_is_used_again_and_what_a_lost_one_has_is_not() {
    let mut all = fresh(2, SingleCopy::Auto);
    let near = HeapBuffer::zeroed(1);
    let handover = all[0].handover(Peer(1), &near).expect("one is free");
    let got = hand_over(&mut all, &handover, &near);
    drop(handover);
    assert!(!all[0].is_returned(Peer(1), 0));
    assert_eq!(all[0].handover(Peer(1), &near).expect("another one is free").number, 1);
    all[0].peer_died(Peer(1), "killed by signal 9");
    assert_eq!(all[0].handover(Peer(1), &near).expect("it is free").number, 0);
    drop(got);
}

#[test]
fn a_later_process_does_not_use_what_is_still_with_a_peer() {
    let memory = Shm::memory(2, None).expect("memory");
    let mut all = common::ranks(&memory, 2, SingleCopy::Auto);
    let near = HeapBuffer::zeroed(1);
    let handover = all[0].handover(Peer(1), &near).expect("one is free");
    let got = hand_over(&mut all, &handover, &near);
    drop((handover, all.remove(0)));
    let mut later = common::attach(&memory, 0, 2, SingleCopy::Auto);
    assert_eq!(later.handover(Peer(1), &near).expect("another one is free").number, 1);
    drop(got);
    assert_eq!(later.handover(Peer(1), &near).expect("it is free").number, 0);
}

#[test]
fn who_waits_for_memory_to_be_returned_is_woken() {
    let mut all = fresh(2, SingleCopy::Auto);
    let near = HeapBuffer::zeroed(1);
    for _ in 0..20 {
        let handover = all[0].handover(Peer(1), &near).expect("one is free");
        let got = hand_over(&mut all, &handover, &near);
        all[0].arm(Wake::Sleep);
        let start = Instant::now();
        let returns = thread::spawn(move || {
            thread::sleep(Duration::from_millis(2));
            drop(got);
        });
        while !all[0].is_returned(Peer(1), handover.number) {
            all[0].sleep(Some(start + Duration::from_secs(60)));
        }
        all[0].disarm();
        returns.join().expect("it ends");
        assert!(start.elapsed() < Duration::from_secs(30), "nobody has woken it");
    }
}
