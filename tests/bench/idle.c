/* What a rank that waits for a message costs: its processor time as a percentage of the wait. */
#include "bench.h"
#include <sys/resource.h>

/* How long the message is not sent, in seconds. */
#define WAIT 1

static double processor_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
           + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

int main(int argc, char **argv)
{
    int token = 0;
    double share = 0;
    bench_init(&argc, &argv);
    begin_cell("waiting");
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) {
        sleep(WAIT);
        token = 7;
        MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    } else if (rank == 0) {
        double start = now(), used = processor_seconds();
        MPI_Recv(&token, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        share = (processor_seconds() - used) / (now() - start) * 100;
    }
    end_cell(share, "%", rank < 2 && token != 7);
    MPI_Finalize();
    return 0;
}
