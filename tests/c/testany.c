/* MPI_Testany and MPI_Testsome: nothing over, one over, all over, null and inactive requests, sends that were over at once, a
 * cancelled receive, a handle that is none.
 * RUN: ranks=1,2,5 fabrics=shm,tcp only=banyan */
#include "check.h"

enum { MOST = 20, ROUND = 99, NEVER = 98 };

static int rank, next, before;

/* All are pending; then messages come, the last receive's first. */
static void one_by_one(int n)
{
    MPI_Request requests[MOST];
    MPI_Status status, statuses[MOST];
    int values[MOST], places[MOST], which, flag, count;
    for (int i = 0; i < n; i++)
        OK(MPI_Irecv(&values[i], 1, MPI_INT, before, i, MPI_COMM_WORLD, &requests[i]));
    OK(MPI_Testany(n, requests, &which, &flag, &status));
    CHECK(!flag && which == MPI_UNDEFINED);
    OK(MPI_Testsome(n, requests, &count, places, statuses));
    CHECK(count == 0);
    for (int i = n - 1; i >= 0; i--) {
        MPI_Barrier(MPI_COMM_WORLD);
        int value = 10 * i + before;
        OK(MPI_Send(&(int){10 * i + rank}, 1, MPI_INT, next, i, MPI_COMM_WORLD));
        do {
            if (i % 2) {
                OK(MPI_Testany(n, requests, &which, &flag, &status));
            } else {
                OK(MPI_Testsome(n, requests, &flag, places, statuses));
                which = places[0], status = statuses[0];
            }
        } while (!flag);
        CHECK(flag == 1 && which == i && requests[i] == MPI_REQUEST_NULL && values[i] == value);
        CHECK(status.MPI_SOURCE == before && status.MPI_TAG == i);
    }
    OK(MPI_Testany(n, requests, &which, &flag, &status));
    CHECK(flag && which == MPI_UNDEFINED);
    OK(MPI_Testsome(n, requests, &count, places, statuses));
    CHECK(count == MPI_UNDEFINED);
}

static void mixed(void)
{
    MPI_Request requests[3] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL };
    MPI_Status status;
    int out = rank, in = -1, never, which, flag;
    OK(MPI_Irecv(&in, 1, MPI_INT, before, ROUND, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Recv_init(&never, 1, MPI_INT, before, NEVER, MPI_COMM_WORLD, &requests[2]));
    OK(MPI_Testany(3, requests, &which, &flag, &status));
    CHECK(!flag);
    OK(MPI_Testany(1, &requests[2], &which, &flag, &status));
    CHECK(flag && which == MPI_UNDEFINED);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_Isend(&out, 1, MPI_INT, next, ROUND, MPI_COMM_WORLD, &requests[1]));
    for (int found = 0; found < 2; found += flag)
        OK(MPI_Testany(3, requests, &which, &flag, &status));
    CHECK(in == before && requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL);
    OK(MPI_Request_free(&requests[2]));

    OK(MPI_Irecv(&never, 1, MPI_INT, before, NEVER, MPI_COMM_WORLD, &requests[0]));
    OK(MPI_Cancel(&requests[0]));
    do
        OK(MPI_Testany(1, requests, &which, &flag, &status));
    while (!flag);
    int cancelled;
    OK(MPI_Test_cancelled(&status, &cancelled));
    CHECK(cancelled && which == 0);

    OK(MPI_Irecv(&never, 1, MPI_INT, before, NEVER, MPI_COMM_WORLD, &requests[0]));
    requests[1] = (MPI_Request)(size_t)0x4123456;
    CHECK(class_of(MPI_Testany(2, requests, &which, &flag, &status)) == MPI_ERR_REQUEST);
    OK(MPI_Cancel(&requests[0]));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
}

/* Receives that are over and started anew are found in turn, so that messages of one sender are seen in their order, as HPCC
 * relies on. */
static void in_turn(void)
{
    enum { SLOTS = 4, MESSAGES = 12, TURN = 97, TOKEN = 96 };
    MPI_Request requests[SLOTS];
    int values[SLOTS], which, flag = 1;
    for (int i = 0; i < MESSAGES + 2; i++)
        OK(MPI_Send(&i, 1, MPI_INT, next, i < MESSAGES ? TURN : i == MESSAGES ? NEVER : TOKEN, MPI_COMM_WORLD));
    /* Behind all of them, so they are all there. */
    OK(MPI_Recv(&which, 1, MPI_INT, before, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    /* The one found last is the last of a list. */
    for (int i = 0; i < SLOTS; i++)
        OK(MPI_Irecv(&values[i], 1, MPI_INT, before, i < SLOTS - 1 ? ROUND : NEVER, MPI_COMM_WORLD, &requests[i]));
    OK(MPI_Waitany(SLOTS, requests, &which, MPI_STATUS_IGNORE));
    CHECK(which == SLOTS - 1);
    for (int i = 0; i < SLOTS - 1; i++) {
        OK(MPI_Cancel(&requests[i]));
        OK(MPI_Wait(&requests[i], MPI_STATUS_IGNORE));
    }
    for (int i = 0; i < SLOTS; i++)
        OK(MPI_Irecv(&values[i], 1, MPI_INT, before, TURN, MPI_COMM_WORLD, &requests[i]));
    for (int i = 0; i < MESSAGES; i++) {
        if (i % 2)
            OK(MPI_Waitany(SLOTS, requests, &which, MPI_STATUS_IGNORE));
        else
            OK(MPI_Testany(SLOTS, requests, &which, &flag, MPI_STATUS_IGNORE));
        CHECK(flag && which == i % SLOTS && values[which] == i);
        if (i + SLOTS < MESSAGES)
            OK(MPI_Irecv(&values[which], 1, MPI_INT, before, TURN, MPI_COMM_WORLD, &requests[which]));
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int ranks = size_of(MPI_COMM_WORLD);
    rank = my_rank(MPI_COMM_WORLD);
    next = (rank + 1) % ranks;
    before = (rank + ranks - 1) % ranks;
    for (int n = 1; n <= MOST; n++) {
        one_by_one(n);
        MPI_Barrier(MPI_COMM_WORLD);
        mixed();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    in_turn();
    return finish();
}
