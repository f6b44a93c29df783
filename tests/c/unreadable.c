/* A rank that may not read others' memory is told so, and what to do, if BANYAN_COLL forces an algorithm that needs it. Messages
 * go another way. With a core for each rank the algorithm is not there, and all goes well.
 *
 * RUN: ranks=20 fabrics=shm limit=30 only=banyan env=BANYAN_COLL=bcast=single_copy,allreduce=single_copy */
#include "check.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { BYTES = 1 << 20 };

/* From now on process_vm_readv fails, as under the filter of a container. */
static void forbid_reading(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

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
        forbid_reading();
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
