/* A token goes round, growing, from 0 bytes to 4 MiB; odd sizes and odd addresses.
 * RUN: ranks=1,2,3,5,16 fabrics=shm,tcp */
#include "check.h"

static void round_trip(int rank, int ranks, size_t bytes, size_t offset)
{
    unsigned char *space = malloc(bytes + offset + 1), *token = space + offset;
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, count = -1;
    MPI_Status status;
    MPI_Request send;
    token[bytes] = 0xA5;
    if (rank == 0) {
        fill(token, bytes, 3);
        MPI_Isend(token, (int)bytes, MPI_BYTE, next, 11, MPI_COMM_WORLD, &send);
        unsigned char *back = malloc(bytes + 1);
        MPI_Recv(back, (int)bytes, MPI_BYTE, before, 11, MPI_COMM_WORLD, &status);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
        CHECK(wrong(back, bytes, 3) == 0);
        free(back);
    } else {
        memset(token, 0, bytes);
        MPI_Recv(token, (int)bytes, MPI_BYTE, before, 11, MPI_COMM_WORLD, &status);
        CHECK(wrong(token, bytes, 3) == 0);
        MPI_Send(token, (int)bytes, MPI_BYTE, next, 11, MPI_COMM_WORLD);
    }
    CHECK(token[bytes] == 0xA5);
    CHECK(status.MPI_SOURCE == before && status.MPI_TAG == 11);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == (int)bytes);
    free(space);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    static const size_t sizes[] = {0, 1, 7, 8, 40, 48, 49, 63, 64, 65, 255, 4096, 8191, 8193, 65536, 65537, 1000003, 4194304};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        round_trip(rank, ranks, sizes[i], i % 3);
    return finish();
}
