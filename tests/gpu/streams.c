/* Operations that are enqueued on streams: they begin behind what the stream held, and what it gets later waits for them. The thread that has
 * enqueued them only waits for the stream. With an argument the thread level is too low, which is refused. */
#include "../c/check.h"
#include "device.h"

#include <mpi-ext.h>

enum { INTS = 50000, BYTES = INTS * 4, ROUNDS = 6 };

static int rank, ranks;

static uintptr_t new_stream(void)
{
    uintptr_t new = 0;
    cuda("cuStreamCreate", (uintptr_t)&new, 1, 0);
    return new;
}

static const char *type_of_streams(void)
{
    return is_hip() ? "hipStream_t" : "cudaStream_t";
}

static int try_create(const char *type, const void *value, int size, MPIX_Stream *stream)
{
    MPI_Info info;
    int code;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", type);
    OK(MPIX_Info_set_hex(info, "value", value, size));
    code = MPIX_Stream_create(info, stream);
    MPI_Info_free(&info);
    return class_of(code);
}

static MPI_Comm on_stream(uintptr_t its_stream, MPIX_Stream *stream)
{
    MPI_Comm new;
    MPIX_Stream back;
    CHECK(try_create(type_of_streams(), &its_stream, sizeof its_stream, stream) == MPI_SUCCESS);
    OK(MPIX_Stream_comm_create(MPI_COMM_WORLD, *stream, &new));
    OK(MPIX_Comm_get_stream(new, 0, &back));
    CHECK(back == *stream);
    MPI_Comm_set_errhandler(new, MPI_ERRORS_RETURN);
    return new;
}

static void set(device_ptr at, int value, uintptr_t stream)
{
    int (*fill)(uintptr_t, unsigned char, size_t, uintptr_t);
    *(void **)&fill = driver_function("cuMemsetD8Async");
    CHECK(fill(at, (unsigned char)value, BYTES, stream) == 0);
}

static void copy(void *to, const void *from, uintptr_t stream)
{
    int (*copy)(uintptr_t, uintptr_t, size_t, uintptr_t);
    int (*copy_by_address)(uintptr_t, uintptr_t, size_t, int, uintptr_t);
    if (is_hip()) {
        *(void **)&copy_by_address = driver_function("hipMemcpyAsync");
        CHECK(copy_by_address((uintptr_t)to, (uintptr_t)from, BYTES, 4, stream) == 0);
        return;
    }
    *(void **)&copy = driver_function("cuMemcpyAsync");
    CHECK(copy((uintptr_t)to, (uintptr_t)from, BYTES, stream) == 0);
}

/* All bytes of memory of a device, copied there by what is behind in the stream. */
static int all_are(device_ptr memory, int value)
{
    static unsigned char here[BYTES];
    from_device(here, memory, BYTES);
    for (int i = 0; i < BYTES; i++)
        if (here[i] != (unsigned char)value)
            return 0;
    return 1;
}

/* A ring: what is sent was written by the stream before, and is written again behind; what is received is copied by the stream. */
static void around(MPI_Comm comm, uintptr_t stream, device_ptr mine, device_ptr got, device_ptr kept, int count)
{
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    MPI_Request requests[2];
    MPI_Status status[2];
    for (int round = 0; round < ROUNDS; round++) {
        set(mine, 10 * round + rank, stream);
        OK(MPIX_Irecv_enqueue((void *)got, count, MPI_INT, last, round, comm, &requests[0]));
        if (round % 2 && ranks > 1) {
            OK(MPIX_Send_enqueue((void *)mine, count, MPI_INT, next, round, comm));
            set(mine, 200, stream);
            OK(MPIX_Wait_enqueue(&requests[0], &status[0]));
        } else {
            OK(MPIX_Isend_enqueue((void *)mine, count, MPI_INT, next, round, comm, &requests[1]));
            OK(MPIX_Waitall_enqueue(2, requests, status));
            set(mine, 200, stream);
        }
        CHECK(requests[0] == MPI_REQUEST_NULL);
        copy((void *)kept, (void *)got, stream);
        set(got, 100, stream);
        cuda("cuStreamSynchronize", stream, 0, 0);
        CHECK(status[0].MPI_SOURCE == last && status[0].MPI_TAG == round);
        CHECK(count < INTS || all_are(kept, 10 * round + last));
        CHECK(all_are(got, 100) && all_are(mine, 200));
    }
}

/* Blocking ones to and from a rank, one after the other, without a wait in between. */
static void to_and_fro(MPI_Comm comm, uintptr_t stream, device_ptr mine, device_ptr got)
{
    int peer = rank ^ 1;
    MPI_Status status;
    if (peer >= ranks)
        return;
    set(got, 77, stream);
    for (int round = 0; round < ROUNDS; round++)
        if (rank < peer) {
            set(mine, round, stream);
            OK(MPIX_Send_enqueue((void *)mine, INTS, MPI_INT, peer, 3, comm));
            OK(MPIX_Recv_enqueue((void *)mine, INTS, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status));
        } else {
            OK(MPIX_Recv_enqueue((void *)got, INTS, MPI_INT, peer, 3, comm, MPI_STATUS_IGNORE));
            OK(MPIX_Send_enqueue((void *)got, INTS, MPI_INT, peer, 4, comm));
        }
    cuda("cuStreamSynchronize", stream, 0, 0);
    CHECK(rank > peer || (status.MPI_SOURCE == peer && status.MPI_TAG == 4));
    CHECK(all_are(rank < peer ? mine : got, ROUNDS - 1));
}

/* Sums of sums, which the stream alone orders; and with a rank that enqueues nothing. */
static void sums(MPI_Comm comm, uintptr_t stream, device_ptr mine, device_ptr sum)
{
    int first, expected, ones = 0x01010101;
    set(mine, 1, stream);
    for (int round = 0; round < 3; round++) {
        OK(MPIX_Allreduce_enqueue((void *)mine, (void *)sum, INTS, MPI_INT, MPI_SUM, comm));
        OK(MPIX_Allreduce_enqueue(MPI_IN_PLACE, (void *)sum, INTS, MPI_INT, MPI_MAX, comm));
        copy((void *)mine, (void *)sum, stream);
    }
    cuda("cuStreamSynchronize", stream, 0, 0);
    expected = ones * ranks * ranks * ranks;
    from_device(&first, mine, sizeof first);
    CHECK(first == expected);
    from_device(&first, mine + BYTES - 4, sizeof first);
    CHECK(first == expected);
}

static void beside_a_rank_without(uintptr_t stream, MPIX_Stream mpi, device_ptr memory)
{
    MPI_Comm comm;
    MPIX_Stream none;
    int with = rank == 0, one = 1, sum = 0;
    OK(MPIX_Stream_comm_create(MPI_COMM_WORLD, with ? mpi : MPIX_STREAM_NULL, &comm));
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    OK(MPIX_Comm_get_stream(comm, 0, &none));
    CHECK((none == MPIX_STREAM_NULL) == !with);
    if (with) {
        to_device(memory, &one, sizeof one);
        OK(MPIX_Allreduce_enqueue((void *)memory, (void *)(memory + 64), 1, MPI_INT, MPI_SUM, comm));
        cuda("cuStreamSynchronize", stream, 0, 0);
        from_device(&sum, memory + 64, sizeof sum);
    } else {
        CHECK(class_of(MPIX_Send_enqueue(&one, 1, MPI_INT, 0, 0, comm)) == MPI_ERR_COMM);
        OK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm));
    }
    CHECK(sum == ranks);
    MPI_Comm_free(&comm);
}

/* A receive on one stream that waits for what the other stream sends later. */
static void two_streams(device_ptr memory)
{
    uintptr_t streams[2] = {new_stream(), new_stream()};
    MPIX_Stream mpi[2];
    MPI_Comm comms[2];
    for (int i = 0; i < 2; i++)
        comms[i] = on_stream(streams[i], &mpi[i]);
    OK(MPIX_Recv_enqueue((void *)memory, 1, MPI_INT, MPI_ANY_SOURCE, 7, comms[0], MPI_STATUS_IGNORE));
    for (int i = 0; i < 4; i++)
        OK(MPIX_Send_enqueue((void *)(memory + 64), 1, MPI_INT, (rank + 1) % ranks, i, comms[1]));
    for (int i = 0; i < 4; i++)
        OK(MPI_Recv((void *)(memory + 128), 1, MPI_INT, MPI_ANY_SOURCE, i, comms[1], MPI_STATUS_IGNORE));
    OK(MPI_Send((void *)(memory + 64), 1, MPI_INT, (rank + 1) % ranks, 7, comms[0]));
    for (int i = 0; i < 2; i++) {
        cuda("cuStreamSynchronize", streams[i], 0, 0);
        MPI_Comm_free(&comms[i]);
        OK(MPIX_Stream_free(&mpi[i]));
        CHECK(mpi[i] == MPIX_STREAM_NULL);
    }
}

static void refusals(MPI_Comm comm, uintptr_t stream, device_ptr memory)
{
    MPIX_Stream none;
    MPI_Request request;
    int number = 5;
    CHECK(try_create("aStream_t", &stream, sizeof stream, &none) == MPI_ERR_INFO_VALUE && none == MPIX_STREAM_NULL);
    CHECK(try_create(is_hip() ? "cudaStream_t" : "hipStream_t", &stream, sizeof stream, &none) == MPI_ERR_INFO_VALUE);
    CHECK(try_create(type_of_streams(), &stream, 3, &none) == MPI_ERR_INFO_VALUE);
    CHECK(class_of(MPIX_Stream_create(MPI_INFO_NULL, &none)) == MPI_ERR_INFO);
    CHECK(class_of(MPIX_Send_enqueue((void *)memory, -1, MPI_INT, 0, 0, comm)) == MPI_ERR_COUNT);
    CHECK(class_of(MPIX_Send_enqueue((void *)memory, 1, MPI_INT, 0, 0, MPI_COMM_WORLD)) == MPI_ERR_COMM);
    OK(MPIX_Irecv_enqueue(&number, 1, MPI_INT, MPI_PROC_NULL, 0, comm, &request));
    MPI_Request again = request;
    CHECK(class_of(MPI_Wait(&again, MPI_STATUS_IGNORE)) == MPI_ERR_REQUEST);
    /* What fails in its turn is said by the next call, and the stream goes on. */
    OK(MPIX_Isend_enqueue((void *)memory, 10, MPI_INT, rank, 9, comm, &request));
    OK(MPIX_Recv_enqueue((void *)(memory + 64), 1, MPI_INT, rank, 9, comm, MPI_STATUS_IGNORE));
    cuda("cuStreamSynchronize", stream, 0, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    int code = MPI_SUCCESS;
    for (int i = 0; i < 100 && code == MPI_SUCCESS; i++)
        code = MPIX_Send_enqueue((void *)memory, 1, MPI_INT, MPI_PROC_NULL, 0, comm);
    CHECK(class_of(code) == MPI_ERR_TRUNCATE);
    OK(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE));
    cuda("cuStreamSynchronize", stream, 0, 0);
}

int main(int argc, char **argv)
{
    int provided;
    (void)argv;
    MPI_Init_thread(NULL, NULL, argc > 1 ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    use_device(rank);
    uintptr_t stream = new_stream();
    MPIX_Stream mpi;
    if (argc > 1) {
        CHECK(try_create(type_of_streams(), &stream, sizeof stream, &mpi) == MPI_ERR_OTHER && mpi == MPIX_STREAM_NULL);
        return finish();
    }
    device_ptr mine = device_alloc(BYTES), got = device_alloc(BYTES), kept = device_alloc(BYTES);
    MPI_Comm comm = on_stream(stream, &mpi);
    around(comm, stream, mine, got, kept, INTS);
    around(comm, stream, mine, got, kept, 1);
    to_and_fro(comm, stream, mine, got);
    sums(comm, stream, mine, got);
    beside_a_rank_without(stream, mpi, mine);
    two_streams(mine);
    refusals(comm, stream, mine);
    /* The last one is over when MPI is finalized. */
    OK(MPIX_Allreduce_enqueue((void *)mine, (void *)got, INTS, MPI_INT, MPI_SUM, comm));
    MPI_Comm_free(&comm);
    return finish();
}
