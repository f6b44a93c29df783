/* A rank is killed while it has all of another one's handover buffers: the other one uses them again, for messages to a third rank. mpirun --keep-going, 3 ranks,
 * BANYAN_GPU_IPC=off. */
#include "../c/check.h"
#include "device.h"

#include <signal.h>
#include <unistd.h>

/* In pieces of 512 KiB eleven messages of six pieces are more than the 64 that a rank has. */
enum { BYTES = 3 << 20, PIECE = 512 << 10, BUFFERS = 64, MESSAGES = 11, AFTER = 12, NAME = 20, GO, DONE };

static MPI_T_pvar_session session;
static MPI_T_pvar_handle handed;

static unsigned long long handed_bytes(void)
{
    unsigned long long now = 0;
    OK(MPI_T_pvar_read(session, handed, &now));
    return now;
}

/* Sends more than there is room for to rank 2, which has posted the receives and then does nothing; then kills it. */
static void kill_with_all(device_ptr memory)
{
    MPI_Request requests[MESSAGES];
    MPI_Status statuses[MESSAGES];
    int victim, done;
    OK(MPI_Recv(&victim, 1, MPI_INT, 2, NAME, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    for (int i = 0; i < MESSAGES; i++)
        OK(MPI_Isend((void *)memory, BYTES, MPI_BYTE, 2, i, MPI_COMM_WORLD, &requests[i]));
    OK(MPI_Send(NULL, 0, MPI_INT, 2, GO, MPI_COMM_WORLD));
    /* The victim has answered all of them by then, and looks no more. */
    usleep(300 * 1000);
    double start = MPI_Wtime();
    while (handed_bytes() < (unsigned long long)BUFFERS * PIECE && MPI_Wtime() - start < 30)
        OK(MPI_Iprobe(1, NAME, MPI_COMM_WORLD, &done, MPI_STATUS_IGNORE));
    CHECK(handed_bytes() == (unsigned long long)BUFFERS * PIECE);
    CHECK(kill(victim, SIGKILL) == 0);
    /* Those that had left whole are over; a receive tells that the rank is gone. */
    CHECK(class_of(MPI_Recv(NULL, 0, MPI_INT, 2, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE)) == MPI_ERR_PROC_ABORTED);
    MPI_Waitall(MESSAGES, requests, statuses);
}

static void be_killed(device_ptr memory)
{
    MPI_Request requests[MESSAGES];
    int me = getpid(), any;
    for (int i = 0; i < MESSAGES; i++)
        OK(MPI_Irecv((void *)memory, BYTES, MPI_BYTE, 0, i, MPI_COMM_WORLD, &requests[i]));
    OK(MPI_Send(&me, 1, MPI_INT, 0, NAME, MPI_COMM_WORLD));
    OK(MPI_Recv(NULL, 0, MPI_INT, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Iprobe(1, NAME, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE));
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    static unsigned char bytes[BYTES];
    int index, count, level;
    OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &level));
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD);
    OK(MPI_T_pvar_session_create(&session));
    OK(MPI_T_pvar_get_index("gpu_handed_bytes", MPI_T_PVAR_CLASS_COUNTER, &index));
    OK(MPI_T_pvar_handle_alloc(session, index, NULL, &handed, &count));
    OK(MPI_T_pvar_start(session, handed));
    use_device(rank);
    device_ptr memory = device_alloc(BYTES);
    if (rank == 2)
        be_killed(memory);
    if (rank == 0)
        kill_with_all(memory);
    for (int i = 0; i < AFTER; i++)
        if (rank == 0) {
            fill(bytes, BYTES, i);
            to_device(memory, bytes, BYTES);
            OK(MPI_Send((void *)memory, BYTES, MPI_BYTE, 1, i, MPI_COMM_WORLD));
        } else {
            OK(MPI_Recv((void *)memory, BYTES, MPI_BYTE, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            from_device(bytes, memory, BYTES);
            CHECK(wrong(bytes, BYTES, i) == 0);
        }
    CHECK(handed_bytes() == (rank == 0 ? (unsigned long long)BUFFERS * PIECE : 0) + (unsigned long long)AFTER * BYTES);
    if (rank == 0) {
        int failures = 0;
        OK(MPI_Recv(&failures, 1, MPI_INT, 1, DONE, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (failures + check_failures == 0)
            printf("ok\n");
    } else
        OK(MPI_Send(&check_failures, 1, MPI_INT, 0, DONE, MPI_COMM_WORLD));
    MPI_Finalize();
    return 0;
}
