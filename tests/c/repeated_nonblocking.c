/* What repeated.c does, with nonblocking collectives.
 * RUN: ranks=1,2,4,5 fabrics=shm,tcp */
#include "check.h"

static MPI_Request started;

/* Completes what was started, if it was. */
static int complete(int error)
{
    return error ? error : MPI_Wait(&started, MPI_STATUS_IGNORE);
}

#define MPI_Allgather(...) complete(MPI_Iallgather(__VA_ARGS__, &started))
#define MPI_Allgatherv(...) complete(MPI_Iallgatherv(__VA_ARGS__, &started))
#define MPI_Allreduce(...) complete(MPI_Iallreduce(__VA_ARGS__, &started))
#define MPI_Alltoall(...) complete(MPI_Ialltoall(__VA_ARGS__, &started))
#define MPI_Alltoallv(...) complete(MPI_Ialltoallv(__VA_ARGS__, &started))
#define MPI_Bcast(...) complete(MPI_Ibcast(__VA_ARGS__, &started))
#define MPI_Exscan(...) complete(MPI_Iexscan(__VA_ARGS__, &started))
#define MPI_Gather(...) complete(MPI_Igather(__VA_ARGS__, &started))
#define MPI_Gatherv(...) complete(MPI_Igatherv(__VA_ARGS__, &started))
#define MPI_Reduce(...) complete(MPI_Ireduce(__VA_ARGS__, &started))
#define MPI_Reduce_scatter(...) complete(MPI_Ireduce_scatter(__VA_ARGS__, &started))
#define MPI_Scan(...) complete(MPI_Iscan(__VA_ARGS__, &started))
#define MPI_Scatter(...) complete(MPI_Iscatter(__VA_ARGS__, &started))
#define MPI_Scatterv(...) complete(MPI_Iscatterv(__VA_ARGS__, &started))

#include "repeated.c"
