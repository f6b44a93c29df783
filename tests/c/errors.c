/* Wrong arguments get their error class through the communicator's error handler, and nothing breaks.
 * RUN: ranks=2 fabrics=shm,tcp only=banyan */
#include "check.h"

static int calls, last;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    calls++;
    last = *code;
}

#define CLASS(call, class)                \
    do {                                  \
        int before = calls;               \
        int code = (call);                \
        CHECK(class_of(code) == (class)); \
        CHECK(calls == before + 1);       \
        CHECK(last == code);              \
    } while (0)

static void arguments(MPI_Comm comm)
{
    int data[4] = {0}, flag;
    MPI_Request request;
    MPI_Datatype freed;
    CLASS(MPI_Send(data, 1, MPI_INT, 17, 0, comm), MPI_ERR_RANK);
    CLASS(MPI_Send(data, 1, MPI_INT, -5, 0, comm), MPI_ERR_RANK);
    CLASS(MPI_Send(data, 1, MPI_INT, 0, -3, comm), MPI_ERR_TAG);
    CLASS(MPI_Send(data, -1, MPI_INT, 0, 0, comm), MPI_ERR_COUNT);
    CLASS(MPI_Send(data, 1, MPI_DATATYPE_NULL, 0, 0, comm), MPI_ERR_TYPE);
    CLASS(MPI_Send(NULL, 1, MPI_INT, 0, 0, comm), MPI_ERR_BUFFER);
    CLASS(MPI_Irecv(data, 1, MPI_INT, 99, 0, comm, &request), MPI_ERR_RANK);
    CLASS(MPI_Bcast(data, 1, MPI_INT, 5, comm), MPI_ERR_ROOT);
    CLASS(MPI_Reduce(data, data + 1, 1, MPI_INT, MPI_OP_NULL, 0, comm), MPI_ERR_OP);
    CLASS(MPI_Allreduce(data, data + 1, 1, MPI_FLOAT, MPI_BAND, comm), MPI_ERR_OP);
    MPI_Type_contiguous(2, MPI_INT, &freed);
    MPI_Datatype stale = freed;
    CLASS(MPI_Send(data, 1, freed, 0, 0, comm), MPI_ERR_TYPE); /* not committed */
    MPI_Type_free(&freed);
    CLASS(MPI_Send(data, 1, stale, 0, 0, comm), MPI_ERR_TYPE);
    CHECK(class_of(MPI_Comm_get_attr(comm, MPI_KEYVAL_INVALID, &request, &flag)) == MPI_ERR_KEYVAL);
}

/* Handles that never were, or are no more: on MPI_COMM_WORLD's handler, or that of MPI_COMM_SELF. */
static void handles(void)
{
    int size;
    MPI_Comm comm, stale;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    stale = comm;
    MPI_Comm_free(&comm);
    CHECK(class_of(MPI_Comm_size(stale, &size)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Comm_size(MPI_COMM_NULL, &size)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Comm_size((MPI_Comm)0x7654321, &size)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Type_size((MPI_Datatype)0x1234567, &size)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Group_size(MPI_GROUP_NULL, &size)) == MPI_ERR_GROUP);
    MPI_Request request = (MPI_Request)0x7654321;
    CHECK(class_of(MPI_Wait(&request, MPI_STATUS_IGNORE)) == MPI_ERR_REQUEST);
    /* A bad handle is found before any request is completed. */
    MPI_Request requests[2] = {MPI_REQUEST_NULL, request};
    MPI_Irecv(&size, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_SELF, &requests[0]);
    MPI_Request good = requests[0];
    CHECK(class_of(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE)) == MPI_ERR_REQUEST && requests[0] == good);
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    CHECK(class_of(MPI_Wait(&good, MPI_STATUS_IGNORE)) == MPI_ERR_REQUEST);
}

static void truncation(MPI_Comm comm, int count)
{
    int *data = calloc((size_t)count, sizeof(int)), rank = my_rank(comm);
    if (rank == 0) {
        MPI_Send(data, count, MPI_INT, 1, 0, comm);
        MPI_Send(data, 1, MPI_INT, 1, 1, comm);
    } else {
        MPI_Status status;
        MPI_Request requests[2];
        CLASS(MPI_Recv(data, count / 2, MPI_INT, 0, 0, comm, &status), MPI_ERR_TRUNCATE);
        MPI_Irecv(data, 1, MPI_INT, 0, 1, comm, &requests[0]);
        OK(MPI_Wait(&requests[0], &status)); /* the next message is unharmed */
    }
    free(data);
}

static void strings(void)
{
    char text[MPI_MAX_ERROR_STRING];
    int length, class, code, found;
    OK(MPI_Error_string(MPI_ERR_TRUNCATE, text, &length));
    CHECK(length > 0 && (int)strlen(text) == length);
    MPI_Add_error_class(&class);
    MPI_Add_error_code(class, &code);
    MPI_Add_error_string(code, "the cat is out");
    CHECK(class > MPI_ERR_LASTCODE && class_of(code) == class);
    MPI_Error_string(code, text, &length);
    CHECK(strcmp(text, "the cat is out") == 0);
    int *bound;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_LASTUSEDCODE, &bound, &found);
    CHECK(found && *bound >= code);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    CHECK(found && *bound >= 1 << 29);
    MPI_Comm_call_errhandler(MPI_COMM_WORLD, code);
    CHECK(last == code);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Errhandler mine;
    MPI_Comm comm;
    MPI_Comm_create_errhandler(handler, &mine);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, mine);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, mine);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm); /* the copy has the handler too */
    arguments(comm);
    handles();
    truncation(comm, 100);
    truncation(comm, 1000000);
    strings();
    MPI_Errhandler_free(&mine);
    MPI_Comm_free(&comm);
    return finish();
}
