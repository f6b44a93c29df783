/* A rank that may not read others' memory is told so, and what to do, if BANYAN_COLL forces an algorithm that needs it. Messages
 * go another way. With a core for each rank the algorithm is not there, and all goes well.
 *
 * RUN: ranks=20 fabrics=shm limit=30 only=banyan env=BANYAN_COLL=bcast=single_copy,allreduce=single_copy */
#include "check.h"
#include "forbid.h"

#include <sys/syscall.h>

enum { BYTES = 1 << 20 };

static void teaches(int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length;
    CHECK(class_of(code) == MPI_ERR_OTHER);
    OK(MPI_Error_string(code, text, &length));
    CHECK(strstr(text, "process_vm_readv") != NULL && strstr(text, "BANYAN_COLL") != NULL);
}

int main(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int rank = my_rank(MPI_COMM_WORLD), code;
    unsigned char *buffer = malloc(BYTES);
    if (rank == 1)
        forbid(SYS_process_vm_readv);
    fill(buffer, BYTES, rank);
    code = MPI_Bcast(buffer, BYTES, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank == 1 && code != MPI_SUCCESS)
        teaches(code);
    else
        CHECK(code == MPI_SUCCESS && wrong(buffer, BYTES, 0) == 0);
    if (rank == 0)
        OK(MPI_Send(buffer, BYTES, MPI_BYTE, 1, 0, MPI_COMM_WORLD));
    if (rank == 1) {
        OK(MPI_Recv(buffer, BYTES, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        CHECK(wrong(buffer, BYTES, 0) == 0);
    }
    free(buffer);
    return finish();
}
