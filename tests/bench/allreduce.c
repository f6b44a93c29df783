/* Time of an allreduce of argv[1] bytes of doubles, in microseconds. */
#include "bench.h"

struct reduction {
    int count;
    double *in, *out;
};

static void once(void *argument)
{
    struct reduction *r = argument;
    MPI_Allreduce(r->in, r->out, r->count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, bytes = argc > 1 ? atoi(argv[1]) : 8;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct reduction r = {bytes / (int)sizeof(double), buffer((size_t)bytes), buffer((size_t)bytes)};
    double seconds = seconds_each(once, &r);
    if (rank == 0)
        result("allreduce", seconds * 1e6, "us");
    free(r.in);
    free(r.out);
    MPI_Finalize();
    return 0;
}
