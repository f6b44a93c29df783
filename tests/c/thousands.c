/* Many more ranks than anybody has cores: they start, meet, add up, talk to neighbours and end. The memory that they share
 * grows with the pairs that talk, not with the square of the ranks.
 * RUN: ranks=640 fabrics=shm limit=100 only=banyan */
#include "check.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), sum = 0, from = -1;
    OK(MPI_Barrier(MPI_COMM_WORLD));
    OK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(sum == ranks * (ranks - 1) / 2);
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    OK(MPI_Sendrecv(&rank, 1, MPI_INT, next, 7, &from, 1, MPI_INT, last, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    CHECK(from == last);
    return finish();
}
