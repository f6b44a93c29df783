//! What calls do when a device fails: the forms `try_...` return it as an error, the others end an attempt. On a simulated device.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use banyan_memory::SimulatedDevice;
use mpi::collective::SystemOperation;
use mpi::datatype::{AsDatatype, Buffer, BufferMut, Collection, Pointer, PointerMut, SystemDatatype};
use mpi::environment::Universe;
use mpi::traits::*;
use mpi::{Count, Error, ErrorClass, attempt};

/// Bytes that a buffered send takes besides its data.
const BSEND_OVERHEAD: usize = 512;

/// Numbers in memory of a device.
struct OnDevice(banyan_memory::Buffer);

impl OnDevice {
    fn new(device: &SimulatedDevice, numbers: &[i32]) -> OnDevice {
        let memory = device.alloc(size_of_val(numbers));
        memory.write(0, &numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>());
        OnDevice(memory)
    }
}

// SAFETY: the memory is there as long as the device.
unsafe impl Pointer for OnDevice {
    fn pointer(&self) -> *const c_void {
        self.0.address(0) as *const c_void
    }
}

// SAFETY: as above.
unsafe impl PointerMut for OnDevice {
    fn pointer_mut(&mut self) -> *mut c_void {
        self.0.address(0) as *mut c_void
    }
}

// SAFETY: so many fit into the memory.
unsafe impl Collection for OnDevice {
    fn count(&self) -> Count {
        (self.0.len() / size_of::<i32>()) as Count
    }
}

// SAFETY: they are of this type.
unsafe impl AsDatatype for OnDevice {
    type Out = SystemDatatype;

    fn as_datatype(&self) -> SystemDatatype {
        i32::equivalent_datatype()
    }
}

// SAFETY: as the parts.
unsafe impl Buffer for OnDevice {}
// SAFETY: as the parts.
unsafe impl BufferMut for OnDevice {}

/// The error of a call is that of the device.
fn of_device<T>(result: mpi::Result<T>) {
    let error: Error = result.map(drop).unwrap_err();
    assert!(error.class == ErrorClass::ERR_OTHER && error.what.contains("as it was told"), "{error}");
}

/// Runs a function on so many ranks with some numbers on a device, before it fails and afterwards.
fn before_and_after(ranks: u32, body: impl Fn(&mut Universe, &mut OnDevice, bool) + Sync) {
    let device = SimulatedDevice::new(8 << 20, 3);
    device.announce();
    Universe::simulated(ranks, |universe| {
        let numbers: Vec<i32> = (0..100_000).collect();
        for len in [1, numbers.len()] {
            body(universe, &mut OnDevice::new(&device, &numbers[..len]), true);
        }
        let mut more = [1, numbers.len()].map(|len| OnDevice::new(&device, &numbers[..len]));
        universe.world().barrier();
        device.fail();
        universe.world().barrier();
        for numbers in &mut more {
            body(universe, numbers, false);
        }
        // All else goes on.
        let (world, mut sum) = (universe.world(), 0);
        world.all_reduce_into(&1, &mut sum, SystemOperation::sum());
        world.this_process().send(&sum);
        assert_eq!(world.any_process().receive::<i32>().0, world.size());
    });
}

#[test]
fn a_send_to_oneself_returns_it() {
    before_and_after(1, |universe, numbers, good| {
        let world = universe.world();
        let (me, mut got) = (world.this_process(), vec![-1; numbers.elements() as usize]);
        let sent = mpi::request::scope(|scope| {
            let receive = me.immediate_receive_into(scope, &mut got[..]);
            let sent = me.try_send(&*numbers);
            if sent.is_ok() {
                receive.wait();
            }
            sent
        });
        match good {
            true => assert!(sent.is_ok() && got.last() == Some(&(got.len() as i32 - 1))),
            false => of_device(sent),
        }
    });
}

#[test]
fn a_send_that_leaves_at_once_and_a_buffered_one_return_it() {
    before_and_after(2, |universe, numbers, good| {
        let (world, len) = (universe.world(), numbers.elements() as usize);
        // Room for one message: one that has failed takes none.
        universe.set_buffer_size(4 * len + BSEND_OVERHEAD);
        let other = world.process_at_rank(1 - world.rank());
        let sends: [&dyn Fn() -> mpi::Result<()>; 4] = [
            &|| if len == 1 { other.try_send(numbers) } else { other.try_buffered_send(numbers) },
            &|| other.try_buffered_send_with_tag(numbers, 3),
            &|| attempt(|| other.buffered_send(numbers)),
            &|| attempt(|| if len == 1 { other.send(numbers) } else { other.buffered_send(numbers) }),
        ];
        for send in sends {
            match (good, send()) {
                (true, sent) => {
                    sent.unwrap();
                    assert_eq!(other.receive_vec::<i32>().0.last(), Some(&(len as i32 - 1)));
                    world.barrier();
                }
                (false, sent) => of_device(sent),
            }
        }
        if !good {
            // Where nobody attempts anything the rank would end.
            let panic = catch_unwind(AssertUnwindSafe(|| other.buffered_send(numbers)));
            assert!(panic.is_err());
        }
        world.barrier();
        universe.detach_buffer();
    });
}

#[test]
fn receives_and_collectives_return_it() {
    before_and_after(2, |universe, numbers, good| {
        let (world, len) = (universe.world(), numbers.elements() as usize);
        let other = world.process_at_rank(1 - world.rank());
        let host = vec![1; len];
        let received = mpi::request::scope(|scope| {
            let send = other.immediate_send_with_tag(scope, &host[..], 1);
            let received = other.try_receive_into_with_tag(numbers, 1);
            send.wait();
            received
        });
        let mut sums = vec![0; len];
        let summed = world.try_all_reduce_into(&*numbers, &mut sums[..], SystemOperation::sum());
        match good {
            true => assert!(received.is_ok() && summed.is_ok() && sums.iter().all(|sum| *sum == 2)),
            false => {
                of_device(received);
                summed.unwrap_err();
            }
        }
    });
}
