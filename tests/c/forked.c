/* A child that fork() makes of a rank has no part in the job: MPI calls there are errors that say so, MPI_Abort ends the child
 * alone, and the parent goes on as if nothing had been.
 * RUN: ranks=1,2 fabrics=shm,tcp limit=20 only=banyan */
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"

/* What a child finds; its exit status is the number of what is not so. */
static int child(int next)
{
    char text[MPI_MAX_ERROR_STRING];
    int length, byte = 0, ranks;
    MPI_Request request;
    /* What moves nothing still works. */
    CHECK(MPI_Comm_size(MPI_COMM_WORLD, &ranks) == MPI_SUCCESS);
    int code = MPI_Send(&byte, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    CHECK(class_of(code) == MPI_ERR_OTHER);
    MPI_Error_string(code, text, &length);
    CHECK(strstr(text, "fork()") != NULL);
    CHECK(class_of(MPI_Irecv(&byte, 1, MPI_INT, next, 0, MPI_COMM_WORLD, &request)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Barrier(MPI_COMM_WORLD)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Allreduce(MPI_IN_PLACE, &byte, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_Finalize()) == MPI_ERR_OTHER);
    return check_failures;
}

static int status_of(pid_t pid)
{
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(int argc, char **argv)
{
    int provided, byte = 5;
    MPI_Init_thread(&argc, &argv, argc > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    int rank = my_rank(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), next = (rank + 1) % ranks;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int round = 0; round < 2; round++) {
        /* First before any message or collective, then after. */
        pid_t pid = fork();
        if (pid == 0)
            round == 0 ? _exit(child(next)) : exit(child(next));
        CHECK(status_of(pid) == 0);
        OK(MPI_Barrier(MPI_COMM_WORLD));
        OK(MPI_Sendrecv_replace(&byte, 1, MPI_INT, next, 0, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        OK(MPI_Allreduce(MPI_IN_PLACE, &byte, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
        CHECK(byte == 5);
    }
    pid_t pid = fork();
    if (pid == 0)
        MPI_Abort(MPI_COMM_WORLD, 9);
    CHECK(status_of(pid) == 9);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    return finish();
}
