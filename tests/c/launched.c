/* What a launcher made of the job: each rank knows its place, talks to all others, and the ranks that share memory find each other.
 * Rank 0 prints how many ranks there are, and how many of them share its memory. With the argument "abort" the last rank calls
 * MPI_Abort with code 9 while the others wait for it.
 * RUN: ranks=1,2,5 fabrics=shm,tcp */
#include "check.h"
#include <unistd.h>

static void talk_to_all(int rank, int ranks, int count)
{
    int *out = malloc(sizeof(int) * count), *in = malloc(sizeof(int) * count);
    for (int step = 0; step < ranks; step++) {
        int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
        fill(out, sizeof(int) * count, rank + to);
        OK(MPI_Sendrecv(out, count, MPI_INT, to, 1, in, count, MPI_INT, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(wrong(in, sizeof(int) * count, from + rank) == 0);
    }
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), sum = 0, failures = 0;
    MPI_Comm node;
    OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
    if (argc > 1 && strcmp(argv[1], "abort") == 0) {
        if (rank == ranks - 1)
            MPI_Abort(MPI_COMM_WORLD, 9);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    talk_to_all(rank, ranks, 1);
    talk_to_all(rank, ranks, 100000);
    OK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    CHECK(sum == ranks * (ranks - 1) / 2);
    if (rank == 0)
        printf("%d ranks, %d share memory\n", ranks, size_of(node));
    OK(MPI_Comm_free(&node));
    MPI_Allreduce(&check_failures, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && failures == 0)
        printf("ok\n");
    /* Ranks leave one after the other, and go on without MPI for different times. */
    usleep(20000 * rank);
    MPI_Finalize();
    if (rank == 0)
        usleep(100000);
    return failures != 0;
}
