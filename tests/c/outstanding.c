/* Many nonblocking collectives at once, waited for in another order, mixed with messages.
 * RUN: ranks=2,3,5 fabrics=shm,tcp */
#include "check.h"

enum { MANY = 40 };

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Comm other;
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Request requests[4 * MANY];
    static long a[MANY][500], b[MANY][500], c[MANY][100], d[MANY], e[MANY];
    for (int i = 0; i < MANY; i++) {
        int n = i % 2 ? 1 : 500;
        for (int k = 0; k < n; k++)
            a[i][k] = rank + i + k;
        for (int k = 0; k < 100; k++)
            c[i][k] = rank == i % ranks ? i * 1000 + k : -1;
        d[i] = rank * 100 + i;
        MPI_Comm comm = i % 3 ? MPI_COMM_WORLD : other;
        MPI_Iallreduce(a[i], b[i], n, MPI_LONG, MPI_SUM, comm, &requests[4 * i]);
        MPI_Irecv(&e[i], 1, MPI_LONG, before, i, comm, &requests[4 * i + 1]);
        MPI_Ibcast(c[i], 100, MPI_LONG, i % ranks, comm, &requests[4 * i + 2]);
        MPI_Isend(&d[i], 1, MPI_LONG, next, i, comm, &requests[4 * i + 3]);
    }
    for (int left = 4 * MANY; left > 2 * MANY; left--) {
        int which;
        OK(MPI_Waitany(4 * MANY, requests, &which, MPI_STATUS_IGNORE));
        CHECK(which >= 0 && which < 4 * MANY && requests[which] == MPI_REQUEST_NULL);
    }
    OK(MPI_Waitall(4 * MANY, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < MANY; i++) {
        int n = i % 2 ? 1 : 500;
        for (int k = 0; k < n; k++)
            CHECK(b[i][k] == (long)ranks * (ranks - 1) / 2 + (long)ranks * (i + k));
        for (int k = 0; k < 100; k++)
            CHECK(c[i][k] == i * 1000 + k);
        CHECK(e[i] == before * 100 + i);
    }
    MPI_Comm_free(&other);
    return finish();
}
