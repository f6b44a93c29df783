//! Ends for tests on the RDMA devices of this machine: each uses one of them in turn, as if it were on a host of its own.

use std::time::Duration;

use banyan_rdma::{Options, Rdma};
use banyan_transport::Peer;

/// `n` ends that do not know each other, with their business cards.
pub(crate) fn ends(n: usize, patience: Duration) -> Vec<(Rdma, Vec<u8>)> {
    let devices = banyan_rdma::devices();
    assert!(!devices.is_empty(), "no RDMA device here: cargo xtask rdma");
    let make = |me: u32| {
        let options = Options { device: devices[me as usize % devices.len()].clone(), patience };
        Rdma::new(Peer(me), n as u32, 77, [5; 32], &options).expect("a fabric")
    };
    (0..n as u32).map(make).collect()
}
