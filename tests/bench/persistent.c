/* Persistent requests between two ranks: a ping-pong (microseconds one way) and an allreduce, by size. */
#include "bench.h"

struct kept {
    int bytes;
    char *out, *in;
    MPI_Request send, receive;
};

static void once(void *argument)
{
    struct kept *k = argument;
    MPI_Request *order[2] = {rank == 0 ? &k->send : &k->receive, rank == 0 ? &k->receive : &k->send};
    for (int i = 0; i < 2; i++) {
        MPI_Start(order[i]);
        MPI_Wait(order[i], MPI_STATUS_IGNORE);
    }
}

static void collective(void *argument)
{
    struct kept *k = argument;
    MPI_Start(&k->send);
    MPI_Wait(&k->send, MPI_STATUS_IGNORE);
}

static void spoil(void *argument)
{
    struct kept *k = argument;
    memset(k->in, 0xee, (size_t)k->bytes);
}

int main(int argc, char **argv)
{
    static const long all[] = {8, 1024, 65536, -1};
    const long *sizes, *size;
    bench_init(&argc, &argv);
    sizes = sizes_of(argc, argv, 1, all);
    for (size = sizes; *size >= 0; size++) {
        struct kept k = {.bytes = (int)*size, .out = buffer((size_t)*size), .in = buffer((size_t)*size)};
        begin_cell("pingpong/%ld", *size);
        fill(k.out, (size_t)*size, (uint32_t)rank);
        MPI_Send_init(k.out, k.bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &k.send);
        MPI_Recv_init(k.in, k.bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &k.receive);
        double seconds = seconds_each(once, &k, spoil);
        end_cell(seconds / 2 * 1e6, "us", differs(k.in, (size_t)*size, (uint32_t)(1 - rank)));
        MPI_Request_free(&k.send);
        MPI_Request_free(&k.receive);
        free(k.out);
        free(k.in);
    }
    /* Last, since not every library has it. */
    for (size = sizes; *size >= 0; size++) {
        struct kept k = {.bytes = (int)*size, .out = buffer((size_t)*size), .in = buffer((size_t)*size)};
        int count = k.bytes / (int)sizeof(double), wrong = 0;
        begin_cell("allreduce/%ld", *size);
        for (int i = 0; i < count; i++)
            ((double *)k.out)[i] = i + rank;
        MPI_Allreduce_init(k.out, k.in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &k.send);
        double seconds = seconds_each(collective, &k, spoil);
        for (int i = 0; i < count; i++)
            wrong |= ((double *)k.in)[i] != 2.0 * i + 1;
        end_cell(seconds * 1e6, "us", wrong);
        MPI_Request_free(&k.send);
        free(k.out);
        free(k.in);
    }
    MPI_Finalize();
    return 0;
}
