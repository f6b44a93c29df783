/* Order, wildcards, floods: messages of a pair do not overtake each other, whatever their size.
 * RUN: ranks=2,5 fabrics=shm,tcp */
#include "check.h"

static int rank, ranks;

/* Small and large in turn; the receiver sees them in order though it asks by wildcard. */
static void order(void)
{
    enum { COUNT = 200, LARGE = 40000 };
    int *data = calloc(LARGE, sizeof(int));
    if (rank != 0) {
        for (int i = 0; i < COUNT; i++) {
            data[0] = i;
            MPI_Send(data, i % 7 == 0 ? LARGE : 1 + i % 5, MPI_INT, 0, i % 3, MPI_COMM_WORLD);
        }
    } else {
        int *next = calloc((size_t)ranks, sizeof(int)), count;
        MPI_Status status;
        for (int i = 0; i < COUNT * (ranks - 1); i++) {
            MPI_Recv(data, LARGE, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            int from = status.MPI_SOURCE, n = next[from]++;
            MPI_Get_count(&status, MPI_INT, &count);
            CHECK(data[0] == n && status.MPI_TAG == n % 3 && count == (n % 7 == 0 ? LARGE : 1 + n % 5));
        }
        free(next);
    }
    free(data);
}

/* Ten thousand unexpected messages, then received in the opposite order of tags. */
static void flood(void)
{
    enum { COUNT = 10000 };
    int value;
    if (rank == 1) {
        for (int i = 0; i < COUNT; i++)
            MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_WORLD);
        MPI_Send(&rank, 1, MPI_INT, 0, COUNT, MPI_COMM_WORLD);
    } else if (rank == 0) {
        MPI_Recv(&value, 1, MPI_INT, 1, COUNT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = COUNT - 1; i >= 0; i--) {
            MPI_Recv(&value, 1, MPI_INT, 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(value == i);
        }
    }
}

/* Ten thousand receives posted first, by all kinds of wildcard; the earliest posted one wins. */
static void posted(void)
{
    enum { COUNT = 10000 };
    static int values[COUNT];
    static MPI_Request requests[COUNT];
    if (rank == 0) {
        for (int i = 0; i < COUNT; i++) {
            int from = i % 2 ? MPI_ANY_SOURCE : 1, tag = i % 3 ? 4 : MPI_ANY_TAG;
            MPI_Irecv(&values[i], 1, MPI_INT, from, tag, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Waitall(COUNT, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < COUNT; i++)
            CHECK(values[i] == i);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; rank == 1 && i < COUNT; i++)
            MPI_Send(&i, 1, MPI_INT, 0, 4, MPI_COMM_WORLD);
    }
}

/* Everyone sends much to everyone before anyone receives: rings must not block for good. */
static void crossfire(void)
{
    enum { COUNT = 300, SIZE = 3000 };
    char *out = malloc(SIZE), *in = malloc(SIZE);
    MPI_Request *requests = malloc(sizeof(MPI_Request) * (size_t)(COUNT * ranks));
    int n = 0;
    fill(out, SIZE, rank);
    for (int i = 0; i < COUNT; i++)
        for (int to = 0; to < ranks; to++)
            MPI_Isend(out, SIZE, MPI_CHAR, to, i, MPI_COMM_WORLD, &requests[n++]);
    for (int i = COUNT - 1; i >= 0; i--)
        for (int from = 0; from < ranks; from++) {
            MPI_Recv(in, SIZE, MPI_CHAR, from, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(wrong(in, SIZE, from) == 0);
        }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    ranks = size_of(MPI_COMM_WORLD);
    order();
    MPI_Barrier(MPI_COMM_WORLD);
    flood();
    MPI_Barrier(MPI_COMM_WORLD);
    posted();
    MPI_Barrier(MPI_COMM_WORLD);
    crossfire();
    return finish();
}
