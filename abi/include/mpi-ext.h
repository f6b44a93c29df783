/* What Banyan MPI has beyond the standard: whether buffers may be on GPUs, as in the headers of the same name and in those of MPICH. */
#ifndef BANYAN_MPI_EXT_H
#define BANYAN_MPI_EXT_H

#include <mpi.h>

#define MPIX_CUDA_AWARE_SUPPORT 1
#define MPIX_HIP_AWARE_SUPPORT 0

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if buffers may be memory of CUDA devices in this process, else 0; 0 before MPI is initialized. */
int MPIX_Query_cuda_support(void);
/* 0: buffers may not be memory of devices of HIP. */
int MPIX_Query_hip_support(void);

#ifdef __cplusplus
}
#endif

#endif
