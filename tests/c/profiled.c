/* A tool takes the place of MPI functions, and calls those of the same names with a P in front: those are the library's, of
 * functions that are not built yet, too (MPI 5.0, 15.2).
 *
 * RUN: ranks=2 fabrics=shm limit=30 only=banyan */
#include "check.h"

static int sends, sums, fences;

int MPI_Send(const void *buffer, int count, MPI_Datatype type, int dest, int tag, MPI_Comm comm)
{
    sends++;
    return PMPI_Send(buffer, count, type, dest, tag, comm);
}

int MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    sums++;
    return PMPI_Allreduce(from, to, count, type, op, comm);
}

int MPI_Win_fence(int assert, MPI_Win window)
{
    /* Once, and not again and again. */
    return fences++ == 0 ? PMPI_Win_fence(assert, window) : MPI_SUCCESS;
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD), value = 7, got = 0, sum = 0;
    if (rank == 0)
        OK(MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD));
    else
        OK(MPI_Recv(&got, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(got == 7 * rank && sum == 14 && sends == 1 - rank && sums == 1);
    CHECK(class_of(MPI_Win_fence(0, MPI_WIN_NULL)) == MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK(fences == 1);
    return finish();
}
