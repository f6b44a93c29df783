/* MPI_Abort in a signal handler that interrupted an MPI call ends the job with its code, and mpirun tells it.
 * RUN: ranks=1,2 fabrics=shm,tcp limit=20 status=9 says=MPI_Abort(MPI_COMM_WORLD, only=banyan */
#include "check.h"
#include <signal.h>
#include <unistd.h>

static void on_signal(int number)
{
    (void)number;
    MPI_Abort(MPI_COMM_WORLD, 9);
}

int main(int argc, char **argv)
{
    int x, rank;
    MPI_Init(&argc, &argv);
    rank = my_rank(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("ok\n");
        signal(SIGALRM, on_signal);
        ualarm(100000, 0);
    }
    MPI_Recv(&x, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return 0;
}
