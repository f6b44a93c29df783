/* One memory for what is sent and what is received is found, in all collectives that name both and also when a call
 * is repeated; memory that only begins at the same address, or is not used, is not.
 * RUN: ranks=1,2,5 fabrics=shm,tcp only=banyan */
#include "check.h"

enum { MOST = 64 };

static int data[MOST], other[MOST], counts[MOST], displs[MOST], after[MOST], nothing[MOST];
static MPI_Datatype types[MOST];

#define ALIAS(call)                           \
    do {                                      \
        char text[MPI_MAX_ERROR_STRING];      \
        int length, code = (call);            \
        CHECK(code == MPI_ERR_BUFFER);        \
        MPI_Error_string(code, text, &length);\
        CHECK(strstr(text, "sendbuf and recvbuf")); \
    } while (0)

/* Each fails before anything is sent, so it may be called by some ranks only. */
static void found(MPI_Comm comm, int me, int n)
{
    int *own = data + displs[me];
    ALIAS(MPI_Allgatherv(own, 1, MPI_INT, data, counts, displs, MPI_INT, comm));
    ALIAS(MPI_Allgatherv(data, 1, MPI_INT, data, counts, displs, MPI_INT, comm));
    ALIAS(MPI_Alltoallv(data, counts, displs, MPI_INT, data, counts, displs, MPI_INT, comm));
    ALIAS(MPI_Alltoallw(data, counts, displs, types, data, counts, displs, types, comm));
    ALIAS(MPI_Allgather(data, 1, MPI_INT, data, 1, MPI_INT, comm));
    ALIAS(MPI_Alltoall(data, 1, MPI_INT, data, 1, MPI_INT, comm));
    ALIAS(MPI_Allreduce(data, data, 1, MPI_INT, MPI_SUM, comm));
    ALIAS(MPI_Scan(data, data, 1, MPI_INT, MPI_SUM, comm));
    ALIAS(MPI_Reduce_scatter(data, data, counts, MPI_INT, MPI_SUM, comm));
    ALIAS(MPI_Reduce_scatter_block(data, data, 1, MPI_INT, MPI_SUM, comm));
    if (me == n - 1) {
        ALIAS(MPI_Gatherv(own, 1, MPI_INT, data, counts, displs, MPI_INT, me, comm));
        ALIAS(MPI_Scatterv(data, counts, displs, MPI_INT, own, 1, MPI_INT, me, comm));
        ALIAS(MPI_Gather(data, 1, MPI_INT, data, 1, MPI_INT, me, comm));
        ALIAS(MPI_Scatter(data, 1, MPI_INT, data, 1, MPI_INT, me, comm));
    }
    CHECK(MPI_Reduce_local(data, data, 1, MPI_INT, MPI_SUM) == MPI_ERR_BUFFER);
}

static void allowed(MPI_Comm comm, int me, int n)
{
    for (int i = 0; i < n; i++)
        data[i] = 100 * me + i;
    OK(MPI_Alltoallv(data, counts, displs, MPI_INT, data, counts, after, MPI_INT, comm));
    for (int i = 0; i < n; i++)
        CHECK(data[n + i] == 100 * i + me);
    OK(MPI_Allgatherv(data, 1, MPI_INT, data, counts, after, MPI_INT, comm));
    for (int i = 0; i < n; i++)
        CHECK(data[n + i] == 100 * i);
    OK(MPI_Alltoallv(data, nothing, displs, MPI_INT, data, nothing, displs, MPI_INT, comm));
    OK(MPI_Allgatherv(data, 0, MPI_INT, data, nothing, displs, MPI_INT, comm));
    OK(MPI_Gatherv(data, 0, MPI_INT, data, nothing, displs, MPI_INT, 0, comm));
    OK(MPI_Reduce_local(data, data, 0, MPI_INT, MPI_SUM));
    OK(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, displs, MPI_INT, comm));
}

int main(int argc, char **argv)
{
    MPI_Comm comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int me = my_rank(comm), n = size_of(comm);
    for (int i = 0; i < n; i++) {
        counts[i] = 1;
        displs[i] = i;
        after[i] = n + i;
        types[i] = MPI_INT;
    }
    found(comm, me, n);
    /* Calls that were worked out before. */
    for (int round = 0; round < 3; round++) {
        OK(MPI_Allgatherv(other, 1, MPI_INT, data, counts, displs, MPI_INT, comm));
        OK(MPI_Alltoallv(other, counts, displs, MPI_INT, data, counts, displs, MPI_INT, comm));
        OK(MPI_Allreduce(other, data, 1, MPI_INT, MPI_SUM, comm));
    }
    ALIAS(MPI_Allgatherv(data, 1, MPI_INT, data, counts, displs, MPI_INT, comm));
    ALIAS(MPI_Alltoallv(data, counts, displs, MPI_INT, data, counts, displs, MPI_INT, comm));
    ALIAS(MPI_Allreduce(data, data, 1, MPI_INT, MPI_SUM, comm));
    allowed(comm, me, n);
    MPI_Comm_free(&comm);
    return finish();
}
