/* A call that fails gives a null handle where it would have given a new one, whatever was there before: what is tested, waited for or
 * freed afterwards is not an old object.
 *
 * RUN: ranks=2 fabrics=shm limit=30 only=banyan */
#include "check.h"

/* Fails, and leaves a null handle in `handle`, which held a number that is no handle. */
#define NULL_AFTER(handle, null, call)                                                                                                \
    do {                                                                                                                              \
        handle = (void *)0x12345;                                                                                                     \
        CHECK((call) != MPI_SUCCESS);                                                                                                 \
        CHECK(handle == null);                                                                                                        \
    } while (0)

enum { BAD = 99 };

static int value[2], one[] = {1}, minus[] = {-1};
static MPI_Comm world = MPI_COMM_WORLD;

static void datatypes(void)
{
    MPI_Datatype type, none[] = {MPI_DATATYPE_NULL};
    MPI_Aint at[] = {0};
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_contiguous(-1, MPI_INT, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_contiguous_c(1, MPI_DATATYPE_NULL, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_vector(1, -1, 1, MPI_INT, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_indexed(1, minus, one, MPI_INT, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_create_struct(1, one, at, none, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_create_resized(MPI_DATATYPE_NULL, 0, 1, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_create_subarray(1, minus, one, one, MPI_ORDER_C, MPI_INT, &type));
    NULL_AFTER(type, MPI_DATATYPE_NULL, MPI_Type_dup(MPI_DATATYPE_NULL, &type));
}

static void requests(void)
{
    MPI_Request request;
    MPI_Message message;
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Isend(value, 1, MPI_INT, BAD, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Isend_c(value, 1, MPI_INT, 0, -5, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Issend(value, -1, MPI_INT, 0, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Irecv(value, 1, MPI_DATATYPE_NULL, 0, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Isendrecv(value, 1, MPI_INT, BAD, 0, value + 1, 1, MPI_INT, 0, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Send_init(value, 1, MPI_INT, BAD, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Recv_init(value, 1, MPI_INT, BAD, 0, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Ibcast(value, 1, MPI_INT, BAD, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Bcast_init(value, 1, MPI_INT, BAD, world, MPI_INFO_NULL, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Iallreduce(value, value + 1, 1, MPI_INT, MPI_OP_NULL, world, &request));
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Ibarrier(MPI_COMM_NULL, &request));
    NULL_AFTER(message, MPI_MESSAGE_NULL, MPI_Mprobe(BAD, 0, world, &message, MPI_STATUS_IGNORE));
    message = MPI_MESSAGE_NULL;
    NULL_AFTER(request, MPI_REQUEST_NULL, MPI_Imrecv(value, 1, MPI_INT, &message, &request));
}

static void others(void)
{
    MPI_Comm comm;
    MPI_Group group;
    MPI_Info info;
    NULL_AFTER(comm, MPI_COMM_NULL, MPI_Comm_dup(MPI_COMM_NULL, &comm));
    NULL_AFTER(comm, MPI_COMM_NULL, MPI_Comm_split(world, -7, 0, &comm));
    NULL_AFTER(comm, MPI_COMM_NULL, MPI_Comm_create(world, MPI_GROUP_NULL, &comm));
    NULL_AFTER(comm, MPI_COMM_NULL, MPI_Intercomm_merge(world, 0, &comm));
    NULL_AFTER(comm, MPI_COMM_NULL, MPI_Cart_create(world, 1, minus, one, 0, &comm));
    NULL_AFTER(group, MPI_GROUP_NULL, MPI_Comm_group(MPI_COMM_NULL, &group));
    NULL_AFTER(group, MPI_GROUP_NULL, MPI_Group_incl(MPI_GROUP_EMPTY, 1, one, &group));
    NULL_AFTER(group, MPI_GROUP_NULL, MPI_Group_union(MPI_GROUP_NULL, MPI_GROUP_EMPTY, &group));
    NULL_AFTER(info, MPI_INFO_NULL, MPI_Info_dup(MPI_INFO_NULL, &info));
}

/* The error handler of a communicator finds it so already. */
static MPI_Request seen;

static void look(MPI_Comm *comm, int *code, ...)
{
    CHECK(*comm == world && class_of(*code) == MPI_ERR_RANK);
    CHECK(seen == MPI_REQUEST_NULL);
}

int main(void)
{
    MPI_Errhandler handler;
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    datatypes();
    requests();
    others();
    OK(MPI_Comm_create_errhandler(look, &handler));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
    NULL_AFTER(seen, MPI_REQUEST_NULL, MPI_Isend(value, 1, MPI_INT, BAD, 0, world, &seen));
    OK(MPI_Errhandler_free(&handler));
    OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    return finish();
}
