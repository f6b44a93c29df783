/* Memory of a rank (PSS: shared pages count by share), in MB, mean over the ranks, after a first exchange with a
 * neighbour. */
#include "bench.h"

int main(int argc, char **argv)
{
    int token = -1, left;
    bench_init(&argc, &argv);
    begin_cell("pss");
    left = (rank + ranks - 1) % ranks;
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &token, 1, MPI_INT, left, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    double here = pss_mb("self"), all = 0;
    MPI_Reduce(&here, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    end_cell(all / ranks, "MB", token != left || here <= 0);
    MPI_Finalize();
    return 0;
}
