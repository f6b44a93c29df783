//! A stand-in for the drivers of devices, for tests on machines without a GPU: for CUDA's driver, and for HIP's runtime (`hip`). The crates
//! `cuda-double` and `hip-double` make a library of it that is named as the one or the other is.
//!
//! It has several devices, whose memory the processor cannot touch: each allocation is a memfd that is mapped twice, without access at the
//! address that the program sees, and readable at one that only this library knows. So a load or store of the program's faults, and a system call
//! gets EFAULT.
//!
//! What is started on a stream happens later, when the program asks for events, and streams overtake each other; a seed decides
//! when. Handles of IPC are descriptors in `/proc/PID/fd`. Kernels are host code from a library ([`kernels`]), which [`compile`] makes of CUDA
//! C. It stands in for NVRTC and hipRTC, too ([`nvrtc`]), for GDRCopy's library (`gdrcopy`), and for what is asked of NVML (`nvml`).
//!
//! It knows less than a driver: no textures, graphs or pools, no order with the default stream but that of synchronous calls. What it
//! knows it takes more strictly: copies to and from host memory that is not pinned are late, too, ranges must lie in one allocation, and
//! streams belong to the current context.
//!
//! `banyan_double_calls` says how often a function was called, `banyan_double_fail` lets one fail from now on, and `banyan_double_nvlinks`
//! describes NVLinks.
//!
//! Settings, all optional, in the environment: `BANYAN_TEST_CUDA_DEVICES` (their number, 4), `..._SEED` (1), `..._MEMORY` (bytes of a device, 1
//! GiB), `..._ERRORS` (as in `cuStreamCreate=2@1-,cuMemcpyAsync=700@5`: from the first call on, or at the fifth one, the function fails with that
//! number), `..._PEERS=0` (devices do not reach each other), `..._IPC=0` (no memory of other processes), `..._KERNELS` (the library with
//! kernels), `..._BAR` (bytes of devices' memory that GDRCopy may have mapped, 256 MiB), `..._SHARED=0` (the processor may not touch managed memory while a device works),
//! `..._SAYS=1` (it says when memory of another process is mapped).
#![allow(non_snake_case, reason = "the names of CUDA and HIP")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the functions are CUDA's and HIP's, whose documentation says what they ask for"
)]
#![allow(missing_docs, reason = "as above")]

mod codes;
pub mod compile;
mod exported;
mod gdrcopy;
mod hip;
mod ipc;
pub mod kernels;
mod memory;
mod nvml;
pub mod nvrtc;
pub mod process;
mod settings;
mod streams;
mod world;
