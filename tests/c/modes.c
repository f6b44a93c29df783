/* Every mode of sending, the probes, persistent requests, cancelling.
 * RUN: ranks=2 fabrics=shm,tcp */
#include "check.h"
#include "large.h"

static int peer, rank;

/* Rank 0 sends by `mode`; rank 1 receives and checks. */
static void one(int mode, int count)
{
    int *data = malloc(sizeof(int) * (size_t)(count + 1));
    if (rank == 0) {
        MPI_Request request = MPI_REQUEST_NULL;
        int started = 0;
        fill(data, sizeof(int) * (size_t)count, mode);
        if (mode % 4 == 2) /* ready: the receiver says when */
            MPI_Recv(NULL, 0, MPI_BYTE, peer, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        switch (mode) {
        case 0: OK(MPI_Send(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD)); break;
        case 1: OK(MPI_Ssend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD)); break;
        case 2: OK(MPI_Rsend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD)); break;
        case 3: OK(MPI_Bsend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD)); break;
        case 4: OK(MPI_Isend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); break;
        case 5: OK(MPI_Issend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); break;
        case 6: OK(MPI_Irsend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); break;
        case 7: OK(MPI_Ibsend(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); break;
        case 8: OK(MPI_Send_init(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); started = 1; break;
        case 9: OK(MPI_Ssend_init(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); started = 1; break;
        case 10: OK(MPI_Rsend_init(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); started = 1; break;
        case 11: OK(MPI_Bsend_init(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request)); started = 1; break;
        }
        if (started)
            OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        if (started)
            OK(MPI_Request_free(&request));
        CHECK(request == MPI_REQUEST_NULL);
    } else {
        MPI_Request request;
        MPI_Status status;
        count_t got;
        OK(MPI_Irecv(data, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &request));
        if (mode % 4 == 2)
            MPI_Send(NULL, 0, MPI_BYTE, peer, 99, MPI_COMM_WORLD);
        OK(MPI_Wait(&request, &status));
        MPI_Get_count(&status, MPI_INT, &got);
        CHECK(got == count && wrong(data, sizeof(int) * (size_t)count, mode) == 0);
    }
    free(data);
}

static void probes(void)
{
    int data[3] = {1, 2, 3}, flag = 0;
    count_t count;
    MPI_Status status;
    MPI_Message message;
    if (rank == 0) {
        for (int tag = 0; tag < 3; tag++)
            MPI_Send(data, tag + 1, MPI_INT, peer, tag, MPI_COMM_WORLD);
        return;
    }
    MPI_Probe(peer, 2, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 3);
    MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
    CHECK(status.MPI_TAG == 0);
    MPI_Iprobe(peer, 0, MPI_COMM_WORLD, &flag, &status);
    CHECK(!flag); /* the matched message is gone */
    MPI_Mrecv(data, 3, MPI_INT, &message, &status);
    CHECK(message == MPI_MESSAGE_NULL);
    while (!flag)
        MPI_Improbe(peer, 1, MPI_COMM_WORLD, &flag, &message, &status);
    MPI_Request request;
    MPI_Imrecv(data, 3, MPI_INT, &message, &request);
    MPI_Wait(&request, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 2);
    MPI_Recv(data, 3, MPI_INT, peer, 2, MPI_COMM_WORLD, &status);
}

static void both_ways(void)
{
    int count = 200000, *out = malloc(sizeof(int) * (size_t)count), *in = malloc(sizeof(int) * (size_t)count);
    fill(out, sizeof(int) * (size_t)count, rank);
    MPI_Sendrecv(out, count, MPI_INT, peer, 5, in, count, MPI_INT, peer, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(wrong(in, sizeof(int) * (size_t)count, peer) == 0);
    MPI_Sendrecv_replace(out, count, MPI_INT, peer, 6, peer, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(wrong(out, sizeof(int) * (size_t)count, peer) == 0);
    MPI_Request request;
    MPI_Isendrecv(out, count, MPI_INT, peer, 8, in, count, MPI_INT, peer, 8, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(wrong(in, sizeof(int) * (size_t)count, rank) == 0);
    MPI_Isendrecv_replace(out, count, MPI_INT, peer, 7, peer, 7, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(wrong(out, sizeof(int) * (size_t)count, rank) == 0);
    free(out);
    free(in);
}

static void cancelling(void)
{
    int never, cancelled = 0, flag;
    MPI_Request request;
    MPI_Status status;
    MPI_Irecv(&never, 1, MPI_INT, peer, 77, MPI_COMM_WORLD, &request);
    MPI_Request_get_status(request, &flag, &status);
    CHECK(!flag);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled);
    OK(MPI_Recv_init(&never, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &request));
    OK(MPI_Start(&request));
    OK(MPI_Wait(&request, &status));
    OK(MPI_Request_free(&request));
    int tag = 0;
    MPI_Recv(&tag, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status);
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    peer = 1 - rank;
    count_t bytes = 4 << 20;
    void *space = malloc((size_t)bytes);
    MPI_Buffer_attach(space, bytes);
    for (int mode = 0; mode < 12; mode++) {
        one(mode, 1);
        one(mode, 100000);
    }
    probes();
    both_ways();
    cancelling();
    void *back;
    MPI_Buffer_detach(&back, &bytes);
    CHECK(back == space && bytes == 4 << 20);
    OK(MPI_Comm_attach_buffer(MPI_COMM_WORLD, space, 4 << 20));
    one(3, 100);
    OK(MPI_Comm_detach_buffer(MPI_COMM_WORLD, &back, &bytes));
    CHECK(back == space && bytes == 4 << 20);
    free(space);
    return finish();
}
