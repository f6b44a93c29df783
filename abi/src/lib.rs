//! `libmpi_abi.so.1`: the C interface of MPI 5.0 by its standard ABI.
//!
//! A thin layer over `banyan-runtime`: it converts and checks arguments, keeps handles, contains panics
//! and calls error handlers. `tables` and `header` make `mpi.h`, `not_built` lists what is not built yet.
#![allow(non_snake_case, reason = "functions and fields have the names of the MPI standard")]

mod attr;
mod boundary;
mod buffers;
mod coll;
mod comm;
mod completion;
mod datatype;
mod env;
mod errhandler;
pub mod ffi;
mod gpu;
mod grequest;
mod group;
mod handle_conv;
pub mod handles;
pub mod header;
mod info;
mod init;
mod instance;
mod kinds;
mod memory;
pub mod not_built;
mod op;
mod p2p;
mod pack;
pub mod pointer;
mod probe;
mod process;
mod report;
mod request;
mod serial;
mod signature;
mod status;
mod stdio;
mod stream;
pub mod tables;
mod tool;
mod topo;
mod types;
mod variables;
