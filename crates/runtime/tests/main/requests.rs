//! Requests that are dropped: the user has their memory back, and no peer is harmed. One process that sends to itself.

use std::sync::Arc;

use banyan_datatype::Data;
use banyan_memory::{Buffer, HeapBuffer};
use banyan_runtime::{Borrowed, Comm, Dest, Outcome, Runtime, SendMode, Source, Started, Threads};

/// What the user writes to memory that the library has given back.
const MINE: u8 = 0x5a;
const TO_SELF: Dest = Dest::Rank(0);
const FROM_SELF: Source = Source::Rank(0);

fn alone() -> (Arc<Runtime>, Arc<Comm>) {
    let rt = Runtime::open(Threads::Multiple, None).unwrap();
    let world = rt.world().unwrap();
    (rt, world)
}

fn pending(started: Started<Borrowed<'_>>) -> Borrowed<'_> {
    match started {
        Started::Pending(request) => request,
        Started::Done(outcome) => panic!("over at once: {outcome:?}"),
    }
}

fn finish(started: Started<Borrowed<'_>>) -> Outcome {
    match started {
        Started::Pending(request) => request.wait(),
        Started::Done(outcome) => outcome,
    }
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes);
    bytes
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_receive_that_is_dropped_is_taken_back() {
    let (rt, world) = alone();
    for len in [8, 1_000_000] {
        let (mine, other) = (HeapBuffer::copy_of(&vec![MINE; len]), HeapBuffer::zeroed(len));
        drop(pending(world.irecv(&Data::bytes(mine.clone()), FROM_SELF, Some(1)).unwrap()));
        let again = world.recv_init(&Data::bytes(mine.clone()), Source::Any, None).unwrap();
        again.start().unwrap();
        drop(again);
        let source = Data::bytes(HeapBuffer::copy_of(&message(len)));
        let sent = world.isend(&source, TO_SELF, 1, SendMode::Standard).unwrap();
        assert_eq!(world.recv(&Data::bytes(other.clone()), FROM_SELF, Some(1)).error, None);
        assert_eq!(finish(sent).error, None);
        assert_eq!(bytes(&other), message(len));
        assert_eq!(bytes(&mine), vec![MINE; len]);
    }
    rt.close(&world).unwrap();
}

#[test]
fn a_send_that_is_dropped_goes_on_from_a_copy() {
    let (rt, world) = alone();
    for (len, mode) in [(8, SendMode::Sync), (1_000_000, SendMode::Standard), (1_000_000, SendMode::Sync)] {
        for persistent in [false, true] {
            let (source, target) = (HeapBuffer::copy_of(&message(len)), HeapBuffer::zeroed(len));
            let data = Data::bytes(source.clone());
            if persistent {
                let send = world.send_init(&data, TO_SELF, 2, mode).unwrap();
                send.start().unwrap();
            } else {
                drop(pending(world.isend(&data, TO_SELF, 2, mode).unwrap()));
            }
            source.write(0, &vec![MINE; len]);
            let received = world.recv(&Data::bytes(target.clone()), Source::Any, None);
            assert_eq!((received.status.source(), received.status.tag()), (Source::Rank(0), Some(2)));
            assert_eq!(bytes(&target), message(len), "{len} {mode:?} persistent: {persistent}");
        }
    }
    rt.close(&world).unwrap();
}

#[test]
fn a_request_may_hold_the_runtime_and_outlive_its_communicator() {
    let (rt, world) = alone();
    let (source, target) = (HeapBuffer::copy_of(&message(100)), HeapBuffer::zeroed(100));
    let other = world.dup().unwrap();
    let received = pending(other.irecv(&Data::bytes(target.clone()), FROM_SELF, None).unwrap()).hold();
    assert_eq!(received.test(), None);
    other.send(&Data::bytes(source), TO_SELF, 7, SendMode::Standard).unwrap();
    drop(other);
    assert_eq!(received.wait().status.tag(), Some(7));
    assert_eq!(bytes(&target), message(100));
    rt.close(&world).unwrap();
}

#[test]
fn what_replaces_a_message_does_not_change_it() {
    let (rt, world) = alone();
    for len in [8, 1_000_000] {
        let (first, second) = (HeapBuffer::copy_of(&message(len)), HeapBuffer::copy_of(&vec![MINE; len]));
        let (a, b) = (Data::bytes(first.clone()), Data::bytes(second.clone()));
        let got = world.isendrecv((&a, TO_SELF, 1), (&a, FROM_SELF, Some(2))).unwrap();
        assert_eq!(world.sendrecv_replace(&b, (TO_SELF, 2), (FROM_SELF, Some(1))).error, None);
        assert_eq!(finish(got).error, None);
        assert_eq!((bytes(&first), bytes(&second)), (vec![MINE; len], message(len)));
    }
    rt.close(&world).unwrap();
}
