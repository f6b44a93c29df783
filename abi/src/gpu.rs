//! Whether buffers may be on GPUs, as Open MPI (mpi-ext.h) and MPICH let programs ask. These functions are in no standard, and may be called
//! at any time.

use crate::ffi::*;
use crate::instance::{INSTANCE, Phase};

/// 1 if buffers may be memory of CUDA devices, else 0. Before MPI is initialized, and after it is finalized: 0.
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_cuda_support() -> c_int {
    let takes = || match INSTANCE.phase() {
        Phase::Running => {
            INSTANCE.runtime().ok().is_some_and(|runtime| runtime.takes_cuda().unwrap_or(false))
        }
        _ => false,
    };
    std::panic::catch_unwind(takes).unwrap_or(false).into()
}

/// 0: buffers may not be memory of devices of HIP.
#[unsafe(no_mangle)]
extern "C" fn MPIX_Query_hip_support() -> c_int {
    0
}
