//! Whether buffers may be on GPUs, as Open MPI (mpi-ext.h) and MPICH let programs ask. These functions are in no standard, and may be called
//! at any time.

use crate::ffi::*;
use crate::instance::{INSTANCE, Phase};
use banyan_runtime::Platform;

/// 1 if buffers may be memory of CUDA devices, else 0. Before MPI is initialized, and after it is finalized: 0.
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    takes(Platform::Cuda)
}

/// 1 if buffers may be memory of devices of HIP, else 0, as [`MPIX_Query_cuda_support`].
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_hip_support() -> c_int {
    takes(Platform::Hip)
}

fn takes(platform: Platform) -> c_int {
    let takes = || match INSTANCE.phase() {
        Phase::Running => {
            INSTANCE.runtime().ok().is_some_and(|runtime| runtime.takes(platform).unwrap_or(false))
        }
        _ => false,
    };
    std::panic::catch_unwind(takes).unwrap_or(false).into()
}
