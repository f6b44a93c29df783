/* Short messages whose memory is a CUDA device's, and short steps of collectives, which the processor copies by itself through a mapping of that memory (GDRCopy): how often,
 * and what the driver is called for meanwhile. The argument is "mapped", or "refused" where nothing can be mapped: then the driver copies. What was freed is never reached by its
 * old mapping. */
#include "../c/check.h"
#include "device.h"

enum { TIMES = 50, MOST = 40000, READ = 2 << 10, WRITE = 32 << 10, BYTES = 5000, ROUNDS = 25 };

static int mapped;
static MPI_T_pvar_session session;

/* A counter from now on. */
static MPI_T_pvar_handle counter(const char *name)
{
    MPI_T_pvar_handle handle;
    int index = -1, count = 0;
    OK(MPI_T_pvar_get_index(name, MPI_T_PVAR_CLASS_COUNTER, &index));
    OK(MPI_T_pvar_handle_alloc(session, index, NULL, &handle, &count));
    OK(MPI_T_pvar_start(session, handle));
    return handle;
}

static unsigned long long value(MPI_T_pvar_handle handle)
{
    unsigned long long now = 0;
    OK(MPI_T_pvar_read(session, handle, &now));
    return now;
}

/* Messages one after the other; receives come before them, or are `late`. */
static void messages(device_ptr buffer, int bytes, int late)
{
    MPI_T_pvar_handle copies = counter("gpu_mapped_copies"), by_driver = counter("gpu_copies");
    unsigned long long asked = driver_calls("cuPointerGetAttribute"), waited = driver_calls("cuStreamSynchronize");
    int rank = my_rank(MPI_COMM_WORLD), byself = mapped && bytes <= (rank == 0 ? READ : WRITE);
    for (int i = 0; i < TIMES; i++) {
        if (rank == 0) {
            if (!late)
                OK(MPI_Recv(NULL, 0, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Send((void *)buffer, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD));
            if (late)
                OK(MPI_Send(NULL, 0, MPI_INT, 1, 1, MPI_COMM_WORLD));
        } else {
            MPI_Request request;
            if (late)
                OK(MPI_Recv(NULL, 0, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            OK(MPI_Irecv((void *)buffer, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &request));
            if (!late)
                OK(MPI_Send(NULL, 0, MPI_INT, 0, 1, MPI_COMM_WORLD));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
    }
    CHECK(value(copies) == (byself ? TIMES : 0));
    CHECK(value(by_driver) == (byself ? 0 : TIMES));
    if (byself) {
        /* What the memory is, and whether it is still that. */
        CHECK(driver_calls("cuPointerGetAttribute") - asked <= 2 * TIMES + 40);
        CHECK(driver_calls("cuStreamSynchronize") == waited);
    }
    OK(MPI_T_pvar_handle_free(session, &copies));
    OK(MPI_T_pvar_handle_free(session, &by_driver));
}

/* What is sent from one device comes to the other one, at odd addresses, to memory that often has the address of what was freed before. */
static void bytes_are_right(void)
{
    static unsigned char in[BYTES], out[BYTES];
    device_ptr before = 0;
    MPI_T_pvar_handle copies = counter("gpu_mapped_copies");
    int rank = my_rank(MPI_COMM_WORLD), again = 0;
    /* More allocations than can be paid for by as few copies would go by the driver. */
    for (int round = 0; round < ROUNDS; round++) {
        device_ptr memory = device_alloc(BYTES);
        int at = round * 13 % 1000, bytes = 1 + round * 83 % READ;
        again += memory == before;
        before = memory;
        if (rank == 0) {
            fill(out, BYTES, round);
            to_device(memory, out, BYTES);
            OK(MPI_Send((void *)(memory + at), bytes, MPI_BYTE, 1, 3, MPI_COMM_WORLD));
        } else {
            memset(out, round, BYTES);
            to_device(memory, out, BYTES);
            OK(MPI_Recv((void *)(memory + at), bytes, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            fill(in, BYTES, round);
            memcpy(out + at, in + at, bytes);
            from_device(in, memory, BYTES);
            CHECK(memcmp(in, out, BYTES) == 0);
        }
        device_free(memory);
    }
    CHECK(again > 0);
    CHECK(value(copies) == (mapped ? ROUNDS : 0));
    OK(MPI_T_pvar_handle_free(session, &copies));
}

static void collectives(void)
{
    MPI_T_pvar_handle copies = counter("gpu_mapped_copies");
    int size, rank = my_rank(MPI_COMM_WORLD), values[100];
    device_ptr memory = device_alloc(sizeof values);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 100; i++)
            values[i] = rank + i * round;
        to_device(memory, values, sizeof values);
        OK(MPI_Allreduce(MPI_IN_PLACE, (void *)memory, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        from_device(values, memory, sizeof values);
        for (int i = 0; i < 100; i++)
            CHECK(values[i] == size * (size - 1) / 2 + size * i * round);
        OK(MPI_Bcast((void *)memory, 100, MPI_INT, 0, MPI_COMM_WORLD));
    }
    CHECK((value(copies) >= 20) == mapped);
    device_free(memory);
    OK(MPI_T_pvar_handle_free(session, &copies));
}

int main(int argc, char **argv)
{
    static const int lengths[] = {1, 8, 64, 65, 1000, READ, READ + 1, WRITE, WRITE + 1};
    int level;
    CHECK(argc == 2);
    mapped = strcmp(argv[1], "mapped") == 0;
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    MPI_Init(&argc, &argv);
    OK(MPI_T_pvar_session_create(&session));
    MPI_T_pvar_handle refused = counter("gpu_mapped_refused");
    use_device(my_rank(MPI_COMM_WORLD));
    device_ptr buffer = device_alloc(MOST);
    for (int late = 0; late < 2; late++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            /* The credit may not be enough for the longest ones, whose sends would wait for receives that come later. */
            if (late && lengths[i] > READ + 1)
                continue;
            OK(MPI_Barrier(MPI_COMM_WORLD));
            messages(buffer, lengths[i], late);
        }
    collectives();
    bytes_are_right();
    CHECK((value(refused) > 0) == !mapped);
    device_free(buffer);
    OK(MPI_T_pvar_session_free(&session));
    OK(MPI_T_finalize());
    return finish();
}
