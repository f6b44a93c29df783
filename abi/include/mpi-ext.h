/* What Banyan MPI has beyond the standard, as in MPICH's header: whether buffers may be on GPUs, and operations that are enqueued on a
 * stream of CUDA's or HIP's. */
#ifndef BANYAN_MPI_EXT_H
#define BANYAN_MPI_EXT_H

#include <mpi.h>

#define MPIX_CUDA_AWARE_SUPPORT 1
#define MPIX_HIP_AWARE_SUPPORT 1

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if buffers may be memory of CUDA devices in this process, else 0; 0 before MPI is initialized. */
int MPIX_Query_cuda_support(void);
/* The same for memory of devices of HIP. */
int MPIX_Query_hip_support(void);

/* A stream of CUDA's or HIP's as MPI knows it. */
typedef struct MPIX_ABI_Stream *MPIX_Stream;
#define MPIX_STREAM_NULL ((MPIX_Stream)0)

/* Sets a key of an info object to bytes, as hexadecimal digits: for the value "value" of MPIX_Stream_create. */
int MPIX_Info_set_hex(MPI_Info info, const char *key, const void *value, int value_size);
/* The stream of which the info object says: "type" is "cudaStream_t" or "hipStream_t", "value" its bytes. Needs MPI_THREAD_MULTIPLE. */
int MPIX_Stream_create(MPI_Info info, MPIX_Stream *stream);
/* Waits until all that was enqueued is over. The stream itself stays, and is the program's. */
int MPIX_Stream_free(MPIX_Stream *stream);
/* A duplicate of the communicator, on which this rank may enqueue operations on the stream; all ranks call it, some with MPIX_STREAM_NULL. */
int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm *newcomm);
/* The stream of a communicator, or MPIX_STREAM_NULL; idx is 0. */
int MPIX_Comm_get_stream(MPI_Comm comm, int idx, MPIX_Stream *stream);

/* Each begins when what the stream held before is over. What the stream gets later waits for its end. */
int MPIX_Send_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
int MPIX_Recv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Status *status);
int MPIX_Allreduce_enqueue(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
/* The stream does not wait for the ends of these, but where their requests are waited for, which must be on the same stream. */
int MPIX_Isend_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm, MPI_Request *request);
int MPIX_Irecv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm, MPI_Request *request);
int MPIX_Wait_enqueue(MPI_Request *request, MPI_Status *status);
int MPIX_Waitall_enqueue(int count, MPI_Request array_of_requests[], MPI_Status array_of_statuses[]);

#ifdef __cplusplus
}
#endif

#endif
