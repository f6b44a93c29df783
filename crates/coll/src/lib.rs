//! Collectives as data: algorithms make schedules; an executor, a verifier and a simulator read them.
#![forbid(unsafe_code)]

mod algorithm;
mod algorithms;
mod call;
mod messenger;
mod schedule;
mod walk;
pub mod verify;

pub use algorithm::{ALL, Algorithm, Case, Cost, Needs, of_kind};
pub use call::{Call, Kind, Memory, Op, UserOp};
pub use messenger::{Fault, Key, Messenger, OpId, Published, Slots};
pub use schedule::{Blocks, Buf, Form, Round, Shape, Side, Span, Step, log2_down, log2_up};
