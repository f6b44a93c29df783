//! Collectives as data: algorithms make schedules; an executor, a verifier and a simulator read them.
#![forbid(unsafe_code)]

mod call;
mod messenger;

pub use call::{Call, Kind, Memory, Op, UserOp};
pub use messenger::{Fault, Key, Messenger, OpId, Published, Slots};
