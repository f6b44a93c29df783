//! Collectives as data: an algorithm makes a schedule; an executor, a verifier and a simulator read it.
//!
//! ```text
//!                    Call ──► bind ──► Shape ─┐
//!    Topology, Tuning ──► choose ──► Algorithm ┴► rounds of steps ─┬─► Execution   (real data; driven by the runtime)
//!                                                                  ├─► verify      (symbols: is it right?)
//!                                                                  └─► simulate    (virtual clock: how long?)
//! ```
//!
//! * An [`Algorithm`] is a row of [`all`] of them: pure functions from a [`Shape`] to a schedule. It knows no
//!   addresses, no types, no transports.
//! * A schedule is rounds of [`Step`]s over [`Span`]s of named buffers. Rounds are made one at a time, when
//!   they are needed.
//! * An [`Execution`] carries a schedule out. It never waits: the runtime calls [`Execution::advance`] with a
//!   [`Messenger`], again and again. A reduction by a function of the user's is handed to the runtime as a [`UserReduction`],
//!   which the runtime runs with no lock held.
//! * [`Tuning`] chooses the algorithm, in one place, by a cost model or by the user's word, and can
//!   [explain](Tuning::explain) the choice.
//!
//! # Invariants
//!
//! * **Looks.** Of calls that all ranks wait for, and that take long enough, [`PlanCache::measured`] compares on the calls themselves by which
//!   algorithms they go best. Ranks count these calls alike, and decide by sums of what all of them have measured ([`Postponed`]).
//! * **Ranks agree.** Shape (but for the rank itself), choice and number of rounds follow from what all ranks know
//!   alike. What only one rank knows (the layout of its memory, whether the call is in place) changes how that rank
//!   carries out a step, never which step it is: data that a message cannot use as they lie are packed on the way.
//! * **Calls that differ never meet.** A call's tag is 16 bits made of what all ranks must say alike of the call
//!   ([`About`]) and of what they did before. It is part of the sequence numbers that data are published under, and of
//!   the keys of messages. The first thing that a rank waits for from another one, in each collective, is a publication
//!   or a message. A rank that waits for long asks the ranks that it waits for ([`Note`]).
//! * **Messages meet** by (number of the call, tag, key, source). The key is the number of the round, or of a segment.
//!   Both ends know the packed length; a message of no bytes is not sent, unless it is a signal.
//! * **Pairs agree.** Where not all ranks know all sizes, the two ends of a block do: the block goes through a
//!   [`SubBuffer`] in the sender's CICO buffer, or by message, according to its own length, whatever other pairs do.
//!   The algorithm itself is chosen without sizes.
//! * **Sends may be synchronous.** No schedule relies on messages being buffered.
//! * **Steps of a round have no order**, so no step writes what another step of its round touches.
//! * **The send buffer is never written.** In place it lies inside the receive buffer, and a schedule reads no unit of
//!   it after that unit of the receive buffer was written to.
//! * **Operands keep the order of ranks** unless the operation commutes (MPI 5.0, 6.9.1). In an allreduce every
//!   element is combined in one way only, so that all ranks get the same bits, and get them again in the next run.
//! * **CICO buffers.** A cell is written again only when all ranks have acknowledged what it held. A rank works on one
//!   collective in shared memory at a time, in the order of sequence numbers, and acknowledges each sequence number
//!   once. A range of user memory that a rank exposed goes back to the user only when all ranks have acknowledged it.
//! * **The two groups of an intercommunicator are numbered as one row of ranks**, the group of the lower process first
//!   ([`Shape::split`]). Intercommunicators have algorithms of their own ([`BETWEEN`]), which need messages alone. In
//!   the root's group the other ranks know neither root nor counts, and take no part.
//!
//! The verifier checks all of these, for every row, for every rank count up to 64 (`tests/verifier`).
//!
//! # Adding an algorithm
//!
//! One file (or a constant in its family's file) in `algorithms/`, with the functions of an [`Algorithm`] and
//! its cost, as a row of its family's table. Tuner, overrides, explain, verifier, simulator and tests all iterate the
//! list: the new row is proved, executed on real data, compared with its own cost formula, and chosen where
//! the formula says that it is the quickest.
//!
//! # How a runtime uses it
//!
//! ```text
//! let mut plans = PlanCache::new(rank, topology);        // one per communicator
//! let mut execution = start(call, &mut plans, &tuning);  // in the same order at all ranks
//! loop {
//!     match execution.advance(&mut messenger) {
//!         Advance::Done(result) => break,
//!         Advance::Pending => poll_and_wait(),
//!         Advance::UserOp(reduction) => { reduction.run(); execution.completed(reduction) }
//!     }
//! }
//! plans.recycle(execution);
//! ```
#![forbid(unsafe_code)]

mod algorithm;
mod algorithms;
mod bind;
mod cache;
mod call;
#[cfg(feature = "conformance")]
pub mod conformance;
mod execute;
mod explain;
mod lanes;
mod ledger;
mod lockstep;
mod looks;
mod messenger;
mod model;
mod overrides;
mod ring_order;
mod schedule;
mod sections;
mod segments;
mod shape;
mod signature;
pub mod simulate;
mod stages;
mod topology;
mod tuner;
pub mod verify;
mod view;

pub use algorithm::{Algorithm, BETWEEN, Case, Cost, Needs, all, of_kind};
pub use cache::{Attempt, PlanCache, Postponed, begin, replay, start};
pub use call::{Call, Kind, Op, Operand, UserOp};
pub use execute::{Advance, Execution, UserReduction};
pub use explain::{Candidate, Explanation, parse_question};
pub use ledger::{About, Difference, Heard, Ledger, Note, Said, difference};
pub use looks::{Due, Found};
pub use messenger::{Fault, Key, Messenger, OpId, Published, SharedBuffers, order_of};
pub use model::{Link, Model};
pub use overrides::Overrides;
pub use ring_order::RingOrder;
pub use schedule::{Buf, Form, Merge, Round, Side, Span, Step, SubBuffer};
pub use sections::Chunks;
pub use segments::Products;
pub use shape::{Blocks, Shape, log2_down, log2_up};
pub use signature::{ArgKind, Lists, Signature};
pub use stages::{Composition, Stage, StageBuf, StageGroup};
pub use topology::{Groups, LEVELS, Location, NodeRanks, Nodes, Order, SharedCaps, Topology};
pub use tuner::{Staged, Tuning};
