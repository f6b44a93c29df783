/* What the bench programs share: one result a line, and loops that run for a fixed time whatever the library. */
#ifndef BANYAN_BENCH_H
#define BANYAN_BENCH_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long the last batch of a measurement must have taken, in seconds. */
#define ENOUGH 0.2

static inline void result(const char *name, double value, const char *unit)
{
    printf("RESULT %s %.6g %s\n", name, value, unit);
    fflush(stdout);
}

/* Seconds for one call of `once`, by batches that double until one of them takes long enough on rank 0. */
static inline double seconds_each(void (*once)(void *), void *argument)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    once(argument);
    for (long batch = 1;; batch *= 2) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (long i = 0; i < batch; i++)
            once(argument);
        double took = MPI_Wtime() - start;
        MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        if (took >= ENOUGH)
            return took / (double)batch;
    }
}

/* Memory for a buffer of the bench, on pages of its own, touched. */
static inline void *buffer(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes + 1) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(memory, 1, bytes + 1);
    return memory;
}

#endif
