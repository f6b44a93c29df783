/* Messages between two processes that RDMA devices carry, from and to memory of GPUs: by themselves (the argument is "direct") or staged ("staged"), as what
 * is counted says. GPUs 0 and 1 are near to the RDMA devices, GPU 2 is not. Memory that is freed and allocated again is other memory. */
#include "../c/check.h"
#include "device.h"

enum { MOST = 3 << 20, VARIABLES = 6, EAGER = 8192 };

static const char *const names[VARIABLES] = {"gpu_rdma_shown", "gpu_rdma_transfers", "gpu_rdma_bytes", "gpu_rdma_refused", "gpu_bounced", "gpu_copies"};
enum { SHOWN, TRANSFERS, MOVED, REFUSED, BOUNCED, COPIES };

static MPI_T_pvar_session session;
static MPI_T_pvar_handle handles[VARIABLES];
static unsigned long long before[VARIABLES];
static unsigned char *here;
static int rank, direct;

static unsigned long long counted(int which)
{
    unsigned long long now = 99;
    OK(MPI_T_pvar_read(session, handles[which], &now));
    return now - before[which];
}

static void count_from_here(void)
{
    for (int i = 0; i < VARIABLES; i++)
        OK(MPI_T_pvar_read(session, handles[i], &before[i]));
}

static unsigned long long flushes(void)
{
    unsigned long long (*calls)(const char *);
    *(void **)&calls = dlsym(driver_library, "banyan_double_calls");
    return calls ? calls("cuFlushGPUDirectRDMAWrites") : 0;
}

/* One message of so many bytes from rank 0 to rank 1, from and to memory that is a GPU's or the host's. */
static void message(void *from, int of_gpu, void *to, int to_gpu, int bytes, int seed)
{
    if (rank == 0) {
        for (int i = 0; i < bytes; i++)
            here[i] = pattern((size_t)i, seed);
        if (of_gpu)
            to_device((device_ptr)from, here, (size_t)bytes);
        else
            memcpy(from, here, (size_t)bytes);
        OK(MPI_Send(from, bytes, MPI_BYTE, 1, seed, MPI_COMM_WORLD));
    } else {
        int wrong = 0;
        MPI_Status status;
        OK(MPI_Recv(to, bytes, MPI_BYTE, 0, seed, MPI_COMM_WORLD, &status));
        if (to_gpu)
            from_device(here, (device_ptr)to, (size_t)bytes);
        else
            memcpy(here, to, (size_t)bytes);
        for (int i = 0; i < bytes; i++)
            wrong += here[i] != pattern((size_t)i, seed);
        CHECK(wrong == 0);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
}

/* All lengths, between GPUs and the host: longer ones than a frame go by themselves at each end that is a GPU's. */
static void lengths(device_ptr gpu, unsigned char *host)
{
    static const int all[] = {1, 100, EAGER - 200, EAGER + 1, 20000, 100001, 1 << 20, MOST - 5};
    int seed = 1;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int how = 1; how < 4; how++) {
            int of_gpu = how & 1, to_gpu = how >> 1, rendezvous = all[i] > EAGER && direct;
            int mine = rank == 0 ? of_gpu : to_gpu;
            unsigned long long flushed = flushes();
            count_from_here();
            message(of_gpu ? (void *)(gpu + 3) : host + 1, of_gpu, to_gpu ? (void *)(gpu + 5) : host, to_gpu, all[i], seed++);
            CHECK(counted(SHOWN) == (unsigned)(rendezvous && of_gpu && rank == 0));
            CHECK(counted(TRANSFERS) == (unsigned)(rendezvous && to_gpu && rank == 1));
            CHECK(counted(MOVED) == (rendezvous && to_gpu && rank == 1 ? (unsigned)all[i] : 0));
            if (!is_hip())
                CHECK(flushes() - flushed == counted(TRANSFERS));
            if (rendezvous)
                CHECK(counted(BOUNCED) == 0 && counted(COPIES) == 0 && counted(REFUSED) == 0);
            else
                CHECK(!mine || counted(COPIES) > 0);
        }
}

/* Elements that lie apart are packed on the way, whoever carries them. */
static void derived(device_ptr gpu)
{
    enum { BLOCKS = 4000, BLOCK = 5, STRIDE = 7, BYTES = BLOCKS * STRIDE };
    MPI_Datatype type;
    MPI_Type_vector(BLOCKS, BLOCK, STRIDE, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    memset(here, 0xee, BYTES);
    for (int i = 0; i < BYTES && rank == 0; i++)
        here[i] = pattern((size_t)i, 77);
    to_device(gpu, here, BYTES);
    if (rank == 0)
        OK(MPI_Send((void *)gpu, 1, type, 1, 0, MPI_COMM_WORLD));
    else
        OK(MPI_Recv((void *)gpu, 1, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    from_device(here, gpu, BYTES);
    int wrong = 0;
    for (int i = 0; i < BYTES - (STRIDE - BLOCK); i++)
        wrong += here[i] != (i % STRIDE < BLOCK || rank == 0 ? pattern((size_t)i, 77) : 0xee);
    CHECK(wrong == 0);
    MPI_Type_free(&type);
}

/* What is allocated where other memory was, has bytes of its own. */
static void again(device_ptr old)
{
    int same = 0;
    for (int i = 0; i < 8; i++) {
        device_free(old);
        device_ptr new = device_alloc(MOST);
        same += new == old;
        message((void *)new, 1, (void *)new, 1, MOST / 2 + i, 200 + i);
        old = new;
    }
    CHECK(same > 0);
    device_free(old);
}

/* Messages both ways at once, several under way, in parts of one allocation. */
static void crossing(device_ptr gpu)
{
    enum { MESSAGES = 6, BYTES = 200000 };
    MPI_Request requests[2 * MESSAGES];
    for (int i = 0; i < MESSAGES * BYTES; i++)
        here[i] = pattern((size_t)i, rank);
    to_device(gpu, here, MESSAGES * BYTES);
    for (int i = 0; i < MESSAGES; i++) {
        OK(MPI_Irecv((void *)(gpu + (MESSAGES + i) * BYTES), BYTES, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, &requests[i]));
        OK(MPI_Isend((void *)(gpu + i * BYTES), BYTES, MPI_BYTE, 1 - rank, i, MPI_COMM_WORLD, &requests[MESSAGES + i]));
    }
    OK(MPI_Waitall(2 * MESSAGES, requests, MPI_STATUSES_IGNORE));
    from_device(here, gpu + MESSAGES * BYTES, MESSAGES * BYTES);
    int wrong = 0;
    for (int i = 0; i < MESSAGES * BYTES; i++)
        wrong += here[i] != pattern((size_t)i, 1 - rank);
    CHECK(wrong == 0);
}

/* Memory that is shorter than the call says, though not by a page, is not sent: both ends are told. */
static void too_short(void)
{
    enum { LONG = 16000 };
    device_ptr memory = device_alloc(LONG - 3000), room = device_alloc(LONG);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int code = rank == 0 ? MPI_Send((void *)memory, LONG, MPI_BYTE, 1, 1, MPI_COMM_WORLD)
                         : MPI_Recv((void *)room, LONG, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    device_free(memory);
    device_free(room);
}

int main(int argc, char **argv)
{
    int level;
    CHECK(argc == 2);
    direct = strcmp(argv[1], "direct") == 0;
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    use_device(rank);
    OK(MPI_T_pvar_session_create(&session));
    for (int i = 0; i < VARIABLES; i++) {
        int index = -1, count = 0;
        OK(MPI_T_pvar_get_index(names[i], MPI_T_PVAR_CLASS_COUNTER, &index));
        OK(MPI_T_pvar_handle_alloc(session, index, NULL, &handles[i], &count));
    }
    OK(MPI_T_pvar_start(session, MPI_T_PVAR_ALL_HANDLES));
    here = malloc(MOST);
    unsigned char *host = malloc(MOST);
    device_ptr gpu = device_alloc(MOST);
    lengths(gpu, host);
    derived(gpu);
    crossing(gpu);
    again(gpu);
    too_short();

    /* A GPU that is far goes by the host. */
    use_device(2);
    device_ptr far = device_alloc(MOST);
    count_from_here();
    message((void *)far, 1, (void *)far, 1, 1 << 20, 99);
    CHECK(counted(SHOWN) == 0 && counted(TRANSFERS) == 0 && counted(COPIES) > 0);
    CHECK(!direct || rank == 1 || counted(REFUSED) > 0);

    /* From a near one it is read by the network and copied at the end that is far. */
    use_device(0);
    device_ptr near = device_alloc(MOST);
    count_from_here();
    message((void *)near, 1, (void *)far, 1, 1 << 20, 98);
    CHECK(counted(SHOWN) == (unsigned)(direct && rank == 0) && counted(TRANSFERS) == 0);
    CHECK((counted(REFUSED) > 0) == (direct && rank == 1));
    CHECK((counted(COPIES) > 0) == (!direct || rank == 1));
    device_free(near);
    device_free(far);
    OK(MPI_T_pvar_session_free(&session));
    OK(MPI_T_finalize());
    free(here);
    free(host);
    return finish();
}
