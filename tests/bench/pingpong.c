/* Latency of a message of argv[1] bytes between two ranks, one way, in microseconds. */
#include "bench.h"

struct ping {
    int rank, bytes;
    char *memory;
};

static void once(void *argument)
{
    struct ping *p = argument;
    int peer = 1 - p->rank;
    if (p->rank == 0) {
        MPI_Send(p->memory, p->bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(p->memory, p->bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(p->memory, p->bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(p->memory, p->bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    struct ping p = {.bytes = argc > 1 ? atoi(argv[1]) : 8};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    p.memory = buffer((size_t)p.bytes);
    double seconds = seconds_each(once, &p);
    if (p.rank == 0)
        result("pingpong", seconds / 2 * 1e6, "us");
    free(p.memory);
    MPI_Finalize();
    return 0;
}
