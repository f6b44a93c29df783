/* Every function with 64-bit counts, in one process; some counts past 2^31. */
#include "check.h"

#define HUGE_COUNT 3000000000
#define N 8

static int a[N], b[N];
static MPI_Status status;
static MPI_Request request;

static void fill(void) {
    int i;
    for (i = 0; i < N; i++) {
        a[i] = i + 1;
        b[i] = -1;
    }
}

static int same(void) {
    return !memcmp(a, b, sizeof a);
}

/* The request carries a to b. */
static void completes(int line) {
    MPI_Status own;
    if (MPI_Wait(&request, &own) != MPI_SUCCESS || request != MPI_REQUEST_NULL || !same()) {
        printf("line %d: a and b differ\n", line);
        failures++;
    }
    fill();
}

/* The same for a persistent request, twice. */
static void persists(int line) {
    int round;
    for (round = 0; round < 2; round++) {
        fill();
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, &status));
        if (!same()) {
            printf("line %d: a and b differ\n", line);
            failures++;
        }
    }
    OK(MPI_Request_free(&request));
    fill();
}

#define BLOCKING(call) do { fill(); OK(call); CHECK(same()); } while (0)
#define NONBLOCKING(call) do { fill(); OK(call); completes(__LINE__); } while (0)
#define PERSISTENT(call) do { fill(); OK(call); persists(__LINE__); } while (0)
/* Exscan leaves rank 0 alone. */
#define LEAVES(call) do { fill(); OK(call); CHECK(b[0] == -1); } while (0)

static MPI_Comm comm = MPI_COMM_SELF;

static void collectives(void) {
    MPI_Count n = N, counts[1] = {N};
    MPI_Aint displs[1] = {0};
    MPI_Datatype types[1] = {MPI_INT}, t = MPI_INT;
    MPI_Info i = MPI_INFO_NULL;
    MPI_Op op = MPI_SUM;
    OK(MPI_Bcast_c(a, n, t, 0, comm));
    BLOCKING(MPI_Gather_c(a, n, t, b, n, t, 0, comm));
    BLOCKING(MPI_Gatherv_c(a, n, t, b, counts, displs, t, 0, comm));
    BLOCKING(MPI_Scatter_c(a, n, t, b, n, t, 0, comm));
    BLOCKING(MPI_Scatterv_c(a, counts, displs, t, b, n, t, 0, comm));
    BLOCKING(MPI_Allgather_c(a, n, t, b, n, t, comm));
    BLOCKING(MPI_Allgatherv_c(a, n, t, b, counts, displs, t, comm));
    BLOCKING(MPI_Alltoall_c(a, n, t, b, n, t, comm));
    BLOCKING(MPI_Alltoallv_c(a, counts, displs, t, b, counts, displs, t, comm));
    BLOCKING(MPI_Alltoallw_c(a, counts, displs, types, b, counts, displs, types, comm));
    BLOCKING(MPI_Reduce_c(a, b, n, t, op, 0, comm));
    BLOCKING(MPI_Allreduce_c(a, b, n, t, op, comm));
    BLOCKING(MPI_Reduce_scatter_c(a, b, counts, t, op, comm));
    BLOCKING(MPI_Reduce_scatter_block_c(a, b, n, t, op, comm));
    BLOCKING(MPI_Scan_c(a, b, n, t, op, comm));
    LEAVES(MPI_Exscan_c(a, b, n, t, op, comm));

    OK(MPI_Ibcast_c(a, n, t, 0, comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    NONBLOCKING(MPI_Igather_c(a, n, t, b, n, t, 0, comm, &request));
    NONBLOCKING(MPI_Igatherv_c(a, n, t, b, counts, displs, t, 0, comm, &request));
    NONBLOCKING(MPI_Iscatter_c(a, n, t, b, n, t, 0, comm, &request));
    NONBLOCKING(MPI_Iscatterv_c(a, counts, displs, t, b, n, t, 0, comm, &request));
    NONBLOCKING(MPI_Iallgather_c(a, n, t, b, n, t, comm, &request));
    NONBLOCKING(MPI_Iallgatherv_c(a, n, t, b, counts, displs, t, comm, &request));
    NONBLOCKING(MPI_Ialltoall_c(a, n, t, b, n, t, comm, &request));
    NONBLOCKING(MPI_Ialltoallv_c(a, counts, displs, t, b, counts, displs, t, comm, &request));
    NONBLOCKING(MPI_Ialltoallw_c(a, counts, displs, types, b, counts, displs, types, comm, &request));
    NONBLOCKING(MPI_Ireduce_c(a, b, n, t, op, 0, comm, &request));
    NONBLOCKING(MPI_Iallreduce_c(a, b, n, t, op, comm, &request));
    NONBLOCKING(MPI_Ireduce_scatter_c(a, b, counts, t, op, comm, &request));
    NONBLOCKING(MPI_Ireduce_scatter_block_c(a, b, n, t, op, comm, &request));
    NONBLOCKING(MPI_Iscan_c(a, b, n, t, op, comm, &request));
    LEAVES(MPI_Iexscan_c(a, b, n, t, op, comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));

    OK(MPI_Bcast_init_c(a, n, t, 0, comm, i, &request));
    OK(MPI_Request_free(&request));
    PERSISTENT(MPI_Gather_init_c(a, n, t, b, n, t, 0, comm, i, &request));
    PERSISTENT(MPI_Gatherv_init_c(a, n, t, b, counts, displs, t, 0, comm, i, &request));
    PERSISTENT(MPI_Scatter_init_c(a, n, t, b, n, t, 0, comm, i, &request));
    PERSISTENT(MPI_Scatterv_init_c(a, counts, displs, t, b, n, t, 0, comm, i, &request));
    PERSISTENT(MPI_Allgather_init_c(a, n, t, b, n, t, comm, i, &request));
    PERSISTENT(MPI_Allgatherv_init_c(a, n, t, b, counts, displs, t, comm, i, &request));
    PERSISTENT(MPI_Alltoall_init_c(a, n, t, b, n, t, comm, i, &request));
    PERSISTENT(MPI_Alltoallv_init_c(a, counts, displs, t, b, counts, displs, t, comm, i, &request));
    PERSISTENT(MPI_Alltoallw_init_c(a, counts, displs, types, b, counts, displs, types, comm, i, &request));
    PERSISTENT(MPI_Reduce_init_c(a, b, n, t, op, 0, comm, i, &request));
    PERSISTENT(MPI_Allreduce_init_c(a, b, n, t, op, comm, i, &request));
    PERSISTENT(MPI_Reduce_scatter_init_c(a, b, counts, t, op, comm, i, &request));
    PERSISTENT(MPI_Reduce_scatter_block_init_c(a, b, n, t, op, comm, i, &request));
    PERSISTENT(MPI_Scan_init_c(a, b, n, t, op, comm, i, &request));
    LEAVES(MPI_Exscan_init_c(a, b, n, t, op, comm, i, &request));
    OK(MPI_Request_free(&request));

    /* One process has nothing to move, however much it is. */
    OK(MPI_Bcast_c(a, 0, t, 0, comm));
    OK(MPI_Allreduce_c(MPI_IN_PLACE, a, n, t, op, comm));
}

static void messages(void) {
    MPI_Count n = N, size;
    MPI_Message message;
    MPI_Request send;
    MPI_Datatype t = MPI_INT;
    static char room[4096];
    void *old;
    int *recv = b;
    OK(MPI_Buffer_attach_c(room, sizeof room));
#define RECEIVED(sent)                                    \
    do {                                                  \
        fill();                                           \
        OK(MPI_Irecv_c(recv, n, t, 0, 5, comm, &request)); \
        OK(sent);                                         \
        completes(__LINE__);                              \
    } while (0)
    RECEIVED(MPI_Send_c(a, n, t, 0, 5, comm));
    RECEIVED(MPI_Ssend_c(a, n, t, 0, 5, comm));
    RECEIVED(MPI_Rsend_c(a, n, t, 0, 5, comm));
    RECEIVED(MPI_Bsend_c(a, n, t, 0, 5, comm));
#define ISENT(sent)                                       \
    do {                                                  \
        fill();                                           \
        OK(sent);                                         \
        OK(MPI_Recv_c(b, n, t, 0, 5, comm, &status));     \
        OK(MPI_Wait(&send, MPI_STATUS_IGNORE));           \
        CHECK(same());                                    \
    } while (0)
    ISENT(MPI_Isend_c(a, n, t, 0, 5, comm, &send));
    ISENT(MPI_Issend_c(a, n, t, 0, 5, comm, &send));
    ISENT(MPI_Ibsend_c(a, n, t, 0, 5, comm, &send));
    fill();
    OK(MPI_Irecv_c(b, n, t, 0, 5, comm, &request));
    OK(MPI_Irsend_c(a, n, t, 0, 5, comm, &send));
    OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
    completes(__LINE__);
#define KEPT(made)                                        \
    do {                                                  \
        fill();                                           \
        OK(MPI_Recv_init_c(b, n, t, 0, 5, comm, &request)); \
        OK(made);                                         \
        OK(MPI_Start(&request));                          \
        OK(MPI_Start(&send));                             \
        OK(MPI_Wait(&send, MPI_STATUS_IGNORE));           \
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));        \
        CHECK(same() && send != MPI_REQUEST_NULL);        \
        OK(MPI_Request_free(&send));                      \
        OK(MPI_Request_free(&request));                   \
    } while (0)
    KEPT(MPI_Send_init_c(a, n, t, 0, 5, comm, &send));
    KEPT(MPI_Ssend_init_c(a, n, t, 0, 5, comm, &send));
    KEPT(MPI_Rsend_init_c(a, n, t, 0, 5, comm, &send));
    KEPT(MPI_Bsend_init_c(a, n, t, 0, 5, comm, &send));
    BLOCKING(MPI_Sendrecv_c(a, n, t, 0, 1, b, n, t, 0, 1, comm, &status));
    NONBLOCKING(MPI_Isendrecv_c(a, n, t, 0, 1, b, n, t, 0, 1, comm, &request));
    fill();
    OK(MPI_Sendrecv_replace_c(a, n, t, 0, 1, 0, 1, comm, &status));
    CHECK(a[3] == 4);
    OK(MPI_Isendrecv_replace_c(a, n, t, 0, 1, 0, 1, comm, &request));
    OK(MPI_Wait(&request, &status));
    CHECK(a[3] == 4);
    OK(MPI_Isend_c(a, n, t, 0, 6, comm, &send));
    OK(MPI_Mprobe(0, 6, comm, &message, &status));
    OK(MPI_Get_count_c(&status, t, &size));
    CHECK(size == N);
    fill();
    OK(MPI_Mrecv_c(b, n, t, &message, &status));
    OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
    CHECK(same() && message == MPI_MESSAGE_NULL);
    OK(MPI_Isend_c(a, n, t, 0, 6, comm, &send));
    OK(MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &message, &status));
    fill();
    OK(MPI_Imrecv_c(b, n, t, &message, &request));
    OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
    completes(__LINE__);
    OK(MPI_Send_c(a, HUGE_COUNT, MPI_DOUBLE, MPI_PROC_NULL, 0, comm));
    OK(MPI_Buffer_detach_c(&old, &size));
    CHECK(old == room && size == sizeof room);
    OK(MPI_Comm_attach_buffer_c(comm, room, sizeof room));
    OK(MPI_Comm_flush_buffer(comm));
    OK(MPI_Comm_detach_buffer_c(comm, &old, &size));
    CHECK(old == room && size == sizeof room);
}

static void types(void) {
    MPI_Datatype t, u, inner[2] = {MPI_INT, MPI_DOUBLE};
    MPI_Count size, lb, extent, ints, addresses, counts, datatypes, two[2] = {1, 2}, far[2] = {0, HUGE_COUNT};
    MPI_Count large[16], sizes[2] = {HUGE_COUNT, 4}, sub[2] = {2, 2}, starts[2] = {HUGE_COUNT - 2, 1};
    MPI_Count gsizes[1] = {HUGE_COUNT};
    int combiner, integers[16], kinds[1] = {MPI_DISTRIBUTE_BLOCK}, args[1] = {MPI_DISTRIBUTE_DFLT_DARG};
    int grid[1] = {2}, small;
    MPI_Aint where[16];
    OK(MPI_Type_contiguous_c(HUGE_COUNT, MPI_INT, &t));
    OK(MPI_Type_size_c(t, &size));
    CHECK(size == 4 * HUGE_COUNT);
    OK(MPI_Type_size(t, &small));
    CHECK(small == MPI_UNDEFINED);
    OK(MPI_Type_get_extent_c(t, &lb, &extent));
    CHECK(lb == 0 && extent == 4 * HUGE_COUNT);
    OK(MPI_Type_get_true_extent_c(t, &lb, &extent));
    CHECK(lb == 0 && extent == 4 * HUGE_COUNT);
    OK(MPI_Type_get_envelope_c(t, &ints, &addresses, &counts, &datatypes, &combiner));
    CHECK(ints == 0 && addresses == 0 && counts == 1 && datatypes == 1 && combiner == MPI_COMBINER_CONTIGUOUS);
    OK(MPI_Type_get_contents_c(t, 16, 16, 16, 16, integers, where, large, inner));
    CHECK(large[0] == HUGE_COUNT && inner[0] == MPI_INT);
    inner[0] = MPI_INT;
    inner[1] = MPI_DOUBLE;
    OK(MPI_Type_commit(&t));
    OK(MPI_Pack_size_c(2, t, comm, &size));
    CHECK(size >= 8 * HUGE_COUNT);
    OK(MPI_Status_set_elements_c(&status, MPI_INT, HUGE_COUNT));
    OK(MPI_Get_elements_c(&status, t, &size));
    CHECK(size == HUGE_COUNT);
    OK(MPI_Get_count_c(&status, t, &size));
    CHECK(size == 1);
    OK(MPI_Get_count_c(&status, MPI_CHAR, &size));
    CHECK(size == 4 * HUGE_COUNT);
    OK(MPI_Get_count(&status, MPI_CHAR, &small));
    CHECK(small == MPI_UNDEFINED);
    OK(MPI_Type_free(&t));
#define EXTENT(made, wanted)                              \
    do {                                                  \
        OK(made);                                         \
        OK(MPI_Type_get_extent_c(u, &lb, &extent));       \
        CHECK(extent == (wanted));                        \
        OK(MPI_Type_free(&u));                            \
    } while (0)
    EXTENT(MPI_Type_vector_c(2, 1, HUGE_COUNT, MPI_INT, &u), 4 * HUGE_COUNT + 4);
    EXTENT(MPI_Type_create_hvector_c(2, 1, HUGE_COUNT, MPI_INT, &u), HUGE_COUNT + 4);
    EXTENT(MPI_Type_indexed_c(2, two, far, MPI_INT, &u), 4 * HUGE_COUNT + 8);
    EXTENT(MPI_Type_create_hindexed_c(2, two, far, MPI_INT, &u), HUGE_COUNT + 8);
    EXTENT(MPI_Type_create_indexed_block_c(2, 3, far, MPI_INT, &u), 4 * HUGE_COUNT + 12);
    EXTENT(MPI_Type_create_hindexed_block_c(2, 3, far, MPI_INT, &u), HUGE_COUNT + 12);
    EXTENT(MPI_Type_create_struct_c(2, two, far, inner, &u), HUGE_COUNT + 16);
    EXTENT(MPI_Type_create_resized_c(MPI_INT, 0, HUGE_COUNT, &u), HUGE_COUNT);
    EXTENT(MPI_Type_create_subarray_c(2, sizes, sub, starts, MPI_ORDER_C, MPI_BYTE, &u), 4 * HUGE_COUNT);
    EXTENT(MPI_Type_create_darray_c(2, 1, 1, gsizes, kinds, args, grid, MPI_ORDER_C, MPI_BYTE, &u), HUGE_COUNT);
}

static void packing(void) {
    char packed[256];
    MPI_Count at = 0, size;
    fill();
    OK(MPI_Pack_c(a, N, MPI_INT, packed, sizeof packed, &at, comm));
    CHECK(at == sizeof a);
    at = 0;
    OK(MPI_Unpack_c(packed, sizeof packed, &at, b, N, MPI_INT, comm));
    CHECK(same() && at == sizeof a);
    fill();
    OK(MPI_Pack_external_size_c("external32", N, MPI_INT, &size));
    CHECK(size == 4 * N);
    at = 0;
    OK(MPI_Pack_external_c("external32", a, N, MPI_INT, packed, sizeof packed, &at));
    CHECK(at == size && packed[3] == 1 && packed[0] == 0);
    at = 0;
    OK(MPI_Unpack_external_c("external32", packed, size, &at, b, N, MPI_INT));
    CHECK(same());
}

static MPI_Count longest;

static void add(void *in, void *inout, MPI_Count *count, MPI_Datatype *type) {
    MPI_Count i;
    CHECK(*type == MPI_INT);
    longest = *count;
    for (i = 0; i < *count && i < N; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static int pieces;
static MPI_Count elements;

static void nothing(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)in;
    (void)inout;
    CHECK(*count > 0 && *type == MPI_BYTE);
    pieces++;
    elements += *count;
}

static void operations(void) {
    MPI_Op op;
    fill();
    OK(MPI_Op_create_c(add, 1, &op));
    OK(MPI_Reduce_local_c(a, b, N, MPI_INT, op));
    CHECK(longest == N && b[2] == 2);
    OK(MPI_Reduce_local_c(a, b, HUGE_COUNT, MPI_INT, op));
    CHECK(longest == HUGE_COUNT);
    OK(MPI_Op_free(&op));
    CHECK(op == MPI_OP_NULL);
    /* A function with int counts gets a large one in pieces. */
    OK(MPI_Op_create(nothing, 1, &op));
    OK(MPI_Reduce_local_c(a, b, HUGE_COUNT, MPI_BYTE, op));
    CHECK(pieces == 2 && elements == HUGE_COUNT);
    OK(MPI_Op_free(&op));
}

int main(int argc, char **argv) {
    OK(MPI_Init(&argc, &argv));
    collectives();
    messages();
    types();
    packing();
    operations();
    OK(MPI_Finalize());
    return done();
}
