/*
 * Windows of messages in flight between two ranks, answered by an empty one: megabytes a second by size, one way and
 * both ways at once, or (argument `rate`) millions of small messages a second. Every receive has a buffer of its own. With the
 * arguments `one` and a number messages go one way, so many at a time: a new one follows each that is over, as in perftest.
 */

/* A window of 16 MiB takes a millisecond: what a library learns from the first ones should not be all that is measured. */
#ifndef MEASURED
#define MEASURED 0.1
#endif
#include "bench.h"

/* A window holds at most this much, and as many messages. */
#define WINDOW_BYTES (16 << 20)
#define WINDOW 64

struct stream {
    int bytes, window, both;
    char *out, *in;
};

static void once(void *argument)
{
    static MPI_Request requests[2 * 256];
    struct stream *s = argument;
    int peer = 1 - rank, count = 0;
    if (rank == 1 || s->both)
        for (int i = 0; i < s->window; i++)
            MPI_Irecv(s->in + (size_t)i * (size_t)s->bytes, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                      &requests[count++]);
    if (rank == 0 || s->both)
        for (int i = 0; i < s->window; i++)
            MPI_Isend(s->out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &requests[count++]);
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
}

/* Bytes of the messages of a stream, of which up to `window` are under way at a time. */
#define STREAM_BYTES (8 << 20)

static void stream_once(void *argument)
{
    MPI_Request requests[256];
    struct stream *s = argument;
    int peer = 1 - rank, messages = STREAM_BYTES / s->bytes;
    for (int i = 0; i < messages + s->window; i++) {
        MPI_Request *request = &requests[i % s->window];
        if (i >= s->window)
            MPI_Wait(request, MPI_STATUS_IGNORE);
        if (i >= messages)
            continue;
        if (rank == 0)
            MPI_Isend(s->out, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, request);
        else
            MPI_Irecv(s->in + (size_t)(i % s->window) * (size_t)s->bytes, s->bytes, MPI_BYTE, peer, 1, MPI_COMM_WORLD, request);
    }
    if (rank == 0)
        MPI_Recv(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(NULL, 0, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
}

static void spoil(void *argument)
{
    struct stream *s = argument;
    memset(s->in, 0xee, (size_t)s->bytes * (size_t)s->window);
}

/* `stream`: a call sends a stream of messages, and not a window. */
static void measure(const char *kind, long size, int window, int both, int stream)
{
    size_t bytes = (size_t)size, room = bytes * (size_t)window;
    struct stream s = {(int)size, window, both, buffer(bytes), buffer(room)};
    int wrong = 0, rate = strcmp(kind, "rate") == 0;
    begin_cell("%s/%ld", kind, size);
    fill(s.out, bytes, (uint32_t)rank);
    double seconds = seconds_each(stream ? stream_once : once, &s, spoil);
    if (rank == 1 || both)
        for (int i = 0; i < window; i++)
            wrong |= differs(s.in + (size_t)i * bytes, bytes, (uint32_t)(1 - rank));
    /* Rank 0 knows when the answer came; the sender's figure is the one that counts. */
    double messages = rank == 0 ? (double)(stream ? STREAM_BYTES / size : window) * (both ? 2 : 1) / seconds : 0;
    end_cell(rate ? messages * 1e-6 : messages * (double)size * 1e-6, rate ? "M/s" : "MB/s", wrong);
    free(s.out);
    free(s.in);
}

int main(int argc, char **argv)
{
    static const long small[] = {0, 8, 64, 512, -1};
    static const long all[] = {64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, -1};
    bench_init(&argc, &argv);
    if (argc > 1 && strcmp(argv[1], "rate") == 0) {
        for (const long *size = sizes_of(argc, argv, 2, small); *size >= 0; size++)
            measure("rate", *size, 256, 0, 0);
    } else if (argc > 2 && strcmp(argv[1], "one") == 0) {
        for (const long *size = sizes_of(argc, argv, 3, all); *size >= 0; size++)
            measure("one", *size, atoi(argv[2]), 0, 1);
    } else {
        for (int both = 0; both <= 1; both++)
            for (const long *size = sizes_of(argc, argv, 1, all); *size >= 0; size++) {
                long window = WINDOW_BYTES / *size;
                measure(both ? "both" : "one", *size, window < WINDOW ? (int)window : WINDOW, both, 0);
            }
    }
    MPI_Finalize();
    return 0;
}
