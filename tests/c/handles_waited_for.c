/* The handle of a request is good until the request is over: another thread completes, or cancels, what this one waits for.
 * A generalized request that was freed lives on until it is completed (MPI 5.0, 13.2).
 *
 * RUN: ranks=1 limit=30 only=banyan */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static int queried, freed, cancelled;

static int query(void *state, MPI_Status *status)
{
    (void)state;
    queried++;
    MPI_Status_set_elements(status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = 7;
    return MPI_SUCCESS;
}

static int release(void *state)
{
    (void)state;
    freed++;
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete)
{
    (void)state;
    cancelled += complete ? 100 : 1;
    return MPI_SUCCESS;
}

/* What the other thread completes, and what it cancels. */
static MPI_Request theirs, hers;

static void *other(void *unused)
{
    usleep(20000);
    OK(MPI_Grequest_complete(theirs));
    OK(MPI_Cancel(&hers));
    return unused;
}

static void start(MPI_Request *request)
{
    OK(MPI_Grequest_start(query, release, cancel, NULL, request));
}

static void wait_for(int how)
{
    MPI_Request requests[3];
    MPI_Status statuses[3];
    pthread_t thread;
    int count = 3, done = 0, index, indices[3], yes;
    char byte;
    queried = freed = 0;
    OK(MPI_Irecv(&byte, 1, MPI_BYTE, 0, 99, MPI_COMM_WORLD, &requests[0]));
    start(&requests[1]);
    requests[2] = MPI_REQUEST_NULL;
    hers = requests[0];
    theirs = requests[1];
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
    if (how == 0)
        OK(MPI_Waitall(3, requests, statuses));
    while (how == 1 && done < 2) {
        OK(MPI_Waitany(3, requests, &index, &statuses[0]));
        done++;
    }
    while (how == 2 && done < 2) {
        OK(MPI_Waitsome(3, requests, &count, indices, statuses));
        done += count;
    }
    if (how == 3) {
        OK(MPI_Wait(&requests[1], &statuses[1]));
        OK(MPI_Wait(&requests[0], &statuses[0]));
    }
    pthread_join(thread, NULL);
    CHECK(queried == 1 && freed == 1);
    CHECK(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL);
    if (how == 0 || how == 3) {
        OK(MPI_Test_cancelled(&statuses[0], &yes));
        CHECK(yes && statuses[1].MPI_TAG == 7);
    }
}

/* Freed first: the function to free it runs when it is completed, and the handle is good until then. */
static void free_then_complete(void)
{
    MPI_Request request, copy;
    queried = freed = cancelled = 0;
    start(&request);
    copy = request;
    OK(MPI_Request_free(&request));
    CHECK(request == MPI_REQUEST_NULL && freed == 0);
    OK(MPI_Cancel(&copy));
    CHECK(cancelled == 1);
    OK(MPI_Grequest_complete(copy));
    CHECK(freed == 1 && queried == 0);
    CHECK(class_of(MPI_Grequest_complete(copy)) == MPI_ERR_REQUEST);
    CHECK(freed == 1);

    start(&request);
    copy = request;
    OK(MPI_Grequest_complete(request));
    OK(MPI_Request_free(&request));
    CHECK(freed == 2);
    CHECK(class_of(MPI_Grequest_complete(copy)) == MPI_ERR_REQUEST);
    /* To complete what is no generalized request is an error, and does not harm it. */
    char byte;
    OK(MPI_Irecv(&byte, 1, MPI_BYTE, 0, 98, MPI_COMM_WORLD, &request));
    CHECK(class_of(MPI_Grequest_complete(request)) == MPI_ERR_REQUEST);
    OK(MPI_Cancel(&request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

int main(void)
{
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    free_then_complete();
    for (int how = 0; how < 4; how++)
        wait_for(how);
    return finish();
}
