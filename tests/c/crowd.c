/* More ranks than cores make good progress: thousands of small collectives on 16 ranks in seconds.
 * RUN: ranks=16 fabrics=shm,tcp limit=60 only=banyan */
#include "check.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    for (int i = 0; i < 2000; i++) {
        int sum, root = i % ranks, from = root == rank ? i : -1;
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == ranks * (ranks - 1) / 2);
        MPI_Bcast(&from, 1, MPI_INT, root, MPI_COMM_WORLD);
        CHECK(from == i);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return finish();
}
