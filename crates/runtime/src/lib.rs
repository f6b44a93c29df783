//! MPI objects and their semantics: communicators, groups, requests, progress and waiting.
//!
//! A [`Runtime`] is an instance of MPI: it can be opened, closed and opened again. Its moving parts are the
//! engine, behind the engine lock, which is a real lock only under MPI_THREAD_MULTIPLE; the one place that waits is
//! `Runtime::wait_for`. No function of the user (error handler, reduction, attribute, generalized request) is
//! called while the engine lock is held.
#![forbid(unsafe_code)]

mod attempt;
mod attr;
mod boot;
mod bsend;
mod business_cards;
mod bypass;
mod cart;
mod coll;
mod coll_state;
mod collective;
mod comm;
mod completion;
mod context;
mod creation;
mod engine;
mod enqueue;
mod errcode;
mod errhandler;
mod error;
mod exchange;
mod failures;
mod gpu;
mod group;
mod info;
mod launcher;
mod long;
mod loopback;
mod message;
mod messenger;
mod notes;
mod p2p;
mod ports;
mod request;
mod running;
mod runtime;
mod slab;
mod slow;
mod stateful;
mod status;
mod subsystem;
mod wait;
mod watcher;

pub use attempt::{attempt, fail, is_panicking};
pub use attr::{Attributes, CopyFn, CopyRule, DeleteFn, Keyvals, Object, Value};
pub use banyan_coll::{ArgKind, Call, Kind, Lists, Op, Operand, Signature, UserOp};
pub use banyan_memory::Platform;
pub use banyan_pmi::{FD_NAME, Job, settings};
#[cfg(feature = "sim")]
pub use banyan_transport::sim::{Net, OneSided, Options as NetOptions};
pub use bsend::{Attached, Attachment, BSEND_OVERHEAD};
pub use cart::{Cart, dims_create};
pub use collective::{Argument, Root, UserMemory, check_op};
pub use comm::Comm;
pub use completion::{Settled, Settling, UnderWay};
pub use creation::SplitType;
pub use enqueue::Enqueuer;
pub use errcode::{ErrorCodes, MAX_ERROR_STRING, error_codes};
pub use errhandler::Errhandler;
pub use error::{Class, Error, Reason, Result};
pub use group::{Comparison, Group};
pub use info::{Info, MAX_INFO_KEY, MAX_INFO_VALUE, Start};
pub use message::Message;
pub use p2p::{Borrowed, Dest, Incoming, Outgoing, SendMode};
pub use request::{Operation, Request, Started};
pub use runtime::{Runtime, Threads};
pub use stateful::Generalized;
pub use status::{Outcome, Source, Status, TAG_UB};

/// Locks what no panic leaves half changed.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}
