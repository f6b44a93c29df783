/* When a call has returned its buffers are the program's again, also if it failed while other ranks were in the middle of it:
 * nothing is written to them any more, and what was sent from them arrives as it was.
 *
 * RUN: ranks=3 fabrics=shm,tcp limit=60 only=banyan env=BANYAN_COLL=gather=linear,alltoallv=spread */
#include "check.h"

enum { MINE = 0x5a, GO = 1, NOW = 2 };

/* On devices a call that fails may do so while its first copies are under way: then nothing has left for the others, who hear that it
 * failed. Elsewhere what they were to get has left by then. */
#ifdef BANYAN_ON_DEVICE_H
static const int others_may_fail = 1;
#else
static const int others_may_fail = 0;
#endif

/* The program has used its memory again. Where that is on a device (tests/gpu) this call brings what was written there. */
static void is_written(void)
{
    OK(MPI_Barrier(MPI_COMM_SELF));
}

/* How many bytes are not what the program wrote there. */
static size_t touched(const unsigned char *buffer, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += buffer[i] != MINE;
    return count;
}

/* Rank 1 sends more than the root expects; what rank 2 sends is on its way when the root fails. */
static void gather(int bytes)
{
    int rank = my_rank(MPI_COMM_WORLD), code;
    size_t whole = 3 * (size_t)bytes;
    unsigned char *mine = malloc(bytes + 8), *all = rank == 0 ? calloc(1, whole) : NULL;
    MPI_Request request;
    memset(mine, rank, bytes + 8);
    /* Rank 1 comes when all receives are posted. */
    if (rank == 1)
        OK(MPI_Recv(NULL, 0, MPI_INT, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Igather(mine, rank == 1 ? bytes + 8 : bytes, MPI_BYTE, all, bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request));
    if (rank == 0)
        OK(MPI_Send(NULL, 0, MPI_INT, 1, GO, MPI_COMM_WORLD));
    code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    /* The others hear of it, if they are not through yet. */
    CHECK(class_of(code) == MPI_ERR_TRUNCATE || (rank != 0 && code == MPI_SUCCESS));
    if (rank == 0)
        memset(all, MINE, whole);
    is_written();
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0)
        CHECK(touched(all, whole) == 0);
    free(mine);
    free(all);
}

/* Rank 0 fails because of what rank 1 sent, and uses its memory again before rank 2 has begun to receive. */
static void alltoallv(int bytes)
{
    int rank = my_rank(MPI_COMM_WORLD), here = 0, code;
    int sends[3] = {8, 8, 8}, recvs[3] = {8, 8, 8}, from[3] = {0, 8, 16}, into[3] = {0, bytes + 8, bytes + 16};
    unsigned char *out = malloc(bytes + 32), *in = calloc(1, bytes + 32);
    MPI_Request request;
    fill(out, bytes + 32, 1);
    if (rank == 0)
        sends[2] = bytes;
    if (rank == 1)
        sends[0] = 16;
    if (rank == 2)
        recvs[0] = bytes;
    if (rank != 0)
        OK(MPI_Recv(&here, 0, MPI_INT, 0, rank == 1 ? GO : NOW, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPI_Ialltoallv(out, sends, from, MPI_BYTE, in, recvs, into, MPI_BYTE, MPI_COMM_WORLD, &request));
    if (rank == 0) {
        OK(MPI_Send(&here, 0, MPI_INT, 1, GO, MPI_COMM_WORLD));
        CHECK(class_of(MPI_Wait(&request, MPI_STATUS_IGNORE)) == MPI_ERR_TRUNCATE);
        memset(out, MINE, bytes + 32);
        memset(in, MINE, bytes + 32);
        is_written();
        code = MPI_ERR_TRUNCATE;
        OK(MPI_Send(&here, 0, MPI_INT, 2, NOW, MPI_COMM_WORLD));
    } else {
        code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        CHECK(code == MPI_SUCCESS || others_may_fail);
    }
    OK(MPI_Barrier(MPI_COMM_WORLD));
    if (rank == 0)
        CHECK(touched(in, bytes + 32) == 0);
    if (rank == 2 && code == MPI_SUCCESS)
        for (int i = 0; i < bytes && check_failures == 0; i++)
            CHECK(in[i] == pattern(i + 16, 1));
    free(out);
    free(in);
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int bytes = 1 << 10; bytes <= 64 << 20; bytes *= 16) {
        gather(bytes);
        alltoallv(bytes);
    }
    /* A message of a collective is as wrong if it is shorter. */
    char text[MPI_MAX_ERROR_STRING];
    int length;
    OK(MPI_Error_string(MPI_ERR_TRUNCATE, text, &length));
    CHECK(strstr(text, "longer") == NULL);
    return finish();
}
