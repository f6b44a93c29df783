/* Collectives of long data on devices of the processes of one host, by algorithms that send messages: BANYAN_COLL says which, or with an argument a hint says
 * that all buffers are on devices, given in the call that a second argument names. */
#include "../c/check.h"
#include "device.h"

enum { INTS = 70000, BYTES = INTS * 4 };

static int rank, ranks, *here;

/* The i-th int that a rank gives in block b. */
static int value(int who, int b, int i)
{
    return who * 1000 + b * 100 + i % 97;
}

static void give(device_ptr to, int blocks)
{
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < INTS; i++)
            here[b * INTS + i] = value(rank, b, i);
    to_device(to, here, (size_t)blocks * BYTES);
}

static const int *got(device_ptr from, int blocks)
{
    from_device(here, from, (size_t)blocks * BYTES);
    return here;
}

static int sum(int b, int i)
{
    int all = 0;
    for (int r = 0; r < ranks; r++)
        all += value(r, b, i);
    return all;
}

/* A communicator whose buffers are said to be of these kinds; "late": after a collective. */
static MPI_Comm hinted(const char *kinds, const char *call)
{
    MPI_Comm comm;
    MPI_Info info;
    MPI_Request request;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_assert_memory_alloc_kinds", kinds);
    if (strcmp(call, "split") == 0) {
        OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, info, &comm));
    } else if (strcmp(call, "idup") == 0) {
        OK(MPI_Comm_idup_with_info(MPI_COMM_WORLD, info, &comm, &request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else if (strcmp(call, "dup") == 0) {
        OK(MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm));
    } else {
        OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
        if (strcmp(call, "late") == 0)
            OK(MPI_Barrier(comm));
        OK(MPI_Comm_set_info(comm, info));
    }
    MPI_Info_free(&info);
    int length = 0, flag;
    OK(MPI_Comm_get_info(comm, &info));
    OK(MPI_Info_get_string(info, "mpi_assert_memory_alloc_kinds", &length, NULL, &flag));
    CHECK(flag && length == (int)strlen(kinds) + 1);
    MPI_Info_free(&info);
    return comm;
}

#define ALL(blocks, expected)                                                     \
    do {                                                                          \
        int wrong_ones = 0;                                                       \
        for (int b = 0; b < (blocks); b++)                                        \
            for (int i = 0; i < INTS; i++)                                        \
                wrong_ones += result[b * INTS + i] != (expected);                 \
        CHECK(wrong_ones == 0);                                                   \
    } while (0)

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    use_device(rank);
    if (argc > 2)
        comm = hinted(argv[1], argv[2]);
    here = malloc((size_t)ranks * BYTES);
    device_ptr send = device_alloc((size_t)ranks * BYTES), recv = device_alloc((size_t)ranks * BYTES);
    const int *result;
    for (int round = 0; round < 3; round++) {
        give(send, ranks);
        OK(MPI_Allreduce((void *)send, (void *)recv, INTS * ranks, MPI_INT, MPI_SUM, comm));
        result = got(recv, ranks);
        ALL(ranks, sum(b, i));
        give(recv, ranks);
        OK(MPI_Allreduce(MPI_IN_PLACE, (void *)recv, INTS * ranks, MPI_INT, MPI_SUM, comm));
        result = got(recv, ranks);
        ALL(ranks, sum(b, i));
        give(send, 1);
        OK(MPI_Bcast((void *)send, INTS, MPI_INT, round % ranks, comm));
        result = got(send, 1);
        ALL(1, value(round % ranks, 0, i));
        give(send, ranks);
        OK(MPI_Alltoall((void *)send, INTS, MPI_INT, (void *)recv, INTS, MPI_INT, comm));
        result = got(recv, ranks);
        ALL(ranks, value(b, rank, i));
        OK(MPI_Alltoall(MPI_IN_PLACE, INTS, MPI_INT, (void *)send, INTS, MPI_INT, comm));
        result = got(send, ranks);
        ALL(ranks, value(b, rank, i));
        give(send, ranks);
        OK(MPI_Allgather((void *)send, INTS, MPI_INT, (void *)recv, INTS, MPI_INT, comm));
        result = got(recv, ranks);
        ALL(ranks, value(b, 0, i));
        OK(MPI_Reduce_scatter_block((void *)send, (void *)recv, INTS, MPI_INT, MPI_SUM, comm));
        result = got(recv, 1);
        ALL(1, sum(rank, i));
        if (comm != MPI_COMM_WORLD)
            continue;
        /* One rank's buffer is the host's. */
        give(send, 1);
        int *mine = malloc(BYTES);
        from_device(mine, send, BYTES);
        OK(MPI_Allreduce(rank == 0 ? (void *)mine : (void *)send, (void *)recv, INTS, MPI_INT, MPI_SUM, comm));
        result = got(recv, 1);
        ALL(1, sum(0, i));
        free(mine);
    }
    free(here);
    if (comm != MPI_COMM_WORLD)
        MPI_Comm_free(&comm);
    return finish();
}
