/* Where the standard leaves it open, programs that other MPI libraries run are run.
 * RUN: ranks=1,2 fabrics=shm only=banyan */
#include "check.h"

static const MPI_Comm not_null = MPI_COMM_WORLD;

/* A constructor that fails leaves MPI_COMM_NULL. */
static void failed_constructors(MPI_Comm comm)
{
    int dims[1] = {1000}, periods[1] = {0}, remain[1] = {1};
    MPI_Comm new;
#define FAILS(call) do { new = not_null; CHECK((call) != MPI_SUCCESS); CHECK(new == MPI_COMM_NULL); } while (0)
    FAILS(MPI_Cart_create(comm, 1, dims, periods, 0, &new));
    FAILS(MPI_Cart_sub(comm, remain, &new));
    FAILS(MPI_Comm_dup(MPI_COMM_NULL, &new));
    FAILS(MPI_Comm_split(comm, -5, 0, &new));
    FAILS(MPI_Comm_split_type(comm, -5, 0, MPI_INFO_NULL, &new));
    FAILS(MPI_Comm_create(comm, MPI_GROUP_NULL, &new));
    FAILS(MPI_Comm_create_group(comm, MPI_GROUP_NULL, 0, &new));
    FAILS(MPI_Intercomm_create(comm, 1000, comm, 0, 0, &new));
    FAILS(MPI_Intercomm_merge(comm, 0, &new));
}

int main(int argc, char **argv)
{
    int x = 0, rank = 0, dims[2] = {1, 0}, periods[2] = {0, 0};
    MPI_Comm comm;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    /* Nothing to nobody has no type. */
    OK(MPI_Send(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, comm));
    OK(MPI_Recv(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE));
    OK(MPI_Irecv(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, comm, &request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Sendrecv(NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, comm,
                    MPI_STATUS_IGNORE));
    CHECK(MPI_Send(&x, 1, MPI_DATATYPE_NULL, MPI_PROC_NULL, 0, comm) == MPI_ERR_TYPE);
    CHECK(MPI_Send(&x, 0, MPI_DATATYPE_NULL, my_rank(comm), 0, comm) == MPI_ERR_TYPE);
    OK(MPI_Cart_map(comm, 2, dims, periods, &rank));
    CHECK(rank == MPI_UNDEFINED);
    failed_constructors(comm);
    MPI_Comm_free(&comm);
    return finish();
}
