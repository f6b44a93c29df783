/*
 * An exchange of messages (or a nonblocking allreduce) with work between start and wait: microseconds of both
 * together. The work is counted in steps that take WORK nanoseconds for each KiB, so that all libraries do the same.
 */
#include "bench.h"

/* Of work for each KiB of data, in nanoseconds: about what a copy at 10 GB/s takes. */
#define WORK 100

struct both {
    int bytes, reduce;
    long steps;
    char *out, *in;
};

static void work(long steps)
{
    static volatile uint64_t sink;
    uint64_t state = 1;
    /* Each step waits for the one before, so that this takes the same time in every program. */
    for (long i = 0; i < steps; i++) {
        state = state * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(state));
    }
    sink = state;
    (void)sink;
}

static void once(void *argument)
{
    struct both *b = argument;
    MPI_Request requests[2];
    if (b->reduce) {
        MPI_Iallreduce(b->out, b->in, b->bytes / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD,
                       &requests[0]);
    } else {
        MPI_Irecv(b->in, b->bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(b->out, b->bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &requests[1]);
    }
    work(b->steps);
    MPI_Waitall(b->reduce ? 1 : 2, requests, MPI_STATUSES_IGNORE);
}

static void spoil(void *argument)
{
    struct both *b = argument;
    memset(b->in, 0xee, (size_t)b->bytes);
}

/* Steps in a microsecond. */
static double speed(void)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double start = now();
        work(1000000);
        double took = now() - start;
        best = took < best ? took : best;
    }
    return best > 0 ? 1 / best : 1;
}

int main(int argc, char **argv)
{
    static const long all[] = {8192, 65536, 1048576, -1};
    bench_init(&argc, &argv);
    double steps = speed();
    MPI_Bcast(&steps, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (const long *size = sizes_of(argc, argv, 1, all); *size >= 0; size++)
        for (int reduce = 0; reduce <= 1; reduce++) {
            struct both b = {(int)*size, reduce, 0, buffer((size_t)*size), buffer((size_t)*size)};
            b.steps = (long)(steps * (double)*size / 1024 * WORK / 1000);
            int wrong = 0, count = b.bytes / (int)sizeof(double);
            begin_cell("%s/%ld", reduce ? "iallreduce" : "exchange", *size);
            if (reduce)
                for (int i = 0; i < count; i++)
                    ((double *)b.out)[i] = i + rank;
            else
                fill(b.out, (size_t)*size, (uint32_t)rank);
            double seconds = seconds_each(once, &b, spoil);
            if (reduce)
                for (int i = 0; i < count; i++)
                    wrong |= ((double *)b.in)[i] != 2.0 * i + 1;
            else
                wrong = differs(b.in, (size_t)*size, (uint32_t)(1 - rank));
            end_cell(seconds * 1e6, "us", wrong);
            free(b.out);
            free(b.in);
        }
    MPI_Finalize();
    return 0;
}
