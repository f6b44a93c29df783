//! Bootstrap: the protocol between a rank and the agent that started it, and those of other launchers.
//!
//! Rank and agent talk over a unix stream socket that the rank inherits. Frames are bounded, prefixed by their
//! length and encoded with postcard ([`codec`]). The agent puts [`Reply::Welcome`] into the socket before the
//! rank runs, so that joining the job costs the rank no round trip.
//!
//! ```text
//! rank                                agent
//!   | Hello {version, pid}    ---->     |      (Welcome is in the socket already)
//!   | Publish {card}          ---->     |      its business card
//!   | Lookup {rank}           ---->     |      answered when that rank has published
//!   |                         <----     | BusinessCard {rank, card}
//!   | Ready, Finalized        ---->     |      Init is over; Finalize is over
//!   | Abort {code, message}   ---->     |      the job ends
//!   | Notice {text}           ---->     |      the user is told
//! ```
//!
//! Ranks that another launcher started speak its protocol ([`pmi1`], PMIx): a key-value store, through which they work out what
//! our agent would have told them (`wire_up`).
//!
//! The `unsafe` of the crate adopts the inherited descriptors ([`attach`]), in `inherit.rs`, and calls the library of PMIx, in
//! `pmix.rs`.
#![deny(unsafe_code)]

pub mod chunks;
mod client;
pub mod codec;
mod foreign;
mod frame;
mod inherit;
mod kvs;
mod last_word;
mod node_board;
mod offer;
mod places;
pub mod pmi1;
mod pmi1_kvs;
mod pmix;
pub mod process_mapping;
pub mod settings;
pub mod status;
mod wire;
mod wire_up;

pub use client::{Client, Error, Event, attach};
pub use frame::{Job, MAX_BUSINESS_CARD, MAX_MEASURED, MAX_TEXT, MOST_RANKS, Reply, Request, VERSION, cut};
pub use inherit::{FD_NAME, FD_VARIABLE, fd_value};
pub use last_word::LastWord;
pub use offer::{Offer, whereabouts};
pub use places::{Home, NodeKind, Places};
pub use pmi1_kvs::Pmi1Error;
pub use pmix::PmixError;
pub use wire::{ByteChannel, Channel, WireError};
pub use wire_up::Here;

/// Environment variables that the launcher sets for each rank. The rank does not unset them, as it is not safe to change
/// the environment of a process that may have threads. A program that a rank starts is a job of its own nevertheless: the
/// socket that [`FD_VARIABLE`] names closes on exec.
pub const JOB_VARIABLES: &[&str] = &[
    FD_VARIABLE,
    "BANYAN_RANK",
    "BANYAN_SIZE",
    "BANYAN_LOCAL_RANK",
    "BANYAN_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
];

/// Variables of other launchers that would make a rank look like part of their job. Our launcher removes them
/// from the environment of the ranks it starts.
pub const FOREIGN_VARIABLES: &[&str] = foreign::VARIABLES;

/// Random bytes.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_ranks_are_told_is_in_the_guide() {
        let guide = include_str!("../../../docs/src/launching.md");
        let all = super::JOB_VARIABLES.iter().filter(|name| **name != super::FD_VARIABLE);
        let missing: Vec<_> = all.filter(|name| !guide.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "not in launching.md: {missing:?}");
    }
}
