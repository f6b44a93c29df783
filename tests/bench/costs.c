/*
 * What the constants of the cost model stand for (coll::Model), in seconds, for `cargo xtask costs`, on two ranks: a message of 8
 * bytes, one more message of a stream, one more byte of a long message; what one rank publishes and the other sees (a barrier);
 * a byte copied and a byte reduced; a single-copy get and one more byte of it; a turn of a rank that shares its core.
 */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <sys/uio.h>

/* Bytes of a message whose time is all latency, and the two lengths whose difference is all bytes. */
#define FEW 8
#define SHORTER (64 << 10)
#define LONGER (1 << 20)
/* Messages of a stream. */
#define STREAM 32
/* Bytes that are copied and reduced: they stay in a core's own cache. */
#define CACHED (128 << 10)

static char *out, *in;
/* Of what is measured now: bytes, or messages. */
static int size;
/* The other rank's process, and its memory. */
static long other[2];

static void nothing(void *unused)
{
    (void)unused;
}

static void message(void *unused)
{
    (void)unused;
    if (rank == 0) {
        MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

/* Each rank sends a stream of messages while it gets one, as in a round of a schedule with many messages. */
static void stream(void *unused)
{
    MPI_Request requests[2 * STREAM];
    (void)unused;
    for (int i = 0; i < size; i++)
        MPI_Irecv(in + i * FEW, FEW, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, &requests[i]);
    for (int i = 0; i < size; i++)
        MPI_Isend(out + i * FEW, FEW, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, &requests[size + i]);
    MPI_Waitall(2 * size, requests, MPI_STATUSES_IGNORE);
}

static void publication(void *unused)
{
    (void)unused;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void copy(void *unused)
{
    (void)unused;
    memcpy(in, out, CACHED);
    /* What was copied may be read: the compiler must not leave the copy out. */
    __asm__ volatile("" : : "r"(in) : "memory");
}

static void reduce(void *unused)
{
    (void)unused;
    MPI_Reduce_local(out, in, CACHED / (int)sizeof(double), MPI_DOUBLE, MPI_SUM);
}

static int refused;

static void get(void *unused)
{
    struct iovec here = {in, (size_t)size}, there = {(void *)other[1], (size_t)size};
    (void)unused;
    if (process_vm_readv((pid_t)other[0], &here, 1, &there, 1, 0) != size)
        refused = errno ? errno : EIO;
}

static void turn(void *unused)
{
    (void)unused;
    sched_yield();
}

/* Seconds of one call with this `size`. */
static double with(int number, void (*once)(void *))
{
    size = number;
    return seconds_each(once, NULL, nothing);
}

/* Ends a cell with the seconds of one of `number` equal parts. */
static void part(double seconds, double number)
{
    end_cell(seconds / number, "s", 0);
}

static void cells_of_messages(void)
{
    begin_cell("message");
    part(with(FEW, message), 2);
    begin_cell("message_more");
    part(with(STREAM, stream) - with(1, stream), STREAM - 1);
    begin_cell("message_byte");
    part(with(LONGER, message) - with(SHORTER, message), 2.0 * (LONGER - SHORTER));
}

static void cells_of_gets(void)
{
    long mine[2] = {getpid(), (long)out};
    MPI_Sendrecv(mine, 2, MPI_LONG, 1 - rank, 0, other, 2, MPI_LONG, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    get(NULL);
    int any = 0;
    MPI_Allreduce(&refused, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (any) {
        if (rank == 0)
            printf("FAIL get %s\nFAIL get_byte %s\n", strerror(any), strerror(any));
        return;
    }
    begin_cell("get");
    part(with(FEW, get), 1);
    begin_cell("get_byte");
    part(with(LONGER, get) - with(SHORTER, get), LONGER - SHORTER);
}

int main(int argc, char **argv)
{
    bench_init(&argc, &argv);
    if (ranks != 2) {
        fprintf(stderr, "costs: two ranks, not %d\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    out = buffer(LONGER);
    in = buffer(LONGER);
    memset(out, 0, LONGER);
    memset(in, 0, LONGER);
    cells_of_messages();
    begin_cell("publication");
    part(with(0, publication), 1);
    begin_cell("copy_byte");
    part(with(0, copy), CACHED);
    begin_cell("reduce_byte");
    part(with(0, reduce), CACHED);
    cells_of_gets();
    begin_cell("turn");
    part(with(0, turn), ranks);
    MPI_Finalize();
    return 0;
}
