/* Two threads a rank, each in a ping-pong of its own under MPI_THREAD_MULTIPLE: microseconds one way, by size. */
#include "bench.h"
#include <pthread.h>

#define THREADS 2

struct pair {
    int thread, bytes, wrong;
    long calls;
    double seconds;
    char *out, *in;
};

static pthread_barrier_t together;

static void *exchange(void *argument)
{
    struct pair *p = argument;
    pthread_barrier_wait(&together);
    double start = now();
    for (long i = 0; i < p->calls; i++) {
        if (rank == 0) {
            MPI_Send(p->out, p->bytes, MPI_BYTE, 1, p->thread, MPI_COMM_WORLD);
            MPI_Recv(p->in, p->bytes, MPI_BYTE, 1, p->thread, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(p->in, p->bytes, MPI_BYTE, 0, p->thread, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(p->out, p->bytes, MPI_BYTE, 0, p->thread, MPI_COMM_WORLD);
        }
    }
    p->seconds = now() - start;
    p->wrong = differs(p->in, (size_t)p->bytes, (uint32_t)((1 - rank) * THREADS + p->thread));
    return NULL;
}

/* Seconds until both threads have done `calls` round trips. */
static double run(struct pair *pairs, long calls)
{
    pthread_t other;
    for (int t = 0; t < THREADS; t++) {
        pairs[t].calls = calls;
        memset(pairs[t].in, 0xee, (size_t)pairs[t].bytes);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (pthread_create(&other, NULL, exchange, &pairs[1]) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    exchange(&pairs[0]);
    pthread_join(other, NULL);
    return pairs[0].seconds > pairs[1].seconds ? pairs[0].seconds : pairs[1].seconds;
}

int main(int argc, char **argv)
{
    static const long all[] = {8, 1024, 65536, -1};
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided < MPI_THREAD_MULTIPLE)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    pthread_barrier_init(&together, NULL, THREADS);
    for (const long *size = sizes_of(argc, argv, 1, all); *size >= 0; size++) {
        struct pair pairs[THREADS];
        begin_cell("%ld", *size);
        for (int t = 0; t < THREADS; t++) {
            pairs[t] = (struct pair){t, (int)*size, 0, 0, 0, buffer((size_t)*size), buffer((size_t)*size)};
            fill(pairs[t].out, (size_t)*size, (uint32_t)(rank * THREADS + t));
        }
        long calls = 1;
        for (;;) {
            /* Threads that share cores are uneven, so this takes a longer look than other cells. */
            double took = run(pairs, calls);
            long next = took >= MEASURED ? -(long)(5 * MEASURED / took * (double)calls + 1) : calls * 4;
            MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
            calls = next < 0 ? -next : next;
            if (next < 0)
                break;
        }
        double seconds = run(pairs, calls) / (double)calls;
        end_cell(seconds / 2 * 1e6, "us", pairs[0].wrong || pairs[1].wrong);
        for (int t = 0; t < THREADS; t++) {
            free(pairs[t].out);
            free(pairs[t].in);
        }
    }
    MPI_Finalize();
    return 0;
}
