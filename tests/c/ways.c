/* Long messages by each way (BANYAN_P2P): alone, in windows, both ways at once, in one piece and in many, to receives that come early
 * and late, are too short or are cancelled. Then the same where the system refuses some ranks to read others' memory, and others to
 * write it.
 * RUN: ranks=2,4 limit=60
 * RUN: ranks=2,4 limit=60 only=banyan env=BANYAN_P2P=ring
 * RUN: ranks=2,4 limit=60 only=banyan env=BANYAN_P2P=read
 * RUN: ranks=2,4 limit=60 only=banyan env=BANYAN_P2P=write
 * RUN: ranks=2,4 limit=60 only=banyan env=BANYAN_P2P=both
 * RUN: ranks=2,4 limit=60 only=banyan env=BANYAN_P2P=auto */
#include "check.h"
#include "forbid.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { LONGEST = 1 << 20, WINDOW = 8, ROUNDS = 50 };

static const int lengths[] = {16384, 20000, 65536, 65537, 100000, 300001, LONGEST};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static unsigned char *out, *in;
static int rank, other;

/* There and back again, often enough that ways are compared; the bytes differ from round to round. */
static void ping_pong(int length)
{
    MPI_Status status;
    int count;
    for (int round = 0; round < ROUNDS; round++) {
        memset(out, round + rank, length);
        if (rank % 2 == 0)
            OK(MPI_Send(out, length, MPI_BYTE, other, round, MPI_COMM_WORLD));
        OK(MPI_Recv(in, LONGEST, MPI_BYTE, other, round, MPI_COMM_WORLD, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == length && in[0] == (unsigned char)(round + other));
        CHECK(memcmp(in, in + 1, length - 1) == 0);
        if (rank % 2 == 1)
            OK(MPI_Send(out, length, MPI_BYTE, other, round, MPI_COMM_WORLD));
    }
}

static void both_ways(int length)
{
    for (int round = 0; round < ROUNDS; round++) {
        memset(out, round + rank, length);
        OK(MPI_Sendrecv(out, length, MPI_BYTE, other, 1, in, length, MPI_BYTE, other, 1, MPI_COMM_WORLD,
                        MPI_STATUS_IGNORE));
        CHECK(in[0] == (unsigned char)(round + other) && memcmp(in, in + 1, length - 1) == 0);
    }
}

/* Several messages at a time, received in another order than that in which they were sent. */
static void windows(int length)
{
    MPI_Request requests[WINDOW];
    length = length / WINDOW < 16384 ? 16384 : length / WINDOW;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < WINDOW; i++) {
            if (rank % 2 == 0) {
                fill(out + i * length, length, i + round);
                OK(MPI_Isend(out + i * length, length, MPI_BYTE, other, i, MPI_COMM_WORLD, &requests[i]));
            } else {
                int tag = round % 2 ? i : WINDOW - 1 - i;
                OK(MPI_Irecv(in + tag * length, length, MPI_BYTE, other, tag, MPI_COMM_WORLD, &requests[i]));
            }
        }
        OK(MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE));
        for (int i = 0; i < WINDOW && rank % 2 == 1; i++)
            CHECK(wrong(in + i * length, length, i + round) == 0);
    }
}

/* Memory with holes at one end or at both, synchronous sends, receives that come late or are too short. */
static void odd_ends(int length)
{
    MPI_Datatype holes;
    MPI_Status status;
    int half = length / 2, blocks = half / 1000;
    MPI_Type_vector(blocks, 1000, 2000, MPI_BYTE, &holes);
    MPI_Type_commit(&holes);
    for (int kind = 0; kind < 6; kind++) {
        int dense_out = kind % 2, dense_in = kind / 2 % 2, short_by = kind == 4 ? blocks * 500 : 0;
        memset(in, 0, length);
        fill(out, length, kind);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank % 2 == 0) {
            if (dense_out)
                OK(MPI_Ssend(out, blocks * 1000, MPI_BYTE, other, kind, MPI_COMM_WORLD));
            else
                OK(MPI_Send(out, 1, holes, other, kind, MPI_COMM_WORLD));
            continue;
        }
        if (kind > 2)
            usleep(2000);
        if (kind > 3)
            OK(MPI_Probe(MPI_ANY_SOURCE, kind, MPI_COMM_WORLD, &status));
        int code = dense_in || short_by
                       ? MPI_Recv(in, blocks * 1000 - short_by, MPI_BYTE, MPI_ANY_SOURCE, kind, MPI_COMM_WORLD, &status)
                       : MPI_Recv(in, 1, holes, other, kind, MPI_COMM_WORLD, &status);
        CHECK(class_of(code) == (short_by ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
        for (int i = 0; i < (blocks * 1000 - short_by) / 1000; i++) {
            const unsigned char *from = out + (dense_out ? 1000 : 2000) * i;
            CHECK(memcmp(in + (dense_in || short_by ? 1000 : 2000) * i, from, 1000) == 0);
        }
        CHECK(!short_by || in[blocks * 1000 - short_by] == 0);
    }
    MPI_Type_free(&holes);
}

/* Sends and receives that are cancelled, and the message that is received after all. */
static void cancelled(int length)
{
    MPI_Request request;
    MPI_Status status;
    int flag = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank % 2 == 0) {
        fill(out, length, 3);
        OK(MPI_Isend(out, length, MPI_BYTE, other, 7, MPI_COMM_WORLD, &request));
        MPI_Cancel(&request);
        OK(MPI_Wait(&request, &status));
        MPI_Test_cancelled(&status, &flag);
        OK(MPI_Send(&flag, 1, MPI_INT, other, 8, MPI_COMM_WORLD));
    } else {
        OK(MPI_Irecv(in, length, MPI_BYTE, other, 9, MPI_COMM_WORLD, &request));
        MPI_Cancel(&request);
        OK(MPI_Wait(&request, &status));
        MPI_Test_cancelled(&status, &flag);
        CHECK(flag);
        OK(MPI_Recv(&flag, 1, MPI_INT, other, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        if (!flag) {
            OK(MPI_Recv(in, length, MPI_BYTE, other, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            CHECK(wrong(in, length, 3) == 0);
        }
    }
}

static void all_of_it(void)
{
    for (int i = 0; i < LENGTHS; i++) {
        ping_pong(lengths[i]);
        both_ways(lengths[i]);
        windows(lengths[i]);
        odd_ends(lengths[i]);
        cancelled(lengths[i]);
    }
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    rank = my_rank(MPI_COMM_WORLD);
    other = rank ^ 1;
    out = malloc(LONGEST);
    in = malloc(LONGEST);
    all_of_it();
    if (rank % 4 == 0)
        forbid(SYS_process_vm_writev);
    else
        forbid(SYS_process_vm_readv);
    all_of_it();
    free(out);
    free(in);
    return finish();
}
