//! Fabric: messages and one-sided transfers over RDMA devices, by libibverbs.
//!
//! Each pair of processes has a reliable connection (a queue pair of type RC), made on first contact: the processes greet each other by
//! datagrams ([`greeting`], [`contact`]) to addresses that their business cards tell. Frames are sends into buffers of the
//! receiver's shared receive queue. A sender has a credit for each buffer that it may fill ([`credit`]), so that a frame never finds
//! none: receiver-not-ready is an error here. Gets, puts and atomics are the device's own, on memory that is registered: a registration is kept ([`cache`]) as
//! long as its memory is not unmapped ([`watch`]).
//!
//! What touches libibverbs is built with the feature `verbs`, as a library of its own (`libbanyan_rdma.so`). What needs no device is
//! part of all processes, which load that library where there is one ([`Loaded`]).
#![deny(unsafe_code)]

pub mod cache;
pub mod contact;
pub mod credit;
pub mod gid;
pub mod greeting;
pub mod replay;
pub mod settings;
#[allow(unsafe_code, reason = "ioctls of userfaultfd")]
pub mod watch;

#[cfg(feature = "verbs")]
mod breaks;
#[cfg(feature = "verbs")]
mod contacts;
#[cfg(feature = "verbs")]
mod datagrams;
#[cfg(feature = "verbs")]
mod events;
#[cfg(feature = "verbs")]
mod fabric;
#[cfg(feature = "verbs")]
mod frames;
#[cfg(feature = "verbs")]
mod gpu_memory;
#[cfg(feature = "verbs")]
mod iwarp;
mod library;
#[cfg(feature = "verbs")]
mod links;
#[cfg(feature = "verbs")]
mod locked;
#[cfg(feature = "verbs")]
#[allow(unsafe_code, reason = "the name of the library's entry point")]
mod member;
#[cfg(feature = "verbs")]
mod port;
#[cfg(feature = "verbs")]
mod rails;
#[cfg(feature = "verbs")]
mod registrations;
#[cfg(feature = "verbs")]
mod rests;
#[cfg(feature = "verbs")]
mod sending;
#[cfg(feature = "verbs")]
mod transfers;
#[cfg(feature = "verbs")]
#[allow(unsafe_code, reason = "calls libibverbs")]
mod verbs;
#[cfg(feature = "verbs")]
mod windows;

pub use library::{InLibrary, Loaded, explain};

#[cfg(feature = "verbs")]
pub use fabric::{Counts, Options, Rdma};
#[cfg(feature = "verbs")]
pub use rails::RailOptions;
#[cfg(feature = "verbs")]
pub use verbs::devices;
