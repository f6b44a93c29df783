/* A rank that waits for long uses next to no CPU.
 * RUN: ranks=2,4 fabrics=shm,tcp only=banyan */
#include <sys/resource.h>
#include <unistd.h>
#include "check.h"

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), token = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double before = cpu_seconds();
    if (rank == 0)
        usleep(1500 * 1000);
    MPI_Bcast(&token, 1, MPI_INT, 0, MPI_COMM_WORLD);
    double used = cpu_seconds() - before;
    if (used > 0.3)
        fprintf(stderr, "rank %d: %.3f s of CPU in 1.5 s of waiting\n", rank, used);
    CHECK(used <= 0.3);
    return finish();
}
