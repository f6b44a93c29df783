/* An error goes to the error handler of the communicator that it is about, whatever was called before on others;
 * an error of a request or message goes to that of its communicator.
 * RUN: ranks=1,2 fabrics=shm,tcp only=banyan */
#include "check.h"

static int others, worlds;

static void on_other(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    others++;
}

static void on_world(MPI_Comm *comm, int *code, ...)
{
    CHECK(*comm == MPI_COMM_WORLD);
    (void)code;
    worlds++;
}

static int query(void *state, MPI_Status *status)
{
    (void)state;
    MPI_Status_set_elements(status, MPI_INT, 0);
    MPI_Status_set_cancelled(status, 0);
    return MPI_SUCCESS;
}

static int freed(void *state)
{
    (void)state;
    return MPI_SUCCESS;
}

static int cancelled(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

/* What was called last succeeded, on another communicator: this error is of MPI_COMM_WORLD only. */
static void world_is_blamed(void)
{
    int before = worlds, x = 0;
    CHECK(MPI_Send(&x, 1, MPI_INT, 1000000, 0, MPI_COMM_WORLD) == MPI_ERR_RANK);
    CHECK(worlds == before + 1 && others == 0);
}

static void after_success(MPI_Comm other)
{
    int me = my_rank(other), x = 1, y = 0;
    MPI_Request request[2];
    MPI_Message message;
    OK(MPI_Recv_init(&y, 1, MPI_INT, me, 1, other, &request[0]));
    OK(MPI_Start(&request[0]));
    world_is_blamed();
    OK(MPI_Send_init(&x, 1, MPI_INT, me, 1, other, &request[1]));
    OK(MPI_Startall(1, &request[1]));
    world_is_blamed();
    OK(MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
    OK(MPI_Request_free(&request[0]));
    world_is_blamed();
    OK(MPI_Request_free(&request[1]));
    OK(MPI_Irecv(&y, 1, MPI_INT, me, 2, other, &request[0]));
    OK(MPI_Cancel(&request[0]));
    world_is_blamed();
    OK(MPI_Wait(&request[0], MPI_STATUS_IGNORE));
    OK(MPI_Isend(&x, 1, MPI_INT, me, 3, other, &request[0]));
    OK(MPI_Mprobe(me, 3, other, &message, MPI_STATUS_IGNORE));
    OK(MPI_Mrecv(&y, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
    world_is_blamed();
    OK(MPI_Wait(&request[0], MPI_STATUS_IGNORE));
    OK(MPI_Isend(&x, 1, MPI_INT, me, 3, other, &request[0]));
    OK(MPI_Mprobe(me, 3, other, &message, MPI_STATUS_IGNORE));
    OK(MPI_Imrecv(&y, 1, MPI_INT, &message, &request[1]));
    world_is_blamed();
    OK(MPI_Waitall(2, request, MPI_STATUSES_IGNORE));
    OK(MPI_Grequest_start(query, freed, cancelled, NULL, &request[0]));
    OK(MPI_Grequest_complete(request[0]));
    world_is_blamed();
    OK(MPI_Wait(&request[0], MPI_STATUS_IGNORE));
}

/* Each of these fails on the other communicator, and MPI_COMM_WORLD is not asked. */
static void after_failure(MPI_Comm other)
{
    int me = my_rank(other), data[4] = {1, 2, 3, 4}, y = 0, before = worlds;
    MPI_Request request[2];
    MPI_Message message;
    others = 0;
    OK(MPI_Recv_init(&y, 1, MPI_INT, me, 1, other, &request[0]));
    OK(MPI_Start(&request[0]));
    CHECK(MPI_Start(&request[0]) == MPI_ERR_REQUEST && others == 1);
    CHECK(MPI_Startall(1, request) == MPI_ERR_REQUEST && others == 2);
    OK(MPI_Send(data, 4, MPI_INT, me, 1, other));
    CHECK(MPI_Wait(&request[0], MPI_STATUS_IGNORE) == MPI_ERR_TRUNCATE && others == 3);
    OK(MPI_Request_free(&request[0]));
    OK(MPI_Isend(data, 4, MPI_INT, me, 2, other, &request[0]));
    OK(MPI_Irecv(&y, 1, MPI_INT, me, 2, other, &request[1]));
    CHECK(MPI_Waitall(2, request, MPI_STATUSES_IGNORE) == MPI_ERR_IN_STATUS && others == 4);
    OK(MPI_Isend(data, 4, MPI_INT, me, 3, other, &request[0]));
    OK(MPI_Mprobe(me, 3, other, &message, MPI_STATUS_IGNORE));
    CHECK(MPI_Mrecv(&y, -1, MPI_INT, &message, MPI_STATUS_IGNORE) == MPI_ERR_COUNT && others == 5);
    CHECK(MPI_Mrecv(&y, 1, MPI_INT, &message, MPI_STATUS_IGNORE) == MPI_ERR_TRUNCATE && others == 6);
    OK(MPI_Wait(&request[0], MPI_STATUS_IGNORE));
    CHECK(worlds == before);
    others = 0;
    world_is_blamed();
}

int main(int argc, char **argv)
{
    MPI_Comm other;
    MPI_Errhandler mine, worlds_own;
    MPI_Init(&argc, &argv);
    MPI_Comm_create_errhandler(on_other, &mine);
    MPI_Comm_create_errhandler(on_world, &worlds_own);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Comm_set_errhandler(other, mine);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, worlds_own);
    after_success(other);
    after_failure(other);
    MPI_Errhandler_free(&mine);
    MPI_Errhandler_free(&worlds_own);
    MPI_Comm_free(&other);
    return finish();
}
