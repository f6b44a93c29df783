/* What `cargo xtask hot` and the step `counts` trace: start, a first exchange with neighbours and end, as every program has them;
 * with an argument also what most programs call between these. The first rank is late, so that the others sleep and say so. */
#include <mpi.h>
#include <unistd.h>

enum { LONG = 1 << 15 };
static char from[16 * LONG], to[16 * LONG];

static void usual(int rank, int ranks)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int n = 8; n <= LONG; n *= LONG / 8) {
        MPI_Request requests[2];
        MPI_Status statuses[2];
        if (rank == 0)
            MPI_Send(from, n, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        else if (rank == 1)
            MPI_Recv(to, n, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, statuses);
        MPI_Irecv(to, n, MPI_BYTE, before, 2, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(from, n, MPI_BYTE, next, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, statuses);
        MPI_Irecv(to, n, MPI_BYTE, before, 3, MPI_COMM_WORLD, &requests[0]);
        MPI_Send(from, n, MPI_BYTE, next, 3, MPI_COMM_WORLD);
        MPI_Wait(&requests[0], statuses);
        MPI_Bcast(to, n, MPI_BYTE, 0, MPI_COMM_WORLD);
        MPI_Allreduce(from, to, n / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(from, to, n / 4, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        MPI_Gather(from, n, MPI_BYTE, to, n, MPI_BYTE, 0, MPI_COMM_WORLD);
        MPI_Scatter(from, n, MPI_BYTE, to, n, MPI_BYTE, 0, MPI_COMM_WORLD);
        MPI_Allgather(from, n, MPI_BYTE, to, n, MPI_BYTE, MPI_COMM_WORLD);
        MPI_Alltoall(from, n, MPI_BYTE, to, n, MPI_BYTE, MPI_COMM_WORLD);
    }
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Barrier(half);
    MPI_Comm_free(&half);
    MPI_Wtime();
}

int main(int argc, char **argv)
{
    int rank, ranks, got;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &got, 1, MPI_INT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0)
        usleep(300000);
    MPI_Barrier(MPI_COMM_WORLD);
    if (argc > 1)
        usual(rank, ranks);
    double one = 1, all = 0;
    MPI_Reduce(&one, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return got != (rank + ranks - 1) % ranks || (rank == 0 && all != ranks);
}
