/* What tools are told of devices by MPI_T: settings as control variables, and what is counted of a long message from device to device, for each
 * handle and session by itself. The arguments are the values that BANYAN_GPU and BANYAN_GPU_IPC have, and by which way messages go: "ipc", "handover" buffers or
 * "bounce" buffers. */
#include "../c/check.h"
#include "device.h"

enum { BYTES = 3 << 20, VARIABLES = 6 };

static const char *const names[VARIABLES] = {"gpu_ipc_reads", "gpu_ipc_bytes", "gpu_bytes_between", "gpu_bounced", "gpu_copies", "gpu_handed_bytes"};

static device_ptr memory;
static int by_ipc, by_handover;

static void message(void)
{
    if (my_rank(MPI_COMM_WORLD) == 0)
        OK(MPI_Send((void *)memory, BYTES, MPI_BYTE, 1, 0, MPI_COMM_WORLD));
    else
        OK(MPI_Recv((void *)memory, BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The text of the control variable of this name. */
static const char *setting(const char *name)
{
    static char text[5000];
    MPI_T_cvar_handle handle;
    int index = -1, count = 0;
    OK(MPI_T_cvar_get_index(name, &index));
    OK(MPI_T_cvar_handle_alloc(index, NULL, &handle, &count));
    CHECK(count > 0 && (size_t)count <= sizeof text);
    memset(text, 'x', sizeof text);
    OK(MPI_T_cvar_read(handle, text));
    CHECK(memchr(text, 0, (size_t)count));
    CHECK(MPI_T_cvar_write(handle, "x") == MPI_T_ERR_CVAR_SET_NEVER);
    OK(MPI_T_cvar_handle_free(&handle));
    CHECK(handle == MPI_T_CVAR_HANDLE_NULL);
    return text;
}

/* Handles of all the names in a new session. */
static MPI_T_pvar_session session_of(MPI_T_pvar_handle handles[])
{
    MPI_T_pvar_session session;
    OK(MPI_T_pvar_session_create(&session));
    for (int i = 0; i < VARIABLES; i++) {
        int index = -1, count = 0;
        OK(MPI_T_pvar_get_index(names[i], MPI_T_PVAR_CLASS_COUNTER, &index));
        OK(MPI_T_pvar_handle_alloc(session, index, NULL, &handles[i], &count));
        CHECK(count == 1);
    }
    return session;
}

static unsigned long long value(MPI_T_pvar_session session, MPI_T_pvar_handle handle)
{
    unsigned long long now = 99;
    OK(MPI_T_pvar_read(session, handle, &now));
    return now;
}

/* So many messages are counted, and nothing else. */
static void counted(MPI_T_pvar_session session, MPI_T_pvar_handle handles[], int messages)
{
    int receives = my_rank(MPI_COMM_WORLD) == 1;
    unsigned long long reads = by_ipc && receives ? (unsigned long long)messages : 0, bounced = value(session, handles[3]);
    unsigned long long copies = value(session, handles[4]);
    CHECK(value(session, handles[0]) == reads);
    CHECK(value(session, handles[1]) == reads * BYTES);
    CHECK(value(session, handles[2]) == reads * BYTES);
    CHECK(by_ipc || by_handover ? bounced == 0 : bounced >= (unsigned long long)messages * (BYTES >> 19));
    CHECK(value(session, handles[5]) == (by_handover ? (unsigned long long)messages * BYTES : 0));
    CHECK((copies > 0) == (messages > 0 && (!by_ipc || receives)));
}

int main(int argc, char **argv)
{
    MPI_T_pvar_handle first[VARIABLES], second[VARIABLES];
    unsigned long long now = 0;
    int level;
    CHECK(argc == 4);
    by_ipc = strcmp(argv[3], "ipc") == 0;
    by_handover = strcmp(argv[3], "handover") == 0;
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    MPI_Init(&argc, &argv);
    CHECK(strcmp(setting("BANYAN_GPU"), argv[1]) == 0);
    CHECK(strcmp(setting("BANYAN_GPU_IPC"), argv[2]) == 0);
    use_device(my_rank(MPI_COMM_WORLD));
    memory = device_alloc(BYTES);
    MPI_T_pvar_session one = session_of(first), two = session_of(second);

    /* Only what is started counts. */
    message();
    counted(one, first, 0);
    OK(MPI_T_pvar_start(one, MPI_T_PVAR_ALL_HANDLES));
    message();
    counted(one, first, 1);
    OK(MPI_T_pvar_start(two, MPI_T_PVAR_ALL_HANDLES));
    OK(MPI_T_pvar_start(one, first[0]));
    message();
    counted(one, first, 2);
    counted(two, second, 1);
    OK(MPI_T_pvar_stop(one, MPI_T_PVAR_ALL_HANDLES));
    message();
    counted(one, first, 2);
    counted(two, second, 2);
    OK(MPI_T_pvar_start(one, MPI_T_PVAR_ALL_HANDLES));
    message();
    counted(one, first, 3);

    /* Handles begin anew each by itself. */
    OK(MPI_T_pvar_reset(one, MPI_T_PVAR_ALL_HANDLES));
    counted(one, first, 0);
    message();
    counted(one, first, 1);
    counted(two, second, 4);
    OK(MPI_T_pvar_readreset(two, second[4], &now));
    CHECK((now > 0) == (!by_ipc || my_rank(MPI_COMM_WORLD) == 1));
    CHECK(value(two, second[4]) == 0);
    now = 70;
    OK(MPI_T_pvar_write(two, second[4], &now));
    CHECK(value(two, second[4]) == 70);
    CHECK(MPI_T_pvar_read(one, second[4], &now) == MPI_T_ERR_INVALID_HANDLE);
    OK(MPI_T_pvar_handle_free(two, &second[4]));
    CHECK(second[4] == MPI_T_PVAR_HANDLE_NULL);
    OK(MPI_T_pvar_session_free(&one));
    OK(MPI_T_finalize());
    device_free(memory);
    return finish();
}
