/* Blocking and nonblocking collectives are numbered apart: ranks may call one of each in either order.
 * RUN: ranks=2,3,5 fabrics=shm,tcp limit=60 only=banyan */
#include "check.h"

enum { KINDS = 6, SIZES = 3 };

/* Starts a nonblocking collective of n ints, of which `at` chooses the kind. */
static void start(int at, int n, const int *give, int *get, MPI_Comm comm, MPI_Request *request)
{
    switch (at) {
    case 0: OK(MPI_Iallreduce(give, get, n, MPI_INT, MPI_SUM, comm, request)); break;
    case 1: OK(MPI_Ibcast(get, n, MPI_INT, 0, comm, request)); break;
    case 2: OK(MPI_Iallgather(give, n, MPI_INT, get, n, MPI_INT, comm, request)); break;
    case 3: OK(MPI_Ibarrier(comm, request)); break;
    case 4: OK(MPI_Ialltoall(give, n, MPI_INT, get, n, MPI_INT, comm, request)); break;
    default: OK(MPI_Iscan(give, get, n, MPI_INT, MPI_SUM, comm, request)); break;
    }
}

static void block(int at, int n, const int *give, int *get, MPI_Comm comm)
{
    switch (at) {
    case 0: OK(MPI_Barrier(comm)); break;
    case 1: OK(MPI_Allreduce(give, get, n, MPI_INT, MPI_SUM, comm)); break;
    case 2: OK(MPI_Bcast(get, n, MPI_INT, 0, comm)); break;
    case 3: OK(MPI_Allgather(give, n, MPI_INT, get, n, MPI_INT, comm)); break;
    case 4: OK(MPI_Scan(give, get, n, MPI_INT, MPI_SUM, comm)); break;
    default: OK(MPI_Alltoall(give, n, MPI_INT, get, n, MPI_INT, comm)); break;
    }
}

/* What element i of the result must be, where everybody gives 1. */
static int result(int sums, int scans, int rank, int ranks)
{
    return scans ? rank + 1 : sums ? ranks : 1;
}

int main(int argc, char **argv)
{
    const int sizes[SIZES] = {1, 900, 30000};
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    int most = sizes[SIZES - 1] * ranks;
    int *give = malloc(most * sizeof(int)), *first = malloc(most * sizeof(int)), *second = malloc(most * sizeof(int));
    for (int i = 0; i < most; i++)
        give[i] = 1;
    for (int size = 0; size < SIZES; size++)
        for (int started = 0; started < KINDS; started++)
            for (int blocking = 0; blocking < KINDS; blocking++) {
                int n = sizes[size];
                MPI_Request request;
                for (int i = 0; i < most; i++)
                    first[i] = second[i] = rank == 0;
                /* One rank waits in the blocking one before it starts the other. */
                if (rank == (started + blocking) % ranks) {
                    block(blocking, n, give, second, MPI_COMM_WORLD);
                    start(started, n, give, first, MPI_COMM_WORLD, &request);
                } else {
                    start(started, n, give, first, MPI_COMM_WORLD, &request);
                    block(blocking, n, give, second, MPI_COMM_WORLD);
                }
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
                if (started != 3)
                    CHECK(first[n - 1] == result(started == 0, started == 5, rank, ranks));
                if (blocking != 0)
                    CHECK(second[n - 1] == result(blocking == 1, blocking == 4, rank, ranks));
            }
    free(give);
    free(first);
    free(second);
    return finish();
}
