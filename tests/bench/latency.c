/*
 * Time of a message between two ranks, one way, in microseconds, by size: the mean, or (argument `typical`) the median of single pings, as
 * perftest has it.
 */
#include "bench.h"

/* Pings of which the median is shown, after some that are not. */
#define PINGS 10000
#define FIRST_PINGS 100

struct ping {
    int bytes;
    char *out, *in;
};

static void once(void *argument)
{
    struct ping *p = argument;
    if (rank == 0) {
        MPI_Send(p->out, p->bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(p->in, p->bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(p->in, p->bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(p->out, p->bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

static void spoil(void *argument)
{
    struct ping *p = argument;
    memset(p->in, 0xee, (size_t)p->bytes);
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Seconds of a ping and its answer: the median. */
static double typical(struct ping *p)
{
    static double times[PINGS];
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -FIRST_PINGS; i < PINGS; i++) {
        double start = now();
        once(p);
        if (i >= 0)
            times[i] = now() - start;
    }
    qsort(times, PINGS, sizeof times[0], by_size);
    return times[PINGS / 2];
}

int main(int argc, char **argv)
{
    static const long all[] = {0,    1,     2,     4,     8,      16,     32,     64,      128,     256,     512,     1024, 2048,
                               4096, 8192,  16384, 32768, 65536,  131072, 262144, 524288,  1048576, 2097152, 4194304, 8388608,
                               -1};
    bench_init(&argc, &argv);
    int singly = argc > 1 && strcmp(argv[1], "typical") == 0;
    for (const long *size = sizes_of(argc, argv, 1 + singly, all); *size >= 0; size++) {
        struct ping p = {(int)*size, buffer((size_t)*size), buffer((size_t)*size)};
        begin_cell("%ld", *size);
        fill(p.out, (size_t)*size, (uint32_t)rank);
        double seconds = singly ? typical(&p) : seconds_each(once, &p, spoil);
        end_cell(seconds / 2 * 1e6, "us", differs(p.in, (size_t)*size, (uint32_t)(1 - rank)));
        free(p.out);
        free(p.in);
    }
    MPI_Finalize();
    return 0;
}
