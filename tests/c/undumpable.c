/* Ranks whose memory no other process may read, as they are not dumpable: collectives that would read it get their data another
 * way. Only the superuser could read it all the same, so the ranks become somebody else.
 * RUN: ranks=20 fabrics=shm limit=30 only=banyan env=BANYAN_COLL=allreduce=single_copy,bcast=single_copy,gather=single_copy */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <unistd.h>
#include "check.h"

enum { MANY = 200000 };

int main(int argc, char **argv)
{
    static double sum[MANY];
    static unsigned char bytes[MANY], blocks[20 * 10000];
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        return 1;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), wrong_ones = 0;
    for (int round = 0; round < 20; round++) {
        int root = round % ranks;
        for (int i = 0; i < MANY; i++)
            sum[i] = rank + round + i;
        OK(MPI_Allreduce(MPI_IN_PLACE, sum, MANY, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
        for (int i = 0; i < MANY; i++)
            wrong_ones += sum[i] != ranks * (ranks - 1) / 2.0 + (double)ranks * (round + i);
        if (rank == root)
            fill(bytes, sizeof bytes, round);
        OK(MPI_Bcast(bytes, sizeof bytes, MPI_BYTE, root, MPI_COMM_WORLD));
        CHECK(wrong(bytes, sizeof bytes, round) == 0);
        const int each = sizeof blocks / ranks;
        fill(bytes, each, rank + round);
        OK(MPI_Gather(bytes, each, MPI_BYTE, blocks, each, MPI_BYTE, root, MPI_COMM_WORLD));
        for (int i = 0; rank == root && i < ranks; i++)
            CHECK(wrong(blocks + i * each, each, i + round) == 0);
    }
    CHECK(wrong_ones == 0);
    return finish();
}
