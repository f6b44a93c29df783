//! The fabric among processes that are not all its own, over loopback connections.

mod bursts;
mod candidates;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod contact;
mod cuts;
