//! The suite that every fabric passes. `cargo xtask rdma` runs it where there are RDMA devices.
#![cfg(feature = "verbs")]

mod common;

use std::time::Duration;

use banyan_transport::conformance::{down, gone_before_contact, introduced};
use common::{ends, on_two_rails};

banyan_transport::conformance!(verbs, |n| ends(n, Duration::from_secs(60)));

banyan_transport::conformance!(two_rails, |n| on_two_rails(n, Duration::from_secs(60)));

#[test]
fn a_peer_that_goes_is_reported_once() {
    down(&|n| introduced(ends(n, Duration::from_secs(60))), |ends| drop(ends.pop()));
}

#[test]
fn a_peer_that_is_gone_already_is_reported() {
    gone_before_contact(&|n| introduced(ends(n, Duration::from_millis(200))), |ends| drop(ends.pop()));
}
