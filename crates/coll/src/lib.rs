//! Collectives as data: an algorithm makes a schedule; an executor, a verifier and a simulator read it.
//!
//! ```text
//!              Call ──► Arranged ──► Shape ─┐
//!    Facts, Tuning ──► choose ──► Algorithm ┴► rounds of steps ─┬─► Execution   (real data; driven by the runtime)
//!                                                               ├─► verify      (symbols: is it right?)
//!                                                               └─► simulate    (virtual clock: how long?)
//! ```
//!
//! * An [`Algorithm`] is a row of [`ALL`]: pure functions from a [`Shape`] to a schedule. It knows no
//!   addresses, no types, no transports.
//! * A schedule is rounds of [`Step`]s over [`Span`]s of named buffers. Rounds are made one at a time, when
//!   they are needed.
//! * An [`Execution`] carries a schedule out. It never waits: the runtime calls [`Execution::advance`] with a
//!   [`Messenger`], again and again, and runs user functions that it hands out as a [`Job`], with no lock held.
//! * [`Tuning`] chooses, in one place, by a cost model or by the user's word, and can
//!   [explain](Tuning::explain) it.
//!
//! # Invariants
//!
//! * **Ranks agree.** Shape (but for the rank itself), choice and number of rounds follow from what all ranks
//!   know alike. What only one rank knows (layout of its memory, whether it is in place) changes how it carries
//!   out a step, never which step it is: what a message cannot use as it lies is packed on the way.
//! * **Calls that differ never meet.** A call's tag, 16 bits of what all ranks must say alike of it ([`About`]) and of what
//!   they did before, is in the stamps of what is published and in the keys of messages. The first thing that a rank waits for
//!   from another one, in each collective, is a publication or a message. Who waits for long asks whom it waits for ([`Note`]).
//! * **Messages meet** by (sequence number, tag, key, source). The key is the round's number, or a segment's. Both
//!   ends know the packed length; a message of no bytes is not sent, unless it is a signal.
//! * **Pairs agree.** Where not all ranks know all sizes, the two ends of a block do: it goes through a [`Pocket`] of the
//!   sender's slot or by message according to its own length, whatever the others do. The algorithm itself is chosen
//!   without sizes.
//! * **Sends may be synchronous.** No schedule relies on a buffer anywhere.
//! * **Steps of a round have no order**, so none writes what another one touches.
//! * **Send is never written.** In place it lies inside Recv, and a schedule reads no unit of it after that
//!   unit of Recv was written to.
//! * **Operands keep the order of ranks** unless the operation commutes (MPI 5.0, 6.9.1). In an allreduce every
//!   element is combined in one way only, so that all ranks get the same bits, and get them again in the next run.
//! * **Slots.** A bank is written again only when all ranks have released what it held; a rank works on one
//!   collective of the slots at a time, in the order of stamps, and releases each stamp once. Memory that was
//!   published as a region goes back to the user only when all have released it.
//!
//! * **Two groups are one row of ranks.** Of an intercommunicator the group of the lower process comes first
//!   ([`Shape::split`]); its algorithms ([`BETWEEN`]) are others, and need messages alone. Ranks beside a root know neither
//!   root nor counts, and take no part.
//!
//! The verifier checks all of these, for every row, for every rank count up to 64 (`tests/verifier.rs`).
//!
//! # Adding an algorithm
//!
//! One file (or a constant in its family's file) in `algorithms/`, with the functions of an [`Algorithm`] and
//! its cost, and one row in [`ALL`]. Tuner, overrides, explain, verifier, simulator and tests all iterate the
//! list: the new row is proved, executed on real data, compared with its own cost formula, and chosen where
//! that says it is the quickest.
//!
//! # How a runtime uses it
//!
//! ```text
//! let mut plans = PlanCache::new(rank, facts);              // one per communicator
//! let mut execution = start(call, &mut plans, &tuning);  // in the same order at all ranks
//! loop {
//!     match execution.advance(&mut messenger) {
//!         Advance::Done(result) => break,
//!         Advance::Pending => poll_and_wait(),
//!         Advance::UserOp(job) => { job.run(); execution.completed(job) }
//!     }
//! }
//! plans.recycle(execution);
//! ```
#![forbid(unsafe_code)]

mod algorithm;
mod algorithms;
mod arrange;
mod call;
mod execute;
mod ledger;
mod messenger;
mod overrides;
mod place;
mod plan;
mod repeat;
mod schedule;
mod sections;
pub mod simulate;
mod tuner;
pub mod verify;
mod walk;

pub use algorithm::{ALL, Algorithm, BETWEEN, Case, Cost, Needs, between, of_kind};
pub use call::{Call, Kind, Memory, Op, UserOp};
pub use execute::{Advance, Execution, Job};
pub use ledger::{About, Difference, Heard, Ledger, Note, Said, difference};
pub use messenger::{Fault, Key, Messenger, OpId, Published, Slots, order_of};
pub use overrides::{BadOverride, Overrides, kind_named};
pub use plan::{Attempt, Facts, PlanCache, SlotFacts, attempt, repeat, start};
pub use repeat::{Asked, Given, Lists};
pub use schedule::{Blocks, Buf, Form, Merge, Pocket, Round, Shape, Side, Span, Step, log2_down, log2_up};
pub use sections::Chunks;
pub use tuner::{Candidate, Explanation, Model, Tuning, parse_question};
