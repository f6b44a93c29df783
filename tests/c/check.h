/* What every test program of ours shares: a check that says what failed and where, and a last word.
 *
 * A program names its runs in comments "RUN: ranks=1,2,4 [fabrics=shm,tcp] [limit=SECONDS] [status=NUMBER] [says=WORD]
 * [only=banyan] [keep_going=yes] [env=NAME=VALUE]". It passes when mpirun ends with that status (0), rank 0 prints the line "ok", and the output has the word.
 */
#ifndef BANYAN_CHECK_H
#define BANYAN_CHECK_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures;

#define CHECK(what) check_that((what) ? 1 : 0, #what, __FILE__, __LINE__)

/* Checks that a call succeeds. */
#define OK(call) CHECK((call) == MPI_SUCCESS)

static void check_that(int good, const char *what, const char *file, int line)
{
    int rank = -1, running = 0, over = 0;
    if (good)
        return;
    MPI_Initialized(&running);
    MPI_Finalized(&over);
    if (running && !over)
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (++check_failures <= 20)
        fprintf(stderr, "rank %d: %s:%d: not so: %s\n", rank, file, line, what);
}

/* The class of an error code. */
static inline int class_of(int code)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(code, &class);
    return class;
}

static inline int my_rank(MPI_Comm comm)
{
    int rank;
    MPI_Comm_rank(comm, &rank);
    return rank;
}

static inline int size_of(MPI_Comm comm)
{
    int size;
    MPI_Comm_size(comm, &size);
    return size;
}

/* A byte that depends on place and seed, to fill and check buffers with. */
static inline unsigned char pattern(size_t i, int seed)
{
    return (unsigned char)(i * 131 + (i >> 8) * 17 + (i >> 16) * 29 + (size_t)seed * 101 + 7);
}

static inline void fill(void *buffer, size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)buffer)[i] = pattern(i, seed);
}

/* The number of bytes that are not what fill() put there. */
static inline size_t wrong(const void *buffer, size_t bytes, int seed)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((const unsigned char *)buffer)[i] != pattern(i, seed);
    return count;
}

/* The end of every program: adds up failures, finalizes, says ok. */
static inline int finish(void)
{
    int all = 0, rank = my_rank(MPI_COMM_WORLD);
    MPI_Allreduce(&check_failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && all == 0)
        printf("ok\n");
    MPI_Finalize();
    return all != 0;
}

#endif
