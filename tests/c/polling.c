/* A ring in which everybody polls, with more ranks than most machines that run this have cores to spare: a look in vain gives
 * the core to whom the message has to come from. If it does not, each hop takes as long as a time slice, and all of them
 * many times the limit.
 *
 * RUN: ranks=4 limit=60 */
#include "check.h"

enum { LAPS = 2000 };

typedef void receive(int from);

static void by_test(int from)
{
    MPI_Request request;
    int flag = 0;
    OK(MPI_Irecv(NULL, 0, MPI_INT, from, 0, MPI_COMM_WORLD, &request));
    while (!flag)
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
}

/* Other calls between the tests. */
static void by_test_and_more(int from)
{
    MPI_Request request;
    int flag = 0, other = 0, rank = 0;
    OK(MPI_Irecv(NULL, 0, MPI_INT, from, 0, MPI_COMM_WORLD, &request));
    while (!flag) {
        MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &other, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&rank, 1, MPI_INT, 0, 5, &other, 1, MPI_INT, 0, 5, MPI_COMM_SELF, MPI_STATUS_IGNORE);
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    }
}

static void by_many(int from, int how)
{
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int flag = 0, index, indices[2];
    OK(MPI_Irecv(NULL, 0, MPI_INT, from, 0, MPI_COMM_WORLD, &requests[1]));
    while (!flag) {
        if (how == 0)
            MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE);
        else if (how == 1)
            MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE);
        else
            MPI_Testsome(2, requests, &flag, indices, MPI_STATUSES_IGNORE);
    }
}

static void by_testall(int from)
{
    by_many(from, 0);
}

static void by_testany(int from)
{
    by_many(from, 1);
}

static void by_testsome(int from)
{
    by_many(from, 2);
}

static void by_status(int from)
{
    MPI_Request request;
    int flag = 0;
    OK(MPI_Irecv(NULL, 0, MPI_INT, from, 0, MPI_COMM_WORLD, &request));
    while (!flag)
        MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

static void by_iprobe(int from)
{
    int flag = 0;
    while (!flag)
        MPI_Iprobe(from, 0, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    OK(MPI_Recv(NULL, 0, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
}

static void by_improbe(int from)
{
    MPI_Message message;
    int flag = 0;
    while (!flag)
        MPI_Improbe(from, 0, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
    OK(MPI_Mrecv(NULL, 0, MPI_INT, &message, MPI_STATUS_IGNORE));
}

int main(void)
{
    receive *ways[] = {by_test, by_test_and_more, by_testall, by_testany, by_testsome, by_status, by_iprobe, by_improbe};
    MPI_Init(NULL, NULL);
    int rank = my_rank(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
        for (int lap = 0; lap < LAPS; lap++) {
            if (rank == 0)
                OK(MPI_Send(NULL, 0, MPI_INT, next, 0, MPI_COMM_WORLD));
            ways[way](last);
            if (rank != 0)
                OK(MPI_Send(NULL, 0, MPI_INT, next, 0, MPI_COMM_WORLD));
        }
    return finish();
}
