//! Collectives as data: algorithms make schedules; an executor, a verifier and a simulator read them.
#![forbid(unsafe_code)]

mod algorithm;
mod algorithms;
mod arrange;
mod call;
mod execute;
mod messenger;
mod overrides;
mod place;
mod plan;
mod schedule;
pub mod simulate;
mod tuner;
pub mod verify;
mod walk;

pub use algorithm::{ALL, Algorithm, Case, Cost, Needs, of_kind};
pub use call::{Call, Kind, Memory, Op, UserOp};
pub use execute::{Advance, Execution, Job};
pub use messenger::{Fault, Key, Messenger, OpId, Published, Slots};
pub use overrides::{BadOverride, Overrides, kind_named};
pub use plan::{Facts, PlanCache, SlotFacts, start};
pub use schedule::{Blocks, Buf, Form, Round, Shape, Side, Span, Step, log2_down, log2_up};
pub use tuner::{Candidate, Explanation, Model, Tuning, parse_question};
