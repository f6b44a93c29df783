//! The shared buffers that the tests of this crate stand on keep what those of real machines do.

use crate::world::{Net, Port};
use banyan_coll::conformance::shared_buffers;
use banyan_memory::HeapBuffer;

#[test]
fn those_in_one_thread() {
    for (seed, single_copy) in [(1, true), (2, true), (3, false)] {
        shared_buffers(|ranks| {
            let mut net = Net::new(ranks, seed, 4096, single_copy);
            (net.scratch, net.differ) = (HeapBuffer::zeroed(1 << 16), true);
            Box::new(move |rank, f| f(&mut Port { net: &mut net, rank }))
        });
    }
}
