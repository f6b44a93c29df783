//! More elements than 31 bits count, in little memory: of a type without bytes, and of datatypes whose elements lie over each other.

use std::sync::LazyLock;

use crate::common::everywhere;
use mpi::collective::SystemOperation;
use mpi::datatype::{DatatypeRef, MutView, UserDatatype, View};
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use mpi::{ErrorClass, attempt};

/// More than there are numbers of 32 bits.
const MANY: usize = 5_000_000_000;

/// A value without bytes.
#[derive(Clone, Copy)]
struct Nothing;

// SAFETY: neither the type nor the datatype has any bytes.
unsafe impl Equivalence for Nothing {
    type Out = DatatypeRef<'static>;

    fn equivalent_datatype() -> Self::Out {
        static DATATYPE: LazyLock<UserDatatype> =
            LazyLock::new(|| UserDatatype::contiguous(0, &u8::equivalent_datatype()));
        DATATYPE.as_ref()
    }
}

#[test]
fn five_thousand_million_elements_go_everywhere() {
    everywhere("main::large::five_thousand_million_elements_go_everywhere", &[1, 2, 3], |universe| {
        let world = universe.world();
        let (size, rank) = (world.size(), world.rank());
        let (mut given, mut got) = ([Nothing; MANY], [Nothing; MANY]);
        assert_eq!(given.elements(), MANY as u64);
        let error = attempt(|| given.count()).unwrap_err();
        assert!(error.class == ErrorClass::ERR_COUNT && error.to_string().contains("5000000000 elements"));

        let target = world.process_at_rank((rank + 1) % size);
        let source = world.process_at_rank((rank + size - 1) % size);
        target.send(&given);
        assert_eq!(source.receive_into(&mut got).elements(u8::equivalent_datatype()), Some(0));
        target.send(&given[..]);
        assert_eq!(source.receive_vec::<Nothing>().0.len(), 0, "no bytes tell how many there were");
        let mut send = target.send_init(&mut given);
        scope(|scope| {
            let received = source.immediate_receive_into(scope, &mut got);
            send.start(scope).wait();
            received.wait();
        });
        world.process_at_rank(0).broadcast_into(&mut got);
        world.all_gather_into(&[Nothing; MANY / 5][..], &mut got[..MANY / 5 * size as usize]);
        world.all_to_all_into(&[Nothing; MANY][..], &mut got[..]);
        assert_eq!(world.pack(&got).len(), 0);
    });
}

/// So many times the same block of numbers.
fn again_and_again(times: i32, block: i32) -> UserDatatype {
    UserDatatype::heterogeneous_vector(times, block, 0, &u8::equivalent_datatype())
}

#[mpi::test(ranks = 1)]
fn a_message_of_more_than_31_bits_arrives(world: SimpleCommunicator) {
    const BLOCK: usize = 1 << 20;
    let ty = again_and_again(1 << 11, BLOCK as i32);
    let this = world.this_process();
    let pattern: Vec<u8> = (0..BLOCK).map(|at| (at % 251) as u8).collect();
    let mut got = vec![0; BLOCK];
    // SAFETY: the elements lie within one block.
    let given = unsafe { View::with_count_and_datatype(&pattern[..], 1, &ty) };
    // SAFETY: as above.
    let mut room = unsafe { MutView::with_count_and_datatype(&mut got[..], 1, &ty) };
    let status = scope(|scope| {
        let sent = this.immediate_send(scope, &given);
        let status = this.receive_into(&mut room);
        sent.wait();
        status
    });
    assert!(got == pattern);
    assert_eq!(status.elements(u8::equivalent_datatype()), Some(1 << 31));
    assert_eq!(status.count(u8::equivalent_datatype()), -32766, "MPI_UNDEFINED: a Count cannot tell");
}

#[test]
fn more_than_64_bits_are_an_error() {
    everywhere("main::large::more_than_64_bits_are_an_error", &[1, 2], |universe| {
        let world = universe.world();
        let this = world.this_process();
        let ty = again_and_again(1 << 30, 1);
        let ty = UserDatatype::heterogeneous_vector(1 << 30, 1, 0, &ty);
        let numbers = [0u8; 16];
        // SAFETY: an element reaches over a byte.
        let view = unsafe { View::with_count_and_datatype(&numbers, 16, &ty) };
        let mut got = numbers;
        // SAFETY: as above.
        let mut room = unsafe { MutView::with_count_and_datatype(&mut got, 16, &ty) };
        let errors = [
            attempt(|| this.send(&view)),
            attempt(|| scope(|scope| drop(this.immediate_send(scope, &view)))),
            attempt(|| {
                this.receive_into(&mut room);
            }),
            attempt(|| drop(this.receive_init(&mut room))),
            attempt(|| this.broadcast_into(&mut room)),
            attempt(|| world.all_gather_into(&view, &mut room)),
            attempt(|| world.all_reduce_into(&view, &mut room, SystemOperation::sum())),
            attempt(|| drop(world.pack(&view))),
        ];
        for (at, error) in errors.into_iter().enumerate() {
            let error = error.expect_err("2^64 bytes");
            assert!(error.to_string().contains("64 bits") || at == 6, "{at}: {error}");
        }
    });
}
