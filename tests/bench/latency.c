/* Time of a message between two ranks, one way, in microseconds, by size. */
#include "bench.h"

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

int main(int argc, char **argv)
{
    static const long all[] = {0,    1,     2,     4,     8,      16,     32,     64,      128,     256,     512,     1024, 2048,
                               4096, 8192,  16384, 32768, 65536,  131072, 262144, 524288,  1048576, 2097152, 4194304, 8388608,
                               -1};
    bench_init(&argc, &argv);
    for (const long *size = sizes_of(argc, argv, 1, all); *size >= 0; size++) {
        struct ping p = {(int)*size, buffer((size_t)*size), buffer((size_t)*size)};
        begin_cell("%ld", *size);
        fill(p.out, (size_t)*size, (uint32_t)rank);
        double seconds = seconds_each(once, &p, spoil);
        end_cell(seconds / 2 * 1e6, "us", differs(p.in, (size_t)*size, (uint32_t)(1 - rank)));
        free(p.out);
        free(p.in);
    }
    MPI_Finalize();
    return 0;
}
